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

/* What a thread copies of each stage: pieces of 16 bytes of quants, and the scales of some tiles of a row. Rows behind
 * the last one are the last one again. */
template <class T, int NT> struct large_copies {
    typedef large_stage<T, NT> stage;
    enum {
        N = stage::ROWS * LARGE_PIECES / CUDA_LARGE_THREADS,
        TILES = stage::ROWS * LARGE_QUAD / CUDA_LARGE_THREADS,
    };
    const uint8_t *a, *scales; /* of the stage that is asked for next */
    uint32_t rows[N];          /* from a to the thread's pieces: a tensor has less than 4 GiB */
    int32_t left;              /* columns of that stage and later ones */
    int32_t column, q_at;      /* of the thread's pieces in a stage; where the first piece goes */
    int d[TILES], sums[TILES];

    /* Of the tiles whose scales the thread copies. */
    MR_INLINE int32_t first_tile() { return (int32_t)gpu_thread() / stage::ROWS * TILES; }

    MR_INLINE large_copies start(const cuda_product_args &a, const product_tile &t) {
        large_copies c = {};
        int32_t thread = (int32_t)gpu_thread();
        auto row = [&](int32_t r) { return product_tile_row(a, t, r < t.n_rows ? r : t.n_rows - 1); };
        c.a = t.a;
        c.left = a.k;
        c.column = thread % LARGE_PIECES * 16;
        c.q_at = thread / LARGE_PIECES * stage::STRIDE + c.column;
        MR_UNROLL
        for (int i = 0; i < N; i++)
            c.rows[i] = (uint32_t)(row((i * CUDA_LARGE_THREADS + thread) / LARGE_PIECES) - t.a) + (uint32_t)c.column;
        c.scales = row(thread % stage::ROWS) + a.k + first_tile() * 4;
        return c;
    }

    /* Asks for the quants of the next stage, and reads the scales into registers. */
    MR_INLINE void ask(large_copies &c, stage &to, int32_t k) {
        MR_UNROLL
        for (int i = 0; i < N && c.column < c.left; i++)
            gpu_copy16(to.q + c.q_at + i * (CUDA_LARGE_THREADS / LARGE_PIECES) * stage::STRIDE, c.a + c.rows[i]);
        gpu_copy_commit();
        MR_UNROLL
        for (int i = 0; i < TILES; i++)
            if ((first_tile() + i) * CUDA_TILE < c.left) {
                c.d[i] = gpu_read((const int *)c.scales + i);
                if (T::RULE == PRODUCT_MIN)
                    c.sums[i] = gpu_read((const int *)(c.scales + k / 8) + i);
            }
        c.a += LARGE_QUAD * CUDA_TILE;
        c.scales += LARGE_QUAD * 4;
        c.left -= LARGE_QUAD * CUDA_TILE;
    }

    /* Stores the scales that ask has read. */
    MR_INLINE void put(const large_copies &c, stage &to) {
        MR_UNROLL
        for (int i = 0; i < TILES; i++) {
            float d = mr_bits_f32((uint32_t)c.d[i]), *at = to.scales[first_tile() + i][gpu_thread() % stage::ROWS];
            at[0] = d;
            if (T::RULE == PRODUCT_MIN)
                at[stage::SCALES - 1] = d * (float)c.sums[i];
        }
    }
};

/* The weights of a lane. Of a step's words, those are here that its current tile and the three behind it need. */
template <class T> struct large_weights {
    enum {
        READ_BYTES = 512, /* of a warp at once; 16 of a lane, a group of four words */
        UNIT_READS = T::UNIT_BYTES / READ_BYTES,
        TILE_WORDS = T::UNIT_BYTES / (128 * T::UNIT), /* of a lane */
        HIGH = 4 * UNIT_READS > TILE_WORDS *T::UNIT,  /* the last group of a step serves all its tiles */
    };
    const uint8_t *quants[LARGE_PANELS], *scales[LARGE_PANELS]; /* of the step */
    int words[LARGE_PANELS][4 * T::READS], scale_words[LARGE_PANELS][T::WORDS];
    int next_common[LARGE_PANELS][T::COMMON]; /* scales of the next step that all its tiles need */

    /* Panels behind the last one are the last one again. */
    MR_INLINE large_weights start(const cuda_product_args &a, const product_tile &t) {
        large_weights w = {};
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

    /* The lane's words of group i of the step, or (ahead is 1) of the next one. */
    MR_INLINE const uint8_t *group(const large_weights &w, int p, int i, int ahead) {
        return w.quants[p] + (ahead * T::READS + i) * READ_BYTES;
    }
    /* Reads the group, if its unit is among the n_tiles from the step on. */
    MR_INLINE void read(large_weights &w, int i, int ahead, int32_t n_tiles) {
        MR_UNROLL
        for (int p = 0; p < LARGE_PANELS; p++)
            if (ahead * T::STEP + i / UNIT_READS * T::UNIT < n_tiles)
                product_words(gpu_read((const gpu_int4 *)group(w, p, i, ahead)), &w.words[p][4 * i]);
    }
    /* The last tile of a step that uses group i; -1: read_quad reads it. */
    MR_INLINE constexpr int last_tile(int i) {
        if (HIGH && i == T::READS - 1)
            return -1;
        return i / UNIT_READS * T::UNIT + (4 * (i % UNIT_READS) + 3) / TILE_WORDS;
    }
    /* Reads the groups of which tile i is the last user. */
    MR_INLINE void read_tile(large_weights &w, int i, int ahead, int32_t n_tiles) {
        MR_UNROLL
        for (int r = 0; r < T::READS; r++)
            if (last_tile(r) == i)
                read(w, r, ahead, n_tiles);
    }
    /* Reads what only a quad of the step, or of the next one, needs: scales, and high bits. */
    MR_INLINE void read_quad(large_weights &w, int quad, int ahead) {
        MR_UNROLL
        for (int p = 0; p < LARGE_PANELS; p++) {
            if constexpr (T::WORDS > T::COMMON)
                T::read_quad(w.scales[p] + ahead * T::STEP_BYTES, gpu_lane() / 4, quad,
                             w.scale_words[p] + T::COMMON + 4 * quad);
            if (HIGH) {
                gpu_int2 v = gpu_read((const gpu_int2 *)group(w, p, T::READS - 1, ahead) + quad);
                w.words[p][4 * (T::READS - 1) + 2 * quad] = v.x;
                w.words[p][4 * (T::READS - 1) + 2 * quad + 1] = v.y;
            }
        }
    }
    /* Reads what all tiles of the step, or of the next one, need. */
    MR_INLINE void read_common(large_weights &w, int ahead) {
        MR_UNROLL
        for (int p = 0; p < LARGE_PANELS; p++)
            T::read_common(w.scales[p] + ahead * T::STEP_BYTES, gpu_lane() / 4, w.next_common[p]);
    }
    MR_INLINE void take_common(large_weights &w) {
        MR_UNROLL
        for (int i = 0; i < LARGE_PANELS * T::COMMON; i++)
            w.scale_words[i / T::COMMON][i % T::COMMON] = w.next_common[i / T::COMMON][i % T::COMMON];
    }
    /* Reads what the first quad of the first step needs. */
    MR_INLINE void read_first(large_weights &w, int32_t n_tiles) {
        read_common(w, 0);
        take_common(w);
        read_quad(w, 0, 0);
        MR_UNROLL
        for (int i = 0; i < LARGE_QUAD; i++)
            read_tile(w, i, 0, n_tiles);
    }
    /* Goes on to the next step. */
    MR_INLINE void turn(large_weights &w) {
        take_common(w);
        MR_UNROLL
        for (int p = 0; p < LARGE_PANELS; p++) {
            w.quants[p] += T::READS * READ_BYTES;
            w.scales[p] += T::STEP_BYTES;
        }
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

/* The same as product_chain. BLOCK: with the offsets -(factor * OFFSET) at hand, which are exact, it takes fewer
 * instructions: factor * (sum + OFFSET) + offset is an integer below 2^24, and so is the sum of both halves. */
template <class T>
MR_INLINE void large_chain(float acc[4], const product_sums<T> &s, const weight_scales &w, const float offset[2][2],
                           const activation_scales &x) {
    if constexpr (T::RULE == PRODUCT_BLOCK) {
        MR_UNROLL
        for (int j = 0; j < 4; j++) {
            const float *factor = w.factor[j / 2], *of_factor = offset[j / 2];
            float first = fmaf(factor[0], mr_bits_f32((uint32_t)s.c[0][j]), of_factor[0]);
            float second = fmaf(factor[1], mr_bits_f32((uint32_t)s.c[1][j]), of_factor[1]);
            acc[j] = fmaf(first + second, x.d[j % 2], acc[j]);
        }
    } else {
        product_chain<T>(acc, s, w, x);
    }
}

/* Multiplies tile i of a step by the activations of a stage. acc: the chains; with BLOCK, those of the block. */
template <class T, int NT>
MR_INLINE void large_add_tile(const large_weights<T> &w, const large_stage<T, NT> &stage, int i,
                              float acc[LARGE_PANELS][NT][4]) {
    typedef large_stage<T, NT> parts;
    uint32_t first = gpu_warp() / LARGE_WARPS_N * 8 * NT;
    int a[LARGE_PANELS][4];
    weight_scales scales[LARGE_PANELS];
    float offsets[LARGE_PANELS][2][2];
    MR_UNROLL
    for (int p = 0; p < LARGE_PANELS; p++) {
        T::unpack(w.words[p], i, a[p]);
        scales[p] = T::scales(w.scale_words[p], i);
        MR_UNROLL
        for (int f = 0; f < 4 && T::RULE == PRODUCT_BLOCK; f++)
            offsets[p][f / 2][f % 2] = scales[p].factor[f / 2][f % 2] * -T::OFFSET;
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
            large_chain<T>(acc[p][n], sums, scales[p], offsets[p], x);
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
    large_copies<T, NT>::ask(ring.copies, ring.stages[ring.n % 2], k);
    ring.n++;
    return ring.stages[ring.n % 2];
}

/* Multiplies a quad of a step by the activations of a stage, and reads the weights of the quad behind it. n_tiles:
 * tiles from the step on. */
template <class T, int NT>
MR_INLINE void large_add_quad(large_weights<T> &w, const large_stage<T, NT> &stage, int quad, int32_t n_tiles,
                              float acc[LARGE_PANELS][NT][4]) {
    typedef large_weights<T> weights;
    int next = (quad + 1) % (T::STEP / LARGE_QUAD), ahead = next == 0;
    if (ahead && n_tiles > T::STEP)
        weights::read_common(w, 1);
    if (!ahead || n_tiles > T::STEP)
        weights::read_quad(w, next, ahead);
    MR_UNROLL
    for (int i = 0; i < LARGE_QUAD; i++) {
        if (T::STEP == 4 && i >= n_tiles)
            break;
        large_add_tile<T, NT>(w, stage, LARGE_QUAD * quad + i, acc);
        weights::read_tile(w, LARGE_QUAD * next + i, ahead, n_tiles);
        if (T::RULE == PRODUCT_MIN)
            gpu_sync_warp(); /* the compiler would take the next tile forward, and run out of registers */
    }
}

/* Multiplies a step. works: the warp has rows and panels. */
template <class T, int NT>
MR_INLINE void large_add_step(large_weights<T> &w, large_ring<T, NT> &ring, int32_t n_tiles, int32_t k, bool works,
                              float acc[LARGE_PANELS][NT][4]) {
    float block[LARGE_PANELS][NT][4] = {};
    MR_UNROLL
    for (int quad = 0; quad < T::STEP / LARGE_QUAD; quad++) {
        const large_stage<T, NT> &stage = large_next(ring, k);
        if (works)
            large_add_quad<T, NT>(w, stage, quad, n_tiles, T::RULE == PRODUCT_BLOCK ? block : acc);
        large_copies<T, NT>::put(ring.copies, ring.stages[(ring.n + 1) % 2]);
    }
    if constexpr (T::RULE == PRODUCT_BLOCK) {
        MR_UNROLL
        for (int i = 0; i < LARGE_PANELS * NT; i++)
            product_chain_block<T>(acc[i / NT][i % NT], block[i / NT][i % NT], T::scales(w.scale_words[i / NT], 0));
    }
    large_weights<T>::turn(w);
}

template <int NT>
MR_INLINE void large_store(const cuda_product_args &a, const product_tile &t, const float acc[LARGE_PANELS][NT][4]) {
    int32_t panel = (t.block * LARGE_WARPS_N + (int32_t)gpu_warp() % LARGE_WARPS_N) * LARGE_PANELS;
    int32_t first_n = panel * CUDA_PANEL + (int32_t)(gpu_lane() / 4);
    int32_t first_row = (int32_t)(gpu_warp() / LARGE_WARPS_N * 8 * NT + gpu_lane() % 4 * 2);
    MR_UNROLL
    for (int n = 0; n < NT; n++) {
        MR_UNROLL
        for (int i = 0; i < 4 * LARGE_PANELS; i++) {
            int32_t row = first_row + 8 * n + i % 2, out = first_n + 8 * (i / 2);
            if (row < t.n_rows && out < a.n)
                product_tile_store(a, t, row, out, acc[i / 4][n][i % 4]);
        }
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
    large_copies<T, NT>::ask(ring.copies, stages[0], a.k);
    large_copies<T, NT>::put(ring.copies, stages[0]);
    large_weights<T> w = large_weights<T>::start(a, t);
    if (works)
        large_weights<T>::read_first(w, n_tiles);
    float acc[LARGE_PANELS][NT][4] = {};
    MR_NO_UNROLL
    for (; n_tiles > 0; n_tiles -= T::STEP)
        large_add_step<T, NT>(w, ring, n_tiles, a.k, works, acc);
    product_tile_find(a, 16 * NT, &t); /* again, so that it takes no registers in the loop */
    if (works)
        large_store<NT>(a, t, acc);
}

/* cuda_product_TYPE_large_ROWS, with so many activation rows for a block. */
#define PRODUCT_LARGE_64(type)                                                                                         \
    MR_KERNEL(cuda_product_##type##_large_64, cuda_product_args, CUDA_LARGE_THREADS) {                                 \
        product_large<product_##type, 4>(a);                                                                           \
    }
#define PRODUCT_LARGE_128(type)                                                                                        \
    MR_KERNEL(cuda_product_##type##_large_128, cuda_product_args, CUDA_LARGE_THREADS) {                                \
        product_large<product_##type, 8>(a);                                                                           \
    }

#endif
