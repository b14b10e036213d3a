/* Typed access to the metadata of an open file. Each call reads the value from the file; mr_gguf_open has checked the
 * bounds of all values. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdlib.h>

#include "engine/gguf/gguf_internal.h"

static const struct {
    const char *name;
    size_t bytes; /* of one value; 0 where it varies */
    bool integer;
} TYPES[MR_GGUF_TYPE_COUNT] = {
    [MR_GGUF_U8] = {"u8", 1, true},        [MR_GGUF_I8] = {"i8", 1, true},      [MR_GGUF_U16] = {"u16", 2, true},
    [MR_GGUF_I16] = {"i16", 2, true},      [MR_GGUF_U32] = {"u32", 4, true},    [MR_GGUF_I32] = {"i32", 4, true},
    [MR_GGUF_F32] = {"f32", 4, false},     [MR_GGUF_BOOL] = {"bool", 1, false}, [MR_GGUF_STRING] = {"string", 0, false},
    [MR_GGUF_ARRAY] = {"array", 0, false}, [MR_GGUF_U64] = {"u64", 8, true},    [MR_GGUF_I64] = {"i64", 8, true},
    [MR_GGUF_F64] = {"f64", 8, false},
};

size_t gguf_type_bytes(uint32_t type) {
    return type < MR_GGUF_TYPE_COUNT ? TYPES[type].bytes : 0;
}

static bool is_number(mr_gguf_type type) {
    return TYPES[type].integer || type == MR_GGUF_F32 || type == MR_GGUF_F64;
}

const char *mr_gguf_type_name(int32_t type) {
    return type >= 0 && type < MR_GGUF_TYPE_COUNT ? TYPES[type].name : "?";
}

static int compare_name(const void *name, const void *key) {
    return strcmp(name, (*(gguf_key *const *)key)->name);
}

const gguf_key *gguf_find_key(const mr_gguf *g, const char *name) {
    gguf_key **found = bsearch(name, g->keys_by_name, (size_t)g->n_keys, sizeof *g->keys_by_name, compare_name);
    return found ? *found : NULL;
}

int32_t mr_gguf_n_keys(const mr_gguf *g) {
    return g->n_keys;
}

const char *mr_gguf_key_name(const mr_gguf *g, int32_t idx) {
    MR_ASSERT(idx >= 0 && idx < g->n_keys);
    return g->keys[idx].name;
}

mr_gguf_type mr_gguf_key_type(const mr_gguf *g, int32_t idx) {
    MR_ASSERT(idx >= 0 && idx < g->n_keys);
    return g->keys[idx].type;
}

bool mr_gguf_has_key(const mr_gguf *g, const char *key) {
    return gguf_find_key(g, key) != NULL;
}

mr_str mr_gguf_array_str(const mr_gguf_array *a, size_t idx) {
    MR_ASSERT(idx < a->n && a->type == MR_GGUF_STRING);
    const uint8_t *text = a->data + (a->string_starts ? a->string_starts[idx] : 8);
    return (mr_str){(const char *)text, (size_t)mr_load_le64(text - 8)};
}

int64_t mr_gguf_array_i64(const mr_gguf_array *a, size_t idx) {
    MR_ASSERT(idx < a->n && (TYPES[a->type].integer || a->type == MR_GGUF_BOOL));
    const uint8_t *p = a->data + idx * TYPES[a->type].bytes;
    switch (a->type) {
    case MR_GGUF_I8:
        return (int8_t)*p;
    case MR_GGUF_U16:
        return mr_load_le16(p);
    case MR_GGUF_I16:
        return (int16_t)mr_load_le16(p);
    case MR_GGUF_U32:
        return mr_load_le32(p);
    case MR_GGUF_I32:
        return (int32_t)mr_load_le32(p);
    case MR_GGUF_U64:
    case MR_GGUF_I64:
        return (int64_t)mr_load_le64(p);
    default:
        return *p;
    }
}

int32_t mr_gguf_array_i32(const mr_gguf_array *a, size_t idx) {
    int64_t v = mr_gguf_array_i64(a, idx);
    if (v > INT32_MAX || (v < 0 && a->type == MR_GGUF_U64))
        return INT32_MAX;
    return v < INT32_MIN ? INT32_MIN : (int32_t)v;
}

uint32_t mr_gguf_array_u32(const mr_gguf_array *a, size_t idx) {
    int64_t v = mr_gguf_array_i64(a, idx);
    if (v > UINT32_MAX || (v < 0 && a->type == MR_GGUF_U64))
        return UINT32_MAX;
    return v < 0 ? 0 : (uint32_t)v;
}

float mr_gguf_array_f32(const mr_gguf_array *a, size_t idx) {
    MR_ASSERT(idx < a->n && is_number(a->type));
    switch (a->type) {
    case MR_GGUF_F32:
        return mr_load_le_f32(a->data + 4 * idx);
    case MR_GGUF_F64:
        return (float)mr_load_le_f64(a->data + 8 * idx);
    case MR_GGUF_U64:
        return (float)mr_load_le64(a->data + 8 * idx);
    default:
        return (float)mr_gguf_array_i64(a, idx);
    }
}

/* Returns NULL, with MR_E_NOT_FOUND in err, when the key is missing. */
static const gguf_key *need_key(const mr_gguf *g, const char *name, mr_err *err) {
    const gguf_key *key = gguf_find_key(g, name);
    if (!key)
        (void)mr_err_set(err, MR_E_NOT_FOUND, "key " GGUF_NAME " is missing", name);
    return key;
}

static mr_status wrong_type(const gguf_key *key, const char *wanted, mr_err *err) {
    return mr_err_set(err, MR_E_FORMAT, "key " GGUF_NAME ": the value is of type %s%s, not %s", key->name,
                      key->type == MR_GGUF_ARRAY ? "array of " : "", TYPES[key->value.type].name, wanted);
}

/* Reads a value of any integer type. MR_E_FORMAT: the value is outside [min, max]. A u64 beyond INT64_MAX comes out as
 * its two's complement. */
static mr_status get_integer(const mr_gguf *g, const char *name, int64_t min, uint64_t max, int64_t *out, mr_err *err) {
    const gguf_key *key = need_key(g, name, err);
    if (!key)
        return MR_E_NOT_FOUND;
    if (!TYPES[key->type].integer)
        return wrong_type(key, "an integer", err);
    int64_t v = mr_gguf_array_i64(&key->value, 0);
    bool negative = v < 0 && key->type != MR_GGUF_U64;
    if (negative && v < min)
        return mr_err_set(err, MR_E_FORMAT, "key " GGUF_NAME ": %" PRId64 " is below the least value %" PRId64,
                          key->name, v, min);
    if (!negative && (uint64_t)v > max)
        return mr_err_set(err, MR_E_FORMAT, "key " GGUF_NAME ": %" PRIu64 " is above the largest value %" PRIu64,
                          key->name, (uint64_t)v, max);
    *out = v;
    return MR_OK;
}

mr_status mr_gguf_get_u32(const mr_gguf *g, const char *key, uint32_t *out, mr_err *err) {
    int64_t v;
    mr_status status = get_integer(g, key, 0, UINT32_MAX, &v, err);
    if (!status)
        *out = (uint32_t)v;
    return status;
}

mr_status mr_gguf_get_i32(const mr_gguf *g, const char *key, int32_t *out, mr_err *err) {
    int64_t v;
    mr_status status = get_integer(g, key, INT32_MIN, INT32_MAX, &v, err);
    if (!status)
        *out = (int32_t)v;
    return status;
}

mr_status mr_gguf_get_u64(const mr_gguf *g, const char *key, uint64_t *out, mr_err *err) {
    int64_t v;
    mr_status status = get_integer(g, key, 0, UINT64_MAX, &v, err);
    if (!status)
        *out = (uint64_t)v;
    return status;
}

mr_status mr_gguf_get_i64(const mr_gguf *g, const char *key, int64_t *out, mr_err *err) {
    int64_t v;
    mr_status status = get_integer(g, key, INT64_MIN, INT64_MAX, &v, err);
    if (!status)
        *out = v;
    return status;
}

mr_status mr_gguf_get_f32(const mr_gguf *g, const char *key, float *out, mr_err *err) {
    const gguf_key *found = need_key(g, key, err);
    if (!found)
        return MR_E_NOT_FOUND;
    if (!is_number(found->type))
        return wrong_type(found, "a number", err);
    *out = mr_gguf_array_f32(&found->value, 0);
    return MR_OK;
}

mr_status mr_gguf_get_bool(const mr_gguf *g, const char *key, bool *out, mr_err *err) {
    const gguf_key *found = need_key(g, key, err);
    if (!found)
        return MR_E_NOT_FOUND;
    int64_t v = 0;
    if (found->type == MR_GGUF_BOOL)
        v = found->value.data[0];
    else if (!TYPES[found->type].integer)
        return wrong_type(found, "a bool", err);
    else if (get_integer(g, key, 0, 1, &v, err) != MR_OK)
        return MR_E_FORMAT;
    *out = v != 0;
    return MR_OK;
}

mr_status mr_gguf_get_str(const mr_gguf *g, const char *key, mr_str *out, mr_err *err) {
    const gguf_key *found = need_key(g, key, err);
    if (!found)
        return MR_E_NOT_FOUND;
    if (found->type != MR_GGUF_STRING)
        return wrong_type(found, "a string", err);
    *out = mr_gguf_array_str(&found->value, 0);
    return MR_OK;
}

mr_status mr_gguf_get_array(const mr_gguf *g, const char *key, mr_gguf_elems elems, mr_gguf_array *out, mr_err *err) {
    static const char *const WANTED[] = {"an array", "an array of integers", "an array of numbers", "an array of bools",
                                         "an array of strings"};
    const gguf_key *found = need_key(g, key, err);
    if (!found)
        return MR_E_NOT_FOUND;
    mr_gguf_type type = found->value.type;
    bool fits = elems == MR_GGUF_ELEMS_ANY || (elems == MR_GGUF_ELEMS_INTEGERS && TYPES[type].integer) ||
                (elems == MR_GGUF_ELEMS_FLOATS && is_number(type)) ||
                (elems == MR_GGUF_ELEMS_BOOLS && type == MR_GGUF_BOOL) ||
                (elems == MR_GGUF_ELEMS_STRINGS && type == MR_GGUF_STRING);
    if (found->type != MR_GGUF_ARRAY || !fits)
        return wrong_type(found, WANTED[elems], err);
    *out = found->value;
    return MR_OK;
}
