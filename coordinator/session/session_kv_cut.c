// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_kv_cut.h"

#include "coordinator/session/session_layers.h"
#include "proto/limits.h"

/* Whether all layers of a stage have their keys and values in one place. */
static bool is_in_one_place(const mr_plan_stage *s) {
    return s->device_layers == 0 || s->device_layers == s->last - s->first;
}

bool session_kv_keeps_cut(const mr_session *s, const mr_plan *former, int32_t *from, bool *out_moves) {
    *out_moves = false;
    if (former->n_stages != s->plan.n_stages)
        return false;
    for (int32_t i = 0; i < former->n_stages; i++) {
        const mr_plan_stage *old = &former->stages[i], *new = &s->plan.stages[i];
        bool moves = old->rank != new->rank;
        from[i] = moves ? old->rank : -1;
        *out_moves = *out_moves || moves;
        if (old->first != new->first || old->last != new->last || !is_in_one_place(old) || !is_in_one_place(new) ||
            (moves && (session_layers_stage(s, old->rank) || mr_session_cluster_is_lost(&s->cluster, old->rank))))
            return false;
    }
    return true;
}

int32_t session_kv_only_move(const mr_session *s, const mr_plan *former, int32_t former_blocks) {
    int32_t from[MR_MAX_STAGES], n = 0, stage = -1;
    bool moves;
    if (former_blocks != s->n_kv_blocks || !session_kv_keeps_cut(s, former, from, &moves) ||
        ((size_t)s->n_kv_blocks + 7) / 8 > MR_MAX_GIVEN_KV_BYTES)
        return -1;
    for (int32_t i = 0; i < former->n_stages; i++) {
        n += from[i] >= 0;
        stage = from[i] >= 0 ? i : stage;
    }
    return n == 1 ? stage : -1;
}
