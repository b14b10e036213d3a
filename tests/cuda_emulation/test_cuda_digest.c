/* tests/cuda_emulation/test_cuda_digest.c - every op that the CUDA backend supports has the digest of the CPU: the
 * backend, its graphs and its kernels run as they are, on the emulated driver. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_backend.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/cuda_device.h"
#include "backends/digest/digest.h"
#include "tests/cuda_emulation/driver.h"
#include "tests/support/test.h"

static const cuda_image IMAGES[] = {{"kernels", "all of them"}, {NULL, NULL}};
static mr_digest of_cpu, of_device;

static bool has_op(const mr_digest *d, mr_op op) {
    for (int32_t i = 0; i < d->n; i++)
        if (d->parts[i].op == (int32_t)op)
            return true;
    return false;
}

static void test_digest_is_that_of_the_cpu(void **state) {
    (void)state;
    mr_backend *cpu = NULL, *device = NULL;
    mr_err err = {0};
    char names[256] = "";
    emulated_driver_reset(NULL);
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &cpu, &err), &err);
    expect_ok(mr_cuda_backend_create(&(mr_cuda_options){.driver = emulated_driver(), .images = IMAGES}, &device, &err),
              &err);
    expect_ok(mr_digest_compute(cpu, device, &of_cpu, &err), &err);
    expect_ok(mr_digest_compute(device, cpu, &of_device, &err), &err);
    assert_int_equal(of_cpu.n, of_device.n);
    if (mr_digest_compare(&of_cpu, &of_device, names, sizeof names) > 0)
        fail_msg("other bits: %s", names);
    for (int op = 0; op < MR_OP_COUNT; op++)
        if (has_op(&of_device, (mr_op)op) != (cuda_op_find((mr_op)op) != NULL))
            fail_msg("%s is %s the digest", mr_op_name((mr_op)op), cuda_op_find((mr_op)op) ? "missing in" : "in");
    mr_backend_destroy(device);
    mr_backend_destroy(cpu);
    assert_int_equal(emulated_driver_counts().n_live, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_digest_is_that_of_the_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
