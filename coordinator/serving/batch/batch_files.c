/* coordinator/serving/batch/batch_files.c - reads, replaces and lists the files of the batch folder. A file is written
 * under another name, synced and renamed, so that a crash leaves the old content or the new. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/batch/batch_files.h"
#include "coordinator/serving/json/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ID_CHARACTERS = 24, TIME_CHARACTERS = 10 };

/* The time stands first, so that ids sort by age. */
void batch_id_make(const char *prefix, char out[BATCH_ID_BYTES]) {
    static const char DIGITS[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    uint8_t lots[ID_CHARACTERS - TIME_CHARACTERS] = {0};
    struct timespec now;
    size_t n = strlen(prefix);
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t us = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
    memcpy(out, prefix, n);
    for (int i = TIME_CHARACTERS - 1; i >= 0; i--, us /= 36)
        out[n + (size_t)i] = DIGITS[us % 36];
    n += TIME_CHARACTERS;
    (void)!getrandom(lots, sizeof lots, 0); /* so few bytes are never returned in part */
    for (size_t i = 0; i < sizeof lots; i++)
        out[n++] = DIGITS[lots[i] % 36];
    out[n] = 0;
}

bool batch_id_is_good(const char *id, const char *prefix) {
    size_t n = strlen(prefix);
    return strncmp(id, prefix, n) == 0 && strlen(id) == n + ID_CHARACTERS &&
           strspn(id + n, "0123456789abcdefghijklmnopqrstuvwxyz") == ID_CHARACTERS;
}

mr_status batch_path(const char *folder, const char *id, const char *ending, char out[BATCH_PATH_BYTES], mr_err *err) {
    int n = snprintf(out, BATCH_PATH_BYTES, "%s/%s%s", folder, id, ending);
    return n < BATCH_PATH_BYTES ? MR_OK
                                : mr_err_set(err, MR_E_TOO_LONG, "the path of the folder of batches is too long");
}

static mr_status io_error(const char *path, const char *what, mr_err *err) {
    return mr_err_set(err, errno == ENOENT ? MR_E_NOT_FOUND : MR_E_IO, "%.200s cannot be %s: %s", path, what,
                      strerror(errno));
}

mr_status batch_writer_open(batch_writer *w, const char *folder, const char *id, const char *ending, mr_err *err) {
    *w = (batch_writer){.folder = folder};
    mr_status status = batch_path(folder, id, ending, w->path, err);
    if (status != MR_OK)
        return status;
    snprintf(w->temporary, sizeof w->temporary, "%s.new", w->path);
    w->file = fopen(w->temporary, "we");
    return w->file ? MR_OK : io_error(w->temporary, "made", err);
}

mr_status batch_writer_put(batch_writer *w, mr_str bytes, mr_err *err) {
    w->n_bytes += bytes.len;
    return fwrite(bytes.data, 1, bytes.len, w->file) == bytes.len ? MR_OK : io_error(w->path, "written", err);
}

void batch_writer_abort(batch_writer *w) {
    if (!w->file)
        return;
    (void)fclose(w->file);
    w->file = NULL;
    unlink(w->temporary);
}

mr_status batch_writer_close(batch_writer *w, mr_err *err) {
    mr_status status = fflush(w->file) == 0 && fsync(fileno(w->file)) == 0 && rename(w->temporary, w->path) == 0
                           ? MR_OK
                           : io_error(w->path, "written", err);
    if (status != MR_OK) {
        batch_writer_abort(w);
        return status;
    }
    (void)fclose(w->file); /* all is on the disk */
    w->file = NULL;
    int fd = open(w->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!fsync(fd); /* some file systems cannot */
        close(fd);
    }
    return MR_OK;
}

/* Replaces a file as a whole. On MR_OK its bytes are on the disk. */
static mr_status save(const char *folder, const char *id, const char *ending, mr_str bytes, mr_err *err) {
    batch_writer w;
    mr_status status = batch_writer_open(&w, folder, id, ending, err);
    if (status == MR_OK)
        status = batch_writer_put(&w, bytes, err);
    if (status == MR_OK)
        return batch_writer_close(&w, err);
    batch_writer_abort(&w);
    return status;
}

mr_status batch_object_save(const char *folder, const json_t *object, mr_err *err) {
    char *text = mr_json_dump(object, JSON_INDENT(1));
    if (!text)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for an object");
    mr_status status = save(folder, json_string_value(json_object_get(object, "id")), ".json", mr_str_from(text), err);
    free(text);
    return status;
}

static mr_status read_file(const char *path, mr_text_buf *out, mr_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return io_error(path, "opened", err);
    mr_status status = fstat(fd, &st) == 0 ? MR_OK : io_error(path, "read", err);
    if (status == MR_OK && !mr_text_buf_reserve(out, (size_t)st.st_size))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for the %lld bytes of a file", (long long)st.st_size);
    size_t before = out->len;
    while (status == MR_OK && out->len - before < (size_t)st.st_size) {
        ssize_t n = read(fd, out->data + out->len, (size_t)st.st_size - (out->len - before));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = io_error(path, "read", err);
        if (n <= 0)
            break; /* the file has become shorter */
        out->len += (size_t)n;
    }
    if (status == MR_OK)
        out->data[out->len] = 0;
    close(fd);
    return status;
}

mr_status batch_object_load(const char *folder, const char *id, json_t **out, mr_err *err) {
    char path[BATCH_PATH_BYTES];
    mr_text_buf text = {0};
    mr_status status = batch_path(folder, id, ".json", path, err);
    if (status == MR_OK)
        status = read_file(path, &text, err);
    json_t *object = status == MR_OK ? mr_json_read((mr_str){text.data, text.len}, 0, NULL) : NULL;
    mr_text_buf_deinit(&text);
    if (status != MR_OK)
        return status;
    status = batch_object_check(object, id, err);
    if (status == MR_OK)
        *out = object;
    else
        json_decref(object);
    return status;
}

static int compare_age(const void *a, const void *b) {
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    return strcmp(json_string_value(json_object_get(y, "id")), json_string_value(json_object_get(x, "id")));
}

static bool sort_by_age(json_t *list) {
    size_t n = json_array_size(list);
    json_t **items = malloc((n + 1) * sizeof(json_t *)), *sorted = json_array();
    bool ok = items && sorted;
    for (size_t i = 0; ok && i < n; i++)
        items[i] = json_array_get(list, i);
    if (ok)
        qsort(items, n, sizeof *items, compare_age);
    for (size_t i = 0; ok && i < n; i++)
        ok = json_array_append(sorted, items[i]) == 0;
    ok = ok && json_array_clear(list) == 0 && json_array_extend(list, sorted) == 0;
    json_decref(sorted);
    free(items);
    return ok;
}

mr_status batch_objects_list(const char *folder, const char *prefix, json_t **out, mr_err *err) {
    DIR *d = opendir(folder);
    if (!d)
        return io_error(folder, "read", err);
    json_t *list = json_array();
    bool ok = list != NULL;
    const struct dirent *e;
    while (ok && (e = readdir(d))) {
        char id[BATCH_ID_BYTES];
        size_t n = strlen(e->d_name);
        json_t *object = NULL;
        mr_err ignored;
        if (n < 6 || n - 5 >= sizeof id || strcmp(e->d_name + n - 5, ".json") != 0)
            continue;
        memcpy(id, e->d_name, n - 5);
        id[n - 5] = 0;
        if (batch_id_is_good(id, prefix) && batch_object_load(folder, id, &object, &ignored) == MR_OK)
            ok = json_array_append_new(list, object) == 0;
    }
    closedir(d);
    if (!ok || !sort_by_age(list)) {
        json_decref(list);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a list");
    }
    *out = list;
    return MR_OK;
}

json_t *batch_file_object(const char *id, mr_str name, mr_str purpose, size_t n_bytes) {
    return json_pack("{s:s, s:s, s:I, s:I, s:s%, s:s%, s:s}", "id", id, "object", "file", "bytes", (json_int_t)n_bytes,
                     "created_at", (json_int_t)time(NULL), "filename", name.data, name.len, "purpose", purpose.data,
                     purpose.len, "status", "processed");
}

mr_status batch_file_create(const char *folder, mr_str name, mr_str purpose, mr_str content, json_t **out,
                            mr_err *err) {
    char id[BATCH_ID_BYTES], path[BATCH_PATH_BYTES];
    batch_id_make("file-", id);
    json_t *object = batch_file_object(id, name, purpose, content.len);
    if (!object)
        return mr_err_set(err, MR_E_INVALID, "the name or the purpose of the file is no UTF-8");
    mr_status status = save(folder, id, "", content, err);
    if (status == MR_OK) {
        status = batch_object_save(folder, object, err);
        mr_err ignored;
        if (status != MR_OK && batch_path(folder, id, "", path, &ignored) == MR_OK)
            unlink(path); /* without an object, no request could name the file */
    }
    if (status != MR_OK) {
        json_decref(object);
        return status;
    }
    *out = object;
    return MR_OK;
}

mr_status batch_file_check(const char *folder, const char *id, mr_err *err) {
    char path[BATCH_PATH_BYTES];
    json_t *object = NULL;
    struct stat st;
    mr_status status = batch_path(folder, id, "", path, err);
    if (status == MR_OK)
        status = batch_object_load(folder, id, &object, err);
    if (status != MR_OK)
        return status;
    json_int_t n = json_integer_value(json_object_get(object, "bytes"));
    json_decref(object);
    if (stat(path, &st) != 0)
        return io_error(path, "read", err);
    return st.st_size == n
               ? MR_OK
               : mr_err_set(err, MR_E_FORMAT, "%s was changed by another program: it has %lld bytes in place of %lld",
                            id, (long long)st.st_size, (long long)n);
}

mr_status batch_file_read(const char *folder, const char *id, mr_text_buf *out, mr_err *err) {
    char path[BATCH_PATH_BYTES];
    mr_status status = batch_path(folder, id, "", path, err);
    return status == MR_OK ? read_file(path, out, err) : status;
}

mr_status batch_file_delete(const char *folder, const char *id, mr_err *err) {
    static const char *const ENDINGS[] = {".json", ""};
    char path[BATCH_PATH_BYTES];
    for (int i = 0; i < 2; i++) {
        mr_status status = batch_path(folder, id, ENDINGS[i], path, err);
        if (status != MR_OK)
            return status;
        if (unlink(path) != 0 && (i == 0 || errno != ENOENT))
            return io_error(path, "deleted", err);
    }
    return MR_OK;
}
