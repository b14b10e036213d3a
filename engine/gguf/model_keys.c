// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/model_keys.h"

#include <inttypes.h>
#include <stdio.h>

const char *keys_name(model_keys *keys, const char *suffix) {
    bool general = strncmp(suffix, "general.", 8) == 0;
    snprintf(keys->key, sizeof keys->key, "%s%s%s", general ? "" : keys->arch, general ? "" : ".", suffix);
    return keys->key;
}

bool keys_has(model_keys *keys, const char *suffix) {
    return !keys->status && mr_gguf_has_key(keys->g, keys_name(keys, suffix));
}

static int64_t check_range(model_keys *keys, int64_t v, int64_t min, int64_t max) {
    if (v < min || v > max)
        keys->status =
            mr_err_set(keys->err, MR_E_FORMAT, "key '%s': %" PRId64 " is out of the range %" PRId64 " to %" PRId64,
                       keys->key, v, min, max);
    return v;
}

mr_status keys_need(const model_keys *keys, mr_status status) {
    if (status == MR_E_NOT_FOUND)
        return mr_err_set(keys->err, MR_E_FORMAT,
                          "key '%s' is missing; hint: the file holds no language model that this "
                          "program knows, or it was converted by a very old converter",
                          keys->key);
    return status;
}

static int64_t need_number(model_keys *keys, const char *suffix) {
    int64_t v = 0;
    if (!keys->status)
        keys->status = keys_need(keys, mr_gguf_get_i64(keys->g, keys_name(keys, suffix), &v, keys->err));
    return v;
}

int32_t keys_need_int(model_keys *keys, const char *suffix, int64_t min, int64_t max) {
    int64_t v = need_number(keys, suffix);
    return keys->status ? 0 : (int32_t)check_range(keys, v, min, max);
}

int32_t keys_opt_int(model_keys *keys, const char *suffix, int64_t min, int64_t max, int32_t fallback) {
    return keys_has(keys, suffix) ? keys_need_int(keys, suffix, min, max) : fallback;
}

bool keys_opt_bool(model_keys *keys, const char *suffix, bool fallback) {
    bool v = fallback;
    if (keys_has(keys, suffix))
        keys->status = mr_gguf_get_bool(keys->g, keys->key, &v, keys->err);
    return v;
}

float keys_need_float(model_keys *keys, const char *suffix, float min, float max) {
    float v = 0;
    if (keys->status)
        return 0;
    keys->status = keys_need(keys, mr_gguf_get_f32(keys->g, keys_name(keys, suffix), &v, keys->err));
    if (!keys->status && !(v >= min && v <= max))
        keys->status = mr_err_set(keys->err, MR_E_FORMAT, "key '%s': %g is out of the range %g to %g", keys->key,
                                  (double)v, (double)min, (double)max);
    return v;
}

float keys_opt_float(model_keys *keys, const char *suffix, float min, float max, float fallback) {
    return keys_has(keys, suffix) ? keys_need_float(keys, suffix, min, max) : fallback;
}

layer_key keys_layers(model_keys *keys, const char *suffix) {
    layer_key k = {.suffix = suffix};
    if (!keys_has(keys, suffix))
        return k;
    k.is_array = mr_gguf_get_array(keys->g, keys->key, MR_GGUF_ELEMS_ANY, &k.array, NULL) == MR_OK;
    if (!k.is_array)
        k.number = need_number(keys, suffix);
    else if (k.array.type != MR_GGUF_BOOL)
        keys->status = mr_gguf_get_array(keys->g, keys->key, MR_GGUF_ELEMS_INTEGERS, &k.array, keys->err);
    if (!keys->status && k.is_array && k.array.n != (size_t)keys->n_blocks)
        keys->status = mr_err_set(keys->err, MR_E_FORMAT, "key '%s': %zu values for %d layers", keys->key, k.array.n,
                                  keys->n_blocks);
    k.is_known = !keys->status;
    return k;
}

int32_t keys_layer_int(model_keys *keys, const layer_key *k, int32_t layer, int64_t min, int64_t max,
                       int32_t fallback) {
    if (!k->is_known || keys->status)
        return fallback;
    keys_name(keys, k->suffix);
    return (int32_t)check_range(keys, k->is_array ? mr_gguf_array_i64(&k->array, (size_t)layer) : k->number, min, max);
}
