/* The angles of rule R against the formulas, computed in double by libm. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "engine/model/model.h"
#include "tests/support/test.h"

enum { MAX_PAIRS = 128, ROW = 160 };
static const double PI = 3.14159265358979323846;

static mr_model_rope rope_of(int32_t n_rot, float base, mr_rope_scaling scaling, float factor) {
    return (mr_model_rope){.n_rot = n_rot,
                           .freq_base = base,
                           .scaling = scaling,
                           .factor = factor,
                           .original_context = 2048,
                           .attn_factor = 1.0f,
                           .ext_factor = scaling == MR_ROPE_SCALING_YARN ? 1.0f : 0.0f,
                           .beta_fast = 32.0f,
                           .beta_slow = 1.0f};
}

/* Yarn, section 3.2: the pair that turns beta times over the original context. */
static double yarn_pair(const mr_model_rope *r, double beta) {
    return r->n_rot * log(r->original_context / (beta * 2 * PI)) / (2 * log((double)r->freq_base));
}

/* The angle of pair i for one position, in double. */
static double want_frequency(const mr_model_rope *rope, const float *factors, int i) {
    const mr_model_rope *r = rope;
    double own = pow((double)r->freq_base, -2.0 * i / r->n_rot) / (factors ? (double)factors[i] : 1.0);
    if (r->scaling == MR_ROPE_SCALING_NONE)
        return own;
    double slowed = own / (double)r->factor;
    if (r->scaling != MR_ROPE_SCALING_YARN)
        return slowed;
    double low = fmax(0, floor(yarn_pair(r, (double)r->beta_fast)));
    double high = fmin(r->n_rot - 1, ceil(yarn_pair(r, (double)r->beta_slow)));
    double ramp = (i - low) / fmax(0.001, high - low);
    double keep = (1 - fmin(1, fmax(0, ramp))) * (double)r->ext_factor;
    return slowed * (1 - keep) + own * keep;
}

static double want_magnitude(const mr_model_rope *rope) {
    const mr_model_rope *r = rope;
    return (double)r->attn_factor * (r->ext_factor != 0.0f ? 1 + 0.1 * log((double)r->factor) : 1);
}

/* Rule R by the text of NUMERICS.md: angles of a position out of the constant. */
static void make_angles(const float *c, int n_pairs, int32_t position, float *out) {
    float theta = (float)position;
    for (int i = 0; i < n_pairs; i++) {
        theta = theta * c[MR_ROPE_STEP * ROW + i];
        float own = theta / c[MR_ROPE_FACTOR * ROW + i];
        float slow = own * c[MR_ROPE_SLOW * ROW + i], keep = own * c[MR_ROPE_KEEP * ROW + i];
        out[i] = slow + keep;
    }
}

static void check(const mr_model_rope *rope, const float *factors) {
    float c[MR_ROPE_ROWS * ROW], angles[MAX_PAIRS], magnitude = -1;
    int n_pairs = rope->n_rot / 2;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        c[i] = 1e30f;
    mr_rope_angles(rope, factors, ROW, c, &magnitude);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        assert_true((c[i] == 1e30f) == ((int)(i % ROW) >= n_pairs)); /* every pair is written, and nothing else */
    for (int32_t position = 0; position < 200000; position = position * 3 + 1) {
        make_angles(c, n_pairs, position, angles);
        for (int i = 0; i < n_pairs; i++) {
            double want = position * want_frequency(rope, factors, i);
            /* Each pair adds the rounding error of the angle and of the step. */
            if (fabs((double)angles[i] - want) > want * (i + 4) * 1.2e-7)
                fail_msg("position %d, pair %d: %.9g, expected %.9g", position, i, (double)angles[i], want);
        }
    }
    double wanted = want_magnitude(rope);
    if (fabs((double)magnitude - wanted) > wanted * 1e-6)
        fail_msg("magnitude %.9g, expected %.9g", (double)magnitude, wanted);
}

static void test_plain_and_linear(void **state) {
    (void)state;
    static const int32_t widths[] = {2, 6, 64, 80, 128, 256};
    static const float bases[] = {1.0f, 10000.0f, 500000.0f, 1e6f, 1e15f};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t b = 0; b < sizeof bases / sizeof *bases; b++) {
            mr_model_rope rope = rope_of(widths[w], bases[b], MR_ROPE_SCALING_NONE, 1.0f);
            rope.attn_factor = 3.0f; /* only YaRN uses this factor */
            check(&rope, NULL);
            rope = rope_of(widths[w], bases[b], MR_ROPE_SCALING_LINEAR, 8.0f);
            check(&rope, NULL);
        }
}

static void test_factors(void **state) {
    (void)state;
    float factors[MAX_PAIRS];
    for (int i = 0; i < MAX_PAIRS; i++)
        factors[i] = i < 10 ? 1.0f : i < 40 ? 1.0f + 0.21f * (float)(i - 10) : 8.0f;
    for (int scaling = MR_ROPE_SCALING_NONE; scaling <= MR_ROPE_SCALING_LONGROPE; scaling++) {
        mr_model_rope rope = rope_of(128, 500000.0f, (mr_rope_scaling)scaling, scaling ? 4.0f : 1.0f);
        rope.attn_factor = 1.25f;
        check(&rope, factors);
    }
}

static void test_yarn(void **state) {
    (void)state;
    static const float factors[] = {1.0f, 4.0f, 40.0f}, bases[] = {10000.0f, 1e6f};
    for (size_t f = 0; f < 3; f++)
        for (size_t b = 0; b < 2; b++)
            for (int32_t n_rot = 32; n_rot <= 128; n_rot *= 2) {
                mr_model_rope rope = rope_of(n_rot, bases[b], MR_ROPE_SCALING_YARN, factors[f]);
                check(&rope, NULL);
                rope.ext_factor = 0.0f;
                rope.attn_factor = 0.7f;
                check(&rope, NULL);
                rope.ext_factor = 0.5f;
                rope.beta_fast = 16.0f;
                rope.beta_slow = 2.0f;
                rope.original_context = 32768;
                check(&rope, NULL);
            }
}

/* Numbers that the file may hold and that make logarithms of nothing: the ramp stays inside the pairs. */
static void test_yarn_at_the_edges(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        mr_model_rope rope = rope_of(64, i & 1 ? 1.0f : 1.0000001f, MR_ROPE_SCALING_YARN, 4.0f);
        float c[MR_ROPE_ROWS * ROW], magnitude;
        rope.original_context = i < 2 ? 1 : i < 4 ? 201 : 1 << 30;
        rope.beta_fast = i < 4 ? 32.0f : 1e-3f;
        rope.beta_slow = i < 4 ? 1.0f : 1e6f;
        mr_rope_angles(&rope, NULL, ROW, c, &magnitude);
        for (int row = 0; row < MR_ROPE_ROWS; row++)
            for (int pair = 0; pair < 32; pair++)
                assert_true(c[row * ROW + pair] >= 0.0f && c[row * ROW + pair] <= 1.0f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_and_linear),
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_yarn_at_the_edges),
    };
    return cmocka_run_group_tests_name("model_rope", tests, NULL, NULL);
}
