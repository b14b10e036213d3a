// SPDX-License-Identifier: Apache-2.0
/* For every limit of every message, one message that breaks it. */
#include "tests/unit/proto/test_proto_samples.h"

#include <math.h>
#include <string.h>

/* One change to a good message, and what the error has to say about it. */
#define BROKEN(which, control_body, report_body, change, words)                                                        \
    do {                                                                                                               \
        samples s;                                                                                                     \
        samples_init(&s, (control_body), (report_body));                                                               \
        expect_accepted(&s, (which));                                                                                  \
        s.change;                                                                                                      \
        expect_refused(&s, (which), (words));                                                                          \
    } while (0)
#define BROKEN_CONTROL(body, change, words) BROKEN(CONTROL, MILLRACE__CONTROL__BODY_##body, 1, change, words)
#define BROKEN_TOKENS(change, words) BROKEN(TOKENS, 1, 1, change, words)
#define BROKEN_REPORT(body, change, words) BROKEN(REPORT, 1, MILLRACE__REPORT__BODY_##body, change, words)

static void test_plan_limits(void **state) {
    (void)state;
    BROKEN_CONTROL(PLAN, plan.n_stages = 0, "plan: the number of stages is 0, allowed is 1 to 1024");
    BROKEN_CONTROL(PLAN, plan.n_kv_blocks = 0, "n_kv_blocks is 0");
    BROKEN_CONTROL(PLAN, plan.n_kv_blocks++, "n_kv_blocks is 67108865");
    BROKEN_CONTROL(PLAN, plan.kv_type = 2, "kv_type is 2, allowed is 0 to 1");
    BROKEN_CONTROL(PLAN, plan.max_rows = 0, "max_rows is 0");
    BROKEN_CONTROL(PLAN, plan.max_rows++, "max_rows is 4097");
    BROKEN_CONTROL(PLAN, plan.max_out_rows = 0, "max_out_rows is 0");
    BROKEN_CONTROL(PLAN, plan.max_out_rows++, "max_out_rows is 4097, allowed is 1 to 4096");
    BROKEN_CONTROL(PLAN, plan.max_sequences = 0, "max_sequences is 0");
    BROKEN_CONTROL(PLAN, plan.max_sequences++, "max_sequences is 4097");
    BROKEN_CONTROL(PLAN, plan.max_context = 0, "max_context is 0");
    BROKEN_CONTROL(PLAN, plan.max_context++, "max_context is 1048577");
    BROKEN_CONTROL(PLAN, plan.renew_rows++, "renew_rows is 1000001");
    BROKEN_CONTROL(PLAN, plan.ring_slots = 0, "ring_slots is 0");
    BROKEN_CONTROL(PLAN, plan.ring_slots++, "ring_slots is 2053");
    BROKEN_CONTROL(PLAN, stage[2].rank = 1024, "plan: stage 2: rank is 1024, allowed is below 1024");
    BROKEN_CONTROL(PLAN, stage[0].first_layer = 1, "stage 0: first_layer is 1, allowed is 0 to 0");
    BROKEN_CONTROL(PLAN, stage[1].first_layer = 9, "stage 1: first_layer is 9, allowed is 10 to 10");
    BROKEN_CONTROL(PLAN, stage[1].last_layer = 10, "stage 1: last_layer is 10, allowed is 11 to 65536");
    BROKEN_CONTROL(PLAN, stage[2].last_layer = 65537, "stage 2: last_layer is 65537");
    BROKEN_CONTROL(PLAN, stage[1].synthetic_fixed_ns = 1, "stage 1: synthetic_fixed_ns is 1, allowed is 0 to 0");
    BROKEN_CONTROL(PLAN, stage[1].device_layers = 11, "stage 1: device_layers is 11, allowed is 0 to 10");
    BROKEN_CONTROL(PLAN, stage[1].host_experts = 9, "stage 1: host_experts is 9, allowed is 0 to 0");
    BROKEN_CONTROL(PLAN, stage[1].cold_partitions = 1, "stage 1: cold_partitions is 1, allowed is 0 to 0");
    BROKEN_CONTROL(PLAN, stage[1].cold_partitions = 16384 + (s.stage[1].device_layers = 1),
                   "stage 1: cold_partitions is 16385, allowed is 0 to 16384");
    BROKEN_CONTROL(PLAN, stage[1].device_experts = 1, "stage 1: device_experts is 1, allowed is 0 to 0");
    BROKEN_CONTROL(PLAN, stage[2].held_experts[3] = 4096, "stage 2: held_experts 3 is 4096, allowed is below 4096");
    BROKEN_CONTROL(PLAN, stage[2].n_held_experts--, "stage 2: the number of held_experts is 3, allowed is 4 to 4");
    BROKEN_CONTROL(PLAN, stage[1].synthetic_row_ns = 1, "stage 1: synthetic_row_ns is 1, allowed is 0 to 0");
}

/* Stages that sleep have times, and may have no layers. */
static void test_synthetic_plan_limits(void **state) {
    (void)state;
    samples s;
    samples_init(&s, MILLRACE__CONTROL__BODY_PLAN, 1);
    s.plan.synthetic = true;
    s.stage[2].device_layers = s.stage[2].host_experts = s.stage[2].device_experts = 0;
    s.stage[2].n_held_experts = 0;
    s.stage[1].last_layer = s.stage[1].first_layer;
    s.stage[2].first_layer = s.stage[1].first_layer;
    s.plan.max_rows = 10;
    s.plan.max_out_rows = 1;
    s.stage[1].synthetic_fixed_ns = s.stage[2].synthetic_row_ns = UINT64_C(60000000000);
    expect_accepted(&s, CONTROL);
    s.stage[2].synthetic_fixed_ns = 1;
    expect_refused(&s, CONTROL, "stage 2: the longest sleep is 600000000001, allowed is 0 to 600000000000");
    s.stage[2].synthetic_fixed_ns = 0;
    s.stage[1].synthetic_fixed_ns++;
    expect_refused(&s, CONTROL, "stage 1: synthetic_fixed_ns is 60000000001, allowed is 0 to 60000000000");
    s.stage[1].synthetic_fixed_ns = 0;
    s.stage[2].synthetic_row_ns++;
    expect_refused(&s, CONTROL, "stage 2: synthetic_row_ns is 60000000001");
    s.stage[2].synthetic_row_ns = 0;
    s.stage[1].last_layer--;
    expect_refused(&s, CONTROL, "stage 1: last_layer is 9, allowed is 10 to 65536");
}

static void test_open_limits(void **state) {
    (void)state;
    BROKEN_CONTROL(OPEN, open.slot = 8, "open sequence: slot is 8, allowed is below 8");
    BROKEN_CONTROL(OPEN, prompt[3] = 1000, "id 3 is 1000, allowed is below 1000");
    BROKEN_CONTROL(OPEN, sampling.temperature = -0.5f, "temperature is -0.5");
    BROKEN_CONTROL(OPEN, sampling.temperature = NAN, "temperature is ");
    BROKEN_CONTROL(OPEN, sampling.temperature = INFINITY, "temperature is inf");
    BROKEN_CONTROL(OPEN, sampling.top_k = -2, "top_k is -2");
    BROKEN_CONTROL(OPEN, sampling.top_p = 1.5f, "top_p is 1.5, allowed is 0 to 1");
    BROKEN_CONTROL(OPEN, sampling.min_p = -1.0f, "min_p is -1");
    BROKEN_CONTROL(OPEN, sampling.repeat_penalty = 1e9f, "repeat_penalty is 1e+09");
    BROKEN_CONTROL(OPEN, sampling.repeat_last_n = -2, "repeat_last_n is -2");
    BROKEN_CONTROL(OPEN, sampling.repeat_last_n = MR_MAX_CONTEXT + 1, "repeat_last_n is 1048577");
    BROKEN_CONTROL(OPEN, sampling.choice = MR_MAX_SEQUENCES, "choice is 4096");
    BROKEN_CONTROL(OPEN, sampling.presence_penalty = NAN, "presence_penalty is ");
    BROKEN_CONTROL(OPEN, sampling.frequency_penalty = 1001, "frequency_penalty is 1001");
    BROKEN_CONTROL(OPEN, sampling.typical_p = 1.5f, "typical_p is 1.5");
    BROKEN_CONTROL(OPEN, sampling.top_n_sigma = -1, "top_n_sigma is -1");
    BROKEN_CONTROL(OPEN, sampling.xtc_probability = 2, "xtc_probability is 2");
    BROKEN_CONTROL(OPEN, sampling.xtc_threshold = -1, "xtc_threshold is -1");
    BROKEN_CONTROL(OPEN, sampling.dry_multiplier = -1, "dry_multiplier is -1");
    BROKEN_CONTROL(OPEN, sampling.dry_base = INFINITY, "dry_base is inf");
    BROKEN_CONTROL(OPEN, sampling.dry_allowed_length = -1, "dry_allowed_length is -1");
    BROKEN_CONTROL(OPEN, sampling.dry_last_n = -2, "dry_last_n is -2");
    BROKEN_CONTROL(OPEN, sampling.mirostat = 3, "mirostat is 3, allowed is 0 to 2");
    BROKEN_CONTROL(OPEN, sampling.mirostat_tau = -1, "mirostat_tau is -1");
    BROKEN_CONTROL(OPEN, sampling.mirostat_eta = NAN, "mirostat_eta is ");
    BROKEN_CONTROL(OPEN, sampling.mirostat_mu = NAN, "mirostat_mu is ");
    BROKEN_CONTROL(OPEN, bias_ids[1] = 1000, "biased id 1 is 1000, allowed is below 1000");
    BROKEN_CONTROL(OPEN, biases[1] = NAN, "a bias is ");
    BROKEN_CONTROL(OPEN, biases[0] = INFINITY, "a bias is inf");
    BROKEN_CONTROL(OPEN, sampling.n_biases = 1, "the number of their values is 1, allowed is 2 to 2");
    BROKEN_CONTROL(OPEN, sampling.min_tokens = UINT32_MAX, "min_tokens is 4294967295, allowed is 0 to 1048576");
    BROKEN_CONTROL(OPEN, bad_words[1] = 1000, "id of a bad word 0 is 1000, allowed is below 1000");
    BROKEN_CONTROL(OPEN, bad_words[0] = 0, "the length of a bad word is 0, allowed is 1 to 4");
    BROKEN_CONTROL(OPEN, bad_words[2] = 3, "the length of a bad word is 3, allowed is 1 to 2");
    BROKEN_CONTROL(OPEN, bad_words[2] = UINT32_MAX, "the length of a bad word is 4294967295, allowed is 1 to 2");
    BROKEN_CONTROL(OPEN, bad_words[2] = 1, "the length of a bad word is 0, allowed is 1 to 0");
    BROKEN_CONTROL(OPEN, sampling.n_top_logprobs = 21, "n_top_logprobs is 21, allowed is 0 to 20");
    BROKEN_CONTROL(OPEN, open.n_generated = 6, "n_generated is 6, allowed is 0 to 5");
    BROKEN_CONTROL(OPEN, open.n_blocks = 8, "open sequence: the number of blocks is 8, allowed is 0 to 7");
    BROKEN_CONTROL(OPEN, blocks[6] = 50, "open sequence: block 6 is 50, allowed is below 50");
    BROKEN_CONTROL(CLOSE, close.slot = 8, "close sequence: slot is 8");
    samples s;
    uint32_t many[CONTEXT + 1] = {0};
    samples_init(&s, MILLRACE__CONTROL__BODY_OPEN, 1);
    s.open.ids = many;
    s.open.n_ids = CONTEXT;
    expect_accepted(&s, CONTROL);
    s.open.n_ids = CONTEXT + 1;
    expect_refused(&s, CONTROL, "the number of ids is 101, allowed is 0 to 100");
    uint32_t breakers[5] = {0};
    samples_init(&s, MILLRACE__CONTROL__BODY_OPEN, 1);
    s.sampling.dry_breakers = breakers;
    s.sampling.n_dry_breakers = 5;
    breakers[4] = 1000;
    expect_refused(&s, CONTROL, "breaker 4 is 1000, allowed is below 1000");
    samples_init(&s, MILLRACE__CONTROL__BODY_OPEN, 1);
    s.sampling.late_ids = breakers;
    expect_refused(&s, CONTROL, "late id 4 is 1000, allowed is below 1000");
    static uint32_t list[MR_MAX_BAD_WORDS + 1];
    samples_init(&s, MILLRACE__CONTROL__BODY_OPEN, 1);
    s.sampling.late_ids = list;
    s.sampling.n_late_ids = MR_MAX_LATE_IDS + 1;
    expect_refused(&s, CONTROL, "the number of late ids is 1025");
    samples_init(&s, MILLRACE__CONTROL__BODY_OPEN, 1);
    s.sampling.bad_words = list;
    s.sampling.n_bad_words = MR_MAX_BAD_WORDS + 1;
    expect_refused(&s, CONTROL, "the numbers of bad words is 4097");
    samples_init(&s, MILLRACE__CONTROL__BODY_OPEN, 1);
    /* The message that stages without sampling get: slot and generation only. */
    s.open.n_ids = s.open.n_generated = 0;
    s.open.sampling = NULL;
    expect_accepted(&s, CONTROL);
}

static void test_step_limits(void **state) {
    (void)state;
    BROKEN_CONTROL(STEP, step.n_runs = 0, "step plan: the number of runs is 0, allowed is 1 to 16");
    BROKEN_CONTROL(STEP, run[2].slot = 8, "step plan: run 2: slot is 8, allowed is below 8");
    BROKEN_CONTROL(STEP, run[0].n_rows = 0, "run 0: n_rows is 0");
    BROKEN_CONTROL(STEP, run[0].n_rows = 17, "run 0: n_rows is 17, allowed is 1 to 16");
    BROKEN_CONTROL(STEP, run[1].first_position++, "run 1: first_position + n_rows is 101, allowed is 1 to 100");
    BROKEN_CONTROL(STEP, run[1].first_position = UINT32_MAX, "first_position + n_rows is 4294967309");
    BROKEN_CONTROL(STEP, run[1].n_ids = 13, "run 1: the number of ids is 13, allowed is 14 to 14");
    BROKEN_CONTROL(STEP, run[1].n_ids = 0, "run 1: the number of ids is 0, allowed is 14 to 14");
    BROKEN_CONTROL(STEP, run[1].n_rows = 1, "run 1: the number of ids is 14, allowed is 1 to 1");
    BROKEN_CONTROL(STEP, ids[13]++, "run 1: id 13 is 1000, allowed is below 1000");
    BROKEN_CONTROL(STEP, run[1].n_blocks = 2, "run 1: the number of blocks is 2, allowed is 0 to 1");
    BROKEN_CONTROL(STEP, run[1].first_block_idx = 7, "first_block_idx + the number of blocks is 8, allowed is 0 to 7");
    BROKEN_CONTROL(STEP, run[1].first_block_idx = UINT32_MAX, "first_block_idx + the number of blocks is 4294967296");
    BROKEN_CONTROL(STEP, blocks[0] = 50, "run 1: block 0 is 50, allowed is below 50");
    BROKEN_CONTROL(STEP, run[0].want = (Millrace__Want)5, "run 0: want is 5, allowed is 0 to 4");
    BROKEN_CONTROL(STEP, run[0].want = (Millrace__Want)-1, "run 0: want is -1");
    BROKEN_CONTROL(STEP, step.n_copy_from = 9, "step plan: the number of copied blocks is 9, allowed is 0 to 8");
    BROKEN_CONTROL(STEP, step.n_copy_to = 2, "step plan: the number of their copies is 2, allowed is 3 to 3");
    BROKEN_CONTROL(STEP, copies[1] = 50, "step plan: copy 1 is 50, allowed is below 50");
    /* Each run is valid, but the step has too many rows. */
    BROKEN_CONTROL(STEP, runs[2] = &s.run[1], "step plan: the number of rows is 29, allowed is 1 to 16");
    /* A run of one row with an id is valid. */
    samples s;
    samples_init(&s, MILLRACE__CONTROL__BODY_STEP, 1);
    s.run[0].n_ids = 1;
    s.run[0].ids = s.ids;
    expect_accepted(&s, CONTROL);
}

static void test_tokens_limits(void **state) {
    (void)state;
    BROKEN_TOKENS(token[1].slot = 8, "tokens: token 1: slot is 8");
    BROKEN_TOKENS(token[0].position = 0, "token 0: position is 0, allowed is 1 to 100");
    BROKEN_TOKENS(token[1].position++, "token 1: position is 101");
    BROKEN_TOKENS(token[0].id++, "token 0: id is 1000");
    BROKEN_TOKENS(token[0].status = 1, "token 0: status is 1");
    BROKEN_TOKENS(token[0].mirostat_mu = INFINITY, "token 0: mirostat_mu is inf");
    BROKEN_TOKENS(token[1].logprob = 1, "token 1: logprob is 1, allowed is -inf to 0");
    BROKEN_TOKENS(token[1].n_top_logprobs = 21, "the number of their logprobs is 21, allowed is 20 to 20");
    BROKEN_TOKENS(token[1].n_top_ids = 21, "the number of top ids is 21, allowed is 0 to 20");
    BROKEN_TOKENS(top_ids[19] = 1000, "top id 19 is 1000");
    BROKEN_TOKENS(top_logprobs[3] = NAN, "a top logprob is ");
    BROKEN_TOKENS(token[0].status = MR_E_DEVICE + 1, "token 0: status is 402");
    samples s;
    Millrace__Token *many[17];
    samples_init(&s, 1, 1);
    for (size_t i = 0; i < 17; i++)
        many[i] = &s.token[0];
    s.tokens.tokens = many;
    s.tokens.n_tokens = 16;
    expect_accepted(&s, TOKENS);
    s.tokens.n_tokens = 17;
    expect_refused(&s, TOKENS, "the number of tokens is 17, allowed is 0 to 16");
    s.tokens.n_tokens = 0;
    expect_accepted(&s, TOKENS);
}

static void test_report_limits(void **state) {
    (void)state;
    BROKEN_REPORT(READY, ready.stage = 4, "ready: stage is 4, allowed is below 4");
    BROKEN_REPORT(FAILURE, failure.stage = 4, "failure: stage is 4");
    BROKEN_REPORT(FAILURE, failure.status = 99, "failure: status is 99");
    BROKEN_REPORT(FAILURE, failure.status = 0, "failure: status is 0, allowed is 100");
    BROKEN_REPORT(PROGRESS, progress.stage = 4, "load progress: stage is 4");
    BROKEN_REPORT(PROGRESS, progress.done_bytes = 2, "done_bytes is 2, allowed is 0 to 1");
    BROKEN_REPORT(SPANS, spans.stage = 4, "spans: stage is 4");
    BROKEN_REPORT(SPANS, phases[1] = MR_SPAN_KINDS, "phase 1 is 8, allowed is below 8");
    BROKEN_REPORT(SPANS, spans.n_step = 2, "the number of steps is 2, allowed is 3 to 3");
    BROKEN_REPORT(SPANS, spans.n_rows = 0, "the number of rows is 0");
    BROKEN_REPORT(SPANS, spans.n_start_ns = 2, "the number of starts is 2");
    BROKEN_REPORT(SPANS, spans.n_end_ns = 2, "the number of ends is 2");
    BROKEN_REPORT(SPANS, ends_ns[2] = 1, "end_ns is 1, allowed is 2 to");
    BROKEN_REPORT(SPANS, ends_ns[0]++, "end_ns is 2305843009213693952");
    BROKEN_REPORT(SECONDS, seconds.stage = 4, "seconds: stage is 4");
    BROKEN_REPORT(SECONDS, seconds.n_ns = 5, "the number of phases is 5, allowed is 6 to 6");
    BROKEN_REPORT(SECONDS, phase_ns[5] = MR_MAX_PHASE_NS + 1, "the time of phase 5 is");
    BROKEN_REPORT(EXPERT_SHARE, expert_share.stage = 4, "expert share: stage is 4");
    BROKEN_REPORT(EXPERT_SHARE, expert_share.uses++, "uses is 9007199254740993, allowed is 0 to 9007199254740992");
    BROKEN_REPORT(EXPERT_SHARE, expert_share.uses--, "device_uses is 9007199254740992, allowed is 0 to");
    BROKEN_REPORT(EXPERT_SHARE, expert_share.swaps++, "swaps is 9007199254740993");
}

static void test_use_counts_limits(void **state) {
    (void)state;
    BROKEN_REPORT(USE_COUNTS, use_counts.stage = 4, "use counts: stage is 4");
    BROKEN_REPORT(USE_COUNTS, use_counts.layer++, "layer is 65536, allowed is below 65536");
    BROKEN_REPORT(USE_COUNTS, use_counts.n = 0, "n is 0, allowed is 1 to 4194304");
    BROKEN_REPORT(USE_COUNTS, use_counts.n++, "n is 4194305");
    BROKEN_REPORT(USE_COUNTS, use_counts.rows++, "rows is 1099511627777, allowed is 0 to 1099511627776");
    BROKEN_REPORT(USE_COUNTS, use_counts.n_counts = 0, "the number of counts is 0, allowed is 1 to 4096");
    BROKEN_REPORT(USE_COUNTS, use_counts.first++, "first + the number of counts is 4194305, allowed is 1 to 4194304");
    BROKEN_REPORT(USE_COUNTS, use_counts.first = UINT32_MAX, "first + the number of counts is 4294967298");
    BROKEN_REPORT(USE_COUNTS, counts[1]++, "a count is 1099511627777, allowed is 0 to 1099511627776");
    BROKEN_REPORT(USE_COUNTS, use_counts.rows--, "a count is 1099511627776, allowed is 0 to 1099511627775");
    BROKEN_REPORT(USE_COUNTS, use_counts.ended = true, "n is 4194304, allowed is 0 to 0");
}

/* The message behind the counts has none, and there may be none at all. */
static void test_end_of_use_counts(void **state) {
    (void)state;
    samples s;
    samples_init(&s, 1, MILLRACE__REPORT__BODY_USE_COUNTS);
    s.use_counts.n = s.use_counts.first = 0;
    s.use_counts.n_counts = 0;
    s.use_counts.ended = true;
    expect_accepted(&s, REPORT);
    s.use_counts.first = 1;
    expect_refused(&s, REPORT, "first + the number of counts is 1, allowed is 0 to 0");
    s.use_counts.n_counts = 1;
    expect_refused(&s, REPORT, "the number of counts is 1, allowed is 0 to 0");
}

/* The most counts of a report fit it, also where each of them is as long as can be. */
static void test_many_use_counts(void **state) {
    (void)state;
    samples s;
    static uint64_t counts[MR_USE_COUNTS_AT_ONCE + 1];
    samples_init(&s, 1, MILLRACE__REPORT__BODY_USE_COUNTS);
    s.use_counts.first = 0;
    s.use_counts.counts = counts;
    for (int i = 0; i < MR_USE_COUNTS_AT_ONCE; i++)
        counts[i] = MR_MAX_COUNTED_ROWS;
    s.use_counts.n_counts = MR_USE_COUNTS_AT_ONCE;
    expect_accepted(&s, REPORT);
    s.use_counts.n_counts++;
    expect_refused(&s, REPORT, "the number of counts is 4097");
}

static void test_step_sums_limits(void **state) {
    (void)state;
    BROKEN_REPORT(STEP_SUMS, step_sums.stage = 4, "step sums: stage is 4");
    BROKEN_REPORT(STEP_SUMS, step_sums.n_steps = 2, "the number of rows is 3, allowed is 2 to 2");
    BROKEN_REPORT(STEP_SUMS, step_sums.n_ns = 0, "the number of times is 0, allowed is 3 to 3");
    BROKEN_REPORT(STEP_SUMS, sum_rows[0]++, "rows is 6, allowed is 5 to 5");
    BROKEN_REPORT(STEP_SUMS, sum_rows[1] = 1, "rows is 1, allowed is 0 to 0");
    BROKEN_REPORT(STEP_SUMS, sum_rows[2] = 5, "rows is 5, allowed is 6 to 8");
    BROKEN_REPORT(STEP_SUMS, sum_rows[2] = 9, "rows is 9, allowed is 6 to 8");
    BROKEN_REPORT(STEP_SUMS, sum_ns[2]++, "step sums: ns is");
    BROKEN_REPORT(STEP_SUMS, step_sums.round_rows++, "round_rows is 17, allowed is 0 to 16");
    BROKEN_REPORT(STEP_SUMS, step_sums.round_ns++, "round_ns is");
    samples s;
    uint32_t steps[MR_ROW_CLASSES + 1] = {0};
    uint64_t sums[MR_ROW_CLASSES + 1] = {0};
    samples_init(&s, 1, MILLRACE__REPORT__BODY_STEP_SUMS);
    s.step_sums.n_steps = s.step_sums.n_rows = s.step_sums.n_ns = MR_ROW_CLASSES;
    s.step_sums.steps = steps;
    s.step_sums.rows = s.step_sums.ns = sums;
    expect_accepted(&s, REPORT);
    s.step_sums.n_steps = s.step_sums.n_rows = s.step_sums.n_ns = MR_ROW_CLASSES + 1;
    expect_refused(&s, REPORT, "the number of classes is 14, allowed is 0 to 13");
}

static void test_device_facts_limits(void **state) {
    (void)state;
    BROKEN_REPORT(FACTS, device.memory_bytes++, "memory_bytes is 1125899906842625");
    BROKEN_REPORT(FACTS, device.n_layers--, "the number of the device's kinds of layers is 1, allowed is 2 to 2");
    BROKEN_REPORT(FACTS, device.n_position_s--, "the number of the device's position_s is 1, allowed is 2 to 2");
    BROKEN_REPORT(FACTS, device.n_layer_bytes--, "the number of layer_bytes is 1, allowed is 2 to 2");
    BROKEN_REPORT(FACTS, device.n_token_bytes--, "the number of token_bytes is 1, allowed is 2 to 2");
    BROKEN_REPORT(FACTS, device.n_trunks--, "the number of trunks is 1, allowed is 2 to 2");
    BROKEN_REPORT(FACTS, device.n_trunk_bytes--, "the number of trunk_bytes is 1, allowed is 2 to 2");
    BROKEN_REPORT(FACTS, device.stage_bytes = UINT64_MAX, "stage_bytes is 18446744073709551615");
    BROKEN_REPORT(FACTS, device.head_bytes = UINT64_MAX, "head_bytes is 18446744073709551615");
    BROKEN_REPORT(FACTS, device.tail_bytes = UINT64_MAX, "tail_bytes is 18446744073709551615");
    BROKEN_REPORT(FACTS, device_bytes[1]++, "kind on the device 1: layer_bytes is 1125899906842625");
    BROKEN_REPORT(FACTS, device.output = NULL, "the times of the device are not complete");
    BROKEN_REPORT(FACTS, device.crossing = NULL, "the times of the device are not complete");
    BROKEN_REPORT(FACTS, device_name[63] = 'd', "the length of the device's name is");
}

static void test_facts_limits(void **state) {
    (void)state;
    BROKEN_CONTROL(MEASURE, measure.kv_type = 2, "measure: kv_type is 2, allowed is 0 to 1");
    BROKEN_CONTROL(MEASURE, measure.max_rows = 0, "measure: max_rows is 0, allowed is 1 to 4096");
    BROKEN_CONTROL(MEASURE, measure.max_rows++, "max_rows is 4097");
    BROKEN_CONTROL(MEASURE, measure.n_together = 0, "n_together is 0");
    BROKEN_CONTROL(MEASURE, measure.n_together++, "n_together is 1025, allowed is 1 to 1024");
    BROKEN_CONTROL(PROBE, probe.peer++, "probe: peer is 1024, allowed is below 1024");
    BROKEN_REPORT(FACTS, facts.status = 99, "facts: status is 99");
    BROKEN_REPORT(FACTS, facts.status = MR_E_CANCELLED, "which no rank has");
    BROKEN_REPORT(FACTS, facts.output = NULL, "facts: the times of the output matrix are missing");
    BROKEN_REPORT(FACTS, position_s[1] = -1, "kind 1: position_s is -1, allowed is 0 to 86400");
    BROKEN_REPORT(FACTS, facts.n_position_s--, "the number of position_s is 1, allowed is 2 to 2");
    BROKEN_REPORT(FACTS, facts.sample_s = NAN, "sample_s is nan");
    BROKEN_REPORT(FACTS, facts.core_share = 1.5, "core_share is 1.5");
    BROKEN_REPORT(FACTS, times[1].n_rows = 0, "kind 1: the number of points is 0, allowed is 1 to 16");
    BROKEN_REPORT(FACTS, times[1].n_rows++, "kind 1: the number of points is 17");
    BROKEN_REPORT(FACTS, times[2].n_seconds--, "facts: the number of times is 15, allowed is 16 to 16");
    BROKEN_REPORT(FACTS, time_rows[0] = 0, "the rows of a point is 0, allowed is 1 to 4096");
    BROKEN_REPORT(FACTS, time_rows[7] = 7, "the rows of a point is 7, allowed is 8 to 4096");
    BROKEN_REPORT(FACTS, time_rows[15]++, "the rows of a point is 4097");
    BROKEN_REPORT(FACTS, times_s[0] = -1e-9, "a time is -1e-09, allowed is 0 to 86400");
    BROKEN_REPORT(FACTS, times_s[3] = NAN, "a time is nan");
    BROKEN_REPORT(FACTS, times_s[15] = INFINITY, "a time is inf");
    BROKEN_REPORT(LINK, link.peer++, "link facts: peer is 1024");
    BROKEN_REPORT(LINK, link.status = 99, "link facts: status is 99");
    BROKEN_REPORT(LINK, link.latency_s = NAN, "latency_s is nan");
    BROKEN_REPORT(LINK, link.second_bytes = 0, "second_bytes is 0, allowed is 1 to 1e+15");
    BROKEN_REPORT(LINK, link.second_bytes = 2e15, "second_bytes is 2e+15");
    samples s;
    Millrace__Times *many[MR_MAX_LAYER_KINDS + 1];
    double position_s[MR_MAX_LAYER_KINDS + 1] = {0};
    samples_init(&s, 1, MILLRACE__REPORT__BODY_FACTS);
    s.facts.device = NULL;
    for (size_t i = 0; i <= MR_MAX_LAYER_KINDS; i++)
        many[i] = &s.times[0];
    s.facts.layers = many;
    s.facts.position_s = position_s;
    s.facts.n_layers = s.facts.n_position_s = MR_MAX_LAYER_KINDS;
    expect_accepted(&s, REPORT);
    s.facts.n_layers = ++s.facts.n_position_s;
    expect_refused(&s, REPORT, "the number of kinds of layers is 17, allowed is 0 to 16");
    s.facts.n_layers = s.facts.n_position_s = 0;
    s.facts.output = NULL;
    expect_accepted(&s, REPORT);
    samples_init(&s, 1, MILLRACE__REPORT__BODY_LINK);
    s.link.status = MR_E_PEER_LOST;
    s.link.second_bytes = 0;
    expect_accepted(&s, REPORT);
}

static void test_measured_limits(void **state) {
    (void)state;
    BROKEN_REPORT(MEASURED, measured.status = 99, "measured again: status is 99");
    BROKEN_REPORT(MEASURED, measured.status = MR_E_CANCELLED, "which no rank has");
    BROKEN_REPORT(MEASURED, measured.layer = NULL, "measured again: the times of the layer are missing");
    BROKEN_REPORT(MEASURED, times[0].n_rows = 0, "the number of points is 0, allowed is 1 to 16");
    BROKEN_REPORT(MEASURED, times[0].n_rows++, "the number of points is 17");
    BROKEN_REPORT(MEASURED, time_rows[15]++, "the rows of a point is 4097");
    BROKEN_REPORT(MEASURED, times_s[3] = NAN, "a time is nan");
    samples s;
    samples_init(&s, 1, MILLRACE__REPORT__BODY_MEASURED);
    s.measured.status = MR_E_NO_MEMORY;
    s.measured.layer = NULL;
    expect_accepted(&s, REPORT);
}

/* The messages of the lobby, before the limits of a plan are known. */
static void test_lobby_limits(void **state) {
    (void)state;
    BROKEN_CONTROL(START, start.epoch = 0, "start: epoch is 0, allowed is 1 to 4294967295");
    BROKEN_REPORT(HELLO, hello.status = 99, "hello: status is 99");
    BROKEN_REPORT(HELLO, hello.cores = (1 << 20) + 1, "hello: cores is 1048577");
    BROKEN_REPORT(HELLO, hello.threads = UINT32_MAX, "hello: threads is 4294967295");
    BROKEN_REPORT(HELLO, hello.n_digest_of--, "hello: the number of digest_bits is 192, allowed is 191 to 191");
    BROKEN_REPORT(HELLO, hello.n_digest_bits = 0, "hello: the number of digest_bits is 0, allowed is 192 to 192");
    BROKEN_REPORT(HELLO, hello.n_digest_of++, "the number of digest_of is 193");
    BROKEN_REPORT(HELLO, digest_of[190] = 1 << 16, "digest_of 190 is 65536, allowed is below 65536");
    uint8_t root[1] = {0};
    const ProtobufCBinaryData short_roots = {.len = 1, .data = root};
    BROKEN_REPORT(HELLO, hello.part_roots = short_roots, "hello: the length of part_roots is 1, allowed is ");
    BROKEN_REPORT(PONG, pong.clock_ns++, "clock_ns is 2305843009213693952");
    BROKEN_REPORT(PONG, pong.clock_ns = -1, "pong: clock_ns is -1, allowed is 0 to");
    samples s;
    mr_err err;
    samples_init(&s, MILLRACE__CONTROL__BODY_PING, MILLRACE__REPORT__BODY_HELLO);
    expect_accepted(&s, CONTROL);
    samples_init(&s, MILLRACE__CONTROL__BODY_PING, MILLRACE__REPORT__BODY_STATE);
    expect_accepted(&s, REPORT);
    samples_init(&s, MILLRACE__CONTROL__BODY_PING, MILLRACE__REPORT__BODY_HELLO);
    memset(s.version, 'v', sizeof s.version - 1);
    memset(s.host, '\t', sizeof s.host - 1);
    Millrace__Report *report = NULL;
    pack(&s, REPORT);
    assert_int_equal(unpack(&s, REPORT, &sample_limits, sample_arena(), &report, &err), MR_OK);
    assert_int_equal(strlen(report->hello->version), MR_MAX_ERROR_TEXT - 1);
    assert_int_equal(strlen(report->hello->host), MR_MAX_ERROR_TEXT - 1);
    assert_int_equal(strspn(report->hello->host, "?"), MR_MAX_ERROR_TEXT - 1);
}

#define BROKEN_SETUP(change, words) BROKEN(LINK_SETUP, 1, 1, change, words)

static void test_link_setup_limits(void **state) {
    (void)state;
    BROKEN_CONTROL(PLAN, stage[1].way = MR_WAYS, "stage 1: way is 3, allowed is 0 to 2");
    BROKEN_REPORT(READY, ready.way = MR_WAYS, "ready: way is 3, allowed is 0 to 2");
    BROKEN_REPORT(HELLO, hello.n_device_uuid = 1, "the number of device_uuid is 1, allowed is 2 to 2");
    BROKEN_SETUP(setup.step = 3, "link setup: step is 3, allowed is 0 to 2");
    BROKEN_SETUP(setup.way = MR_WAY_HOST, "way is 0, allowed is 1 to 2");
    BROKEN_SETUP(setup.way = MR_WAYS, "way is 3, allowed is 1 to 2");
    BROKEN_SETUP(setup.n_uuid = 1, "the number of uuid is 1, allowed is 2 to 2");
    BROKEN_SETUP(setup.id.len--, "the bytes of id is 127, allowed is 128 to 128");
    BROKEN_SETUP(setup.status = 1, "status is 1");
    BROKEN_SETUP(setup.status = MR_E_CANCELLED, "status is");
    samples s;
    samples_init(&s, 1, 1); /* without a device there is only a reason */
    s.setup.status = MR_E_UNSUPPORTED;
    s.setup.n_uuid = s.setup.id.len = s.setup.way = 0;
    expect_accepted(&s, LINK_SETUP);
    s.setup.status = MR_OK;
    s.setup.step = MILLRACE__LINK_SETUP__STEP__RESULT;
    expect_accepted(&s, LINK_SETUP);
}

#define BROKEN_REQUEST(change, words) BROKEN(FILE_REQUEST, 1, 1, change, words)

static void test_file_limits(void **state) {
    (void)state;
    BROKEN_CONTROL(SHARE, peers[1]++, "asker 1 is 1024");
    BROKEN_CONTROL(SHARE, share.part_roots.len--,
                   "share file: the length of part_roots is 16383, allowed is 16384 to 16384");
    BROKEN_CONTROL(SHARE, share.n_parts = 0, "share file: the number of parts is 0");
    BROKEN_CONTROL(SHARE, parts[7].bytes = 0, "part 7: bytes is 0");
    BROKEN_CONTROL(SHARE, parts[7].header_bytes++, "part 7: header_bytes is 34359738369");
    BROKEN_CONTROL(SHARE, parts[7].header_bytes = 0, "part 7: header_bytes is 0");
    BROKEN_CONTROL(SHARE, parts[0].bytes++, "part 511: bytes is 34359738368");
    BROKEN_CONTROL(SHARE, part_sources[3]++, "source 3 is 1024");
    BROKEN_REPORT(HELLO, parts[7].header_bytes = 0, "part 7: header_bytes is 0");
    BROKEN_REPORT(HELLO, parts[0].bytes++, "part 511: bytes is 34359738368");
    BROKEN_REQUEST(request.what = 3, "file request: what is 3");
    BROKEN_REQUEST(request.what = 1, "n_blocks is 256, allowed is 1 to 1");
    BROKEN_REQUEST(request.n_blocks = 0, "n_blocks is 0");
    BROKEN_REQUEST(request.n_blocks++, "n_blocks is 257");
    BROKEN_REQUEST(request.first_block++, "first_block + n_blocks is 1001, allowed is 1 to 1000");
    BROKEN_REQUEST(request.first_block = FILE_BLOCKS, "first_block is 1000, allowed is below 1000");
    BROKEN_REQUEST(request.first_block = UINT64_MAX, "first_block is 18446744073709551615");
}

/* Every status of the program may be sent. */
static void test_every_status_is_known(void **state) {
    (void)state;
    samples s;
    samples_init(&s, 1, 1);
    for (uint32_t value = 0; value < 1000; value++) {
        bool known = strcmp(mr_status_name((mr_status)value), "unknown status") != 0;
        s.token[0].status = value;
        assert_int_equal(mr_msg_check_tokens(&s.tokens, &sample_limits, NULL), known ? MR_OK : MR_E_PROTOCOL);
    }
}

static void test_what_passes_without_a_plan(void **state) {
    (void)state;
    static const mr_msg_limits none = {0};
    for (int body = MILLRACE__CONTROL__BODY_PLAN; body <= MILLRACE__CONTROL__BODY_PROBE; body++) {
        samples s;
        bool passes = body == MILLRACE__CONTROL__BODY_PLAN || body >= MILLRACE__CONTROL__BODY_SHUTDOWN;
        samples_init(&s, body, 1);
        assert_int_equal(mr_msg_check_control(&s.control, &sample_limits, NULL), MR_OK);
        assert_int_equal(mr_msg_check_control(&s.control, &none, NULL), passes ? MR_OK : MR_E_PROTOCOL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_limits),           cmocka_unit_test(test_synthetic_plan_limits),
        cmocka_unit_test(test_open_limits),           cmocka_unit_test(test_step_limits),
        cmocka_unit_test(test_tokens_limits),         cmocka_unit_test(test_report_limits),
        cmocka_unit_test(test_lobby_limits),          cmocka_unit_test(test_file_limits),
        cmocka_unit_test(test_link_setup_limits),     cmocka_unit_test(test_step_sums_limits),
        cmocka_unit_test(test_use_counts_limits),     cmocka_unit_test(test_end_of_use_counts),
        cmocka_unit_test(test_many_use_counts),       cmocka_unit_test(test_facts_limits),
        cmocka_unit_test(test_measured_limits),       cmocka_unit_test(test_device_facts_limits),
        cmocka_unit_test(test_every_status_is_known), cmocka_unit_test(test_what_passes_without_a_plan),
    };
    return cmocka_run_group_tests_name("proto_limits", tests, NULL, NULL);
}
