/* coordinator/serving/batch/batch_input_file.c - reads the input file of a batch, and says at the end of the batch
 * whether the file is still the one that was read. The file belongs to its user, and other programs may write to it or
 * cut it while the batch runs for hours. So the batch works on a copy in memory, and not on a mapping. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/serving/batch/batch_input.h"
#include "engine/base/mem.h"

enum { PIECE_BYTES = 64 << 10 };

static mr_status io_error(const char *path, const char *what, mr_err *err) {
    return mr_err_set(err, errno == ENOENT ? MR_E_NOT_FOUND : MR_E_IO, "%.160s cannot be %s: %s", path, what,
                      strerror(errno));
}

static batch_file_stamp stamp_of(const struct stat *st) {
    return (batch_file_stamp){.device = (uint64_t)st->st_dev,
                              .inode = (uint64_t)st->st_ino,
                              .n_bytes = (uint64_t)st->st_size,
                              .changed_s = st->st_mtim.tv_sec,
                              .changed_ns = st->st_mtim.tv_nsec};
}

/* Reads up to n bytes. Less than n: the file ends there. -1: errno says why. */
static ssize_t read_whole(int fd, char *out, size_t n) {
    size_t at = 0;
    while (at < n) {
        ssize_t got = read(fd, out + at, n - at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        at += (size_t)got;
    }
    return (ssize_t)at;
}

static mr_status read_opened(int fd, const char *path, mr_batch_input *in, mr_err *err) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return io_error(path, "read", err);
    if (!S_ISREG(st.st_mode))
        return mr_err_set(err, MR_E_FORMAT, "%.160s is no regular file; hint: a batch is read more than once", path);
    if ((uint64_t)st.st_size > BATCH_MAX_INPUT_BYTES)
        return mr_err_set(err, MR_E_TOO_LONG, "%.160s has %.1f GiB, a batch at most %d GiB; hint: split -C 1G", path,
                          (double)st.st_size / (1 << 30), (int)(BATCH_MAX_INPUT_BYTES >> 30));
    in->seen = stamp_of(&st);
    if (st.st_size == 0)
        return MR_OK;
    in->data = mr_alloc((size_t)st.st_size);
    if (!in->data)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the %lld bytes of %.160s", (long long)st.st_size, path);
    ssize_t n = read_whole(fd, in->data, (size_t)st.st_size);
    if (n < 0)
        return io_error(path, "read", err);
    in->n_bytes = (size_t)n;
    return MR_OK;
}

mr_status batch_input_read(const char *path, mr_batch_input *in, mr_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes to must not stop the start */
    if (fd < 0)
        return io_error(path, "opened", err);
    mr_status status = read_opened(fd, path, in, err);
    close(fd);
    return status;
}

/* Whether the file begins with the bytes that were read. */
static mr_status compare(int fd, const char *path, const mr_batch_input *in, bool *out_same, mr_err *err) {
    char *piece = mr_alloc(PIECE_BYTES);
    if (!piece)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to look at %.160s", path);
    mr_status status = MR_OK;
    *out_same = true;
    for (size_t at = 0; at < in->n_bytes && *out_same && status == MR_OK;) {
        size_t n = in->n_bytes - at < PIECE_BYTES ? in->n_bytes - at : PIECE_BYTES;
        ssize_t got = read_whole(fd, piece, n);
        if (got < 0)
            status = io_error(path, "read", err);
        *out_same = got == (ssize_t)n && memcmp(piece, in->data + at, n) == 0;
        at += n;
    }
    mr_free(piece);
    return status;
}

mr_status mr_batch_input_check(const mr_batch_input *in, const char *path, mr_err *err) {
    struct stat st;
    bool same = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) /* the file is not needed any more */
        return errno == ENOENT || errno == ENOTDIR ? MR_OK : io_error(path, "opened", err);
    mr_status status = fstat(fd, &st) == 0 ? MR_OK : io_error(path, "read", err);
    const batch_file_stamp now = status == MR_OK ? stamp_of(&st) : in->seen;
    bool is_untouched = now.device == in->seen.device && now.inode == in->seen.inode &&
                        now.n_bytes == in->seen.n_bytes && now.changed_s == in->seen.changed_s &&
                        now.changed_ns == in->seen.changed_ns;
    if (status == MR_OK && !is_untouched && S_ISREG(st.st_mode))
        status = compare(fd, path, in, &same, err);
    close(fd);
    if (status != MR_OK || is_untouched || (same && now.n_bytes == in->n_bytes))
        return status;
    if (same && in->n_bytes > 0 && in->data[in->n_bytes - 1] != '\n')
        return mr_err_set(
            err, MR_E_FORMAT,
            "%.160s has grown from %zu to %llu bytes while the batch ran, and the last line was not whole "
            "at the start; hint: run it again with another output file",
            path, in->n_bytes, (unsigned long long)now.n_bytes);
    if (same)
        return mr_err_set(err, MR_E_FORMAT,
                          "%.160s has grown from %zu to %llu bytes while the batch ran; hint: the same command answers "
                          "the new requests",
                          path, in->n_bytes, (unsigned long long)now.n_bytes);
    return mr_err_set(
        err, MR_E_FORMAT,
        "%.160s was changed while the batch ran: the results are those of the %zu bytes that it had at the "
        "start",
        path, in->n_bytes);
}
