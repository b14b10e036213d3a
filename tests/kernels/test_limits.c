/* Tests of the loops that measure the machine's limits: the loops of every instruction set stay inside their memory and
 * count their products. No test depends on a speed. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/limits.h"
#include "engine/base/mem.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

typedef struct level {
    mr_isa isa;
    mr_limit_read_fn *read;
    mr_limit_product_fn *int8, *f32;
} level;

static const level LEVELS[] = {
    {MR_ISA_SCALAR, mr_limit_read_scalar, mr_limit_int8_scalar, mr_limit_f32_scalar},
#if defined(__x86_64__)
    {MR_ISA_AVX2, mr_limit_read_avx2, mr_limit_int8_avx2, mr_limit_f32_avx2},
    {MR_ISA_AVX512, mr_limit_read_avx512, mr_limit_int8_avx512, mr_limit_f32_avx512},
#elif defined(__aarch64__)
    {MR_ISA_NEON, mr_limit_read_neon, mr_limit_int8_neon, mr_limit_f32_neon},
    {MR_ISA_DOTPROD, mr_limit_read_neon, mr_limit_int8_dotprod, mr_limit_f32_neon},
#endif
};

static void test_loops(void **state) {
    (void)state;
    const size_t bytes = 3 * 1024;
    uint8_t *p = aligned_alloc(64, bytes); /* sanitizers detect a read behind these bytes */
    assert_non_null(p);
    memset(p, 1, bytes);
    for (size_t i = 0; i < sizeof LEVELS / sizeof LEVELS[0] && LEVELS[i].isa <= mr_isa_detect(); i++) {
        LEVELS[i].read(p, bytes);
        LEVELS[i].read(p, 0);
        assert_true(LEVELS[i].int8(3) >= 64);
        assert_true(LEVELS[i].f32(3) >= 64);
    }
    free(p);
}

static void test_measurement(void **state) {
    (void)state;
    if (share_is_small()) /* on an emulated machine, the measurement takes half a minute */
        skip();
    mr_err err;
    for (int32_t n = 1; n <= 3; n++) {
        mr_cpu_limits limits = {0};
        size_t before = mr_mem_get_stats().live_bytes;
        expect_ok(mr_cpu_limits_measure(&(mr_cpu_options){.n_threads = n}, &limits, &err), &err);
        assert_true(limits.core_share > 0 && limits.core_share <= 1);
        assert_true(limits.read_bytes > 1e6 && limits.read_bytes < 1e14);
        assert_true(limits.int8_products > 1e6 && limits.int8_products < 1e16);
        assert_true(limits.f32_products > 1e6 && limits.f32_products < 1e16);
        assert_int_equal(mr_mem_get_stats().live_bytes, before);
    }
}

static void test_failures(void **state) {
    (void)state;
    if (share_is_small())
        skip();
    mr_err err;
    mr_status status = MR_E_NO_MEMORY;
    for (int64_t n = 0; status != MR_OK; n++) {
        mr_cpu_limits limits = {.read_bytes = -1};
        assert_true(n < 100);
        mr_mem_fail_at(n);
        status = mr_cpu_limits_measure(&(mr_cpu_options){.n_threads = 2}, &limits, &err);
        mr_mem_fail_at(-1);
        if (status != MR_OK) {
            assert_int_equal(status, MR_E_NO_MEMORY);
            assert_true(limits.read_bytes == -1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_measurement),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
