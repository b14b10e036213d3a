/* A step that is told to stop ends at its next group of nodes, and the stage runs the next step as if nothing had
 * happened. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"
#include "tests/support/tiny_model.h"
#include "worker/stage/stage.h"

enum { N_ROWS = 5, MAX_CALLS = 1000 };

typedef struct caller {
    atomic_bool stop;
    int n_calls, stop_at;
} caller;

static void count_calls(void *ctx) {
    caller *c = ctx;
    if (++c->n_calls == c->stop_at)
        atomic_store(&c->stop, true);
}

static void fill_rows(mr_stage *s) {
    mr_step_rows *r = mr_stage_rows(s);
    r->n_rows = N_ROWS;
    r->n_out = 1;
    r->n_hidden = 0;
    for (int32_t i = 0; i < N_ROWS; i++) {
        r->ids[i] = 3 + i;
        r->positions[i] = r->slots[i] = i;
        r->row_seq[i] = 0;
    }
    r->out_rows[0] = N_ROWS - 1;
    r->only_top[0] = false;
}

static mr_status run(mr_stage *s, caller *c, int stop_at, mr_err *err) {
    *c = (caller){.stop_at = stop_at};
    const mr_stage_step step = {.progress = count_calls, .progress_ctx = c, .stop = &c->stop};
    fill_rows(s);
    return mr_stage_run(s, &step, err);
}

static void test_a_step_is_stopped(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    tiny_model *m = tiny_model_create(&d);
    mr_backend *backend = NULL;
    mr_stage *s = NULL;
    mr_err err = {0};
    const mr_stage_config config = {.gguf = m->gguf,
                                    .info = &m->info,
                                    .range = {0, m->info.n_layers},
                                    .max_rows = 8,
                                    .max_out_rows = 2,
                                    .max_sequences = 1,
                                    .max_context = 64,
                                    .n_kv_blocks = 4,
                                    .kv_type = MR_TYPE_F16};
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &backend, &err), &err);
    expect_ok(mr_stage_create(&config, backend, NULL, NULL, &s, &err), &err);
    expect_ok(mr_stage_set_blocks(s, 0, 0, (const int32_t[]){0}, 1, &err), &err);
    caller c;
    expect_ok(run(s, &c, 0, &err), &err);
    size_t bytes = (size_t)m->info.vocab_size * sizeof(float);
    float *wanted = mr_alloc(bytes);
    memcpy(wanted, mr_stage_logits(s, 0), bytes);
    int n_calls = c.n_calls;
    assert_in_range(n_calls, 10, MAX_CALLS);
    for (int stop_at = 1; stop_at < n_calls; stop_at++) {
        assert_int_equal(run(s, &c, stop_at, &err), MR_E_CANCELLED);
        expect_ok(run(s, &c, 0, &err), &err);
        assert_memory_equal(mr_stage_logits(s, 0), wanted, bytes);
    }
    mr_free(wanted);
    mr_stage_destroy(s);
    mr_backend_destroy(backend);
    tiny_model_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_step_is_stopped)};
    return cmocka_run_group_tests_name("stage_stop", tests, NULL, NULL);
}
