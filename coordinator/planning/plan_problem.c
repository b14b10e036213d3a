// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/plan_problem.h"

#include <inttypes.h>
#include <math.h>

#include "engine/base/mem.h"

static uint64_t limit_of(const mr_planner_config *config, int32_t rank) {
    uint64_t have = config->facts->ranks[rank].memory_bytes, limit = have > 0 ? have : UINT64_MAX;
    return config->rank_bytes > 0 && config->rank_bytes < limit ? config->rank_bytes : limit;
}

mr_status plan_problem_init(plan_problem *p, const mr_planner_config *config, mr_err *err) {
    const mr_cluster_facts *f = config->facts;
    size_t n_ranks = (size_t)f->n_ranks, n_layers = (size_t)f->n_layers;
    *p = (plan_problem){.config = config, .n_ranks = f->n_ranks, .n_layers = f->n_layers};
    if (f->n_ranks < 1 || f->n_layers < 1)
        return mr_err_set(err, MR_E_INVALID, "no plan for %" PRId32 " layers on %" PRId32 " ranks", f->n_layers,
                          f->n_ranks);
    p->limit = mr_alloc_array(n_ranks, sizeof *p->limit);
    p->weight_bytes = mr_alloc_array(n_layers + 1, sizeof *p->weight_bytes);
    p->token_bytes = mr_alloc_array(n_layers + 1, sizeof *p->token_bytes);
    p->layer_s = mr_alloc_array(n_ranks * (n_layers + 1), sizeof *p->layer_s);
    p->output_s = mr_alloc_array(n_ranks, sizeof *p->output_s);
    p->rest_s = mr_alloc_array(n_layers + 1, sizeof *p->rest_s);
    if (!p->limit || !p->weight_bytes || !p->token_bytes || !p->layer_s || !p->output_s || !p->rest_s) {
        plan_problem_deinit(p);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan %zu ranks", n_ranks);
    }
    for (int32_t r = 0; r < f->n_ranks; r++)
        p->limit[r] = limit_of(config, r);
    for (size_t l = 0; l < n_layers; l++) {
        p->weight_bytes[l + 1] = p->weight_bytes[l] + config->memory.layer_bytes[f->kind[l]];
        p->token_bytes[l + 1] = p->token_bytes[l] + config->memory.token_bytes[f->kind[l]];
    }
    return MR_OK;
}

void plan_problem_deinit(plan_problem *p) {
    mr_free(p->limit);
    mr_free(p->weight_bytes);
    mr_free(p->token_bytes);
    mr_free(p->layer_s);
    mr_free(p->output_s);
    mr_free(p->rest_s);
    *p = (plan_problem){0};
}

static double mean_latency(const mr_cluster_facts *f) {
    double sum = 0;
    for (int32_t a = 0; a < f->n_ranks; a++)
        for (int32_t b = 0; b < f->n_ranks; b++)
            sum += a != b && f->links ? f->links[(size_t)a * (size_t)f->n_ranks + (size_t)b].latency_s : 0;
    return f->n_ranks > 1 ? sum / ((double)f->n_ranks * (f->n_ranks - 1)) : 0;
}

void plan_problem_set_rows(plan_problem *p, double rows) {
    const mr_cluster_facts *f = p->config->facts;
    p->rows = rows;
    p->return_s = mean_latency(f);
    double least[MR_MAX_LAYER_KINDS], least_output = INFINITY;
    for (int32_t k = 0; k < f->n_kinds; k++)
        least[k] = INFINITY;
    for (int32_t r = 0; r < p->n_ranks; r++) {
        const mr_rank_facts *rank = &f->ranks[r];
        double *before = p->layer_s + (size_t)r * ((size_t)p->n_layers + 1), of_kind[MR_MAX_LAYER_KINDS];
        for (int32_t k = 0; k < f->n_kinds; k++)
            of_kind[k] = mr_cluster_facts_layer_seconds(f, rank, k, rows, p->config->depth);
        for (int32_t k = 0; k < f->n_kinds; k++)
            least[k] = of_kind[k] < least[k] ? of_kind[k] : least[k];
        before[0] = 0;
        for (int32_t l = 0; l < p->n_layers; l++)
            before[l + 1] = before[l] + of_kind[f->kind[l]];
        p->output_s[r] = mr_step_times_at(&rank->output, rows);
        least_output = p->output_s[r] < least_output ? p->output_s[r] : least_output;
    }
    p->rest_s[p->n_layers] = 0;
    for (int32_t l = p->n_layers - 1; l >= 0; l--)
        p->rest_s[l] = p->rest_s[l + 1] + least[f->kind[l]] + (l == p->n_layers - 1 ? least_output : 0);
}

int32_t plan_most_layers(const plan_problem *p, int32_t rank, double slowest_s) {
    int32_t most = 0;
    for (int32_t first = 0, last = 1; last <= p->n_layers; last++) {
        while (first < last &&
               (plan_stage_seconds(p, rank, first, last) > slowest_s || !plan_stage_fits(p, rank, first, last)))
            first++;
        most = last - first > most ? last - first : most;
    }
    return most;
}

uint64_t plan_stage_bytes(const plan_problem *p, int32_t first, int32_t last) {
    const mr_model_memory *m = &p->config->memory;
    uint64_t token = p->token_bytes[last] - p->token_bytes[first];
    return p->weight_bytes[last] - p->weight_bytes[first] + (uint64_t)p->config->kv_tokens * token + m->stage_bytes +
           (first == 0 ? m->head_bytes : 0) + (last == p->n_layers ? m->tail_bytes : 0);
}

static const mr_link_facts *link_of(const plan_problem *p, int32_t from, int32_t to) {
    static const mr_link_facts FREE = {0};
    const mr_cluster_facts *f = p->config->facts;
    return f->links && from != to ? &f->links[(size_t)from * (size_t)f->n_ranks + (size_t)to] : &FREE;
}

double plan_link_seconds(const plan_problem *p, int32_t from, int32_t to) {
    double speed = link_of(p, from, to)->bytes_per_second;
    return speed > 0 ? p->rows * p->config->facts->row_bytes / speed : 0;
}

double plan_hop_seconds(const plan_problem *p, int32_t from, int32_t to) {
    return link_of(p, from, to)->latency_s + plan_link_seconds(p, from, to);
}

void plan_candidate_time(const plan_problem *p, plan_candidate *c) {
    c->slowest_s = 0;
    c->sum_s = c->n_stages > 1 ? link_of(p, c->stages[c->n_stages - 1].rank, c->stages[0].rank)->latency_s : 0;
    for (int32_t i = 0; i < c->n_stages; i++) {
        const mr_plan_stage *s = &c->stages[i];
        double stage = plan_stage_seconds(p, s->rank, s->first, s->last);
        double wire = i > 0 ? plan_link_seconds(p, s[-1].rank, s->rank) : 0;
        c->sum_s += stage + (i > 0 ? plan_hop_seconds(p, s[-1].rank, s->rank) : 0);
        c->slowest_s = stage > c->slowest_s ? stage : c->slowest_s;
        c->slowest_s = wire > c->slowest_s ? wire : c->slowest_s;
    }
}
