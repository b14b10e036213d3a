/* coordinator/cli/bench/bench.h - the types that the files of `millrace bench` share: a test, a run of a test, the cost
 * of the model, and the reports.
 * A prefill test has one prompt of depth + rows tokens. The clock starts at the end of the step that completes the
 * first depth tokens, or with depth 0 when the prompt is submitted. It stops at the first generated token.
 * A decode test has sequences whose prompts have depth + 1 tokens. The clock starts with the step in which the last
 * sequence gets its first token. It stops with the step after which the sequences have rows further tokens each, on
 * average, or when the first sequence ends.
 * Owns:    nothing, unless a field says so. Threads: bound to the main thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_BENCH_BENCH_H
#define MR_COORDINATOR_CLI_BENCH_BENCH_H

#include "backends/cpu/limits.h"
#include "coordinator/job/job.h"

/* The bytes that a model reads and the products that it computes, according to its file. Of the experts, only those
 * that one row uses are counted. */
typedef struct bench_work {
    double weight_bytes;      /* read once by each step, for any number of rows: layers and output matrix */
    double row_bytes;         /* read in addition for each row: one row of the embedding */
    double position_bytes;    /* keys and values of one position in all layers */
    double products;          /* of one row with the matrices of all layers, without attention */
    double output_products;   /* of one row with the output matrix */
    bool is_int8;             /* most weights are quantised, so most products are of 8-bit integers */
    const mr_plan *synthetic; /* the plan of stages that only sleep; NULL: real stages. Borrowed */
    bool has_experts;         /* rows of a step share some experts, so the bytes of several rows are not known */
} bench_work;
bench_work bench_work_of(const mr_gguf *gguf, const mr_model_info *info, mr_type kv_type);

typedef struct bench_sample {
    double rate; /* tokens per second */
    /* Prefill: products relative to the multiply loop. Decode: bytes relative to the read loop, or with synthetic
     * stages the part of the time that the slowest stage slept. < 0: not known. */
    double share;
} bench_sample;

typedef struct bench_test {
    bool decode;
    int32_t rows;      /* tokens of the prompt beyond depth, or tokens that each sequence generates after its first */
    int32_t depth;     /* tokens in the KV cache before */
    int32_t sequences; /* 1 in prefill */
    int32_t extra;     /* decode: tokens that a sequence may generate before the prompts of the others are computed */
    int32_t threads, n_stages;
    mr_cpu_limits limits; /* of all threads together; zeros: not known */
    const char *products; /* "int8" or "f32": the limit that prefill is compared with */
    bool is_synthetic;
    bench_sample median;
    double low, high; /* tokens per second */
    double expected;  /* predicted tokens per second, from the measured facts; 0: not known */
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
    int64_t n_rows_done; /* rows of all steps so far */
    int64_t start_rows;  /* prefill: n_rows_done when the clock started */
    int64_t start_ns;
    int64_t begun_ns; /* time of the step in which the last sequence got its first token */
    int64_t end_ns;   /* 0: not yet */
    /* Counts between begun_ns and end_ns. */
    int64_t n_tokens, n_steps, n_positions; /* n_positions: positions whose keys and values were read */
    int64_t step_ns;                        /* time of the step of the last token */
    int64_t n_full_steps, n_full_rows;      /* steps that ended in this time, and their rows */
    bool full_ended;
    mr_err err; /* error of the first sequence that failed; status MR_OK until then */
} bench_run;

/* Counts a step. Fits mr_job_config.on_step. ctx: the bench_run, whose test may be NULL. */
void bench_run_on_step(void *ctx, int32_t n_rows);
/* Runs test t once, and fills r. ids: a buffer for the longest prompt. MR_E_CANCELLED: interrupted by a signal. */
MR_MUST_USE mr_status bench_run_once(mr_job *job, int32_t vocab_size, int32_t *ids, const bench_test *t, bench_run *r,
                                     mr_err *err);
/* Computes rate and share of a run. MR_E_INVALID: the run was too short to be timed. */
MR_MUST_USE mr_status bench_run_rate(const bench_run *r, const bench_work *work, bench_sample *out, mr_err *err);

MR_MUST_USE mr_status bench_print_table(const bench_test *tests, int32_t n, mr_err *err);
MR_MUST_USE mr_status bench_print_csv(const bench_test *tests, int32_t n, int32_t repeats, mr_err *err);
MR_MUST_USE mr_status bench_print_json(const bench_test *tests, int32_t n, int32_t repeats, mr_err *err);

#endif
