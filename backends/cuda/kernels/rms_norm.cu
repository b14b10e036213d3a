/* backends/cuda/kernels/rms_norm.cu - root mean square norms (rule N), with the activations of the next product as
 * result. All threads of a block bring its columns into shared memory. Then half a warp has a group: its 16 threads are
 * the lanes of rule S1. One group of 4096 columns is 256 additions one after the other, about as long as reading it. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_activations.h"

/* Adds the squares of elements lane, lane + 16, … of x[n] to sum, in order. */
MR_INLINE float add_squares(float sum, const float *x, int32_t n, int32_t lane) {
    int32_t i = lane;
    for (; i + 7 * 16 < n; i += 8 * 16) {
        float v[8];
        MR_UNROLL
        for (int k = 0; k < 8; k++)
            v[k] = gpu_read_shared(x + i + 16 * k);
        MR_UNROLL
        for (int k = 0; k < 8; k++)
            sum += v[k] * v[k];
    }
    for (; i < n; i += 16)
        sum += x[i] * x[i];
    return sum;
}

/* The columns of a block: those of its groups, and those up to last that are copied. */
struct norm_span {
    int32_t first, last, n_normed, n_groups;
};
MR_INLINE norm_span span_of(const cuda_rms_norm_args &a) {
    int32_t group = (int32_t)gpu_block_y() * a.n_span, rest = a.n_groups - group;
    norm_span s = {group * a.m, 0, 0, rest < a.n_span ? rest : a.n_span};
    s.n_normed = s.n_groups * a.m;
    s.last = rest <= a.n_span ? a.y.n : s.first + s.n_normed;
    return s;
}

MR_KERNEL(cuda_rms_norm, cuda_rms_norm_args, CUDA_NORM_THREADS) {
    MR_SHARED float kept[CUDA_NORM_COLUMNS], scale[CUDA_NORM_GROUPS];
    int32_t row = (int32_t)gpu_block(), thread = (int32_t)gpu_thread(), group = thread / 16, lane = thread % 16;
    if (row >= gpu_real_rows(a.step, a.rows))
        return;
    const float *x = gpu_row<const float>(a.x, row, a.x_row_bytes);
    norm_span s = span_of(a);
    float sum = 0.0f;
    for (int32_t at = 0; at < s.n_normed; at += CUDA_NORM_COLUMNS) {
        int32_t n = s.n_normed - at < CUDA_NORM_COLUMNS ? s.n_normed - at : CUDA_NORM_COLUMNS;
        if (at > 0)
            gpu_sync(); /* the squares of the columns before are added */
        for (int32_t i = thread; i < n; i += CUDA_NORM_THREADS)
            kept[i] = x[s.first + at + i];
        gpu_sync();
        if (group < s.n_groups)
            sum = add_squares(sum, kept + group * a.m, a.m < n ? a.m : n, lane);
    }
    MR_UNROLL
    for (int apart = 8; apart > 0; apart /= 2)
        sum += gpu_shuffle_xor(sum, apart);
    if (lane == 0 && group < s.n_groups)
        scale[group] = 1.0f / sqrtf(sum / (float)a.m + a.eps);
    gpu_sync();
    bool is_kept = s.n_normed <= CUDA_NORM_COLUMNS;
    for (int32_t block = s.first / 32 + thread / 32 * 4; block * 32 < s.last; block += CUDA_NORM_THREADS / 8) {
        int32_t own = block + (int32_t)gpu_lane() / 8;
        own = own * 32 < s.last ? own : (a.y.n + 31) / 32; /* past the end: gpu_put writes nothing */
        float v[4];
        MR_UNROLL
        for (int i = 0; i < 4; i++) {
            int32_t c = gpu_column(own, i), at = c - s.first, g = s.n_groups > 1 ? at / a.m : 0;
            bool is_normed = at < s.n_normed;
            v[i] = is_normed && is_kept ? kept[at] : c < s.last ? x[c] : 0.0f;
            v[i] = is_normed ? (v[i] * scale[g]) * a.w[at - g * a.m] : v[i];
        }
        gpu_put(a.y, row, own, v);
    }
}
