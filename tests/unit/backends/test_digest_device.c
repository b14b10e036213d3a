/* The digest of a device: equal to that of the CPU, or it names what is wrong. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/digest/digest.h"
#include "engine/base/mem.h"
#include "tests/support/share.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/support/wrong_bits.h"

static mr_backend *cpu;

static int make_cpu(void **state) {
    (void)state;
    return mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &cpu, NULL) == MR_OK ? 0 : -1;
}

static int destroy_cpu(void **state) {
    (void)state;
    mr_backend_destroy(cpu);
    return 0;
}

static mr_backend *create(const test_device_options *options) {
    mr_backend *be = NULL;
    mr_err err = {0};
    expect_ok(test_device_create(options, &be, &err), &err);
    return be;
}

static mr_digest compute(mr_backend *be, const mr_backend *beside) {
    static mr_digest d;
    mr_err err = {0};
    expect_ok(mr_digest_compute(be, beside, &d, &err), &err);
    return d;
}

static bool has_op(const mr_digest *d, mr_op op) {
    int32_t i = 0;
    while (i < d->n && d->parts[i].op != (int32_t)op)
        i++;
    return i < d->n;
}

/* Of all ops; of some; of products in the memory of the host, of matrices that stay in the file. */
static void test_device_equals_the_cpu(void **state) {
    (void)state;
    const test_device_options kinds[] = {
        {.ops = TEST_DEVICE_ALL_OPS},
        {.ops = TEST_DEVICE_ALL_OPS & ~(1u << MR_OP_KV_WRITE | 1u << MR_OP_EMBED)},
        {.ops = 1u << MR_OP_MATMUL, .host_addressable = true, .keeps_source = true},
        {.ops = TEST_DEVICE_ALL_OPS, .min_rows = 20}, /* a part of the cases */
    };
    mr_digest all = compute(cpu, NULL);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char differ[128];
        mr_backend *device = create(&kinds[i]);
        mr_digest of_device = compute(device, cpu), of_cpu = compute(cpu, device);
        if (mr_digest_compare(&of_cpu, &of_device, differ, sizeof differ) > 0)
            fail_msg("device %zu computes other bits in: %s", i, differ);
        assert_int_equal(of_device.n, of_cpu.n);
        assert_true(i == 0 ? of_device.n == all.n : of_device.n > 1 && of_device.n < all.n);
        for (int op = 0; op < MR_OP_COUNT && kinds[i].min_rows == 0; op++)
            if (op != MR_OP_ATTENTION) /* which reads what KV_WRITE has written */
                assert_int_equal(has_op(&of_device, (mr_op)op), kinds[i].ops >> op & 1);
        mr_backend_destroy(device);
    }
}

static void test_wrong_bits_are_named(void **state) {
    (void)state;
    static const struct {
        mr_op op;
        int32_t type;
        const char *text;
    } cases[] = {
        {MR_OP_MATMUL, MR_TYPE_Q4_K, "matmul Q4_K"},
        {MR_OP_GATE_UP, MR_TYPE_F16, "gate_up F16"},
        {MR_OP_KV_WRITE, MR_TYPE_F16, "kv_write F16"},
        {MR_OP_ATTENTION, MR_TYPE_Q8_0, "attention Q8_0"},
        {MR_OP_ADD, MR_TYPE_FILE_COUNT, "add"},
        {MR_OP_ROUTE, MR_TYPE_FILE_COUNT, "route"},
        {MR_OP_ATTENTION, MR_TYPE_FILE_COUNT, "attention F16, attention Q8_0, attention F32"},
        {MR_OP_EMBED, MR_TYPE_FILE_COUNT, "embed F32, embed F16, embed Q4_0, embed Q4_1 and 21 more"},
    };
    mr_digest good = compute(cpu, NULL);
    int count = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char differ[128];
        if (share_skips(&count))
            continue;
        mr_backend *device = create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS});
        wrong_bits_begin(device, cases[i].op, cases[i].type);
        mr_digest bad = compute(device, cpu);
        wrong_bits_end();
        mr_backend_destroy(device);
        assert_true(mr_digest_compare(&good, &bad, differ, sizeof differ) > 0);
        assert_string_equal(differ, cases[i].text);
    }
}

/* The device breaks after n calls, or has too little memory: an error, and nothing is left on it. */
static void test_failing_calls(void **state) {
    (void)state;
    mr_status status = MR_E_DEVICE;
    for (int32_t n_good = 1; status != MR_OK; n_good *= 3) {
        mr_digest d = {.n = 7};
        mr_err err = {0};
        mr_backend *device = create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .n_good = n_good});
        status = mr_digest_compute(device, NULL, &d, &err);
        assert_true(status == MR_OK ? d.n > 7 : status == MR_E_DEVICE && d.n == 7 && strlen(err.text) > 0);
        mr_backend_destroy(device);
    }
    mr_digest d = {.n = 7};
    mr_err err = {0};
    mr_backend *device = create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .memory_bytes = 1 << 20});
    assert_int_equal(mr_digest_compute(device, NULL, &d, &err), MR_E_NO_MEMORY);
    assert_true(d.n == 7 && strlen(err.text) > 0);
    mr_backend_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_equals_the_cpu),
        cmocka_unit_test(test_wrong_bits_are_named),
        cmocka_unit_test(test_failing_calls),
    };
    return cmocka_run_group_tests(tests, make_cpu, destroy_cpu);
}
