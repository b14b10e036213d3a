/* Counting from several threads, the text of the metrics, and failed allocations. With --print the program prints
 * values of every metric, for test_metrics_text.py. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/metrics/metrics.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "tests/support/test.h"

static mr_metrics *new_metrics(void) {
    mr_metrics *m = NULL;
    mr_err err;
    expect_ok(mr_metrics_create(&m, &err), &err);
    return m;
}

static char *text_of(mr_metrics *m, mr_text_buf *out) {
    mr_err err;
    mr_text_buf_clear(out);
    expect_ok(mr_metrics_write(m, out, &err), &err);
    return out->data ? out->data : "";
}

static void test_text(void **state) {
    (void)state;
    mr_metrics *m = new_metrics();
    mr_text_buf out = {0};
    assert_string_equal(text_of(m, &out), "");
    mr_metrics_add(m, MR_METRIC_REQUESTS, (mr_labels){{"/v1/models", "200", "ok"}}, 1);
    mr_metrics_add(m, MR_METRIC_REQUESTS, (mr_labels){{"/v1/models", "404", "refused"}}, 1);
    mr_metrics_add(m, MR_METRIC_REQUESTS, (mr_labels){{"/v1/models", "200", "ok"}}, 2);
    mr_metrics_set(m, MR_METRIC_LOADED, (mr_labels){{0}}, 0.1);
    mr_metrics_set(m, MR_METRIC_BUILD, (mr_labels){{"1.0", "a\"b\\c\nd\xff\xc3\xa9"}}, 1);
    mr_metrics_set(m, MR_METRIC_PREEMPTIONS, (mr_labels){{0}}, 1 << 30);
    mr_metrics_set(m, MR_METRIC_PREEMPTIONS, (mr_labels){{0}}, 5); /* a total only goes up */
    assert_string_equal(
        text_of(m, &out),
        "# HELP millrace_requests_total Requests that have ended: ok, refused (4xx, or 503 at once), failed "
        "(5xx, or an error in a stream), cancelled by the client.\n"
        "# TYPE millrace_requests_total counter\n"
        "millrace_requests_total{endpoint=\"/v1/models\",status=\"200\",outcome=\"ok\"} 3\n"
        "millrace_requests_total{endpoint=\"/v1/models\",status=\"404\",outcome=\"refused\"} 1\n"
        "# HELP millrace_preemptions_total Times that a sequence lost its KV blocks to others.\n"
        "# TYPE millrace_preemptions_total counter\n"
        "millrace_preemptions_total 1073741824\n"
        "# HELP millrace_loaded_ratio Share of the model that is loaded, 0 to 1.\n"
        "# TYPE millrace_loaded_ratio gauge\n"
        "millrace_loaded_ratio 0.1\n"
        "# HELP millrace_build_info Always 1.\n"
        "# TYPE millrace_build_info gauge\n"
        "millrace_build_info{version=\"1.0\",model=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\xc3\xa9\"} 1\n");
    mr_metrics_add(NULL, MR_METRIC_REQUESTS, (mr_labels){{"x", "y"}}, 1);
    mr_text_buf_deinit(&out);
    mr_metrics_destroy(m);
}

static void test_histogram(void **state) {
    (void)state;
    mr_metrics *m = new_metrics();
    mr_text_buf out = {0};
    mr_histogram h;
    mr_metrics_read_histogram(m, MR_METRIC_FIRST_TOKEN_SECONDS, (mr_labels){{0}}, &h);
    assert_true(h.n[0] == 0 && h.sum == 0);
    const double values[] = {0, 0.0005, 0.00051, 100, 101, 1e9};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        mr_metrics_observe(m, MR_METRIC_FIRST_TOKEN_SECONDS, (mr_labels){{0}}, values[i]);
    mr_metrics_read_histogram(m, MR_METRIC_FIRST_TOKEN_SECONDS, (mr_labels){{0}}, &h);
    assert_int_equal(h.n[0], 2); /* a bound belongs to its bucket */
    assert_int_equal(h.n[1], 1);
    assert_int_equal(h.n[MR_HISTOGRAM_BUCKETS - 1], 1);
    assert_int_equal(h.n[MR_HISTOGRAM_BUCKETS], 2);
    const char *text = text_of(m, &out);
    expect_says(text, "millrace_time_to_first_token_seconds_bucket{le=\"0.0005\"} 2\n");
    expect_says(text, "millrace_time_to_first_token_seconds_bucket{le=\"0.001\"} 3\n");
    expect_says(text, "millrace_time_to_first_token_seconds_bucket{le=\"100\"} 4\n");
    expect_says(text, "millrace_time_to_first_token_seconds_bucket{le=\"+Inf\"} 6\n");
    expect_says(text, "millrace_time_to_first_token_seconds_count 6\n");
    mr_text_buf_deinit(&out);
    mr_metrics_destroy(m);
}

/* Label values from outside, each a new one, do not grow without end. */
static void test_many_series(void **state) {
    (void)state;
    mr_metrics *m = new_metrics();
    mr_text_buf out = {0};
    char value[16];
    int n_lines = 0;
    for (int i = 0; i < MR_METRICS_MAX_SERIES + 10; i++) {
        snprintf(value, sizeof value, "%d", i);
        mr_metrics_add(m, MR_METRIC_STAGE_STEPS, (mr_labels){{value}}, 1);
    }
    const char *text = text_of(m, &out);
    expect_says(text, "millrace_stage_steps_total{stage=\"other\"} 11\n");
    for (const char *c = text; *c; c++)
        n_lines += *c == '\n';
    assert_int_equal(n_lines, 2 + MR_METRICS_MAX_SERIES);
    mr_text_buf_deinit(&out);
    mr_metrics_destroy(m);
}

enum { N_THREADS = 4, N_ROUNDS = 3000 };

static void count(void *ctx) {
    char value[16];
    for (int i = 0; i < N_ROUNDS; i++) {
        snprintf(value, sizeof value, "%d", i % 97);
        mr_metrics_add(ctx, MR_METRIC_STAGE_ROWS, (mr_labels){{value}}, 2);
        mr_metrics_observe(ctx, MR_METRIC_NEXT_TOKEN_SECONDS, (mr_labels){{0}}, 0.25);
    }
}

static void test_threads(void **state) {
    (void)state;
    mr_metrics *m = new_metrics();
    mr_thread *threads[N_THREADS];
    mr_text_buf out = {0};
    mr_histogram h;
    mr_err err;
    for (int i = 0; i < N_THREADS; i++)
        expect_ok(mr_thread_create("count", 0, count, m, &threads[i], &err), &err);
    for (int i = 0; i < 20; i++)
        text_of(m, &out);
    for (int i = 0; i < N_THREADS; i++)
        mr_thread_join(threads[i]);
    mr_metrics_read_histogram(m, MR_METRIC_NEXT_TOKEN_SECONDS, (mr_labels){{0}}, &h);
    assert_true(h.sum == 0.25 * N_THREADS * N_ROUNDS);
    double sum = 0, value;
    int n = 0;
    for (const char *at = text_of(m, &out); (at = strstr(at, "rows_total{")); at++) {
        assert_int_equal(sscanf(at, "rows_total{stage=\"%*d\"} %lf", &value), 1);
        sum += value;
        n++;
    }
    assert_int_equal(n, 97);
    assert_true(sum == 2 * N_THREADS * N_ROUNDS);
    mr_text_buf_deinit(&out);
    mr_metrics_destroy(m);
}

/* Whatever allocation fails, counting goes on. */
static void test_no_memory(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        mr_metrics *m = NULL;
        mr_text_buf out = {0};
        mr_err err;
        mr_mem_fail_at(i);
        mr_status status = mr_metrics_create(&m, &err);
        for (int k = 0; k < 2 && status == MR_OK; k++) {
            mr_metrics_observe(m, MR_METRIC_REQUEST_SECONDS, (mr_labels){{"/health"}}, 1);
            mr_metrics_add(m, MR_METRIC_STEPS, (mr_labels){{0}}, 1);
            status = mr_metrics_write(m, &out, &err);
        }
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        if (m) {
            mr_metrics_add(m, MR_METRIC_STEPS, (mr_labels){{0}}, 1);
            expect_says(text_of(m, &out), "millrace_steps_total ");
        }
        mr_text_buf_deinit(&out);
        mr_metrics_destroy(m);
    }
}

/* --- Groups ------------------------------------------------------------------------------------------------------ */

/* Stages and what each has done. */
static mr_metrics_group *group_of(int n_stages, double n_steps) {
    mr_metrics_group *g = NULL;
    mr_err err;
    char stage[16];
    expect_ok(mr_metrics_group_create(&g, &err), &err);
    for (int i = 0; i < n_stages; i++) {
        snprintf(stage, sizeof stage, "%d", i);
        mr_metrics_group_set(g, MR_METRIC_STAGE_STEPS, (mr_labels){{stage}}, n_steps + i);
        mr_metrics_group_set(g, MR_METRIC_STAGE_STEP_ROWS, (mr_labels){{stage}}, n_steps);
    }
    return g;
}

static void replace(mr_metrics *m, mr_metrics_group *g, bool goes_on) {
    mr_err err;
    expect_ok(mr_metrics_replace(m, g, goes_on, &err), &err);
}

/* Series that the next group lacks go; totals go on, or begin anew; what is counted beside them stays. */
static void test_groups(void **state) {
    (void)state;
    mr_metrics *m = new_metrics();
    mr_text_buf out = {0};
    mr_metrics_add(m, MR_METRIC_STEPS, (mr_labels){{0}}, 3);
    replace(m, group_of(3, 10), true);
    assert_string_equal(text_of(m, &out), "# HELP millrace_steps_total Steps that have passed the pipeline.\n"
                                          "# TYPE millrace_steps_total counter\n"
                                          "millrace_steps_total 3\n"
                                          "# HELP millrace_stage_steps_total Steps that a stage has run.\n"
                                          "# TYPE millrace_stage_steps_total counter\n"
                                          "millrace_stage_steps_total{stage=\"0\"} 10\n"
                                          "millrace_stage_steps_total{stage=\"1\"} 11\n"
                                          "millrace_stage_steps_total{stage=\"2\"} 12\n"
                                          "# HELP millrace_stage_step_rows Mean number of rows in a usual step of the "
                                          "stage.\n"
                                          "# TYPE millrace_stage_step_rows gauge\n"
                                          "millrace_stage_step_rows{stage=\"0\"} 10\n"
                                          "millrace_stage_step_rows{stage=\"1\"} 10\n"
                                          "millrace_stage_step_rows{stage=\"2\"} 10\n");
    replace(m, group_of(2, 8), true); /* an older moment of the same plan */
    expect_says(text_of(m, &out), "steps_total{stage=\"1\"} 11\n");
    expect_says(out.data, "step_rows{stage=\"1\"} 8\n");
    assert_null(strstr(out.data, "stage=\"2\""));
    replace(m, group_of(3, 1), false); /* another plan */
    expect_says(text_of(m, &out), "steps_total{stage=\"1\"} 2\n");
    expect_says(out.data, "steps_total{stage=\"2\"} 3\n");
    replace(m, group_of(0, 0), true);
    assert_null(strstr(text_of(m, &out), "stage"));
    expect_says(out.data, "millrace_steps_total 3\n");
    mr_text_buf_deinit(&out);
    mr_metrics_destroy(m);
}

/* Series that come between others find their totals all the same. */
static void test_groups_in_other_order(void **state) {
    (void)state;
    static const char *const ORDERS[][4] = {{"a", "b", "c"}, {"c", "x", "a"}, {"b", "a", "c", "x"}};
    mr_metrics *m = new_metrics();
    mr_text_buf out = {0};
    mr_err err;
    for (int i = 0; i < 3; i++) {
        mr_metrics_group *g = NULL;
        expect_ok(mr_metrics_group_create(&g, &err), &err);
        for (int k = 0; k < 4 && ORDERS[i][k]; k++)
            mr_metrics_group_set(g, MR_METRIC_STAGE_ROWS, (mr_labels){{ORDERS[i][k]}}, 9 - i);
        replace(m, g, true);
    }
    expect_says(text_of(m, &out), "rows_total{stage=\"b\"} 7\n"); /* it was gone in between */
    expect_says(out.data, "rows_total{stage=\"a\"} 9\n");
    expect_says(out.data, "rows_total{stage=\"c\"} 9\n");
    expect_says(out.data, "rows_total{stage=\"x\"} 8\n");
    mr_text_buf_deinit(&out);
    mr_metrics_destroy(m);
}

static int n_lines_of(const char *text, const char *begin) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, begin)); at++)
        n++;
    return n;
}

static void replace_often(void *ctx) {
    for (int i = 0; i < N_ROUNDS; i++)
        replace(ctx, group_of(i % 2 ? 2 : 5, i), true);
}

/* Whoever reads meanwhile finds one of the two groups, and never a mixture or none. */
static void test_groups_while_others_read(void **state) {
    (void)state;
    mr_metrics *m = new_metrics();
    mr_thread *threads[2];
    mr_text_buf out = {0};
    mr_err err;
    replace(m, group_of(5, 0), false);
    for (int i = 0; i < 2; i++)
        expect_ok(mr_thread_create("replace", 0, replace_often, m, &threads[i], &err), &err);
    for (int i = 0; i < N_ROUNDS / 10; i++) {
        int n = n_lines_of(text_of(m, &out), "steps_total{"), n_rows = n_lines_of(out.data, "step_rows{");
        assert_true((n == 2 || n == 5) && n == n_rows);
    }
    for (int i = 0; i < 2; i++)
        mr_thread_join(threads[i]);
    mr_text_buf_deinit(&out);
    mr_metrics_destroy(m);
}

/* A group that is not whole is not shown. */
static void test_groups_without_memory(void **state) {
    (void)state;
    mr_status status = MR_E_NO_MEMORY;
    for (int i = 0; status != MR_OK; i++) {
        mr_metrics *m = new_metrics();
        mr_text_buf out = {0};
        mr_metrics_group *g = NULL;
        mr_err err;
        assert_true(i < 10);
        replace(m, group_of(1, 1), false);
        mr_mem_fail_at(i);
        status = mr_metrics_group_create(&g, &err);
        if (status == MR_OK) {
            mr_metrics_group_set(g, MR_METRIC_STAGE_STEPS, (mr_labels){{"a"}}, 2);
            mr_metrics_group_set(g, MR_METRIC_STAGE_STEPS, (mr_labels){{"b"}}, 2);
            status = mr_metrics_replace(m, g, false, &err);
        }
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        int n_old = n_lines_of(text_of(m, &out), "{stage=\"0\"} 1\n"), n_new = n_lines_of(out.data, "\"} 2\n");
        assert_true(status == MR_OK ? n_old == 0 && n_new == 2 : n_old == 2 && n_new == 0);
        mr_text_buf_deinit(&out);
        mr_metrics_destroy(m);
    }
    mr_metrics_group_destroy(group_of(2, 1));
    mr_metrics_group_destroy(NULL);
}

static int print_all(void) {
    mr_metrics *m = new_metrics();
    mr_text_buf out = {0};
    static const mr_labels LABELS[] = {{{"a", "b", "c", "d", "e"}},
                                       {{"\"quoted\"", "back\\slash", "new\nline", "}", "{x=\"y\"}"}}};
    for (int id = 0; id < MR_METRIC_COUNT; id++)
        for (int i = 0; i < 2; i++) {
            bool is_histogram = id == MR_METRIC_REQUEST_SECONDS || id == MR_METRIC_FIRST_TOKEN_SECONDS ||
                                id == MR_METRIC_NEXT_TOKEN_SECONDS;
            for (double v = 1e-5; v < 1e4 && is_histogram; v *= 3)
                mr_metrics_observe(m, (mr_metric_id)id, LABELS[i], v);
            if (!is_histogram)
                mr_metrics_set(m, (mr_metric_id)id, LABELS[i], id / 7.0);
        }
    mr_metrics_set(m, MR_METRIC_LOADED, (mr_labels){{0}}, NAN);
    fputs(text_of(m, &out), stdout);
    mr_text_buf_deinit(&out);
    mr_metrics_destroy(m);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_many_series),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_groups_in_other_order),
        cmocka_unit_test(test_groups_while_others_read),
        cmocka_unit_test(test_groups_without_memory),
    };
    if (argc > 1 && strcmp(argv[1], "--print") == 0)
        return print_all();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
