/* worker/stage/step_sums.c - adds up the times of steps between two reports. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/step_sums.h"

#include <string.h>

#include "engine/base/clock.h"

/* Often enough to follow a load that changes. The reports take less than 300 bytes a second. */
static const int64_t INTERVAL_NS = MR_NS_PER_S / 4;

void mr_step_sums_add(mr_step_sums *s, uint32_t n_rows, int64_t ns) {
    int32_t c = mr_row_class(n_rows);
    s->has_steps = true;
    if (!s->seen[c]) {
        s->seen[c] = true;
        return;
    }
    s->steps[c]++;
    s->rows[c] += n_rows;
    s->ns[c] += (uint64_t)ns;
    s->has_news = true;
}

void mr_step_sums_sent(mr_step_sums *s, uint64_t step, uint32_t n_rows, int64_t now_ns) {
    size_t i = step % MR_MAX_RING_SLOTS;
    s->sent[i].step = step;
    s->sent[i].rows = n_rows;
    s->sent[i].at_ns = now_ns;
}

void mr_step_sums_came_back(mr_step_sums *s, uint64_t step, int64_t now_ns) {
    size_t i = step % MR_MAX_RING_SLOTS;
    if (s->sent[i].step != step)
        return;
    uint64_t ns = (uint64_t)(now_ns - s->sent[i].at_ns);
    if (s->round_rows > 0 && ns >= s->round_ns)
        return;
    s->round_rows = s->sent[i].rows;
    s->round_ns = ns;
}

int64_t mr_step_sums_due_ns(const mr_step_sums *s) {
    return s->has_steps ? s->reported_ns + INTERVAL_NS : MR_NEVER;
}

void mr_step_sums_fill(mr_step_sums *s, Millrace__StepSums *out) {
    size_t n = MR_ROW_CLASSES;
    while (n > 0 && s->steps[n - 1] == 0)
        n--;
    out->n_steps = out->n_rows = out->n_ns = n;
    out->steps = s->steps;
    out->rows = s->rows;
    out->ns = s->ns;
    out->round_rows = s->round_rows;
    out->round_ns = s->round_ns;
}

void mr_step_sums_clear(mr_step_sums *s, int64_t now_ns) {
    memset(s->steps, 0, sizeof s->steps);
    memset(s->rows, 0, sizeof s->rows);
    memset(s->ns, 0, sizeof s->ns);
    s->round_rows = 0;
    s->round_ns = 0;
    s->has_steps = s->has_news = false;
    s->reported_ns = now_ns;
}
