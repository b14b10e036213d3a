/* coordinator/planning/plan_keep.c - tries a few orders of the ranks, and finds the cut of each that loads least.
 * Layers times layers times stages are looked at for an order, which takes milliseconds. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/plan_keep.h"

#include <math.h>
#include <string.h>

#include "coordinator/planning/plan_predict.h"
#include "coordinator/planning/plan_problem.h"
#include "engine/base/mem.h"

static const double NEARLY = 0.05; /* so much slower may a plan be that loads less */

/* The best way to give the layers before one to the first stages of an order. */
typedef struct cut {
    double bytes; /* to load; INFINITY: there is no way */
    double slowest;
    int32_t first; /* of the last of these stages */
} cut;

typedef struct search {
    const mr_keep_wish *w;
    plan_problem problem; /* with a planner */
    mr_plan_prediction *prediction;
    double most;   /* that a stage may take */
    cut *cuts;     /* [most stages + 1][n_layers + 1] */
    double *lacks; /* [n_layers + 1]: bytes that a rank lacks of the layers before */
    double *reads; /* [n_layers + 1]: read_bytes of the layers before */
    int32_t n_order;
    int32_t order[MR_MAX_STAGES]; /* ranks */
    double least_rate;            /* a plan with a lower rate is too slow; with a planner */
} search;

/* --- Figures ----------------------------------------------------------------------------------------------------- */

static bool holds(const mr_keep_wish *w, int32_t rank, int32_t layer) {
    return w->holds[(size_t)rank * ((size_t)w->n_layers + 1) + (size_t)layer];
}

size_t mr_plan_load_bytes(const mr_keep_wish *w, const mr_plan *plan) {
    size_t bytes = 0;
    for (int32_t i = 0; i < plan->n_stages; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        for (int32_t l = s->first; l < s->last + (s->last == w->n_layers); l++)
            bytes += holds(w, s->rank, l) ? 0 : w->load_bytes[l];
    }
    return bytes;
}

/* What a stage takes: seconds, or bytes that it reads. INFINITY: it does not fit. */
static double cost_of(const search *s, int32_t rank, int32_t first, int32_t last) {
    if (s->w->planner) {
        const plan_stage_cost cost = plan_stage(&s->problem, rank, first, last);
        return cost.fits ? cost.seconds : INFINITY;
    }
    double output = last == s->w->n_layers ? (double)s->w->read_bytes[last] : 0;
    return s->reads[last] - s->reads[first] + output;
}

static double slowest_of(const search *s, const mr_plan *plan) {
    double most = 0;
    for (int32_t i = 0; i < plan->n_stages; i++)
        most = fmax(most, cost_of(s, plan->stages[i].rank, plan->stages[i].first, plan->stages[i].last));
    return most;
}

/* Tokens per second by what was measured. */
static double rate_of(search *s, const mr_plan *plan) {
    const mr_planner_config *c = s->w->planner;
    mr_plan_predict(c->facts, plan, c->depth, s->prediction);
    return mr_plan_decode_rate(s->prediction, c->objective == MR_OBJECTIVE_LATENCY ? 1 : c->n_sequences, NULL);
}

/* --- The cut of an order ----------------------------------------------------------------------------------------- */

static void add_up_lacks(search *s, int32_t rank) {
    for (int32_t l = 0; l < s->w->n_layers; l++)
        s->lacks[l + 1] = s->lacks[l] + (holds(s->w, rank, l) ? 0 : (double)s->w->load_bytes[l]);
}

/* Extends the cuts of the stages before stage i by that stage. */
static void add_stage(search *s, int32_t i) {
    int32_t n = s->w->n_layers, rank = s->order[i];
    const cut *before = s->cuts + (size_t)i * ((size_t)n + 1);
    cut *after = s->cuts + ((size_t)i + 1) * ((size_t)n + 1);
    add_up_lacks(s, rank);
    for (int32_t l = 0; l <= n; l++)
        after[l] = (cut){.bytes = INFINITY};
    for (int32_t first = 0; first < n; first++) {
        if (isinf(before[first].bytes))
            continue;
        for (int32_t last = first + 1; last <= n; last++) {
            double cost = cost_of(s, rank, first, last), slowest = fmax(before[first].slowest, cost);
            if (cost > s->most || isinf(cost))
                break;
            double output = last == n && !holds(s->w, rank, n) ? (double)s->w->load_bytes[n] : 0;
            double bytes = before[first].bytes + s->lacks[last] - s->lacks[first] + output;
            if (bytes < after[last].bytes || (bytes == after[last].bytes && slowest < after[last].slowest))
                after[last] = (cut){bytes, slowest, first};
        }
    }
}

/* The cut of s->order that loads least. false: no cut is fast enough. */
static bool cut_order(search *s, mr_plan *out) {
    int32_t n = s->w->n_layers;
    s->cuts[0] = (cut){0};
    for (int32_t l = 1; l <= n; l++)
        s->cuts[l] = (cut){.bytes = INFINITY};
    for (int32_t i = 0; i < s->n_order; i++)
        add_stage(s, i);
    if (isinf(s->cuts[(size_t)s->n_order * ((size_t)n + 1) + (size_t)n].bytes))
        return false;
    *out = (mr_plan){.n_stages = s->n_order};
    for (int32_t i = s->n_order, last = n; i > 0; i--) {
        int32_t first = s->cuts[(size_t)i * ((size_t)n + 1) + (size_t)last].first;
        out->stages[i - 1] = (mr_plan_stage){.first = first, .last = last, .rank = s->order[i - 1]};
        last = first;
    }
    return true;
}

/* --- Orders ------------------------------------------------------------------------------------------------------ */

static bool is_in(const mr_plan *plan, int32_t rank) {
    for (int32_t i = 0; i < plan->n_stages; i++)
        if (plan->stages[i].rank == rank)
            return true;
    return false;
}

static bool is_ordered(const search *s, int32_t rank) {
    for (int32_t i = 0; i < s->n_order; i++)
        if (s->order[i] == rank)
            return true;
    return false;
}

/* The rank without a former stage that lacks least of this one; -1: there is no such rank. */
static int32_t find_heir(const search *s, const mr_plan_stage *stage) {
    int32_t best = -1;
    double least = INFINITY;
    for (int32_t rank = 0; rank < s->w->n_ranks; rank++) {
        if (!s->w->takes_part[rank] || is_in(s->w->former, rank) || is_ordered(s, rank))
            continue;
        mr_plan alone = {.n_stages = 1, .stages = {*stage}};
        alone.stages[0].rank = rank;
        double lacks = (double)mr_plan_load_bytes(s->w, &alone);
        if (lacks < least || (lacks == least && best >= 0 && s->w->memory_bytes[rank] > s->w->memory_bytes[best])) {
            least = lacks;
            best = rank;
        }
    }
    return best;
}

/* The order of the former plan. Ranks without a former stage take the places of those that take no part any more, if
 * with_heirs; else these places are left out. At most `most` stages. */
static void order_as_before(search *s, bool with_heirs, int32_t most) {
    const mr_plan *former = s->w->former;
    int32_t n_left = 0;
    s->n_order = 0;
    for (int32_t i = 0; i < former->n_stages; i++)
        n_left += s->w->takes_part[former->stages[i].rank];
    for (int32_t i = 0; i < former->n_stages && s->n_order < most; i++) {
        int32_t rank = former->stages[i].rank;
        bool stays = s->w->takes_part[rank];
        n_left -= stays;
        if (!stays)
            rank = with_heirs && s->n_order + n_left < most ? find_heir(s, &former->stages[i]) : -1;
        if (rank >= 0)
            s->order[s->n_order++] = rank;
    }
}

static void order_of(search *s, const mr_plan *plan) {
    s->n_order = plan->n_stages;
    for (int32_t i = 0; i < plan->n_stages; i++)
        s->order[i] = plan->stages[i].rank;
}

/* Replaces the plan by the cut of s->order, if that loads less and is nearly as fast. */
static void try_order(search *s, mr_plan *plan) {
    mr_plan other;
    if (s->n_order == 0 || !cut_order(s, &other) || mr_plan_load_bytes(s->w, &other) >= mr_plan_load_bytes(s->w, plan))
        return;
    for (int32_t i = 0; i < other.n_stages && s->w->planner; i++) {
        mr_plan_stage *stage = &other.stages[i];
        plan_place(&s->problem, plan_stage(&s->problem, stage->rank, stage->first, stage->last).on_device, stage);
    }
    if (s->w->planner && rate_of(s, &other) < s->least_rate)
        return;
    *plan = other;
}

/* --- Search ------------------------------------------------------------------------------------------------------ */

static mr_status search_init(search *s, const mr_keep_wish *w, int32_t most_stages, mr_err *err) {
    size_t n = (size_t)w->n_layers + 1;
    s->w = w;
    s->prediction = mr_alloc(sizeof *s->prediction);
    s->cuts = mr_alloc_array(n * ((size_t)most_stages + 1), sizeof *s->cuts);
    s->lacks = mr_alloc_array(n, sizeof *s->lacks);
    s->reads = mr_alloc_array(n, sizeof *s->reads);
    if (!s->prediction || !s->cuts || !s->lacks || !s->reads)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan %zu layers", n - 1);
    for (size_t l = 0; l + 1 < n; l++)
        s->reads[l + 1] = s->reads[l] + (double)w->read_bytes[l];
    return w->planner ? plan_problem_init(&s->problem, w->planner, err) : MR_OK;
}

static void search_deinit(search *s) {
    plan_problem_deinit(&s->problem);
    mr_free(s->prediction);
    mr_free(s->cuts);
    mr_free(s->lacks);
    mr_free(s->reads);
}

/* Notes how slow a plan may be. */
static void set_bounds(search *s, const mr_plan *best) {
    if (s->w->planner) {
        int32_t m = 1, n = s->w->planner->objective == MR_OBJECTIVE_LATENCY ? 1 : s->w->planner->n_sequences;
        s->least_rate = rate_of(s, best) * (1 - NEARLY);
        (void)mr_plan_decode_rate(s->prediction, n, &m);
        plan_problem_set_rows(&s->problem, (double)n / (m > 0 ? m : 1));
    }
    s->most = slowest_of(s, best) * (1 + NEARLY);
}

mr_status mr_plan_keep(const mr_keep_wish *w, mr_plan *plan, mr_err *err) {
    search *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan");
    int32_t most = plan->n_stages;
    mr_status status = search_init(s, w, most, err);
    if (status == MR_OK) {
        set_bounds(s, plan);
        order_of(s, plan);
        try_order(s, plan);
        order_as_before(s, true, most);
        try_order(s, plan);
        order_as_before(s, false, most);
        try_order(s, plan);
    }
    search_deinit(s);
    mr_free(s);
    return status;
}
