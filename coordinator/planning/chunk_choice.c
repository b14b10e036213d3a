// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/chunk_choice.h"

static const double WORTH = 1.1; /* a larger chunk must be so much faster */

/* The most rows that every stage was measured with. */
static int32_t measured_rows(const mr_pipeline_times *t) {
    int32_t rows = MR_CHUNK_MOST;
    for (int32_t i = 0; i < t->n_stages; i++) {
        const mr_step_times *s = &t->stages[i];
        int32_t last = s->n > 0 ? s->rows[s->n - 1] : 0;
        rows = last < rows ? last : rows;
    }
    return rows;
}

void mr_chunk_choose(const mr_pipeline_times *t, int32_t usual, mr_chunk_choice *out) {
    int32_t most = measured_rows(t), n_short = 0;
    double best = 0;
    *out = (mr_chunk_choice){0};
    for (int32_t rows = usual; out->n < MR_CHUNK_SIZES && (out->n == 0 || rows <= most); rows *= 2) {
        double seconds = mr_pipeline_slowest_seconds(t, rows);
        out->rows[out->n] = rows;
        out->step_s[out->n] = seconds;
        out->rate[out->n] = seconds > 0 ? rows / seconds : 0;
        if (n_short == out->n && (out->n == 0 || seconds <= MR_CHUNK_STEP_S)) {
            best = out->rate[n_short] > best ? out->rate[n_short] : best;
            n_short++;
        }
        out->n++;
    }
    while (WORTH * out->rate[out->chosen] < best)
        out->chosen++;
    out->reason = out->chosen + 1 == out->n ? MR_CHUNK_LARGEST : MR_CHUNK_GAINS_LITTLE;
    for (int32_t i = n_short; i < out->n; i++)
        if (out->rate[i] > WORTH * out->rate[out->chosen])
            out->reason = MR_CHUNK_TAKES_LONG;
}
