/* Opens, maps and closes a model file, and gives the kernel hints about the pages of the mapping. All system calls of
 * the GGUF reader stand here. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/gguf/gguf_internal.h"

enum {
    PATH_TAIL_BYTES = 160, /* the end of a long path, for error texts */
    /* Limits the memory of the tables to this multiple of the header's bytes. The tables of every valid header need
     * less. */
    TABLES_PER_HEADER = 16,
    TABLES_LEAST_BYTES = 1 << 20,
};

/* Creates g->arena and parses the file into it. The caller has set g->data and g->size, and closes g on failure. */
static mr_status parse_all(mr_gguf *g, mr_err *err) {
    size_t header = g->size < MR_GGUF_MAX_HEADER_BYTES ? g->size : MR_GGUF_MAX_HEADER_BYTES;
    mr_status status = mr_arena_create(0, TABLES_LEAST_BYTES + TABLES_PER_HEADER * header, &g->arena, err);
    return status ? status : gguf_parse(g, err);
}

/* Opens a regular file. O_NONBLOCK keeps open() from waiting for the writer of a pipe, which is then refused. */
static mr_status open_regular(const char *path, int *out_fd, size_t *out_size, mr_err *err) {
    struct stat st;
    mr_status status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return mr_err_set(err, errno == ENOENT || errno == ENOTDIR ? MR_E_NOT_FOUND : MR_E_IO,
                          "the model file cannot be opened: %s", strerror(errno));
    }
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
    if (status) {
        close(fd);
        return status;
    }
    *out_fd = fd;
    *out_size = (size_t)st.st_size;
    return MR_OK;
}

static mr_status map_file(mr_gguf *g, const char *path, mr_err *err) {
    int fd = -1;
    mr_status status = open_regular(path, &fd, &g->size, err);
    if (status)
        return status;
    void *data = mmap(NULL, g->size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        status = mr_err_set(err, MR_E_IO, "%zu bytes cannot be mapped: %s", g->size, strerror(errno));
    } else {
        g->data = data;
        g->mapped = true;
    }
    close(fd);
    return status;
}

mr_status mr_gguf_open(const char *path, mr_gguf **out_gguf, mr_err *err) {
    mr_status status;
    mr_gguf *g = mr_alloc(sizeof *g);
    if (!g) {
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory to open a model file");
        goto out;
    }
    if ((status = map_file(g, path, err)) != MR_OK || (status = parse_all(g, err)) != MR_OK)
        goto out;
    *out_gguf = g;
    g = NULL;
out:
    if (status) {
        size_t len = strlen(path);
        if (len > PATH_TAIL_BYTES)
            mr_err_prefix(err, "...%s", path + len - PATH_TAIL_BYTES);
        else
            mr_err_prefix(err, "%s", path);
    }
    mr_gguf_close(g);
    return status;
}

mr_status mr_gguf_open_memory(const void *data, size_t size, mr_gguf **out_gguf, mr_err *err) {
    mr_status status;
    mr_gguf *g = mr_alloc(sizeof *g);
    if (!g)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to open a model file");
    g->data = data;
    g->size = size;
    if ((status = parse_all(g, err)) != MR_OK)
        goto out;
    *out_gguf = g;
    g = NULL;
out:
    mr_gguf_close(g);
    return status;
}

void mr_gguf_close(mr_gguf *g) {
    if (!g)
        return;
    if (g->mapped)
        munmap((void *)(uintptr_t)g->data, g->size);
    mr_arena_destroy(g->arena);
    mr_free(g);
}

uint32_t mr_gguf_version(const mr_gguf *g) {
    return g->version;
}

size_t mr_gguf_file_bytes(const mr_gguf *g) {
    return g->size;
}

const uint8_t *mr_gguf_file_data(const mr_gguf *g) {
    return g->data;
}

size_t mr_gguf_header_bytes(const mr_gguf *g) {
    return g->header_bytes;
}

/* Converts a range of memory to offsets into the mapping. Returns false when the range is not inside the mapping. */
static bool mapped_range(const mr_gguf *g, const void *data, size_t bytes, size_t *out_from, size_t *out_to) {
    uintptr_t at = (uintptr_t)data, base = (uintptr_t)g->data;
    if (!g->mapped || at < base || at - base > g->size || bytes > g->size - (at - base))
        return false;
    *out_from = at - base;
    *out_to = *out_from + bytes;
    return true;
}

static void advise(const mr_gguf *g, size_t from, size_t to, int advice) {
    if (from < to)
        (void)madvise((void *)(uintptr_t)(g->data + from), to - from, advice);
}

void mr_gguf_release_pages(const mr_gguf *g, const void *data, size_t bytes) {
    size_t from, to, page = (size_t)sysconf(_SC_PAGESIZE);
    if (!mapped_range(g, data, bytes, &from, &to))
        return;
    /* Nothing follows the end of the file, so the last page is released whole although the file may fill only a part of
     * it. */
    size_t end = to == g->size ? mr_round_up(to, page) : to / page * page;
    advise(g, mr_round_up(from, page), end, MADV_DONTNEED);
}

void mr_gguf_prefetch(const mr_gguf *g, const void *data, size_t bytes) {
    size_t from, to, page = (size_t)sysconf(_SC_PAGESIZE);
    if (mapped_range(g, data, bytes, &from, &to))
        advise(g, from / page * page, to, MADV_WILLNEED);
}
