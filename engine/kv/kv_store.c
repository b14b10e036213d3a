/* engine/kv/kv_store.c - one buffer with the keys and values of all layers of a stage: its layout, and copies of
 * blocks. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/kv_store.h"

#include <stdio.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

struct mr_kv_store {
    mr_backend *backend;
    mr_buffer *buffer;
    mr_kv_desc desc;
    mr_tensor k, v;   /* describe the tensors of one layer, without a place */
    uint8_t *scratch; /* room on the host for one block's keys or values of one layer, used by copies */
};

mr_status mr_kv_layer_describe(const mr_kv_desc *d, mr_tensor *out_k, mr_tensor *out_v, mr_err *err) {
    if (d->n_layers < 0 || d->n_blocks < 1 || d->n_kv_heads < 1 || d->head_dim < 1)
        return mr_err_set(err, MR_E_INVALID, "a KV store of %d layers, %d blocks, %d heads of %d", d->n_layers,
                          d->n_blocks, d->n_kv_heads, d->head_dim);
    if (d->type != MR_TYPE_F16 && d->type != MR_TYPE_F32 && d->type != MR_TYPE_Q8_0)
        return mr_err_set(err, MR_E_UNSUPPORTED, "keys and values cannot be stored as %s; hint: f16, q8_0 or f32",
                          mr_type_name(d->type));
    if (d->type == MR_TYPE_Q8_0 && d->head_dim % mr_type_get(MR_TYPE_Q8_0)->block_elems != 0)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "heads of %d elements do not fit q8_0 blocks of 32; hint: --kv-type f16", d->head_dim);
    int64_t block = (int64_t)d->n_kv_heads * d->head_dim;
    if (block <= INT32_MAX) /* a larger product is refused below as it is */
        block *= MR_KV_BLOCK;
    if (!mr_tensor_init(out_k, "keys", d->type, block, d->n_blocks, MR_STORAGE_STATE, MR_ROWS_FIXED) ||
        !mr_tensor_init(out_v, "values", d->type, block, d->n_blocks, MR_STORAGE_STATE, MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_TOO_LONG, "a KV store of %d blocks of %lld elements is too large", d->n_blocks,
                          (long long)block);
    return MR_OK;
}

mr_status mr_kv_store_bytes(const mr_kv_desc *d, size_t *out, mr_err *err) {
    mr_tensor k, v;
    size_t bytes = 0;
    mr_status status = mr_kv_layer_describe(d, &k, &v, err);
    if (status != MR_OK)
        return status;
    if (!mr_add_size(k.bytes, v.bytes, &bytes) || !mr_mul_size(bytes, (size_t)d->n_layers, &bytes))
        return mr_err_set(err, MR_E_TOO_LONG, "a KV store of %d layers is too large", d->n_layers);
    *out = bytes;
    return MR_OK;
}

mr_status mr_kv_store_create(mr_backend *backend, const mr_kv_desc *desc, mr_kv_store **out, mr_err *err) {
    size_t bytes = 0;
    mr_status status = mr_kv_store_bytes(desc, &bytes, err);
    if (status != MR_OK)
        return status;
    mr_kv_store *kv = mr_alloc(sizeof *kv);
    if (!kv)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a KV store");
    kv->backend = backend;
    kv->desc = *desc;
    status = mr_kv_layer_describe(desc, &kv->k, &kv->v, err);
    kv->scratch = mr_alloc(kv->k.row_bytes > kv->v.row_bytes ? kv->k.row_bytes : kv->v.row_bytes);
    if (status == MR_OK && !kv->scratch)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a block");
    if (status == MR_OK && bytes > 0)
        status = backend->ops->buffer_create(backend, bytes, &kv->buffer, err);
    if (status != MR_OK) {
        mr_err_prefix(err, "KV cache of %d blocks in %d layers", desc->n_blocks, desc->n_layers);
        mr_kv_store_destroy(kv);
        return status;
    }
    *out = kv;
    return MR_OK;
}

void mr_kv_store_destroy(mr_kv_store *kv) {
    if (!kv)
        return;
    kv->backend->ops->buffer_destroy(kv->backend, kv->buffer);
    mr_free(kv->scratch);
    mr_free(kv);
}

void mr_kv_store_layer(const mr_kv_store *kv, int32_t layer_idx, mr_tensor *out_k, mr_tensor *out_v) {
    MR_ASSERT(layer_idx >= 0 && layer_idx < kv->desc.n_layers);
    *out_k = kv->k;
    *out_v = kv->v;
    out_k->buffer = out_v->buffer = kv->buffer;
    out_k->home = out_v->home = kv->backend;
    out_k->offset = (size_t)layer_idx * (kv->k.bytes + kv->v.bytes);
    out_v->offset = out_k->offset + kv->k.bytes;
    snprintf(out_k->name, sizeof out_k->name, "keys.%d", layer_idx);
    snprintf(out_v->name, sizeof out_v->name, "values.%d", layer_idx);
}

/* Copies through host memory, which every backend can reach. Copies are rare and small. */
static mr_status copy_row(mr_kv_store *kv, const mr_tensor *t, int32_t from, int32_t to, mr_err *err) {
    const mr_backend_ops *ops = kv->backend->ops;
    mr_fence fence = 0;
    size_t from_offset = t->offset + (size_t)from * t->row_bytes, to_offset = t->offset + (size_t)to * t->row_bytes;
    mr_status status = ops->get(kv->backend, kv->buffer, from_offset, kv->scratch, t->row_bytes, &fence, err);
    if (status == MR_OK)
        status = ops->wait(kv->backend, fence, MR_NEVER, err);
    if (status == MR_OK)
        status = ops->set(kv->backend, kv->buffer, to_offset, kv->scratch, t->row_bytes, &fence, err);
    return status == MR_OK ? ops->wait(kv->backend, fence, MR_NEVER, err) : status;
}

mr_status mr_kv_store_copy(mr_kv_store *kv, int32_t from, int32_t to, mr_err *err) {
    mr_status status = MR_OK;
    MR_ASSERT(from >= 0 && from < kv->desc.n_blocks && to >= 0 && to < kv->desc.n_blocks);
    for (int32_t i = 0; i < kv->desc.n_layers && status == MR_OK; i++) {
        mr_tensor k, v;
        mr_kv_store_layer(kv, i, &k, &v);
        status = copy_row(kv, &k, from, to, err);
        if (status == MR_OK)
            status = copy_row(kv, &v, from, to, err);
    }
    return status;
}
