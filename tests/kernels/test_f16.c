/* tests/kernels/test_f16.c - tests rule A3: the integer conversion of half precision (f16.h) against its definition and
 * against the instructions of the machine (F16C, FCVT). */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "backends/cpu/kernels.h"
#include "engine/base/thread.h"
#include "engine/tensor/f16.h"
#include "tests/support/test.h"

/* The value of a half by its definition. Every NaN becomes NaN. */
static double half_value(uint16_t h) {
    int exp = h >> 10 & 31, man = h & 1023;
    double size = exp == 31  ? (man ? (double)NAN : (double)INFINITY)
                  : exp == 0 ? ldexp(man, -24)
                             : ldexp(1024 + man, exp - 25);
    return h & 0x8000 ? -size : size;
}

static void test_halves_have_their_value(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        double want = half_value((uint16_t)h);
        float got = mr_f16_to_f32((uint16_t)h);
        if (isnan(want))
            assert_true(isnan(got));
        else
            assert_true(mr_f32_bits(got) == mr_f32_bits((float)want));
    }
}

static void test_halves_survive_the_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t quiet = (h & 0x7c00) == 0x7c00 && (h & 0x3ff) ? h | 0x200 : h;
        assert_int_equal(mr_f32_to_f16(mr_f16_to_f32((uint16_t)h)), quiet);
    }
}

/* A value halfway between two neighbours goes to the even one, the floats on both sides of it to the nearer
 * neighbour. */
static void test_rounding_is_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float mid = (float)((half_value((uint16_t)h) + half_value((uint16_t)(h + 1))) / 2);
        uint32_t bits = mr_f32_bits(mid);
        assert_int_equal(mr_f32_to_f16(mid), h + (h & 1));
        assert_int_equal(mr_f32_to_f16(mr_bits_f32(bits - 1)), h);
        assert_int_equal(mr_f32_to_f16(mr_bits_f32(bits + 1)), h + 1);
        assert_int_equal(mr_f32_to_f16(-mid), 0x8000 | (h + (h & 1)));
    }
    assert_int_equal(mr_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(mr_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(mr_f32_to_f16(-1e30f), 0xfc00);
}

/* The conversion instructions of the machine. */
#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static float machine_to_f32(uint16_t h) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
__attribute__((target("avx,f16c"))) static uint16_t machine_from_f32(float f) {
    return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT), 0);
}
#elif defined(__aarch64__)
static float machine_to_f32(uint16_t h) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
}
static uint16_t machine_from_f32(float f) {
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(f))), 0);
}
#endif

static void compare_with_machine(void) {
#if defined(__x86_64__) || defined(__aarch64__)
    if (mr_isa_detect() == MR_ISA_SCALAR)
        skip();
    for (uint32_t h = 0; h < 65536; h++)
        assert_int_equal(mr_f32_bits(mr_f16_to_f32((uint16_t)h)), mr_f32_bits(machine_to_f32((uint16_t)h)));
    /* Every exponent and sign with many mantissas, by an odd stride over all floats. */
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 1021) {
        float f = mr_bits_f32((uint32_t)bits);
        if (mr_f32_to_f16(f) != machine_from_f32(f))
            fail_msg("%a (0x%08x) becomes 0x%04x, not 0x%04x", (double)f, (unsigned)bits, mr_f32_to_f16(f),
                     machine_from_f32(f));
    }
#else
    skip();
#endif
}

static void test_equals_the_machine(void **state) {
    (void)state;
    compare_with_machine();
}

/* The last test, because the denormal mode stays set. */
static void test_equals_the_machine_with_denormals_flushed(void **state) {
    (void)state;
    mr_thread_set_denormals_flushed();
    compare_with_machine();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves_have_their_value),
        cmocka_unit_test(test_halves_survive_the_round_trip),
        cmocka_unit_test(test_rounding_is_to_nearest_even),
        cmocka_unit_test(test_equals_the_machine),
        cmocka_unit_test(test_equals_the_machine_with_denormals_flushed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
