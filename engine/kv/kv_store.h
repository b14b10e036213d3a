/* engine/kv/kv_store.h - the keys and values of the layers of one stage, in blocks of MR_KV_BLOCK positions.
 * Layout of a layer: keys [block][kv head][head_dim][16], values [block][kv head][16][head_dim] (rule K); a block is a
 * row of the tensor. In q8_0 each KV head of a block has its elements, then its scales: of keys [head_dim / 32][16], of
 * values [16][head_dim / 32].
 * Which sequence owns which block is the coordinator's ledger; here a block is a number.
 * Owns:    one buffer on the backend and a block's room on the host, taken at create. Borrows: the backend, which
 *          outlives it.
 * Threads: caller serialises. The content changes by graph runs and copies only. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_KV_KV_STORE_H
#define MR_ENGINE_KV_KV_STORE_H

#include "backends/backend.h"
#include "engine/base/status.h"

typedef struct mr_kv_store mr_kv_store;

typedef struct mr_kv_desc {
    int32_t n_layers; /* held here */
    int32_t n_blocks;
    int32_t n_kv_heads, head_dim;
    mr_type type; /* F16, F32, or Q8_0 where head_dim is a multiple of 32 */
} mr_kv_desc;

/* Bytes that the store takes; MR_E_INVALID or MR_E_TOO_LONG for a description that cannot be. */
MR_MUST_USE mr_status mr_kv_store_bytes(const mr_kv_desc *desc, size_t *out, mr_err *err);
MR_MUST_USE mr_status mr_kv_store_create(mr_backend *backend, const mr_kv_desc *desc, mr_kv_store **out, mr_err *err);
void mr_kv_store_destroy(mr_kv_store *kv);

/* The state tensors of one of the layers held here, 0 .. n_layers - 1; placed. */
void mr_kv_store_layer(const mr_kv_store *kv, int32_t layer_idx, mr_tensor *out_k, mr_tensor *out_v);
/* The same without a store, not placed: for graphs that are only measured. */
MR_MUST_USE mr_status mr_kv_layer_describe(const mr_kv_desc *desc, mr_tensor *out_k, mr_tensor *out_v, mr_err *err);

/* Makes block `to` of every layer what block `from` is. Allocates nothing. */
MR_MUST_USE mr_status mr_kv_store_copy(mr_kv_store *kv, int32_t from, int32_t to, mr_err *err);

#endif
