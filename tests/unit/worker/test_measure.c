/* The measurement of layers: what is measured and what ends the measurement. No test depends on a speed. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "tests/support/share.h"
#include "tests/support/test.h"
#include "tests/support/tiny_model.h"
#include "worker/lobby/measure.h"

typedef struct rig {
    tiny_model *m;
    mr_backend *backend;
    mr_measure_config config;
    int n_progress, n_asked, ends_at; /* ends_at: the measurement is told to end at that question; -1: never */
} rig;

static void note_progress(void *ctx) {
    ((rig *)ctx)->n_progress++;
}

static bool told_to_end(void *ctx) {
    rig *r = ctx;
    return r->n_asked++ == r->ends_at;
}

static void rig_start(rig *r, const tiny_desc *d, int32_t max_rows) {
    mr_err err;
    *r = (rig){.m = tiny_model_create(d), .ends_at = -1};
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 2}, &r->backend, &err), &err);
    r->config = (mr_measure_config){.gguf = r->m->gguf,
                                    .info = &r->m->info,
                                    .backend = r->backend,
                                    .kv_type = MR_TYPE_F16,
                                    .max_rows = max_rows,
                                    .kind_ns = 50 * MR_NS_PER_MS,
                                    .progress = note_progress,
                                    .told_to_end = told_to_end,
                                    .ctx = r};
}

static void rig_stop(rig *r) {
    mr_backend_destroy(r->backend);
    tiny_model_destroy(r->m);
}

static void expect_curve(const mr_step_times *t, int32_t max_rows) {
    assert_true(t->n >= 1);
    for (int32_t i = 0; i < t->n; i++) {
        assert_int_equal(t->rows[i], 1 << i);
        assert_true(t->rows[i] <= max_rows);
        assert_true(isfinite(t->seconds[i]) && t->seconds[i] >= 0);
    }
}

static void measure_model(const tiny_desc *d, int32_t max_rows, int32_t n_kinds) {
    rig r;
    mr_measured out;
    mr_err err;
    rig_start(&r, d, max_rows);
    mr_status status = mr_measure_stage_times(&r.config, &out, &err);
    if (status != MR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(out.n_kinds, n_kinds);
    for (int32_t k = 0; k < n_kinds; k++) {
        expect_curve(&out.layer[k], max_rows);
        assert_true(out.layer[k].seconds[0] > 0);
        assert_true(out.position_s[k] >= 0 && isfinite(out.position_s[k]));
    }
    expect_curve(&out.output, max_rows);
    assert_true(out.sample_s > 0 && isfinite(out.sample_s));
    assert_true(out.core_share > 0 && out.core_share <= 1);
    assert_true(r.n_progress > 0);
    rig_stop(&r);
}

static void test_measures(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    measure_model(&d, 16, 1); /* a model of two layers has no inner layer */
    d.n_layers = 1;
    measure_model(&d, 3, 1);
    d.n_layers = 7;
    measure_model(&d, 64, 1);
    d.edit = (tiny_edit){.name = "blk.3.ffn_down.weight", .kind = TINY_TYPE, .type = MR_TYPE_F16};
    measure_model(&d, 64, 2);
    d.edit.name = "blk.6.ffn_down.weight";
    measure_model(&d, 1, 2);
    d.n_experts = 4;
    d.n_experts_used = 2;
    d.edit.name = NULL;
    measure_model(&d, 64, 1);
}

/* All row counts are measured on a model that leaves time for all of them. */
static void test_measures_all_rows(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    rig r;
    mr_measured out;
    mr_err err;
    d.n_layers = 3;
    rig_start(&r, &d, 2500);
    r.config.kind_ns = 5 * MR_NS_PER_S;
    expect_ok(mr_measure_stage_times(&r.config, &out, &err), &err);
    assert_int_equal(out.layer[0].n, 12); /* the twelfth row count is 2048 */
    assert_int_equal(out.output.n, 7);    /* the seventh row count is 64 */
    rig_stop(&r);
}

/* While others run: a few points, and nothing else. The budget is over at once, which leaves one round. */
static void test_measures_again(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    d.n_layers = 5;
    d.edit = (tiny_edit){.name = "blk.2.ffn_down.weight", .kind = TINY_TYPE, .type = MR_TYPE_F16};
    for (int32_t max_rows = 1; max_rows <= 17; max_rows += 8) {
        rig r;
        mr_step_times out;
        mr_err err;
        rig_start(&r, &d, max_rows);
        r.config.kind_ns = 1;
        expect_ok(mr_measure_again(&r.config, &out, &err), &err);
        assert_int_equal(out.n, max_rows == 1 ? 1 : max_rows == 9 ? 2 : 3);
        for (int32_t i = 0; i < out.n; i++) {
            assert_int_equal(out.rows[i], 1 << 2 * i);
            assert_true(out.seconds[i] > 0 && isfinite(out.seconds[i]));
        }
        assert_true(r.n_progress > 0);
        int n_asked = r.n_asked;
        assert_true(n_asked > 1 + out.n); /* the load asks, too */
        for (r.ends_at = 0; r.ends_at < n_asked; r.ends_at++) {
            r.n_asked = 0;
            assert_int_equal(mr_measure_again(&r.config, &out, &err), MR_E_CANCELLED);
        }
        rig_stop(&r);
    }
}

static void test_ends_when_told(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_F16);
    rig r;
    mr_measured out;
    mr_err err;
    d.n_layers = 3;
    rig_start(&r, &d, 8);
    r.config.kind_ns = 0; /* 0: the default budget, enough time for more questions than 60 on any machine */
    for (int i = 0; i < 60; i += 7) {
        r.n_asked = 0;
        r.ends_at = i;
        assert_int_equal(mr_measure_stage_times(&r.config, &out, &err), MR_E_CANCELLED);
    }
    rig_stop(&r);
}

/* The first, second, third ... allocation fails. */
static void test_without_memory(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_F16);
    rig r;
    double seconds;
    mr_err err;
    rig_start(&r, &d, 8);
    mr_status status = MR_E_NO_MEMORY;
    int64_t n = 0;
    for (; status != MR_OK && n < 10000; n++) {
        mr_mem_fail_at(n);
        status = mr_measure_sample(&r.config, &seconds, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
    }
    assert_true(status == MR_OK && n > 10);
    r.config.kind_ns = 1;
    mr_step_times out;
    for (n = 0, status = MR_E_NO_MEMORY; status != MR_OK && n < 10000; n++) {
        mr_mem_fail_at(n);
        status = mr_measure_again(&r.config, &out, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
    }
    assert_true(status == MR_OK && n > 10);
    rig_stop(&r);
}

/* The trials of a kind are as many as there is memory for: that one of them does not fit does not end the
 * measurement. */
static void test_fewer_trials_without_memory(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_F16);
    d.n_layers = 16;
    rig r;
    mr_measured out;
    mr_err err;
    rig_start(&r, &d, 1);
    r.config.kind_ns = 1;
    int64_t n_allocs = -(int64_t)mr_mem_get_stats().n_allocs, n = 0;
    expect_ok(mr_measure_stage_times(&r.config, &out, &err), &err);
    n_allocs += (int64_t)mr_mem_get_stats().n_allocs;
    mr_status status = MR_E_NO_MEMORY;
    const int64_t every = share_is_small() ? 15 : 5;
    for (; status != MR_OK; n += every) {
        mr_mem_fail_at(n);
        status = mr_measure_stage_times(&r.config, &out, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
    }
    assert_true(n < n_allocs * 3 / 4); /* allocations up to the end of the first trial */
    for (; n < n_allocs && status == MR_OK; n += every) {
        mr_mem_fail_at(n);
        status = mr_measure_stage_times(&r.config, &out, &err);
        mr_mem_fail_at(-1);
    }
    assert_int_equal(status, MR_OK);
    rig_stop(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measures),       cmocka_unit_test(test_measures_all_rows),
        cmocka_unit_test(test_measures_again), cmocka_unit_test(test_ends_when_told),
        cmocka_unit_test(test_without_memory), cmocka_unit_test(test_fewer_trials_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
