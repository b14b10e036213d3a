/* coordinator/session/session_facts_note.c - notes and warnings about a plan whose times are predicted: busy ranks,
 * ranks that are left out, the cost of a slow link, and faster alternatives. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>

#include "coordinator/console/output.h"
#include "coordinator/session/session.h"

static const double WORTH_SAYING = 1.1;      /* an alternative that is this many times as fast is noted */
static const double LINK_WORTH_SAYING = 0.1; /* a link that costs this share of the rate is noted */
static const double QUIET_SHARE = 0.85;      /* least mr_rank_facts.core_share of a rank without other programs */

static bool is_used(const mr_plan *plan, int32_t rank) {
    for (int32_t i = 0; i < plan->n_stages; i++)
        if (plan->stages[i].rank == rank)
            return true;
    return false;
}

static void note_left_out(const mr_session *s) {
    const mr_session_facts *f = &s->facts;
    const mr_model_memory *m = &f->planner.memory;
    int32_t n_slow = 0;
    for (int32_t r = 0; r < f->known->n_ranks; r++) {
        const mr_rank_facts *rank = &f->known->ranks[r];
        uint64_t least = m->layer_bytes[0] + m->stage_bytes + (uint64_t)f->planner.kv_tokens * m->token_bytes[0];
        if (is_used(&s->plan, r))
            continue;
        if (rank->memory_bytes == 0 || rank->memory_bytes >= least) {
            n_slow++;
            continue;
        }
        const mr_bytes_pair text = mr_bytes_apart(rank->memory_bytes, least);
        mr_output_warning("rank %" PRId32
                          " on %s is left out: it has %s of memory, one layer with its buffers and KV cache takes %s; "
                          "hint: a shorter --ctx",
                          r, rank->host, text.a, text.b);
    }
    if (n_slow > 0)
        mr_output_note("%" PRId32 " of %" PRId32 " ranks %s left out: with %s the job would be no faster", n_slow,
                       f->known->n_ranks, n_slow == 1 ? "is" : "are", n_slow == 1 ? "it" : "them");
}

static void warn_of_link(const mr_session *s, int32_t n) {
    const mr_session_facts *f = &s->facts;
    mr_plan_link link;
    if (!mr_plan_slowest_link(f->known, &s->plan, f->prediction, n, &link) || link.cost < LINK_WORTH_SAYING)
        return;
    mr_output_warning(
        "the link from rank %" PRId32 " on %s to rank %" PRId32 " on %s (%.3f ms, %.1f MB/s) costs %.0f %% of the "
        "tokens per second of %" PRId32 " sequences; hint: another network (--mca btl_tcp_if_include), or ranks "
        "on one side of it only",
        link.from, f->known->ranks[link.from].host, link.to, f->known->ranks[link.to].host, 1e3 * link.facts.latency_s,
        1e-6 * link.facts.bytes_per_second, 100 * link.cost, n);
}

/* Notes the ranks that other programs disturbed while they were measured. */
static void note_busy(const mr_cluster_facts *known, bool here) {
    for (int32_t r = 0; r < known->n_ranks; r++) {
        const mr_rank_facts *rank = &known->ranks[r];
        char who[96] = "this machine";
        if (rank->core_share <= 0 || rank->core_share >= QUIET_SHARE)
            continue;
        if (!here)
            snprintf(who, sizeof who, "rank %" PRId32 " on %s", r, rank->host);
        mr_output_note(
            "%s was busy with other programs when it was measured (its step thread had a core for %.0f %% of "
            "the time): the predicted times may be far off",
            who, 1e2 * rank->core_share);
        if (here)
            return;
    }
}

static mr_status note_alternatives(const mr_session *s, int32_t n, mr_err *err) {
    const mr_session_facts *f = &s->facts;
    mr_planner_alternatives a;
    mr_status status = mr_planner_compare(&f->planner, &a, err);
    if (status != MR_OK || s->plan.n_stages == 1)
        return status;
    double rate = mr_plan_decode_rate(f->prediction, n, NULL);
    if (a.rate > WORTH_SAYING * rate)
        mr_output_note("one process on %s alone would be faster: %s tokens/s of %" PRId32
                       " sequences, this plan has %s",
                       f->known->ranks[a.rank].host, mr_output_rounded(a.rate, (char[OUTPUT_ROUNDED_TEXT]){0}), n,
                       mr_output_rounded(rate, (char[OUTPUT_ROUNDED_TEXT]){0}));
    else if (a.n_hosts > 1 && a.hosts_rate > WORTH_SAYING * rate)
        mr_output_note("a process with the whole model on each of %" PRId32
                       " hosts would be faster: %s tokens/s of %" PRId32 " sequences together, this plan has %s",
                       a.n_hosts, mr_output_rounded(a.hosts_rate, (char[OUTPUT_ROUNDED_TEXT]){0}), n,
                       mr_output_rounded(rate, (char[OUTPUT_ROUNDED_TEXT]){0}));
    return MR_OK;
}

mr_status session_facts_note(const mr_session *s, mr_err *err) {
    const mr_session_facts *f = &s->facts;
    int32_t n = f->planner.objective == MR_OBJECTIVE_LATENCY ? 1 : f->planner.n_sequences;
    note_busy(f->known, mr_session_facts_is_here(s));
    if (mr_session_facts_is_here(s))
        return MR_OK; /* stages of one process: there are no ranks to leave out, and no links */
    if (f->is_solved)
        note_left_out(s);
    warn_of_link(s, n);
    return note_alternatives(s, n, err);
}
