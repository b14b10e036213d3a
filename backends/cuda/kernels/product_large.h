/* backends/cuda/kernels/product_large.h - integer products of many rows of activations, bound by arithmetic. A block of
 * 8 warps has 8 panels of weights (128 rows of the matrix) and 16 NT activation rows; a warp 2 panels and 8 NT rows,
 * for which each lane has 8 NT results and their chains.
 * Weights. Each lane reads the words of its fragments from the device's memory into registers, a step ahead; two warps
 * read the same words. Activations go through shared memory: while a stage of four tiles is multiplied, the next
 * arrives. The quants are copied as they are; the scales are read into registers, and what rule M makes of them alone
 * is computed once and stored so that a lane reads those of its two columns at once. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_PRODUCT_LARGE_H
#define MR_BACKENDS_CUDA_KERNELS_PRODUCT_LARGE_H

#include "backends/cuda/kernels/product_tile.h"
#include "backends/cuda/kernels/product_types.h"

enum {
    LARGE_WARPS_N = 4, /* warps along the rows of the matrix; two along the activation rows */
    LARGE_PANELS = 2,  /* of a warp */
    LARGE_QUAD = 4,    /* tiles of a stage */
    LARGE_PIECES = LARGE_QUAD * CUDA_TILE / 16,
};

/* The activations of a stage in shared memory. */
template <class T, int NT> struct large_stage {
    enum {
        ROWS = 16 * NT,
        /* A row's bytes. Eight rows' 16 bytes of a half tile (BLOCK), or four rows' 32 bytes of a tile, go to different
         * banks. */
        STRIDE = LARGE_QUAD * CUDA_TILE + (T::RULE == PRODUCT_BLOCK ? 16 : 32),
        SCALES = T::RULE == PRODUCT_MIN ? 2 : 1, /* of a row and tile: d, and d * sum for MIN */
    };
    alignas(16) uint8_t q[ROWS * STRIDE];
    alignas(16) float scales[LARGE_QUAD][ROWS][SCALES];
};

/* What a thread copies for each stage: pieces of 16 bytes of quants, and the scales of one row. */
template <class T, int NT> struct large_copies {
    typedef large_stage<T, NT> stage;
    enum { N = stage::ROWS * LARGE_PIECES / CUDA_LARGE_THREADS };
    const uint8_t *q[N], *scales; /* of the first stage; NULL: nothing to copy */
    int d[LARGE_QUAD], sums[LARGE_QUAD];

    MR_INLINE large_copies start(const cuda_product_args &a, const product_tile &t) {
        large_copies c;
        int32_t thread = (int32_t)gpu_thread();
        MR_UNROLL
        for (int i = 0; i < N; i++) {
            int32_t row = (i * CUDA_LARGE_THREADS + thread) / LARGE_PIECES;
            c.q[i] = row < t.n_rows ? product_tile_row(a, t, row) + thread % LARGE_PIECES * 16 : nullptr;
        }
        c.scales = thread < t.n_rows ? product_tile_row(a, t, thread) + a.k : nullptr;
        return c;
    }

    /* Asks for the quants of stage s, and reads the scales into registers. */
    MR_INLINE void ask(large_copies &c, stage &to, int32_t s, int32_t k) {
        int32_t thread = (int32_t)gpu_thread(), left = k - s * LARGE_QUAD * CUDA_TILE;
        MR_UNROLL
        for (int i = 0; i < N; i++)
            if (c.q[i] && thread % LARGE_PIECES * 16 < left)
                gpu_copy16(to.q + (i * CUDA_LARGE_THREADS + thread) / LARGE_PIECES * stage::STRIDE +
                               thread % LARGE_PIECES * 16,
                           c.q[i] + s * LARGE_QUAD * CUDA_TILE);
        gpu_copy_commit();
        if (!c.scales || left <= 0)
            return;
        const uint8_t *d = c.scales + s * LARGE_QUAD * 4;
        product_words(gpu_read((const gpu_int4 *)d), c.d);
        if (T::RULE == PRODUCT_MIN)
            product_words(gpu_read((const gpu_int4 *)(d + k / 8)), c.sums);
    }

    /* Stores the scales that ask has read. */
    MR_INLINE void put(const large_copies &c, stage &to) {
        if (!c.scales)
            return;
        MR_UNROLL
        for (int i = 0; i < LARGE_QUAD; i++) {
            float d = mr_bits_f32((uint32_t)c.d[i]);
            to.scales[i][gpu_thread()][0] = d;
            if (T::RULE == PRODUCT_MIN)
                to.scales[i][gpu_thread()][stage::SCALES - 1] = d * (float)c.sums[i];
        }
    }
};

/* The weights of a lane: the words of a step of its panels. */
template <class T> struct large_weights {
    enum {
        READ_BYTES = 512, /* of a warp at once; 16 of a lane */
        UNIT_READS = T::UNIT_BYTES / READ_BYTES,
        TILE_WORDS = T::UNIT_BYTES / (128 * T::UNIT), /* of a lane; bits of a tile may lie behind those of all tiles */
    };
    const uint8_t *quants[LARGE_PANELS], *scales[LARGE_PANELS];
    int words[LARGE_PANELS][4 * T::READS], scale_words[LARGE_PANELS][T::WORDS];

    /* Panels behind the last one are the last one again. */
    MR_INLINE large_weights start(const cuda_product_args &a, const product_tile &t) {
        large_weights w;
        int32_t n_panels = (a.n + CUDA_PANEL - 1) / CUDA_PANEL;
        size_t bytes = cuda_panel_bytes(a.k, T::UNIT, T::UNIT_BYTES, T::STEP, T::STEP_BYTES);
        MR_UNROLL
        for (int p = 0; p < LARGE_PANELS; p++) {
            int32_t panel = (t.block * LARGE_WARPS_N + (int32_t)gpu_warp() % LARGE_WARPS_N) * LARGE_PANELS + p;
            const uint8_t *at = t.w + (size_t)(panel < n_panels ? panel : n_panels - 1) * bytes;
            w.quants[p] = at + 16 * gpu_lane();
            w.scales[p] = at + cuda_tile_bytes(a.k / CUDA_TILE, T::UNIT, T::UNIT_BYTES);
        }
        return w;
    }

    /* Reads word group i (four words) of a step, if its unit exists. */
    MR_INLINE void read(large_weights &w, int i, int32_t step, int32_t n_tiles) {
        int32_t tile = step * T::STEP + i / UNIT_READS * T::UNIT;
        MR_UNROLL
        for (int p = 0; p < LARGE_PANELS; p++)
            if (tile < n_tiles)
                product_words(gpu_read((const gpu_int4 *)(w.quants[p] + (size_t)(step * T::READS + i) * READ_BYTES)),
                              &w.words[p][4 * i]);
    }
    MR_INLINE void read_scales(const large_weights &w, int32_t step, int32_t n_tiles, int out[LARGE_PANELS][T::WORDS]) {
        MR_UNROLL
        for (int p = 0; p < LARGE_PANELS; p++)
            if (step * T::STEP < n_tiles)
                T::read_scales(w.scales[p] + (size_t)step * T::STEP_BYTES, gpu_lane() / 4, out[p]);
    }
    /* The last tile of a step that uses word group i. */
    MR_INLINE constexpr int last_tile(int i) {
        int tile = (4 * (i % UNIT_READS) + 3) / TILE_WORDS;
        return i / UNIT_READS * T::UNIT + (tile < T::UNIT ? tile : T::UNIT - 1);
    }
};

/* A warp's fragment of activations, and the scales of the lane's two columns. q, scales: the tile, in the first row of
 * the fragment. */
template <class T, int NT> MR_INLINE activation_scales large_read(const uint8_t *q, const float *scales, int b[2]) {
    uint32_t g = gpu_lane() / 4, t = gpu_lane() % 4;
    const uint8_t *row = q + g * large_stage<T, NT>::STRIDE;
    activation_scales x;
    if constexpr (T::RULE == PRODUCT_BLOCK) {
        b[0] = gpu_read_shared((const int *)(row + 4 * t));
        b[1] = gpu_read_shared((const int *)(row + 16 + 4 * t));
    } else {
        gpu_int2 v = gpu_read_shared((const gpu_int2 *)(row + 8 * t));
        b[0] = v.x;
        b[1] = v.y;
    }
    if constexpr (T::RULE == PRODUCT_MIN) {
        gpu_int4 v = gpu_read_shared((const gpu_int4 *)(scales + 4 * t));
        x = {{mr_bits_f32((uint32_t)v.x), mr_bits_f32((uint32_t)v.z)},
             {mr_bits_f32((uint32_t)v.y), mr_bits_f32((uint32_t)v.w)}};
    } else {
        gpu_int2 v = gpu_read_shared((const gpu_int2 *)(scales + 2 * t));
        x = {{mr_bits_f32((uint32_t)v.x), mr_bits_f32((uint32_t)v.y)}, {}};
    }
    return x;
}

/* Multiplies tile i of a step by the activations of a stage. acc: the chains; with BLOCK, those of the block. */
template <class T, int NT>
MR_INLINE void large_add_tile(const large_weights<T> &w, const large_stage<T, NT> &stage, int i,
                              float acc[LARGE_PANELS][NT][4]) {
    typedef large_stage<T, NT> parts;
    uint32_t first = gpu_warp() / LARGE_WARPS_N * 8 * NT;
    int a[LARGE_PANELS][4];
    weight_scales scales[LARGE_PANELS];
    MR_UNROLL
    for (int p = 0; p < LARGE_PANELS; p++) {
        T::unpack(w.words[p], i, a[p]);
        scales[p] = T::scales(w.scale_words[p], i);
    }
    MR_UNROLL
    for (uint32_t n = 0; n < NT; n++) {
        int b[2];
        activation_scales x = large_read<T, NT>(stage.q + (first + 8 * n) * parts::STRIDE + i % LARGE_QUAD * CUDA_TILE,
                                                stage.scales[i % LARGE_QUAD][first + 8 * n], b);
        MR_UNROLL
        for (int p = 0; p < LARGE_PANELS; p++) {
            product_sums<T> sums;
            product_multiply<T>(sums, a[p], b);
            product_chain<T>(acc[p][n], sums, scales[p], x);
        }
    }
}

/* The stages of activations on their way. */
template <class T, int NT> struct large_ring {
    large_stage<T, NT> *stages;
    large_copies<T, NT> copies;
    int32_t n; /* stages that have been asked for */
};

/* Waits for the next stage, asks for the one behind it. All threads of the block call it. */
template <class T, int NT> MR_INLINE const large_stage<T, NT> &large_next(large_ring<T, NT> &ring, int32_t k) {
    gpu_copy_wait<0>();
    gpu_sync();
    large_copies<T, NT>::ask(ring.copies, ring.stages[ring.n % 2], ring.n, k);
    ring.n++;
    return ring.stages[ring.n % 2];
}

/* Multiplies a step, and reads the weights of the next one. works: the warp has rows and panels. */
template <class T, int NT>
MR_INLINE void large_add_step(large_weights<T> &w, large_ring<T, NT> &ring, int32_t step, int32_t k, bool works,
                              float acc[LARGE_PANELS][NT][4]) {
    int32_t n_tiles = k / CUDA_TILE;
    int next_scales[LARGE_PANELS][T::WORDS];
    if (works)
        large_weights<T>::read_scales(w, step + 1, n_tiles, next_scales);
    float block[LARGE_PANELS][NT][4] = {};
    MR_UNROLL
    for (int quad = 0; quad < T::STEP / LARGE_QUAD; quad++) {
        const large_stage<T, NT> &stage = large_next(ring, k);
        MR_UNROLL
        for (int i = LARGE_QUAD * quad; i < LARGE_QUAD * (quad + 1); i++) {
            if (!works || (T::STEP == 4 && step * T::STEP + i >= n_tiles))
                continue;
            large_add_tile<T, NT>(w, stage, i, T::RULE == PRODUCT_BLOCK ? block : acc);
            MR_UNROLL
            for (int r = 0; r < T::READS; r++)
                if (large_weights<T>::last_tile(r) == i)
                    large_weights<T>::read(w, r, step + 1, n_tiles);
        }
        large_copies<T, NT>::put(ring.copies, ring.stages[(ring.n + 1) % 2]);
    }
    if constexpr (T::RULE == PRODUCT_BLOCK)
        MR_UNROLL
    for (int p = 0; p < LARGE_PANELS; p++)
        MR_UNROLL
    for (int n = 0; n < NT; n++)
        product_chain_block<T>(acc[p][n], block[p][n], T::scales(w.scale_words[p], 0));
    memcpy(w.scale_words, next_scales, sizeof next_scales);
}

template <int NT>
MR_INLINE void large_store(const cuda_product_args &a, const product_tile &t, const float acc[LARGE_PANELS][NT][4]) {
    int32_t panel = (t.block * LARGE_WARPS_N + (int32_t)gpu_warp() % LARGE_WARPS_N) * LARGE_PANELS;
    int32_t first_n = panel * CUDA_PANEL + (int32_t)(gpu_lane() / 4);
    int32_t first_row = (int32_t)(gpu_warp() / LARGE_WARPS_N * 8 * NT + gpu_lane() % 4 * 2);
    MR_UNROLL
    for (int n = 0; n < NT; n++)
        MR_UNROLL
    for (int i = 0; i < 4 * LARGE_PANELS; i++) {
        int32_t row = first_row + 8 * n + i % 2, out = first_n + 8 * (i / 2);
        if (row < t.n_rows && out < a.n)
            product_tile_store(a, t, row, out, acc[i / 4][n][i % 4]);
    }
}

/* The product of a block. */
template <class T, int NT> MR_INLINE void product_large(const cuda_product_args &a) {
    MR_SHARED large_stage<T, NT> stages[2];
    product_tile t;
    if (!product_tile_find(a, 16 * NT, &t))
        return;
    int32_t n_tiles = a.k / CUDA_TILE, warp = (int32_t)gpu_warp();
    bool works = warp / LARGE_WARPS_N * 8 * NT < t.n_rows &&
                 (t.block * LARGE_WARPS_N + warp % LARGE_WARPS_N) * LARGE_PANELS * CUDA_PANEL < a.n;
    large_ring<T, NT> ring = {stages, large_copies<T, NT>::start(a, t), 1};
    large_copies<T, NT>::ask(ring.copies, stages[0], 0, a.k);
    large_copies<T, NT>::put(ring.copies, stages[0]);
    large_weights<T> w = large_weights<T>::start(a, t);
    if (works)
        large_weights<T>::read_scales(w, 0, n_tiles, w.scale_words);
    MR_UNROLL
    for (int r = 0; r < T::READS; r++)
        if (works)
            large_weights<T>::read(w, r, 0, n_tiles);
    float acc[LARGE_PANELS][NT][4] = {};
    MR_NO_UNROLL
    for (int32_t step = 0; step * T::STEP < n_tiles; step++)
        large_add_step<T, NT>(w, ring, step, a.k, works, acc);
    if (works)
        large_store<NT>(a, t, acc);
}

/* The kernels of a type: cuda_product_TYPE_large_ROWS, with so many activation rows for a block. */
#define PRODUCT_LARGE_KERNELS(type)                                                                                    \
    MR_KERNEL(cuda_product_##type##_large_64, cuda_product_args, CUDA_LARGE_THREADS) {                                 \
        product_large<product_##type, 4>(a);                                                                           \
    }                                                                                                                  \
    MR_KERNEL(cuda_product_##type##_large_128, cuda_product_args, CUDA_LARGE_THREADS) {                                \
        product_large<product_##type, 8>(a);                                                                           \
    }

#endif
