/* coordinator/planning/plan_memory.c - whether a plan fits the memory of its ranks, and the rates that single hosts
 * would reach without a pipeline. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "coordinator/planning/plan_predict.h"
#include "coordinator/planning/plan_problem.h"
#include "engine/base/mem.h"

static double gib(uint64_t bytes) {
    return (double)bytes / (1 << 30);
}

mr_status mr_planner_check_memory(const mr_planner_config *config, const mr_plan *plan, mr_err *err) {
    plan_problem p;
    mr_status status = plan_problem_init(&p, config, err);
    for (int32_t i = 0; i < plan->n_stages && status == MR_OK; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        if (plan_stage_fits(&p, s->rank, s->first, s->last))
            continue;
        const char *hint = s->last - s->first > 1 ? "fewer layers there" : "leave this rank out";
        status =
            mr_err_set(err, MR_E_NO_MEMORY,
                       "rank %" PRId32 " on %s has %.2f GiB of memory for its stage, layers %" PRId32 " to %" PRId32
                       " with a KV cache of %" PRId64 " tokens take %.2f GiB; hint: %s, or a shorter --ctx",
                       s->rank, config->facts->ranks[s->rank].host, gib(p.limit[s->rank]), s->first, s->last - 1,
                       config->kv_tokens, gib(plan_stage_bytes(&p, s->first, s->last)), hint);
    }
    plan_problem_deinit(&p);
    return status;
}

int64_t mr_planner_kv_tokens(const mr_planner_config *config, const mr_plan *plan) {
    mr_planner_config empty = *config;
    plan_problem p;
    mr_err ignored;
    int64_t least = INT64_MAX;
    empty.kv_tokens = 0;
    if (plan_problem_init(&p, &empty, &ignored) != MR_OK)
        return 0;
    for (int32_t i = 0; i < plan->n_stages; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        uint64_t limit = p.limit[s->rank], used = plan_stage_bytes(&p, s->first, s->last);
        uint64_t token = p.token_bytes[s->last] - p.token_bytes[s->first];
        if (limit == UINT64_MAX || token == 0)
            continue;
        int64_t tokens = limit > used ? (int64_t)((limit - used) / token) : 0;
        least = tokens < least ? tokens : least;
    }
    plan_problem_deinit(&p);
    return least;
}

/* --- Hosts on their own ------------------------------------------------------------------------------------------ */

/* Joins the times of ranks that share the rows of each step: their speeds add up. */
static void join_times(mr_step_times *all, const mr_step_times *more) {
    for (int32_t i = 0; i < all->n; i++) {
        double other = mr_step_times_at(more, all->rows[i]);
        if (all->seconds[i] > 0 && other > 0)
            all->seconds[i] = 1 / (1 / all->seconds[i] + 1 / other);
    }
}

/* The facts of one process with all ranks of a host. false: an earlier rank is on the same host. */
static bool join_host(const mr_cluster_facts *f, int32_t rank, mr_rank_facts *out, int32_t *out_n) {
    *out = f->ranks[rank];
    *out_n = 1;
    for (int32_t r = 0; r < f->n_ranks; r++) {
        if (r == rank || strcmp(f->ranks[r].host, out->host) != 0)
            continue;
        if (r < rank)
            return false;
        for (int32_t k = 0; k < f->n_kinds; k++)
            join_times(&out->layer[k], &f->ranks[r].layer[k]);
        join_times(&out->output, &f->ranks[r].output);
        ++*out_n;
    }
    for (int32_t k = 0; k < f->n_kinds; k++)
        out->position_s[k] /= *out_n;
    return true;
}

typedef struct scratch {
    mr_plan whole; /* the model as one stage */
    mr_plan_prediction prediction;
} scratch;

/* The decode rate of a host with the whole model and n sequences. */
static double rate_of_host(const mr_planner_config *config, const mr_rank_facts *host, int32_t n, scratch *x) {
    mr_cluster_facts facts = *config->facts;
    facts.ranks = host;
    facts.n_ranks = 1;
    facts.links = NULL;
    x->whole.n_stages = 1;
    x->whole.stages[0] = (mr_plan_stage){.last = facts.n_layers};
    mr_plan_predict(&facts, &x->whole, config->depth, &x->prediction);
    return mr_plan_decode_rate(&x->prediction, n, NULL);
}

mr_status mr_planner_compare(const mr_planner_config *config, mr_planner_alternatives *out, mr_err *err) {
    const mr_cluster_facts *f = config->facts;
    const int32_t sequences = config->objective == MR_OBJECTIVE_LATENCY ? 1 : config->n_sequences;
    scratch *x = mr_alloc(sizeof *x);
    mr_rank_facts host;
    plan_problem p = {0};
    mr_status status =
        x ? plan_problem_init(&p, config, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory to compare plans");
    *out = (mr_planner_alternatives){.rank = -1};
    /* Two passes: the first counts the hosts that share the sequences. */
    for (int pass = 0; pass < 2 && status == MR_OK; pass++) {
        for (int32_t r = 0; r < f->n_ranks; r++) {
            int32_t n;
            if (!join_host(f, r, &host, &n) ||
                (p.limit[r] != UINT64_MAX && plan_stage_bytes(&p, 0, p.n_layers) > p.limit[r] * (uint64_t)n))
                continue;
            if (pass == 1) {
                int32_t share = (sequences + out->n_hosts - 1) / out->n_hosts;
                out->hosts_rate += rate_of_host(config, &host, share, x);
                continue;
            }
            out->n_hosts++;
            double rate = rate_of_host(config, &host, sequences, x);
            if (rate > out->rate) {
                out->rate = rate;
                out->rank = r;
            }
        }
    }
    plan_problem_deinit(&p);
    mr_free(x);
    return status;
}
