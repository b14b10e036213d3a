/* backends/cuda/kernels/gpu_attention_int8.h - rule T8: attention on Q8_0 stores by products of int8 fragments.
 * A chunk of a tile is 32 head elements of its keys, or of its values, at all 64 positions, with their scales. Queries
 * and weights are integers 128 * hi + lo, with a plane of int8 for each part. A product has four queries: its columns
 * are hi and lo of the first, hi and lo of the second, and so on. So lane l has, with g = l / 4 and t = l % 4, both
 * parts of the results of query t: of scores at positions g and g + 8 of each 16; of weighted sums at head elements g
 * and g + 8 of each 16.
 * A shape has: K_DIM, V_DIM, most elements of keys and values; GROUPS, groups of four queries of a warp; WARPS, those
 * that have queries. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_ATTENTION_INT8_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_ATTENTION_INT8_H

#include <float.h>

#include "backends/cuda/kernels/gpu_attention_ring.h"

#define GPU_INT_MAX 16256.0f /* the largest x: 127 * 128 */

/* Chunks: i8 keys [8][64][4] or values [16][32][4], then f16 scales [64]. A word has the four k of a lane: four
 * elements of a key, or four positions of values. */
struct gpu_int8_chunks {
    static constexpr int SCALES = 2048, BYTES = SCALES + GPU_TILE * 2;

    /* Where the words [4 k][columns] of a chunk lie: columns of each four rows of k begin at another bank. */
    MR_INLINE int32_t word_at(int32_t row, int32_t column, int32_t columns) {
        return row * columns + (column ^ row % 4 * 8);
    }
    MR_INLINE int32_t count(const cuda_attention_args &a) { return (a.k_dim + a.v_dim) / 32; }
    /* Each KV block of the tile has 32 pieces of 16 bytes, then two of scales. */
    MR_INLINE void copy(const cuda_attention_args &a, const gpu_unit &u, int32_t position, int32_t chunk, uint8_t *to) {
        bool is_key = chunk < a.k_dim / 32;
        int32_t b = is_key ? chunk : chunk - a.k_dim / 32, dim = is_key ? a.k_dim : a.v_dim;
        MR_NO_UNROLL
        for (int32_t i = (int32_t)gpu_thread(); i < GPU_TILE / CUDA_KV_BLOCK * 34; i += CUDA_ATTENTION_THREADS) {
            int32_t block = i / 34, piece = i % 34, p = position + block * CUDA_KV_BLOCK;
            if (!gpu_has_block(u, p))
                continue;
            const uint8_t *from = is_key ? gpu_keys(a, u, p) : gpu_values(a, u, p);
            if (piece >= 32)
                gpu_copy16(to + SCALES + block * 32 + (piece - 32) * 16,
                           from + dim * CUDA_KV_BLOCK + b * 32 + (piece - 32) * 16);
            else if (is_key)
                gpu_copy16(to + word_at(piece / 4, block * CUDA_KV_BLOCK + piece % 4 * 4, GPU_TILE) * 4,
                           from + (b * 32 + piece) * 16);
            else
                gpu_copy16(to + word_at(block * 4 + piece / 8, piece % 8 * 4, 32) * 4,
                           from + (piece / 8 * dim + b * 32 + piece % 8 * 4) * 4);
        }
    }
};

enum { GPU_W_STRIDE = GPU_TILE + 8 }; /* floats from one query's weights to the next; another bank */

/* Where the weight of position p of a tile lies: lanes that read both halves of the positions find them in other banks.
 */
MR_INLINE int32_t gpu_weight_at(int32_t p) {
    return p ^ p / 32 * 16;
}

template <class Shape> struct gpu_int8_shared {
    static constexpr int QUERIES = Shape::WARPS * Shape::GROUPS * 4, STRIDE = Shape::K_DIM + 16;
    gpu_ring<gpu_int8_chunks> ring;
    alignas(16) int8_t x[QUERIES][2][STRIDE];                                   /* queries: hi, lo */
    alignas(16) float w[QUERIES][GPU_W_STRIDE];                                 /* weights of a tile */
    alignas(16) float o[Shape::WARPS][Shape::V_DIM / 32][Shape::GROUPS][32][4]; /* of a lane: elements g, g + 8, .. */
    gpu_query queries[CUDA_ATTENTION_WARPS * Shape::GROUPS * 4];
    float e[QUERIES]; /* factor of the sums of the tile */
    int32_t flag;
};

/* What a warp has of the shared memory. GROUPS: of the version that runs. */
template <class Shape> struct gpu_int8_warp {
    gpu_query *queries;
    int8_t (*x)[2][gpu_int8_shared<Shape>::STRIDE];
    float (*w)[GPU_W_STRIDE];
    float (*o)[Shape::GROUPS][32][4];
    float *e;
    int32_t g, t; /* of the lane */
};

template <class Shape, int GROUPS> MR_INLINE gpu_int8_warp<Shape> gpu_int8_warp_of(gpu_int8_shared<Shape> &shared) {
    int32_t warp = (int32_t)gpu_warp() % Shape::WARPS, first = warp * GROUPS * 4;
    return {shared.queries + (int32_t)gpu_warp() * GROUPS * 4,
            shared.x + first,
            shared.w + first,
            shared.o[warp],
            shared.e + first,
            (int32_t)gpu_lane() / 4,
            (int32_t)gpu_lane() % 4};
}

MR_INLINE int gpu_word(const void *at) {
    return gpu_read_shared((const int *)at);
}

MR_INLINE float gpu_round_even(float x) {
    return (x + MR_EXPF_MAGIC) - MR_EXPF_MAGIC;
}

/* --- Queries ----------------------------------------------------------------------------------------------------- */

/* Makes the integers of a query. Their scale goes into the scale of scores. */
template <int STRIDE>
MR_INLINE void gpu_quantize_query(const cuda_attention_args &a, gpu_query *query, int8_t (&x)[2][STRIDE]) {
    const float *q = gpu_row<const float>(a.q, query->row, a.q_row_bytes) + (size_t)query->head * (size_t)a.k_dim;
    uint32_t bits = 0;
    for (int32_t d = (int32_t)gpu_lane(); d < a.k_dim; d += 32) {
        uint32_t own = mr_f32_bits(gpu_read(q + d)) & 0x7fffffffu;
        bits = own > bits ? own : bits;
    }
    float amax = mr_bits_f32(gpu_warp_max(bits)), scale = amax / GPU_INT_MAX;
    bool is_zero = !(amax <= FLT_MAX) || scale < FLT_MIN;
    for (int32_t d = (int32_t)gpu_lane(); d < a.k_dim; d += 32) {
        int32_t own = is_zero ? 0 : (int32_t)gpu_round_even(gpu_read(q + d) * (GPU_INT_MAX / amax));
        x[0][d] = (int8_t)(own >> 7);
        x[1][d] = (int8_t)(own & 127);
    }
    if (gpu_lane() == 0)
        query->scale *= amax <= FLT_MAX ? scale : NAN;
}

/* --- Scores and weights ------------------------------------------------------------------------------------------ */

/* Adds block b of keys to the scores of query t of each group, at positions g + 8 i. */
template <class Shape, int GROUPS>
MR_INLINE void gpu_int8_scores(const uint8_t *chunk, int32_t b, const gpu_int8_warp<Shape> &warp,
                               float (&s)[GROUPS][8]) {
    const int *keys = (const int *)chunk;
    const uint16_t *scales = (const uint16_t *)(chunk + gpu_int8_chunks::SCALES);
    int x[GROUPS][2];
    MR_UNROLL
    for (int j = 0; j < GROUPS; j++) {
        const int8_t *column = warp.x[4 * j + warp.g / 2][warp.g % 2] + b * 32 + 4 * warp.t;
        x[j][0] = gpu_word(column);
        x[j][1] = gpu_word(column + 16);
    }
    MR_UNROLL
    for (int i = 0; i < 4; i++) {
        int32_t p = 16 * i + warp.g;
        int k[4];
        MR_UNROLL
        for (int r = 0; r < 4; r++)
            k[r] = gpu_word(keys + gpu_int8_chunks::word_at(warp.t + r / 2 * 4, p + r % 2 * 8, GPU_TILE));
        float d0 = gpu_half(gpu_read_shared(scales + p)), d1 = gpu_half(gpu_read_shared(scales + p + 8));
        MR_UNROLL
        for (int j = 0; j < GROUPS; j++) {
            int sum[4];
            const int zero[4] = {};
            gpu_mma_s8(sum, k, x[j], zero);
            s[j][2 * i] = fmaf((float)(sum[0] * 128 + sum[1]), d0, s[j][2 * i]);
            s[j][2 * i + 1] = fmaf((float)(sum[2] * 128 + sum[3]), d1, s[j][2 * i + 1]);
        }
    }
}

/* Makes weights of the scores of query t of a group. */
template <class Shape>
MR_INLINE void gpu_int8_weigh(const cuda_attention_args &a, int32_t position, const gpu_int8_warp<Shape> &warp,
                              int32_t group, float (&s)[8]) {
    int32_t t = 4 * group + warp.t;
    gpu_query *x = &warp.queries[t];
    int32_t first = x->first - position, last = x->last - position;
    float before = x->m, scale = x->scale, most = -INFINITY;
    MR_UNROLL
    for (int i = 0; i < 8; i++) {
        s[i] = s[i] * scale;
        if (a.soft_cap != 0.0f)
            s[i] = a.soft_cap * mr_tanhf(s[i] * (1.0f / a.soft_cap));
        if (warp.g + 8 * i >= first && warp.g + 8 * i < last)
            most = s[i] > most ? s[i] : most; /* a NaN is not the maximum */
    }
    for (int step = 4; step <= 16; step *= 2) {
        float other = gpu_shuffle_xor(most, step);
        most = other > most ? other : most;
    }
    MR_UNROLL
    for (int i = 0; i < 8; i++) {
        int32_t p = warp.g + 8 * i;
        warp.w[t][gpu_weight_at(p)] = p >= first && p < last ? mr_expf_or_nan(s[i] - most) : 0.0f;
    }
    if (warp.g == 0 && first < GPU_TILE && last > 0) {
        float all = most > before ? most : before;
        x->m = all;
        x->c = before == -INFINITY ? 0.0f : mr_expf_or_nan(before - all);
        warp.e[t] = mr_expf_or_nan(most - all);
    }
}

/* Adds the weights of a tile to the sums of weights of the warp's queries. */
template <class Shape, int GROUPS> MR_INLINE void gpu_int8_lanes(int32_t position, const gpu_int8_warp<Shape> &warp) {
    for (int32_t i = (int32_t)gpu_lane(); i < GROUPS * 4 * GPU_LANES; i += 32) {
        gpu_query *x = &warp.queries[i / GPU_LANES];
        float *w = warp.w[i / GPU_LANES] + i % GPU_LANES, *l = &x->l[i % GPU_LANES];
        if (gpu_sees(x, position, GPU_TILE))
            *l = fmaf(((w[0] + w[16]) + w[gpu_weight_at(32)]) + w[gpu_weight_at(48)], warp.e[i / GPU_LANES], *l * x->c);
    }
}

/* --- Values ------------------------------------------------------------------------------------------------------ */

/* Weights of four positions as integers, a byte of hi and of lo each. d: the scales of their values times 16256 / D, or
 * 0 where the query does not see the position. */
MR_INLINE void gpu_quantize_weights(const float *w, const float (&d)[4], int &hi, int &lo) {
    gpu_int4 bits = gpu_read_shared((const gpu_int4 *)w);
    const int all[4] = {bits.x, bits.y, bits.z, bits.w};
    hi = lo = 0;
    MR_UNROLL
    for (int i = 0; i < 4; i++) {
        float r = mr_bits_f32((uint32_t)all[i]) * d[i];
        int x = r == r ? (int)gpu_round_even(r) : 0; /* a NaN is in the sum of weights, too */
        hi |= (x >> 7) << 8 * i;
        lo |= (x & 127) << 8 * i;
    }
}

/* Weights of query g / 2 of a group for 32 head elements of values: the plane g % 2 at the positions that the lane has
 * in a product, x[0] of the first 32, x[1] of the others. Lanes g and g ^ 1 share the work: each makes both planes of
 * one half. Returns the factor of the products of query t. */
template <class Shape>
MR_INLINE float gpu_int8_weights(const uint16_t *scales, int32_t position, const gpu_int8_warp<Shape> &warp,
                                 int32_t group, int (&x)[2][2]) {
    int32_t half = warp.g % 2, from = 32 * half + 4 * warp.t, own = 4 * group + warp.g / 2;
    const gpu_query *query = &warp.queries[own];
    int32_t first = query->first - position, last = query->last - position;
    float d[2][4];
    uint32_t bits = 0;
    MR_UNROLL
    for (int i = 0; i < 8; i++) {
        int32_t p = from + i / 4 * 16 + i % 4;
        d[i / 4][i % 4] = p >= first && p < last ? gpu_half(gpu_read_shared(scales + p)) : 0.0f;
        uint32_t of = mr_f32_bits(d[i / 4][i % 4]); /* scales are not negative, and a NaN is above all numbers */
        bits = of > bits ? of : bits;
    }
    for (int step = 1; step <= 4; step *= 2) {
        uint32_t other = gpu_shuffle_xor(bits, step);
        bits = other > bits ? other : bits;
    }
    float most = mr_bits_f32(bits), inverse = most > 0.0f ? GPU_INT_MAX / most : 0.0f;
    int hi[2], lo[2];
    MR_UNROLL
    for (int k = 0; k < 2; k++) {
        MR_UNROLL
        for (int i = 0; i < 4; i++)
            d[k][i] = most > 0.0f ? d[k][i] * inverse : 0.0f;
        gpu_quantize_weights(warp.w[own] + gpu_weight_at(from + 16 * k), d[k], hi[k], lo[k]);
    }
    MR_UNROLL
    for (int k = 0; k < 2; k++) {
        int got = gpu_shuffle_xor(half ? hi[k] : lo[k], 4);
        x[0][k] = half ? got : hi[k];
        x[1][k] = half ? lo[k] : got;
    }
    return gpu_shuffle(most / GPU_INT_MAX * warp.e[own], 8 * warp.t);
}

/* Adds a block of 32 head elements of values to the weighted sums o of the block: [GROUPS][32][4]. */
template <class Shape, int GROUPS>
MR_INLINE void gpu_int8_values(const uint8_t *chunk, int32_t position, const gpu_int8_warp<Shape> &warp,
                               float (*o)[32][4]) {
    const int *values = (const int *)chunk;
    const uint16_t *scales = (const uint16_t *)(chunk + gpu_int8_chunks::SCALES);
    int v[2][2][4]; /* [elements 16 m ..][positions 32 h ..] */
    MR_UNROLL
    for (int i = 0; i < 16; i++)
        v[i / 8][i / 4 % 2][i % 4] =
            gpu_word(values + gpu_int8_chunks::word_at(8 * (i / 4 % 2) + i % 4 / 2 * 4 + warp.t,
                                                       16 * (i / 8) + i % 2 * 8 + warp.g, 32));
    MR_NO_UNROLL
    for (int j = 0; j < GROUPS; j++) {
        const gpu_query *query = &warp.queries[4 * j + warp.t];
        int x[2][2];
        float e = gpu_int8_weights(scales, position, warp, j, x), c = query->c;
        bool sees = gpu_sees(query, position, GPU_TILE);
        float *own = o[j][gpu_lane()];
        MR_UNROLL
        for (int m = 0; m < 2; m++) {
            int sum[4];
            const int zero[4] = {};
            gpu_mma_s8(sum, v[m][0], x[0], zero);
            gpu_mma_s8_add(sum, v[m][1], x[1]);
            if (sees) {
                own[2 * m] = fmaf((float)(sum[0] * 128 + sum[1]), e, own[2 * m] * c);
                own[2 * m + 1] = fmaf((float)(sum[2] * 128 + sum[3]), e, own[2 * m + 1] * c);
            }
        }
    }
}

/* --- Units ------------------------------------------------------------------------------------------------------- */

template <class Shape, int GROUPS>
MR_INLINE void gpu_int8_tile(const cuda_attention_args &a, const gpu_unit &u, gpu_int8_shared<Shape> &shared,
                             const gpu_int8_warp<Shape> &warp, int32_t position, gpu_ahead &ahead) {
    bool works = warp.queries[0].last > 0;
    float s[GROUPS][8] = {};
    for (int32_t b = 0; b < a.k_dim / 32; b++) {
        const uint8_t *chunk = gpu_ring_next(a, u, shared.ring, ahead);
        if (works)
            gpu_int8_scores<Shape, GROUPS>(chunk, b, warp, s);
    }
    if (works) {
        MR_UNROLL
        for (int j = 0; j < GROUPS; j++)
            gpu_int8_weigh(a, position, warp, j, s[j]);
        gpu_sync_warp();
        gpu_int8_lanes<Shape, GROUPS>(position, warp);
    }
    for (int32_t b = 0; b < a.v_dim / 32; b++) {
        const uint8_t *chunk = gpu_ring_next(a, u, shared.ring, ahead);
        if (works)
            gpu_int8_values<Shape, GROUPS>(chunk, position, warp, warp.o[b]);
    }
}

/* Empties the weighted sums of the warp. */
template <class Shape, int GROUPS>
MR_INLINE void gpu_int8_empty(const cuda_attention_args &a, const gpu_int8_warp<Shape> &warp) {
    for (int32_t i = 0; i < a.v_dim / 32 * GROUPS; i++)
        for (int k = 0; k < 4; k++)
            warp.o[i / GROUPS][i % GROUPS][gpu_lane()][k] = 0.0f;
}

/* Ends a partition of all queries of the warp. */
template <class Shape, int GROUPS>
MR_INLINE void gpu_int8_close(const cuda_attention_args &a, const gpu_unit &u, int32_t part,
                              const gpu_int8_warp<Shape> &warp) {
    constexpr int PAIRS = Shape::V_DIM / 64;
    gpu_sync_warp();
    MR_NO_UNROLL
    for (int j = 0; j < GROUPS * 4; j++) {
        if (!gpu_sees(&warp.queries[j], part * CUDA_PARTITION, CUDA_PARTITION))
            continue;
        float o[PAIRS][2] = {};
        MR_UNROLL
        for (int i = 0; i < 2 * PAIRS; i++) {
            int32_t element = gpu_element(i / 2) + i % 2, lane = element % 8 * 4 + j % 4;
            if (element < a.v_dim)
                o[i / 2][i % 2] = warp.o[element / 32][j / 4][lane][element % 32 / 8];
        }
        gpu_close(a, u, part, &warp.queries[j], o);
    }
    gpu_sync_warp();
    gpu_int8_empty<Shape, GROUPS>(a, warp);
}

template <class Shape, int GROUPS>
MR_INLINE void gpu_int8_unit(const cuda_attention_args &a, const gpu_unit &u, gpu_int8_shared<Shape> &shared) {
    gpu_int8_warp<Shape> warp = gpu_int8_warp_of<Shape, GROUPS>(shared);
    gpu_ahead ahead = gpu_ahead_of(u);
    const int32_t start = ahead.position, end = ahead.end;
    for (int i = 0; i < GPU_STAGES - 1; i++)
        gpu_ring_ahead(a, u, shared.ring, ahead);
    gpu_list_queries<GROUPS * 4>(a, u, GROUPS * 4, shared.queries);
    gpu_sync();
    bool works = warp.queries[0].last > 0;
    MR_NO_UNROLL
    for (int j = 0; j < GROUPS * 4; j++)
        if (warp.queries[j].last > 0)
            gpu_quantize_query(a, &warp.queries[j], warp.x[j]);
    if (works)
        gpu_int8_empty<Shape, GROUPS>(a, warp);
    for (int32_t p = start; p < end; p += GPU_TILE) {
        gpu_int8_tile<Shape, GROUPS>(a, u, shared, warp, p, ahead);
        bool is_last = p + GPU_TILE >= end || (p + GPU_TILE) % CUDA_PARTITION == 0;
        if (works && is_last)
            gpu_int8_close<Shape, GROUPS>(a, u, p / CUDA_PARTITION, warp);
    }
    if (u.partition < 0 || !gpu_is_complete(u, &shared.flag))
        return;
    MR_NO_UNROLL
    for (int j = 0; j < GROUPS * 4; j++)
        if (warp.queries[j].last > 0)
            gpu_merge_states<Shape::V_DIM / 64>(a, u, &warp.queries[j]);
}

/* The body of a kernel. */
template <class Shape> MR_INLINE void gpu_attend_int8(const cuda_attention_args &a, gpu_int8_shared<Shape> &shared) {
    gpu_unit u;
    while (gpu_claim(a, &shared.flag, &u)) {
        if constexpr (Shape::GROUPS > 1)
            if (u.n_rows * u.n_heads > 4 * CUDA_ATTENTION_WARPS) {
                gpu_int8_unit<Shape, Shape::GROUPS>(a, u, shared);
                continue;
            }
        gpu_int8_unit<Shape, 1>(a, u, shared);
    }
}

#endif
