/* The files of the page, and the data that the page draws: as JSON and as metrics. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "coordinator/serving/page/page.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

static const mr_page_stage STAGES[2] = {
    {.first_layer = 0,
     .last_layer = 3,
     .rank = 1,
     .host = "node7\xff",
     .weight_bytes = UINT64_C(5) << 40,
     .kv_bytes = 2,
     .work_bytes = 3,
     .ns = {[MR_PHASE_COMPUTE] = 1500000000, [MR_PHASE_NO_WORK] = 250000000},
     .n_steps = 7,
     .n_rows = 70,
     .out_bytes = 4096,
     .step_rows = 10,
     .step_s = 0.002,
     .predicted_s = 0.001},
    {.first_layer = 3, .last_layer = 8, .n_steps = 6},
};

static mr_page_stats facts_of_two(void) {
    return (mr_page_stats){.state = MR_PAGE_READY,
                           .loaded = 1,
                           .version = "1.0",
                           .model = "demo \"model\"",
                           .n_layers = 8,
                           .n_context = 512,
                           .now_ns = 12500000000,
                           .start_ns = 10000000000,
                           .n_live = 3,
                           .n_waiting = 2,
                           .max_sequences = 4,
                           .n_blocks = 32,
                           .n_held_blocks = 20,
                           .n_cached_blocks = 8,
                           .n_free_blocks = 4,
                           .block_tokens = 16,
                           .n_prompt_tokens = 100,
                           .n_cached_tokens = 40,
                           .n_generated = INT64_C(1) << 40,
                           .n_steps = 7,
                           .n_open_steps = 3,
                           .n_micro_batches = 2,
                           .n_stages = 2,
                           .stages = STAGES};
}

static json_t *state_of(const mr_page_stats *stats, const mr_metrics *m) {
    mr_text_buf out = {0};
    mr_err err;
    json_error_t error;
    expect_ok(mr_page_write_state(stats, m, &out, &err), &err);
    json_t *root = json_loadb(out.data, out.len, 0, &error);
    if (!root)
        fail_msg("%s: %s", error.text, out.data);
    mr_text_buf_deinit(&out);
    return root;
}

static const json_t *at(const json_t *root, const char *a, const char *b) {
    const json_t *value = json_object_get(json_object_get(root, a), b);
    assert_non_null(value);
    return value;
}

static void test_state(void **state) {
    (void)state;
    mr_metrics *m = NULL;
    mr_err err;
    mr_page_stats stats = facts_of_two();
    expect_ok(mr_metrics_create(&m, &err), &err);
    mr_page_count_latency(m, false, 700000);
    json_t *root = state_of(&stats, m);
    assert_string_equal(json_string_value(json_object_get(root, "state")), "ready");
    assert_true(json_is_null(json_object_get(root, "error")));
    assert_true(json_real_value(json_object_get(root, "time_s")) == 2.5);
    assert_int_equal(json_integer_value(json_object_get(root, "start")), stats.start_ns / 1000);
    assert_string_equal(json_string_value(json_object_get(root, "model")), "demo \"model\"");
    assert_int_equal(json_integer_value(at(root, "sequences", "waiting")), 2);
    assert_int_equal(json_integer_value(at(root, "blocks", "cached")), 8);
    assert_int_equal(json_integer_value(at(root, "totals", "generated")), INT64_C(1) << 40);
    const json_t *latency = at(root, "latency", "next_token");
    assert_int_equal(json_array_size(latency), json_array_size(at(root, "latency", "bounds_s")) + 1);
    assert_int_equal(json_integer_value(json_array_get(latency, 1)), 1);
    const json_t *stages = json_object_get(root, "stages"), *first = json_array_get(stages, 0);
    assert_int_equal(json_array_size(stages), 2);
    assert_string_equal(json_string_value(json_object_get(first, "host")), "node7\xEF\xBF\xBD");
    assert_int_equal(json_integer_value(at(first, "bytes", "weights")), INT64_C(5) << 40);
    assert_true(json_real_value(at(first, "seconds", "compute")) == 1.5);
    assert_true(json_real_value(at(first, "step", "predicted_s")) == 0.001);
    assert_true(json_is_null(json_object_get(json_array_get(stages, 1), "host")));
    assert_true(json_is_null(at(json_array_get(stages, 1), "step", "measured_s")));
    json_decref(root);
    mr_metrics_destroy(m);
}

static void test_state_before_there_is_a_plan(void **state) {
    (void)state;
    mr_page_stats stats = {.state = MR_PAGE_FAILED, .error = "stage 2 is lost", .loaded = 0.25};
    json_t *root = state_of(&stats, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "state")), "failed");
    assert_string_equal(json_string_value(json_object_get(root, "error")), "stage 2 is lost");
    assert_int_equal(json_array_size(json_object_get(root, "stages")), 0);
    json_decref(root);
}

static void test_no_memory(void **state) {
    (void)state;
    mr_page_stats stats = facts_of_two();
    mr_status status = MR_E_NO_MEMORY;
    for (int i = 0; status != MR_OK; i++) {
        mr_text_buf out = {0};
        mr_err err;
        assert_true(i < 100);
        mr_mem_fail_at(i);
        status = mr_page_write_state(&stats, NULL, &out, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        mr_text_buf_deinit(&out);
    }
}

static void expect_line(const char *text, const char *line) {
    const char *found = strstr(text, line);
    if (!found || found[strlen(line)] != '\n' || (found > text && found[-1] != '\n'))
        fail_msg("no line %s", line);
}

static void test_metrics(void **state) {
    (void)state;
    mr_metrics *m = NULL;
    mr_text_buf out = {0};
    mr_err err;
    mr_page_stats stats = facts_of_two();
    expect_ok(mr_page_count(&stats, 0, NULL, &err), &err);
    expect_ok(mr_metrics_create(&m, &err), &err);
    expect_ok(mr_page_count(&stats, 0, m, &err), &err);
    stats.n_steps = 3; /* an older moment, which another thread brings late */
    expect_ok(mr_page_count(&stats, 0, m, &err), &err);
    expect_ok(mr_metrics_write(m, &out, &err), &err);
    expect_line(out.data, "millrace_steps_total 7");
    expect_line(out.data, "millrace_kv_blocks{state=\"held\"} 20");
    expect_line(out.data, "millrace_generated_tokens_total 1099511627776");
    expect_line(out.data, "millrace_stage_info{stage=\"1\",host=\"\",rank=\"0\",first_layer=\"3\",last_layer=\"7\"} 1");
    expect_line(out.data, "millrace_stage_seconds_total{stage=\"0\",phase=\"compute\"} 1.5");
    expect_line(out.data, "millrace_stage_step_seconds{stage=\"0\",of=\"measured\"} 0.002");
    expect_line(out.data, "millrace_stage_step_seconds{stage=\"0\",of=\"predicted\"} 0.001");
    assert_null(strstr(out.data, "millrace_stage_step_seconds{stage=\"1\""));
    mr_text_buf_deinit(&out);
    mr_metrics_destroy(m);
}

static void count(const mr_page_stats *stats, uint32_t former_plan, mr_metrics *m, mr_text_buf *out) {
    mr_err err;
    mr_text_buf_clear(out);
    expect_ok(mr_page_count(stats, former_plan, m, &err), &err);
    expect_ok(mr_metrics_write(m, out, &err), &err);
}

/* What belonged to a plan goes with the plan; while the plan changes, it stays. */
static void test_metrics_of_another_plan(void **state) {
    (void)state;
    static const mr_page_ranks ONE[] = {{"stage", 2}, {"lost", 0}}, OTHER[] = {{"stage", 1}, {"lost", 1}};
    mr_page_stage one = {.first_layer = 0, .last_layer = 8, .rank = 2, .host = "node9", .n_steps = 1};
    mr_metrics *m = NULL;
    mr_text_buf out = {0};
    mr_err err;
    mr_page_stats stats = facts_of_two();
    expect_ok(mr_metrics_create(&m, &err), &err);
    stats.plan = 1;
    stats.ranks = ONE;
    stats.n_rank_states = 2;
    count(&stats, 0, m, &out);
    expect_line(out.data, "millrace_ranks{state=\"stage\"} 2");
    expect_line(out.data, "millrace_ranks{state=\"lost\"} 0");
    stats.n_stages = 0;
    stats.ranks = OTHER;
    stats.changes_plan = true;
    count(&stats, 1, m, &out);
    expect_line(out.data, "millrace_ranks{state=\"stage\"} 2");
    expect_line(out.data, "millrace_stage_steps_total{stage=\"1\"} 6");
    stats.changes_plan = false;
    stats.plan = 2;
    stats.n_stages = 1;
    stats.stages = &one;
    count(&stats, 1, m, &out);
    expect_line(out.data, "millrace_ranks{state=\"stage\"} 1");
    expect_line(out.data, "millrace_ranks{state=\"lost\"} 1");
    expect_line(out.data,
                "millrace_stage_info{stage=\"0\",host=\"node9\",rank=\"2\",first_layer=\"0\",last_layer=\"7\"} 1");
    expect_line(out.data, "millrace_stage_steps_total{stage=\"0\"} 1"); /* counted anew */
    assert_null(strstr(out.data, "node7"));
    assert_null(strstr(out.data, "stage=\"1\""));
    assert_null(strstr(out.data, "millrace_stage_step_seconds")); /* no step is known yet */
    one.n_steps = 0;                                              /* an older moment of the same plan */
    count(&stats, 2, m, &out);
    expect_line(out.data, "millrace_stage_steps_total{stage=\"0\"} 1");
    stats.n_stages = 0; /* the job waits for memory */
    stats.waits_for_memory = true;
    count(&stats, 2, m, &out);
    assert_null(strstr(out.data, "millrace_stage_"));
    expect_line(out.data, "millrace_ready 0");
    mr_text_buf_deinit(&out);
    mr_metrics_destroy(m);
}

/* A series of its own that has no memory is left out. The stages are there as a whole or not at all. */
static void test_metrics_without_memory(void **state) {
    (void)state;
    const mr_page_stats stats = facts_of_two();
    mr_metrics *m = NULL;
    mr_text_buf wanted = {0}, out = {0};
    mr_err err;
    expect_ok(mr_metrics_create(&m, &err), &err);
    count(&stats, 0, m, &wanted);
    mr_metrics_destroy(m);
    for (int i = 0; strcmp(out.data ? out.data : "", wanted.data) != 0; i++) {
        assert_true(i < 200);
        expect_ok(mr_metrics_create(&m, &err), &err);
        mr_mem_fail_at(i);
        mr_status status = mr_page_count(&stats, 0, m, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        mr_text_buf_clear(&out);
        expect_ok(mr_metrics_write(m, &out, &err), &err);
        assert_true((status == MR_OK) == (out.data && strstr(out.data, "millrace_stage_info{stage=\"1\"")));
        mr_metrics_destroy(m);
    }
    mr_text_buf_deinit(&wanted);
    mr_text_buf_deinit(&out);
}

/* What the program holds is what lies in the folder, byte by byte; the page asks for nothing else. */
static void test_files(void **state) {
    (void)state;
    static const char *const PATHS[] = {"/",
                                        "/page.css",
                                        "/page.js",
                                        "/page-chat.js",
                                        "/page-pipeline.js",
                                        "/page-plots.js",
                                        "/page-ranks.js",
                                        "/page-server.js"};
    char name[256];
    for (size_t i = 0; i < sizeof PATHS / sizeof PATHS[0]; i++) {
        const mr_page_file *file = mr_page_find(mr_str_from(PATHS[i]));
        assert_non_null(file);
        snprintf(name, sizeof name, "%s/coordinator/serving/page%s%s", MILLRACE_SOURCE_DIR, PATHS[i],
                 i == 0 ? "page.html" : "");
        FILE *f = fopen(name, "rb");
        char *want = mr_alloc(file->bytes + 1);
        assert_true(f && want);
        assert_int_equal(fread(want, 1, file->bytes + 1, f), file->bytes);
        assert_memory_equal(want, file->data, file->bytes);
        assert_null(memmem(file->data, file->bytes, "https:", 6));
        mr_free(want);
        fclose(f);
    }
    assert_null(mr_page_find(mr_str_from("/page")));
    assert_null(mr_page_find((mr_str){0}));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_state_before_there_is_a_plan),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_metrics_of_another_plan),
        cmocka_unit_test(test_metrics_without_memory),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
