/* coordinator/serving/batch/batch_split.c - splits the journal of a batch into the two files that OpenAI's API has: the
 * answers, and the failures. A split that a crash or a full disk has ended is made again, with the same bytes: the
 * journal stays until the batch has ended. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/serving/batch/batch_results.h"
#include "coordinator/serving/batch/batch_store_internal.h"

/* One of the two files. It is not there where no line is for it. */
typedef struct half {
    const char *id, *what; /* what: in the name of the file */
    batch_writer writer;
    uint32_t n_lines;
} half;

static mr_status put_line(half *h, const char *folder, mr_str line, mr_err *err) {
    mr_status status = h->n_lines ? MR_OK : batch_writer_open(&h->writer, folder, h->id, "", err);
    if (status == MR_OK)
        status = batch_writer_put(&h->writer, line, err);
    if (status == MR_OK)
        status = batch_writer_put(&h->writer, mr_str_from("\n"), err);
    h->n_lines += status == MR_OK;
    return status;
}

/* A damaged result is left out: the batch has failed because of it. */
static mr_status copy_lines(int fd, const char *folder, half halves[2], mr_err *err) {
    batch_results_reader reader = {.fd = fd};
    mr_status status = MR_OK;
    mr_str line = {"", 0};
    while (status == MR_OK && line.data) {
        batch_result result;
        status = batch_results_read(&reader, &line, err);
        if (status == MR_OK && line.data && batch_result_parse(line, &result) && result.is_whole)
            status = put_line(&halves[result.has_failed], folder, line, err);
    }
    mr_text_buf_deinit(&reader.read);
    return status;
}

static mr_status end_half(half *h, const char *folder, const char *batch_id, mr_err *err) {
    char name[80];
    if (!h->n_lines)
        return MR_OK;
    mr_status status = batch_writer_close(&h->writer, err);
    if (status != MR_OK)
        return status;
    snprintf(name, sizeof name, "%s_%s.jsonl", batch_id, h->what);
    json_t *object = batch_file_object(h->id, mr_str_from(name), mr_str_from("batch_output"), h->writer.n_bytes);
    status = object ? batch_object_save(folder, object, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a file");
    json_decref(object);
    return status;
}

mr_status batch_split(const char *folder, const json_t *batch, uint32_t *out_n_answers, uint32_t *out_n_failures,
                      mr_err *err) {
    const char *id = json_string_value(json_object_get(batch, "id"));
    half halves[2] = {{.id = json_string_value(json_object_get(batch, "output_file_id")), .what = "output"},
                      {.id = json_string_value(json_object_get(batch, "error_file_id")), .what = "error"}};
    char path[BATCH_PATH_BYTES];
    mr_status status = batch_path(folder, id, BATCH_JOURNAL, path, err);
    if (status != MR_OK)
        return status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        return mr_err_set(err, MR_E_IO, "%.200s cannot be opened: %s", path, strerror(errno));
    if (fd >= 0)
        status = copy_lines(fd, folder, halves, err);
    for (int i = 0; i < 2 && status == MR_OK; i++)
        status = end_half(&halves[i], folder, id, err);
    for (int i = 0; i < 2; i++)
        batch_writer_abort(&halves[i].writer);
    if (fd >= 0)
        close(fd);
    if (status == MR_OK) {
        *out_n_answers = halves[0].n_lines;
        *out_n_failures = halves[1].n_lines;
    }
    return status;
}
