/* coordinator/cli/bench/bench_run.c - runs one test of `millrace bench` once: submits its sequences, follows their
 * tokens with a clock, and turns the times into rates and shares of the machine's limits. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>

#include "coordinator/cli/bench/bench.h"
#include "coordinator/console/interrupt.h"
#include "engine/base/clock.h"
#include "engine/base/rng.h"

enum { SEED = 1 }; /* seed of the random prompt ids */

void bench_run_on_step(void *ctx, int32_t n_rows) {
    bench_run *r = ctx;
    r->n_rows_done += n_rows;
    if (r->n_tokens > 0 && !r->full_ended) {
        r->n_full_steps++;
        r->n_full_rows += n_rows;
        r->full_ended = r->end_ns != 0;
    }
    if (!r->test || r->test->decode || r->start_rows >= r->test->depth || r->n_rows_done < r->test->depth)
        return;
    r->start_rows = r->n_rows_done;
    r->start_ns = mr_clock_now_ns();
}

static void count(bench_run *r, const mr_token_event *event) {
    r->n_tokens++;
    r->n_steps += event->time_ns != r->step_ns;
    r->step_ns = event->time_ns;
    r->n_positions += r->test->depth + event->n_generated;
}

static bool on_token(void *ctx, const mr_token_event *event) {
    bench_run *r = ctx;
    int64_t enough = (int64_t)r->test->rows * r->test->sequences;
    if (event->finish == MR_FINISH_ERROR) {
        if (r->err.status == MR_OK)
            (void)mr_err_set(&r->err, event->status, "%s", event->text);
        return true;
    }
    if (event->n_generated == 1) {
        r->n_begun++;
        r->begun_ns = event->time_ns;
    } else if (r->n_begun == r->test->sequences && event->time_ns > r->begun_ns &&
               (r->end_ns == 0 || event->time_ns == r->end_ns)) {
        count(r, event);
    }
    if (r->end_ns == 0 && (event->finish == MR_FINISH_LENGTH || r->n_tokens >= enough))
        r->end_ns = event->time_ns;
    return mr_interrupt_seen() || (r->test->decode && r->end_ns != 0);
}

static mr_status submit(mr_job *job, int32_t vocab_size, int32_t *ids, int32_t sequence, bench_run *r, mr_err *err) {
    int32_t n_prompt = bench_prompt_tokens(r->test);
    int64_t number;
    for (int32_t i = 0; i < n_prompt; i++)
        ids[i] = (int32_t)(mr_rng_u64(SEED, (uint64_t)sequence, (uint64_t)i) % (uint64_t)vocab_size);
    mr_sequence_desc desc = {.prompt_ids = ids,
                             .n_prompt = n_prompt,
                             .max_tokens = bench_new_tokens(r->test),
                             .sampling = {.top_p = 1, .repeat_penalty = 1},
                             .fresh = true,
                             .on_token = on_token,
                             .ctx = r};
    return mr_job_submit(job, &desc, &number, err);
}

mr_status bench_run_once(mr_job *job, int32_t vocab_size, int32_t *ids, const bench_test *t, bench_run *r,
                         mr_err *err) {
    mr_status status = mr_interrupt_seen() ? mr_err_set(err, MR_E_CANCELLED, "%s", "") : MR_OK;
    *r = (bench_run){.test = t};
    for (int32_t i = 0; i < t->sequences && status == MR_OK; i++)
        status = submit(job, vocab_size, ids, i, r, err);
    r->start_ns = mr_clock_now_ns();
    if (status == MR_OK)
        status = mr_job_run(job, err);
    if (status == MR_OK && mr_interrupt_seen())
        status = mr_err_set(err, MR_E_CANCELLED, "%s", "");
    if (status == MR_OK && r->err.status != MR_OK) {
        *err = r->err;
        status = err->status;
    }
    return status;
}

/* Tokens that the run processed while the clock ran. */
static int64_t tokens_of(const bench_run *r) {
    return r->test->decode ? r->n_tokens : bench_prompt_tokens(r->test) - r->start_rows;
}

/* The part of the time that the slowest synthetic stage slept. */
static double busy_share_of(const bench_run *r, const mr_plan *plan, double seconds) {
    double most_ns = 0;
    for (int32_t i = 0; i < plan->n_stages; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        double ns = (double)r->n_full_steps * (double)s->synthetic_fixed_ns +
                    (double)r->n_full_rows * (double)s->synthetic_row_ns;
        most_ns = ns > most_ns ? ns : most_ns;
    }
    return r->test->decode ? most_ns / (seconds * (double)MR_NS_PER_S) : -1;
}

/* The work of the run as a share of what the machine could have done in the same time. */
static double share_of(const bench_run *r, const bench_work *w, double seconds) {
    const bench_test *t = r->test;
    if (w->synthetic)
        return busy_share_of(r, w->synthetic, seconds);
    if (t->limits.read_bytes <= 0 || (t->decode && w->has_experts && r->n_tokens > r->n_steps))
        return -1;
    if (!t->decode)
        return ((double)tokens_of(r) * w->products + w->output_products) / seconds /
               (w->is_int8 ? t->limits.int8_products : t->limits.f32_products);
    double bytes = (double)r->n_steps * w->weight_bytes + (double)r->n_tokens * w->row_bytes +
                   (double)r->n_positions * w->position_bytes;
    return bytes / seconds / t->limits.read_bytes;
}

mr_status bench_run_rate(const bench_run *r, const bench_work *work, bench_sample *out, mr_err *err) {
    const bench_test *t = r->test;
    if (t->decode && r->n_tokens == 0)
        return mr_err_set(err, MR_E_INVALID,
                          "-n: with %" PRId32 " tokens, the first of %" PRId32
                          " sequences ended before the last sequence had its first token; hint: a larger -n",
                          t->rows, t->sequences);
    int64_t ns = t->decode ? r->end_ns - r->begun_ns : r->begun_ns - r->start_ns;
    double seconds = (double)(ns > 0 ? ns : 1) / (double)MR_NS_PER_S;
    out->rate = (double)tokens_of(r) / seconds;
    out->share = share_of(r, work, seconds);
    return MR_OK;
}
