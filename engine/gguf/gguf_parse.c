/* Parses the beginning of a GGUF file: magic, version, counts and keys. gguf_tensors.c parses the tensor table behind
 * the keys. Layout: GGUF specification, "File Structure". */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/gguf/gguf_internal.h"

enum {
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,            /* length, name, type, value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* length, name, n_dims, one dimension, type, offset */
    BIG_ENDIAN_VERSIONS = 0x00ffffff,         /* clear in a small number whose bytes are in reverse order */
};

mr_status gguf_ends_early(const mr_gguf *g, const mr_reader *r, mr_err *err) {
    if (g->size > r->size)
        return mr_err_set(err, MR_E_UNSUPPORTED, "the header is larger than the limit of %zu bytes", r->size);
    return mr_err_set(err, MR_E_FORMAT,
                      "%" PRIu64 " bytes are needed at byte %zu, but the file has %zu bytes; hint: the file seems "
                      "truncated, download it again",
                      r->wanted, mr_reader_position(r), g->size);
}

mr_status gguf_no_memory(const mr_gguf *g, mr_err *err) {
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the tables of %d keys and %d tensors", g->n_keys,
                      g->n_tensors);
}

mr_status gguf_read_name(mr_gguf *g, mr_reader *r, const char *what, int32_t idx, int32_t n, size_t max_bytes,
                         const char **out_name, mr_err *err) {
    uint64_t len = mr_reader_u64(r);
    if (mr_reader_ok(r) && (len == 0 || len > max_bytes))
        return mr_err_set(err, MR_E_FORMAT, "%s %d of %d: a name of %" PRIu64 " bytes; 1 to %zu are allowed", what,
                          idx + 1, n, len, max_bytes);
    const uint8_t *text = mr_reader_bytes(r, len);
    if (!text) {
        mr_status status = gguf_ends_early(g, r, err);
        mr_err_prefix(err, "%s %d of %d", what, idx + 1, n);
        return status;
    }
    for (size_t i = 0; i < len; i++)
        if (text[i] < 0x20 || text[i] > 0x7e)
            return mr_err_set(err, MR_E_FORMAT, "%s %d of %d: the name has byte 0x%02x at position %zu, not ASCII text",
                              what, idx + 1, n, text[i], i);
    const char *name = mr_arena_strndup(g->arena, (const char *)text, len);
    if (!name)
        return gguf_no_memory(g, err);
    *out_name = name;
    return MR_OK;
}

static bool starts_with(const mr_gguf *g, const char *text) {
    size_t n = strlen(text);
    return g->size >= n && memcmp(g->data, text, n) == 0;
}

/* Refuses a file without the magic of GGUF. Where the first bytes show what the file is instead, a hint says so. */
static mr_status check_magic(const mr_gguf *g, mr_err *err) {
    if (g->size == 0)
        return mr_err_set(err, MR_E_FORMAT, "the file is empty");
    if (starts_with(g, "GGUF") || starts_with(g, GGUF_SPARSE_MAGIC))
        return MR_OK;
    const char *hint = "";
    if (starts_with(g, "lmgg") || starts_with(g, "fmgg") || starts_with(g, "tjgg"))
        hint = "; hint: this is a model in an old GGML format, convert it anew";
    else if (starts_with(g, "version https://git-lfs"))
        hint = "; hint: this is a Git LFS pointer, fetch the model itself with git lfs pull";
    else if (starts_with(g, "<"))
        hint = "; hint: this seems to be a web page that was saved instead of the model";
    else if (starts_with(g, "PK\x03\x04"))
        hint = "; hint: this is a zip archive or PyTorch checkpoint, convert it to GGUF";
    else if (g->size > 9 && g->data[8] == '{')
        hint = "; hint: this seems to be a safetensors file, convert it to GGUF";
    uint8_t magic[4] = {0};
    memcpy(magic, g->data, g->size < 4 ? g->size : 4);
    return mr_err_set(err, MR_E_FORMAT, "no GGUF file: it starts with bytes %02x %02x %02x %02x%s", magic[0], magic[1],
                      magic[2], magic[3], hint);
}

static mr_status check_version(const mr_gguf *g, uint32_t version, mr_err *err) {
    if (g->is_sparse && version != 3)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "a file of PowerInfer with GGUF version %u; hint: files with this magic have version 3",
                          version);
    if (version == 2 || version == 3)
        return MR_OK;
    if (version == 1)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "GGUF version 1 is not supported; hint: convert the model anew, versions 2 and 3 are read");
    if (version != 0 && (version & BIG_ENDIAN_VERSIONS) == 0)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "a big-endian GGUF file (version %u); hint: convert it to little-endian", version >> 24);
    return mr_err_set(err, MR_E_UNSUPPORTED, "GGUF version %u is not supported; hint: versions 2 and 3 are read",
                      version);
}

static mr_status check_count(const mr_gguf *g, const mr_reader *r, const char *what, uint64_t n, uint64_t limit,
                             size_t min_bytes, mr_err *err) {
    if (n > limit)
        return mr_err_set(err, MR_E_FORMAT, "the header says %" PRIu64 " %s; the limit is %" PRIu64, n, what, limit);
    if (n > mr_reader_remaining(r) / min_bytes)
        return mr_err_set(err, MR_E_FORMAT,
                          "the header says %" PRIu64 " %s, too many for a file of %zu bytes; hint: the file seems "
                          "truncated, download it again",
                          n, what, g->size);
    return MR_OK;
}

static mr_status parse_header(mr_gguf *g, mr_reader *r, mr_err *err) {
    mr_status status = check_magic(g, err);
    if (status)
        return status;
    g->is_sparse = starts_with(g, GGUF_SPARSE_MAGIC);
    mr_reader_skip(r, 4);
    g->version = mr_reader_u32(r);
    if (mr_reader_ok(r) && (status = check_version(g, g->version, err)) != MR_OK)
        return status;
    uint64_t n_tensors = mr_reader_u64(r), n_keys = mr_reader_u64(r);
    if (!mr_reader_ok(r)) {
        status = gguf_ends_early(g, r, err);
        mr_err_prefix(err, "header");
        return status;
    }
    if ((status = check_count(g, r, "keys", n_keys, MR_GGUF_MAX_KEYS, MIN_KEY_BYTES, err)) != MR_OK ||
        (status = check_count(g, r, "tensors", n_tensors, MR_GGUF_MAX_TENSORS, MIN_TENSOR_BYTES, err)) != MR_OK)
        return status;
    g->n_keys = (int32_t)n_keys;
    g->n_tensors = (int32_t)n_tensors;
    g->keys = mr_arena_alloc_array(g->arena, n_keys, sizeof *g->keys);
    g->keys_by_name = mr_arena_alloc_array(g->arena, n_keys, sizeof *g->keys_by_name);
    g->tensors = mr_arena_alloc_array(g->arena, n_tensors, sizeof *g->tensors);
    g->tensors_by_name = mr_arena_alloc_array(g->arena, n_tensors, sizeof *g->tensors_by_name);
    return g->keys && g->keys_by_name && g->tensors && g->tensors_by_name ? MR_OK : gguf_no_memory(g, err);
}

/* Notes where each string starts. The length of a string stays in the file, in the 8 bytes in front of the string. */
static mr_status parse_strings(mr_gguf *g, mr_reader *r, gguf_key *key, uint64_t n, mr_err *err) {
    if (n > MR_GGUF_MAX_STRINGS || n > mr_reader_remaining(r) / 8)
        return mr_err_set(err, MR_E_FORMAT,
                          "an array of %" PRIu64 " strings at byte %zu; the file has %zu bytes, and the limit is %d", n,
                          mr_reader_position(r), g->size, MR_GGUF_MAX_STRINGS);
    uint32_t *starts = mr_arena_alloc_array(g->arena, n, sizeof *starts);
    if (!starts)
        return gguf_no_memory(g, err);
    size_t first = mr_reader_position(r);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len = mr_reader_u64(r);
        starts[i] = (uint32_t)(mr_reader_position(r) - first);
        if (!mr_reader_bytes(r, len))
            return gguf_ends_early(g, r, err);
    }
    key->value = (mr_gguf_array){MR_GGUF_STRING, n, g->data + first, starts};
    return MR_OK;
}

static mr_status parse_values(mr_gguf *g, mr_reader *r, gguf_key *key, uint32_t type, uint64_t n, mr_err *err) {
    if (type == MR_GGUF_STRING)
        return parse_strings(g, r, key, n, err);
    const uint8_t *data = mr_reader_array(r, n, gguf_type_bytes(type));
    if (!data)
        return gguf_ends_early(g, r, err);
    if (type == MR_GGUF_BOOL)
        for (uint64_t i = 0; i < n; i++)
            if (data[i] > 1)
                return mr_err_set(err, MR_E_FORMAT, "a bool of value %d; 0 and 1 are allowed", data[i]);
    key->value = (mr_gguf_array){(mr_gguf_type)type, (size_t)n, data, NULL};
    return MR_OK;
}

static mr_status parse_value(mr_gguf *g, mr_reader *r, gguf_key *key, mr_err *err) {
    uint32_t type = mr_reader_u32(r), elem_type = type;
    uint64_t n = 1;
    if (type == MR_GGUF_ARRAY) {
        elem_type = mr_reader_u32(r);
        n = mr_reader_u64(r);
    }
    if (!mr_reader_ok(r))
        return gguf_ends_early(g, r, err);
    if (type >= MR_GGUF_TYPE_COUNT || elem_type >= MR_GGUF_TYPE_COUNT)
        return mr_err_set(err, MR_E_FORMAT, "unknown value type %u", elem_type);
    if (elem_type == MR_GGUF_ARRAY)
        return mr_err_set(err, MR_E_UNSUPPORTED, "an array of arrays, which is not supported");
    key->type = (mr_gguf_type)type;
    return parse_values(g, r, key, elem_type, n, err);
}

static int compare_keys(const void *a, const void *b) {
    return strcmp((*(gguf_key *const *)a)->name, (*(gguf_key *const *)b)->name);
}

static mr_status parse_keys(mr_gguf *g, mr_reader *r, mr_err *err) {
    for (int32_t i = 0; i < g->n_keys; i++) {
        gguf_key *key = &g->keys[i];
        mr_status status = gguf_read_name(g, r, "key", i, g->n_keys, MR_GGUF_MAX_KEY_BYTES, &key->name, err);
        if (status)
            return status;
        status = parse_value(g, r, key, err);
        if (status) {
            mr_err_prefix(err, "key " GGUF_NAME, key->name);
            return status;
        }
        g->keys_by_name[i] = key;
    }
    qsort(g->keys_by_name, (size_t)g->n_keys, sizeof *g->keys_by_name, compare_keys);
    for (int32_t i = 1; i < g->n_keys; i++)
        if (compare_keys(&g->keys_by_name[i - 1], &g->keys_by_name[i]) == 0)
            return mr_err_set(err, MR_E_FORMAT, "key " GGUF_NAME " occurs twice", g->keys_by_name[i]->name);
    return MR_OK;
}

static mr_status read_alignment(mr_gguf *g, mr_err *err) {
    static const char ALIGNMENT[] = "general.alignment";
    uint32_t alignment = MR_GGUF_DEFAULT_ALIGNMENT;
    mr_status status = mr_gguf_get_u32(g, ALIGNMENT, &alignment, err);
    if (status && status != MR_E_NOT_FOUND)
        return status;
    if (alignment < MR_GGUF_MIN_ALIGNMENT || alignment > MR_GGUF_MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0)
        return mr_err_set(err, MR_E_FORMAT, "key '%s': %u is no power of two from %d to %d", ALIGNMENT, alignment,
                          MR_GGUF_MIN_ALIGNMENT, MR_GGUF_MAX_ALIGNMENT);
    g->alignment = alignment;
    return MR_OK;
}

/* The keys of gguf-split have to say what the name of the file says. */
static mr_status check_part(mr_gguf *g, int32_t idx, int32_t n, mr_err *err) {
    uint32_t says_n = 1, says_idx = 0;
    mr_status status = mr_gguf_get_u32(g, "split.count", &says_n, err);
    if (status == MR_OK || status == MR_E_NOT_FOUND)
        status = mr_gguf_get_u32(g, "split.no", &says_idx, err);
    if (status != MR_OK && status != MR_E_NOT_FOUND)
        return status;
    says_n += says_n == 0;
    if (says_n > 1 && n == 1)
        return mr_err_set(err, MR_E_FORMAT,
                          "the file is part %" PRIu64
                          " of a model in %u parts, but its name does not say so; hint: the "
                          "names of the parts end in -00001-of-%05u.gguf and so on, and the parts stand in one folder",
                          (uint64_t)says_idx + 1, says_n, says_n);
    if (says_n != (uint32_t)n || says_idx != (uint32_t)idx)
        return mr_err_set(err, MR_E_FORMAT,
                          "by its name the file is part %d of %d, by its keys part %" PRIu64
                          " of %u; hint: give the file "
                          "its own name back, or download it again",
                          idx + 1, n, (uint64_t)says_idx + 1, says_n);
    return MR_OK;
}

mr_status gguf_parse(mr_gguf *g, int32_t idx, int32_t n, mr_err *err) {
    mr_reader r;
    mr_reader_init(&r, g->data, g->size < MR_GGUF_MAX_HEADER_BYTES ? g->size : MR_GGUF_MAX_HEADER_BYTES);
    mr_status status = parse_header(g, &r, err);
    if (!status)
        status = parse_keys(g, &r, err);
    if (!status)
        status = read_alignment(g, err);
    if (!status)
        status = check_part(g, idx, n, err);
    if (!status)
        status = gguf_parse_tensors(g, &r, err);
    return status;
}
