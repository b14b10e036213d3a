/* coordinator/session/session_kv.c - decides whether KV blocks go on, and which ranks send them. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_kv.h"

#include <string.h>

#include "coordinator/session/session_kv_ahead.h"
#include "coordinator/session/session_layers.h"
#include "engine/base/mem.h"
#include "proto/limits.h"

/* Whether each stage has the layers that it had, on the CPU, on the same rank or on one that gets its blocks from a
 * rank without a stage. Fills from. */
static bool keeps_cut(const mr_session *s, const mr_plan *former, int32_t *from, bool *out_moves) {
    *out_moves = false;
    if (former->n_stages != s->plan.n_stages)
        return false;
    for (int32_t i = 0; i < former->n_stages; i++) {
        const mr_plan_stage *old = &former->stages[i], *new = &s->plan.stages[i];
        bool moves = old->rank != new->rank;
        from[i] = moves ? old->rank : -1;
        *out_moves = *out_moves || moves;
        if (old->first != new->first || old->last != new->last || old->device_layers > 0 || new->device_layers > 0 ||
            (moves && (session_layers_stage(s, old->rank) || mr_session_cluster_is_lost(&s->cluster, old->rank))))
            return false;
    }
    return true;
}

int32_t session_kv_only_move(const mr_session *s, const mr_plan *former, int32_t former_blocks) {
    int32_t from[MR_MAX_STAGES], n = 0, stage = -1;
    bool moves;
    if (former_blocks != s->n_kv_blocks || !keeps_cut(s, former, from, &moves) ||
        ((size_t)s->n_kv_blocks + 7) / 8 > MR_MAX_GIVEN_KV_BYTES)
        return -1;
    for (int32_t i = 0; i < former->n_stages; i++) {
        n += from[i] >= 0;
        stage = from[i] >= 0 ? i : stage;
    }
    bool on_hosts = n == 1 && former->stages[stage].device_layers == 0 && s->plan.stages[stage].device_layers == 0;
    return on_hosts ? stage : -1;
}

mr_status session_kv_choose(mr_session *s, mr_job *job, const mr_plan *former, int32_t former_blocks, session_kv *out,
                            mr_err *err) {
    bool moves;
    s->recovery.n_ahead_blocks = 0;
    *out = (session_kv){.n_bytes = ((size_t)s->n_kv_blocks + 7) / 8};
    if (!mr_job_has_epoch(job) || former_blocks != s->n_kv_blocks || !keeps_cut(s, former, out->blocks.from, &moves) ||
        (moves && out->n_bytes > MR_MAX_GIVEN_KV_BYTES))
        return MR_OK;
    out->epoch = s->epoch;
    if (moves) {
        out->kept = mr_alloc_array(2 * out->n_bytes, 1);
        if (!out->kept)
            return MR_OK;
        out->sent = out->kept + out->n_bytes;
    }
    mr_status status = mr_job_settle(job, err);
    if (status != MR_OK) /* what has failed shows again in the next epoch, if it matters there */
        return status == MR_E_CANCELLED ? status : MR_OK;
    out->is_kept = true;
    out->blocks.kept = out->kept;
    if (!moves)
        return MR_OK;
    int32_t n_kept = out->blocks.n_sent = mr_job_mark_blocks(job, out->kept);
    memcpy(out->sent, out->kept, out->n_bytes);
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        if (out->blocks.from[i] >= 0) /* after a copy ahead, only one stage moves */
            out->blocks.has_ahead[i] = session_kv_ahead_subtract(s, job, i, out->sent, &out->blocks.n_sent);
    s->recovery.n_ahead_blocks = n_kept - out->blocks.n_sent;
    return MR_OK;
}

void session_kv_deinit(session_kv *kv) {
    mr_free(kv->kept);
    *kv = (session_kv){0};
}

bool session_kv_concerns(const mr_session *s, const session_kv *kv, int32_t rank) {
    bool sends = false;
    for (int32_t i = 0; i < s->plan.n_stages; i++)
        sends = sends || kv->blocks.from[i] == rank;
    return sends || session_layers_stage(s, rank);
}

mr_status session_kv_send(mr_session *s, const session_kv *kv, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t i = 0; i < s->plan.n_stages && status == MR_OK && kv->is_kept; i++) {
        const mr_kv_order order = {.kv_epoch = kv->epoch,
                                   .epoch = s->epoch,
                                   .to = s->plan.stages[i].rank,
                                   .blocks = kv->sent,
                                   .n_bytes = kv->n_bytes};
        if (kv->blocks.from[i] >= 0)
            status = mr_roll_call_give_kv(s->cluster.roll, kv->blocks.from[i], &order, err);
    }
    return status;
}
