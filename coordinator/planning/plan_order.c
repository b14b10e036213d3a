/* coordinator/planning/plan_order.c - the search over the cuts of ranks in a given order, some of which may be left
 * out. Dynamic programming: for each layer, the least sum of a plan that ends before this layer, with the ranks of the
 * order so far. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <math.h>

#include "coordinator/planning/plan_problem.h"
#include "engine/base/mem.h"

enum { LEFT_OUT = UINT16_MAX, NOBODY = -1 };

/* The best plan so far that ends before a layer. */
typedef struct place {
    double sum_s;
    int32_t rank; /* of its last stage; NOBODY: the plan is empty */
} place;

struct plan_order {
    const plan_problem *p;
    place *places;        /* [n_layers + 1] */
    uint16_t *from_layer; /* [n_ranks][n_layers + 1]: where the stage of this rank begins, or LEFT_OUT */
};

mr_status plan_order_create(const plan_problem *p, plan_order **out, mr_err *err) {
    size_t n = (size_t)p->n_layers + 1;
    plan_order *o = mr_alloc(sizeof *o);
    if (o) {
        o->p = p;
        o->places = mr_alloc_array(n, sizeof *o->places);
        o->from_layer = mr_alloc_array(n * (size_t)p->n_ranks, sizeof *o->from_layer);
    }
    if (!o || !o->places || !o->from_layer) {
        plan_order_destroy(o);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan %" PRId32 " ranks", p->n_ranks);
    }
    *out = o;
    return MR_OK;
}

void plan_order_destroy(plan_order *o) {
    if (!o)
        return;
    mr_free(o->places);
    mr_free(o->from_layer);
    mr_free(o);
}

/* Extends all plans by a stage of a rank. Later layers come first, so that no plan gets the rank twice. */
static void add_rank(plan_order *o, int32_t rank, plan_bounds bounds, uint16_t *from_layer) {
    const plan_problem *p = o->p;
    for (int32_t last = 0; last <= p->n_layers; last++)
        from_layer[last] = LEFT_OUT;
    for (int32_t first = p->n_layers - 1; first >= 0; first--) {
        const place before = o->places[first];
        if (!(before.sum_s + p->rest_s[first] < bounds.sum_s) ||
            (before.rank != NOBODY && plan_link_seconds(p, before.rank, rank) > bounds.slowest_s))
            continue;
        double start = before.sum_s + (before.rank == NOBODY ? 0 : plan_hop_seconds(p, before.rank, rank));
        for (int32_t last = first + 1; last <= p->n_layers; last++) {
            const plan_stage_cost stage = plan_stage(p, rank, first, last);
            double sum = start + stage.seconds;
            if (stage.seconds > bounds.slowest_s || sum + p->rest_s[last] >= bounds.sum_s || !stage.fits)
                break;
            sum += last == p->n_layers && before.rank != NOBODY ? p->return_s : 0;
            if (sum >= o->places[last].sum_s || sum >= bounds.sum_s)
                continue;
            o->places[last] = (place){sum, rank};
            from_layer[last] = (uint16_t)first;
        }
    }
}

void plan_order_solve(plan_order *o, const int32_t *order, plan_bounds bounds, plan_candidate *out) {
    const plan_problem *p = o->p;
    const size_t n = (size_t)p->n_layers + 1;
    int64_t most = 0;
    out->found = false;
    for (int32_t r = 0; r < p->n_ranks && most < p->n_layers; r++)
        most += plan_most_layers(p, r, bounds.slowest_s);
    if (most < p->n_layers || p->rest_s[0] >= bounds.sum_s)
        return;
    for (size_t l = 0; l < n; l++)
        o->places[l] = (place){l == 0 ? 0 : INFINITY, NOBODY};
    for (int32_t j = 0; j < p->n_ranks; j++)
        add_rank(o, order[j], bounds, o->from_layer + (size_t)j * n);
    out->found = o->places[p->n_layers].sum_s < bounds.sum_s;
    if (!out->found)
        return;
    out->n_stages = 0;
    for (int32_t j = p->n_ranks - 1, last = p->n_layers; last > 0; j--) {
        uint16_t first = o->from_layer[(size_t)j * n + (size_t)last];
        if (first == LEFT_OUT)
            continue;
        out->stages[out->n_stages++] = (mr_plan_stage){.first = first, .last = last, .rank = order[j]};
        last = first;
    }
    for (int32_t i = 0, k = out->n_stages - 1; i < k; i++, k--) {
        mr_plan_stage s = out->stages[i];
        out->stages[i] = out->stages[k];
        out->stages[k] = s;
    }
    plan_candidate_time(p, out);
}
