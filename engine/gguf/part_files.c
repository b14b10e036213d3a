/* Opens, reads and maps the files of a model in parts. gguf_file.c parses what they hold. Names of parts: gguf-split of
 * llama.cpp, "%s-%05d-of-%05d.gguf", numbered from 1. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/part_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"

enum {
    DIGITS = 5,
    SUFFIX_BYTES = 1 + DIGITS + 4 + DIGITS + 5, /* -00002-of-00005.gguf */
    PATH_TAIL_BYTES = 160,                      /* of a long path in an error text */
};

static const uint64_t MAX_PART_BYTES = UINT64_C(1) << 52; /* the sum of all parts fits 64 bits */

/* --- Names ------------------------------------------------------------------------------------------------------- */

/* Five digits as a number; -1: text does not begin with five digits. */
static int32_t number_of(const char *text) {
    int32_t number = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        number = 10 * number + (text[i] - '0');
    }
    return number;
}

int32_t mr_part_files_count(const char *path, int32_t *out_idx) {
    size_t len = strlen(path);
    *out_idx = 0;
    if (len < SUFFIX_BYTES)
        return 1;
    const char *s = path + len - SUFFIX_BYTES;
    if (s[0] != '-' || strncmp(s + 1 + DIGITS, "-of-", 4) != 0 || strcmp(s + 5 + 2 * DIGITS, ".gguf") != 0)
        return 1;
    int32_t number = number_of(s + 1), count = number_of(s + 5 + DIGITS);
    if (number < 1 || count < number || count > MR_GGUF_MAX_PARTS)
        return 1;
    *out_idx = number - 1;
    return count;
}

char *mr_part_files_path(const char *path, int32_t idx) {
    int32_t own;
    char *out = mr_strdup(path);
    if (out && mr_part_files_count(path, &own) > 1) {
        char digits[16];
        snprintf(digits, sizeof digits, "%05d", idx + 1);
        memcpy(out + strlen(out) - SUFFIX_BYTES + 1, digits, DIGITS);
    }
    return out;
}

uint64_t mr_part_files_layout(const uint64_t *part_bytes, int32_t n, uint64_t *out_at) {
    uint64_t at = 0, end = 0;
    for (int32_t i = 0; i < n; i++) {
        out_at[i] = at;
        end = at + part_bytes[i];
        at = (end + MR_GGUF_PART_ALIGN - 1) / MR_GGUF_PART_ALIGN * MR_GGUF_PART_ALIGN;
    }
    return end;
}

/* --- Opening ----------------------------------------------------------------------------------------------------- */

/* Without blocking, so that a pipe is refused and not waited for. */
static mr_status open_regular(const char *path, int *out_fd, uint64_t *out_bytes, mr_err *err) {
    struct stat st;
    mr_status status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return mr_err_set(err, errno == ENOENT || errno == ENOTDIR ? MR_E_NOT_FOUND : MR_E_IO,
                          "the model file cannot be opened: %s", strerror(errno));
    if (fstat(fd, &st) != 0)
        status = mr_err_set(err, MR_E_IO, "the size of the model file cannot be read: %s", strerror(errno));
    else if (S_ISDIR(st.st_mode))
        status = mr_err_set(err, MR_E_IO, "this is a directory; hint: give the path of a .gguf file");
    else if (!S_ISREG(st.st_mode))
        status = mr_err_set(err, MR_E_IO, "this is no regular file; hint: give the path of a .gguf file");
    else if (st.st_size == 0)
        status = mr_err_set(err, MR_E_FORMAT, "the file is empty");
    else
        status = MR_OK;
    if (status != MR_OK) {
        close(fd);
        return status;
    }
    *out_fd = fd;
    *out_bytes = (uint64_t)st.st_size;
    return MR_OK;
}

void mr_part_files_prefix(const char *path, int32_t idx, mr_err *err) {
    char *name = mr_part_files_path(path, idx);
    size_t len = name ? strlen(name) : 0;
    if (len > PATH_TAIL_BYTES)
        mr_err_prefix(err, "...%s", name + len - PATH_TAIL_BYTES);
    else if (name)
        mr_err_prefix(err, "%s", name);
    mr_free(name);
}

/* A part that is missing beside others is an error of the model, not of the command line. */
static mr_status open_part(const char *path, int32_t idx, int32_t n, mr_part_file *part, mr_err *err) {
    char *name = mr_part_files_path(path, idx);
    if (!name)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a path");
    mr_status status = open_regular(name, &part->fd, &part->bytes, err);
    if (status == MR_E_NOT_FOUND && n > 1)
        status = mr_err_set(err, status, "part %d of the model's %d is missing; hint: the parts stand in one folder",
                            idx + 1, n);
    mr_free(name);
    if (status == MR_OK && part->bytes > MAX_PART_BYTES)
        status = mr_err_set(err, MR_E_UNSUPPORTED, "the file has %" PRIu64 " bytes; the limit is %" PRIu64, part->bytes,
                            MAX_PART_BYTES);
    if (status != MR_OK)
        mr_part_files_prefix(path, idx, err);
    return status;
}

mr_status mr_part_files_open(const char *path, mr_part_files *out, mr_err *err) {
    int32_t own;
    *out = (mr_part_files){.path = mr_strdup(path), .n = mr_part_files_count(path, &own)};
    out->parts = mr_alloc_array((size_t)out->n, sizeof *out->parts);
    uint64_t *numbers = mr_alloc_array(2 * (size_t)out->n, sizeof *numbers);
    mr_status status = out->path && out->parts && numbers
                           ? MR_OK
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory to open %d parts of a model", out->n);
    for (int32_t i = 0; i < out->n && out->parts; i++)
        out->parts[i].fd = -1;
    for (int32_t i = 0; i < out->n && status == MR_OK; i++) {
        status = open_part(path, i, out->n, &out->parts[i], err);
        if (status == MR_OK)
            numbers[i] = out->parts[i].bytes;
    }
    if (status == MR_OK) {
        out->bytes = mr_part_files_layout(numbers, out->n, numbers + out->n);
        for (int32_t i = 0; i < out->n; i++)
            out->parts[i].at = numbers[out->n + i];
    } else {
        mr_part_files_close(out);
    }
    mr_free(numbers);
    return status;
}

void mr_part_files_close(mr_part_files *f) {
    for (int32_t i = 0; i < f->n && f->parts; i++)
        if (f->parts[i].fd >= 0)
            close(f->parts[i].fd);
    mr_free(f->parts);
    mr_free(f->path);
    *f = (mr_part_files){0};
}

/* --- Reading and mapping ----------------------------------------------------------------------------------------- */

static mr_status read_part(const mr_part_files *f, int32_t idx, uint64_t at, char *out, size_t bytes, mr_err *err) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(f->parts[idx].fd, out + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            const char *why = n < 0 ? strerror(errno) : "it has been cut short";
            char *name = mr_part_files_path(f->path, idx);
            mr_status status = mr_err_set(err, MR_E_IO, "%.200s cannot be read at byte %" PRIu64 ": %s",
                                          name ? name : f->path, at + done, why);
            mr_free(name);
            return status;
        }
        done += (size_t)n;
    }
    return MR_OK;
}

mr_status mr_part_files_read(const mr_part_files *f, uint64_t at, void *out, size_t bytes, mr_err *err) {
    mr_status status = MR_OK;
    if (f->n > 1)
        memset(out, 0, bytes);
    for (int32_t i = 0; i < f->n && status == MR_OK; i++) {
        const mr_part_file *p = &f->parts[i];
        uint64_t from = at > p->at ? at : p->at, to = at + bytes < p->at + p->bytes ? at + bytes : p->at + p->bytes;
        if (from < to)
            status = read_part(f, i, from - p->at, (char *)out + (from - at), (size_t)(to - from), err);
    }
    return status;
}

mr_status mr_part_files_map(const mr_part_files *f, const uint8_t **out_data, mr_err *err) {
    /* The range is reserved first, so that nothing else comes to lie between the parts. */
    uint8_t *data = mmap(NULL, f->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool mapped = data != MAP_FAILED;
    for (int32_t i = 0; i < f->n && mapped; i++) {
        const mr_part_file *p = &f->parts[i];
        mapped = mmap(data + p->at, p->bytes, PROT_READ, MAP_SHARED | MAP_FIXED, p->fd, 0) != MAP_FAILED;
    }
    if (mapped) {
        *out_data = data;
        return MR_OK;
    }
    mr_status status = mr_err_set(err, MR_E_IO, "%" PRIu64 " bytes cannot be mapped: %s", f->bytes, strerror(errno));
    if (data != MAP_FAILED)
        munmap(data, f->bytes);
    return status;
}
