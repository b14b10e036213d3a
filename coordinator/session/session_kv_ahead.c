/* coordinator/session/session_kv_ahead.c - marked -> copying -> over. A block counts as copied if the stages had
 * computed its rows before the order to send it went out, and if it has got no other content since. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_kv_ahead.h"

#include <inttypes.h>
#include <string.h>

#include "coordinator/console/output.h"
#include "coordinator/session/session_kv_cut.h"
#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_spares.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

/* Each copy has a link of its own: blocks of one that was given up may still come. No plan has such a number. */
static const uint32_t FIRST_LINK = (1u << 31) + 1;
static const int64_t LIMIT_NS = 600 * MR_NS_PER_S; /* then the plan changes without the copy */

typedef enum ahead_state { MARKED, COPYING, OVER } ahead_state;

struct session_kv_ahead {
    ahead_state state;
    bool has_copy; /* OVER: the rank has the blocks */
    int32_t first, last, from, to;
    uint32_t link;        /* epoch of the link that carries the copy */
    uint64_t marked_step; /* the rows of the marked blocks are computed when this step is done */
    int64_t limit_ns;
    int32_t n_kv_blocks, n_marked;
    uint8_t *bits;      /* [n_kv_blocks] of the marked blocks */
    uint32_t *versions; /* [n_kv_blocks] of all blocks, when they were marked */
};

void session_kv_ahead_end(mr_session *s) {
    struct session_kv_ahead *a = s->recovery.kv_ahead;
    if (!a)
        return;
    mr_free(a->bits);
    mr_free(a->versions);
    mr_free(a);
    s->recovery.kv_ahead = NULL;
}

/* An order to send no blocks ends the one before, if that is not over. An error is one of a rank that is being lost. */
static void stop_giver(mr_session *s, const struct session_kv_ahead *a) {
    const uint8_t none = 0;
    const mr_kv_order stop = {
        .kv_epoch = s->epoch, .epoch = a->link, .to = a->to, .blocks = &none, .n_bytes = 1, .ahead = true};
    mr_err ignored;
    if (a->state != MARKED && !mr_session_cluster_is_lost(&s->cluster, a->from))
        (void)!mr_roll_call_give_kv(s->cluster.roll, a->from, &stop, &ignored);
}

void session_kv_ahead_give_up(mr_session *s) {
    struct session_kv_ahead *a = s->recovery.kv_ahead;
    mr_err ignored;
    if (!a)
        return;
    stop_giver(s, a);
    if (a->state != MARKED && !session_layers_stage(s, a->to) && !mr_session_cluster_is_lost(&s->cluster, a->to))
        (void)!mr_roll_call_abort(s->cluster.roll, a->to, false, &ignored);
    session_kv_ahead_end(s);
}

static size_t bytes_of(int32_t n_blocks) {
    return ((size_t)n_blocks + 7) / 8;
}

/* Marks the blocks of a stage. false: there are none. */
static bool mark(mr_session *s, const mr_job *job, const mr_plan *former, int32_t stage) {
    const mr_plan_stage *old = &former->stages[stage];
    struct session_kv_ahead *a = mr_alloc(sizeof *a);
    if (!a)
        return false;
    *a = (struct session_kv_ahead){.first = old->first,
                                   .last = old->last,
                                   .from = old->rank,
                                   .to = s->plan.stages[stage].rank,
                                   .link = FIRST_LINK + s->recovery.n_kv_copies++,
                                   .marked_step = mr_job_issued_step(job),
                                   .limit_ns = mr_clock_now_ns() + LIMIT_NS,
                                   .n_kv_blocks = s->n_kv_blocks,
                                   .bits = mr_alloc_array(bytes_of(s->n_kv_blocks), 1),
                                   .versions = mr_alloc_array((size_t)s->n_kv_blocks, sizeof *a->versions)};
    s->recovery.kv_ahead = a;
    if (a->bits && a->versions)
        a->n_marked = mr_job_mark_whole_blocks(job, a->bits);
    if (a->n_marked == 0) {
        session_kv_ahead_end(s);
        return false;
    }
    memcpy(a->versions, mr_job_block_versions(job), (size_t)a->n_kv_blocks * sizeof *a->versions);
    return true;
}

/* The sizes and times of the session's plan. */
static mr_status use_plan(mr_session *s, mr_err *err) {
    mr_stage_sizes *former = s->sizes;
    s->sizes = NULL;
    mr_status status = mr_session_size_again(s, err);
    mr_free(status == MR_OK ? former : s->sizes);
    if (status != MR_OK)
        s->sizes = former;
    else if (s->facts.prediction)
        mr_plan_predict(s->facts.known, &s->plan, s->facts.planner.depth, s->facts.prediction);
    return status;
}

bool session_kv_ahead_begin(mr_session *s, const mr_job *job, const mr_plan *former, int32_t former_blocks) {
    const mr_plan next = s->plan;
    int32_t stage = session_kv_only_move(s, former, former_blocks);
    mr_err ignored;
    /* Without room beside the layers that the rank holds, blocks go when it has freed those of others: in the pause. */
    if (s->recovery.kv_ahead || stage < 0 || !mr_job_has_epoch(job) ||
        !session_spares_has_room(s, s->plan.stages[stage].rank, former->stages[stage].rank) ||
        !mark(s, job, former, stage))
        return false;
    s->plan = *former;
    if (use_plan(s, &ignored) == MR_OK)
        return true;
    s->plan = next;
    session_kv_ahead_end(s);
    return false;
}

/* Tells the two ranks. */
static void order(mr_session *s, struct session_kv_ahead *a) {
    mr_err ignored; /* a rank that is lost is found elsewhere */
    const mr_kv_demand demand = {.kv_epoch = s->epoch,
                                 .epoch = a->link,
                                 .from = a->from,
                                 .first = a->first,
                                 .last = a->last,
                                 .n_kv_blocks = a->n_kv_blocks,
                                 .kv_type = (int32_t)s->kv_type,
                                 .n_sent_blocks = a->n_marked};
    const mr_kv_order give = {.kv_epoch = s->epoch,
                              .epoch = a->link,
                              .to = a->to,
                              .blocks = a->bits,
                              .n_bytes = bytes_of(a->n_kv_blocks),
                              .ahead = true};
    mr_status status = mr_roll_call_take_kv(s->cluster.roll, a->to, &demand, &ignored);
    if (status == MR_OK)
        status = mr_roll_call_give_kv(s->cluster.roll, a->from, &give, &ignored);
    a->state = status == MR_OK ? COPYING : OVER;
    if (status == MR_OK)
        mr_output_note("rank %" PRId32 " sends the keys and values of %" PRId64 " tokens to rank %" PRId32
                       " while steps run",
                       a->from, (int64_t)a->n_marked * MR_WIRE_BLOCK_TOKENS, a->to);
}

/* Whether the spare has said that it has the blocks, or has not got them. */
static bool has_answered(mr_session *s, struct session_kv_ahead *a) {
    mr_err ignored;
    if (mr_session_cluster_is_lost(&s->cluster, a->to))
        return true;
    if (mr_roll_call_hear(s->cluster.roll, a->to, &ignored) != MR_OK)
        return true;
    const mr_rank_info *info = mr_session_cluster_rank(&s->cluster, a->to);
    a->has_copy = info->took_epoch == a->link && info->took_all;
    return info->took_epoch == a->link;
}

bool session_kv_ahead_is_due(mr_session *s, const mr_job *job) {
    struct session_kv_ahead *a = s->recovery.kv_ahead;
    if (!a || !mr_job_has_epoch(job) || a->state == OVER)
        return a && a->state == OVER && mr_job_has_epoch(job);
    if (a->state == MARKED && mr_job_done_step(job) >= a->marked_step)
        order(s, a);
    if (a->state == COPYING && has_answered(s, a))
        a->state = OVER;
    if (mr_clock_now_ns() >= a->limit_ns || mr_job_get_stats(job).n_live == 0)
        a->state = OVER;
    return a->state == OVER;
}

int32_t session_kv_ahead_from(const mr_session *s) {
    const struct session_kv_ahead *a = s->recovery.kv_ahead;
    return a && a->state != OVER ? a->from : -1;
}

bool session_kv_ahead_is_over(const mr_session *s) {
    return s->recovery.kv_ahead && s->recovery.kv_ahead->state == OVER;
}

bool session_kv_ahead_subtract(const mr_session *s, const mr_job *job, int32_t stage, uint8_t *bits, int32_t *n) {
    const struct session_kv_ahead *a = s->recovery.kv_ahead;
    const mr_plan_stage *new = &s->plan.stages[stage];
    if (!a || !a->has_copy || new->rank != a->to || new->first != a->first || new->last != a->last ||
        s->n_kv_blocks != a->n_kv_blocks)
        return false;
    const uint32_t *versions = mr_job_block_versions(job);
    for (int32_t i = 0; i < a->n_kv_blocks; i++) {
        uint8_t bit = (uint8_t)(1 << i % 8);
        if (!(bits[i / 8] & a->bits[i / 8] & bit) || versions[i] != a->versions[i])
            continue;
        bits[i / 8] &= (uint8_t)~bit;
        --*n;
    }
    return true;
}
