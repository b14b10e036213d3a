// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_recover.h"

#include <inttypes.h>
#include <string.h>

#include "coordinator/console/output.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

/* LOSS_NS: how long the lifeline may be later than the channel with the news of a loss. */
enum { MOST_MALFORMED = 8 }; /* messages in the life of a session after which its stages begin again */
static const int64_t LOSS_NS = 2 * MR_NS_PER_S, LOOK_NS = 10 * MR_NS_PER_MS;

/* --- Who takes part ---------------------------------------------------------------------------------------------- */

static bool takes_part(const mr_session *s, int32_t rank) {
    return !mr_session_cluster_is_lost(&s->cluster, rank) && !s->has_failed[rank];
}

/* Writes the ranks that may get a stage to out[n_ranks], in order. Returns how many there are. */
static int32_t find_ranks(const mr_session *s, int32_t *out) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++)
        if (takes_part(s, i))
            out[n++] = i;
    return n;
}

/* Whether a stage of the plan is on a lost rank. The end of a connection may be known before the rank counts as lost,
 * so this waits a while. */
static bool has_lost_stage(const mr_session *s, mr_job *job) {
    int64_t deadline_ns = mr_clock_now_ns() + LOSS_NS;
    mr_err ignored;
    for (;;) {
        for (int32_t i = 0; i < s->plan.n_stages; i++)
            if (mr_session_cluster_is_lost(&s->cluster, s->plan.stages[i].rank))
                return true;
        if (mr_clock_now_ns() >= deadline_ns || mr_session_cluster_ended() ||
            mr_channel_wait(mr_job_channel(job), mr_clock_now_ns() + LOOK_NS, &ignored) != MR_OK)
            return false;
    }
}

/* Whether another epoch may succeed after this error. */
static bool may_go_on(mr_session *s, mr_job *job, mr_status status, const mr_err *err) {
    int32_t failed = mr_job_failed_rank(job);
    if (status == MR_E_PEER_LOST)
        return has_lost_stage(s, job);
    if (status == MR_E_PROTOCOL && s->n_malformed++ < MOST_MALFORMED) {
        mr_output_warning("%s; the stages begin again", err->text);
        return true;
    }
    if (failed < 0 || s->has_failed[failed])
        return false;
    mr_output_warning("%s; the other ranks take over its layers", err->text);
    s->has_failed[failed] = true;
    return true;
}

/* --- A new plan -------------------------------------------------------------------------------------------------- */

/* The facts of some ranks, numbered anew. */
typedef struct part_of_facts {
    mr_cluster_facts facts;
    mr_rank_facts *ranks;
    mr_link_facts *links;
} part_of_facts;

static mr_status take_part(const mr_cluster_facts *all, const int32_t *living, int32_t n, part_of_facts *out,
                           mr_err *err) {
    *out = (part_of_facts){.facts = *all};
    out->ranks = mr_alloc_array((size_t)n, sizeof *out->ranks);
    out->links = mr_alloc_array((size_t)n * (size_t)n, sizeof *out->links);
    if (!out->ranks || !out->links)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a plan of %" PRId32 " ranks", n);
    for (int32_t i = 0; i < n; i++) {
        out->ranks[i] = all->ranks[living[i]];
        for (int32_t k = 0; k < n; k++)
            out->links[i * n + k] = all->links[(size_t)living[i] * (size_t)all->n_ranks + (size_t)living[k]];
    }
    out->facts.n_ranks = n;
    out->facts.ranks = out->ranks;
    out->facts.links = out->links;
    return MR_OK;
}

/* The fastest plan of these ranks by what was measured, and the KV blocks that fit it. */
static mr_status solve(mr_session *s, const int32_t *living, int32_t n, mr_plan *out, int32_t *n_kv_blocks,
                       mr_err *err) {
    part_of_facts part;
    mr_planner_config config = s->facts.planner;
    mr_status status = take_part(s->facts.known, living, n, &part, err);
    config.facts = &part.facts;
    if (status == MR_OK)
        status = mr_planner_solve(&config, out, err);
    if (status == MR_OK) {
        int64_t blocks = mr_planner_kv_tokens(&config, out) / MR_WIRE_BLOCK_TOKENS;
        *n_kv_blocks = blocks < s->n_kv_blocks ? (int32_t)blocks : s->n_kv_blocks;
    }
    mr_free(part.ranks);
    mr_free(part.links);
    return status;
}

static mr_status plan_again(mr_session *s, const int32_t *living, int32_t n, int32_t *n_kv_blocks, mr_err *err) {
    mr_plan plan;
    int32_t n_stages = n < s->n_first_stages ? n : s->n_first_stages; /* others are spares */
    *n_kv_blocks = s->n_kv_blocks;
    mr_status status = s->facts.is_solved ? solve(s, living, n, &plan, n_kv_blocks, err)
                                          : mr_plan_balance(s->gguf, &s->info, n_stages, &plan, err);
    if (status != MR_OK)
        return status;
    for (int32_t i = 0; i < plan.n_stages; i++)
        plan.stages[i].rank = living[s->facts.is_solved ? plan.stages[i].rank : i];
    if (s->facts.known && !s->facts.is_solved)
        status = mr_planner_use_devices(&s->facts.planner, &plan, err);
    if (status != MR_OK)
        return status;
    mr_plan_weigh(s->gguf, &s->info, &plan);
    s->plan = plan;
    if (s->facts.prediction)
        mr_plan_predict(s->facts.known, &s->plan, s->facts.planner.depth, s->facts.prediction);
    return mr_session_size_again(s, err);
}

/* --- Recovery ---------------------------------------------------------------------------------------------------- */

/* Ends the stages that live, and begins another epoch with a plan over the ranks living[n]. MR_E_PEER_LOST: another
 * rank is lost. */
static mr_status begin_again(mr_session *s, mr_job *job, const int32_t *living, int32_t n, mr_err *err) {
    int32_t n_kv_blocks;
    mr_err ignored;
    for (int32_t i = 0; i < s->cluster.n_ranks; i++) /* a rank that is lost now is found when it is to start */
        if (!mr_session_cluster_is_lost(&s->cluster, i))
            (void)!mr_roll_call_abort(s->cluster.roll, i, &ignored);
    mr_status status = plan_again(s, living, n, &n_kv_blocks, err);
    if (status == MR_OK && s->clock_offset_ns)
        status = mr_session_cluster_compare_clocks(&s->cluster, &s->plan, s->clock_offset_ns, err);
    if (status == MR_OK)
        status = mr_session_cluster_start(&s->cluster, s->model_path, &s->plan, s->threads, ++s->epoch, err);
    const mr_epoch_config epoch = {.plan = &s->plan,
                                   .number = s->epoch,
                                   .n_kv_blocks = n_kv_blocks,
                                   .times = s->facts.prediction ? &s->facts.prediction->times : NULL};
    return status == MR_OK ? mr_job_restart(job, &epoch, err) : status;
}

static void say_plan(const mr_session *s, double seconds, int32_t n_sequences) {
    mr_text_buf table = {0};
    mr_err ignored;
    if (mr_session_print_plan(s, &table, &ignored) == MR_OK)
        mr_output_note_lines(table.data);
    mr_text_buf_deinit(&table);
    mr_output_note("epoch %" PRIu32 ": a new plan runs after %.2f s, and %" PRId32 " %s on", s->epoch, seconds,
                   n_sequences, n_sequences == 1 ? "sequence goes" : "sequences go");
}

mr_status session_recover(void *ctx, mr_job *job, mr_status status, mr_err *err) {
    mr_session *s = ctx;
    int64_t start_ns = mr_clock_now_ns();
    int32_t n = 1, *ranks = mr_alloc_array((size_t)s->cluster.n_ranks, sizeof *ranks);
    if (!ranks)
        return status;
    if (s->on_recovery)
        s->on_recovery(s->on_recovery_ctx, true);
    while (status != MR_OK && n > 0 && may_go_on(s, job, status, err)) {
        n = find_ranks(s, ranks);
        status = n > 0 ? begin_again(s, job, ranks, n, err) : status;
    }
    mr_free(ranks);
    if (status != MR_OK)
        return mr_err_prefix(err, "the ranks that are left cannot go on");
    if (s->on_recovery)
        s->on_recovery(s->on_recovery_ctx, false);
    mr_job_stats stats = mr_job_get_stats(job);
    say_plan(s, (double)(mr_clock_now_ns() - start_ns) / (double)MR_NS_PER_S, stats.n_waiting);
    return MR_OK;
}
