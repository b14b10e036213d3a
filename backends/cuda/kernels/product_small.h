/* backends/cuda/kernels/product_small.h - integer products of few rows of activations, bound by reading the weights.
 * A warp has the 16 rows of a panel and NT times 8 columns (rows of activations). It walks over k in steps of tiles,
 * whose weights it reads ahead into registers, at least 8 tiles. Each lane has four results for each 8 columns, and
 * their chains.
 * WARPS > 1, for matrices of few panels: the warps of a block share a panel. Each takes every WARPS-th step and makes
 * the sums of its step. Then the results go through shared memory from warp to warp in the order of the steps, so that
 * the chains stay in order. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_PRODUCT_SMALL_H
#define MR_BACKENDS_CUDA_KERNELS_PRODUCT_SMALL_H

#include "backends/cuda/kernels/product_tile.h"
#include "backends/cuda/kernels/product_types.h"

/* Where a lane reads and what it has. */
template <int NT> struct small_lane {
    const uint8_t *quants, *scales; /* the lane's first words of the panel; the panel's scales */
    const uint8_t *a;               /* activations */
    uint32_t q[NT];                 /* where in a column g of each fragment begins */
    uint32_t d[NT][2];              /* d of columns 2t and 2t + 1 */
    uint32_t sums;                  /* bytes from d to the sums */
    uint32_t g, t;
    int32_t n_rows;
    product_start start;
};

/* The weights of a step, as a lane reads them. */
template <class T> struct small_step { int quants[4 * T::READS], scales[T::WORDS]; };

/* The sums of four tiles by 8 columns, and the scales of the activations. */
template <class T> struct small_quad {
    product_sums<T> sums[4];
    activation_scales x[4];
};

/* Reads a step with n_tiles tiles. */
template <class T, int NT>
MR_INLINE void small_read(const small_lane<NT> &l, int32_t step, int32_t n_tiles, small_step<T> *out) {
    const uint8_t *at = l.quants + (size_t)step * (T::STEP / T::UNIT * T::UNIT_BYTES);
    MR_UNROLL
    for (int i = 0; i < T::READS; i++)
        if (512 * i / T::UNIT_BYTES * T::UNIT < n_tiles)
            product_words(gpu_read((const gpu_int4 *)(at + 512 * i)), &out->quants[4 * i]);
    product_read_scales<T>(l.scales + (size_t)step * T::STEP_BYTES, l.g, out->scales);
}

/* The scales of the activations of four tiles. FULL: n_tiles is 4. */
template <class T, bool FULL, int NT>
MR_INLINE void small_read_scales(const small_lane<NT> &l, int n, int32_t tile, int32_t n_tiles,
                                 activation_scales x[4]) {
    MR_UNROLL
    for (int c = 0; c < 2; c++) {
        const uint8_t *at = l.a + (l.d[n][c] + 4 * (uint32_t)tile);
        int d[4], sums[4];
        if (FULL)
            product_words(gpu_read((const gpu_int4 *)at), d);
        if (T::RULE == PRODUCT_MIN)
            product_words(gpu_read((const gpu_int4 *)(at + l.sums)), sums);
        MR_UNROLL
        for (int i = 0; i < 4; i++) {
            if (!FULL && i < n_tiles)
                d[i] = gpu_read((const int *)(at + 4 * i));
            if (FULL || i < n_tiles)
                x[i].d[c] = mr_bits_f32((uint32_t)d[i]);
            if (T::RULE == PRODUCT_MIN)
                x[i].sum[c] = x[i].d[c] * (float)sums[i];
        }
    }
}

/* Multiplies four tiles (those from 4 quad on of a step; tile: the first of them in the panel) by all columns. Calls
 * use(n, sums, scales of the weights) for each 8 columns. */
template <class T, bool FULL, int NT, class F>
MR_INLINE void small_multiply(const small_lane<NT> &l, const small_step<T> &step, int quad, int32_t tile,
                              int32_t n_tiles, F use) {
    product_fragment<T> a[4];
    weight_scales w[4];
    MR_UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = product_unpack<T>(step.quants, step.scales, 4 * quad + i);
        w[i] = T::scales(step.scales, 4 * quad + i);
    }
    MR_UNROLL
    for (int n = 0; n < NT; n++) {
        if (NT > 2 && 8 * n >= l.n_rows)
            continue;
        small_quad<T> s;
        small_read_scales<T, FULL>(l, n, tile, n_tiles, s.x);
        MR_UNROLL
        for (int i = 0; i < 4; i++)
            if (FULL || i < n_tiles) {
                int b[2];
                product_read_activations(l.a + (l.q[n] + CUDA_TILE * (uint32_t)tile) + CUDA_TILE * i, l.t, b);
                product_multiply<T>(s.sums[i], a[i], b, l.start);
            }
        use(n, s, w);
    }
}

template <class T, bool FULL>
MR_INLINE void small_chain(float acc[4], const small_quad<T> &s, const weight_scales w[4], int32_t n_tiles) {
    MR_UNROLL
    for (int i = 0; i < 4; i++)
        if (FULL || i < n_tiles)
            product_chain<T>(acc, s.sums[i], w[i], s.x[i]);
}

/* Adds a step to the chains. */
template <class T, bool FULL, int NT>
MR_INLINE void small_add_step(const small_lane<NT> &l, const small_step<T> &step, int32_t tile, int32_t n_tiles,
                              float (*acc)[4]) {
    float block[NT][4] = {};
    MR_UNROLL
    for (int quad = 0; quad < T::STEP / 4; quad++)
        small_multiply<T, FULL>(l, step, quad, tile + 4 * quad, n_tiles,
                                [&](int n, const small_quad<T> &s, const weight_scales w[4]) {
                                    small_chain<T, FULL>(T::RULE == PRODUCT_BLOCK ? block[n] : acc[n], s, w, n_tiles);
                                });
    if constexpr (T::RULE == PRODUCT_BLOCK)
        MR_UNROLL
    for (int n = 0; n < NT; n++)
        product_chain_block<T>(acc[n], block[n], T::scales(step.scales, 0));
}

/* A step by 8 columns before it is added to the chains: the sums of its tiles, or its block. */
template <class T> struct small_sums {
    small_quad<T> quads[T::STEP / 4];
    float block[4];
};
template <class T>
MR_INLINE void small_sum_step(const small_lane<1> &l, const small_step<T> &step, int32_t tile, small_sums<T> *out) {
    if constexpr (T::RULE == PRODUCT_BLOCK)
        for (int j = 0; j < 4; j++)
            out->block[j] = 0;
    MR_UNROLL
    for (int i = 0; i < T::STEP / 4; i++)
        small_multiply<T, true>(l, step, i, tile + 4 * i, 4, [&](int, const small_quad<T> &s, const weight_scales *w) {
            if constexpr (T::RULE == PRODUCT_BLOCK)
                small_chain<T, true>(out->block, s, w, 4);
            else
                out->quads[i] = s;
        });
}
template <class T> MR_INLINE void small_add_sums(const small_sums<T> &s, const small_step<T> &step, float acc[4]) {
    if constexpr (T::RULE == PRODUCT_BLOCK)
        product_chain_block<T>(acc, s.block, T::scales(step.scales, 0));
    else
        MR_UNROLL
    for (int i = 0; i < T::STEP; i++)
        product_chain<T>(acc, s.quads[i / 4].sums[i % 4], T::scales(step.scales, i), s.quads[i / 4].x[i % 4]);
}

/* The results of a lane on their way from warp to warp. */
template <int NT> struct small_baton { float acc[4 * NT][32]; };
template <int NT> MR_INLINE void small_take(const small_baton<NT> &baton, float (*acc)[4]) {
    MR_UNROLL
    for (int i = 0; i < 4 * NT; i++)
        acc[i / 4][i % 4] = gpu_read_shared(&baton.acc[i][gpu_lane()]);
}
template <int NT> MR_INLINE void small_pass(small_baton<NT> &baton, const float (*acc)[4]) {
    MR_UNROLL
    for (int i = 0; i < 4 * NT; i++)
        baton.acc[i][gpu_lane()] = acc[i / 4][i % 4];
}

/* Adds a step for each warp of the block, in their order. All threads of the block call it; here: whether this warp has
 * a step. With 8 columns, there are registers for the sums of a step, so that all warps multiply at the same time. */
template <class T, int NT, int WARPS>
MR_INLINE void small_add_round(const small_lane<NT> &l, const small_step<T> &step, int32_t tile, bool here,
                               small_baton<NT> &baton) {
    small_sums<T> sums;
    if constexpr (NT == 1)
        if (here)
            small_sum_step<T>(l, step, tile, &sums);
    MR_NO_UNROLL
    for (int turn = 0; turn < WARPS; turn++) {
        if (here && (int)gpu_warp() == turn) {
            float acc[NT][4];
            small_take<NT>(baton, acc);
            if constexpr (NT == 1)
                small_add_sums<T>(sums, step, acc[0]);
            else
                small_add_step<T, true, NT>(l, step, tile, 4, acc);
            small_pass<NT>(baton, acc);
        }
        gpu_sync();
    }
}

/* Adds all whole steps. baton: with WARPS > 1, the results; acc: with one warp. */
template <class T, int NT, int WARPS>
MR_INLINE void small_add_steps(const small_lane<NT> &l, int32_t n_steps, small_baton<NT> &baton, float (*acc)[4]) {
    enum { IN_FLIGHT = 8, DEPTH = IN_FLIGHT / T::STEP + 1 }; /* tiles; steps */
    static_assert((DEPTH - 1) * T::STEP >= IN_FLIGHT, "the steps behind the one that is multiplied have too few tiles");
    const int32_t first = WARPS > 1 ? (int32_t)gpu_warp() : 0;
    small_step<T> ahead[DEPTH];
    MR_UNROLL
    for (int i = 0; i < DEPTH; i++)
        if (first + i * WARPS < n_steps)
            small_read(l, first + i * WARPS, T::STEP, &ahead[i]);
    MR_NO_UNROLL
    for (int32_t base = 0; base < n_steps; base += DEPTH * WARPS) {
        MR_UNROLL
        for (int i = 0; i < DEPTH; i++) {
            int32_t s = base + i * WARPS + first, next = s + DEPTH * WARPS;
            if (WARPS > 1 && base + i * WARPS >= n_steps)
                break;
            if (WARPS > 1)
                small_add_round<T, NT, WARPS>(l, ahead[i], s * T::STEP, s < n_steps, baton);
            else if (s < n_steps)
                small_add_step<T, true, NT>(l, ahead[i], s * T::STEP, 4, acc);
            if (next < n_steps)
                small_read(l, next, T::STEP, &ahead[i]);
        }
    }
}

/* The lane's addresses for a panel of a tile of activation rows. Columns behind the last one are the last one again. */
template <class T, int NT>
MR_INLINE small_lane<NT> small_lane_of(const cuda_product_args &a, const product_tile &t, int32_t panel) {
    small_lane<NT> l;
    int32_t n_tiles = a.k / CUDA_TILE;
    const uint8_t *w = t.w + (size_t)panel * cuda_panel_bytes(a.k, T::UNIT, T::UNIT_BYTES, T::STEP, T::STEP_BYTES);
    l.quants = w + 16 * gpu_lane();
    l.scales = w + cuda_tile_bytes(n_tiles, T::UNIT, T::UNIT_BYTES);
    l.a = t.a;
    l.sums = (uint32_t)a.k / 8;
    l.g = gpu_lane() / 4;
    l.t = gpu_lane() % 4;
    l.n_rows = t.n_rows;
    l.start = product_start_of<T>(a.k);
    MR_UNROLL
    for (int n = 0; n < NT; n++) {
        auto row = [&](uint32_t column) {
            int32_t r = 8 * n + (int32_t)column;
            return (uint32_t)(product_tile_row(a, t, r < t.n_rows ? r : t.n_rows - 1) - t.a);
        };
        l.q[n] = row(l.g);
        l.d[n][0] = row(2 * l.t) + (uint32_t)a.k;
        l.d[n][1] = row(2 * l.t + 1) + (uint32_t)a.k;
    }
    return l;
}

template <int NT>
MR_INLINE void small_store(const cuda_product_args &a, const product_tile &t, const small_lane<NT> &l, int32_t panel,
                           const float (*acc)[4]) {
    MR_UNROLL
    for (int i = 0; i < 4 * NT; i++) {
        int32_t r = 8 * (i / 4) + 2 * (int32_t)l.t + i % 2, n = CUDA_PANEL * panel + (int32_t)l.g + i % 4 / 2 * 8;
        if (r < t.n_rows && n < a.n)
            product_tile_store(a, t, r, n, acc[i / 4][i % 4]);
    }
}

/* The product of a block: WARPS > 1: of one panel, else of a panel for each warp. */
template <class T, int NT, int WARPS> MR_INLINE void product_small(const cuda_product_args &a) {
    MR_SHARED small_baton<NT> baton;
    product_tile tile;
    if (!product_tile_find(a, 8 * NT, &tile))
        return;
    int32_t panel = WARPS > 1 ? tile.block : tile.block * CUDA_SMALL_PANELS + (int32_t)gpu_warp();
    if (CUDA_PANEL * panel >= a.n)
        return;
    small_lane<NT> l = small_lane_of<T, NT>(a, tile, panel);
    int32_t n_tiles = a.k / CUDA_TILE, n_steps = n_tiles / T::STEP, n_rest = n_tiles % T::STEP;
    bool ends = WARPS == 1 || gpu_warp() == 0; /* this warp adds the last tiles and stores */
    small_step<T> rest;
    if (T::STEP == 4 && ends && n_rest > 0)
        small_read(l, n_steps, n_rest, &rest);
    float acc[NT][4] = {};
    if (WARPS > 1) {
        if (ends)
            small_pass<NT>(baton, acc);
        gpu_sync();
    }
    small_add_steps<T, NT, WARPS>(l, n_steps, baton, acc);
    if (!ends)
        return;
    if (WARPS > 1)
        small_take<NT>(baton, acc);
    if (T::STEP == 4 && n_rest > 0)
        small_add_step<T, false, NT>(l, rest, n_steps * T::STEP, n_rest, acc);
    small_store<NT>(a, tile, l, panel, acc);
}

/* The kernels of a type: cuda_product_TYPE_ROWS, and cuda_product_TYPE_ROWS_shared with the warps of a block on one
 * panel. ROWS: most rows of activations. */
#define PRODUCT_SMALL_KERNELS(type)                                                                                    \
    MR_KERNEL(cuda_product_##type##_8, cuda_product_args, 32 * CUDA_SMALL_PANELS, 1) {                                 \
        product_small<product_##type, 1, 1>(a);                                                                        \
    }                                                                                                                  \
    MR_KERNEL(cuda_product_##type##_16, cuda_product_args, 32 * CUDA_SMALL_PANELS, 1) {                                \
        product_small<product_##type, 2, 1>(a);                                                                        \
    }                                                                                                                  \
    MR_KERNEL(cuda_product_##type##_32, cuda_product_args, 32 * CUDA_SMALL_PANELS, 1) {                                \
        product_small<product_##type, 4, 1>(a);                                                                        \
    }                                                                                                                  \
    MR_KERNEL(cuda_product_##type##_64, cuda_product_args, 32 * CUDA_SMALL_PANELS, 1) {                                \
        product_small<product_##type, 8, 1>(a);                                                                        \
    }                                                                                                                  \
    MR_KERNEL(cuda_product_##type##_8_shared, cuda_product_args, 32 * CUDA_SMALL_WARPS, 1) {                           \
        product_small<product_##type, 1, CUDA_SMALL_WARPS>(a);                                                         \
    }                                                                                                                  \
    MR_KERNEL(cuda_product_##type##_16_shared, cuda_product_args, 32 * CUDA_SMALL_WARPS, 1) {                          \
        product_small<product_##type, 2, CUDA_SMALL_WARPS>(a);                                                         \
    }

#endif
