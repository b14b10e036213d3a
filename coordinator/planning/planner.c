// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/planner.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "coordinator/planning/micro_batches.h"
#include "coordinator/planning/plan_predict.h"
#include "coordinator/planning/plan_problem.h"
#include "engine/base/bytes_text.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

enum {
    ALL_MICRO_BATCHES = 16, /* every number up to this one is tried, then every fourth, and fewer still further up */
    MAX_HALVINGS = 16,
    MAX_SWAPS = 20000,
};
static const double FINE = 0.001;                  /* share of the time: a smaller gain does not count */
static const double EVEN = 0.01;                   /* so much may the slowest stage be above the least possible */
static const double TOLERANCES[] = {0, 0.05, 0.1}; /* between ranks that count as equal: measurements always differ */
static const double SWAP_WORK = 5e7; /* stages that all swaps together may look at: some tenths of a second */

typedef struct search {
    plan_problem problem;
    plan_exact *exact; /* NULL: the search tries orders */
    bool is_rough;     /* exact takes ranks as equal that differ slightly */
    plan_order *order;
    int32_t *ranks;  /* [n_ranks]: the order that is being tried */
    int32_t *chosen; /* [n_ranks]: the order of the best plan */
    plan_candidate best, trial;
    mr_plan plan; /* trial, for its prediction */
    mr_plan_prediction prediction;
    double seconds; /* of best; INFINITY: there is no best yet */
    int32_t m;      /* micro-batches of best */
} search;

static int32_t n_sequences(const search *s) {
    const mr_planner_config *c = s->problem.config;
    return c->objective == MR_OBJECTIVE_LATENCY || c->n_sequences < 1 ? 1 : c->n_sequences;
}

/* --- One order, or all of them ----------------------------------------------------------------------------------- */

/* Seconds of the plan in trial with m micro-batches, or with fewer if its ring has no room for m. */
static double judge(search *s, int32_t m, int32_t *out_m) {
    const plan_candidate *c = &s->trial;
    const mr_planner_config *config = s->problem.config;
    int32_t most = mr_micro_batches_most(c->n_stages);
    double slowest = m * c->slowest_s;
    *out_m = m;
    if (m <= most)
        return slowest > c->sum_s ? slowest : c->sum_s;
    s->plan.n_stages = c->n_stages;
    memcpy(s->plan.stages, c->stages, (size_t)c->n_stages * sizeof *c->stages);
    mr_plan_predict(config->facts, &s->plan, config->depth, &s->prediction);
    *out_m = mr_micro_batches_best(&s->prediction.times, n_sequences(s), most);
    return mr_micro_batches_seconds(&s->prediction.times, n_sequences(s), *out_m);
}

/* Searches all plans, or the cuts of the order in s->ranks. */
static bool find(search *s, plan_bounds bounds) {
    if (s->exact)
        plan_exact_solve(s->exact, bounds, &s->trial);
    else
        plan_order_solve(s->order, s->ranks, bounds, &s->trial);
    return s->trial.found;
}

/* Looks for a plan that takes less than `seconds` with m micro-batches. Does not check that the plan's ring has room
 * for m: with tighter bounds plans have more stages, and so more room. */
static bool look_below(search *s, int32_t m, double seconds) {
    if (!find(s, (plan_bounds){.slowest_s = seconds / m, .sum_s = seconds}))
        return false;
    int32_t own_m;
    double took = judge(s, m, &own_m);
    if (took < s->seconds) {
        s->seconds = took;
        s->m = own_m;
        s->best = s->trial;
        memcpy(s->chosen, s->ranks, (size_t)s->problem.n_ranks * sizeof *s->chosen);
    }
    return true;
}

/* Improves the best plan by a search for plans with m micro-batches. */
static void improve(search *s, int32_t m) {
    double low = s->problem.rest_s[0];
    if (!look_below(s, m, s->seconds * (1 - FINE)) || m == 1) /* for m 1 the least sum is the least time */
        return;
    double high = s->seconds;
    for (int i = 0; i < MAX_HALVINGS && high - low > FINE * high; i++) {
        double middle = (low + high) / 2;
        if (look_below(s, m, middle))
            high = s->seconds < middle ? s->seconds : middle;
        else
            low = middle;
    }
}

/* The distance to the next smaller number to try. Large numbers are not all tried. */
static int32_t step_below(int32_t m) {
    return m > 8 * ALL_MICRO_BATCHES ? m / ALL_MICRO_BATCHES : m > ALL_MICRO_BATCHES ? 4 : 1;
}

static void try_all_micro_batches(search *s) {
    int32_t n = n_sequences(s), most = mr_micro_batches_most(s->problem.n_ranks);
    most = most < n ? most : n;
    /* Large numbers first: most searches for smaller numbers then fail early, within the bounds that are left. */
    for (int32_t m = most; m > 0; m -= step_below(m)) {
        plan_problem_set_rows(&s->problem, (double)n / m);
        improve(s, m);
    }
}

/* --- Orders ------------------------------------------------------------------------------------------------------ */

/* From rank 0 on, the nearest rank is always next. */
static void order_by_distance(search *s) {
    const plan_problem *p = &s->problem;
    for (int32_t i = 0; i + 1 < p->n_ranks; i++) {
        int32_t nearest = i + 1;
        double least = INFINITY;
        for (int32_t k = i + 1; k < p->n_ranks; k++) {
            double hop = plan_hop_seconds(p, s->ranks[i], s->ranks[k]);
            if (hop < least) {
                least = hop;
                nearest = k;
            }
        }
        int32_t rank = s->ranks[nearest];
        /* The other ranks keep their order. */
        memmove(&s->ranks[i + 2], &s->ranks[i + 1], (size_t)(nearest - i - 1) * sizeof *s->ranks);
        s->ranks[i + 1] = rank;
    }
}

/* Swaps two ranks of the best order or moves one rank, and keeps what is better. The number of tries is bounded by the
 * work that each takes. */
static void try_swaps(search *s) {
    const plan_problem *p = &s->problem;
    const int32_t n = p->n_ranks, sequences = n_sequences(s);
    double work = (double)n * p->n_layers * (2.0 * p->n_layers / n + 2);
    int32_t most = SWAP_WORK / work < MAX_SWAPS ? (int32_t)(SWAP_WORK / work) : MAX_SWAPS;
    plan_problem_set_rows(&s->problem, (double)sequences / s->m);
    for (int32_t i = 0; i < most; i++) {
        uint64_t bits = mr_rng_u64(5, 0, (uint64_t)i);
        int32_t a = (int32_t)(bits >> 32) & INT32_MAX, b = (int32_t)bits & INT32_MAX;
        a %= n;
        b %= n;
        memcpy(s->ranks, s->chosen, (size_t)n * sizeof *s->ranks);
        int32_t rank = s->ranks[a];
        if (i % 2) {
            s->ranks[a] = s->ranks[b];
        } else if (a < b) {
            memmove(&s->ranks[a], &s->ranks[a + 1], (size_t)(b - a) * sizeof *s->ranks);
        } else {
            memmove(&s->ranks[b + 1], &s->ranks[b], (size_t)(a - b) * sizeof *s->ranks);
        }
        s->ranks[b] = rank;
        if (a != b)
            (void)look_below(s, s->m, s->seconds * (1 - FINE));
    }
}

/* Improves the best plan: tries orders near its own, and then all cuts of the best order. */
static void refine(search *s) {
    if (!s->best.found)
        return;
    if (s->problem.n_ranks > 1)
        try_swaps(s);
    memcpy(s->ranks, s->chosen, (size_t)s->problem.n_ranks * sizeof *s->ranks);
    try_all_micro_batches(s);
}

static void search_orders(search *s) {
    for (int32_t i = 0; i < s->problem.n_ranks; i++)
        s->ranks[i] = i;
    try_all_micro_batches(s);
    plan_problem_set_rows(&s->problem, n_sequences(s));
    order_by_distance(s);
    try_all_micro_batches(s);
    refine(s);
}

/* Improves a plan that was found with ranks that only count as equal, by the real facts of each rank. */
static void refine_classes(search *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->best.n_stages; i++)
        s->ranks[n++] = s->best.stages[i].rank;
    for (int32_t r = 0; r < s->problem.n_ranks; r++) {
        bool used = false;
        for (int32_t i = 0; i < s->best.n_stages; i++)
            used = used || s->best.stages[i].rank == r;
        if (!used)
            s->ranks[n++] = r;
    }
    memcpy(s->chosen, s->ranks, (size_t)s->problem.n_ranks * sizeof *s->ranks);
    try_all_micro_batches(s);
    refine(s);
}

static void search_plans(search *s) {
    if (s->exact)
        try_all_micro_batches(s);
    if (s->exact && !s->is_rough)
        return;
    plan_exact_destroy(s->exact);
    s->exact = NULL;
    if (s->best.found)
        refine_classes(s);
    else
        search_orders(s);
}

/* Where the sum over all stages decides, several plans take the same time. Of these, takes the one whose slowest stage
 * is fastest: it is better for other numbers of sequences, and leaves more room for KV blocks. */
static void even_out(search *s) {
    if (!s->best.found)
        return;
    const double most = s->seconds * (1 + FINE);
    memcpy(s->ranks, s->chosen, (size_t)s->problem.n_ranks * sizeof *s->ranks);
    plan_problem_set_rows(&s->problem, (double)n_sequences(s) / s->m);
    plan_candidate_time(&s->problem, &s->best); /* its times may be those of other rows */
    double low = s->problem.rest_s[0] / s->best.n_stages;
    while (s->best.slowest_s - low > EVEN * s->best.slowest_s) {
        double middle = (low + s->best.slowest_s) / 2;
        if (find(s, (plan_bounds){.slowest_s = middle, .sum_s = most}) && s->trial.n_stages <= s->best.n_stages &&
            s->m <= mr_micro_batches_most(s->trial.n_stages))
            s->best = s->trial;
        else
            low = middle;
    }
}

/* --- Solve ------------------------------------------------------------------------------------------------------- */

static mr_status no_room(const plan_problem *p, mr_err *err) {
    const mr_model_memory *m = &p->config->memory;
    uint64_t weights = p->weight_bytes[p->n_layers] + m->head_bytes + m->tail_bytes, have = 0;
    uint64_t kv = (uint64_t)p->config->kv_tokens * p->token_bytes[p->n_layers];
    char of_weights[MR_BYTES_TEXT], of_kv[MR_BYTES_TEXT], of_stage[MR_BYTES_TEXT], there[MR_BYTES_TEXT];
    for (int32_t r = 0; r < p->n_ranks; r++)
        have += p->limit[r] == UINT64_MAX ? 0 : p->limit[r];
    return mr_err_set(
        err, MR_E_NO_MEMORY,
        "the model does not fit the memory of %" PRId32 " %s: weights take %s, a KV cache of %" PRId64
        " tokens %s, buffers of each stage %s; together there are %s; hint: more hosts or a shorter --ctx",
        p->n_ranks, p->n_ranks == 1 ? "rank" : "ranks", mr_bytes_text(weights, of_weights), p->config->kv_tokens,
        mr_bytes_text(kv, of_kv), mr_bytes_text(m->stage_bytes, of_stage), mr_bytes_text(have, there));
}

static mr_status search_init(search *s, const mr_planner_config *config, mr_err *err) {
    mr_status status = plan_problem_init(&s->problem, config, err);
    s->seconds = INFINITY;
    for (size_t i = 0; i < sizeof TOLERANCES / sizeof TOLERANCES[0] && status == MR_OK && !s->exact; i++) {
        status = plan_exact_create(&s->problem, TOLERANCES[i], &s->exact, err);
        s->is_rough = i > 0;
    }
    if (status == MR_OK)
        status = plan_order_create(&s->problem, &s->order, err);
    if (status != MR_OK)
        return status;
    s->ranks = mr_alloc_array((size_t)s->problem.n_ranks, sizeof *s->ranks);
    s->chosen = mr_alloc_array((size_t)s->problem.n_ranks, sizeof *s->chosen);
    if (!s->ranks || !s->chosen)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan %" PRId32 " ranks", s->problem.n_ranks);
    return MR_OK;
}

mr_status mr_planner_solve(const mr_planner_config *config, mr_plan *out, mr_err *err) {
    search *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan");
    mr_status status = search_init(s, config, err);
    if (status == MR_OK) {
        search_plans(s);
        even_out(s);
    }
    if (status == MR_OK && !s->best.found)
        status = no_room(&s->problem, err);
    if (status == MR_OK) {
        *out = (mr_plan){.n_stages = s->best.n_stages};
        memcpy(out->stages, s->best.stages, (size_t)s->best.n_stages * sizeof *out->stages);
    }
    plan_exact_destroy(s->exact);
    plan_order_destroy(s->order);
    plan_problem_deinit(&s->problem);
    mr_free(s->ranks);
    mr_free(s->chosen);
    mr_free(s);
    return status;
}
