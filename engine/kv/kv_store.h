/* engine/kv/kv_store.h - the keys and values of the layers that a stage has on one backend, in blocks of MR_KV_BLOCK
 * positions.
 * Layout of a layer: keys [block][kv head][k_dim][16], values [block][kv head][16][v_dim] (rule K). A block is a row of
 * the tensor. In q8_0 each KV head of a block has its elements first, keys [k_dim / 4][16][4] or values [4][v_dim][4],
 * and then their scales, [k_dim / 32][16] or [v_dim / 32][16]. Layers may differ in their heads.
 * The store knows blocks by number only. The coordinator's ledger knows which sequence owns which block.
 * Owns:    one buffer on the backend and its tensors, all allocated at create. Borrows: the backend, which outlives the
 *          store.
 * Threads: caller serialises. Programs of the backend change the content, and mr_kv_store_set_block and
 *          mr_kv_store_move while none runs.
 * Errors:  those of the backend; others are named at the function. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_KV_KV_STORE_H
#define MR_ENGINE_KV_KV_STORE_H

#include <stdbool.h>

#include "backends/backend.h"
#include "engine/base/status.h"

typedef struct mr_kv_store mr_kv_store;

/* The KV heads of a layer: elements of keys and of values. */
typedef struct mr_kv_shape {
    int32_t n_kv_heads, k_dim, v_dim;
} mr_kv_shape;

typedef struct mr_kv_desc {
    int32_t n_layers;
    int32_t n_blocks;
    const mr_kv_shape *shapes; /* [n_layers] */
    mr_type type;              /* F16, F32, or Q8_0 where heads are multiples of 32 */
} mr_kv_desc;

/* Bytes that the store takes. MR_E_INVALID: a count is out of its range. MR_E_UNSUPPORTED: the type does not fit.
 * MR_E_TOO_LONG: the sizes overflow. */
MR_MUST_USE mr_status mr_kv_store_bytes(const mr_kv_desc *desc, size_t *out, mr_err *err);
/* desc->shapes is copied. */
MR_MUST_USE mr_status mr_kv_store_create(mr_backend *backend, const mr_kv_desc *desc, mr_kv_store **out, mr_err *err);
void mr_kv_store_destroy(mr_kv_store *kv);

/* Returns the state tensors of one layer, 0 .. n_layers - 1, with their place in the buffer. */
void mr_kv_store_layer(const mr_kv_store *kv, int32_t layer_idx, mr_tensor *out_k, mr_tensor *out_v);
mr_backend *mr_kv_store_backend(const mr_kv_store *kv);
/* Whether the store is one that desc describes, on any backend. */
bool mr_kv_store_is(const mr_kv_store *kv, const mr_kv_desc *desc);
int32_t mr_kv_store_n_blocks(const mr_kv_store *kv);
/* Bytes of one block of all layers. */
size_t mr_kv_store_block_bytes(const mr_kv_store *kv);
/* Copy one block of all layers, mr_kv_store_block_bytes, layer by layer, keys first. get_block begins the copy, which
 * is over when mr_kv_store_has_got says so: a device may have to end its work first. set_block waits for its end. */
MR_MUST_USE mr_status mr_kv_store_get_block(const mr_kv_store *kv, int32_t block, uint8_t *out, mr_fence *out_fence,
                                            mr_err *err);
/* Waits until the deadline at most. */
MR_MUST_USE mr_status mr_kv_store_has_got(const mr_kv_store *kv, mr_fence fence, int64_t deadline_ns, bool *out,
                                          mr_err *err);
MR_MUST_USE mr_status mr_kv_store_set_block(mr_kv_store *kv, int32_t block, const uint8_t *bytes, mr_err *err);
/* Copies the content of a store in the host's memory to one of the same layers and blocks. */
MR_MUST_USE mr_status mr_kv_store_move(mr_kv_store *to, const mr_kv_store *from, mr_err *err);

/* Describes the same tensors without a store and without a place, for graphs that are only measured. */
MR_MUST_USE mr_status mr_kv_layer_describe(const mr_kv_desc *desc, int32_t layer_idx, mr_tensor *out_k,
                                           mr_tensor *out_v, mr_err *err);

/* Describes the whole store as one tensor with a row for each block, for MR_OP_KV_COPY. Its place is that of the keys
 * of layer 0. out_parts: [2 * n_layers] bytes of a block in each part of the store. */
MR_MUST_USE mr_status mr_kv_whole_describe(const mr_kv_desc *desc, mr_tensor *out, int32_t *out_parts, mr_err *err);

#endif
