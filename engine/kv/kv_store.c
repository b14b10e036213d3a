/* engine/kv/kv_store.c - one buffer with the keys and values of the layers of a backend, and its layout. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/kv_store.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

struct mr_kv_store {
    mr_backend *backend;
    int32_t n_layers, n_blocks;
    mr_buffer *buffer;
    mr_tensor *k, *v; /* [n_layers] each, in the buffer; one allocation */
};

/* The keys or values of a layer: blocks of so many KV heads of dim elements. */
static mr_status describe(const mr_kv_desc *d, const char *name, int32_t n_kv_heads, int32_t dim, mr_tensor *out,
                          mr_err *err) {
    if (d->type == MR_TYPE_Q8_0 && dim % mr_type_get(MR_TYPE_Q8_0)->block_elems != 0)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "heads of %d elements do not fit q8_0 blocks of 32; hint: --kv-type f16", dim);
    int64_t block = (int64_t)n_kv_heads * dim;
    if (block <= INT32_MAX) /* a larger product is refused below as it is */
        block *= MR_KV_BLOCK;
    if (!mr_tensor_init(out, name, d->type, block, d->n_blocks, MR_STORAGE_STATE, MR_ROWS_FIXED) ||
        out->row_bytes > INT32_MAX)
        return mr_err_set(err, MR_E_TOO_LONG, "a KV store of %d blocks of %lld elements is too large", d->n_blocks,
                          (long long)block);
    return MR_OK;
}

static mr_status check(const mr_kv_desc *d, mr_err *err) {
    if (d->n_layers < 0 || d->n_blocks < 1)
        return mr_err_set(err, MR_E_INVALID, "a KV store of %d layers, %d blocks", d->n_layers, d->n_blocks);
    if (d->type != MR_TYPE_F16 && d->type != MR_TYPE_F32 && d->type != MR_TYPE_Q8_0)
        return mr_err_set(err, MR_E_UNSUPPORTED, "keys and values cannot be stored as %s; hint: f16, q8_0 or f32",
                          mr_type_name(d->type));
    return MR_OK;
}

mr_status mr_kv_layer_describe(const mr_kv_desc *d, int32_t layer_idx, mr_tensor *out_k, mr_tensor *out_v,
                               mr_err *err) {
    const mr_kv_shape *s = &d->shapes[layer_idx];
    mr_status status = check(d, err);
    if (status == MR_OK && (s->n_kv_heads < 1 || s->k_dim < 1 || s->v_dim < 1))
        status =
            mr_err_set(err, MR_E_INVALID, "a KV store of %d heads of %d and %d", s->n_kv_heads, s->k_dim, s->v_dim);
    if (status == MR_OK)
        status = describe(d, "keys", s->n_kv_heads, s->k_dim, out_k, err);
    return status == MR_OK ? describe(d, "values", s->n_kv_heads, s->v_dim, out_v, err) : status;
}

mr_status mr_kv_store_bytes(const mr_kv_desc *d, size_t *out, mr_err *err) {
    size_t bytes = 0;
    mr_status status = check(d, err);
    for (int32_t i = 0; i < d->n_layers && status == MR_OK; i++) {
        mr_tensor k, v;
        status = mr_kv_layer_describe(d, i, &k, &v, err);
        if (status == MR_OK && (!mr_add_size(bytes, k.bytes, &bytes) || !mr_add_size(bytes, v.bytes, &bytes)))
            status = mr_err_set(err, MR_E_TOO_LONG, "a KV store of %d layers is too large", d->n_layers);
    }
    if (status == MR_OK)
        *out = bytes;
    return status;
}

/* Describes the layers and places them one behind the other. */
static mr_status place_layers(mr_kv_store *kv, const mr_kv_desc *desc, size_t *out_bytes, mr_err *err) {
    mr_status status = MR_OK;
    kv->k = mr_alloc_array(2 * (size_t)desc->n_layers, sizeof *kv->k);
    if (!kv->k)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a KV store");
    kv->v = kv->k + desc->n_layers;
    *out_bytes = 0;
    for (int32_t i = 0; i < desc->n_layers && status == MR_OK; i++) {
        mr_tensor *k = &kv->k[i], *v = &kv->v[i];
        status = mr_kv_layer_describe(desc, i, k, v, err);
        k->home = v->home = kv->backend;
        k->offset = *out_bytes;
        v->offset = k->offset + k->bytes;
        *out_bytes = v->offset + v->bytes;
        snprintf(k->name, sizeof k->name, "keys.%d", i);
        snprintf(v->name, sizeof v->name, "values.%d", i);
    }
    return status;
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
    kv->n_layers = desc->n_layers;
    kv->n_blocks = desc->n_blocks;
    status = place_layers(kv, desc, &bytes, err);
    if (status == MR_OK && bytes > 0)
        status = backend->ops->buffer_create(backend, bytes, &kv->buffer, err);
    if (status != MR_OK) {
        mr_err_prefix(err, "KV cache of %d blocks in %d layers", desc->n_blocks, desc->n_layers);
        mr_kv_store_destroy(kv);
        return status;
    }
    for (int32_t i = 0; i < 2 * kv->n_layers; i++)
        kv->k[i].buffer = kv->buffer; /* values follow the keys */
    *out = kv;
    return MR_OK;
}

void mr_kv_store_destroy(mr_kv_store *kv) {
    if (!kv)
        return;
    kv->backend->ops->buffer_destroy(kv->backend, kv->buffer);
    mr_free(kv->k);
    mr_free(kv);
}

void mr_kv_store_layer(const mr_kv_store *kv, int32_t layer_idx, mr_tensor *out_k, mr_tensor *out_v) {
    MR_ASSERT(layer_idx >= 0 && layer_idx < kv->n_layers);
    *out_k = kv->k[layer_idx];
    *out_v = kv->v[layer_idx];
}

mr_backend *mr_kv_store_backend(const mr_kv_store *kv) {
    return kv->backend;
}

bool mr_kv_store_is(const mr_kv_store *kv, const mr_kv_desc *desc) {
    bool is_same = kv->n_layers == desc->n_layers && kv->n_blocks == desc->n_blocks;
    for (int32_t i = 0; i < kv->n_layers && is_same; i++) {
        mr_tensor k, v;
        is_same = mr_kv_layer_describe(desc, i, &k, &v, NULL) == MR_OK && k.type == kv->k[i].type &&
                  v.type == kv->v[i].type && k.row_bytes == kv->k[i].row_bytes && v.row_bytes == kv->v[i].row_bytes;
    }
    return is_same;
}

int32_t mr_kv_store_n_blocks(const mr_kv_store *kv) {
    return kv->n_blocks;
}

size_t mr_kv_store_block_bytes(const mr_kv_store *kv) {
    size_t bytes = 0;
    for (int32_t i = 0; i < 2 * kv->n_layers; i++)
        bytes += kv->k[i].row_bytes;
    return bytes;
}

/* The parts of a block: keys of layer 0, its values, keys of layer 1 ... */
static const mr_tensor *part_of(const mr_kv_store *kv, int32_t i) {
    return i % 2 ? &kv->v[i / 2] : &kv->k[i / 2];
}

static size_t offset_in(const mr_tensor *t, int32_t block) {
    MR_ASSERT(block >= 0 && block < t->ne[1]);
    return t->offset + (size_t)block * t->row_bytes;
}

mr_status mr_kv_store_get_block(const mr_kv_store *kv, int32_t block, uint8_t *out, mr_fence *out_fence, mr_err *err) {
    mr_status status = MR_OK;
    *out_fence = 0;
    for (int32_t i = 0; i < 2 * kv->n_layers && status == MR_OK; i++) {
        const mr_tensor *t = part_of(kv, i);
        status = kv->backend->ops->get(kv->backend, kv->buffer, offset_in(t, block), out, t->row_bytes, out_fence, err);
        out += t->row_bytes;
    }
    return status;
}

mr_status mr_kv_store_has_got(const mr_kv_store *kv, mr_fence fence, int64_t deadline_ns, bool *out, mr_err *err) {
    mr_status status = kv->backend->ops->wait(kv->backend, fence, deadline_ns, err);
    *out = status == MR_OK;
    return status == MR_E_TIMEOUT ? MR_OK : status;
}

mr_status mr_kv_store_set_block(mr_kv_store *kv, int32_t block, const uint8_t *bytes, mr_err *err) {
    mr_status status = MR_OK;
    mr_fence fence = 0;
    for (int32_t i = 0; i < 2 * kv->n_layers && status == MR_OK; i++) {
        const mr_tensor *t = part_of(kv, i);
        status = kv->backend->ops->set(kv->backend, kv->buffer, offset_in(t, block), bytes, t->row_bytes, &fence, err);
        bytes += t->row_bytes;
    }
    return status == MR_OK ? kv->backend->ops->wait(kv->backend, fence, MR_NEVER, err) : status;
}

mr_status mr_kv_store_move(mr_kv_store *to, const mr_kv_store *from, mr_err *err) {
    mr_fence fence;
    size_t bytes = 0;
    for (int32_t i = 0; i < 2 * to->n_layers; i++)
        bytes += to->k[i].bytes;
    mr_status status = to->backend->ops->set(to->backend, to->buffer, 0, from->buffer->base, bytes, &fence, err);
    return status == MR_OK ? to->backend->ops->wait(to->backend, fence, MR_NEVER, err) : status;
}

mr_status mr_kv_whole_describe(const mr_kv_desc *d, mr_tensor *out, int32_t *out_parts, mr_err *err) {
    size_t block_bytes = 0, bytes = 0;
    mr_status status = mr_kv_store_bytes(d, &bytes, err);
    for (int32_t i = 0; i < d->n_layers && status == MR_OK; i++) {
        mr_tensor k, v;
        status = mr_kv_layer_describe(d, i, &k, &v, err);
        out_parts[2 * i] = (int32_t)k.row_bytes;
        out_parts[2 * i + 1] = (int32_t)v.row_bytes;
        block_bytes += k.row_bytes + v.row_bytes;
    }
    if (status != MR_OK)
        return status;
    if (!mr_tensor_init(out, "kv_store", MR_TYPE_I32, (int64_t)(block_bytes / sizeof(int32_t)), d->n_blocks,
                        MR_STORAGE_STATE, MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_TOO_LONG, "a KV store with blocks of %zu bytes is too large", block_bytes);
    MR_ASSERT(out->row_bytes == block_bytes); /* the rows of its parts are padded in the same way */
    return MR_OK;
}
