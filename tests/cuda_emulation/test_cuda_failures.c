/* tests/cuda_emulation/test_cuda_failures.c - a stage on an emulated GPU while calls of the driver fail: each call in
 * turn, each piece of queued work in turn, and for want of memory. There is one clear error, nothing is left on the
 * device, and no call has wrong arguments. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/cuda/cuda_backend.h"
#include "tests/cuda_emulation/driver.h"
#include "tests/support/share.h"
#include "tests/support/test.h"
#include "tests/support/tiny_model.h"
#include "worker/stage/stage.h"

enum { ROWS = 2, STEPS = 2, VOCABULARY = 90 };

typedef struct fixture {
    tiny_model *model;
    mr_backend *cpu;
    float want[VOCABULARY]; /* logits of the last row, of the CPU alone */
} fixture;

/* Runs the steps on a stage. Copies a KV block over another one in between. devices: may have none. *out_failed: the
 * function of the driver that failed before the stage was destroyed. */
static mr_status run_stage(const fixture *f, const mr_backends *devices, float out[VOCABULARY], const char **out_failed,
                           mr_err *err) {
    static const int32_t blocks[] = {1, 0};
    const mr_stage_config config = {
        .gguf = f->model->gguf,
        .info = &f->model->info,
        .range = {0, f->model->info.n_layers},
        .max_rows = 4,
        .max_out_rows = 1,
        .max_sequences = 1,
        .max_context = 32,
        .n_kv_blocks = 2,
        .kv_type = MR_TYPE_F16,
        .devices = *devices,
    };
    mr_stage *s = NULL;
    mr_status status = mr_stage_create(&config, f->cpu, NULL, NULL, &s, err);
    for (int32_t step = 0; step < STEPS && status == MR_OK; step++) {
        mr_step_rows *r = mr_stage_rows(s);
        status = mr_stage_set_blocks(s, 0, 0, blocks, 2, err);
        if (step > 0)
            mr_stage_copy_block(s, 1, 0);
        r->n_rows = ROWS;
        r->n_out = 1;
        for (int32_t i = 0; i < ROWS; i++) {
            r->positions[i] = ROWS * step + i;
            r->ids[i] = 7 + r->positions[i];
            r->slots[i] = MR_KV_BLOCK + r->positions[i];
            r->row_seq[i] = 0;
        }
        r->out_rows[0] = ROWS - 1;
        if (status == MR_OK)
            status = mr_stage_run(s, &(mr_stage_step){0}, err);
    }
    if (status == MR_OK)
        memcpy(out, mr_stage_logits(s, 0), VOCABULARY * sizeof *out);
    *out_failed = emulated_driver_counts().failed;
    mr_stage_destroy(s);
    return status;
}

static fixture make(void) {
    fixture f = {0};
    mr_err err = {0};
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    d.vocab_size = VOCABULARY;
    f.model = tiny_model_create(&d);
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &f.cpu, &err), &err);
    const char *failed;
    expect_ok(run_stage(&f, &(mr_backends){.n = 0}, f.want, &failed, &err), &err);
    return f;
}

static void destroy(fixture *f) {
    mr_backend_destroy(f->cpu);
    tiny_model_destroy(f->model);
}

/* The same with all layers on an emulated GPU. */
static mr_status run_device(const fixture *f, const emulated_options *options, const char **out_failed, mr_err *err) {
    static const cuda_image images[] = {{"kernels", "all of them"}, {NULL, NULL}};
    float got[VOCABULARY];
    mr_backends devices = {.n = 1, .whole_layers = {f->model->info.n_layers}};
    emulated_driver_reset(options);
    mr_status status =
        mr_cuda_backend_create(&(mr_cuda_options){.driver = emulated_driver(), .images = images}, &devices.at[0], err);
    *out_failed = emulated_driver_counts().failed;
    if (status == MR_OK)
        status = run_stage(f, &devices, got, out_failed, err);
    if (status == MR_OK)
        assert_memory_equal(got, f->want, sizeof got);
    mr_backend_destroy(devices.at[0]);
    const emulated_counts c = emulated_driver_counts();
    if (c.n_live != 0 || c.n_refused != 0)
        fail_msg("%s failed: %d objects are left, wrong arguments for %s", c.failed ? c.failed : "nothing", c.n_live,
                 c.refused ? c.refused : "nothing");
    return status;
}

/* Functions whose failure need not be an error of the steps, whose results are right then: what they destroy is gone
 * all the same, memory need not be pinned, and a step may have no time. */
static bool is_optional(const char *function) {
    static const char *const names[] = {"mem_free",
                                        "mem_free_host",
                                        "mem_host_register",
                                        "stream_destroy",
                                        "event_destroy",
                                        "module_unload",
                                        "graph_destroy",
                                        "graph_exec_destroy",
                                        "mem_host_unregister",
                                        "device_primary_ctx_release",
                                        "event_elapsed_time",
                                        "ctx_set_current"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(function, names[i]) == 0)
            return true;
    return false;
}

static void check_error(mr_status status, const mr_err *err, const char *what, int32_t number) {
    if ((status != MR_E_DEVICE && status != MR_E_NO_MEMORY) || !strstr(err->text, "CUDA"))
        fail_msg("%s %d: %s: '%s'", what, number, mr_status_name(status), err->text);
}

/* The calls of each function fail in turn: the first ones, and fewer and fewer of the later ones unless the run is
 * long. */
static void test_every_call_fails_once(void **state) {
    (void)state;
    static const cuda_result results[] = {CUDA_LAUNCH_FAILED, CUDA_OUT_OF_MEMORY};
    fixture f = make();
    int n_runs = 0, n_functions = 0;
    for (int i = 0; emulated_driver_functions[i]; i++) {
        const char *function = emulated_driver_functions[i];
        bool whole = false;
        for (int32_t at = 1; !whole; at += share_is_long() ? 1 : 1 + at / 2) {
            const emulated_options options = {
                .fail = function, .fail_at = at, .result = results[at % 2], .max_delay_us = 200, .seed = 1};
            const char *failed = NULL;
            mr_err err = {0};
            mr_status status = run_device(&f, &options, &failed, &err);
            if (failed && (status != MR_OK || !is_optional(failed)))
                check_error(status, &err, function, at);
            else
                expect_ok(status, &err);
            whole = !emulated_driver_counts().failed;
            n_functions += !whole && at == 1;
            n_runs++;
        }
    }
    print_message("%d runs, %d functions of the driver failed\n", n_runs, n_functions);
    assert_true(n_functions > 30);
    destroy(&f);
}

/* Work fails when its turn comes, and what the host calls next returns the error. */
static void test_all_work_fails_once(void **state) {
    (void)state;
    fixture f = make();
    mr_status status = MR_E_DEVICE;
    int n_failed = 0;
    for (int32_t at = 1; status != MR_OK; at += share_is_long() ? 1 : 1 + at / 8) {
        const char *failed = NULL;
        mr_err err = {0};
        status = run_device(&f, &(emulated_options){.break_at = at, .max_delay_us = 30, .seed = (uint64_t)at}, &failed,
                            &err);
        if (status != MR_OK)
            check_error(status, &err, "work", at);
        n_failed += status != MR_OK;
    }
    print_message("%d runs failed\n", n_failed);
    assert_true(n_failed > 5);
    destroy(&f);
}

static void test_too_little_memory(void **state) {
    (void)state;
    fixture f = make();
    mr_status status = MR_E_NO_MEMORY;
    int n_failed = 0;
    for (size_t bytes = 1 << 16; status != MR_OK; bytes += bytes / 4) {
        const char *failed = NULL;
        mr_err err = {0};
        status = run_device(&f, &(emulated_options){.memory_bytes = bytes}, &failed, &err);
        if (status != MR_OK && (status != MR_E_NO_MEMORY || !strstr(err.text, "emulated GPU")))
            fail_msg("%zu bytes: %s: '%s'", bytes, mr_status_name(status), err.text);
        n_failed += status != MR_OK;
    }
    assert_true(n_failed > 3);
    destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_fails_once),
        cmocka_unit_test(test_all_work_fails_once),
        cmocka_unit_test(test_too_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
