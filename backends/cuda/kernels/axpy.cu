/* backends/cuda/kernels/axpy.cu - sums of the rows of neurons, by partitions (rule S). A thread has two columns of the
 * matrix, and a chain for each column and row of the block. The block lists the neurons with a unit that is not zero in
 * any of its rows, and reads their rows once. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_sparse.h"
#include "backends/cuda/kernels/gpu_values.h"

enum { MOST_AHEAD = 8 };

/* The neurons that a partition adds to the block's rows. */
template <int ROWS> struct summands {
    int32_t neurons[MR_PARTITION + MOST_AHEAD];
    float units[MR_PARTITION][ROWS];
    int32_t counts[CUDA_SPARSE_THREADS / 32];
};

/* --- Types of matrices -------------------------------------------------------------------------------------------- */
/* Unit u of a row has two columns. AHEAD: rows that a thread asks for before it adds them. */

struct axpy_any {
    enum { AHEAD = 1 };
    struct raw {
        const uint8_t *row;
    };
    MR_INLINE int32_t column(int32_t u, int i) { return 2 * u + i; }
    MR_INLINE raw read(const cuda_axpy_args &, const uint8_t *row, int32_t) { return {row}; }
    MR_INLINE void values(const cuda_axpy_args &a, raw in, int32_t u, float out[2]) {
        MR_UNROLL
        for (int i = 0; i < 2; i++)
            out[i] = 2 * u + i < a.k ? gpu_value(a.w.type, in.row, 2 * u + i) : 0.0f;
    }
};

struct axpy_f16 {
    enum { AHEAD = MOST_AHEAD };
    typedef uint32_t raw;
    MR_INLINE int32_t column(int32_t u, int i) { return 2 * u + i; }
    MR_INLINE raw read(const cuda_axpy_args &a, const uint8_t *row, int32_t u) {
        if (a.w.row_bytes % 4 == 0)
            return gpu_read((const uint32_t *)row + u);
        const uint16_t *at = (const uint16_t *)row + 2 * u;
        return gpu_read(at) | (2 * u + 1 < a.k ? (uint32_t)gpu_read(at + 1) << 16 : 0u);
    }
    MR_INLINE void values(const cuda_axpy_args &, raw in, int32_t, float out[2]) {
        out[0] = gpu_half((uint16_t)in);
        out[1] = gpu_half((uint16_t)(in >> 16));
    }
};

/* The two nibbles of a byte are 16 columns apart. */
struct axpy_q4_0 {
    enum { AHEAD = MOST_AHEAD };
    struct raw {
        uint16_t d;
        uint8_t q;
    };
    MR_INLINE int32_t column(int32_t u, int i) { return u / 16 * 32 + u % 16 + 16 * i; }
    MR_INLINE raw read(const cuda_axpy_args &, const uint8_t *row, int32_t u) {
        const uint8_t *block = row + (size_t)(u / 16) * sizeof(mr_block_q4_0);
        return {gpu_read((const uint16_t *)block), gpu_read(block + 2 + u % 16)};
    }
    MR_INLINE void values(const cuda_axpy_args &, raw in, int32_t, float out[2]) {
        float d = gpu_half(in.d);
        out[0] = d * (float)((in.q & 15) - 8);
        out[1] = d * (float)((in.q >> 4) - 8);
    }
};

/* --- Sums --------------------------------------------------------------------------------------------------------- */

/* Lists the neurons of a partition. Returns how many. */
template <int ROWS>
MR_INLINE int32_t list_summands(const cuda_axpy_args &a, int32_t part, int32_t row, int32_t n_rows, summands<ROWS> &s) {
    int32_t thread = (int32_t)gpu_thread(), neuron = part * MR_PARTITION + thread;
    float h[ROWS];
    bool any = false;
    MR_UNROLL
    for (int r = 0; r < ROWS; r++) {
        h[r] = r < n_rows && neuron < a.n ? gpu_read(gpu_row<const float>(a.h, row + r, a.h_row_bytes) + neuron) : 0.0f;
        any = any || h[r] != 0.0f;
    }
    gpu_sync(); /* the last partition's list is read no more */
    gpu_places p = gpu_find_place(any, s.counts);
    if (any) {
        s.neurons[p.own] = neuron;
        MR_UNROLL
        for (int r = 0; r < ROWS; r++)
            s.units[p.own][r] = h[r];
    }
    if (thread < MOST_AHEAD) /* what is read ahead exists */
        s.neurons[p.n + thread] = part * MR_PARTITION;
    gpu_sync();
    return p.n;
}

/* The chains of the thread's columns. n_added: summands of each row. */
template <class T, int ROWS>
MR_INLINE void add_summands(const cuda_axpy_args &a, const summands<ROWS> &s, int32_t n, int32_t u, float acc[ROWS][2],
                            int32_t n_added[ROWS]) {
    MR_NO_UNROLL
    for (int32_t first = 0; first < n; first += T::AHEAD) {
        typename T::raw raw[T::AHEAD];
        MR_UNROLL
        for (int j = 0; j < T::AHEAD; j++)
            raw[j] = T::read(a, a.w.data + (size_t)s.neurons[first + j] * a.w.row_bytes, u);
        MR_UNROLL
        for (int j = 0; j < T::AHEAD; j++) {
            if (first + j >= n)
                break;
            float w[2];
            T::values(a, raw[j], u, w);
            MR_UNROLL
            for (int r = 0; r < ROWS; r++) {
                float h = s.units[first + j][r];
                if (h != 0.0f) {
                    acc[r][0] = fmaf(w[0], h, acc[r][0]);
                    acc[r][1] = fmaf(w[1], h, acc[r][1]);
                    n_added[r]++;
                }
            }
        }
    }
}

/* Writes the sum of one partition. */
template <class T, int ROWS>
MR_INLINE void put_partial(const cuda_axpy_args &a, int32_t part, int32_t row, int32_t n_rows, int32_t u,
                           const float acc[ROWS][2], const int32_t n_added[ROWS]) {
    MR_UNROLL
    for (int r = 0; r < ROWS; r++) {
        if (r >= n_rows)
            break;
        size_t at = (size_t)(row + r) * (size_t)a.n_parts + (size_t)part;
        if (u == 0)
            a.counts[at] = n_added[r];
        MR_UNROLL
        for (int i = 0; i < 2; i++)
            if (T::column(u, i) < a.k)
                a.partials[at * (size_t)a.k + (size_t)T::column(u, i)] = acc[r][i];
    }
}

/* What column d of a row starts from, and what is added last. */
MR_INLINE float start_of(const cuda_axpy_args &a, int32_t row, int32_t d) {
    return a.start ? gpu_read(gpu_row<const float>(a.start, row, a.start_row_bytes) + d) : 0.0f;
}
MR_INLINE void put_sum(const cuda_axpy_args &a, int32_t row, int32_t d, float y) {
    if (a.add)
        y = y + gpu_row<const float>(a.add, row, a.add_row_bytes)[d];
    gpu_row<float>(a.y, row, a.y_row_bytes)[d] = y;
}

template <class T, int ROWS> MR_INLINE void add_rows(const cuda_axpy_args &a) {
    MR_SHARED summands<ROWS> s;
    int32_t tile = (int32_t)gpu_block_y() % a.n_tiles, row = (int32_t)gpu_block() * ROWS;
    int32_t n_rows = gpu_real_rows(a.step, a.rows) - row, u = tile * CUDA_SPARSE_THREADS + (int32_t)gpu_thread();
    int32_t part = a.partials ? (int32_t)gpu_block_y() / a.n_tiles : 0, end = a.partials ? part + 1 : a.n_parts;
    bool has_columns = T::column(u, 0) < a.k;
    float y[ROWS][2];
    if (n_rows <= 0)
        return;
    MR_UNROLL
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < 2; i++)
            y[r][i] = !a.partials && r < n_rows && T::column(u, i) < a.k ? start_of(a, row + r, T::column(u, i)) : 0.0f;
    MR_NO_UNROLL
    for (; part < end; part++) {
        float acc[ROWS][2] = {};
        int32_t n_added[ROWS] = {}, n = list_summands<ROWS>(a, part, row, n_rows, s);
        if (has_columns)
            add_summands<T, ROWS>(a, s, n, u, acc, n_added);
        if (a.partials && has_columns)
            put_partial<T, ROWS>(a, part, row, n_rows, u, acc, n_added);
        MR_UNROLL
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < 2; i++)
                y[r][i] = n_added[r] > 0 ? y[r][i] + acc[r][i] : y[r][i];
    }
    MR_UNROLL
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < 2; i++)
            if (!a.partials && r < n_rows && T::column(u, i) < a.k)
                put_sum(a, row + r, T::column(u, i), y[r][i]);
}

/* blocks: that a multiprocessor has room for, where a block has one row. */
#define AXPY(name, blocks)                                                                                             \
    MR_KERNEL(cuda_axpy_##name##_one, cuda_axpy_args, CUDA_SPARSE_THREADS, blocks) {                                   \
        add_rows<axpy_##name, 1>(a);                                                                                   \
    }                                                                                                                  \
    MR_KERNEL(cuda_axpy_##name, cuda_axpy_args, CUDA_SPARSE_THREADS) {                                                 \
        add_rows<axpy_##name, CUDA_AXPY_ROWS>(a);                                                                      \
    }
AXPY(any, 1)
AXPY(f16, 4)
AXPY(q4_0, 4)

/* Adds the partitions' sums. A thread has a column of a row, as in cuda_elements.h. */
MR_KERNEL(cuda_axpy_sum, cuda_axpy_args, CUDA_SPARSE_THREADS) {
    int32_t row = (int32_t)gpu_block(), d = (int32_t)(gpu_block_y() * CUDA_SPARSE_THREADS + gpu_thread());
    if (d >= a.k || row >= gpu_real_rows(a.step, a.rows))
        return;
    float y = start_of(a, row, d);
    MR_NO_UNROLL
    for (int32_t p = 0; p < a.n_parts; p++) {
        size_t at = (size_t)row * (size_t)a.n_parts + (size_t)p;
        float acc = a.partials[at * (size_t)a.k + (size_t)d];
        y = a.counts[at] > 0 ? y + acc : y;
    }
    put_sum(a, row, d, y);
}
