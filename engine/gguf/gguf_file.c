/* Opens and closes a model file, joins the tables of its parts, and gives the kernel hints about the pages of the
 * mapping. part_files.c opens and maps the files. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/gguf/gguf_internal.h"
#include "engine/gguf/part_files.h"

enum {
    /* Limits the memory of the tables to this multiple of the header's bytes. The tables of every valid header need
     * less. */
    TABLES_PER_HEADER = 16,
    TABLES_LEAST_BYTES = 1 << 20,
};

/* Creates g->arena and parses one part into it. The caller has set g->data and g->size, and closes g on failure. */
static mr_status parse_part(mr_gguf *g, int32_t idx, int32_t n, mr_err *err) {
    size_t header = g->size < MR_GGUF_MAX_HEADER_BYTES ? g->size : MR_GGUF_MAX_HEADER_BYTES;
    mr_status status = mr_arena_create(0, TABLES_LEAST_BYTES + TABLES_PER_HEADER * header, &g->arena, err);
    return status ? status : gguf_parse(g, idx, n, err);
}

/* Each part says how many tensors all parts together have. A part of another model mostly says another number. */
static mr_status check_n_tensors(const mr_gguf *g, int32_t *out_bad, mr_err *err) {
    static const char COUNT[] = "split.tensors.count";
    mr_status status = MR_OK;
    for (int32_t i = 0; i < g->n_parts && status == MR_OK; i++) {
        uint32_t says = (uint32_t)g->n_tensors;
        status = mr_gguf_get_u32(i == 0 ? g : g->others[i - 1], COUNT, &says, err);
        status = status == MR_E_NOT_FOUND ? MR_OK : status;
        *out_bad = i;
        if (status == MR_OK && says != (uint32_t)g->n_tensors)
            status =
                mr_err_set(err, MR_E_FORMAT,
                           "key '%s' says that the model has %u tensors, but its %d parts hold %d; hint: one of the "
                           "parts is of another model",
                           COUNT, says, g->n_parts, g->n_tensors);
    }
    return status;
}

/* Makes one table of the tensors of all parts. The names stay in the arenas of the parts. */
static mr_status join_tensors(mr_gguf *g, mr_err *err) {
    size_t n = (size_t)g->n_tensors, done = 0;
    for (int32_t i = 1; i < g->n_parts; i++)
        n += (size_t)g->others[i - 1]->n_tensors;
    if (n > MR_GGUF_MAX_TENSORS)
        return mr_err_set(err, MR_E_FORMAT, "the parts hold %zu tensors; the limit is %d", n, MR_GGUF_MAX_TENSORS);
    g->joined = mr_alloc_array(n, sizeof *g->joined);
    g->joined_by_name = mr_alloc_array(n, sizeof(mr_gguf_tensor *));
    if (!g->joined || !g->joined_by_name)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a table of %zu tensors", n);
    for (int32_t i = 0; i < g->n_parts; i++) {
        const mr_gguf *part = i == 0 ? g : g->others[i - 1];
        for (int32_t k = 0; k < part->n_tensors; k++, done++) {
            g->joined[done] = part->tensors[k];
            g->joined[done].offset += g->parts[i].at;
            g->joined_by_name[done] = &g->joined[done];
        }
    }
    g->tensors = g->joined;
    g->tensors_by_name = g->joined_by_name;
    g->n_tensors = (int32_t)n;
    return gguf_sort_names(g, err);
}

/* Parses the parts f, which lie at g->data. out_bad: which of them is wrong. */
static mr_status parse_all(mr_gguf *g, const mr_part_files *f, int32_t *out_bad, mr_err *err) {
    size_t virtual_bytes = g->size;
    int32_t n = f->n;
    g->n_parts = n;
    g->parts = mr_alloc_array((size_t)n, sizeof *g->parts);
    g->others = mr_alloc_array((size_t)n, sizeof(mr_gguf *));
    bool has_memory = g->parts && g->others;
    for (int32_t i = 1; i < n && has_memory; i++)
        has_memory = (g->others[i - 1] = mr_alloc(sizeof *g)) != NULL;
    mr_status status = has_memory ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d parts of a model", n);
    *out_bad = 0;
    for (int32_t i = 0; i < n && status == MR_OK; i++) {
        mr_gguf *part = i == 0 ? g : g->others[i - 1];
        *out_bad = i;
        part->data = g->data + f->parts[i].at;
        part->size = (size_t)f->parts[i].bytes;
        status = parse_part(part, f->first + i, f->total, err);
        g->parts[i] = (mr_gguf_part){f->parts[i].at, f->parts[i].bytes, part->header_bytes};
    }
    g->size = virtual_bytes;
    if (status == MR_OK && n > 1)
        status = join_tensors(g, err);
    return status == MR_OK && n > 1 ? check_n_tensors(g, out_bad, err) : status;
}

/* Maps the files of a model, and parses them. Closes f. */
static mr_status open_files(mr_part_files *f, mr_gguf **out_gguf, mr_err *err) {
    int32_t bad = 0;
    mr_gguf *g = mr_alloc(sizeof *g);
    mr_status status =
        g ? mr_part_files_map(f, &g->data, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a model");
    if (status == MR_OK) {
        g->size = (size_t)f->bytes;
        g->mapped = true;
        status = parse_all(g, f, &bad, err);
    }
    if (status == MR_OK)
        *out_gguf = g;
    else
        mr_part_files_prefix(f->path, f->first + bad, err);
    if (status != MR_OK)
        mr_gguf_close(g);
    mr_part_files_close(f);
    return status;
}

mr_status mr_gguf_open(const char *path, mr_gguf **out_gguf, mr_err *err) {
    mr_part_files files;
    mr_status status = mr_part_files_open(path, &files, err);
    return status == MR_OK ? open_files(&files, out_gguf, err) : status;
}

mr_status mr_gguf_open_places(const char *path, const mr_part_place *places, int32_t n, const char *cache_path,
                              mr_gguf **out_gguf, mr_err *err) {
    mr_part_files files;
    mr_status status = mr_part_files_open_places(path, places, n, cache_path, &files, err);
    return status == MR_OK ? open_files(&files, out_gguf, err) : status;
}

mr_status mr_gguf_open_part(const char *path, int32_t idx, mr_gguf **out_gguf, mr_err *err) {
    mr_part_files files;
    mr_status status = mr_part_files_open_one(path, idx, &files, err);
    return status == MR_OK ? open_files(&files, out_gguf, err) : status;
}

mr_status mr_gguf_open_memory(const void *data, size_t size, mr_gguf **out_gguf, mr_err *err) {
    mr_part_file part = {.bytes = size};
    const mr_part_files whole = {.n = 1, .total = 1, .parts = &part, .bytes = size};
    int32_t bad;
    mr_gguf *g = mr_alloc(sizeof *g);
    if (!g)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to open a model file");
    g->data = data;
    g->size = size;
    mr_status status = parse_all(g, &whole, &bad, err);
    if (status == MR_OK)
        *out_gguf = g;
    else
        mr_gguf_close(g);
    return status;
}

void mr_gguf_close(mr_gguf *g) {
    if (!g)
        return;
    if (g->mapped)
        munmap((void *)(uintptr_t)g->data, g->size);
    for (int32_t i = 1; i < g->n_parts && g->others; i++)
        mr_gguf_close(g->others[i - 1]);
    mr_arena_destroy(g->arena);
    mr_free(g->joined);
    mr_free(g->joined_by_name);
    mr_free(g->others);
    mr_free(g->parts);
    mr_free(g);
}

uint32_t mr_gguf_version(const mr_gguf *g) {
    return g->version;
}

bool mr_gguf_is_sparse(const mr_gguf *g) {
    return g->is_sparse;
}

size_t mr_gguf_file_bytes(const mr_gguf *g) {
    return g->size;
}

const uint8_t *mr_gguf_file_data(const mr_gguf *g) {
    return g->data;
}

int32_t mr_gguf_n_parts(const mr_gguf *g) {
    return g->n_parts;
}

const mr_gguf_part *mr_gguf_part_at(const mr_gguf *g, int32_t idx) {
    MR_ASSERT(idx >= 0 && idx < g->n_parts);
    return &g->parts[idx];
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
