/* API keys as people and programs write them: files with comments, secrets with a newline, lists with commas. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/serving/server/serve_keys.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

enum { MAX_ARGS = 10 };

static char path[] = "/tmp/millrace-test-XXXXXX";

/* Reads the keys of an option, of the variable and of a file. NULL: there is none. */
static mr_status read_keys(const char *argument, const char *variable, const char *file, serve_keys *k, mr_err *err) {
    char entry[1024], *argv[MAX_ARGS] = {"millrace", "serve", "--demo"}, *environ_[] = {NULL, NULL};
    int argc = 3;
    mr_options o;
    if (argument) {
        argv[argc++] = "--api-key";
        argv[argc++] = (char *)(uintptr_t)argument;
    }
    if (file) {
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_true(fputs(file, f) >= 0);
        assert_int_equal(fclose(f), 0);
        argv[argc++] = "--api-key-file";
        argv[argc++] = path;
    }
    if (variable) {
        snprintf(entry, sizeof entry, "MILLRACE_API_KEY=%s", variable);
        environ_[0] = entry;
    }
    *k = (serve_keys){0};
    expect_ok(mr_options_parse(argc, argv, environ_, &o, err), err);
    mr_status status = serve_keys_read(k, &o, err);
    mr_options_deinit(&o);
    return status;
}

/* The keys, each with a bar behind it. */
static void expect_keys(const char *argument, const char *variable, const char *file, const char *wanted) {
    serve_keys k;
    mr_err err = {0};
    char found[1024] = "";
    expect_ok(read_keys(argument, variable, file, &k, &err), &err);
    for (int32_t i = 0; i < k.n; i++) {
        strcat(found, k.list[i]);
        strcat(found, "|");
    }
    assert_string_equal(found, wanted);
    serve_keys_deinit(&k);
}

static void expect_refused(const char *argument, const char *variable, const char *file, const char *words) {
    serve_keys k;
    mr_err err = {0};
    expect_fails(read_keys(argument, variable, file, &k, &err), MR_E_INVALID, &err, words);
    assert_null(strstr(err.text, "sesame")); /* no error shows a key */
    assert_int_equal(err.status, MR_E_INVALID);
    serve_keys_deinit(&k);
}

static void test_files(void **state) {
    (void)state;
    expect_keys(NULL, NULL, "one", "one|");
    expect_refused(NULL, NULL, "sesame\x01", "line 1: the key has a control character");
    expect_keys(NULL, NULL, "# keys of the team\none\n\n  #another comment\n\ttwo \r\n\r\nthree", "one|two|three|");
    expect_keys(NULL, NULL,
                "\xEF\xBB\xBF"
                "one\r\ntwo\r\n",
                "one|two|");
    expect_keys(NULL, NULL, "\xC2\xA0one\xE2\x80\x83\n", "one|"); /* white space beyond ASCII */
    expect_keys(NULL, NULL, "a,b\nkey#1\n\"half\n", "a,b|key#1|\"half|");
    expect_refused(NULL, NULL, "", "has no key; hint: one key on each line");
    expect_refused(NULL, NULL, "# only a comment\n \r\n", "has no key; hint: one key on each line");
    expect_refused(NULL, NULL, "one\n\nsesame # alice\n",
                   "line 3: the key has white space inside; hint: a comment needs");
    expect_refused(NULL, NULL, "sesame\xC2\xA0x\n", "line 1: the key has white space inside");
    expect_refused(NULL, NULL, "one\n\"sesame\"\n", "line 2: the key stands in quotes");
    expect_refused(NULL, NULL, "sesame\n\xFFsesame\n", "line 2: byte 0xFF is not UTF-8");
    expect_refused(NULL, NULL, "# only\n", path);
    expect_refused(NULL, NULL, "# only\n", "--api-key-file");
}

static void test_variables_of_windows(void **state) {
    (void)state;
    expect_keys(NULL, "\xEF\xBB\xBFone\r\n", NULL, "one|"); /* a secret made from a file */
    expect_keys("\xEF\xBB\xBFone", NULL, NULL, "one|");
    expect_refused(NULL, "sesame\xE9", NULL, "MILLRACE_API_KEY is not UTF-8");
    expect_refused("sesame\x7F", NULL, NULL, "control character");
}

static void test_options_and_variables(void **state) {
    (void)state;
    expect_keys(NULL, NULL, NULL, "");
    expect_keys(NULL, "", NULL, ""); /* an empty variable is not set */
    expect_keys("one", NULL, NULL, "one|");
    expect_keys("one, two,,three,", NULL, NULL, "one|two|three|");
    expect_keys(NULL, "one\n", NULL, "one|");
    expect_keys(NULL, " one\r\n", NULL, "one|");
    expect_keys(NULL, "# of the team\none\ntwo,three\n", NULL, "one|two|three|"); /* a whole file as a secret */
    expect_keys("one", "two", NULL, "one|");                                      /* the option overrides */
    expect_keys(NULL, "one", "two\n", "one|two|");
    expect_refused("", NULL, NULL, "--api-key has no key");
    expect_refused(" ", NULL, NULL, "--api-key has no key");
    expect_refused(NULL, " ", NULL, "MILLRACE_API_KEY has no key; hint: leave it out to serve without keys");
    expect_refused(NULL, "\n", NULL, "MILLRACE_API_KEY has no key");
    expect_refused(NULL, ", ,", NULL, "MILLRACE_API_KEY has no key");
    expect_refused(NULL, " ", "one\n", "MILLRACE_API_KEY has no key");
    expect_refused(NULL, "one,sesame two", NULL, "MILLRACE_API_KEY, line 1: the key has white space inside");
    expect_refused(NULL, "'sesame'", NULL, "MILLRACE_API_KEY, line 1: the key stands in quotes");
}

static void test_allocations(void **state) {
    (void)state;
    int64_t n = 0;
    for (;; n++) {
        serve_keys k = {0};
        mr_err err = {0};
        mr_options o;
        char *argv[] = {"millrace", "serve", "--demo", "--api-key", "a,b", "--api-key-file", path};
        FILE *f = fopen(path, "wb");
        assert_true(f && fputs("c\nd\n", f) >= 0 && fclose(f) == 0);
        expect_ok(mr_options_parse(7, argv, (char *[]){NULL}, &o, &err), &err);
        mr_mem_fail_at(n);
        mr_status status = serve_keys_read(&k, &o, &err);
        mr_mem_fail_at(-1);
        if (status != MR_OK)
            expect_fails(status, MR_E_NO_MEMORY, &err, "no memory");
        else
            assert_int_equal(k.n, 4);
        serve_keys_deinit(&k);
        mr_options_deinit(&o);
        if (status == MR_OK)
            break;
    }
    assert_true(n >= 3);
}

static int make_path(void **state) {
    (void)state;
    return close(mkstemp(path));
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_variables_of_windows),
        cmocka_unit_test(test_options_and_variables),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
