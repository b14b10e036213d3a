/* Millrace's exponential and logarithm functions are close to those of libm, and correct at the edges of their
 * ranges. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/fmath.h"
#include "tests/support/test.h"

static void test_expf_is_close_to_libm(void **state) {
    (void)state;
    double worst = 0;
    for (float x = -86.5f; x < 87.5f; x += 0.00371f) {
        double want = exp((double)x), error = fabs((double)mr_expf(x) - want) / want;
        worst = error > worst ? error : worst;
    }
    assert_true(worst < 3e-7);
}

static void test_expf_edges(void **state) {
    (void)state;
    assert_true(mr_expf(0.0f) == 1.0f);
    assert_true(mr_expf(-INFINITY) == 0.0f);
    assert_true(mr_expf(-1000.0f) == 0.0f);
    assert_true(isfinite(mr_expf(INFINITY)));
    assert_true(isnan(mr_expf_or_nan(NAN)) && isnan(mr_expf_or_nan(mr_bits_f32(0x7fc001c0u))));
    assert_true(mr_expf_or_nan(-1.5f) == mr_expf(-1.5f));
    assert_true(isnan(mr_sigmoidf(mr_bits_f32(0xffc001c0u))) && mr_sigmoidf(0.0f) == 0.5f);
    assert_true(mr_siluf(-INFINITY) <= 0.0f);
    assert_true(isnan(mr_siluf(NAN)));
}

static void test_tanhf_is_close_to_libm(void **state) {
    (void)state;
    double worst = 0;
    for (float x = -12.0f; x < 12.0f; x += 0.000371f) {
        double want = tanh((double)x), error = fabs((double)mr_tanhf(x) / want - 1);
        worst = error > worst ? error : worst;
    }
    assert_true(worst < 3e-7);
    assert_true(mr_tanhf(0.0f) == 0.0f && mr_tanhf(1e-6f) == 1e-6f);
    assert_true(mr_tanhf(INFINITY) == 1.0f && mr_tanhf(-INFINITY) == -1.0f && mr_tanhf(-1e30f) == -1.0f);
    assert_true(isnan(mr_tanhf(NAN)));
}

static void test_double_functions_are_close_to_libm(void **state) {
    (void)state;
    for (double x = 1e-6; x < 1e7; x *= 1.37) {
        assert_true(fabs(mr_log(x) - log(x)) <= 1e-15 * (1 + fabs(log(x))));
        assert_true(fabs(mr_pow(x, -0.37) / pow(x, -0.37) - 1) < 1e-14);
    }
    for (double x = -600; x < 600; x += 1.3)
        assert_true(fabs(mr_exp(x) / exp(x) - 1) < 1e-14);
    for (double x = -1e6; x < 1e6; x += 13.37) {
        double s, c;
        mr_sincos(x, &s, &c);
        assert_true(fabs(s - sin(x)) < 1e-14 && fabs(c - cos(x)) < 1e-14);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expf_is_close_to_libm),
        cmocka_unit_test(test_expf_edges),
        cmocka_unit_test(test_tanhf_is_close_to_libm),
        cmocka_unit_test(test_double_functions_are_close_to_libm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
