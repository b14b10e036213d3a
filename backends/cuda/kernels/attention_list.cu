/* backends/cuda/kernels/attention_list.cu - lists the work of an attention node. A run is split into partitions if it
 * alone would take much longer than an even share of all work. Which runs are split changes no bit. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_attention.h"

enum { SPLIT_SHARES = 2 }; /* a run longer than this many shares is split */

/* Rows [row, row + n_rows) see positions of n_parts partitions. n_rows is 0 where no run begins at the row. */
struct run {
    int32_t row, n_rows, part_first, n_parts;
};

/* Whether the row continues the run of the row before it. Runs begin at the latest at multiples of unit_rows, so that
 * no thread has to look back further. */
MR_INLINE bool continues(const cuda_attention_args &a, int32_t row) {
    return row % a.unit_rows != 0 && gpu_read(a.row_seq + row) == gpu_read(a.row_seq + row - 1) &&
           gpu_read(a.row_position + row) == gpu_read(a.row_position + row - 1) + 1;
}

MR_INLINE run run_at(const cuda_attention_args &a, int32_t row, int32_t n_rows) {
    run r = {row, 0, 0, 0};
    if (continues(a, row))
        return r;
    for (r.n_rows = 1; row + r.n_rows < n_rows && continues(a, row + r.n_rows);)
        r.n_rows++;
    int32_t position = gpu_read(a.row_position + row);
    r.part_first = gpu_attention_first(a, position) / CUDA_PARTITION;
    r.n_parts = (position + r.n_rows - 1) / CUDA_PARTITION + 1 - r.part_first;
    return r;
}

/* Returns false if there are not enough slots. */
MR_INLINE bool add_split(const cuda_attention_args &a, const run &r) {
    int32_t n_slots = r.n_parts * r.n_rows, slot = gpu_atomic_add(&a.work->n_slots, n_slots);
    if (slot + n_slots > a.max_slots)
        return false;
    int32_t n_units = a.n_kv_heads * a.n_units_each, at = gpu_atomic_add(&a.work->n_split, r.n_parts);
    for (int32_t i = 0; i < r.n_parts; i++)
        a.split[at + i] = {r.row, r.n_rows, r.part_first + i, slot};
    for (int32_t i = 0; i < n_units; i++)
        a.done[(size_t)slot * (size_t)n_units + (size_t)i] = 0;
    return true;
}

MR_KERNEL(cuda_attention_list, cuda_attention_args, CUDA_ATTENTION_LIST_THREADS) {
    MR_SHARED int32_t n_parts;
    int32_t n_rows = gpu_real_rows(a.step, a.rows), own = 0;
    if (gpu_thread() == 0) {
        n_parts = 0;
        *a.work = {0, 0, 0, 0};
    }
    gpu_sync();
    for (int32_t row = (int32_t)gpu_thread(); row < n_rows; row += CUDA_ATTENTION_LIST_THREADS)
        own += run_at(a, row, n_rows).n_parts;
    if (own > 0)
        gpu_atomic_add(&n_parts, own);
    gpu_sync();
    int64_t work = (int64_t)n_parts * a.n_kv_heads * a.n_units_each;
    /* Later rows come first: they see more positions. */
    for (int32_t i = (int32_t)gpu_thread(); i < n_rows; i += CUDA_ATTENTION_LIST_THREADS) {
        run r = run_at(a, n_rows - 1 - i, n_rows);
        bool is_long = r.n_parts > 1 && (int64_t)r.n_parts * a.n_blocks > SPLIT_SHARES * work;
        if (r.n_rows > 0 && !(is_long && add_split(a, r)))
            a.whole[gpu_atomic_add(&a.work->n_whole, 1)] = {r.row, r.n_rows, -1, 0};
    }
}
