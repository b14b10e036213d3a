/* coordinator/planning/plan_memory.c - whether a plan fits the memory of its ranks, and the rates that single hosts
 * would reach without a pipeline. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "coordinator/planning/plan_predict.h"
#include "coordinator/planning/plan_problem.h"
#include "engine/base/bytes_text.h"
#include "engine/base/mem.h"
#include "proto/limits.h"

static mr_status check_device(const plan_problem *p, const mr_plan_stage *s, mr_err *err) {
    const mr_rank_facts *rank = &p->config->facts->ranks[s->rank];
    const mr_measured_device *d = &rank->device;
    if (s->device_layers == 0)
        return MR_OK;
    if (!d->is_known)
        return mr_err_set(err, MR_E_INVALID,
                          "rank %" PRId32 " on %s has no device that was measured, but the plan puts %" PRId32
                          " layers on it; hint: without device_layers all layers are on the CPU",
                          s->rank, rank->host, s->device_layers);
    double bytes = mr_planner_device_bytes(p->config->facts, s, p->config->kv_tokens);
    if (bytes <= p->device[s->rank].limit)
        return MR_OK;
    const mr_bytes_pair text = mr_bytes_apart(d->memory_bytes, (uint64_t)bytes);
    return mr_err_set(err, MR_E_NO_MEMORY,
                      "'%s' of rank %" PRId32 " on %s has %s of memory, the first %" PRId32
                      " layers of its stage with a KV cache of %" PRId64 " tokens take %s there",
                      d->name, s->rank, rank->host, text.a, s->device_layers, p->config->kv_tokens, text.b);
}

static mr_status check_host(const plan_problem *p, const mr_plan_stage *s, mr_err *err) {
    if (plan_host_fits(p, s->rank, s->first, s->last, plan_placement_of(p, s)))
        return MR_OK;
    const char *hint = s->last - s->first > 1 ? "fewer layers there" : "leave this rank out";
    uint64_t needed = plan_stage_bytes(p, s->rank, s->first, s->last, plan_placement_of(p, s));
    const mr_bytes_pair text = mr_bytes_apart(p->limit[s->rank], needed);
    return mr_err_set(err, MR_E_NO_MEMORY,
                      "rank %" PRId32 " on %s has %s of memory for its stage, layers %" PRId32 " to %" PRId32
                      " with a KV cache of %" PRId64 " tokens take %s; hint: %s, or a shorter --ctx",
                      s->rank, p->config->facts->ranks[s->rank].host, text.a, s->first, s->last - 1,
                      p->config->kv_tokens, text.b, hint);
}

mr_status mr_planner_check_memory(const mr_planner_config *config, const mr_plan *plan, mr_err *err) {
    plan_problem p;
    mr_status status = plan_problem_init(&p, config, err);
    for (int32_t i = 0; i < plan->n_stages && status == MR_OK; i++) {
        status = check_device(&p, &plan->stages[i], err);
        if (status == MR_OK)
            status = check_host(&p, &plan->stages[i], err);
    }
    plan_problem_deinit(&p);
    return status;
}

/* The tokens that fit where `used` bytes of the limit are taken without any. */
static int64_t tokens_in(double limit, double used, double token) {
    double tokens = limit > used ? (limit - used) / token : 0;
    return tokens < (double)INT32_MAX * MR_WIRE_BLOCK_TOKENS ? (int64_t)tokens : INT64_MAX;
}

/* The tokens of the KV cache that a stage has room for; INT64_MAX: no memory is known. */
static int64_t stage_tokens(const plan_problem *p, const mr_plan_stage *s) {
    int32_t n = s->device_layers;
    int64_t least = INT64_MAX;
    double token = (double)(p->token_bytes[s->last] - p->token_bytes[s->first + n]);
    if (p->limit[s->rank] != UINT64_MAX && token > 0)
        least = tokens_in((double)p->limit[s->rank],
                          (double)plan_stage_bytes(p, s->rank, s->first, s->last, plan_placement_of(p, s)), token);
    if (n == 0 || !p->device[s->rank].is_known)
        return least;
    double used = mr_planner_device_bytes(p->config->facts, s, 0);
    token = mr_planner_device_bytes(p->config->facts, s, 1) - used;
    int64_t on_device = token > 0 ? tokens_in(p->device[s->rank].limit, used, token) : INT64_MAX;
    return on_device < least ? on_device : least;
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
        int64_t tokens = stage_tokens(&p, &plan->stages[i]);
        least = tokens < least ? tokens : least;
    }
    plan_problem_deinit(&p);
    return least;
}

mr_status mr_planner_use_devices(const mr_planner_config *config, mr_plan *plan, mr_err *err) {
    plan_problem p;
    mr_status status = plan_problem_init(&p, config, err);
    if (status != MR_OK)
        return status;
    plan_problem_set_rows(&p, config->objective == MR_OBJECTIVE_LATENCY ? 1 : config->n_sequences);
    for (int32_t i = 0; i < plan->n_stages; i++) {
        mr_plan_stage *s = &plan->stages[i];
        plan_place(&p, plan_stage(&p, s->rank, s->first, s->last).on_device, s);
    }
    plan_problem_deinit(&p);
    return MR_OK;
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
static double rate_of_host(const mr_planner_config *config, const mr_rank_facts *host, int32_t n,
                           plan_placement on_device, scratch *x) {
    mr_cluster_facts facts = *config->facts;
    facts.ranks = host;
    facts.n_ranks = 1;
    facts.links = NULL;
    x->whole.n_stages = 1;
    x->whole.stages[0] = (mr_plan_stage){.last = facts.n_layers,
                                         .device_layers = on_device.layers,
                                         .host_experts = on_device.host_experts,
                                         .device_experts = on_device.device_experts};
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
    if (status == MR_OK)
        plan_problem_set_rows(&p, sequences);
    /* Two passes: the first counts the hosts that share the sequences. */
    for (int pass = 0; pass < 2 && status == MR_OK; pass++) {
        for (int32_t r = 0; r < f->n_ranks; r++) {
            int32_t n;
            if (!join_host(f, r, &host, &n))
                continue;
            /* Of several ranks that would become one process, the devices are left out. */
            plan_placement on_device = {0};
            if (n == 1)
                on_device = plan_stage(&p, r, 0, p.n_layers).on_device;
            if (p.limit[r] != UINT64_MAX &&
                plan_stage_bytes(&p, r, 0, p.n_layers, on_device) > p.limit[r] * (uint64_t)n)
                continue;
            if (pass == 1) {
                int32_t share = (sequences + out->n_hosts - 1) / out->n_hosts;
                out->hosts_rate += rate_of_host(config, &host, share, on_device, x);
                continue;
            }
            out->n_hosts++;
            double rate = rate_of_host(config, &host, sequences, on_device, x);
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
