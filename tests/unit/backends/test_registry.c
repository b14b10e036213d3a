/* Every backend that the registry lists can be created, or returns an error that says why not. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/registry.h"
#include "tests/support/test.h"

/* Every backend of the list can be created, or the error says how it could be. */
static void test_each_kind(void **state) {
    (void)state;
    int n = 0;
    for (; mr_backend_kinds[n]; n++) {
        const mr_backend_kind *kind = mr_backend_kinds[n];
        mr_backend *be = NULL;
        mr_err err = {0};
        mr_backend_prepare(kind->name);
        mr_status status =
            mr_backend_create(kind->name, &(mr_backend_options){.n_threads = 2, .n_sharers = 1}, &be, &err);
        assert_true(strlen(kind->about) > 0);
        if (kind->create && mr_backend_kind_devices(kind) == 0) {
            assert_int_equal(status, MR_E_UNSUPPORTED);
            expect_says(err.text, "hint: ");
        } else if (kind->create) {
            assert_int_equal(status, MR_OK);
            assert_non_null(be);
        } else {
            assert_int_equal(status, MR_E_UNSUPPORTED);
            expect_says(err.text, kind->name);
            expect_says(err.text, kind->hint);
        }
        mr_device_info device = {0};
        if (be)
            be->ops->describe(be, &device);
        assert_true(kind->exact || !device.exact);
        assert_ptr_equal(mr_backend_kind_find(kind->name), kind);
        mr_backend_destroy(be);
    }
    assert_int_equal(n, 3);
    assert_string_equal(mr_backend_kinds[0]->name, "cpu");
    assert_non_null(mr_backend_kinds[0]->create);
}

static void test_unknown_names(void **state) {
    (void)state;
    mr_backend *be = NULL;
    mr_err err = {0};
    mr_backend_prepare("gpu");
    assert_null(mr_backend_kind_find("gpu"));
    const mr_backend_options one = {.n_threads = 1, .n_sharers = 1}, none = {.n_sharers = 1};
    expect_fails(mr_backend_create("gpu", &one, &be, &err), MR_E_INVALID, &err, "gpu");
    expect_fails(mr_backend_create("cpu", &none, &be, &err), MR_E_INVALID, &err, "threads");
    assert_null(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind),
        cmocka_unit_test(test_unknown_names),
    };
    return cmocka_run_group_tests_name("registry", tests, NULL, NULL);
}
