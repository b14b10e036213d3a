// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_recovered.h"

#include <inttypes.h>

#include "coordinator/console/output.h"
#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_recut.h"
#include "coordinator/session/session_starve.h"
#include "engine/base/clock.h"

void mr_session_get_recovered(mr_session *s, mr_session_recovered *out) {
    *out = (mr_session_recovered){0};
    if (!s->recovery.is_on)
        return;
    mr_mutex_lock(&s->recovery.lock);
    *out = s->recovery.recovered;
    mr_mutex_unlock(&s->recovery.lock);
    out->epoch = out->epoch > 0 ? out->epoch : 1;
}

void session_recovered_note(mr_session *s, int64_t start_ns) {
    mr_session_recovery *r = &s->recovery;
    int64_t end_ns = mr_clock_now_ns(), silence_ns = mr_session_cluster_take_silence_ns(&s->cluster);
    mr_mutex_lock(&r->lock);
    r->recovered = (mr_session_recovered){.epoch = s->epoch,
                                          .n = r->recovered.n + 1,
                                          .detection_s = (double)silence_ns / (double)MR_NS_PER_S,
                                          .planning_s = (double)(r->planned_ns - start_ns) / (double)MR_NS_PER_S,
                                          .loading_s = (double)(end_ns - r->planned_ns) / (double)MR_NS_PER_S};
    mr_mutex_unlock(&r->lock);
}

void session_recovered_note_again(mr_session *s) {
    mr_session_recovery *r = &s->recovery;
    if (!r->computes_again || !s->job || !mr_job_has_epoch(s->job))
        return;
    mr_job_stats stats = mr_job_get_stats(s->job);
    if (stats.n_again > 0)
        return;
    r->computes_again = false;
    mr_mutex_lock(&r->lock);
    r->recovered.again_s = stats.again_s;
    mr_mutex_unlock(&r->lock);
    if (s->on_spares)
        s->on_spares(s->on_recovery_ctx);
    if (stats.n_again_rows > 0)
        mr_output_note("epoch %" PRIu32 ": %" PRId64 " rows were computed again in %.2f s", s->epoch,
                       stats.n_again_rows, stats.again_s);
}

void session_recovered_note_lost(mr_session *s, int32_t n_lost) {
    if (n_lost != s->recovery.n_lost && s->on_spares)
        s->on_spares(s->on_recovery_ctx);
    s->recovery.n_lost = n_lost;
}

const char *mr_rank_state_name(mr_rank_state state) {
    static const char *const NAMES[] = {
        [MR_RANK_STAGE] = "stage",     [MR_RANK_SPARE] = "spare",   [MR_RANK_SUSPECT] = "suspect",
        [MR_RANK_DRAINED] = "drained", [MR_RANK_FAILED] = "failed", [MR_RANK_LOST] = "lost",
    };
    return NAMES[state];
}

mr_rank_state mr_session_rank_state(const mr_session *s, int32_t rank) {
    const mr_session_recovery *r = &s->recovery;
    if (mr_session_cluster_is_lost(&s->cluster, rank))
        return MR_RANK_LOST;
    bool has_stage = session_layers_stage(s, rank) && !mr_session_is_starved(s);
    if (r->is_on && r->is_drained[rank] && !has_stage)
        return MR_RANK_DRAINED;
    if (session_recut_suspects(s, rank))
        return MR_RANK_SUSPECT;
    if (has_stage)
        return MR_RANK_STAGE;
    return r->is_on && r->has_failed[rank] ? MR_RANK_FAILED : MR_RANK_SPARE;
}

void mr_session_count_ranks(const mr_session *s, int32_t out[MR_RANK_STATES]) {
    for (int i = 0; i < MR_RANK_STATES; i++)
        out[i] = 0;
    if (s->cluster.n_ranks == 0)
        out[MR_RANK_STAGE] = 1;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++)
        out[mr_session_rank_state(s, i)]++;
}
