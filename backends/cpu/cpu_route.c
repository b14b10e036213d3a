/* backends/cpu/cpu_route.c - which experts a row takes, and how much each of them counts. Rule X of engine/NUMERICS.md.
 * Sigmoids go through a kernel. The rest is plain C for all instruction sets: a row has a few hundred logits, and
 * making them reads a matrix. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "backends/cpu/cpu_internal.h"
#include "backends/cpu/kernels/vec_scalar.h"
#include "engine/base/fmath.h"

/* Whether score a stands before score b whatever their numbers. */
static bool is_above(float a, float b) {
    return isnan(a) ? !isnan(b) : a > b;
}

/* The first n_best of n scores in routing order: the greatest first, a NaN above all numbers, ties by the lower
 * number. */
static void find_best(const float *score, int32_t n, int32_t n_best, int32_t *best) {
    int32_t n_found = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = n_found;
        while (at > 0 && is_above(score[i], score[best[at - 1]]))
            at--;
        if (at == n_best)
            continue;
        n_found += n_found < n_best;
        memmove(best + at + 1, best + at, (size_t)(n_found - 1 - at) * sizeof *best);
        best[at] = i;
    }
}

/* The softmax of x[n] as score[n]. */
static void softmax(const float *x, int32_t n, float *score) {
    float max = -INFINITY, lane[MR_LANES] = {0};
    for (int32_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int32_t i = 0; i < n; i++) {
        score[i] = mr_expf_or_nan(x[i] - max);
        lane[i % MR_LANES] += score[i];
    }
    float sum = lanes_tree(lane);
    for (int32_t i = 0; i < n; i++)
        score[i] /= sum;
}

/* Sigmoids of x[n], as gated units of ones. */
static void sigmoids(const cpu_backend *be, const float *x, int32_t n, float *score) {
    for (int32_t i = 0; i < n; i++)
        score[i] = 1.0f;
    be->kernels->glu(x, score, score, n, (mr_glu){.kind = MR_GLU_SIGMOID});
}

/* Of choice[n], only the best groups stay. */
static void drop_groups(const mr_routing *r, int32_t n, float *choice) {
    int32_t size = n / r->n_groups, best[CPU_MAX_EXPERTS];
    float group[CPU_MAX_EXPERTS];
    bool stays[CPU_MAX_EXPERTS] = {false};
    for (int32_t g = 0; g < r->n_groups; g++) {
        find_best(choice + g * size, size, r->n_group_best, best);
        group[g] = choice[g * size + best[0]];
        for (int32_t i = 1; i < r->n_group_best; i++)
            group[g] += choice[g * size + best[i]];
    }
    find_best(group, r->n_groups, r->n_groups_used, best);
    for (int32_t i = 0; i < r->n_groups_used; i++)
        stays[best[i]] = true;
    for (int32_t e = 0; e < n; e++)
        choice[e] = stays[e / size] ? choice[e] : -INFINITY;
}

/* Makes weights of the scores of the chosen, in routing order. */
static void weigh(const mr_routing *r, int32_t n_used, float *weights) {
    float max = weights[0], sum = 0.0f;
    for (int32_t u = 1; u < n_used; u++)
        max = weights[u] > max ? weights[u] : max;
    for (int32_t u = 0; u < n_used; u++) {
        if (r->score == MR_ROUTE_LOGIT)
            weights[u] = mr_expf_or_nan(weights[u] - max);
        sum += weights[u];
    }
    for (int32_t u = 0; u < n_used; u++) {
        if (r->score == MR_ROUTE_LOGIT || r->is_normalised)
            weights[u] /= sum + 1e-20f;
        if (r->scale > 0.0f)
            weights[u] *= r->scale;
    }
}

void cpu_run_route(const cpu_backend *be, const cpu_node *n, int32_t row) {
    const mr_routing *r = &n->node->params.experts.routing;
    int32_t n_experts = n->node->params.experts.n, n_used = n->node->params.experts.n_used;
    const float *logits = cpu_float_row(n->in[0], row), *bias = (const float *)(const void *)cpu_data(n->in[1]);
    int32_t *experts = cpu_int_row(n->out, row);
    float *weights = (float *)(void *)(experts + n_used), score[CPU_MAX_EXPERTS], choice[CPU_MAX_EXPERTS];
    if (r->score == MR_ROUTE_SOFTMAX)
        softmax(logits, n_experts, score);
    else if (r->score == MR_ROUTE_SIGMOID)
        sigmoids(be, logits, n_experts, score);
    else
        memcpy(score, logits, (size_t)n_experts * sizeof *score);
    for (int32_t e = 0; e < n_experts; e++)
        choice[e] = bias ? score[e] + bias[e] : score[e];
    if (r->n_groups > 1)
        drop_groups(r, n_experts, choice);
    find_best(choice, n_experts, n_used, experts);
    for (int32_t u = 0; u < n_used; u++)
        weights[u] = score[experts[u]];
    weigh(r, n_used, weights);
}
