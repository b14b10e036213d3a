/* coordinator/cli/bench/bench.h - what the files of `millrace bench` share: a test, one run of it, what the model
 * costs, reports. A prefill test is one prompt of depth + rows tokens, timed from the end of the step that completes
 * the first depth of them (with depth 0: from its submission) until its first token is there. A decode test is
 * sequences with a prompt of depth + 1 tokens; its clock runs from the step that brings the last of them its first
 * token to the step with which they have rows tokens each since then, on average; or to the end of the first of them.
 * Owns:    nothing but what is said. Threads: bound to the main thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_BENCH_BENCH_H
#define MR_COORDINATOR_CLI_BENCH_BENCH_H

#include "backends/cpu/limits.h"
#include "coordinator/job/job.h"

/* What a model reads and multiplies, by its file. Of experts only those that one row uses. */
typedef struct bench_work {
    double weight_bytes;      /* that a step reads once, whatever its rows: layers and output */
    double row_bytes;         /* that each row reads besides: its row of the embedding */
    double position_bytes;    /* keys and values of one position in all layers */
    double products;          /* of one row with the matrices of all layers; attention does not count */
    double output_products;   /* of one row with the output matrix */
    bool is_int8;             /* most products are of quantised weights, and so of 8-bit integers */
    const mr_plan *synthetic; /* stages that sleep: nothing is read or multiplied; NULL: real ones. Borrowed */
    bool has_experts;         /* rows of a step share some of their experts: nobody knows how many */
} bench_work;
bench_work bench_work_of(const mr_gguf *gguf, const mr_model_info *info, mr_type kv_type);

typedef struct bench_sample {
    double rate; /* tokens per second */
    /* prefill: products against the peak; decode: bytes against the read loop, or the time that the slowest of stages
     * that sleep has slept; < 0: not known */
    double share;
} bench_sample;

typedef struct bench_test {
    bool decode;
    int32_t rows;      /* tokens of the prompt beyond depth, or tokens that each sequence generates after its first */
    int32_t depth;     /* tokens in the KV cache before */
    int32_t sequences; /* 1 in prefill */
    int32_t extra;     /* decode: tokens that a sequence may generate while others still have their prompts read */
    int32_t threads, n_stages;
    mr_cpu_limits limits; /* of all threads; zeros: not known */
    const char *products; /* "int8" or "f32": which limit prefill is held against */
    bool is_synthetic;
    bench_sample median;
    double low, high; /* tokens per second */
    double expected;  /* likewise, by measured facts; 0: not known */
} bench_test;

static inline int32_t bench_prompt_tokens(const bench_test *t) {
    return t->depth + (t->decode ? 1 : t->rows);
}
static inline int32_t bench_new_tokens(const bench_test *t) {
    return t->decode ? t->rows + 1 + t->extra : 1;
}

/* One run of a test. */
typedef struct bench_run {
    const bench_test *test;
    int32_t n_begun;
    int64_t n_rows_done; /* of all steps */
    int64_t start_rows;  /* prefill: n_rows_done when the clock began */
    int64_t start_ns;
    int64_t begun_ns; /* of the step with the last first token */
    int64_t end_ns;   /* 0: not yet */
    /* After begun_ns, up to end_ns. */
    int64_t n_tokens, n_steps, n_positions; /* the last: of keys and values that were read */
    int64_t step_ns;                        /* of the last token */
    int64_t n_full_steps, n_full_rows;      /* of steps that were done in that time, and their rows */
    bool full_ended;
    mr_err err; /* of the first sequence that failed; status MR_OK until then */
} bench_run;

/* Fits mr_job_config.on_step; ctx: the run, whose test may be NULL. */
void bench_run_on_step(void *ctx, int32_t n_rows);
/* ids: room for the longest prompt. MR_E_CANCELLED: interrupted. */
MR_MUST_USE mr_status bench_run_once(mr_job *job, int32_t vocab_size, int32_t *ids, const bench_test *t, bench_run *r,
                                     mr_err *err);
/* MR_E_INVALID: the run was too short to be timed. */
MR_MUST_USE mr_status bench_run_rate(const bench_run *r, const bench_work *work, bench_sample *out, mr_err *err);

MR_MUST_USE mr_status bench_print_table(const bench_test *tests, int32_t n, mr_err *err);
MR_MUST_USE mr_status bench_print_csv(const bench_test *tests, int32_t n, int32_t repeats, mr_err *err);
MR_MUST_USE mr_status bench_print_json(const bench_test *tests, int32_t n, int32_t repeats, mr_err *err);

#endif
