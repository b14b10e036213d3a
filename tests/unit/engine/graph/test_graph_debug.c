/* The values of MILLRACE_GRAPH_DEBUG and MILLRACE_GRAPH_REUSE, and the tables that they print. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/log.h"
#include "engine/graph/debug.h"
#include "tests/support/test.h"
#include "tests/unit/engine/graph/test_graph_support.h"

enum { N_LAYERS = 3, ROWS = 4, N_RUNS = 5 };

static void test_words(void **state) {
    (void)state;
    static const struct {
        const char *debug, *reuse, *wrong; /* wrong: a part of the error text; NULL: no error */
        unsigned wanted;
        bool reuses;
    } cases[] = {
        {NULL, NULL, NULL, 0, true},
        {"", "", NULL, 0, true},
        {"splits", "on", NULL, MR_GRAPH_DEBUG_SPLITS, true},
        {"plan,timing", "off", NULL, MR_GRAPH_DEBUG_PLAN | MR_GRAPH_DEBUG_TIMING, false},
        {"timing,splits,plan,", NULL, NULL, 7, true},
        {"splits,times,plan", NULL, "\"times\" is not one of splits, plan, timing", 3, true},
        {"split", NULL, "\"split\" is not one of", 0, true},
        {",plan", NULL, "\"\" is not one of", MR_GRAPH_DEBUG_PLAN, true},
        {NULL, "no", "\"no\" is not one of on, off", 0, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mr_err err = {0};
        unsetenv("MILLRACE_GRAPH_DEBUG");
        unsetenv("MILLRACE_GRAPH_REUSE");
        if (cases[i].debug)
            setenv("MILLRACE_GRAPH_DEBUG", cases[i].debug, 1);
        if (cases[i].reuse)
            setenv("MILLRACE_GRAPH_REUSE", cases[i].reuse, 1);
        assert_int_equal(mr_graph_debug_wanted(), cases[i].wanted);
        assert_int_equal(mr_graph_reuse_wanted(), cases[i].reuses);
        mr_status status = mr_graph_variables_check(&err);
        assert_int_equal(status, cases[i].wrong ? MR_E_INVALID : MR_OK);
        if (cases[i].wrong && !strstr(err.text, cases[i].wrong))
            fail_msg("case %zu: %s", i, err.text);
    }
    unsetenv("MILLRACE_GRAPH_REUSE");
}

/* Builds, runs and destroys a graph of some layers; returns what was logged meanwhile, to be freed. offset: of the
 * tensor that has that name. */
static char *run_graph(const char *debug, const char *name, size_t *offset) {
    FILE *f = tmpfile();
    mr_backend *be = NULL;
    mr_buffer *work = NULL;
    mr_graph_stats stats;
    mr_err err = {0};
    assert_non_null(f);
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &be, &err), &err);
    setenv("MILLRACE_GRAPH_DEBUG", debug, 1);
    mr_log_set_fd(fileno(f));
    mr_log_set_level(MR_LOG_ERROR); /* the debug output appears at any log level, because the user asked for it */
    mr_graph *g = graph_make(ROWS, ROWS);
    int32_t x = add_rows(g), y = x, wanted = NONE;
    for (int l = 0; l < N_LAYERS; l++) {
        y = silu_mul(g, mr_graph_add(g, y, x), mr_graph_add(g, x, y));
        if (strcmp(mr_graph_tensor(g, y)->name, name) == 0)
            wanted = y;
    }
    mr_graph_output(g, y);
    expect_ok(mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, &err), &err);
    assert_int_equal(be->ops->buffer_create(be, stats.work_bytes[0], &work, NULL), MR_OK);
    assert_int_equal(mr_graph_place(g, &work, NULL), MR_OK);
    *offset = wanted == NONE ? 0 : mr_graph_tensor(g, wanted)->offset;
    for (int i = 0; i < N_RUNS; i++)
        assert_int_equal(mr_graph_run(g, &(mr_run){.n_rows = {1, ROWS, ROWS}}, NULL), MR_OK);
    mr_graph_destroy(g);
    mr_log_set_fd(2);
    mr_log_set_level(MR_LOG_INFO);
    unsetenv("MILLRACE_GRAPH_DEBUG");
    be->ops->buffer_destroy(be, work);
    mr_backend_destroy(be);
    off_t bytes = lseek(fileno(f), 0, SEEK_END);
    char *text = calloc(1, (size_t)bytes + 1);
    assert_non_null(text);
    assert_int_equal(pread(fileno(f), text, (size_t)bytes, 0), bytes);
    fclose(f);
    return text;
}

static void expect(const char *text, const char *part) {
    expect_says(text, part);
}

static void test_splits(void **state) {
    (void)state;
    size_t offset;
    char *text = run_graph("splits", "", &offset);
    expect(text, "graph of up to 4 rows: 9 nodes, 1 splits, 0 copies, 6 groups");
    expect(text, "split   0 on CPU ");
    expect(text, ": glu x3, add x6\n");
    assert_null(strstr(text, "work memory"));
    assert_null(strstr(text, "time of"));
    free(text);
}

static void test_plan(void **state) {
    (void)state;
    char line[128];
    size_t offset;
    char *text = run_graph("plan", "glu.5", &offset);
    expect(text, "work memory of a graph of up to 4 rows: ");
    snprintf(line, sizeof line, "%12zu %12zu     3-4    glu.5\n", offset, sizeof(float) * WIDTH * ROWS);
    expect(text, line);
    free(text);
}

static void test_timing(void **state) {
    (void)state;
    size_t offset;
    char *text = run_graph("timing", "", &offset);
    expect(text, "time of a graph of up to 4 rows, 5 runs of ");
    expect(text, "; 6 groups\n");
    expect(text, "  add x3\n");
    expect(text, "  glu x3\n");
    expect(text, "copies and everything else");
    assert_null(strstr(text, "waiting for devices"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_timing),
    };
    return cmocka_run_group_tests_name("graph_debug", tests, NULL, NULL);
}
