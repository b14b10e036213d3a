/* backends/cuda/kernels/sparse_float.cu - units of neurons whose matrices have floats (rules M and S). Lane l of a warp
 * has the gate of neuron l of the block, or the up of neuron l - 16, and a chain for each of the warp's rows. The warps
 * share the weights. A stage has 128 bytes of each row of the matrices. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_sparse.h"
#include "backends/cuda/kernels/gpu_values.h"
#include "backends/cuda/kernels/product_float.h"

enum { NEURONS = CUDA_SPARSE_FLOAT_NEURONS, WARPS = CUDA_SPARSE_THREADS / 32 };
static_assert(2 * NEURONS == 32, "a lane for the gate and one for the up of each neuron");

/* ROWS: of a block. */
template <class T, int ROWS> struct listed {
    enum {
        WARP_ROWS = ROWS / WARPS,
        PIECES = 8, /* of 16 bytes, of a row of a matrix */
        PIECE_UNITS = float_piece_units<T>(),
        COLUMNS = 128 / T::BYTES,
        STRIDE = 128 + 16, /* so that eight lanes read different banks */
        ACTIVATION_PIECES = COLUMNS * T::ACTIVATION_BYTES / 16,
        ROW_BYTES = 16 * ACTIVATION_PIECES,
        ACTIVATION_COPIES = (ROWS * ACTIVATION_PIECES + CUDA_SPARSE_THREADS - 1) / CUDA_SPARSE_THREADS,
        STAGE_BYTES = 32 * STRIDE + ROWS * ROW_BYTES,
        FIT = ((48 << 10) - 1024) / STAGE_BYTES, /* the rest is for lists */
        STAGES = FIT < 8 ? FIT : 8,
    };
    static_assert(32 * PIECES == CUDA_SPARSE_THREADS && STAGES >= 2, "copies of a thread");

    /* What the thread copies: 16 bytes of each stage of one row of a matrix, and of rows of activations. */
    const uint8_t *weights, *activations[ACTIVATION_COPIES]; /* NULL: there is no such row */
    int64_t left;                                            /* bytes of the row from weights on */
    int32_t activation_bytes;                                /* of a row */

    MR_INLINE listed start(const cuda_sparse_units_args &a, const gpu_units &u) {
        int32_t row = (int32_t)gpu_thread() / PIECES, at = (int32_t)gpu_thread() % PIECES * 16, slot = row % NEURONS;
        const cuda_sparse_matrix &m = a.matrices[row / NEURONS];
        listed l = {nullptr, {}, (int64_t)m.row_bytes - at, (a.k + 3) / 4 * 4 * T::ACTIVATION_BYTES};
        if (m.data && slot < u.n)
            l.weights = m.data + (size_t)gpu_read(u.list + slot) * m.row_bytes + at;
        MR_UNROLL
        for (int c = 0; c < ACTIVATION_COPIES; c++) {
            int32_t i = c * CUDA_SPARSE_THREADS + (int32_t)gpu_thread(), r = i / ACTIVATION_PIECES;
            l.activations[c] = r < u.n_rows ? gpu_row<const uint8_t>(a.a, u.row + r, a.a_row_bytes) : nullptr;
        }
        return l;
    }

    /* Copies the last bytes of a row, or 16 bytes that lie anywhere. Zeros follow a row. */
    MR_INLINE void copy_halves(uint8_t *to, const uint8_t *from, int64_t n) {
        MR_UNROLL
        for (int i = 0; i < 8; i++)
            ((uint16_t *)to)[i] = 2 * i < n ? gpu_read((const uint16_t *)from + i) : (uint16_t)0;
    }

    MR_INLINE void load(const listed &l, uint8_t *stage, int32_t s) {
        int32_t thread = (int32_t)gpu_thread();
        int64_t left = l.left - (int64_t)s * 128;
        uint8_t *to = stage + thread / PIECES * STRIDE + thread % PIECES * 16;
        const uint8_t *from = (const uint8_t *)((uintptr_t)l.weights + (size_t)s * 128); // l.weights may be null
        if (l.weights && left >= 16 && (uintptr_t)from % 16 == 0)
            gpu_copy16(to, from);
        else if (l.weights && left > 0)
            copy_halves(to, from, left);
        MR_UNROLL
        for (int c = 0; c < ACTIVATION_COPIES; c++) {
            int32_t i = c * CUDA_SPARSE_THREADS + thread, at = s * ROW_BYTES + i % ACTIVATION_PIECES * 16;
            if (l.activations[c] && at < l.activation_bytes)
                gpu_copy16(stage + 32 * STRIDE + 16 * i, l.activations[c] + at);
        }
        gpu_copy_commit();
    }

    /* Continues the chains by one unit of four columns, of which n exist. */
    template <bool whole>
    MR_INLINE void add_unit(typename T::weight_unit w, const uint8_t *x, int32_t n, float acc[WARP_ROWS]) {
        float weights[4], numbers[4];
        T::weights(w, weights);
        MR_UNROLL
        for (int r = 0; r < WARP_ROWS; r++) {
            T::activations(gpu_read_shared((const typename T::activation_unit *)(x + r * ROW_BYTES)), numbers);
            acc[r] = float_chain<T, whole>(weights, numbers, n, acc[r]);
        }
    }

    /* Where the lane's row of weights begins in a stage, and the warp's first row of activations. */
    MR_INLINE const uint8_t *weights_in(const uint8_t *stage) { return stage + gpu_lane() * STRIDE; }
    MR_INLINE const uint8_t *activations_in(const uint8_t *stage) {
        return stage + 32 * STRIDE + gpu_warp() * WARP_ROWS * ROW_BYTES;
    }

    MR_INLINE void add_stage(const uint8_t *stage, float acc[WARP_ROWS]) {
        const uint8_t *w = weights_in(stage), *x = activations_in(stage);
        MR_UNROLL
        for (int p = 0; p < PIECES; p++) {
            gpu_int4 piece = gpu_read_shared((const gpu_int4 *)(w + 16 * p));
            MR_UNROLL
            for (int i = 0; i < PIECE_UNITS; i++)
                add_unit<true>(T::unit(piece, i), x + (p * PIECE_UNITS + i) * 4 * T::ACTIVATION_BYTES, 4, acc);
        }
    }

    /* The same for the last stage, which has n columns, fewer than all. */
    MR_INLINE void add_part(const uint8_t *stage, int32_t n, float acc[WARP_ROWS]) {
        const uint8_t *w = weights_in(stage), *x = activations_in(stage);
        MR_NO_UNROLL
        for (int i = 0; 4 * i < n; i++) {
            gpu_int4 piece = gpu_read_shared((const gpu_int4 *)(w + i / PIECE_UNITS * 16));
            const uint8_t *at = x + i * 4 * T::ACTIVATION_BYTES;
            if (n - 4 * i >= 4)
                add_unit<true>(T::unit(piece, i % PIECE_UNITS), at, 4, acc);
            else
                add_unit<false>(T::unit(piece, i % PIECE_UNITS), at, n - 4 * i, acc);
        }
    }
};

template <class T, int ROWS> MR_INLINE void compute_units(const cuda_sparse_units_args &a) {
    typedef listed<T, ROWS> parts;
    enum { STAGES = parts::STAGES, WARP_ROWS = parts::WARP_ROWS };
    alignas(128) MR_SHARED uint8_t stages[STAGES][parts::STAGE_BYTES];
    gpu_units u;
    if (!gpu_units_find<NEURONS, ROWS>(a, &u))
        return;
    parts own = parts::start(a, u);
    for (int32_t s = 0; s < STAGES - 1; s++)
        parts::load(own, stages[s], s);
    float acc[WARP_ROWS] = {};
    int32_t first = (int32_t)gpu_warp() * WARP_ROWS, s = 0, left = a.k;
    MR_NO_UNROLL
    for (; left >= parts::COLUMNS; s++, left -= parts::COLUMNS) {
        gpu_copy_wait<STAGES - 2>();
        gpu_sync();
        parts::load(own, stages[(s + STAGES - 1) % STAGES], s + STAGES - 1);
        if (first < u.n_rows)
            parts::add_stage(stages[s % STAGES], acc);
    }
    gpu_copy_wait<STAGES - 2>();
    gpu_sync();
    if (first < u.n_rows)
        parts::add_part(stages[s % STAGES], left, acc);
    int32_t slot = (int32_t)gpu_lane(), neuron = slot < u.n ? gpu_read(u.list + slot) : 0;
    MR_UNROLL
    for (int r = 0; r < WARP_ROWS; r++) {
        float up = gpu_shuffle(acc[r], (slot + NEURONS) % 32);
        if (slot < NEURONS && slot < u.n && first + r < u.n_rows)
            gpu_units_put(a, u, neuron, first + r, acc[r], up);
    }
}

#define UNITS(type)                                                                                                    \
    MR_KERNEL(cuda_sparse_##type##_few, cuda_sparse_units_args, CUDA_SPARSE_THREADS) {                                 \
        compute_units<float_##type, CUDA_SPARSE_FEW_ROWS>(a);                                                          \
    }                                                                                                                  \
    MR_KERNEL(cuda_sparse_##type##_many, cuda_sparse_units_args, CUDA_SPARSE_THREADS) {                                \
        compute_units<float_##type, CUDA_SPARSE_MANY_ROWS>(a);                                                         \
    }
UNITS(f32)
UNITS(f16)
UNITS(bf16)

/* Gate and up of two types that take F32: a thread has a neuron and a row. */
MR_KERNEL(cuda_sparse_plain, cuda_sparse_units_args, CUDA_SPARSE_THREADS) {
    gpu_units u;
    int32_t slot = (int32_t)gpu_thread();
    if (!gpu_units_find<MR_PARTITION, CUDA_SPARSE_PLAIN_ROWS>(a, &u) || slot >= u.n)
        return;
    int32_t neuron = gpu_read(u.list + slot);
    const float *x = gpu_row<const float>(a.a, u.row, a.a_row_bytes);
    float acc[2] = {};
    for (int m = 0; m < 2; m++) {
        const uint8_t *w = a.matrices[m].data + (size_t)neuron * a.matrices[m].row_bytes;
        MR_NO_UNROLL
        for (int32_t k = 0; k < a.k; k++)
            acc[m] = fmaf(gpu_value(a.matrices[m].type, w, k), gpu_read(x + k), acc[m]);
    }
    gpu_units_put(a, u, neuron, 0, acc[0], acc[1]);
}
