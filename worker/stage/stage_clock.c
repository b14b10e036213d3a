/* worker/stage/stage_clock.c - adds up times by phase at each change of the phase. Spans go into an array of fixed
 * size, so that a step allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/stage_clock.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

enum { MAX_SPANS = 8192 };

mr_status mr_stage_clock_start(mr_stage_clock *c, bool wants_spans, mr_err *err) {
    *c = (mr_stage_clock){.phase = MR_PHASE_NO_WORK, .since_ns = mr_clock_now_ns()};
    if (wants_spans)
        c->spans = mr_alloc_array(MAX_SPANS, sizeof *c->spans);
    return !wants_spans || c->spans ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a trace");
}

void mr_stage_clock_end(mr_stage_clock *c) {
    mr_free(c->spans);
    c->spans = NULL;
}

void mr_stage_clock_add_work(mr_stage_clock *c, mr_phase kind, int64_t start_ns, int64_t end_ns) {
    if (c->spans && c->n_spans == MAX_SPANS)
        c->n_dropped++;
    else if (c->spans)
        c->spans[c->n_spans++] =
            (mr_span){.start_ns = start_ns, .end_ns = end_ns, .step = c->step, .rows = c->rows, .phase = kind};
}

/* Adds the time to the phase, and a span if a trace is wanted. */
static void add(mr_stage_clock *c, mr_phase phase, int64_t start_ns, int64_t end_ns) {
    c->ns[phase] += end_ns - start_ns;
    mr_stage_clock_add_work(c, phase, start_ns, end_ns);
}

void mr_stage_clock_enter(mr_stage_clock *c, mr_phase phase) {
    if (!c || c->phase == phase)
        return;
    int64_t now = mr_clock_now_ns();
    if (c->phase != MR_PHASE_COUNT)
        add(c, c->phase, c->since_ns, now);
    c->phase = phase;
    c->since_ns = now;
}

static void count_step(mr_stage_clock *c, uint64_t step, uint32_t rows) {
    c->step = step;
    c->rows = rows;
    c->n_steps++;
    c->n_rows += rows;
}

void mr_stage_clock_begin_step(mr_stage_clock *c, uint64_t step, uint32_t rows) {
    mr_stage_clock_enter(c, MR_PHASE_COMPUTE);
    count_step(c, step, rows);
}

void mr_stage_clock_add_step(mr_stage_clock *c, uint64_t step, uint32_t rows, int64_t ns, int64_t now_ns) {
    count_step(c, step, rows);
    add(c, MR_PHASE_COMPUTE, now_ns - ns, now_ns);
}

int32_t mr_stage_clock_take(mr_stage_clock *c, mr_span *out, int32_t max) {
    int32_t n = c->n_spans < max ? c->n_spans : max;
    if (n == 0)
        return 0;
    memcpy(out, c->spans, (size_t)n * sizeof *out);
    c->n_spans -= n;
    memmove(c->spans, c->spans + n, (size_t)c->n_spans * sizeof *out);
    return n;
}
