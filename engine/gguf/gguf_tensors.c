/* Parses the tensor table. The range of each tensor is checked against the file, the alignment and the other
 * tensors. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/gguf/gguf_internal.h"

static mr_status parse_shape(mr_gguf *g, mr_reader *r, mr_gguf_tensor *t, mr_err *err) {
    uint32_t n_dims = mr_reader_u32(r);
    if (mr_reader_ok(r) && (n_dims < 1 || n_dims > MR_GGUF_MAX_DIMS))
        return mr_err_set(err, MR_E_FORMAT, "%u dimensions; 1 to %d are allowed", n_dims, MR_GGUF_MAX_DIMS);
    for (uint32_t i = 0; i < MR_GGUF_MAX_DIMS; i++) {
        t->ne[i] = i < n_dims ? mr_reader_i64(r) : 1;
        if (mr_reader_ok(r) && t->ne[i] <= 0)
            return mr_err_set(err, MR_E_FORMAT, "dimension %u is %" PRId64, i + 1, t->ne[i]);
    }
    t->n_dims = (int32_t)n_dims;
    return mr_reader_ok(r) ? MR_OK : gguf_ends_early(g, r, err);
}

/* Refuses a type that the program cannot read. Newer types of the format have their names here. */
static mr_status refuse_type(uint32_t type, mr_err *err) {
    static const char *const NAMES[] = {"NVFP4", "Q1_0", "Q2_0"};
    if (type < MR_TYPE_FILE_COUNT)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "tensor type %u is not known; hint: it was withdrawn, quantize the model anew", type);
    if (type - MR_TYPE_FILE_COUNT < sizeof NAMES / sizeof *NAMES)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "tensor type %s is not supported; hint: quantize the model to another type",
                          NAMES[type - MR_TYPE_FILE_COUNT]);
    return mr_err_set(err, MR_E_UNSUPPORTED, "tensor type %u is not known; hint: quantize the model to another type",
                      type);
}

static mr_status check_type(mr_gguf_tensor *t, uint32_t type, mr_err *err) {
    const mr_type_info *info = type < MR_TYPE_FILE_COUNT ? mr_type_get((int32_t)type) : NULL;
    if (!info)
        return refuse_type(type, err);
    int64_t n_elems = t->ne[0];
    for (int i = 1; i < MR_GGUF_MAX_DIMS; i++)
        if (__builtin_mul_overflow(n_elems, t->ne[i], &n_elems))
            return mr_err_set(err, MR_E_FORMAT, "too many elements: %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64,
                              t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
    if (t->ne[0] % info->block_elems != 0)
        return mr_err_set(err, MR_E_FORMAT, "rows of %" PRId64 " elements; type %s has blocks of %d", t->ne[0],
                          info->name, info->block_elems);
    if (!mr_type_bytes((int32_t)type, n_elems, &t->bytes))
        return mr_err_set(err, MR_E_FORMAT, "%" PRId64 " elements of type %s are too many bytes", n_elems, info->name);
    t->type = (mr_type)type;
    return MR_OK;
}

/* Reads one entry of the tensor table. t->offset stays relative to the tensor data until place_tensor is called. */
static mr_status parse_tensor(mr_gguf *g, mr_reader *r, mr_gguf_tensor *t, mr_err *err) {
    mr_status status = parse_shape(g, r, t, err);
    if (status)
        return status;
    uint32_t type = mr_reader_u32(r);
    t->offset = mr_reader_u64(r);
    if (!mr_reader_ok(r))
        return gguf_ends_early(g, r, err);
    return check_type(t, type, err);
}

static mr_status place_tensor(const mr_gguf *g, mr_gguf_tensor *t, mr_err *err) {
    if (t->offset % g->alignment != 0)
        return mr_err_set(err, MR_E_FORMAT, "data offset %" PRIu64 " is no multiple of the alignment %u", t->offset,
                          g->alignment);
    uint64_t end;
    if (__builtin_add_overflow(t->offset, (uint64_t)g->header_bytes, &t->offset) ||
        __builtin_add_overflow(t->offset, (uint64_t)t->bytes, &end))
        return mr_err_set(err, MR_E_FORMAT, "data of %zu bytes lies beyond the largest offset", t->bytes);
    if (end > g->size)
        return mr_err_set(err, MR_E_FORMAT,
                          "data ends at byte %" PRIu64 ", but the file has %zu bytes; hint: the file seems truncated, "
                          "download it again",
                          end, g->size);
    t->data = g->data + t->offset;
    return MR_OK;
}

static int compare_offsets(const void *a, const void *b) {
    uint64_t x = (*(mr_gguf_tensor *const *)a)->offset, y = (*(mr_gguf_tensor *const *)b)->offset;
    return (x > y) - (x < y);
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(mr_gguf_tensor *const *)a)->name, (*(mr_gguf_tensor *const *)b)->name);
}

static mr_status check_overlap(mr_gguf_tensor *const *by_offset, int32_t n, mr_err *err) {
    for (int32_t i = 1; i < n; i++) {
        const mr_gguf_tensor *a = by_offset[i - 1], *b = by_offset[i];
        if (a->offset + a->bytes > b->offset)
            return mr_err_set(err, MR_E_FORMAT,
                              "tensor " GGUF_NAME ": data starts at byte %" PRIu64 ", inside that of " GGUF_NAME
                              ", which ends at byte %" PRIu64,
                              b->name, b->offset, a->name, a->offset + a->bytes);
    }
    return MR_OK;
}

mr_status gguf_sort_names(mr_gguf *g, mr_err *err) {
    size_t n = (size_t)g->n_tensors;
    qsort(g->tensors_by_name, n, sizeof *g->tensors_by_name, compare_names);
    for (size_t i = 1; i < n; i++)
        if (compare_names(&g->tensors_by_name[i - 1], &g->tensors_by_name[i]) == 0)
            return mr_err_set(err, MR_E_FORMAT, "tensor " GGUF_NAME " occurs twice", g->tensors_by_name[i]->name);
    return MR_OK;
}

mr_status gguf_parse_tensors(mr_gguf *g, mr_reader *r, mr_err *err) {
    mr_status status;
    for (int32_t i = 0; i < g->n_tensors; i++) {
        mr_gguf_tensor *t = &g->tensors[i];
        status = gguf_read_name(g, r, "tensor", i, g->n_tensors, MR_GGUF_MAX_TENSOR_NAME_BYTES, &t->name, err);
        if (status)
            return status;
        status = parse_tensor(g, r, t, err);
        if (status) {
            mr_err_prefix(err, "tensor " GGUF_NAME, t->name);
            return status;
        }
        g->tensors_by_name[i] = t;
    }
    /* In a file without tensors the padding in front of the tensor data may be missing. */
    g->header_bytes = mr_round_up(mr_reader_position(r), g->alignment);
    if (g->header_bytes > g->size)
        g->header_bytes = g->size;
    for (int32_t i = 0; i < g->n_tensors; i++) {
        status = place_tensor(g, &g->tensors[i], err);
        if (status) {
            mr_err_prefix(err, "tensor " GGUF_NAME, g->tensors[i].name);
            return status;
        }
    }
    qsort(g->tensors_by_name, (size_t)g->n_tensors, sizeof *g->tensors_by_name, compare_offsets);
    status = check_overlap(g->tensors_by_name, g->n_tensors, err);
    if (status)
        return status;
    return gguf_sort_names(g, err);
}

int32_t mr_gguf_n_tensors(const mr_gguf *g) {
    return g->n_tensors;
}

const mr_gguf_tensor *mr_gguf_tensor_at(const mr_gguf *g, int32_t idx) {
    MR_ASSERT(idx >= 0 && idx < g->n_tensors);
    return &g->tensors[idx];
}

const mr_gguf_tensor *mr_gguf_find_tensor(const mr_gguf *g, const char *name) {
    mr_gguf_tensor key = {.name = name}, *key_ptr = &key;
    mr_gguf_tensor **found =
        bsearch(&key_ptr, g->tensors_by_name, (size_t)g->n_tensors, sizeof *g->tensors_by_name, compare_names);
    return found ? *found : NULL;
}
