// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/step_budget.h"

#include "proto/limits.h"

enum {
    LEAST_CHUNK = 16,  /* smaller chunks cost too much per row on every stage */
    MOST_CHUNKS = 256, /* limit of the prediction: for longer prompts the ends of the pipeline matter little */
};
static const double NEAR = 1.005; /* smaller chunks must gain more than this, to be worth their messages */
/* Chunks grow by this part of what the times allow: late rows of a prompt take longer than the known mean. */
static const double CAUTION = 0.5;

/* The slowest stage with chunks of `rows` rows. *out_before and *out_after: the times of the slowest stage before and
 * after it, as shares of its time. */
static int32_t find_slowest(const mr_pipeline_times *t, double rows, double *out_before, double *out_after) {
    int32_t slow = 0;
    double before = 0, after = 0, most = mr_step_times_at(&t->stages[0], rows);
    for (int32_t i = 1; i < t->n_stages; i++) {
        double s = mr_step_times_at(&t->stages[i], rows);
        if (s > most) {
            before = most;
            after = 0;
            slow = i;
            most = s;
        } else if (s > after) {
            after = s;
        }
    }
    *out_before = most > 0 ? before / most : 1;
    *out_after = most > 0 ? after / most : 1;
    return slow;
}

int32_t mr_prefill_chunk(const mr_pipeline_times *t, mr_prefill_cut cut, int64_t n_done, int64_t n_left, int32_t most) {
    double before = 1, after = 1;
    int32_t slow = cut.tapers ? find_slowest(t, most, &before, &after) : 0;
    /* When the slowest stage has done its last chunk, the stages after it should have only that chunk left. They are
     * faster, so a chunk may be larger now: they catch up while the slowest stage works on the rows that are left.
     * Likewise the stages before the slowest have gained a lead with the rows that are done. */
    double rows = t->n_stages > 1 && !cut.tapers ? cut.least : most;
    double for_after = cut.least + CAUTION * (1 - after) * (double)n_left;
    double for_before = cut.least + CAUTION * (1 - before) * (double)n_done;
    if (slow + 1 < t->n_stages && for_after < rows)
        rows = for_after;
    if (slow > 0 && for_before < rows)
        rows = for_before;
    return rows < (double)n_left ? (int32_t)rows : (int32_t)n_left;
}

double mr_prefill_cut_seconds(const mr_pipeline_times *t, mr_prefill_cut cut, int64_t n, int32_t most) {
    double free_at[MR_MAX_STAGES] = {0}, at = 0;
    for (int64_t done = 0; done < n;) {
        int32_t chunk = mr_prefill_chunk(t, cut, done, n - done, most);
        at = 0;
        for (int32_t i = 0; i < t->n_stages; i++) {
            at = (at > free_at[i] ? at : free_at[i]) + mr_step_times_at(&t->stages[i], chunk);
            free_at[i] = at;
        }
        done += chunk;
    }
    return at;
}

mr_prefill_cut mr_prefill_cut_best(const mr_pipeline_times *t, int64_t n, int32_t most) {
    mr_prefill_cut best = {.least = most};
    if (t->n_stages == 1)
        return best;
    int64_t reckoned = n < (int64_t)MOST_CHUNKS * LEAST_CHUNK ? n : (int64_t)MOST_CHUNKS * LEAST_CHUNK;
    double least_s = mr_prefill_cut_seconds(t, best, reckoned, most);
    for (int32_t chunk = most / 2; chunk >= LEAST_CHUNK; chunk /= 2)
        for (int tapers = 0; tapers < 2; tapers++) {
            mr_prefill_cut cut = {.least = chunk, .tapers = tapers};
            double s = mr_prefill_cut_seconds(t, cut, reckoned, most);
            if (NEAR * s >= least_s)
                continue;
            best = cut;
            least_s = s;
        }
    return best;
}

int32_t mr_step_rows_within(const mr_pipeline_times *t, int32_t n_decoding, int32_t m, double seconds, int32_t most) {
    int32_t low = (n_decoding + m - 1) / m, high = most + 1;
    /* Bisection: low is allowed, high is not. */
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        if (mr_micro_batches_seconds(t, mid * m, m) <= seconds)
            low = mid;
        else
            high = mid;
    }
    return low;
}
