// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/learned_times.h"

#include "engine/base/mem.h"

/* Steps of one class of row counts at a stage: moving means of the reports. */
typedef struct row_class {
    bool known;
    uint64_t n_steps; /* reported */
    double rows, seconds;
} row_class;

typedef struct stage_times {
    row_class classes[MR_ROW_CLASSES];
    mr_step_times measured; /* before the start; n 0: not measured */
} stage_times;

struct mr_learned_times {
    int32_t n_stages;
    stage_times *stages;
    mr_step_times *curves; /* [n_stages] */
    int32_t n_known;       /* number of curves that are not empty */
    bool has_hops;         /* hops_s was measured or learned */
    double hops_s;
    double hops_row_s, link_row_s; /* measured */
    mr_pipeline_times out;
};

/* Weight of a report of n steps in the mean: n / (n + STEPS_OF_HALF), but LEAST_WEIGHT at least. */
static const double LEAST_WEIGHT = 0.25, STEPS_OF_HALF = 3;
/* If hops seem longer than before, that is noise in most cases, so hops_s grows slowly: by this part of the
 * difference. */
static const double HOPS_UP = 0.1;
/* While no smaller step is known, a step is assumed to have a fixed cost, which equals the cost of this many rows. */
static const double FIXED_ROWS = 10;
/* Beyond the largest known step, twice the rows are assumed to take this much longer. The factor is optimistic, so that
 * larger steps are tried and become known. */
static const double TWICE_THE_ROWS = 1.8;

_Static_assert(MR_ROW_CLASSES + 2 <= MR_STEP_TIMES_MAX, "a curve has a point for each class, and two that are assumed");

mr_status mr_learned_times_create(int32_t n_stages, mr_learned_times **out, mr_err *err) {
    mr_learned_times *t = mr_alloc(sizeof *t);
    if (t) {
        t->n_stages = n_stages;
        t->stages = mr_alloc_array((size_t)n_stages, sizeof *t->stages);
        t->curves = mr_alloc_array((size_t)n_stages, sizeof *t->curves);
    }
    if (!t || !t->stages || !t->curves) {
        mr_learned_times_destroy(t);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the times of %d stages", n_stages);
    }
    *out = t;
    return MR_OK;
}

void mr_learned_times_destroy(mr_learned_times *t) {
    if (!t)
        return;
    mr_free(t->stages);
    mr_free(t->curves);
    mr_free(t);
}

/* The ratio of learned to measured times, over the classes of rows that have run. */
static double scale_of(const stage_times *s) {
    double learned = 0, measured = 0;
    for (int c = 0; c < MR_ROW_CLASSES; c++)
        if (s->classes[c].known) {
            learned += s->classes[c].seconds;
            measured += mr_step_times_at(&s->measured, s->classes[c].rows);
        }
    return learned > 0 && measured > 0 ? learned / measured : 1;
}

/* Adds a point after those of fewer rows. More rows cannot take less time: a smaller value is noise, and is raised. */
static void add_point(mr_step_times *t, double rows, double seconds) {
    int32_t whole = (int32_t)(rows + 0.5);
    double least = t->n > 0 ? t->seconds[t->n - 1] : 0;
    if (t->n > 0 && whole <= t->rows[t->n - 1])
        return;
    t->rows[t->n] = whole;
    t->seconds[t->n++] = seconds > least ? seconds : least;
}

static mr_step_times curve_of(const stage_times *s) {
    mr_step_times t = {0};
    double scale = scale_of(s);
    bool has_measured = s->measured.n > 0;
    for (int c = 0; c < MR_ROW_CLASSES; c++) {
        const row_class *k = &s->classes[c];
        if (k->known && !has_measured && t.n == 0 && c > 0)
            add_point(&t, 1, k->seconds * (FIXED_ROWS + 1) / (FIXED_ROWS + k->rows));
        if (k->known)
            add_point(&t, k->rows, k->seconds);
        else if (has_measured)
            add_point(&t, 1 << c, scale * mr_step_times_at(&s->measured, 1 << c));
    }
    if (t.n > 0 && !has_measured)
        add_point(&t, 2.0 * t.rows[t.n - 1], TWICE_THE_ROWS * t.seconds[t.n - 1]);
    return t;
}

static void update_curve(mr_learned_times *t, int32_t stage) {
    bool was_known = t->curves[stage].n > 0;
    t->curves[stage] = curve_of(&t->stages[stage]);
    t->n_known += (t->curves[stage].n > 0) - was_known;
}

/* The times of a plus the times of the output for the same rows. */
static mr_step_times with_output(const mr_step_times *a, const mr_step_times *output) {
    mr_step_times sum = *a;
    for (int32_t i = 0; i < sum.n; i++)
        sum.seconds[i] += mr_step_times_at(output, sum.rows[i]);
    return sum;
}

void mr_learned_times_measured(mr_learned_times *t, const mr_pipeline_times *measured) {
    MR_ASSERT(measured->n_stages == t->n_stages);
    for (int32_t i = 0; i < t->n_stages; i++) {
        t->stages[i].measured =
            i == t->n_stages - 1 ? with_output(&measured->stages[i], &measured->output) : measured->stages[i];
        update_curve(t, i);
    }
    t->has_hops = true;
    t->hops_s = measured->hops_s;
    t->hops_row_s = measured->hops_row_s;
    t->link_row_s = measured->link_row_s;
}

/* Learns hops_s: the time of a step from the head through all other stages and back, less the computing of these
 * stages. */
static void learn_hops(mr_learned_times *t, const Millrace__StepSums *sums, bool is_short) {
    double others = 0;
    for (int32_t i = 1; i < t->n_stages; i++) {
        if (t->curves[i].n == 0)
            return;
        others += mr_step_times_at(&t->curves[i], sums->round_rows);
    }
    double hops = (double)sums->round_ns * 1e-9 - others - t->hops_row_s * sums->round_rows;
    hops = hops > 0 ? hops : 0;
    if (!t->has_hops || hops < t->hops_s)
        t->hops_s = hops;
    else if (is_short)
        t->hops_s += HOPS_UP * (hops - t->hops_s);
    t->has_hops = true;
}

void mr_learned_times_add(mr_learned_times *t, const Millrace__StepSums *sums, bool is_short) {
    stage_times *stage = &t->stages[sums->stage];
    for (size_t i = 0; i < sums->n_steps; i++) {
        row_class *c = &stage->classes[i];
        double n = sums->steps[i], weight = n / (n + STEPS_OF_HALF);
        if (n == 0)
            continue;
        weight = weight > LEAST_WEIGHT ? weight : LEAST_WEIGHT;
        weight = c->known ? weight : 1;
        c->known = true;
        c->n_steps += sums->steps[i];
        c->rows += weight * ((double)sums->rows[i] / n - c->rows);
        c->seconds += weight * ((double)sums->ns[i] * 1e-9 / n - c->seconds);
    }
    update_curve(t, (int32_t)sums->stage);
    if (sums->round_rows > 0)
        learn_hops(t, sums, is_short);
}

bool mr_learned_times_usual(const mr_learned_times *t, int32_t stage, mr_learned_step *out) {
    uint64_t most = 0;
    for (int i = 0; i < MR_ROW_CLASSES; i++) {
        const row_class *c = &t->stages[stage].classes[i];
        if (c->n_steps <= most)
            continue;
        most = c->n_steps;
        *out = (mr_learned_step){.rows = c->rows, .seconds = c->seconds};
    }
    return most > 0;
}

const mr_pipeline_times *mr_learned_times_get(mr_learned_times *t) {
    t->out = (mr_pipeline_times){.n_stages = t->n_stages,
                                 .stages = t->curves,
                                 .hops_s = t->hops_s,
                                 .hops_row_s = t->hops_row_s,
                                 .link_row_s = t->link_row_s};
    return t->n_known == t->n_stages ? &t->out : NULL;
}
