/* Random numbers: known answers of Philox, and a uniform distribution. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/rng.h"
#include "tests/support/test.h"

/* The known answers of Random123 (kat_vectors: philox 4 32 10). */
static void test_known_answers(void **state) {
    (void)state;
    static const struct {
        mr_philox counter;
        uint32_t key0, key1;
        mr_philox want;
    } cases[] = {
        {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         0xffffffff,
         0xffffffff,
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         0xa4093822,
         0x299f31d0,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mr_philox got = mr_philox4x32(cases[i].counter, cases[i].key0, cases[i].key1);
        assert_memory_equal(&got, &cases[i].want, sizeof got);
    }
}

static void test_numbers_take_the_first_words(void **state) {
    (void)state;
    assert_true(mr_rng_u64(0, 0, 0) == 0x6627e8d5e169c58d);
    assert_true(mr_rng_f32(0, 0, 0) == (float)(0x6627e8d5u >> 8) / 16777216.0f);
    assert_true(mr_rng_f32(UINT64_MAX, UINT64_MAX, UINT64_MAX) == (float)(0x408f276du >> 8) / 16777216.0f);
    /* Seed, stream and counter in which all bits count, low halves first. */
    assert_true(mr_rng_f32(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88) ==
                (float)(0xd16cfe09u >> 8) / 16777216.0f);
}

static void test_f32_is_uniform(void **state) {
    (void)state;
    enum { BINS = 64, N = 1 << 18 };
    static int count[BINS];
    double sum = 0;
    for (int i = 0; i < N; i++) {
        float u = mr_rng_f32(42, (uint64_t)i % 7, (uint64_t)i / 7);
        assert_true(u >= 0.0f && u < 1.0f);
        count[(int)(u * BINS)]++;
        sum += (double)u;
    }
    double chi2 = 0, want = (double)N / BINS;
    for (int i = 0; i < BINS; i++)
        chi2 += (count[i] - want) * (count[i] - want) / want;
    assert_true(chi2 < 103.4); /* 63 degrees of freedom, p = 0.001 */
    assert_true(sum / N > 0.498 && sum / N < 0.502);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_numbers_take_the_first_words),
        cmocka_unit_test(test_f32_is_uniform),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
