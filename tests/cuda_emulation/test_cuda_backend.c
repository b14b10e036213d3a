/* tests/cuda_emulation/test_cuda_backend.c - the host side of the CUDA backend on the emulated driver: records of small
 * sets, the order of calls and of a graph's nodes, what a step costs, times of marks, and errors. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/cuda_order.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "tests/cuda_emulation/driver.h"
#include "tests/cuda_emulation/emulator.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

static const cuda_image IMAGES[] = {{"kernels", "all of them"}, {NULL, NULL}};

static mr_backend *create(const emulated_options *options) {
    mr_backend *be = NULL;
    mr_err err = {0};
    emulated_driver_reset(options);
    expect_ok(mr_cuda_backend_create(&(mr_cuda_options){.driver = emulated_driver(), .images = IMAGES}, &be, &err),
              &err);
    return be;
}

/* Nothing is left, and no call had wrong arguments. */
static void destroy(mr_backend *be) {
    mr_backend_destroy(be);
    emulated_counts c = emulated_driver_counts();
    assert_int_equal(c.n_live, 0);
    if (c.n_refused > 0)
        fail_msg("%s was called with wrong arguments", c.refused);
}

static mr_buffer *create_buffer(mr_backend *be, size_t bytes) {
    mr_buffer *b = NULL;
    mr_err err = {0};
    expect_ok(be->ops->buffer_create(be, bytes, &b, &err), &err);
    return b;
}

static mr_fence set(mr_backend *be, mr_buffer *b, size_t offset, const void *src, size_t bytes) {
    mr_fence fence = 0;
    mr_err err = {0};
    expect_ok(be->ops->set(be, b, offset, src, bytes, &fence, &err), &err);
    return fence;
}

/* Waits for the bytes. */
static void get(mr_backend *be, const mr_buffer *b, size_t offset, void *dst, size_t bytes) {
    mr_fence fence = 0;
    mr_err err = {0};
    expect_ok(be->ops->get(be, b, offset, dst, bytes, &fence, &err), &err);
    expect_ok(be->ops->wait(be, fence, MR_NEVER, &err), &err);
}

/* --- Sets -------------------------------------------------------------------------------------------------------- */

/* Pieces of every size and alignment, small and large, many at a time and over each other, give what memcpy gives. */
static void test_sets(void **state) {
    (void)state;
    enum { BYTES = 300000, ROUNDS = 12, MOST_SETS = 400 };
    static uint8_t want[BYTES], got[BYTES], src[BYTES];
    uint64_t seed = 0x5e75;
    for (int pinned = 0; pinned <= 1; pinned++) {
        mr_backend *be = create(&(emulated_options){.seed = seed, .max_delay_us = 30});
        mr_buffer *b = create_buffer(be, BYTES);
        rng r = {.state = seed + (uint64_t)pinned};
        mr_err err = {0};
        if (pinned)
            expect_ok(be->ops->pin(be, src, sizeof src, &err), &err);
        memset(want, 0, sizeof want);
        (void)set(be, b, 0, want, sizeof want);
        for (int i = 0; i < BYTES; i++)
            src[i] = (uint8_t)(i * 7 + i / 256);
        for (int round = 0; round < ROUNDS; round++) {
            int n_sets = rng_below(&r, MOST_SETS);
            for (int i = 0; i < n_sets; i++) {
                size_t most = rng_below(&r, 16) == 0 ? 100000 : rng_below(&r, 4) == 0 ? 2000 : 40;
                size_t bytes = rng_next(&r) % most;
                size_t to = rng_next(&r) % (BYTES - bytes), from = rng_next(&r) % (BYTES - bytes);
                to = rng_below(&r, 2) ? to & ~(size_t)15 : to;
                memcpy(want + to, src + from, bytes);
                (void)set(be, b, to, src + from, bytes);
            }
            memset(got, 0, sizeof got);
            get(be, b, 0, got, sizeof got);
            assert_memory_equal(got, want, sizeof got);
        }
        if (pinned)
            be->ops->unpin(be, src);
        be->ops->buffer_destroy(be, b);
        destroy(be);
    }
}

/* Small sets that nothing reads are not launched, and those into a buffer that is gone do no harm. */
static void test_sets_wait_for_a_launch(void **state) {
    (void)state;
    mr_backend *be = create(NULL);
    mr_buffer *a = create_buffer(be, 1000), *b = create_buffer(be, 1000);
    uint8_t bytes[1000] = {1, 2, 3}, got[1000] = {0};
    mr_err err = {0};
    (void)set(be, a, 0, bytes, sizeof bytes);
    mr_fence fence = set(be, b, 0, bytes, sizeof bytes);
    expect_ok(be->ops->wait(be, fence, MR_NEVER, &err), &err);
    assert_int_equal(emulated_driver_counts().n_launches, 0);
    be->ops->buffer_destroy(be, a);
    get(be, b, 0, got, sizeof got);
    assert_memory_equal(got, bytes, sizeof got);
    assert_int_equal(emulated_driver_counts().n_launches, 1);
    get(be, b, 0, got, sizeof got);
    assert_int_equal(emulated_driver_counts().n_launches, 1);
    be->ops->buffer_destroy(be, b);
    destroy(be);
}

/* --- Weights ----------------------------------------------------------------------------------------------------- */

/* A matrix that goes up in several pieces lies in memory as the kernel that repacks it as a whole writes it. Calls in
 * front of it and behind it keep their places. */
static void test_weights(void **state) {
    (void)state;
    enum { COLS = 100000, ROWS = 3 * 2 * 16 + 3, GUARD = 512 };
    mr_backend *be = create(&(emulated_options){.seed = 5, .max_delay_us = 100});
    uint8_t guard[GUARD], rubbish[GUARD], after[GUARD];
    mr_tensor t;
    mr_fence fence = 0;
    mr_err err = {0};
    size_t bytes = 0;
    expect_ok(be->ops->weight_bytes(be, MR_TYPE_F16, COLS, ROWS, &bytes, &err), &err);
    assert_true(mr_tensor_init(&t, "w", MR_TYPE_F16, COLS, ROWS, MR_STORAGE_WEIGHT, MR_ROWS_FIXED));
    const size_t file_bytes = t.row_bytes * ROWS;
    uint8_t *src = mr_alloc(file_bytes), *want = mr_alloc(bytes), *got = mr_alloc(bytes);
    assert_true(src && want && got && file_bytes > 2 * 8 * 1024 * 1024);
    for (size_t i = 0; i < file_bytes; i++)
        src[i] = (uint8_t)(i * 31 + i / 1000);
    cuda_launch_desc l;
    _Alignas(16) uint8_t args[CUDA_MAX_ARGS];
    cuda_weight_repack(&(cuda_repack){MR_TYPE_F16, COLS, ROWS, src, want}, args, &l);
    emulator_launch(emulator_find(l.kernel), (emulator_grid){l.grid[0], l.grid[1], 0}, l.n_threads, l.args);

    t.buffer = create_buffer(be, bytes + 2 * GUARD);
    t.offset = GUARD;
    t.bytes = bytes;
    expect_ok(be->ops->pin(be, src, file_bytes, &err), &err);
    memset(guard, 0x11, sizeof guard);
    memset(rubbish, 0x22, sizeof rubbish);
    (void)set(be, t.buffer, GUARD, rubbish, sizeof rubbish);
    (void)set(be, t.buffer, 0, guard, sizeof guard);
    (void)set(be, t.buffer, GUARD + bytes, guard, sizeof guard);
    int32_t n_waits = emulated_driver_counts().n_waits;
    expect_ok(be->ops->weight_load(be, &t, src, &fence, &err), &err);
    assert_int_equal(emulated_driver_counts().n_waits, n_waits);
    expect_ok(be->ops->wait(be, fence, MR_NEVER, &err), &err);
    be->ops->unpin(be, src);
    get(be, t.buffer, GUARD, got, bytes);
    assert_memory_equal(got, want, bytes);
    for (int end = 0; end < 2; end++) {
        get(be, t.buffer, end ? GUARD + bytes : 0, after, sizeof after);
        assert_memory_equal(after, guard, sizeof guard);
    }

    t.ne[1] += 16; /* does not fit into the buffer */
    expect_fails(be->ops->weight_load(be, &t, src, &fence, &err), MR_E_INTERNAL, &err, "outside a buffer");
    expect_fails(be->ops->weight_bytes(be, MR_TYPE_F32, 1000000, 16, &bytes, &err), MR_E_UNSUPPORTED, &err, "1000000");
    mr_free(src);
    mr_free(want);
    mr_free(got);
    be->ops->buffer_destroy(be, t.buffer);
    destroy(be);
}

/* --- Programs ---------------------------------------------------------------------------------------------------- */

enum { COLUMNS = 300, MAX_ROWS = 4, ROW_FLOATS = 304 }; /* rows are padded to 64 bytes */

/* Sums of rows: node i adds tensors a[i] and b[i], and writes to tensor y[i]. */
typedef struct sums {
    mr_backend *be;
    mr_buffer *buffer;
    mr_tensor tensors[16];
    mr_node nodes[32];
    mr_program *program;
    float values[16][MAX_ROWS * ROW_FLOATS]; /* what the tensors should be */
} sums;

static void place_tensors(sums *s, int32_t n) {
    size_t bytes = 0;
    for (int32_t i = 0; i < n; i++) {
        mr_tensor *t = &s->tensors[i];
        assert_true(mr_tensor_init(t, "t", MR_TYPE_F32, COLUMNS, MAX_ROWS, MR_STORAGE_WORK, MR_ROWS_STEP));
        assert_int_equal(t->row_bytes, ROW_FLOATS * sizeof(float));
        t->offset = bytes;
        bytes += (t->bytes + 255) / 256 * 256;
    }
    s->buffer = create_buffer(s->be, bytes);
    for (int32_t i = 0; i < n; i++)
        s->tensors[i].buffer = s->buffer;
}

static mr_node add_node(int32_t a, int32_t b, int32_t y) {
    mr_node n = {.op = MR_OP_ADD, .out = y};
    for (int k = 0; k < MR_MAX_INPUTS; k++)
        n.in[k] = k == 0 ? a : k == 1 ? b : MR_NO_TENSOR;
    return n;
}

static mr_status create_program(sums *s, int32_t n_nodes, mr_err *err) {
    const mr_program_desc desc = {.tensors = s->tensors, .nodes = s->nodes, .n_nodes = n_nodes};
    return s->be->ops->program_create(s->be, &desc, &s->program, err);
}

static void end_sums(sums *s) {
    s->be->ops->program_destroy(s->be, s->program);
    s->be->ops->buffer_destroy(s->be, s->buffer);
    destroy(s->be);
}

/* Random programs whose nodes use few tensors again and again, in graphs whose nodes run in any order that their edges
 * allow: the results are those of the order of the program. */
static void test_nodes_wait_for_each_other(void **state) {
    (void)state;
    enum { PROGRAMS = 40, STEPS = 3, TENSORS = 6, NODES = 24 };
    static sums s;
    for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
        rng r = {.state = seed};
        mr_err err = {0};
        s = (sums){.be = create(&(emulated_options){.seed = seed})};
        place_tensors(&s, TENSORS);
        for (int32_t i = 0; i < NODES; i++)
            s.nodes[i] = add_node(rng_below(&r, TENSORS), rng_below(&r, TENSORS), rng_below(&r, TENSORS));
        expect_ok(create_program(&s, NODES, &err), &err);
        for (int step = 0; step < STEPS; step++) {
            const int32_t n_rows = 1 + rng_below(&r, MAX_ROWS), n = n_rows * ROW_FLOATS;
            mr_fence fence = 0;
            for (int32_t t = 0; t < TENSORS; t++) {
                for (int32_t i = 0; i < MAX_ROWS * ROW_FLOATS; i++)
                    s.values[t][i] = (float)(1 + rng_below(&r, 8)) / 1024.0f;
                (void)set(s.be, s.buffer, s.tensors[t].offset, s.values[t], sizeof s.values[t]);
            }
            mr_run run = {.n_rows = {[MR_ROWS_STEP] = n_rows}};
            expect_ok(s.be->ops->submit(s.be, s.program, &run, &fence, &err), &err);
            for (int32_t k = 0; k < NODES; k++)
                for (int32_t i = 0; i < n; i++)
                    if (i % ROW_FLOATS < COLUMNS)
                        s.values[s.nodes[k].out][i] = s.values[s.nodes[k].in[0]][i] + s.values[s.nodes[k].in[1]][i];
            for (int32_t t = 0; t < TENSORS; t++) {
                static float got[MAX_ROWS * ROW_FLOATS];
                get(s.be, s.buffer, s.tensors[t].offset, got, sizeof got);
                if (memcmp(got, s.values[t], sizeof got) != 0)
                    fail_msg("seed %d, step %d: tensor %d is wrong", (int)seed, step, t);
            }
        }
        end_sums(&s);
    }
}

/* A step: its inputs as small sets, rows as a large one, the run, and the result. It costs one launch, one copy up and
 * one down, and no call waits. Many steps stand in the queue at once. */
static void test_cost_of_a_step(void **state) {
    (void)state;
    enum { STEPS = 40, LARGE = 70000 };
    static sums s;
    static float got[STEPS][ROW_FLOATS];
    static uint8_t rows[LARGE];
    mr_err err = {0};
    mr_fence fence = 0;
    s = (sums){.be = create(&(emulated_options){.seed = 3, .max_delay_us = 20})};
    mr_buffer *large = create_buffer(s.be, LARGE);
    place_tensors(&s, 3);
    s.nodes[0] = add_node(0, 1, 2);
    expect_ok(create_program(&s, 1, &err), &err);
    expect_ok(s.be->ops->pin(s.be, got, sizeof got, &err), &err);
    expect_ok(s.be->ops->pin(s.be, rows, sizeof rows, &err), &err);
    emulated_counts before = emulated_driver_counts();
    for (int step = 0; step < STEPS; step++) {
        float a[ROW_FLOATS], b[ROW_FLOATS];
        for (int i = 0; i < ROW_FLOATS; i++) {
            a[i] = (float)step;
            b[i] = (float)i;
        }
        (void)set(s.be, s.buffer, s.tensors[0].offset, a, sizeof a);
        (void)set(s.be, large, 0, rows, sizeof rows);
        (void)set(s.be, s.buffer, s.tensors[1].offset, b, sizeof b);
        memset(a, 0xff, sizeof a);
        mr_run run = {.n_rows = {[MR_ROWS_STEP] = 1}};
        expect_ok(s.be->ops->submit(s.be, s.program, &run, &fence, &err), &err);
        expect_ok(s.be->ops->get(s.be, s.buffer, s.tensors[2].offset, got[step], sizeof got[step], &fence, &err), &err);
    }
    emulated_counts after = emulated_driver_counts();
    assert_int_equal(after.n_graph_launches - before.n_graph_launches, STEPS);
    assert_int_equal(after.n_nodes - before.n_nodes, 2 * STEPS);
    assert_int_equal(after.n_launches, before.n_launches);
    assert_int_equal(after.n_copies_up - before.n_copies_up, STEPS);
    assert_int_equal(after.n_copies_down - before.n_copies_down, STEPS);
    assert_int_equal(after.n_waits, before.n_waits);
    assert_int_equal(after.n_not_pinned, before.n_not_pinned);
    assert_int_equal(after.n_allocations, before.n_allocations);
    expect_ok(s.be->ops->wait(s.be, fence, MR_NEVER, &err), &err);
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < COLUMNS; i++)
            assert_true(got[step][i] == (float)(step + i));
    s.be->ops->unpin(s.be, got);
    s.be->ops->unpin(s.be, rows);
    s.be->ops->buffer_destroy(s.be, large);
    end_sums(&s);
}

/* An edge that follows from others is left out. */
static void test_order(void **state) {
    (void)state;
    cuda_order *o = NULL;
    mr_err err = {0};
    int32_t before[5];
    expect_ok(cuda_order_create(5, &o, &err), &err);
    /* 0 and 1 write parts of what 2 reads; 3 writes over what 2 reads; 4 reads what all of them wrote, and more. */
    assert_int_equal(cuda_order_add(o, (cuda_use[]){{100, 10, true}}, 1, before), 0);
    assert_int_equal(cuda_order_add(o, (cuda_use[]){{110, 10, true}, {50, 5, false}}, 2, before), 0);
    assert_int_equal(cuda_order_add(o, (cuda_use[]){{105, 10, false}, {120, 10, true}}, 2, before), 2);
    assert_int_equal(before[0], 1);
    assert_int_equal(before[1], 0);
    assert_int_equal(cuda_order_add(o, (cuda_use[]){{105, 1, true}, {50, 5, false}}, 2, before), 1);
    assert_int_equal(before[0], 2);
    assert_int_equal(cuda_order_add(o, (cuda_use[]){{0, 1000, false}}, 1, before), 1);
    assert_int_equal(before[0], 3);
    cuda_order_destroy(o);
    cuda_order_destroy(NULL);
}

/* A router of n experts for one row. Returns whether the device supports it, and runs it then. */
static bool route(mr_backend *be, int32_t n) {
    static float logits[4096];
    mr_tensor t[2];
    mr_node node = {.op = MR_OP_ROUTE, .out = 1, .params.experts = {.n = n, .n_used = 1}};
    mr_program *program = NULL;
    mr_fence fence = 0;
    mr_err err = {0};
    int32_t best = -1;
    for (int k = 1; k < MR_MAX_INPUTS; k++)
        node.in[k] = MR_NO_TENSOR;
    assert_true(mr_tensor_init(&t[0], "logits", MR_TYPE_F32, n, 1, MR_STORAGE_WORK, MR_ROWS_STEP));
    assert_true(mr_tensor_init(&t[1], "routes", MR_TYPE_I32, 2, 1, MR_STORAGE_WORK, MR_ROWS_STEP));
    if (!be->ops->supports(be, t, &node))
        return false;
    t[1].offset = mr_round_up(t[0].bytes, 256);
    t[0].buffer = t[1].buffer = create_buffer(be, t[1].offset + t[1].bytes);
    logits[n - 1] = 1.0f;
    (void)set(be, t[0].buffer, 0, logits, (size_t)n * sizeof *logits);
    logits[n - 1] = 0.0f;
    const mr_program_desc desc = {.tensors = t, .nodes = &node, .n_nodes = 1};
    expect_ok(be->ops->program_create(be, &desc, &program, &err), &err);
    expect_ok(be->ops->submit(be, program, &(mr_run){.n_rows = {[MR_ROWS_STEP] = 1}}, &fence, &err), &err);
    get(be, t[1].buffer, t[1].offset, &best, sizeof best);
    assert_int_equal(best, n - 1);
    be->ops->program_destroy(be, program);
    be->ops->buffer_destroy(be, t[0].buffer);
    return true;
}

/* A kernel may have more shared memory than the usual 48 KiB, up to what the device has for a block. */
static void test_shared_memory(void **state) {
    (void)state;
    mr_backend *be = create(NULL);
    assert_true(route(be, 2048));
    assert_true(route(be, 4096));
    assert_true(route(be, 3500));
    destroy(be);
    be = create(&(emulated_options){.shared_bytes = 60000});
    assert_true(route(be, 3750));
    assert_false(route(be, 3751));
    destroy(be);
}

/* --- Marks ------------------------------------------------------------------------------------------------------- */

/* The times of marks go on over many rounds of the events, and the time between two marks is that of the driver. */
static void test_marks(void **state) {
    (void)state;
    enum { MARKS = 150, LARGE = 100000 };
    static uint8_t bytes[LARGE];
    mr_backend *be = create(&(emulated_options){.seed = 8, .max_delay_us = 200});
    mr_buffer *b = create_buffer(be, LARGE);
    mr_fence marks[MARKS];
    mr_err err = {0};
    int64_t start_ns = mr_clock_now_ns(), early_ns = 0, early_here_ns = 0, late_here_ns = 0, ns = 0, last_ns = 0;
    for (int i = 0; i < MARKS; i++) {
        if (i == MARKS - 1) {
            expect_ok(be->ops->wait(be, marks[i - 1], MR_NEVER, &err), &err);
            late_here_ns = mr_clock_now_ns();
        }
        expect_ok(be->ops->mark(be, &marks[i], &err), &err);
        (void)set(be, b, 0, bytes, LARGE);
        if (i == MR_KEPT_MARKS) {
            expect_ok(be->ops->wait(be, marks[i], MR_NEVER, &err), &err);
            early_here_ns = mr_clock_now_ns();
            expect_ok(be->ops->fence_ns(be, marks[i], &early_ns, &err), &err);
        }
    }
    expect_ok(be->ops->wait(be, marks[MARKS - 1], MR_NEVER, &err), &err);
    int64_t took_ns = mr_clock_now_ns() - start_ns;
    for (int i = MARKS - MR_KEPT_MARKS; i < MARKS; i++) {
        expect_ok(be->ops->fence_ns(be, marks[i], &ns, &err), &err);
        assert_true(ns >= last_ns);
        last_ns = ns;
    }
    assert_true(last_ns - early_ns >= late_here_ns - early_here_ns - MARKS * 1000); /* each time is rounded */
    assert_true(last_ns - early_ns <= took_ns);
    assert_int_equal(be->ops->fence_ns(be, marks[MARKS - MR_KEPT_MARKS - 1], &ns, &err), MR_E_INVALID);
    mr_backend_drain(be);
    be->ops->buffer_destroy(be, b);
    destroy(be);
}

/* A deadline in the past asks once; what is not reached is a timeout. */
static void test_polls(void **state) {
    (void)state;
    enum { LARGE = 100000 };
    static uint8_t bytes[LARGE];
    mr_backend *be = create(&(emulated_options){.seed = 8, .max_delay_us = 20000});
    mr_buffer *b = create_buffer(be, LARGE);
    mr_err err = {0};
    mr_fence mark = 0, fence = set(be, b, 0, bytes, LARGE);
    int64_t ns = 77;
    expect_ok(be->ops->mark(be, &mark, &err), &err);
    int n_polls = 0;
    while (be->ops->wait(be, mark, 0, &err) == MR_E_TIMEOUT) {
        int32_t n_before = emulated_driver_counts().n_polls;
        mr_status status = be->ops->fence_ns(be, mark, &ns, &err);
        assert_true(status == MR_OK || (status == MR_E_TIMEOUT && ns == 77));
        assert_true(emulated_driver_counts().n_polls <= n_before + 1);
        n_polls++;
    }
    assert_true(n_polls > 0);
    expect_ok(be->ops->wait(be, fence, 0, &err), &err);
    assert_int_equal(emulated_driver_counts().n_waits, 1); /* when the backend was created */
    be->ops->buffer_destroy(be, b);
    destroy(be);
}

/* --- Errors ------------------------------------------------------------------------------------------------------ */

static void expect_refused(const emulated_options *o, int32_t device, const char *words) {
    mr_backend *be = NULL;
    mr_err err = {0};
    emulated_driver_reset(o);
    const mr_cuda_options options = {.driver = emulated_driver(), .images = IMAGES, .device = device};
    expect_fails(mr_cuda_backend_create(&options, &be, &err), MR_E_UNSUPPORTED, &err, words);
    assert_null(be);
    assert_int_equal(emulated_driver_counts().n_live, 0);
}

static void test_hosts_without_the_device(void **state) {
    (void)state;
    expect_refused(&(emulated_options){.no_device = true}, 0, "no CUDA device 0");
    expect_refused(&(emulated_options){.n_devices = 2}, 2, "no CUDA device 2");
    expect_refused(&(emulated_options){.n_devices = 2}, -1, "no CUDA device -1");
    expect_refused(&(emulated_options){.version = 12030}, 0, "is for CUDA 12.3; hint: install a driver for CUDA 12.4");
    expect_refused(&(emulated_options){.capability = 75}, 0, "compute capability 7");
    const emulated_options no_code = {.fail = "module_load_data", .fail_at = 1, .result = CUDA_NO_BINARY_FOR_GPU};
    expect_refused(&no_code, 0, "CMAKE_CUDA_ARCHITECTURES");
    emulated_driver_reset(&(emulated_options){.n_devices = 3});
    assert_int_equal(mr_cuda_count(emulated_driver()), 3);
    emulated_driver_reset(&(emulated_options){.no_device = true});
    assert_int_equal(mr_cuda_count(emulated_driver()), 0);
}

static void test_memory_limits(void **state) {
    (void)state;
    enum { MIB = 1 << 20 };
    const emulated_options host = {.memory_bytes = 64 * MIB};
    mr_cuda_options options = {.driver = emulated_driver(), .images = IMAGES, .n_sharers = 2};
    mr_backend *be = create(&host);
    mr_device_info info;
    mr_buffer *b = NULL;
    mr_err err = {0};
    be->ops->describe(be, &info);
    assert_true(info.memory_bytes > 40 * MIB && info.memory_bytes < 64 * MIB);
    expect_fails(be->ops->buffer_create(be, info.memory_bytes + 1, &b, &err), MR_E_NO_MEMORY, &err, "hint: ");
    b = create_buffer(be, 30 * MIB);
    be->ops->buffer_destroy(be, b);
    b = create_buffer(be, 30 * MIB);
    be->ops->buffer_destroy(be, b);
    destroy(be);

    emulated_driver_reset(&host);
    expect_ok(mr_cuda_backend_create(&options, &be, &err), &err);
    be->ops->describe(be, &info);
    assert_int_equal(info.memory_bytes, 32 * MIB);
    destroy(be);
    emulated_driver_reset(&host);
    options.memory_bytes = 5 * MIB;
    expect_ok(mr_cuda_backend_create(&options, &be, &err), &err);
    be->ops->describe(be, &info);
    assert_int_equal(info.memory_bytes, 5 * MIB);
    destroy(be);

    emulated_driver_reset(
        &(emulated_options){.memory_bytes = 64 * MIB, .fail = "mem_alloc", .fail_at = 4, .result = CUDA_OUT_OF_MEMORY});
    options.memory_bytes = 0;
    expect_ok(mr_cuda_backend_create(&options, &be, &err), &err);
    b = create_buffer(be, MIB);
    mr_buffer *none = NULL;
    expect_fails(be->ops->buffer_create(be, 2 * MIB, &none, &err), MR_E_NO_MEMORY, &err, "of 64 MiB are free");
    assert_null(none);
    get(be, b, 0, &(uint8_t){0}, 1); /* the device still works */
    be->ops->buffer_destroy(be, b);
    destroy(be);
}

/* After an error of the device every call that needs it fails with its text, and what exists can be destroyed. */
static void test_broken_device(void **state) {
    (void)state;
    static sums s;
    static float row[ROW_FLOATS];
    mr_err err = {0};
    mr_fence fence = 0;
    mr_program *program = NULL;
    s = (sums){.be = create(&(emulated_options){.fail = "graph_launch", .fail_at = 2, .result = CUDA_LAUNCH_FAILED})};
    place_tensors(&s, 2);
    s.nodes[0] = add_node(0, 0, 1);
    expect_ok(create_program(&s, 1, &err), &err);
    const mr_run run = {.n_rows = {[MR_ROWS_STEP] = 1}};
    const mr_program_desc desc = {.tensors = s.tensors, .nodes = s.nodes, .n_nodes = 1};
    const mr_backend_ops *ops = s.be->ops;
    expect_ok(ops->submit(s.be, s.program, &run, &fence, &err), &err);
    expect_ok(ops->wait(s.be, fence, MR_NEVER, &err), &err);
    mr_fence reached = fence;
    expect_fails(ops->submit(s.be, s.program, &run, &fence, &err), MR_E_DEVICE, &err, "launch a graph");
    assert_int_equal(fence, reached);
    for (int i = 0; i < 2; i++) {
        mr_buffer *b = NULL;
        expect_fails(ops->submit(s.be, s.program, &run, &fence, &err), MR_E_DEVICE, &err, "launch a graph");
        expect_fails(ops->set(s.be, s.buffer, 0, row, sizeof row, &fence, &err), MR_E_DEVICE, &err, "launch a graph");
        expect_fails(ops->get(s.be, s.buffer, 0, row, sizeof row, &fence, &err), MR_E_DEVICE, &err, "launch a graph");
        expect_fails(ops->mark(s.be, &fence, &err), MR_E_DEVICE, &err, "launch a graph");
        expect_fails(ops->wait(s.be, reached + 1, MR_NEVER, &err), MR_E_DEVICE, &err, "launch a graph");
        expect_fails(ops->buffer_create(s.be, 1, &b, &err), MR_E_DEVICE, &err, "launch a graph");
        expect_fails(ops->program_create(s.be, &desc, &program, &err), MR_E_DEVICE, &err, "launch a graph");
        expect_fails(ops->pin(s.be, row, sizeof row, &err), MR_E_DEVICE, &err, "launch a graph");
    }
    ops->program_destroy(s.be, s.program);
    ops->buffer_destroy(s.be, s.buffer);
    mr_backend_destroy(s.be);
    assert_int_equal(emulated_driver_counts().n_live, 0);
}

static void test_ranges(void **state) {
    (void)state;
    mr_backend *be = create(NULL);
    mr_buffer *b = create_buffer(be, 100), *none = NULL;
    uint8_t bytes[100] = {0};
    mr_fence fence = 77;
    mr_err err = {0};
    expect_fails(be->ops->set(be, b, 1, bytes, 100, &fence, &err), MR_E_INTERNAL, &err, "outside a buffer of 100");
    expect_fails(be->ops->get(be, b, 101, bytes, 0, &fence, &err), MR_E_INTERNAL, &err, "outside a buffer of 100");
    assert_int_equal(fence, 77);
    assert_int_equal(be->ops->buffer_wrap(be, bytes, 100, &none, &err), MR_E_UNSUPPORTED);
    be->ops->buffer_destroy(be, b);
    b = create_buffer(be, 0);
    get(be, b, 0, bytes, 0);
    be->ops->buffer_destroy(be, b);
    destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets),           cmocka_unit_test(test_sets_wait_for_a_launch),
        cmocka_unit_test(test_weights),        cmocka_unit_test(test_nodes_wait_for_each_other),
        cmocka_unit_test(test_cost_of_a_step), cmocka_unit_test(test_order),
        cmocka_unit_test(test_shared_memory),  cmocka_unit_test(test_marks),
        cmocka_unit_test(test_polls),          cmocka_unit_test(test_hosts_without_the_device),
        cmocka_unit_test(test_memory_limits),  cmocka_unit_test(test_broken_device),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests_name("cuda_backend", tests, NULL, NULL);
}
