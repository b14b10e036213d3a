/* tests/fuzz/fuzz_batch.c - fuzzes request files, result files and uploads of batches. A result file that is refused
 * must not be changed. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "coordinator/serving/batch/batch_files.h"
#include "coordinator/serving/batch/batch_run.h"
#include "engine/base/mem.h"
#include "tests/fuzz/fuzz.h"

/* Makes a file in memory and a path that opens the file. */
static int make_file(const uint8_t *data, size_t size, char path[40]) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    MR_ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, 40, "/proc/self/fd/%d", fd);
    return fd;
}

static void read_requests(mr_batch_input *in) {
    const mr_batch_config config = {.input = in, .max_tokens = 3, .priority = -1};
    mr_text_buf id = {0};
    mr_err err;
    for (uint32_t i = 0; i < in->n; i++) {
        batch_request r;
        MR_ASSERT(batch_input_find(in, in->lines[i].number) == &in->lines[i] &&
                  in->lines[i].key_at <= in->lines[i].n_bytes);
        MR_ASSERT(batch_line_put_id(in, &in->lines[i], &id));
        MR_ASSERT(batch_request_read(&config, &in->lines[i], &r, &err) == MR_OK &&
                  (r.code != NULL) != (r.body != NULL));
        free(r.body);
    }
    mr_text_buf_deinit(&id);
}

/* Reads the bytes behind the first empty line as a result file. If the file is refused, checks that its bytes are
 * unchanged. */
static void read_results(mr_batch_input *in, const uint8_t *data, size_t size) {
    char path[40];
    mr_batch_results r = {.fd = -1};
    mr_err err;
    int fd = make_file(data, size, path);
    mr_status status = mr_batch_results_open(path, in, &r, &err);
    MR_ASSERT(status == MR_OK || status == MR_E_FORMAT);
    off_t left = lseek(fd, 0, SEEK_END);
    MR_ASSERT(status == MR_OK ? left == (off_t)(size - r.n_cut_bytes) : left == (off_t)size);
    for (uint32_t i = 0; i < in->n && status == MR_OK; i++)
        if (!in->lines[i].is_done)
            status = batch_results_add(&r, in, &in->lines[i], 200, (mr_str){"{}", 2}, &err);
    if (status == MR_OK)
        MR_ASSERT(batch_results_sync(&r, &err) == MR_OK);
    mr_batch_results_close(&r);
    for (uint32_t i = 0; i < in->n; i++)
        in->lines[i].is_done = false;
    if (status == MR_OK) { /* after this call all lines have results */
        MR_ASSERT(mr_batch_results_open(path, in, &r, &err) == MR_OK && r.n_found == in->n && !r.n_cut_bytes);
        mr_batch_results_close(&r);
    }
    close(fd);
}

int mr_fuzz_batch(const uint8_t *data, size_t size) {
    const uint8_t *blank = size ? memmem(data, size, "\n\n", 2) : NULL;
    size_t n = blank ? (size_t)(blank - data) : size;
    mr_str content, name;
    char path[40];
    mr_batch_input in;
    mr_err err;
    uint32_t *order, n_order;
    int fd = make_file(data, n, path);
    mr_status status = mr_batch_input_open(path, &in, &err);
    MR_ASSERT(status == MR_OK || (status == MR_E_FORMAT && err.text[0]));
    if (status == MR_OK) {
        MR_ASSERT(batch_input_order(&in, &order, &n_order, &err) == MR_OK && n_order == in.n);
        read_requests(&in);
        read_results(&in, blank ? blank + 2 : data, blank ? size - n - 2 : 0);
        mr_free(order);
        mr_batch_input_close(&in);
    }
    close(fd);
    if (batch_multipart_find((mr_str){(const char *)data, size}, "file", &content, &name))
        MR_ASSERT(content.data >= (const char *)data && content.data + content.len <= (const char *)data + size &&
                  name.len <= size);
    return 0;
}
