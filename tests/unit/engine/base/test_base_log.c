/* Log lines as text and as JSON: input cannot forge a line, long lines are cut, repeated lines are counted, and
 * lines of several threads do not mix. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/log_line.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "tests/support/test.h"

static int pipe_fds[2];

static int setup(void **state) {
    (void)state;
    if (pipe(pipe_fds) != 0 || fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK) != 0)
        return -1;
    mr_log_set_fd(pipe_fds[1]);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    mr_log_set_fd(2);
    mr_log_set_level(MR_LOG_INFO);
    mr_clock_freeze(-1);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return 0;
}

/* Returns the lines that were logged since the last call. */
static const char *logged(void) {
    static char text[1 << 16];
    size_t n = 0;
    for (ssize_t got; (got = read(pipe_fds[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = 0;
    return text;
}

static int count_lines(const char *text) {
    int n = 0;
    for (; (text = strchr(text, '\n')) != NULL; text++)
        n++;
    return n;
}

static const char *plain(log_line line) {
    static char out[MR_LOG_LINE_BYTES + 1];
    out[log_line_plain(&line, out, MR_LOG_LINE_BYTES)] = 0;
    return out;
}

static const char *json(log_line line) {
    static char out[MR_LOG_LINE_BYTES + 1];
    out[log_line_json(&line, out, MR_LOG_LINE_BYTES)] = 0;
    return out;
}

static void test_how_lines_look(void **state) {
    (void)state;
    log_line line = {.unix_ms = 1700000000123, .level = MR_LOG_WARN, .rank = 3, .component = "plan", .text = "a b"};
    assert_string_equal(plain(line), "2023-11-14T22:13:20.123Z warn  3 plan: a b\n");
    assert_string_equal(json(line), "{\"time\":\"2023-11-14T22:13:20.123Z\",\"level\":\"warn\",\"rank\":3,"
                                    "\"component\":\"plan\",\"text\":\"a b\"}\n");
    line.rank = -1;
    line.n_left_out = 7;
    assert_string_equal(plain(line), "2023-11-14T22:13:20.123Z warn  - plan: a b (7 alike left out)\n");
    assert_string_equal(json(line), "{\"time\":\"2023-11-14T22:13:20.123Z\",\"level\":\"warn\",\"rank\":null,"
                                    "\"component\":\"plan\",\"text\":\"a b\",\"left_out\":7}\n");
}

static void test_text_cannot_forge_lines(void **state) {
    (void)state;
    log_line line = {
        .level = MR_LOG_INFO, .component = "c", .text = "a\nb\x1b[31m\"\\\xc2\x9b\xc3\xa4\xe2\x82\xac\xff"};
    const char *text = strstr(plain(line), "c: ") + 3;
    assert_string_equal(text, "a b [31m\"\\ \xc3\xa4\xe2\x82\xac?\n");
    text = strstr(json(line), "\"text\":") + 7;
    assert_string_equal(text, "\"a b [31m\\\"\\\\ \xc3\xa4\xe2\x82\xac?\"}\n");
    /* Truncated sequences, overlong forms, surrogates, and a code point behind the last character. */
    line.text = "\xe2\x82 \xc0\xaf \xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xf0\x9f\x98\x80 \xf0";
    assert_string_equal(strstr(plain(line), "c: ") + 3, "?? ?? ??? ??? ???? \xf0\x9f\x98\x80 ?\n");
}

static void test_long_lines_are_cut_between_characters(void **state) {
    (void)state;
    char text[3 * MR_LOG_LINE_BYTES], out[MR_LOG_LINE_BYTES];
    for (size_t i = 0; i + 3 < sizeof text; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 4);
    char component[100];
    memset(component, 'x', 99);
    component[99] = 0;
    log_line line = {.level = MR_LOG_INFO, .component = component, .text = text, .n_left_out = UINT32_MAX};
    for (int form = 0; form < 2; form++) {
        for (size_t bytes = 256; bytes < 264; bytes++) {
            size_t n = form ? log_line_json(&line, out, bytes) : log_line_plain(&line, out, bytes);
            assert_true(n <= bytes && n + 3 > bytes - 1);
            assert_int_equal(out[n - 1], '\n');
        }
    }
    memset(text, '"', sizeof text - 1);
    size_t n = log_line_json(&line, out, sizeof out);
    assert_true(n <= sizeof out && out[n - 1] == '\n');
}

static void test_levels_and_settings(void **state) {
    (void)state;
    mr_log_level level;
    assert_true(mr_log_level_parse("debug", &level) && level == MR_LOG_DEBUG);
    assert_true(mr_log_level_parse("error", &level) && level == MR_LOG_ERROR);
    assert_false(mr_log_level_parse("loud", &level));
    assert_int_equal(level, MR_LOG_ERROR);

    mr_log_write(MR_LOG_DEBUG, "levels", "not shown");
    assert_string_equal(logged(), "");
    errno = 77;
    mr_log_write(MR_LOG_INFO, "levels", "%s %d", "shown", 5);
    assert_int_equal(errno, 77);
    expect_says(logged(), " info  - levels: shown 5\n");
    mr_log_set_level(MR_LOG_ERROR);
    assert_false(mr_log_enabled(MR_LOG_WARN));
    mr_log_write(MR_LOG_WARN, "levels", "not shown");
    assert_string_equal(logged(), "");
    mr_log_set_level(MR_LOG_DATA);
    mr_log_set_rank(12);
    mr_log_set_json(true);
    uint64_t n_allocs = mr_mem_thread_allocs();
    mr_log_write(MR_LOG_DATA, "levels", "shown");
    assert_int_equal(mr_mem_thread_allocs(), n_allocs);
    mr_log_set_json(false);
    const char *text = logged();
    expect_says(text, "\"level\":\"data\",\"rank\":12,\"component\":\"levels\",\"text\":\"shown\"}\n");
    assert_int_equal(text[0], '{');
}

static void test_repeats_are_counted(void **state) {
    (void)state;
    mr_clock_freeze(1000);
    for (int i = 0; i < 50; i++)
        mr_log_write(MR_LOG_WARN, "net", "peer %d is late by %d ms", i, 3 * i);
    assert_int_equal(count_lines(logged()), MR_LOG_REPEATS);
    mr_log_write(MR_LOG_WARN, "net", "another text");
    mr_log_write(MR_LOG_ERROR, "net", "peer 1 is late by 1 ms");
    assert_int_equal(count_lines(logged()), 2);
    mr_clock_freeze(1000 + MR_NS_PER_S);
    mr_log_write(MR_LOG_WARN, "net", "peer 1 is late by 4 ms");
    mr_log_write(MR_LOG_WARN, "net", "peer 1 is late by 5 ms");
    char want[64];
    snprintf(want, sizeof want, "late by 4 ms (%d alike left out)\n", 50 - MR_LOG_REPEATS);
    const char *text = logged();
    expect_says(text, want);
    expect_says(text, "late by 5 ms\n");
    mr_log_set_level(MR_LOG_DEBUG);
    for (int i = 0; i < 50; i++)
        mr_log_write(MR_LOG_DEBUG, "net", "step %d", i);
    assert_int_equal(count_lines(logged()), 50);
}

static void write_lines(void *ctx) {
    for (int i = 0; i < 100; i++)
        mr_log_write(MR_LOG_DEBUG, (const char *)ctx, "line %d of %s", i, (const char *)ctx);
}

static void test_lines_of_threads_do_not_mix(void **state) {
    (void)state;
    static char names[4][8] = {"red", "green", "blue", "grey"};
    mr_thread *t[4];
    mr_log_set_level(MR_LOG_DEBUG);
    for (int i = 0; i < 4; i++)
        assert_int_equal(mr_thread_create(names[i], 0, write_lines, names[i], &t[i], NULL), MR_OK);
    for (int i = 0; i < 4; i++)
        mr_thread_join(t[i]);
    char *text = (char *)logged();
    assert_int_equal(count_lines(text), 400);
    for (char *line; (line = strsep(&text, "\n")) != NULL && *line;) {
        char a[16], b[16];
        int n;
        assert_int_equal(sscanf(line, "%*s debug %*s %15[^:]: line %d of %15s", a, &n, b), 3);
        assert_string_equal(a, b);
    }
}

static void test_fields_of_events(void **state) {
    (void)state;
    char text[MR_LOG_LINE_BYTES + 10];
    log_line line = {
        .unix_ms = 0, .level = MR_LOG_INFO, .component = "http", .text = "GET", .fields = "\"status\":200"};
    expect_says(json(line), "\"text\":\"GET\",\"status\":200}\n");
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    line.text = text; /* the text is cut so that the fields are complete */
    const char *out = json(line);
    assert_true(strlen(out) >= MR_LOG_LINE_BYTES - 2);
    expect_says(out, "xx\",\"status\":200}\n");
    mr_log_event(MR_LOG_INFO, "http", "GET / 200", "\"status\":200");
    mr_log_event(MR_LOG_DEBUG, "http", "GET / 200", "\"status\":200");
    assert_string_equal(strstr(logged(), "http: "), "http: GET / 200\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_how_lines_look),
        cmocka_unit_test(test_text_cannot_forge_lines),
        cmocka_unit_test(test_long_lines_are_cut_between_characters),
        cmocka_unit_test_setup_teardown(test_levels_and_settings, setup, teardown),
        cmocka_unit_test_setup_teardown(test_repeats_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lines_of_threads_do_not_mix, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fields_of_events, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
