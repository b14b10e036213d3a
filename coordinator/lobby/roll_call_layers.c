/* coordinator/lobby/roll_call_layers.c - tells ranks without a stage which layers to hold, and hears what they hold. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/lobby/roll_call_internal.h"
#include "engine/base/mem.h"
#include "proto/messages.h"

mr_status mr_roll_call_prepare(mr_roll_call *r, int32_t rank, const mr_prepare_order *order, mr_err *err) {
    size_t n = (size_t)order->n_stages;
    Millrace__Prepare message = MILLRACE__PREPARE__INIT;
    Millrace__StageRange *ranges = mr_alloc_array(n, sizeof *ranges);
    Millrace__StageRange **list = mr_alloc_array(n, sizeof(Millrace__StageRange *));
    mr_status status = ranges && list ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu stages", n);
    for (size_t i = 0; i < n && status == MR_OK; i++) {
        const mr_plan_stage *s = &order->stages[i];
        list[i] = &ranges[i];
        millrace__stage_range__init(list[i]);
        list[i]->rank = (uint32_t)s->rank;
        list[i]->first_layer = (uint32_t)s->first;
        list[i]->last_layer = (uint32_t)s->last;
        list[i]->device_layers = (uint32_t)s->device_layers;
        list[i]->host_experts = (uint32_t)s->host_experts;
        list[i]->device_experts = (uint32_t)s->device_experts;
        list[i]->cold_partitions = (uint32_t)s->cold_partitions;
    }
    message.number = ++r->infos[rank].held.number;
    message.n_stages = n;
    message.stages = list;
    message.map_weights = order->map_weights;
    message.fast_numerics = order->fast_numerics;
    r->infos[rank].held.is_new = false;
    if (status == MR_OK)
        status = roll_call_send(r, rank, &message.base, err);
    r->infos[rank].held.is_due = status == MR_OK && n > 0;
    mr_free(ranges);
    mr_free(list);
    return status;
}

void roll_call_note_held(mr_roll_call *r, int32_t rank, const Millrace__Held *m) {
    mr_rank_held *held = &r->infos[rank].held;
    if (m->number != held->number)
        return;
    held->is_due = false;
    held->is_new = true;
    held->status = (mr_status)m->status;
    held->bytes = m->bytes;
    held->loaded_bytes = m->loaded_bytes;
}

bool mr_roll_call_take_held(mr_roll_call *r, int32_t rank, mr_rank_held *out) {
    mr_rank_held *held = &r->infos[rank].held;
    bool is_new = held->is_new;
    held->is_new = false;
    *out = *held;
    return is_new;
}
