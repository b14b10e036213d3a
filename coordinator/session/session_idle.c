// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_idle.h"

#include <inttypes.h>

#include "coordinator/console/output.h"
#include "coordinator/session/session_layers.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

enum { ROWS = 16, SHARE = 10 }; /* SHARE: measurements take one part of this of the time of a rank */
/* REST_NS: between two of the same rank at least. PATIENCE_NS: for the answer; a slow disk may delay the layers. */
static const int64_t REST_NS = 10 * MR_NS_PER_S, PATIENCE_NS = 300 * MR_NS_PER_S;
static const double WORTH_SAYING = 2; /* a pace that changes by this factor is noted */

mr_status session_idle_init(session_idle *idle, int32_t n_ranks, mr_err *err) {
    *idle = (session_idle){.next_ns = mr_alloc_array((size_t)n_ranks, sizeof *idle->next_ns), .rank = -1};
    return idle->next_ns ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d idle ranks", (int)n_ranks);
}

void session_idle_deinit(session_idle *idle) {
    mr_free(idle->next_ns);
}

/* A load that a measurement would end goes on. */
static bool may_measure(const mr_session *s, int32_t rank) {
    return !session_layers_stage(s, rank) && !s->facts.known->ranks[rank].device.is_known &&
           !mr_session_cluster_rank(&s->cluster, rank)->held.is_due;
}

void session_idle_ask(session_idle *idle, mr_session *s, const int32_t *ranks, int32_t n) {
    const mr_again_wish wish = {(int32_t)s->kv_type, ROWS, s->devices.is_fast};
    int64_t now_ns = mr_clock_now_ns();
    int32_t next = -1;
    mr_err ignored; /* a rank that is lost is found elsewhere */
    /* While KV blocks are copied, the rank receives them. */
    if (idle->rank >= 0 || s->recovery.kv_ahead || mr_job_get_stats(s->job).n_live == 0)
        return;
    for (int32_t i = 0; i < n; i++)
        if (may_measure(s, ranks[i]) && (next < 0 || idle->next_ns[ranks[i]] < idle->next_ns[next]))
            next = ranks[i];
    if (next < 0 || now_ns < idle->next_ns[next])
        return;
    idle->rank = next;
    idle->asked_ns = now_ns;
    (void)!mr_roll_call_measure_again(s->cluster.roll, next, &wish, &ignored);
}

static void learn(const mr_session *s, mr_rank_paces *paces, int32_t rank, const mr_step_times *layer) {
    const mr_cluster_facts *known = s->facts.known;
    int64_t now_ns = mr_clock_now_ns();
    double times = mr_step_times_ratio(layer, &known->ranks[rank].layer[known->kind[known->n_layers / 2]]);
    double before = mr_rank_paces_get(paces, rank, now_ns);
    mr_rank_paces_measured(paces, rank, times, now_ns);
    double after = mr_rank_paces_get(paces, rank, now_ns);
    if (after > WORTH_SAYING * before || before > WORTH_SAYING * after)
        mr_output_note("rank %" PRId32 " on %s was measured again: it takes %.2f times as long as in its facts", rank,
                       known->ranks[rank].host, times);
}

/* An answer is awaited until another message ends the measurement, the rank is lost, or it takes too long. */
void session_idle_hear(session_idle *idle, mr_session *s, mr_rank_paces *paces) {
    int32_t rank = idle->rank;
    mr_rank_again answer;
    if (rank < 0)
        return;
    int64_t now_ns = mr_clock_now_ns(), took_ns = now_ns - idle->asked_ns;
    bool has_answered = mr_roll_call_take_again(s->cluster.roll, rank, &answer);
    if (answer.is_due && took_ns < PATIENCE_NS && !mr_session_cluster_is_lost(&s->cluster, rank))
        return;
    idle->rank = -1;
    idle->next_ns[rank] = now_ns + (SHARE * took_ns > REST_NS ? SHARE * took_ns : REST_NS);
    if (has_answered && answer.status == MR_OK && !session_layers_stage(s, rank))
        learn(s, paces, rank, &answer.layer);
}
