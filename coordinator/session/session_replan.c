/* coordinator/session/session_replan.c - a plan while a job runs. With measured facts the planner chooses; without,
 * layers are balanced by their bytes. Then the plan is changed where that loads less. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_replan.h"

#include <inttypes.h>

#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_recut.h"
#include "coordinator/session/session_spares.h"
#include "engine/base/mem.h"

enum { CONTEXT_PART = 4 };

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
    out->facts.n_ways = 0; /* the ways are chosen by all facts */
    return MR_OK;
}

/* Takes as many KV blocks as fit the plan, where the memory is known. */
static void fit_blocks(mr_session *s, const mr_planner_config *config, const mr_plan *plan) {
    int64_t blocks = s->map_weights ? INT64_MAX : mr_planner_kv_tokens(config, plan) / MR_WIRE_BLOCK_TOKENS;
    int64_t least = mr_session_whole_blocks(config->kv_tokens) / MR_WIRE_BLOCK_TOKENS;
    blocks = blocks > least ? blocks : least;
    s->n_kv_blocks = blocks < s->n_kv_blocks ? (int32_t)blocks : s->n_kv_blocks;
}

mr_status session_replan_solve(mr_session *s, const int32_t *living, int32_t n, int64_t kv_tokens, mr_plan *out,
                               mr_err *err) {
    part_of_facts part;
    mr_planner_config config = s->facts.planner;
    config.kv_tokens = kv_tokens;
    mr_status status = take_part(config.facts, living, n, &part, err);
    config.facts = &part.facts;
    if (status == MR_OK) /* matrices that are repacked cannot stay in the file now */
        status =
            s->map_weights ? mr_session_facts_solve_with(s, &config, out, err) : mr_planner_solve(&config, out, err);
    for (int32_t i = 0; status == MR_OK && i < out->n_stages; i++)
        out->stages[i].rank = living[out->stages[i].rank];
    mr_free(part.ranks);
    mr_free(part.links);
    return status;
}

/* The ranks that may get a stage, and what they are planned for. job is not needed to propose a plan. */
typedef struct wanted {
    const mr_job *job;
    const int32_t *living;
    int32_t n, most_stages;
} wanted;

static mr_status propose(mr_session *s, const wanted *w, int64_t kv_tokens, mr_plan *out, mr_err *err) {
    mr_plan plan = {0};
    int32_t some[MR_MAX_STAGES], n_some = session_spares_leave_out(s, w->living, w->n, w->most_stages, some);
    mr_planner_config config = s->facts.planner;
    config.kv_tokens = kv_tokens;
    mr_status status = s->facts.is_solved ? session_replan_solve(s, some, n_some, kv_tokens, &plan, err)
                                          : mr_plan_balance(s->gguf, &s->info, n_some, &plan, err);
    if (status == MR_E_NO_MEMORY && s->facts.is_solved && n_some < w->n) /* better no spare than no plan */
        status = session_replan_solve(s, w->living, w->n, kv_tokens, &plan, err);
    if (status != MR_OK)
        return status;
    for (int32_t i = 0; i < plan.n_stages && !s->facts.is_solved; i++)
        plan.stages[i].rank = some[i];
    status = session_layers_keep(s, w->living, w->n, kv_tokens, &plan, err);
    if (status == MR_OK && s->facts.known && !s->facts.is_solved)
        status = mr_planner_use_devices(&config, &plan, err);
    if (status == MR_OK)
        *out = plan;
    return status;
}

mr_status session_replan_propose(mr_session *s, const int32_t *living, int32_t n, int64_t kv_tokens, mr_plan *out,
                                 mr_err *err) {
    const wanted w = {.living = living, .n = n, .most_stages = s->recovery.n_first_stages};
    return propose(s, &w, kv_tokens, out, err);
}

/* Plans with room for kv_tokens tokens at least. */
static mr_status choose_plan(mr_session *s, const wanted *w, int64_t kv_tokens, mr_err *err) {
    mr_plan plan;
    session_recut_learn(s);
    mr_status status = propose(s, w, kv_tokens, &plan, err);
    if (status != MR_OK)
        return status;
    mr_planner_config config = s->facts.planner;
    config.kv_tokens = kv_tokens;
    if (s->facts.known)
        fit_blocks(s, &config, &plan);
    mr_plan_weigh(s->gguf, &s->info, &plan);
    s->plan = plan;
    return mr_session_choose_ways(s, err);
}

/* Plans with room for kv_tokens tokens, and with most_blocks KV blocks at most. */
static mr_status plan_with(mr_session *s, const wanted *w, int64_t kv_tokens, int32_t most_blocks, mr_err *err) {
    s->n_kv_blocks = most_blocks;
    s->recovery.missing_bytes = 0;
    mr_status status = choose_plan(s, w, kv_tokens, err);
    if (status == MR_OK)
        status = mr_job_check_restart(w->job, s->n_kv_blocks, err);
    if (status == MR_OK)
        status = mr_session_size_again(s, err);
    if (status == MR_OK && !s->map_weights)
        status = mr_session_check_memory(s, &s->recovery.missing_bytes, err);
    return status;
}

int32_t session_replan_blocks_for(int64_t tokens) {
    return (int32_t)(mr_session_whole_blocks(tokens) / MR_WIRE_BLOCK_TOKENS);
}

/* Where the ranks have little memory, the KV cache has room for one full sequence, or for the longest that was accepted
 * and CONTEXT_PART of a full one. Each attempt begins with the former plan. */
static mr_status plan_with_less(mr_session *s, const wanted *w, const mr_plan *former, mr_err *err) {
    int64_t full = s->ctx, least = mr_job_longest(w->job);
    int32_t most = s->recovery.n_first_kv_blocks;
    least = least > full / CONTEXT_PART ? least : full / CONTEXT_PART;
    s->plan = *former;
    mr_status status = plan_with(s, w, full, most, err);
    s->plan = status == MR_OK ? s->plan : *former;
    if (status == MR_E_NO_MEMORY && session_replan_blocks_for(full) < most)
        status = plan_with(s, w, full, session_replan_blocks_for(full), err);
    s->plan = status == MR_OK ? s->plan : *former;
    if (status == MR_E_NO_MEMORY && session_replan_blocks_for(least) < most && least < full)
        status = plan_with(s, w, least, session_replan_blocks_for(least), err);
    return status;
}

mr_status session_replan(mr_session *s, const mr_job *job, const int32_t *living, int32_t n, int32_t least_blocks,
                         mr_err *err) {
    const mr_plan former = s->plan;
    mr_stage_sizes *former_sizes = s->sizes;
    int32_t former_blocks = s->n_kv_blocks, n_all = n < s->info.n_layers ? n : s->info.n_layers;
    wanted w = {.job = job, .living = living, .n = n, .most_stages = s->recovery.n_first_stages};
    s->sizes = NULL;
    mr_status status = plan_with_less(s, &w, &former, err);
    if (status == MR_E_NO_MEMORY && !s->facts.is_solved && n_all > w.most_stages) {
        w.most_stages = n_all; /* no rank was measured: more stages need less memory each */
        status = plan_with_less(s, &w, &former, err);
    }
    if (status == MR_OK && s->n_kv_blocks < least_blocks)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no other plan has memory for as large a KV cache");
    mr_free(status == MR_OK ? former_sizes : s->sizes);
    if (status != MR_OK) {
        s->plan = former;
        s->sizes = former_sizes;
        s->n_kv_blocks = former_blocks;
        return status;
    }
    if (s->facts.prediction)
        mr_plan_predict(s->facts.known, &s->plan, s->facts.planner.depth, s->facts.prediction);
    return MR_OK;
}
