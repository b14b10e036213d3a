/* coordinator/planning/rank_paces.c - sums of measured and predicted seconds of each rank, and scaled facts. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/rank_paces.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

/* SUMS_HALF_S: in which the weight of former steps halves. OLD_S: after which a pace without new steps fades, and
 * FADE_HALF_S: in which it halves its distance to the usual pace. */
static const double SUMS_HALF_S = 8, OLD_S = 10, FADE_HALF_S = 120;
/* A pace is known from so many steps on, or from so many seconds of steps. */
static const double LEAST_STEPS = 16, LEAST_S = 2;
/* Paces beyond are wrong clocks or wrong facts. */
static const double LEAST_PACE = 1e-3, MOST_PACE = 1e3;

typedef struct rank_pace {
    double n, seconds, predicted_s; /* fading sums */
    double pace;                    /* by these sums, since there were enough; 0: not known */
    bool is_measured;               /* the pace is of a measurement without steps */
    int64_t heard_ns;               /* when the latest steps came, or the measurement */
} rank_pace;

struct mr_rank_paces {
    int32_t n_ranks;
    rank_pace *ranks;
    double *known; /* [n_ranks], scratch of the median */
};

mr_status mr_rank_paces_create(int32_t n_ranks, mr_rank_paces **out, mr_err *err) {
    mr_rank_paces *p = mr_alloc(sizeof *p);
    if (p) {
        p->n_ranks = n_ranks;
        p->ranks = mr_alloc_array((size_t)n_ranks, sizeof *p->ranks);
        p->known = mr_alloc_array((size_t)n_ranks, sizeof *p->known);
    }
    if (!p || !p->ranks || !p->known) {
        mr_rank_paces_destroy(p);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the paces of %d ranks", n_ranks);
    }
    *out = p;
    return MR_OK;
}

void mr_rank_paces_destroy(mr_rank_paces *p) {
    if (!p)
        return;
    mr_free(p->ranks);
    mr_free(p->known);
    mr_free(p);
}

static double seconds_since(int64_t then_ns, int64_t now_ns) {
    return now_ns > then_ns ? (double)(now_ns - then_ns) / (double)MR_NS_PER_S : 0;
}

static double limited(double pace) {
    return fmin(fmax(pace, LEAST_PACE), MOST_PACE);
}

void mr_rank_paces_add(mr_rank_paces *p, int32_t rank, const mr_paced_steps *steps, int64_t now_ns) {
    rank_pace *r = &p->ranks[rank];
    if (steps->n <= 0 || !(steps->seconds > 0) || !(steps->predicted_s > 0))
        return;
    double keeps = exp2(-seconds_since(r->heard_ns, now_ns) / SUMS_HALF_S);
    r->n = keeps * r->n + (double)steps->n;
    r->seconds = keeps * r->seconds + steps->seconds;
    r->predicted_s = keeps * r->predicted_s + steps->predicted_s;
    r->heard_ns = now_ns;
    if (r->n < LEAST_STEPS && r->seconds < LEAST_S)
        return;
    r->pace = limited(r->seconds / r->predicted_s);
    r->is_measured = false;
}

bool mr_rank_paces_is_known(const mr_rank_paces *p, int32_t rank, int64_t now_ns) {
    const rank_pace *r = &p->ranks[rank];
    return r->pace > 0 && !r->is_measured && seconds_since(r->heard_ns, now_ns) < OLD_S;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The lower median, so that one slow rank of two is not the usual one. */
static double usual_pace(const mr_rank_paces *p, int64_t now_ns) {
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_ranks; i++)
        if (mr_rank_paces_is_known(p, i, now_ns))
            p->known[n++] = p->ranks[i].pace;
    if (n == 0)
        return 1;
    qsort(p->known, (size_t)n, sizeof *p->known, compare);
    return p->known[(n - 1) / 2];
}

static double pace_of(const mr_rank_paces *p, int32_t rank, double usual, int64_t now_ns) {
    const rank_pace *r = &p->ranks[rank];
    double old_s = seconds_since(r->heard_ns, now_ns) - OLD_S;
    if (r->pace <= 0 || old_s < 0)
        return r->pace > 0 ? r->pace : usual;
    return usual * pow(r->pace / usual, exp2(-old_s / FADE_HALF_S));
}

/* What slows the usual rank down may slow this one down, too, and may have done so while it was measured. It counts in
 * any case, so that an idle rank is not thought of as faster than it is. */
void mr_rank_paces_measured(mr_rank_paces *p, int32_t rank, double times, int64_t now_ns) {
    if (!(times > 0))
        return;
    p->ranks[rank] = (rank_pace){.is_measured = true, .heard_ns = now_ns};
    p->ranks[rank].pace = limited(times * fmax(usual_pace(p, now_ns), 1));
}

double mr_rank_paces_get(const mr_rank_paces *p, int32_t rank, int64_t now_ns) {
    return pace_of(p, rank, usual_pace(p, now_ns), now_ns);
}

static void scale(mr_step_times *t, double pace) {
    for (int32_t i = 0; i < t->n; i++)
        t->seconds[i] *= pace;
}

static void scale_rank(mr_rank_facts *r, double pace) {
    for (int32_t k = 0; k < MR_MAX_LAYER_KINDS; k++) {
        scale(&r->layer[k], pace);
        scale(&r->device.layer[k], pace);
        scale(&r->device.trunk[k], pace);
        r->position_s[k] *= pace;
        r->device.position_s[k] *= pace;
    }
    scale(&r->output, pace);
    scale(&r->device.output, pace);
    scale(&r->device.crossing, pace);
    r->step_s *= pace;
}

void mr_rank_paces_apply(const mr_rank_paces *p, const mr_cluster_facts *facts, int64_t now_ns, mr_rank_facts *out) {
    double usual = usual_pace(p, now_ns);
    for (int32_t i = 0; i < facts->n_ranks && i < p->n_ranks; i++) {
        out[i] = facts->ranks[i];
        scale_rank(&out[i], pace_of(p, i, usual, now_ns));
    }
}
