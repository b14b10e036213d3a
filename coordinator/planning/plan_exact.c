/* coordinator/planning/plan_exact.c - the exact search: dynamic programming over layers, subsets and orders of ranks. A
 * state is the number of placed layers, the number of used ranks of each class, and the class of the last used rank.
 * The value of a state is the least sum of seconds. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "coordinator/planning/plan_problem.h"
#include "engine/base/mem.h"

enum {
    MAX_RANKS = 64,
    MAX_STATES = 1 << 22,
    MAX_WORK = 100000000, /* transitions of a run, roughly: some tenths of a second */
    ANY_HEAD = -1,
};

struct plan_exact {
    const plan_problem *p;
    int32_t n_classes, n_vectors;
    int32_t members[MAX_RANKS][MAX_RANKS], n_members[MAX_RANKS]; /* of each class */
    int32_t stride[MAX_RANKS]; /* of a class's count in the number of a vector of counts */
    double hop_s[MAX_RANKS][MAX_RANKS], wire_s[MAX_RANKS][MAX_RANKS], return_s[MAX_RANKS][MAX_RANKS];
    bool each_head; /* each class is tried as the head's, so that the ids' way back to the head is exact */
    /* [n_layers + 1][n_vectors][n_classes]: for each state the least sum, and the state before it. */
    double *sum_s;
    uint16_t *from_layer;
    uint8_t *from_class;
    int32_t *layers_left; /* [n_vectors]: the most layers that the unused ranks can hold */
};

/* --- Classes of ranks that are alike ----------------------------------------------------------------------------- */

static bool is_near(double a, double b, double tolerance) {
    double larger = fabs(a) > fabs(b) ? fabs(a) : fabs(b);
    return fabs(a - b) <= tolerance * larger;
}

static bool alike_times(const mr_step_times *a, const mr_step_times *b, double tolerance) {
    bool alike = a->n == b->n;
    for (int32_t i = 0; i < a->n && alike; i++)
        alike = a->rows[i] == b->rows[i] && is_near(a->seconds[i], b->seconds[i], tolerance);
    return alike;
}

static bool alike_links(const mr_link_facts *a, const mr_link_facts *b, double tolerance) {
    return is_near(a->latency_s, b->latency_s, 2 * tolerance) &&
           is_near(a->bytes_per_second, b->bytes_per_second, 2 * tolerance);
}

/* Memory must be equal, because it decides how many layers the devices get. */
static bool alike_devices(const mr_cluster_facts *f, const mr_measured_device *a, const mr_measured_device *b,
                          double tolerance) {
    if (!a->is_known || !b->is_known)
        return a->is_known == b->is_known;
    bool alike = a->memory_bytes == b->memory_bytes && a->stage_bytes == b->stage_bytes &&
                 a->head_bytes == b->head_bytes && a->tail_bytes == b->tail_bytes &&
                 alike_times(&a->output, &b->output, tolerance) && alike_times(&a->crossing, &b->crossing, tolerance);
    for (int32_t k = 0; k < f->n_kinds && alike; k++)
        alike = a->layer_bytes[k] == b->layer_bytes[k] && a->token_bytes[k] == b->token_bytes[k] &&
                a->trunk_bytes[k] == b->trunk_bytes[k] && alike_times(&a->layer[k], &b->layer[k], tolerance) &&
                alike_times(&a->trunk[k], &b->trunk[k], tolerance) &&
                is_near(a->position_s[k], b->position_s[k], 2 * tolerance);
    return alike;
}

/* Whether two ranks are interchangeable. */
static bool are_alike(const plan_problem *p, int32_t a, int32_t b, double tolerance) {
    const mr_cluster_facts *f = p->config->facts;
    const mr_rank_facts *x = &f->ranks[a], *y = &f->ranks[b];
    bool alike = is_near((double)p->limit[a], (double)p->limit[b], tolerance) &&
                 is_near(x->step_s, y->step_s, 2 * tolerance) && alike_times(&x->output, &y->output, tolerance) &&
                 alike_devices(f, &x->device, &y->device, tolerance);
    for (int32_t k = 0; k < f->n_kinds && alike; k++)
        alike = alike_times(&x->layer[k], &y->layer[k], tolerance) &&
                is_near(x->position_s[k], y->position_s[k], 2 * tolerance);
    const size_t n = (size_t)p->n_ranks, i = (size_t)a, j = (size_t)b;
    for (size_t c = 0; c < n && alike && f->links; c++) {
        if (c == i || c == j)
            continue;
        alike = alike_links(&f->links[i * n + c], &f->links[j * n + c], tolerance) &&
                alike_links(&f->links[c * n + i], &f->links[c * n + j], tolerance);
    }
    return alike && (!f->links || alike_links(&f->links[i * n + j], &f->links[j * n + i], tolerance));
}

/* Divides the ranks into classes. The member with the least memory stands first and represents the class. */
static void make_classes(plan_exact *x, double tolerance) {
    for (int32_t r = 0; r < x->p->n_ranks; r++) {
        int32_t k = 0;
        while (k < x->n_classes && !are_alike(x->p, x->members[k][0], r, tolerance))
            k++;
        x->n_classes += k == x->n_classes;
        int32_t *members = x->members[k], n = x->n_members[k]++;
        members[n] = r;
        if (n > 0 && x->p->limit[r] < x->p->limit[members[0]]) {
            members[n] = members[0];
            members[0] = r;
        }
    }
}

/* Numbers the vectors of counts. false: there are too many states to search. */
static bool count_states(plan_exact *x) {
    const double layers = x->p->n_layers, ranks = x->p->n_ranks;
    double vectors = 1;
    for (int32_t k = 0; k < x->n_classes && vectors <= MAX_STATES; k++) {
        x->stride[k] = (int32_t)vectors;
        vectors *= x->n_members[k] + 1;
    }
    double states = vectors * (layers + 1) * x->n_classes;
    double stage_layers = 2 * layers / ranks + 2 < layers ? 2 * layers / ranks + 2 : layers;
    double work = states * stage_layers * x->n_classes / 2;
    x->n_vectors = vectors <= MAX_STATES ? (int32_t)vectors : 0;
    x->each_head = work * x->n_classes <= MAX_WORK;
    return vectors <= MAX_STATES && states <= MAX_STATES && work <= MAX_WORK;
}

mr_status plan_exact_create(const plan_problem *p, double tolerance, plan_exact **out, mr_err *err) {
    *out = NULL;
    if (p->n_ranks > MAX_RANKS || p->n_layers >= UINT16_MAX)
        return MR_OK;
    plan_exact *x = mr_alloc(sizeof *x);
    if (!x)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan %d ranks", (int)p->n_ranks);
    x->p = p;
    make_classes(x, tolerance);
    if (!count_states(x)) {
        plan_exact_destroy(x);
        return MR_OK;
    }
    size_t n = ((size_t)p->n_layers + 1) * (size_t)x->n_vectors * (size_t)x->n_classes;
    x->sum_s = mr_alloc_array(n, sizeof *x->sum_s);
    x->from_layer = mr_alloc_array(n, sizeof *x->from_layer);
    x->from_class = mr_alloc_array(n, sizeof *x->from_class);
    x->layers_left = mr_alloc_array((size_t)x->n_vectors, sizeof *x->layers_left);
    if (!x->sum_s || !x->from_layer || !x->from_class || !x->layers_left) {
        plan_exact_destroy(x);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan %d ranks", (int)p->n_ranks);
    }
    *out = x;
    return MR_OK;
}

void plan_exact_destroy(plan_exact *x) {
    if (!x)
        return;
    mr_free(x->sum_s);
    mr_free(x->from_layer);
    mr_free(x->from_class);
    mr_free(x->layers_left);
    mr_free(x);
}

/* --- The programme ----------------------------------------------------------------------------------------------- */

static size_t state_of(const plan_exact *x, int32_t layer, int32_t vector, int32_t k) {
    return ((size_t)layer * (size_t)x->n_vectors + (size_t)vector) * (size_t)x->n_classes + (size_t)k;
}

/* How many ranks of class k are used in a vector. */
static int32_t count_of(const plan_exact *x, int32_t vector, int32_t k) {
    return vector / x->stride[k] % (x->n_members[k] + 1);
}

static int32_t n_used(const plan_exact *x, int32_t vector) {
    int32_t n = 0;
    for (int32_t k = 0; k < x->n_classes; k++)
        n += count_of(x, vector, k);
    return n;
}

/* Computes the hops between classes, for the present number of rows. */
static void time_links(plan_exact *x) {
    for (int32_t a = 0; a < x->n_classes; a++)
        for (int32_t b = 0; b < x->n_classes; b++) {
            int32_t from = x->members[a][0], to = x->members[b][a == b && x->n_members[a] > 1];
            x->hop_s[a][b] = plan_hop_seconds(x->p, from, to);
            x->wire_s[a][b] = plan_link_seconds(x->p, from, to);
            x->return_s[a][b] = x->hop_s[a][b] - x->wire_s[a][b];
        }
}

/* For each vector, the most layers that the unused ranks could hold, at any position in the model. */
static void bound_layers(plan_exact *x, double slowest_s) {
    int32_t most[MAX_RANKS];
    for (int32_t k = 0; k < x->n_classes; k++)
        most[k] = plan_most_layers(x->p, x->members[k][0], slowest_s);
    for (int32_t v = 0; v < x->n_vectors; v++) {
        x->layers_left[v] = 0;
        for (int32_t k = 0; k < x->n_classes; k++)
            x->layers_left[v] += (x->n_members[k] - count_of(x, v, k)) * most[k];
    }
}

/* Extends a state by stages of class k, of every size within the bounds. last_class -1: the stage is the first. */
static void extend(plan_exact *x, plan_bounds bounds, int32_t head, int32_t layer, int32_t vector, int32_t last_class,
                   int32_t k) {
    const plan_problem *p = x->p;
    const int32_t rank = x->members[k][0], to = vector + x->stride[k];
    double before = 0;
    if (last_class >= 0) {
        before = x->sum_s[state_of(x, layer, vector, last_class)] + x->hop_s[last_class][k];
        if (x->wire_s[last_class][k] > bounds.slowest_s)
            return;
    }
    for (int32_t last = layer + 1; last <= p->n_layers; last++) {
        const plan_stage_cost stage = plan_stage(p, rank, layer, last);
        double sum = before + stage.seconds;
        if (stage.seconds > bounds.slowest_s || sum + p->rest_s[last] >= bounds.sum_s || !stage.fits)
            return;
        if (last == p->n_layers && last_class >= 0)
            sum += head == ANY_HEAD ? p->return_s : x->return_s[k][head];
        size_t state = state_of(x, last, to, k);
        if (sum < x->sum_s[state] && sum < bounds.sum_s) {
            x->sum_s[state] = sum;
            x->from_layer[state] = (uint16_t)layer;
            x->from_class[state] = (uint8_t)(last_class < 0 ? UINT8_MAX : last_class);
        }
    }
}

static void extend_vector(plan_exact *x, plan_bounds bounds, int32_t head, int32_t layer, int32_t vector) {
    for (int32_t last = 0; last < x->n_classes; last++) {
        if (!(x->sum_s[state_of(x, layer, vector, last)] < bounds.sum_s))
            continue;
        for (int32_t k = 0; k < x->n_classes; k++)
            if (count_of(x, vector, k) < x->n_members[k])
                extend(x, bounds, head, layer, vector, last, k);
    }
}

/* Writes the plan of a final state to out. Members of a class are used in their order. */
static void trace_back(const plan_exact *x, int32_t vector, int32_t k, plan_candidate *out) {
    int32_t layer = x->p->n_layers, n = n_used(x, vector), used[MAX_RANKS] = {0};
    out->found = true;
    out->n_stages = n;
    while (n > 0) {
        size_t state = state_of(x, layer, vector, k);
        int32_t first = x->from_layer[state];
        out->stages[--n] = (mr_plan_stage){.first = first, .last = layer, .rank = k};
        vector -= x->stride[k];
        k = x->from_class[state];
        layer = first;
    }
    for (int32_t i = 0; i < out->n_stages; i++) {
        int32_t class = out->stages[i].rank;
        out->stages[i].rank = x->members[class][used[class]++];
    }
    plan_candidate_time(x->p, out);
}

static void run(plan_exact *x, plan_bounds bounds, int32_t head, plan_candidate *out) {
    const int32_t n_layers = x->p->n_layers;
    const size_t n = ((size_t)n_layers + 1) * (size_t)x->n_vectors * (size_t)x->n_classes;
    for (size_t i = 0; i < n; i++)
        x->sum_s[i] = INFINITY;
    for (int32_t k = 0; k < x->n_classes; k++)
        if (head == ANY_HEAD || head == k)
            extend(x, bounds, head, 0, 0, -1, k);
    for (int32_t layer = 1; layer < n_layers; layer++)
        for (int32_t v = 1; v < x->n_vectors; v++)
            if (layer + x->layers_left[v] >= n_layers)
                extend_vector(x, bounds, head, layer, v);
    double best = out->found ? out->sum_s : INFINITY;
    for (int32_t v = 1; v < x->n_vectors; v++)
        for (int32_t k = 0; k < x->n_classes; k++) {
            double sum = x->sum_s[state_of(x, n_layers, v, k)];
            if (sum < best) {
                best = sum;
                trace_back(x, v, k, out);
            }
        }
}

void plan_exact_solve(plan_exact *x, plan_bounds bounds, plan_candidate *out) {
    out->found = false;
    time_links(x);
    bound_layers(x, bounds.slowest_s);
    if (x->layers_left[0] < x->p->n_layers)
        return;
    for (int32_t head = 0; head < x->n_classes && x->each_head; head++)
        run(x, bounds, head, out);
    if (!x->each_head)
        run(x, bounds, ANY_HEAD, out);
}
