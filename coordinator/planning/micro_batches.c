// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/micro_batches.h"

#include "proto/limits.h"

enum { ALL_UP_TO = 128 };
static const double NEAR = 1.01; /* more micro-batches must gain more than this, to be worth their messages */
/* The way of a row through all stages should end earlier than its next turn, by this factor. Then no stage idles when
 * another stage, a link or a thread is late for once. */
static const double EARLY = 1.05;

int32_t mr_micro_batches_most(int32_t n_stages) {
    int32_t n = n_stages == 1 ? 1 : 2 * n_stages + 2, most = MR_MAX_RING_SLOTS - MR_MICRO_BATCHES_READY;
    return n < most ? n : most;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

/* The seconds of the slowest stage or link for a step of `rows` rows, and the sum of all stages and links. */
static void step_seconds(const mr_pipeline_times *t, double rows, double out_rows, double *out_slow, double *out_sum) {
    double slow = t->link_row_s * rows, sum = t->hops_s + t->hops_row_s * rows;
    for (int32_t i = 0; i < t->n_stages; i++) {
        double s = mr_step_times_at(&t->stages[i], rows);
        s += i == t->n_stages - 1 ? mr_step_times_at(&t->output, out_rows) : 0;
        slow = larger(slow, s);
        sum += s;
    }
    *out_slow = slow;
    *out_sum = sum;
}

/* Seconds of a turn: the m steps of the slowest stage, or a row's way through all stages, which counts `early`
 * times. */
static double turn_seconds(const mr_pipeline_times *t, int32_t n, int32_t m, double early) {
    double rows = (double)n / m, slow, sum;
    step_seconds(t, rows, rows, &slow, &sum);
    return larger(m * slow, early * sum);
}

double mr_micro_batches_seconds(const mr_pipeline_times *t, int32_t n, int32_t m) {
    return turn_seconds(t, n, m, 1);
}

double mr_micro_batches_cost(const mr_pipeline_times *t, int32_t n, int32_t m) {
    return turn_seconds(t, n, m, EARLY);
}

/* The next number to try. Large numbers are not all tried, because neighbours differ by less than NEAR. */
static int32_t next(int32_t m) {
    return m + 1 + m / ALL_UP_TO;
}

int32_t mr_micro_batches_best(const mr_pipeline_times *t, int32_t n, int32_t most) {
    most = most < n ? most : n;
    double least = mr_micro_batches_cost(t, n, 1);
    if (t->n_stages == 1 || most <= 1)
        return 1;
    for (int32_t m = 2; m <= most; m = next(m)) {
        double s = mr_micro_batches_cost(t, n, m);
        least = s < least ? s : least;
    }
    int32_t best = 1;
    while (mr_micro_batches_cost(t, n, best) > NEAR * least)
        best = next(best);
    return best;
}

double mr_pipeline_slowest_seconds(const mr_pipeline_times *t, double rows) {
    double slow, sum;
    step_seconds(t, rows, 0, &slow, &sum);
    return slow;
}

double mr_prefill_seconds(const mr_pipeline_times *t, int32_t n, int32_t chunk) {
    int32_t n_whole = (n - 1) / chunk, rest = n - n_whole * chunk;
    double slow, sum, rest_slow, rest_sum;
    step_seconds(t, chunk, 0, &slow, &sum);
    step_seconds(t, rest, 1, &rest_slow, &rest_sum);
    return n_whole * slow + rest_sum;
}
