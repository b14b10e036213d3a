/* backends/cuda/kernels/product_large.h - integer products of many rows of activations, bound by arithmetic. A block of
 * 8 warps has 8 panels of weights (128 rows of the matrix) and ROWS activation rows. A lane has ROWS / 2 results and
 * their chains.
 * Weights. Each lane reads the words of its fragments from the device's memory into registers, four tiles ahead. Where
 * a warp has two panels, two warps read the same words. Activations go through shared memory: while a stage of four
 * tiles is multiplied, the next arrives. The quants are copied as they are. The scales are read into registers, and
 * what rule M makes of them alone is computed once and stored so that a lane reads those of its two columns at once. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_PRODUCT_LARGE_H
#define MR_BACKENDS_CUDA_KERNELS_PRODUCT_LARGE_H

#include "backends/cuda/kernels/product_tile.h"
#include "backends/cuda/kernels/product_types.h"

enum {
    LARGE_QUAD = 4, /* tiles of a stage */
    LARGE_PIECES = LARGE_QUAD * CUDA_TILE / 16,
};

/* How the warps of a block lie. BLOCK: a warp has one panel and all activation rows, because unpacking costs more. */
template <class T> struct large_warps {
    enum {
        PANELS = T::RULE == PRODUCT_BLOCK ? 1 : 2,      /* of a warp */
        ALONG_N = CUDA_LARGE_PANELS / PANELS,           /* warps along the rows of the matrix */
        ALONG_ROWS = CUDA_LARGE_THREADS / 32 / ALONG_N, /* along the activation rows */
    };
    MR_INLINE int32_t first_panel(const product_tile &t) {
        return (t.block * ALONG_N + (int32_t)gpu_warp() % ALONG_N) * PANELS;
    }
};

/* The results of a lane, or (BLOCK) those of a block of its chains. ROWS: activation rows of the block of threads. */
template <class T, int ROWS> struct large_results {
    enum { PANELS = large_warps<T>::PANELS, NT = ROWS / 8 / large_warps<T>::ALONG_ROWS };
    float acc[PANELS][NT][4];
    /* The first activation row of the warp. */
    MR_INLINE uint32_t first_row() { return gpu_warp() / large_warps<T>::ALONG_N * 8 * NT; }
};

/* The activations of a stage in shared memory. */
template <class T, int ROWS> struct large_stage {
    enum {
        STRIDE = LARGE_QUAD * CUDA_TILE + 32, /* a row's bytes; four rows' 32 bytes of a tile go to different banks */
        SCALES = T::RULE == PRODUCT_MIN ? 2 : 1, /* of a row and tile: d, and d * sum for MIN */
    };
    alignas(16) uint8_t q[ROWS * STRIDE];
    alignas(16) float scales[LARGE_QUAD][ROWS][SCALES];
};

/* What a thread copies of each stage: pieces of 16 bytes of quants, and the scales of some tiles of a row. Rows behind
 * the last one are the last one again. */
template <class T, int ROWS> struct large_copies {
    typedef large_stage<T, ROWS> stage;
    enum {
        N = ROWS * LARGE_PIECES / CUDA_LARGE_THREADS,
        TILES = (ROWS * LARGE_QUAD + CUDA_LARGE_THREADS - 1) / CUDA_LARGE_THREADS,
    };
    const uint8_t *a, *scales; /* of the stage that is asked for next */
    uint32_t rows[N];          /* from a to the thread's pieces: a tensor has less than 4 GiB */
    int32_t left;              /* columns of that stage and later ones */
    int32_t column, q_at;      /* of the thread's pieces in a stage; where the first piece goes */
    int d[TILES], sums[TILES];

    /* Of the tiles whose scales the thread copies; LARGE_QUAD or more: none. */
    MR_INLINE int32_t first_tile() { return (int32_t)gpu_thread() / ROWS * TILES; }
    MR_INLINE bool has_tile(int i) {
        return (CUDA_LARGE_THREADS - 1) / ROWS * TILES < LARGE_QUAD || first_tile() + i < LARGE_QUAD;
    }

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
        c.scales = row(thread % ROWS) + a.k + first_tile() * 4;
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
            if (has_tile(i) && (first_tile() + i) * CUDA_TILE < c.left) {
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
        for (int i = 0; i < TILES && has_tile(i); i++) {
            float d = mr_bits_f32((uint32_t)c.d[i]), *at = to.scales[first_tile() + i][gpu_thread() % ROWS];
            at[0] = d;
            if (T::RULE == PRODUCT_MIN)
                at[stage::SCALES - 1] = d * (float)c.sums[i];
        }
    }
};

/* The weights of a lane. Of a step's words, those are here that its current tile and the three behind it need. */
template <class T> struct large_weights {
    enum {
        PANELS = large_warps<T>::PANELS,
        READ_BYTES = 512, /* of a warp at once; 16 of a lane, a group of four words */
        UNIT_READS = T::UNIT_BYTES / READ_BYTES,
        TILE_WORDS = T::UNIT_BYTES / (128 * T::UNIT), /* of a lane */
        HIGH = 4 * UNIT_READS > TILE_WORDS *T::UNIT,  /* the last group of a step serves all its tiles */
    };
    product_start sums;                             /* the same for all weights */
    const uint8_t *quants[PANELS], *scales[PANELS]; /* of the step */
    int words[PANELS][4 * T::READS], scale_words[PANELS][T::WORDS];
    int next_common[PANELS][T::COMMON]; /* scales of the next step that all its tiles need */

    /* Panels behind the last one are the last one again. */
    MR_INLINE large_weights start(const cuda_product_args &a, const product_tile &t) {
        large_weights w = {};
        w.sums = product_start_of<T>(a.k);
        int32_t n_panels = (a.n + CUDA_PANEL - 1) / CUDA_PANEL;
        size_t bytes = cuda_panel_bytes(a.k, T::UNIT, T::UNIT_BYTES, T::STEP, T::STEP_BYTES);
        MR_UNROLL
        for (int p = 0; p < PANELS; p++) {
            int32_t panel = large_warps<T>::first_panel(t) + p;
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
        for (int p = 0; p < PANELS; p++)
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
        for (int p = 0; p < PANELS; p++) {
            if constexpr (T::OF_QUAD > 0)
                T::read_quad(w.scales[p] + ahead * T::STEP_BYTES, gpu_lane() / 4, quad,
                             w.scale_words[p] + T::COMMON + T::OF_QUAD * quad);
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
        for (int p = 0; p < PANELS; p++)
            T::read_common(w.scales[p] + ahead * T::STEP_BYTES, gpu_lane() / 4, w.next_common[p]);
    }
    MR_INLINE void take_common(large_weights &w) {
        MR_UNROLL
        for (int i = 0; i < PANELS * T::COMMON; i++)
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
        for (int p = 0; p < PANELS; p++) {
            w.quants[p] += T::READS * READ_BYTES;
            w.scales[p] += T::STEP_BYTES;
        }
    }
};

/* A warp's fragment of activations, from this row on, and the scales of the lane's two columns. i: tile of a stage. */
template <class T, int ROWS>
MR_INLINE activation_scales large_read(const large_stage<T, ROWS> &stage, int i, uint32_t row, int b[2]) {
    uint32_t g = gpu_lane() / 4, t = gpu_lane() % 4;
    const float *scales = stage.scales[i][row];
    gpu_int2 q =
        gpu_read_shared((const gpu_int2 *)(stage.q + (row + g) * large_stage<T, ROWS>::STRIDE + i * CUDA_TILE + 8 * t));
    b[0] = q.x;
    b[1] = q.y;
    activation_scales x;
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

/* Multiplies tile i of a step by the activations of a stage. */
template <class T, int ROWS>
MR_INLINE void large_add_tile(const large_weights<T> &w, const large_stage<T, ROWS> &stage, int i,
                              large_results<T, ROWS> &r) {
    typedef large_results<T, ROWS> results;
    product_fragment<T> a[results::PANELS];
    weight_scales scales[results::PANELS];
    MR_UNROLL
    for (int p = 0; p < results::PANELS; p++) {
        a[p] = product_unpack<T>(w.words[p], w.scale_words[p], i);
        scales[p] = T::scales(w.scale_words[p], i);
    }
    MR_UNROLL
    for (uint32_t n = 0; n < results::NT; n++) {
        uint32_t row = results::first_row() + 8 * n;
        int b[2];
        activation_scales x = large_read<T, ROWS>(stage, i % LARGE_QUAD, row, b);
        MR_UNROLL
        for (int p = 0; p < results::PANELS; p++) {
            product_sums<T> sums;
            product_multiply<T>(sums, a[p], b, w.sums);
            product_chain<T>(r.acc[p][n], sums, scales[p], x);
        }
    }
}

/* The stages of activations on their way. */
template <class T, int ROWS> struct large_ring {
    large_stage<T, ROWS> *stages;
    large_copies<T, ROWS> copies;
    int32_t n; /* 0 or 1: the stage that is multiplied next */
};

/* Waits for stage n, and asks for the one behind it. All threads of the block call it. */
template <class T, int ROWS> MR_INLINE void large_next(large_ring<T, ROWS> &ring, int32_t n, int32_t k) {
    gpu_copy_wait<0>();
    gpu_sync();
    large_copies<T, ROWS>::ask(ring.copies, ring.stages[1 - n], k);
}

/* Multiplies a quad of a step by the activations of a stage, and reads the weights of the quad behind it. n_tiles:
 * tiles from the step on. */
template <class T, int ROWS>
MR_INLINE void large_add_quad(large_weights<T> &w, const large_stage<T, ROWS> &stage, int quad, int32_t n_tiles,
                              large_results<T, ROWS> &r) {
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
        large_add_tile<T, ROWS>(w, stage, LARGE_QUAD * quad + i, r);
        weights::read_tile(w, LARGE_QUAD * next + i, ahead, n_tiles);
        if (T::RULE != PRODUCT_SCALE)
            gpu_sync_warp(); /* the compiler would take the next tile forward, and run out of registers */
    }
}

/* Multiplies a step. works: the warp has rows and panels. */
template <class T, int ROWS>
MR_INLINE void large_add_step(large_weights<T> &w, large_ring<T, ROWS> &ring, int32_t n_tiles, int32_t k, bool works,
                              large_results<T, ROWS> &r) {
    typedef large_results<T, ROWS> results;
    results block = {};
    MR_UNROLL
    for (int quad = 0; quad < T::STEP / LARGE_QUAD; quad++) {
        int32_t n = T::STEP > 4 ? quad % 2 : ring.n;
        large_next<T, ROWS>(ring, n, k);
        if (works)
            large_add_quad<T, ROWS>(w, ring.stages[n], quad, n_tiles, T::RULE == PRODUCT_BLOCK ? block : r);
        large_copies<T, ROWS>::put(ring.copies, ring.stages[1 - n]);
        ring.n = 1 - n;
    }
    if constexpr (T::RULE == PRODUCT_BLOCK) {
        MR_UNROLL
        for (int i = 0; i < results::PANELS * results::NT; i++) {
            int p = i / results::NT, n = i % results::NT;
            product_chain_block<T>(r.acc[p][n], block.acc[p][n], T::scales(w.scale_words[p], 0));
        }
    }
    large_weights<T>::turn(w);
}

template <class T, int ROWS>
MR_INLINE void large_store(const cuda_product_args &a, const product_tile &t, const large_results<T, ROWS> &r) {
    typedef large_results<T, ROWS> results;
    int32_t first_n = large_warps<T>::first_panel(t) * CUDA_PANEL + (int32_t)(gpu_lane() / 4);
    int32_t first_row = (int32_t)(results::first_row() + gpu_lane() % 4 * 2);
    MR_UNROLL
    for (int n = 0; n < results::NT; n++) {
        MR_UNROLL
        for (int i = 0; i < 4 * results::PANELS; i++) {
            int32_t row = first_row + 8 * n + i % 2, out = first_n + 8 * (i / 2);
            if (row < t.n_rows && out < a.n)
                product_tile_store(a, t, row, out, r.acc[i / 4][n][i % 4]);
        }
    }
}

/* The product of a block. */
template <class T, int ROWS> MR_INLINE void product_large(const cuda_product_args &a) {
    MR_SHARED large_stage<T, ROWS> stages[2];
    product_tile t;
    if (!product_tile_find(a, ROWS, &t))
        return;
    int32_t n_tiles = a.k / CUDA_TILE;
    bool works =
        (int32_t)large_results<T, ROWS>::first_row() < t.n_rows && large_warps<T>::first_panel(t) * CUDA_PANEL < a.n;
    large_ring<T, ROWS> ring = {stages, large_copies<T, ROWS>::start(a, t), 0};
    large_copies<T, ROWS>::ask(ring.copies, stages[0], a.k);
    large_copies<T, ROWS>::put(ring.copies, stages[0]);
    large_weights<T> w = large_weights<T>::start(a, t);
    if (works)
        large_weights<T>::read_first(w, n_tiles);
    large_results<T, ROWS> r = {};
    MR_NO_UNROLL
    for (; n_tiles > 0; n_tiles -= T::STEP)
        large_add_step<T, ROWS>(w, ring, n_tiles, a.k, works, r);
    product_tile_find(a, ROWS, &t); /* again, so that it takes no registers in the loop */
    if (works)
        large_store<T, ROWS>(a, t, r);
}

/* The kernels of a type: cuda_product_TYPE_large_short and cuda_product_TYPE_large_long. */
#define PRODUCT_LARGE_KERNELS(type)                                                                                    \
    MR_KERNEL(cuda_product_##type##_large_short, cuda_product_args, CUDA_LARGE_THREADS) {                              \
        product_large<product_##type, CUDA_LARGE_SHORT>(a);                                                            \
    }                                                                                                                  \
    MR_KERNEL(cuda_product_##type##_large_long, cuda_product_args, CUDA_LARGE_THREADS) {                               \
        enum { IS_BLOCK = product_##type::RULE == PRODUCT_BLOCK };                                                     \
        product_large<product_##type, IS_BLOCK ? CUDA_LARGE_LONG_BLOCK : CUDA_LARGE_LONG>(a);                          \
    }

#endif
