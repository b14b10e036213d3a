/* coordinator/session/session_kv.c - decides whether KV blocks go on, and which ranks send them. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_kv.h"

#include <string.h>

#include "coordinator/session/session_kv_ahead.h"
#include "coordinator/session/session_kv_cut.h"
#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_recut.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "proto/limits.h"

/* For steps of a slow rank. To compute all rows again takes longer than the steps that are under way. */
static const int64_t SETTLE_NS = 5 * MR_NS_PER_S;

mr_status session_kv_choose(mr_session *s, mr_job *job, const mr_plan *former, int32_t former_blocks, session_kv *out,
                            mr_err *err) {
    bool moves;
    s->recovery.n_ahead_blocks = 0;
    *out = (session_kv){.n_bytes = ((size_t)s->n_kv_blocks + 7) / 8};
    if (!mr_job_has_epoch(job) || former_blocks != s->n_kv_blocks ||
        !session_kv_keeps_cut(s, former, out->blocks.from, &moves) || (moves && out->n_bytes > MR_MAX_GIVEN_KV_BYTES))
        return MR_OK;
    out->epoch = s->epoch;
    if (moves) {
        out->kept = mr_alloc_array(2 * out->n_bytes, 1);
        if (!out->kept)
            return MR_OK;
        out->sent = out->kept + out->n_bytes;
    }
    session_recut_pause(s, true);
    mr_status status = mr_job_settle(job, mr_clock_now_ns() + SETTLE_NS, err);
    session_recut_pause(s, false);
    if (status != MR_OK) /* what has failed shows again in the next epoch, if it matters there */
        return status == MR_E_CANCELLED || status == MR_E_NO_MEMORY ? status : MR_OK;
    out->is_kept = true;
    out->blocks.kept = out->kept;
    if (!moves)
        return MR_OK;
    int32_t n_kept = out->blocks.n_sent = mr_job_mark_blocks(job, out->kept);
    memcpy(out->sent, out->kept, out->n_bytes);
    /* Where several stages move, because of another drain meanwhile, each of them gets all blocks. */
    int32_t stage = session_kv_only_move(s, former, former_blocks);
    if (stage >= 0)
        out->blocks.has_ahead[stage] = session_kv_ahead_subtract(s, job, stage, out->sent, &out->blocks.n_sent);
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

void session_kv_send(mr_session *s, const session_kv *kv) {
    mr_err ignored; /* without the blocks, the stage says so, and all rows are computed again */
    for (int32_t i = 0; i < s->plan.n_stages && kv->is_kept; i++) {
        const mr_kv_order order = {.kv_epoch = kv->epoch,
                                   .epoch = s->epoch,
                                   .to = s->plan.stages[i].rank,
                                   .blocks = kv->sent,
                                   .n_bytes = kv->n_bytes};
        if (kv->blocks.from[i] >= 0)
            (void)!mr_roll_call_give_kv(s->cluster.roll, kv->blocks.from[i], &order, &ignored);
    }
}
