/* A rank whose device has memory for some layers of the model: the rank measures itself, the planner gives the device
 * as many layers as fit, and a step takes as long as predicted. The time is simulated: kernels of a small model take
 * none, and a node takes the CPU longer than the device. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/planning/plan_predict.h"
#include "coordinator/planning/planner.h"
#include "engine/base/clock.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/support/tiny_model.h"
#include "worker/lobby/measure.h"
#include "worker/stage/stage.h"

enum {
    N_LAYERS = 8,
    MAX_ROWS = 2,
    KV_BLOCKS = 8,
    KV_TOKENS = KV_BLOCKS * MR_KV_BLOCK,
    MAX_PROGRAMS = 64,
    CPU_NODE_NS = 600000,
    DEVICE_NODE_NS = 200000,
    DEVICE_ROW_NS = 20000, /* of each row of a node */
    CALL_NS = 300000,
    CLOCK_STEP_NS = 100000,
};

/* --- A slow CPU -------------------------------------------------------------------------------------------------- */

static mr_backend_ops slow_ops, device_ops;
static const mr_backend_ops *cpu_ops, *test_ops;
static test_clock *simulated;

/* What reads the clock of the process reads the simulated time. */
static void show_time(void) {
    mr_clock_freeze(test_clock_now_ns(simulated));
}

static struct {
    const mr_program *program;
    mr_program_desc desc;
} programs[MAX_PROGRAMS];

/* A node without rows takes no time. */
static int64_t nodes_ns(const mr_program_desc *desc, const mr_run *run, int64_t node_ns) {
    int64_t ns = 0;
    for (int32_t i = 0; i < desc->n_nodes; i++) {
        int32_t out = desc->nodes[i].out;
        mr_row_count rows = out == MR_NO_TENSOR ? MR_ROWS_STEP : desc->tensors[out].row_count;
        ns += rows == MR_ROWS_FIXED || run->n_rows[rows] > 0 ? node_ns : 0;
    }
    return ns;
}

static int64_t device_ns(void *ctx, const mr_program_desc *desc, const mr_run *run) {
    (void)ctx;
    return nodes_ns(desc, run, DEVICE_NODE_NS + DEVICE_ROW_NS * run->n_rows[MR_ROWS_STEP]);
}

static mr_status slow_program_create(mr_backend *be, const mr_program_desc *desc, mr_program **out, mr_err *err) {
    mr_status status = cpu_ops->program_create(be, desc, out, err);
    int i = 0;
    while (i < MAX_PROGRAMS && programs[i].program)
        i++;
    assert_true(i < MAX_PROGRAMS);
    if (status == MR_OK) {
        programs[i].program = *out;
        programs[i].desc = *desc;
    }
    return status;
}

static void slow_program_destroy(mr_backend *be, mr_program *program) {
    for (int i = 0; program && i < MAX_PROGRAMS; i++)
        if (programs[i].program == program)
            programs[i].program = NULL;
    cpu_ops->program_destroy(be, program);
}

static mr_status slow_submit(mr_backend *be, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err) {
    for (int i = 0; i < MAX_PROGRAMS; i++)
        if (programs[i].program == program)
            test_clock_advance(simulated, nodes_ns(&programs[i].desc, run, CPU_NODE_NS));
    show_time();
    return cpu_ops->submit(be, program, run, out, err);
}

static mr_status device_wait(mr_backend *be, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    mr_status status = test_ops->wait(be, fence, deadline_ns, err);
    show_time();
    return status;
}

static mr_backend *slow_cpu(void) {
    mr_backend *be = NULL;
    mr_err err;
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &be, &err), &err);
    cpu_ops = be->ops;
    slow_ops = *be->ops;
    slow_ops.program_create = slow_program_create;
    slow_ops.program_destroy = slow_program_destroy;
    slow_ops.submit = slow_submit;
    be->ops = &slow_ops;
    return be;
}

/* --- A rank and its plan ----------------------------------------------------------------------------------------- */

typedef struct rig {
    tiny_model *m;
    mr_backend *cpu, *device;
    mr_devices devices;
    uint8_t kind[N_LAYERS];
    mr_measured measured;
    mr_rank_facts rank;
    mr_cluster_facts facts;
    mr_planner_config planner;
    mr_plan plan;
    mr_err err;
} rig;

static void make_device(rig *r, size_t memory_bytes) {
    const test_device_options options = {.ops = TEST_DEVICE_ALL_OPS,
                                         .memory_bytes = memory_bytes,
                                         .clock = simulated,
                                         .costs = {.call_ns = CALL_NS, .program_ns = device_ns}};
    mr_backend_destroy(r->device);
    expect_ok(test_device_create(&options, &r->device, &r->err), &r->err);
    test_ops = r->device->ops;
    device_ops = *test_ops;
    device_ops.wait = device_wait;
    r->device->ops = &device_ops;
    r->devices = (mr_devices){.list = {.at = {r->device}, .n = 1}};
}

static void rig_start(rig *r) {
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    d.n_layers = N_LAYERS;
    simulated = test_clock_create(CLOCK_STEP_NS);
    assert_non_null(simulated);
    test_clock_advance(simulated, MR_NS_PER_S);
    show_time();
    *r = (rig){.m = tiny_model_create(&d), .cpu = slow_cpu()};
    r->facts = (mr_cluster_facts){
        .n_ranks = 1, .n_layers = N_LAYERS, .n_kinds = 1, .row_bytes = 256, .kind = r->kind, .ranks = &r->rank};
    r->planner =
        (mr_planner_config){.facts = &r->facts, .n_sequences = 1, .kv_tokens = KV_TOKENS, .memory.stage_bytes = 1};
    make_device(r, 0);
}

static void rig_stop(rig *r) {
    mr_backend_destroy(r->device);
    mr_backend_destroy(r->cpu);
    tiny_model_destroy(r->m);
    test_clock_destroy(simulated);
    mr_clock_freeze(-1);
}

static void measure(rig *r) {
    const mr_measure_config config = {.gguf = r->m->gguf,
                                      .info = &r->m->info,
                                      .backend = r->cpu,
                                      .devices = &r->devices,
                                      .kv_type = MR_TYPE_F16,
                                      .max_rows = MAX_ROWS,
                                      .kind_ns = 150 * MR_NS_PER_MS};
    expect_ok(mr_measure_stage_times(&config, &r->measured, &r->err), &r->err);
    assert_int_equal(r->measured.n_kinds, 1);
    r->rank = (mr_rank_facts){.output = r->measured.output, .device = r->measured.device};
    memcpy(r->rank.layer, r->measured.layer, sizeof r->rank.layer);
    memcpy(r->rank.position_s, r->measured.position_s, sizeof r->rank.position_s);
}

/* Memory for n layers and half a layer. */
static size_t memory_for(const rig *r, int32_t n) {
    const mr_plan_stage stage = {.last = N_LAYERS, .device_layers = n};
    const mr_measured_device *d = &r->rank.device;
    double layer = (double)d->layer_bytes[0] + KV_TOKENS * (double)d->token_bytes[0];
    return (size_t)((mr_planner_device_bytes(&r->facts, &stage, KV_TOKENS) + layer / 2) * 64 / 63);
}

static void expect_layers(rig *r, int32_t n) {
    expect_ok(mr_planner_solve(&r->planner, &r->plan, &r->err), &r->err);
    assert_int_equal(r->plan.n_stages, 1);
    assert_int_equal(r->plan.stages[0].device_layers, n);
    expect_ok(mr_planner_check_memory(&r->planner, &r->plan, &r->err), &r->err);
    assert_true(mr_planner_kv_tokens(&r->planner, &r->plan) >= KV_TOKENS);
}

/* --- Steps of a plan --------------------------------------------------------------------------------------------- */

static mr_stage *create_stage(rig *r) {
    mr_stage_config config = {.gguf = r->m->gguf,
                              .info = &r->m->info,
                              .range = {0, N_LAYERS},
                              .max_rows = MAX_ROWS,
                              .max_out_rows = MAX_ROWS,
                              .max_sequences = MAX_ROWS,
                              .max_context = KV_TOKENS,
                              .n_kv_blocks = KV_BLOCKS,
                              .kv_type = MR_TYPE_F16,
                              .devices = r->devices.list};
    mr_stage *s = NULL;
    config.devices.whole_layers[0] = r->plan.stages[0].device_layers;
    expect_ok(mr_stage_create(&config, r->cpu, NULL, NULL, &s, &r->err), &r->err);
    for (int32_t i = 0; i < MAX_ROWS; i++)
        expect_ok(mr_stage_set_blocks(s, i, 0, &i, 1, &r->err), &r->err);
    return s;
}

static double step_seconds(rig *r, mr_stage *s, int32_t n_rows) {
    mr_step_rows *rows = mr_stage_rows(s);
    rows->n_rows = rows->n_out = n_rows;
    rows->n_hidden = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        rows->ids[i] = rows->row_seq[i] = rows->out_rows[i] = i;
        rows->positions[i] = 0;
        rows->slots[i] = i * MR_KV_BLOCK;
    }
    int64_t start_ns = mr_clock_now_ns();
    expect_ok(mr_stage_run(s, &(mr_stage_step){0}, &r->err), &r->err);
    return (double)(mr_clock_now_ns() - start_ns) / (double)MR_NS_PER_S;
}

static void expect_predicted(rig *r, const mr_plan_prediction *p, mr_stage *s, int32_t n_rows) {
    double want = mr_plan_step_seconds(p, 0, n_rows), got = step_seconds(r, s, n_rows);
    print_message("%d layers on the device, %d rows: predicted %.2f ms, measured %.2f ms\n",
                  (int)r->plan.stages[0].device_layers, (int)n_rows, 1e3 * want, 1e3 * got);
    assert_true(fabs(got / want - 1) <= 0.1);
}

static void test_as_many_layers_as_fit(void **state) {
    (void)state;
    rig r;
    rig_start(&r);
    measure(&r);
    assert_true(r.measured.device.is_known);
    assert_string_equal(r.measured.device.name, "test device");
    assert_true(r.measured.device.layer[0].seconds[0] < r.measured.layer[0].seconds[0]);
    const mr_measured_device *d = &r.measured.device;
    print_message("a layer: CPU %.2f ms, device %.2f ms; output: %.2f ms, %.2f ms; crossing %.2f ms\n",
                  1e3 * r.measured.layer[0].seconds[0], 1e3 * d->layer[0].seconds[0],
                  1e3 * r.measured.output.seconds[0], 1e3 * d->output.seconds[0], 1e3 * d->crossing.seconds[0]);
    print_message("bytes: layer %d, token %d, stage %d, head %d, tail %d\n", (int)d->layer_bytes[0],
                  (int)d->token_bytes[0], (int)d->stage_bytes, (int)d->head_bytes, (int)d->tail_bytes);
    expect_layers(&r, N_LAYERS); /* no limit */
    for (int32_t n = 0; n <= N_LAYERS; n++) {
        r.rank.device.memory_bytes = memory_for(&r, n);
        expect_layers(&r, n);
    }
    /* The output does not fit: neither does the layer in front of it go to the device. */
    r.rank.device.memory_bytes -= (r.rank.device.layer_bytes[0] + r.rank.device.tail_bytes) / 2 + 5000;
    expect_layers(&r, N_LAYERS - 1);
    rig_stop(&r);
}

static void check_prediction(rig *r, int32_t n) {
    static mr_plan_prediction p;
    make_device(r, memory_for(r, n));
    measure(r); /* within this memory */
    expect_layers(r, n);
    mr_plan_predict(&r->facts, &r->plan, 0, &p);
    mr_stage *s = create_stage(r);
    mr_stage_bytes bytes = mr_stage_get_sizes(s).devices[0];
    double all = (double)(bytes.weights + bytes.kv + bytes.tables + bytes.work);
    assert_true(all <= mr_planner_device_bytes(&r->facts, &r->plan.stages[0], KV_TOKENS));
    expect_predicted(r, &p, s, 1);
    expect_predicted(r, &p, s, MAX_ROWS);
    mr_stage_destroy(s);
}

static void test_predicted_step(void **state) {
    (void)state;
    rig r;
    rig_start(&r);
    measure(&r);
    check_prediction(&r, 5);
    check_prediction(&r, N_LAYERS);
    rig_stop(&r);
}

/* A device that computes other bits gets no layers in exact numerics. */
static void test_inexact_device(void **state) {
    (void)state;
    mr_backend *be = NULL;
    mr_err err;
    expect_ok(test_device_create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .is_inexact = true}, &be, &err),
              &err);
    const mr_devices all = {.list = {.at = {be}, .n = 1}, .is_measured = true};
    assert_int_equal(mr_devices_holder(&all.list), 0);
    mr_devices exact = mr_devices_for(&all, false), fast = mr_devices_for(&all, true);
    assert_int_equal(exact.list.n, 0);
    assert_int_equal(mr_devices_holder(&exact.list), -1);
    assert_int_equal(fast.list.n, 1);
    assert_ptr_equal(fast.list.at[0], be);
    mr_backend_destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_many_layers_as_fit),
        cmocka_unit_test(test_predicted_step),
        cmocka_unit_test(test_inexact_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
