/* Out rows of a stage on a device: where the first tokens are enough, these are copied to the host, and the logits of
 * the other rows. Both are those of the CPU, in any mixture, and the bytes that are copied are counted. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "tests/support/prefix_log.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/support/tiny_model.h"
#include "worker/stage/step.h"

enum { N_VOCAB = 3000, MAX_ROWS = 6, MANY = MR_GRAPH_TOP_ROWS + 5 };
static const size_t TOP_BYTES = 8256, LOGITS_BYTES = 12032; /* of a row on the device, padded to 64 bytes */

typedef struct fixture {
    int32_t n_rows; /* of a step, each of a sequence of its own */
    tiny_model *model;
    mr_backend *cpu, *device;
    mr_stage *stage, *on_cpu;
} fixture;

static mr_stage *create_stage(const fixture *f, mr_backend *device) {
    mr_stage *s = NULL;
    mr_err err = {0};
    const mr_stage_config config = {
        .gguf = f->model->gguf,
        .info = &f->model->info,
        .range = {0, f->model->info.n_layers},
        .max_rows = f->n_rows,
        .max_out_rows = f->n_rows,
        .max_sequences = f->n_rows,
        .max_context = MR_KV_BLOCK,
        .n_kv_blocks = f->n_rows,
        .kv_type = MR_TYPE_F16,
        .devices = {.at = {device}, .n = device != NULL, .whole_layers = {f->model->info.n_layers}},
    };
    expect_ok(mr_stage_create(&config, f->cpu, NULL, NULL, &s, &err), &err);
    for (int32_t i = 0; i < f->n_rows; i++)
        expect_ok(mr_stage_set_blocks(s, i, 0, &i, 1, &err), &err);
    return s;
}

static void fixture_open(fixture *f, int32_t n_rows, int32_t n_vocab, const test_device_options *options) {
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    mr_err err = {0};
    d.vocab_size = n_vocab;
    *f = (fixture){.n_rows = n_rows, .model = tiny_model_create(&d)};
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &f->cpu, &err), &err);
    expect_ok(test_device_create(options, &f->device, &err), &err);
    f->stage = create_stage(f, f->device);
    f->on_cpu = create_stage(f, NULL);
}

static void fixture_close(fixture *f) {
    mr_stage_destroy(f->stage);
    mr_stage_destroy(f->on_cpu);
    mr_backend_destroy(f->device);
    mr_backend_destroy(f->cpu);
    tiny_model_destroy(f->model);
}

/* --- A step with both kinds of rows ------------------------------------------------------------------------------- */

/* Row r of the step belongs to sequence r and wants logits if bit r of wants is set. With bit r of top, its first
 * tokens are enough. */
static void run_step(mr_stage *s, int32_t position, unsigned wants, unsigned top) {
    mr_step_rows *rows = mr_stage_rows(s);
    mr_err err = {0};
    rows->n_rows = MAX_ROWS;
    rows->n_out = 0;
    for (int32_t r = 0; r < MAX_ROWS; r++) {
        rows->ids[r] = (37 * r + 11 * position) % N_VOCAB;
        rows->positions[r] = position;
        rows->slots[r] = r * MR_KV_BLOCK + position;
        rows->row_seq[r] = r;
        if (!(wants >> r & 1))
            continue;
        rows->only_top[rows->n_out] = top >> r & 1;
        rows->out_rows[rows->n_out++] = r;
    }
    expect_ok(mr_stage_run(s, &(mr_stage_step){0}, &err), &err);
}

static const float *compared; /* by by_logit */

static int by_logit(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (compared[x] != compared[y])
        return compared[x] > compared[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static int by_id(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void expect_top(const mr_top *top, const float *logits) {
    int32_t order[N_VOCAB];
    uint64_t sum = 0;
    for (int32_t i = 0; i < N_VOCAB; i++)
        order[i] = i;
    compared = logits;
    qsort(order, N_VOCAB, sizeof *order, by_logit);
    for (int32_t i = 0; i < N_VOCAB; i++)
        sum += mr_weight_of(logits[i] - logits[order[0]]);
    qsort(order, MR_TOP_TOKENS, sizeof *order, by_id);
    assert_int_equal(top->n, MR_TOP_TOKENS);
    assert_true(top->sum == sum);
    assert_memory_equal(top->ids, order, sizeof top->ids);
    for (int32_t i = 0; i < MR_TOP_TOKENS; i++)
        assert_memory_equal(&top->logits[i], &logits[order[i]], sizeof *logits);
}

static void check_step(fixture *f, int32_t position, unsigned wants, unsigned top) {
    test_device_stats before = test_device_get_stats(f->device), after;
    size_t n_top = (size_t)__builtin_popcount(wants & top), n_full = (size_t)__builtin_popcount(wants) - n_top;
    run_step(f->on_cpu, position, wants, 0);
    run_step(f->stage, position, wants, top);
    after = test_device_get_stats(f->device);
    assert_int_equal(after.n_gets - before.n_gets, (n_top > 0) + (n_full > 0));
    assert_int_equal(after.get_bytes - before.get_bytes, n_top * TOP_BYTES + n_full * LOGITS_BYTES);
    for (int32_t r = 0, out = 0; r < MAX_ROWS; r++) {
        if (!(wants >> r & 1))
            continue;
        const float *logits = mr_stage_logits(f->on_cpu, out);
        const mr_top *first = mr_stage_top(f->stage, out);
        assert_null(mr_stage_top(f->on_cpu, out));
        assert_true((first != NULL) == (top >> r & 1));
        if (first)
            expect_top(first, logits);
        else
            assert_memory_equal(mr_stage_logits(f->stage, out), logits, N_VOCAB * sizeof *logits);
        out++;
    }
}

/* One kind of rows is one copy, and two kinds are two. */
static void test_rows_of_both_kinds(void **state) {
    (void)state;
    static const unsigned CASES[][2] = {{1, 1},  {1, 0},   {63, 63}, {63, 0}, {63, 21},
                                        {63, 1}, {63, 31}, {42, 34}, {0, 0}};
    fixture f;
    rng r = {.state = 5};
    fixture_open(&f, MAX_ROWS, N_VOCAB,
                 &(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .seed = 3, .max_delay_us = 50});
    assert_true(mr_stage_runs_on_device(f.stage));
    assert_int_equal(mr_stage_max_top(f.stage), MR_GRAPH_TOP_ROWS);
    assert_int_equal(mr_stage_max_top(f.on_cpu), 0);
    int32_t position = 0;
    for (; position < (int32_t)(sizeof CASES / sizeof *CASES); position++)
        check_step(&f, position, CASES[position][0], CASES[position][1]);
    for (; position < MR_KV_BLOCK; position++)
        check_step(&f, position, rng_next(&r) % 64, rng_next(&r) % 64);
    fixture_close(&f);
}

/* A small vocabulary, a device that cannot find first tokens, one that is not exact. */
static void test_stages_without(void **state) {
    (void)state;
    const test_device_options all = {.ops = TEST_DEVICE_ALL_OPS},
                              without = {.ops = TEST_DEVICE_ALL_OPS & ~(1u << MR_OP_TOP)},
                              inexact = {.ops = TEST_DEVICE_ALL_OPS, .is_inexact = true};
    const struct {
        int32_t n_vocab;
        const test_device_options *options;
        bool has_top;
    } cases[] = {{2052, &all, false}, {2053, &all, true}, {N_VOCAB, &without, false}, {N_VOCAB, &inexact, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        fixture_open(&f, MAX_ROWS, cases[i].n_vocab, cases[i].options);
        assert_int_equal(mr_stage_max_top(f.stage) > 0, cases[i].has_top);
        fixture_close(&f);
    }
}

/* --- Which rows of a plan ----------------------------------------------------------------------------------------- */

static const mr_msg_limits LIMITS = {.n_stages = 1,
                                     .max_rows = MANY,
                                     .max_sequences = MANY,
                                     .max_context = MR_KV_BLOCK,
                                     .n_kv_blocks = MANY,
                                     .n_vocab = N_VOCAB};

/* All are sampled from first tokens, but 2 from all logits, and 4 has no sampler. */
static mr_sequences *open_sequences(uint32_t n, prefix_log *log) {
    mr_sequences *all = NULL;
    mr_err err = {0};
    expect_ok(mr_sequences_create(&LIMITS, true, &all, &err), &err);
    for (uint32_t slot = 0; slot < n; slot++) {
        Millrace__OpenSequence open = MILLRACE__OPEN_SEQUENCE__INIT;
        Millrace__Sampling sampling = MILLRACE__SAMPLING__INIT;
        sampling.temperature = slot == 0 ? 0.0f : 0.8f;
        sampling.top_k = slot == 2 ? 0 : 40;
        sampling.top_p = sampling.repeat_penalty = 1.0f;
        open.slot = slot;
        open.generation = 1;
        open.blocks = &slot;
        open.n_blocks = 1;
        open.sampling = slot == 4 ? NULL : &sampling;
        prefix_log_open(log, &open);
        expect_ok(mr_sequences_open(all, &open, &err), &err);
    }
    return all;
}

/* A row of each sequence. Of 3 and 4 the logits are wanted, of the others a token. */
static void fill_step(mr_stage *s, mr_sequences *all, size_t n, prefix_log *log) {
    static Millrace__Run run[MANY], *runs[MANY];
    static uint32_t ids[MANY];
    Millrace__StepPlan plan = MILLRACE__STEP_PLAN__INIT;
    mr_err err = {0};
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = 3 + 5 * i;
        run[i] = (Millrace__Run)MILLRACE__RUN__INIT;
        run[i].slot = i;
        run[i].generation = run[i].n_rows = 1;
        run[i].n_ids = 1;
        run[i].ids = &ids[i];
        run[i].want = i == 3 || i == 4 ? MILLRACE__WANT__WANT_ALL_LOGITS : MILLRACE__WANT__WANT_TOKEN;
        runs[i] = &run[i];
        prefix_log_run(log, &run[i], 0);
    }
    plan.runs = runs;
    plan.n_runs = n;
    expect_ok(mr_step_fill(s, all, &plan, MANY, &err), &err);
}

static void test_which_rows_of_a_plan(void **state) {
    (void)state;
    fixture f;
    prefix_log log = {0};
    mr_sequences *all = open_sequences(5, &log);
    fixture_open(&f, MAX_ROWS, N_VOCAB, &(test_device_options){.ops = TEST_DEVICE_ALL_OPS});
    for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
        mr_stage *s = on_cpu ? f.on_cpu : f.stage;
        fill_step(s, all, 5, &log);
        for (int i = 0; i < 5; i++)
            assert_true(mr_stage_rows(s)->only_top[i] == (!on_cpu && i < 2));
    }
    mr_sequences_destroy(all);
    fixture_close(&f);
}

/* A device finds the first tokens of so many rows at most. The others bring their logits. */
static void test_more_rows_than_a_device_takes(void **state) {
    (void)state;
    fixture f;
    prefix_log log = {0};
    mr_sequences *all = open_sequences(MANY, &log);
    mr_err err = {0};
    int32_t n_top = 0;
    fixture_open(&f, MANY, N_VOCAB, &(test_device_options){.ops = TEST_DEVICE_ALL_OPS});
    fill_step(f.stage, all, MANY, &log);
    fill_step(f.on_cpu, all, MANY, &log);
    expect_ok(mr_stage_run(f.stage, &(mr_stage_step){0}, &err), &err);
    expect_ok(mr_stage_run(f.on_cpu, &(mr_stage_step){0}, &err), &err);
    for (int32_t i = 0; i < MANY; i++) {
        const float *logits = mr_stage_logits(f.on_cpu, i);
        const mr_top *first = mr_stage_top(f.stage, i);
        assert_true((first != NULL) == ((i < 2 || i > 4) && n_top < MR_GRAPH_TOP_ROWS));
        n_top += first != NULL;
        if (first)
            expect_top(first, logits);
        else
            assert_memory_equal(mr_stage_logits(f.stage, i), logits, N_VOCAB * sizeof *logits);
    }
    assert_int_equal(n_top, MR_GRAPH_TOP_ROWS);
    mr_sequences_destroy(all);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_both_kinds),
        cmocka_unit_test(test_stages_without),
        cmocka_unit_test(test_which_rows_of_a_plan),
        cmocka_unit_test(test_more_rows_than_a_device_takes),
    };
    return cmocka_run_group_tests_name("stage_top", tests, NULL, NULL);
}
