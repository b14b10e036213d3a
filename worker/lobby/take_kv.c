// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/take_kv.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"

/* The sender works on steps meanwhile, and sends a block now and then. */
static const int64_t PATIENCE_NS = 20 * MR_NS_PER_S;

static mr_status create_store(const Millrace__TakeKv *m, const mr_model_info *info, mr_backend *backend,
                              mr_kv_store **out, mr_err *err) {
    if (m->last_layer > (uint32_t)info->n_layers)
        return mr_err_set(err, MR_E_PROTOCOL, "KV blocks of layer %u, the model has %d", m->last_layer - 1,
                          (int)info->n_layers);
    mr_kv_desc desc = {.n_blocks = (int32_t)m->n_kv_blocks, .type = (mr_type)m->kv_type};
    mr_kv_shape *shapes = mr_alloc_array((size_t)(m->last_layer - m->first_layer), sizeof *shapes);
    if (!shapes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the layers of KV blocks");
    for (uint32_t i = m->first_layer; i < m->last_layer; i++) {
        const mr_layer_info *l = mr_model_layer(info, (int32_t)i);
        shapes[desc.n_layers++] = (mr_kv_shape){l->n_kv_heads, l->k_dim, l->v_dim};
    }
    desc.shapes = shapes;
    mr_status status = mr_kv_store_create(backend, &desc, out, err);
    mr_free(shapes);
    return status;
}

mr_status mr_kv_take_ahead(const Millrace__TakeKv *m, const mr_model_info *info, mr_backend *backend,
                           int32_t coordinator, mr_kv_transfer transfer, mr_kept_kv *kept, mr_err *err) {
    mr_kv_store *store = NULL;
    mr_kept_kv_drop(kept);
    if ((int32_t)m->from >= coordinator || (int32_t)m->from == transfer.channel->self)
        return mr_err_set(err, MR_E_PROTOCOL, "there is no link to rank %u", m->from);
    const mr_layer_range range = {(int32_t)m->first_layer, (int32_t)m->last_layer};
    transfer.peer = (int32_t)m->from;
    transfer.epoch = m->epoch;
    transfer.ahead = true;
    mr_status status = create_store(m, info, backend, &store, err);
    if (status != MR_OK) {
        mr_kv_refuse(transfer.channel, transfer.peer, coordinator, true, m->epoch);
        return status;
    }
    transfer.store = store;
    transfer.n_blocks = (int32_t)m->n_kv_blocks;
    status = mr_kv_take(&transfer, (int32_t)m->n_sent_blocks, PATIENCE_NS, err);
    if (status != MR_OK) {
        mr_kv_store_destroy(store);
        return status;
    }
    kept->store = store;
    kept->range = range;
    kept->epoch = m->kv_epoch;
    return MR_OK;
}
