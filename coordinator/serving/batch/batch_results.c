/* coordinator/serving/batch/batch_results.c - marks the lines that have a result in an existing file, cuts off a
 * torn last line, and appends and syncs new results. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/batch/batch_results.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

enum { WRITE_BYTES = 1 << 16, HASH_DIGITS = BATCH_HASH_DIGITS };

static mr_status io_error(const mr_batch_results *r, const char *what, mr_err *err) {
    return mr_err_set(err, MR_E_IO, "%.160s cannot be %s: %s", r->path, what, strerror(errno));
}

static mr_status foreign(const mr_batch_results *r, size_t line, const char *why, mr_err *err) {
    return mr_err_set(err, MR_E_FORMAT, "%.160s, line %zu: %s; hint: -o names a new file, or the results of this input",
                      r->path, line, why);
}

static mr_status take_result(mr_batch_results *r, mr_batch_input *in, mr_str text, size_t line, mr_err *err) {
    batch_result result;
    if (!batch_result_parse(text, &result))
        return foreign(r, line, "this is no result of a batch", err);
    if (!result.is_whole)
        return mr_err_set(err, MR_E_FORMAT,
                          "%.160s, line %zu: its checksum does not fit, so it was damaged or edited; hint: remove the "
                          "line, and its request is answered again",
                          r->path, line);
    batch_line *l = batch_input_find(in, result.number);
    if (!l || l->hash != result.hash)
        return foreign(r, line, "this is a result of another input", err);
    if (l->is_done)
        return foreign(r, line, "there was a result of the same request before", err);
    l->is_done = true;
    r->n_found++;
    r->n_failed += result.has_failed;
    return MR_OK;
}

static bool has_only_zeros(int fd) {
    char piece[4096];
    ssize_t n;
    for (off_t at = 0; (n = pread(fd, piece, sizeof piece, at)) > 0; at += n)
        for (ssize_t i = 0; i < n; i++)
            if (piece[i])
                return false;
    return n == 0;
}

/* Whether a file begins with a part of a result: a crash may have left zeros in place of the rest. A file of another
 * program may begin with zeros, too. */
static bool begins_result(int fd, mr_str read) {
    size_t head = sizeof BATCH_RESULT_HEAD - 1, most = read.len < head ? read.len : head;
    size_t n = strnlen(read.data, most);
    return memcmp(read.data, BATCH_RESULT_HEAD, n) == 0 && (n > 0 || has_only_zeros(fd));
}

/* Reads the results of an earlier run. *out_good: their bytes; what stands behind them is a part of a result. */
static mr_status take_results(mr_batch_results *r, mr_batch_input *in, size_t *out_good, mr_err *err) {
    batch_results_reader reader = {.fd = r->fd};
    mr_status status = MR_OK;
    for (size_t line = 1; status == MR_OK; line++) {
        mr_str text;
        status = batch_results_read(&reader, &text, err);
        if (status != MR_OK)
            mr_err_prefix(err, "%.160s", r->path);
        else if (!text.data)
            break;
        else
            status = take_result(r, in, text, line, err);
    }
    /* A file that begins with neither a result nor a part of one is not ours to cut. */
    if (status == MR_OK && reader.n_good_bytes == 0 && reader.read.len &&
        !begins_result(r->fd, (mr_str){reader.read.data, reader.read.len}))
        status = foreign(r, 1, "this is no result of a batch", err);
    *out_good = reader.n_good_bytes;
    mr_text_buf_deinit(&reader.read);
    return status;
}

static mr_status resume(mr_batch_results *r, mr_batch_input *in, mr_err *err) {
    struct stat st;
    if (fstat(r->fd, &st) != 0)
        return io_error(r, "read", err);
    if (!S_ISREG(st.st_mode))
        return mr_err_set(err, MR_E_FORMAT, "%.160s is no regular file", r->path);
    size_t n = (size_t)st.st_size;
    mr_status status = take_results(r, in, &r->n_bytes, err);
    if (status == MR_OK && r->n_bytes < n) {
        r->n_cut_bytes = n - r->n_bytes;
        if (ftruncate(r->fd, (off_t)r->n_bytes) != 0)
            status = io_error(r, "cut", err);
    }
    return status;
}

/* A new file survives a crash only when its folder has been synced, too. */
static void sync_folder(const char *path) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path + 1) : 1;
    if (snprintf(folder, sizeof folder, "%.*s", n, slash ? path : ".") >= (int)sizeof folder)
        return;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!fsync(fd); /* some file systems cannot */
        close(fd);
    }
}

mr_status mr_batch_results_open(const char *path, mr_batch_input *in, mr_batch_results *out, mr_err *err) {
    mr_batch_results r = {.path = path, .fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666)};
    mr_status status = MR_OK;
    if (r.fd < 0)
        return io_error(&r, "opened", err);
    if (flock(r.fd, LOCK_EX | LOCK_NB) != 0)
        status = errno == EWOULDBLOCK ? mr_err_set(err, MR_E_IO, "%.160s: another program works at this batch", path)
                                      : io_error(&r, "locked", err);
    if (status == MR_OK)
        status = resume(&r, in, err);
    if (status != MR_OK) {
        mr_batch_results_close(&r);
        return status;
    }
    sync_folder(path);
    *out = r;
    return MR_OK;
}

void mr_batch_results_close(mr_batch_results *r) {
    if (r->fd >= 0)
        close(r->fd);
    mr_text_buf_deinit(&r->unsaved);
    *r = (mr_batch_results){.fd = -1};
}

/* Other programs may do anything to the file of a batch that runs for hours, and none of it makes a write fail. */
static mr_status check_file(const mr_batch_results *r, mr_err *err) {
    struct stat opened, named;
    if (fstat(r->fd, &opened) != 0)
        return io_error(r, "read", err);
    bool is_there = stat(r->path, &named) == 0;
    if (!is_there && errno != ENOENT && errno != ENOTDIR && errno != ESTALE)
        return io_error(r, "found", err);
    if (!is_there || opened.st_ino != named.st_ino || opened.st_dev != named.st_dev)
        return mr_err_set(
            err, MR_E_NOT_FOUND,
            "%.160s was %s while the batch ran, so results are lost; hint: the same command answers their "
            "requests again",
            r->path, is_there ? "replaced by another file" : "removed");
    if ((size_t)opened.st_size != r->n_bytes)
        return mr_err_set(
            err, MR_E_FORMAT,
            "%.160s was changed by another program while the batch ran: it has %lld bytes in place of %zu; "
            "hint: the same command answers again what is lost; remove lines that are no results before",
            r->path, (long long)opened.st_size, r->n_bytes);
    return MR_OK;
}

/* Appends with O_APPEND. A result that is written in part is cut off at the next start. After a failure the unwritten
 * bytes stay in `unsaved`, because the disk may have room at the next attempt. */
static mr_status write_unsaved(mr_batch_results *r, mr_err *err) {
    mr_status status = r->unsaved.len ? check_file(r, err) : MR_OK;
    size_t at = 0;
    while (at < r->unsaved.len && status == MR_OK) {
        ssize_t n = write(r->fd, r->unsaved.data + at, r->unsaved.len - at);
        if (n < 0 && errno != EINTR)
            status = io_error(r, "written", err);
        at += n > 0 ? (size_t)n : 0;
    }
    if (at) { /* 0: data may be NULL */
        memmove(r->unsaved.data, r->unsaved.data + at, r->unsaved.len - at);
        r->unsaved.len -= at;
        r->n_bytes += at;
    }
    return status;
}

mr_status batch_results_sync(mr_batch_results *r, mr_err *err) {
    mr_status status = write_unsaved(r, err);
    if (status == MR_OK && r->n_unsaved && fdatasync(r->fd) != 0)
        status = io_error(r, "synced", err);
    if (status == MR_OK)
        status = check_file(r, err);
    if (status == MR_OK)
        r->n_unsaved = 0;
    return status;
}

static bool put(mr_batch_results *r, const char *text) {
    return mr_text_buf_append(&r->unsaved, text, strlen(text));
}

/* Appends a JSON body on one line. Newlines become spaces: in JSON they stand only between values. */
static bool put_body(mr_batch_results *r, mr_str body) {
    size_t at = r->unsaved.len;
    while (body.len && (body.data[body.len - 1] == '\n' || body.data[body.len - 1] == ' '))
        body.len--;
    if (!mr_text_buf_append(&r->unsaved, body.len ? body.data : "null", body.len ? body.len : 4))
        return false;
    for (; at < r->unsaved.len; at++)
        if (r->unsaved.data[at] == '\n' || r->unsaved.data[at] == '\r' || !r->unsaved.data[at])
            r->unsaved.data[at] = ' ';
    return true;
}

/* The checksum is set by put_sum. */
static bool put_head(mr_batch_results *r, const mr_batch_input *in, const batch_line *l) {
    char id[96];
    snprintf(id, sizeof id, "%s%" PRIu32 "_%016" PRIx64 "_%016d", BATCH_RESULT_HEAD, l->number, l->hash, 0);
    return put(r, id) && put(r, "\", \"custom_id\": ") && batch_line_put_id(in, l, &r->unsaved) && put(r, ", ");
}

/* Sets the checksum in the id of the result that begins at byte `begin`: of all that follows the id. */
static void put_sum(mr_batch_results *r, size_t begin) {
    char digits[HASH_DIGITS + 1];
    size_t id_begin = begin + sizeof BATCH_RESULT_HEAD - 1;
    const char *end = memchr(r->unsaved.data + id_begin, '"', r->unsaved.len - id_begin);
    size_t at = (size_t)(end - r->unsaved.data);
    uint64_t sum = batch_hash((mr_str){end, r->unsaved.len - 1 - at}); /* without the newline */
    snprintf(digits, sizeof digits, "%016" PRIx64, sum);
    memcpy(r->unsaved.data + at - HASH_DIGITS, digits, HASH_DIGITS);
}

/* Counts the bytes that were appended since `before` as a result, or, where ok is false, takes them back. */
static mr_status end_result(mr_batch_results *r, batch_line *l, size_t before, bool ok, mr_err *err) {
    if (!ok) {
        r->unsaved.len = before;
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the result of line %" PRIu32, l->number);
    }
    put_sum(r, before);
    l->is_done = true;
    r->n_unsaved++;
    return r->unsaved.len < WRITE_BYTES ? MR_OK : write_unsaved(r, err);
}

mr_status batch_results_add(mr_batch_results *r, const mr_batch_input *in, batch_line *l, int http_status, mr_str body,
                            mr_err *err) {
    size_t before = r->unsaved.len;
    char text[128];
    snprintf(text, sizeof text,
             "\"response\": {\"status_code\": %d, \"request_id\": \"req_%" PRIu32 "_%016" PRIx64 "\", \"body\": ",
             http_status, l->number, l->hash);
    return end_result(r, l, before,
                      put_head(r, in, l) && put(r, text) && put_body(r, body) && put(r, "}, \"error\": null}\n"), err);
}

mr_status batch_results_add_error(mr_batch_results *r, const mr_batch_input *in, batch_line *l, const char *code,
                                  const char *message, mr_err *err) {
    size_t before = r->unsaved.len;
    json_t *error = json_pack("{s:s, s:s, s:i}", "code", code, "message", message, "line", (int)l->number);
    char *text = error ? json_dumps(error, 0) : NULL;
    bool ok = text && put_head(r, in, l) && put(r, "\"response\": null, \"error\": ") && put(r, text) && put(r, "}\n");
    free(text);
    json_decref(error);
    return end_result(r, l, before, ok, err);
}
