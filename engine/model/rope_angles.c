/* engine/model/rope_angles.c - computes the constant of rule R in engine/NUMERICS.md. The angle of a pair is made from
 * the angle of the pair before it in float32, as ggml does (ggml_rope_cache_init). Other programs run trained models
 * with these angles, too; with exact angles the logits differ by 1e-5 at position 4500. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/fmath.h"
#include "engine/model/model.h"

static const double TWO_PI = 6.28318530717958647693;

/* NaN becomes low. */
static double clamp(double x, double low, double high) {
    return x > low ? (x < high ? x : high) : low;
}

/* The index of the pair that turns `turns` times over the original context, as a real number. The index is clamped to
 * at most one outside the pairs: with a frequency base of 1 all pairs turn alike, and the index would be infinite. */
static double pair_of_turns(const mr_model_rope *r, double turns) {
    double wave = (double)r->original_context / (turns * TWO_PI);
    double pair = (double)r->n_rot * mr_log(wave) / (2.0 * mr_log((double)r->freq_base));
    return clamp(pair, -1.0, (double)r->n_rot);
}

/* The largest integer that is not above x, without libm. x is small. */
static double floor_of(double x) {
    double t = (double)(int64_t)x;
    return t > x ? t - 1.0 : t;
}

/* The pairs between which YaRN goes over from keeping a frequency to dividing it by the factor. */
static void yarn_ramp(const mr_model_rope *r, double *out_low, double *out_high) {
    *out_low = clamp(floor_of(pair_of_turns(r, (double)r->beta_fast)), 0, r->n_rot - 1);
    *out_high = clamp(-floor_of(-pair_of_turns(r, (double)r->beta_slow)), 0, r->n_rot - 1);
}

void mr_rope_angles(const mr_model_rope *r, const float *factors, size_t row_floats, float *out_angles,
                    float *out_magnitude) {
    bool yarn = r->scaling == MR_ROPE_SCALING_YARN && r->ext_factor != 0.0f;
    float scale = r->scaling == MR_ROPE_SCALING_NONE ? 1.0f : 1.0f / r->factor;
    float step = (float)mr_pow((double)r->freq_base, -2.0 / (double)r->n_rot);
    double low = 0, high = 0;
    if (yarn)
        yarn_ramp(r, &low, &high);
    for (int32_t i = 0; i < r->n_rot / 2; i++) {
        double width = high - low < 0.001 ? 0.001 : high - low;
        float keep = yarn ? (float)(1.0 - clamp((i - low) / width, 0, 1)) * r->ext_factor : 0.0f;
        out_angles[MR_ROPE_STEP * row_floats + (size_t)i] = i == 0 ? 1.0f : step;
        out_angles[MR_ROPE_FACTOR * row_floats + (size_t)i] = factors ? factors[i] : 1.0f;
        out_angles[MR_ROPE_SLOW * row_floats + (size_t)i] = scale * (1.0f - keep);
        out_angles[MR_ROPE_KEEP * row_floats + (size_t)i] = keep;
    }
    *out_magnitude = (float)((double)r->attn_factor * (yarn ? 1.0 + 0.1 * mr_log((double)r->factor) : 1.0));
}
