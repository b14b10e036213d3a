/* engine/model/weight_store.h - loaded weights that outlive their stage. mr_weights_destroy puts the buffers of loaded
 * layers here, and mr_weights_load takes those that fit from here instead of loading them:
 *
 *     mr_weights_create(&(mr_weights_desc){..., .store = store}, &backends, &w, err);
 *     mr_weights_load(w, NULL, NULL, err); // takes what is kept, frees the rest of the store, loads what is missing
 *     mr_weights_destroy(w);               // all loaded layers are in the store
 *
 * There is a buffer for each layer, for the embedding, and for the output, on each backend. A buffer fits if its
 * backend is the same, and if it holds the same tensors of the file at the same places. All users of a store have the
 * same model file, and backends that outlive the store.
 * Owns:    the buffers that no mr_weights has.
 * Threads: caller serialises.
 * Errors:  create alone: MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_MODEL_WEIGHT_STORE_H
#define MR_ENGINE_MODEL_WEIGHT_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct mr_weight_store mr_weight_store;

MR_MUST_USE mr_status mr_weight_store_create(mr_weight_store **out, mr_err *err);
/* Frees all buffers. NULL is accepted. */
void mr_weight_store_destroy(mr_weight_store *s);
/* Frees all buffers; the store stays usable. NULL is accepted. */
void mr_weight_store_clear(mr_weight_store *s);
/* Bytes of all buffers in the store. */
size_t mr_weight_store_bytes(const mr_weight_store *s);

#endif
