/* The cache folder for each setting of the environment, and the folders that are refused. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/cache_dir.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

static char folder[] = "/tmp/millrace-cache-XXXXXX";

static void expect_folder(const char *wish, const char *tail) {
    char want[256], *path = NULL;
    struct stat st;
    mr_err err;
    expect_ok(mr_cache_dir_make(wish, &path, &err), &err);
    snprintf(want, sizeof want, "%s%s", folder, tail);
    assert_string_equal(path, want);
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    mr_free(path);
}

static void test_places(void **state) {
    (void)state;
    char path[128];
    setenv("HOME", folder, 1);
    setenv("XDG_CACHE_HOME", "relative", 1);
    expect_folder(NULL, "/.cache/millrace");
    expect_folder(NULL, "/.cache/millrace"); /* the folder exists now */
    snprintf(path, sizeof path, "%s/xdg", folder);
    setenv("XDG_CACHE_HOME", path, 1);
    expect_folder(NULL, "/xdg/millrace");
    snprintf(path, sizeof path, "%s/a/b/c", folder);
    expect_folder(path, "/a/b/c");
}

static void test_refused(void **state) {
    (void)state;
    char path[128], *out = NULL;
    mr_err err;
    snprintf(path, sizeof path, "%s/file", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    expect_fails(mr_cache_dir_make(path, &out, &err), MR_E_IO, &err, path);
    snprintf(path, sizeof path, "%s/file/below", folder);
    assert_int_equal(mr_cache_dir_make(path, &out, &err), MR_E_IO);
    assert_int_equal(mr_cache_dir_make("", &out, &err), MR_E_IO);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_int_equal(mr_cache_dir_make(NULL, &out, &err), MR_E_NOT_FOUND);
    assert_null(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places), cmocka_unit_test(test_refused)};
    char command[128];
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return failed + (system(command) != 0);
}
