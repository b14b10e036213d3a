/* engine/gguf/model_keys.h - reads hyper-parameters by their keys, for mr_model_info_read. A reader keeps the first
 * error. After an error the functions read nothing, so the caller reads all fields and checks the status once.
 * A key's suffix stands behind "A.", where A is the value of general.architecture; a suffix that starts with "general."
 * is the whole key.
 * Owns:    nothing. Borrows: the file and the name of the architecture.
 * Threads: caller serialises.
 * Errors:  in model_keys.status; MR_E_FORMAT for a missing key, a wrong type or a value out of its range. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GGUF_MODEL_KEYS_H
#define MR_ENGINE_GGUF_MODEL_KEYS_H

#include "engine/gguf/gguf.h"

typedef struct model_keys {
    const mr_gguf *g;
    const char *arch;
    int32_t n_blocks; /* layers of the file: the length of arrays with a value for each layer */
    mr_status status;
    mr_err *err;
    char key[128]; /* the full name of the last key */
} model_keys;

/* Writes the full name of a key to keys->key. */
const char *keys_name(model_keys *keys, const char *suffix);
/* Whether the file has the key. Always false after an error. */
bool keys_has(model_keys *keys, const char *suffix);
/* The caller needs the key, so a missing key is an error of the file. */
mr_status keys_need(const model_keys *keys, mr_status status);

int32_t keys_need_int(model_keys *keys, const char *suffix, int64_t min, int64_t max);
int32_t keys_opt_int(model_keys *keys, const char *suffix, int64_t min, int64_t max, int32_t fallback);
bool keys_opt_bool(model_keys *keys, const char *suffix, bool fallback);
/* Finite numbers in [min, max]. */
float keys_need_float(model_keys *keys, const char *suffix, float min, float max);
float keys_opt_float(model_keys *keys, const char *suffix, float min, float max, float fallback);

/* A key with one number for all layers, or with an array of numbers or truth values, one for each layer. */
typedef struct layer_key {
    const char *suffix;
    bool is_known; /* false: the file has no such key, or there was an error */
    bool is_array;
    mr_gguf_array array;
    int64_t number; /* where the key has no array */
} layer_key;

layer_key keys_layers(model_keys *keys, const char *suffix);
/* The value of a layer; fallback for a key that the file lacks. */
int32_t keys_layer_int(model_keys *keys, const layer_key *k, int32_t layer, int64_t min, int64_t max, int32_t fallback);

#endif
