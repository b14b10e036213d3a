// SPDX-License-Identifier: Apache-2.0
#include "engine/base/fmath.h"
#include "engine/model/model.h"

static const double TWO_PI = 6.28318530717958647693;

/* Index of the pair that turns `turns` times over the original context; a real number. */
static double pair_of_turns(const mr_model_rope *r, double turns) {
    double wave = (double)r->original_context / (turns * TWO_PI);
    return (double)r->n_rot * mr_log(wave) / (2.0 * mr_log((double)r->freq_base));
}

/* Below and above the nearest integers, without libm. */
static double floor_of(double x) {
    double t = (double)(int64_t)x;
    return t > x ? t - 1.0 : t;
}

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

void mr_rope_frequencies(const mr_model_info *info, const float *factors, double *out_freq, float *out_magnitude) {
    const mr_model_rope *r = &info->rope;
    bool yarn = r->scaling == MR_ROPE_SCALING_YARN && r->ext_factor != 0.0f;
    double scale = r->scaling == MR_ROPE_SCALING_NONE ? 1.0 : 1.0 / (double)r->factor;
    double low = 0, high = 0;
    if (yarn) {
        low = clamp(floor_of(pair_of_turns(r, (double)r->beta_fast)), 0, r->n_rot - 1);
        high = clamp(-floor_of(-pair_of_turns(r, (double)r->beta_slow)), 0, r->n_rot - 1);
    }
    for (int32_t i = 0; i < r->n_rot / 2; i++) {
        double own = mr_pow((double)r->freq_base, -2.0 * i / r->n_rot);
        if (factors)
            own /= (double)factors[i];
        double slowed = own * scale, keep = 0.0;
        if (yarn) {
            double width = high - low < 0.001 ? 0.001 : high - low;
            keep = (1.0 - clamp((i - low) / width, 0, 1)) * (double)r->ext_factor;
        }
        out_freq[i] = slowed * (1.0 - keep) + own * keep;
    }
    *out_magnitude = 1.0f;
    if (r->scaling == MR_ROPE_SCALING_YARN)
        *out_magnitude = (float)((double)r->attn_factor * (yarn ? 1.0 + 0.1 * mr_log((double)r->factor) : 1.0));
}
