/* Stages over several backends. The logits have the same bits as on the CPU alone, whichever backend runs a node. A
 * step allocates nothing. A broken or full device gives one clear error. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/graph/debug.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/unit/worker/test_stage_chain.h"

enum { SEED = 11, PROMPT = 21, LENGTH = 30, MAX_VOCAB = 128 };

#define BIT(op) (1u << (op))

/* --- The same tokens through any stage --------------------------------------------------------------------------- */

typedef float logits[CHAIN_SEQUENCES][LENGTH][MAX_VOCAB];

static int32_t id_at(const tiny_model *m, int32_t sequence, int32_t position) {
    return (int32_t)((mr_rng_u64(SEED, (uint64_t)sequence, (uint64_t)position) >> 40) % (uint64_t)m->info.vocab_size);
}

static chain_row row_at(const tiny_model *m, int32_t sequence, int32_t position, logits out) {
    return (chain_row){
        .sequence = sequence,
        .position = position,
        .id = id_at(m, sequence, position),
        .logits = out[sequence][position],
    };
}

/* A prompt at once, the other in pieces, then both token by token. */
static void run_tokens(chain *p, const tiny_model *m, logits out) {
    chain_row rows[CHAIN_MAX_ROWS];
    int32_t n = 0;
    for (int32_t i = 0; i < PROMPT; i++)
        rows[n++] = row_at(m, 0, i, out);
    for (int32_t i = 0; i < 5; i++)
        rows[n++] = row_at(m, 1, i, out);
    chain_step(p, rows, n);
    for (int32_t i = 5; i < PROMPT;) {
        for (n = 0; n < 3 && i < PROMPT; i++)
            rows[n++] = row_at(m, 1, i, out);
        chain_step(p, rows, n);
    }
    for (int32_t i = PROMPT; i < LENGTH; i++) {
        rows[0] = row_at(m, 0, i, out);
        rows[1] = row_at(m, 1, i, out);
        if (i % 2) {
            chain_step(p, rows, 2);
        } else {
            chain_step(p, rows, 1);
            chain_step(p, rows + 1, 1);
        }
    }
}

/* Nothing is allocated in a step, unless graphs are built anew. */
static void run_on(const tiny_model *m, const mr_backends *devices, int32_t n_stages, logits out) {
    chain_config config = {.n_stages = n_stages, .n_threads = 2, .kv_type = MR_TYPE_F16, .devices = *devices};
    chain *p = chain_create(m, &config);
    uint64_t n_allocs = mr_mem_get_stats().n_allocs;
    run_tokens(p, m, out);
    assert_true((mr_mem_get_stats().n_allocs == n_allocs) == mr_graph_reuse_wanted());
    chain_destroy(p);
}

static mr_backend *device(const test_device_options *options) {
    mr_backend *be = NULL;
    mr_err err = {0};
    expect_ok(test_device_create(options, &be, &err), &err);
    return be;
}

/* Runs on these devices before the CPU, and compares with the CPU alone. whole_layers: of each device; NULL: the first
 * device that needs a copy of matrices has all layers. Returns what the first one was asked. */
static test_device_stats check_layers(const tiny_model *m, const logits want, const test_device_options *options,
                                      int n_devices, const int32_t *whole_layers) {
    static logits got;
    mr_backends devices = {.n = n_devices};
    memset(got, 0, sizeof got);
    for (int i = 0; i < n_devices; i++) {
        devices.at[i] = device(&options[i]);
        devices.whole_layers[i] = whole_layers ? whole_layers[i] : options[i].keeps_source ? 0 : m->info.n_layers;
    }
    run_on(m, &devices, 1, got);
    test_device_stats stats = test_device_get_stats(devices.at[0]);
    for (int i = 0; i < n_devices; i++)
        mr_backend_destroy(devices.at[i]);
    for (int s = 0; s < CHAIN_SEQUENCES; s++)
        for (int i = 0; i < LENGTH; i++)
            if (memcmp(got[s][i], want[s][i], sizeof got[s][i]) != 0)
                fail_msg("%s, %d devices with ops %x and %x: sequence %d, position %d differs", m->info.arch, n_devices,
                         options[0].ops, options[n_devices - 1].ops, s, i);
    return stats;
}

static test_device_stats check(const tiny_model *m, const logits want, const test_device_options *options,
                               int n_devices) {
    return check_layers(m, want, options, n_devices, NULL);
}

static tiny_model *make_model_with(const char *arch, mr_type type, int32_t n_experts, logits want) {
    tiny_desc d = tiny_default(arch, type);
    d.vocab_size = 90;
    d.n_experts = n_experts;
    d.n_experts_used = n_experts / 2;
    d.n_predictor = strcmp(arch, "bamboo") == 0 ? 32 : 0;
    tiny_model *m = tiny_model_create(&d);
    memset(want, 0, sizeof(logits));
    run_on(m, &(mr_backends){.n = 0}, 1, want);
    return m;
}

static tiny_model *make_model(const char *arch, mr_type type, logits want) {
    return make_model_with(arch, type, 0, want);
}

/* --- Where things run -------------------------------------------------------------------------------------------- */

static test_device_options ops_of(uint32_t ops, uint64_t seed) {
    return (test_device_options){.ops = ops, .seed = seed, .max_delay_us = 40};
}

static void check_model(const char *arch, mr_type type, int32_t n_experts) {
    static const uint32_t sets[] = {
        TEST_DEVICE_ALL_OPS,
        BIT(MR_OP_MATMUL),
        TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_MATMUL),
        BIT(MR_OP_ATTENTION) | BIT(MR_OP_KV_WRITE) | BIT(MR_OP_TABLE_WRITE) | BIT(MR_OP_KV_COPY),
        TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_KV_COPY),
        BIT(MR_OP_EMBED),
        BIT(MR_OP_EXPERT_MATMUL) | BIT(MR_OP_MATMUL),
        TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_EXPERT_MATMUL),
        TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_ATTENTION),
        BIT(MR_OP_RMS_NORM) | BIT(MR_OP_ADD) | BIT(MR_OP_GLU),
        BIT(MR_OP_TAKE_ROWS),
        BIT(MR_OP_ROUTE) | BIT(MR_OP_GLU) | BIT(MR_OP_EXPERT_SUM),
        BIT(MR_OP_EXPERT_ROWS),
        BIT(MR_OP_ACTIVE) | BIT(MR_OP_AXPY) | BIT(MR_OP_MATMUL),
        TEST_DEVICE_ALL_OPS & ~(BIT(MR_OP_RELU) | BIT(MR_OP_ACTIVE) | BIT(MR_OP_SPARSE_GATE_UP) | BIT(MR_OP_AXPY)),
    };
    static logits want;
    tiny_model *m = make_model_with(arch, type, n_experts, want);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        test_device_options o = ops_of(sets[i], i);
        check(m, want, &o, 1);
    }
    int n_random = CHAIN_SANITIZED ? 3 : 10;
    for (int i = 0; i < n_random; i++) {
        uint64_t seed = SEED + (uint64_t)i;
        test_device_options o[3];
        for (uint64_t k = 0; k < 3; k++)
            o[k] = ops_of((uint32_t)(mr_rng_u64(seed, 50 + k, 0) >> 32) & TEST_DEVICE_ALL_OPS, seed + k);
        int32_t whole[] = {i % 3, (i + 1) % 2, 1};
        check_layers(m, want, o, 1 + i % 3, whole);
    }
    tiny_model_destroy(m);
}

static void test_the_bits_do_not_depend_on_the_device(void **state) {
    (void)state;
    check_model("llama", MR_TYPE_Q8_0, 0);
    check_model("qwen2", MR_TYPE_F16, 0);
    check_model("qwen3", MR_TYPE_Q4_K, 0);
    check_model("llama", MR_TYPE_Q8_0, 6);
    check_model("bamboo", MR_TYPE_F16, 0);
}

/* Devices that do everything: only ids and logits cross the border. */
static void test_a_device_that_does_all_is_left_alone(void **state) {
    (void)state;
    static logits want;
    tiny_model *m = make_model("llama", MR_TYPE_Q8_0, want);
    test_device_options o = ops_of(TEST_DEVICE_ALL_OPS, 1);
    mr_backends devices = {.at = {device(&o)}, .n = 1, .whole_layers = {m->info.n_layers}};
    chain_config config = {.n_stages = 1, .n_threads = 1, .kv_type = MR_TYPE_F16, .devices = devices};
    chain *p = chain_create(m, &config);
    for (int step = 0; step < 3; step++) {
        /* The first step has whole block tables, a set for each sequence; the last one some entries and a copy. */
        int n_sets = (const int[]){CHAIN_SEQUENCES, 0, 1}[step], n_updates = step == 2;
        const int32_t blocks[] = {5, 6};
        if (step == 2) {
            assert_int_equal(mr_stage_set_blocks(chain_stage(p, 0), 0, 3, blocks, 2, NULL), MR_OK);
            mr_stage_copy_block(chain_stage(p, 0), 1, 5);
        }
        test_device_reset(devices.at[0], 0);
        test_device_hold(devices.at[0], 1); /* the whole step is queued before the device begins */
        chain_row row = row_at(m, 0, step, want);
        chain_step(p, &row, 1);
        test_device_stats stats = test_device_get_stats(devices.at[0]);
        assert_int_equal(stats.n_submits, 1 + n_updates);
        assert_int_equal(stats.n_gets, 1);          /* the logits */
        assert_int_equal(stats.n_sets, 1 + n_sets); /* the record */
        assert_int_equal(stats.most_waiting, stats.n_sets + stats.n_submits + stats.n_gets + stats.n_marks);
    }
    chain_destroy(p);
    mr_backend_destroy(devices.at[0]);
    tiny_model_destroy(m);
}

/* As BLAS would stand beside the CPU: no tensor is copied, the file's matrices are read where they are, and few rows
 * stay on the CPU. */
static void test_a_backend_that_multiplies_in_the_memory_of_the_host(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_F16, MR_TYPE_Q8_0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        static logits want;
        tiny_model *m = make_model(i % 2 ? "qwen2" : "llama", types[i], want);
        test_device_options o = ops_of(BIT(MR_OP_MATMUL), i);
        o.host_addressable = true;
        o.keeps_source = i != 1;
        o.min_rows = i == 1 ? 0 : 4;
        test_device_stats stats = check(m, want, &o, 1);
        assert_int_equal(stats.n_sets, 0);
        assert_int_equal(stats.n_gets, 0);
        assert_true(stats.n_submits > 0);
        /* A second device, which has memory of its own, stands first or last in the list. */
        test_device_options both[] = {o, ops_of(TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_ROPE), 3)};
        int32_t whole[] = {o.keeps_source ? 0 : 1, 1, o.keeps_source ? 0 : 1};
        assert_true(check_layers(m, want, both, 2, whole).n_submits > 0);
        both[0] = both[1];
        both[1] = o;
        check_layers(m, want, both, 2, whole + 1);
        tiny_model_destroy(m);
    }
}

/* Matrices of the CPU's layers are taken to a device for steps of many rows, where rates say so; beside a backend
 * that multiplies in the host's memory, too. */
static void test_matrices_are_taken_to_a_device_for_many_rows(void **state) {
    (void)state;
    for (int with_helper = 0; with_helper < 2; with_helper++)
        for (int room = 0; room < 2; room++) {
            static logits want, got;
            tiny_model *m = make_model("llama", room == 1 ? MR_TYPE_F16 : MR_TYPE_Q8_0, want);
            test_device_options o = ops_of(TEST_DEVICE_ALL_OPS, 4), helper = ops_of(BIT(MR_OP_MATMUL), 5);
            helper.host_addressable = helper.keeps_source = true;
            mr_backends devices = {.at = {device(&o)}, .n = 1};
            if (with_helper)
                devices.at[devices.n++] = device(&helper);
            devices.whole_layers[0] = room;
            for (int32_t b = 0; b <= devices.n; b++)
                devices.rates[b] = (mr_rates){.products_per_s = b ? 1e9 : 1e10, .copied_bytes_per_s = 5e8};
            chain_config config = {.n_stages = 1, .n_threads = 1, .kv_type = MR_TYPE_F16, .devices = devices};
            chain *p = chain_create(m, &config);
            int n_loads = test_device_get_stats(devices.at[0]).n_loads;
            if (room == 0) /* without layers there, no matrix is copied at load */
                assert_int_equal(n_loads, 0);
            uint64_t n_allocs = mr_mem_get_stats().n_allocs;
            chain_row row = row_at(m, 1, 0, got);
            chain_step(p, &row, 1);
            assert_int_equal(test_device_get_stats(devices.at[0]).n_loads, n_loads);
            memset(got, 0, sizeof got);
            run_tokens(p, m, got);
            assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
            assert_true(test_device_get_stats(devices.at[0]).n_loads > n_loads);
            assert_memory_equal(got, want, sizeof got);
            chain_destroy(p);
            for (int32_t b = 0; b < devices.n; b++)
                mr_backend_destroy(devices.at[b]);
            tiny_model_destroy(m);
        }
}

/* Graphs that are built anew for every step change no bit, on the CPU alone and beside a device. */
static void test_graphs_built_anew(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    for (int i = 0; i < 3; i++) {
        static logits want, got;
        tiny_model *m = make_model(archs[i], i == 1 ? MR_TYPE_Q6_K : MR_TYPE_Q8_0, want);
        test_device_options o = ops_of(TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_RMS_NORM), 2);
        assert_int_equal(setenv("MILLRACE_GRAPH_REUSE", "off", 1), 0);
        memset(got, 0, sizeof got);
        run_on(m, &(mr_backends){.n = 0}, 2, got);
        assert_memory_equal(got, want, sizeof got);
        check(m, want, &o, 1);
        assert_int_equal(unsetenv("MILLRACE_GRAPH_REUSE"), 0);
        tiny_model_destroy(m);
    }
}

static mr_stage_config config_for(const tiny_model *m, mr_backend *d) {
    return (mr_stage_config){
        .gguf = m->gguf,
        .info = &m->info,
        .range = {0, m->info.n_layers},
        .max_rows = 4,
        .max_out_rows = 1,
        .max_sequences = 1,
        .max_context = 32,
        .n_kv_blocks = 2,
        .kv_type = MR_TYPE_F16,
        .devices = {.at = {d}, .n = 1, .whole_layers = {m->info.n_layers}},
    };
}

/* --- Stages in a row share devices ------------------------------------------------------------------------------- */

static void test_two_stages(void **state) {
    (void)state;
    static logits want, got;
    tiny_model *m = make_model("llama", MR_TYPE_Q8_0, want);
    test_device_options o = ops_of(TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_GLU), 5);
    mr_backends devices = {.at = {device(&o)}, .n = 1, .whole_layers = {m->info.n_layers}};
    memset(got, 0, sizeof got);
    run_on(m, &devices, 2, got);
    assert_memory_equal(got, want, sizeof got);
    mr_backend_destroy(devices.at[0]);
    tiny_model_destroy(m);
}

/* --- What can go wrong ------------------------------------------------------------------------------------------- */

typedef struct fixture {
    tiny_model *model;
    mr_backend *cpu;
} fixture;

static fixture fixture_make(void) {
    fixture f = {0};
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    d.vocab_size = 90;
    f.model = tiny_model_create(&d);
    assert_int_equal(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &f.cpu, NULL), MR_OK);
    return f;
}

static void fixture_destroy(fixture *f) {
    mr_backend_destroy(f->cpu);
    tiny_model_destroy(f->model);
}

/* Two rows of one sequence from position on. */
static void fill_rows(mr_stage *s, int32_t position) {
    mr_step_rows *r = mr_stage_rows(s);
    r->n_rows = 2;
    r->n_out = 1;
    for (int32_t i = 0; i < 2; i++) {
        r->ids[i] = 7 + position + i;
        r->positions[i] = position + i;
        r->slots[i] = MR_KV_BLOCK + position + i;
        r->row_seq[i] = 0;
    }
    r->out_rows[0] = 1;
}

static mr_status run_rows(mr_stage *s, int32_t position, float *out_logits, mr_err *err) {
    static const int32_t blocks[] = {1, 0};
    mr_status status = mr_stage_set_blocks(s, 0, 0, blocks, 2, err);
    fill_rows(s, position);
    if (status == MR_OK)
        status = mr_stage_run(s, &(mr_stage_step){0}, err);
    if (status == MR_OK)
        memcpy(out_logits, mr_stage_logits(s, 0), 90 * sizeof *out_logits);
    return status;
}

/* A long block table is read by the device where it lies: while the device is busy, the tables of other sequences can
 * be changed without a wait. A change of the same table waits, and the step keeps what it was started with. */
static void test_tables_that_change_while_a_step_waits(void **state) {
    (void)state;
    fixture f = fixture_make();
    test_device_options o = ops_of(TEST_DEVICE_ALL_OPS, 1);
    mr_backend *d = device(&o);
    mr_stage_config c = config_for(f.model, d);
    const int32_t blocks[] = {1, 0, 2, 3, 4, 5, 6, 7}, others[] = {9, 9, 9, 9, 9, 9, 9, 9};
    float want[90], got[90];
    bool ended = false;
    mr_stage *s = NULL;
    mr_err err = {0};
    c.max_sequences = 2;
    c.max_context = 8 * MR_KV_BLOCK;
    c.n_kv_blocks = 10;
    expect_ok(mr_stage_create(&c, f.cpu, NULL, NULL, &s, &err), &err);
    for (int32_t position = 0; position < 4; position += 2) {
        expect_ok(mr_stage_set_blocks(s, 0, 0, blocks, 8, &err), &err);
        fill_rows(s, position);
        expect_ok(mr_stage_run(s, &(mr_stage_step){0}, &err), &err);
    }
    memcpy(want, mr_stage_logits(s, 0), sizeof want);
    expect_ok(mr_stage_set_blocks(s, 0, 0, blocks, 8, &err), &err);
    fill_rows(s, 2); /* the last step once more */
    test_device_hold(d, 1000);
    expect_ok(mr_stage_start(s, &(mr_stage_step){0}, &err), &err);
    expect_ok(mr_stage_set_blocks(s, 1, 0, others, 8, &err), &err);
    for (int i = 0; i < 50 && !ended; i++)
        expect_ok(mr_stage_poll(s, mr_clock_now_ns() + MR_NS_PER_S / 1000, &ended, &err), &err);
    assert_false(ended);                                            /* nobody has let the device go on */
    expect_ok(mr_stage_set_blocks(s, 0, 0, others, 8, &err), &err); /* this wait lets the device go on */
    while (!ended)
        expect_ok(mr_stage_poll(s, MR_NEVER, &ended, &err), &err);
    memcpy(got, mr_stage_logits(s, 0), sizeof got);
    assert_memory_equal(got, want, sizeof got);
    mr_stage_destroy(s);
    mr_backend_destroy(d);
    fixture_destroy(&f);
}

/* The device breaks at every call in turn: at load, or in a step, which then leaves nothing under way. */
static void test_a_device_that_breaks(void **state) {
    (void)state;
    fixture f = fixture_make();
    float row[90], good[90];
    bool whole = false;
    int n_loads = 0, n_runs = 0;
    for (int32_t n_good = 1; !whole; n_good += 1 + n_good / 16) {
        test_device_options o = ops_of(TEST_DEVICE_ALL_OPS & ~(BIT(MR_OP_GLU) | BIT(MR_OP_ROPE)), (uint64_t)n_good);
        o.max_delay_us = 10;
        o.n_good = n_good;
        mr_backend *d = device(&o);
        mr_stage_config c = config_for(f.model, d);
        mr_stage *s = NULL;
        mr_err err = {0};
        mr_status status = mr_stage_create(&c, f.cpu, NULL, NULL, &s, &err);
        n_loads += status != MR_OK;
        for (int32_t step = 0; step < 3 && status == MR_OK; step++) {
            status = run_rows(s, 2 * step, row, &err);
            n_runs += status != MR_OK;
        }
        whole = status == MR_OK;
        if (!whole && status != MR_E_DEVICE)
            fail_msg("%d good calls: %s: %s", n_good, mr_status_name(status), err.text);
        if (!whole && s) /* the device keeps its error */
            assert_int_equal(run_rows(s, 0, good, &err), MR_E_DEVICE);
        mr_stage_destroy(s);
        mr_backend_destroy(d);
    }
    print_message("broke %d times at load and %d times in a step\n", n_loads, n_runs);
    assert_true(n_loads > 10 && n_runs > 10);
    fixture_destroy(&f);
}

/* Creates a stage on the device d, runs steps and copies a block. other: NULL, or a device that the stage prefers to
 * d. */
static mr_status use_device(const fixture *f, mr_backend *other, mr_backend *d, test_device_call *out_failed,
                            mr_err *err) {
    mr_stage_config c = config_for(f->model, other ? other : d);
    if (other) {
        c.devices.at[c.devices.n++] = d;
        c.devices.whole_layers[0] = 1;
        c.devices.whole_layers[1] = f->model->info.n_layers - 1;
    }
    mr_stage *s = NULL;
    float row[90];
    mr_status status = mr_stage_create(&c, f->cpu, NULL, NULL, &s, err);
    for (int step = 0; step < 2 && status == MR_OK; step++) {
        if (other) /* it does not begin before somebody waits for it, so it has work when d fails */
            test_device_hold(other, 1000000);
        if (step > 0)
            mr_stage_copy_block(s, 1, 0);
        status = run_rows(s, 2 * step, row, err);
    }
    *out_failed = test_device_get_stats(d).failed;
    mr_stage_destroy(s);
    return status;
}

/* Every call of a device returns an error in turn, at load, in a step and in a copy: the error names the device, and
 * nothing is left on it. */
static void test_every_call_fails_once(void **state) {
    (void)state;
    const uint32_t all = TEST_DEVICE_ALL_OPS, some = all & ~(BIT(MR_OP_GLU) | BIT(MR_OP_ROPE));
    const struct { uint32_t ops, other_ops; } cases[] = {{all, 0}, {some, 0}, {all, all}};
    fixture f = fixture_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n_failed[TEST_DEVICE_CALLS + 1] = {0};
        bool whole = false;
        for (int32_t fail_at = 1; !whole; fail_at += CHAIN_SANITIZED ? 5 : 1) {
            mr_err err = {0};
            mr_backend *d = device(&(test_device_options){.name = "GPU 3", .ops = cases[i].ops, .fail_at = fail_at});
            mr_backend *other = cases[i].other_ops ? device(&(test_device_options){.ops = cases[i].other_ops}) : NULL;
            test_device_call failed;
            mr_status status = use_device(&f, other, d, &failed, &err);
            bool is_memory = failed == TEST_DEVICE_BUFFER_CREATE || failed == TEST_DEVICE_PROGRAM_CREATE;
            whole = failed == TEST_DEVICE_CALLS;
            if (whole)
                expect_ok(status, &err);
            else if (status != (is_memory ? MR_E_NO_MEMORY : MR_E_DEVICE) || !strstr(err.text, "GPU 3"))
                fail_msg("call %d, %s: %s: '%s'", fail_at, test_device_call_name(failed), mr_status_name(status),
                         err.text);
            n_failed[failed]++;
            assert_int_equal(test_device_get_stats(d).live_bytes, 0);
            mr_backend_destroy(d); /* it has neither buffers nor programs any more */
            mr_backend_destroy(other);
        }
        for (test_device_call c = 0; c < TEST_DEVICE_CALLS; c++)
            if (n_failed[c] == 0 && !CHAIN_SANITIZED)
                fail_msg("%s was not called", test_device_call_name(c));
    }
    fixture_destroy(&f);
}

static void test_a_device_with_too_little_memory(void **state) {
    (void)state;
    fixture f = fixture_make();
    mr_status status = MR_E_NO_MEMORY;
    int n_failed = 0;
    for (size_t bytes = 4096; status != MR_OK; bytes += bytes / 4) {
        test_device_options o = ops_of(TEST_DEVICE_ALL_OPS, 1);
        o.memory_bytes = bytes;
        mr_backend *d = device(&o);
        mr_stage_config c = config_for(f.model, d);
        mr_stage *s = NULL;
        mr_err err = {0};
        float row[90];
        status = mr_stage_create(&c, f.cpu, NULL, NULL, &s, &err);
        if (status == MR_OK)
            expect_ok(run_rows(s, 0, row, &err), &err);
        else if (status != MR_E_NO_MEMORY || !strstr(err.text, "test device"))
            fail_msg("%zu bytes: %s: %s", bytes, mr_status_name(status), err.text);
        n_failed += status != MR_OK;
        mr_stage_destroy(s);
        assert_int_equal(test_device_get_stats(d).live_bytes, 0);
        mr_backend_destroy(d);
    }
    assert_true(n_failed > 3);
    fixture_destroy(&f);
}

static void test_failing_allocations(void **state) {
    (void)state;
    fixture f = fixture_make();
    test_device_options o = ops_of(TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_MATMUL), 1);
    o.max_delay_us = 0;
    mr_backend *d = device(&o);
    mr_stage_config c = config_for(f.model, d);
    mr_status status = MR_E_NO_MEMORY;
    int n = 0;
    for (; status != MR_OK; n++) {
        mr_stage *s = NULL;
        mr_err err = {0};
        assert_true(n < 2000);
        mr_mem_fail_at(n);
        status = mr_stage_create(&c, f.cpu, NULL, NULL, &s, &err);
        mr_mem_fail_at(-1);
        if (status != MR_OK && (status != MR_E_NO_MEMORY || !strstr(err.text, "no memory")))
            fail_msg("allocation %d: %s: '%s'", n, mr_status_name(status), err.text);
        mr_stage_destroy(s);
        assert_int_equal(test_device_get_stats(d).live_bytes, 0);
    }
    print_message("%d allocations\n", n - 1);
    mr_backend_destroy(d);
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_bits_do_not_depend_on_the_device),
        cmocka_unit_test(test_a_device_that_does_all_is_left_alone),
        cmocka_unit_test(test_a_backend_that_multiplies_in_the_memory_of_the_host),
        cmocka_unit_test(test_matrices_are_taken_to_a_device_for_many_rows),
        cmocka_unit_test(test_graphs_built_anew),
        cmocka_unit_test(test_two_stages),
        cmocka_unit_test(test_tables_that_change_while_a_step_waits),
        cmocka_unit_test(test_a_device_that_breaks),
        cmocka_unit_test(test_every_call_fails_once),
        cmocka_unit_test(test_a_device_with_too_little_memory),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests_name("stage_devices", tests, NULL, NULL);
}
