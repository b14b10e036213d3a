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

bool mr_part_files_exists(const char *path, int32_t idx) {
    struct stat st;
    char *name = mr_part_files_path(path, idx);
    bool exists = name && (stat(name, &st) == 0 || (errno != ENOENT && errno != ENOTDIR));
    mr_free(name);
    return exists;
}

uint64_t mr_part_files_layout(const mr_part_place *places, int32_t n, uint64_t *out_at) {
    uint64_t at = 0, end = 0;
    for (int32_t i = 0; i < n; i++) {
        out_at[i] = at;
        end = at + places[i].bytes;
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

static mr_status no_memory(int32_t n, mr_err *err) {
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory to open %d parts of a model", n);
}

/* Makes n closed parts. */
static mr_status init(const char *path, int32_t n, mr_part_files *out, mr_err *err) {
    *out = (mr_part_files){.path = mr_strdup(path), .n = n, .total = n};
    out->parts = mr_alloc_array((size_t)n, sizeof *out->parts);
    for (int32_t i = 0; i < n && out->parts; i++)
        out->parts[i].fd = -1;
    return out->path && out->parts ? MR_OK : no_memory(n, err);
}

/* Gives the parts, whose sizes are known, their places. */
static mr_status lay_out(mr_part_files *f, mr_err *err) {
    mr_part_place *places = mr_alloc_array((size_t)f->n, sizeof *places);
    uint64_t *at = mr_alloc_array((size_t)f->n, sizeof *at);
    mr_status status = places && at ? MR_OK : no_memory(f->n, err);
    for (int32_t i = 0; i < f->n && status == MR_OK; i++)
        places[i].bytes = f->parts[i].bytes;
    if (status == MR_OK)
        f->bytes = mr_part_files_layout(places, f->n, at);
    for (int32_t i = 0; i < f->n && status == MR_OK; i++)
        f->parts[i].at = at[i];
    mr_free(places);
    mr_free(at);
    return status;
}

mr_status mr_part_files_open(const char *path, mr_part_files *out, mr_err *err) {
    int32_t own;
    mr_status status = init(path, mr_part_files_count(path, &own), out, err);
    for (int32_t i = 0; i < out->n && status == MR_OK; i++)
        status = open_part(path, i, out->n, &out->parts[i], err);
    if (status == MR_OK)
        status = lay_out(out, err);
    if (status != MR_OK)
        mr_part_files_close(out);
    return status;
}

static mr_status open_place(mr_part_files *f, int32_t idx, const mr_part_place *place, mr_err *err) {
    mr_part_file *part = &f->parts[idx];
    mr_status status = place->is_here ? open_part(f->path, idx, f->n, part, err) : MR_OK;
    if (status == MR_OK && place->is_here && part->bytes != place->bytes) {
        status =
            mr_err_set(err, MR_E_IO, "the file has %" PRIu64 " bytes now, it had %" PRIu64, part->bytes, place->bytes);
        mr_part_files_prefix(f->path, idx, err);
    }
    part->bytes = place->bytes;
    return status;
}

/* Opens the cache for each part that is not here. */
static mr_status open_cache(mr_part_files *f, const char *path, mr_err *err) {
    mr_status status = MR_OK;
    uint64_t bytes = 0;
    for (int32_t i = 0; i < f->n && status == MR_OK; i++) {
        if (f->parts[i].fd >= 0)
            continue;
        status = open_regular(path, &f->parts[i].fd, &bytes, err);
        f->parts[i].fd_at = f->parts[i].at;
        if (status == MR_OK && bytes != f->bytes)
            status = mr_err_set(err, MR_E_FORMAT, "the file has %" PRIu64 " bytes, which are not those of its %d parts",
                                bytes, f->n);
    }
    if (status != MR_OK)
        mr_err_prefix(err, "%.*s", PATH_TAIL_BYTES, path);
    return status;
}

mr_status mr_part_files_open_places(const char *path, const mr_part_place *places, int32_t n, const char *cache_path,
                                    mr_part_files *out, mr_err *err) {
    mr_status status = init(path, n, out, err);
    for (int32_t i = 0; i < n && status == MR_OK; i++)
        status = open_place(out, i, &places[i], err);
    if (status == MR_OK)
        status = lay_out(out, err);
    if (status == MR_OK && cache_path)
        status = open_cache(out, cache_path, err);
    if (status != MR_OK)
        mr_part_files_close(out);
    return status;
}

mr_status mr_part_files_open_one(const char *path, int32_t idx, mr_part_files *out, mr_err *err) {
    int32_t own;
    mr_status status = init(path, 1, out, err);
    out->first = idx;
    out->total = mr_part_files_count(path, &own);
    if (status == MR_OK)
        status = open_part(path, idx, out->total, out->parts, err);
    if (status == MR_OK)
        status = lay_out(out, err);
    if (status != MR_OK)
        mr_part_files_close(out);
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
    if (f->parts[idx].fd < 0) {
        (void)mr_err_set(err, MR_E_NOT_FOUND, "the part is not on this host");
        mr_part_files_prefix(f->path, f->first + idx, err);
        return MR_E_NOT_FOUND;
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(f->parts[idx].fd, out + done, bytes - done, (off_t)(f->parts[idx].fd_at + at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            const char *why = n < 0 ? strerror(errno) : "it has been cut short";
            char *name = mr_part_files_path(f->path, f->first + idx);
            mr_status status = mr_err_set(err, MR_E_IO, "%.200s cannot be read at byte %" PRIu64 ": %s",
                                          name ? name : f->path, at + done, why);
            mr_free(name);
            return status;
        }
        done += (size_t)n;
    }
    return MR_OK;
}

bool mr_part_files_has(const mr_part_files *f, uint64_t at) {
    int32_t i = f->n - 1;
    while (i > 0 && f->parts[i].at > at)
        i--;
    return f->parts[i].fd >= 0;
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
        mapped = mmap(data + p->at, p->bytes, PROT_READ, MAP_SHARED | MAP_FIXED, p->fd, (off_t)p->fd_at) != MAP_FAILED;
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
