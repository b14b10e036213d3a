/* The real NCCL loads, and has every function that links call, where the machine has it. Libraries that are none are
 * refused with the reason. */
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "proto/nccl/nccl_library.h"
#include "tests/support/test.h"

static void test_the_library(void **state) {
    (void)state;
    nccl_library own;
    const nccl_library *first, *second;
    mr_err err = {0};
    void *there = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!there) {
        print_message("no libnccl.so.2 on this machine\n");
        expect_fails(nccl_library_load(&first, &err), MR_E_UNSUPPORTED, &err, "no NCCL: ");
        skip();
    }
    expect_ok(nccl_library_open("libnccl.so.2", &own, &err), &err);
    assert_true(own.version >= NCCL_NEEDED_VERSION);
    assert_string_equal(own.get_error_string(NCCL_OK), "no error");
    expect_ok(nccl_library_load(&first, &err), &err);
    expect_ok(nccl_library_load(&second, &err), &err);
    assert_ptr_equal(first, second);
    assert_int_equal(first->version, own.version);
    assert_true(first->send == own.send && first->comm_abort == own.comm_abort);
}

static void test_other_libraries(void **state) {
    (void)state;
    nccl_library own;
    mr_err err = {0};
    expect_fails(nccl_library_open("libmillrace-no-such.so", &own, &err), MR_E_UNSUPPORTED, &err, "hint: install NCCL");
    expect_fails(nccl_library_open("libm.so.6", &own, &err), MR_E_UNSUPPORTED, &err,
                 "NCCL has no function ncclGetVersion");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_library), cmocka_unit_test(test_other_libraries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
