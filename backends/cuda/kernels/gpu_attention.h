/* backends/cuda/kernels/gpu_attention.h - units, queries and states of attention (rule T). A block has 4 warps. A warp
 * owns some queries (a row and a head), so that nothing but keys and values is shared by the warps of a block. A lane
 * owns pairs of elements of a weighted sum: elements 2 e and 2 e + 1 for e = lane, lane + 32, ... */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_ATTENTION_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_ATTENTION_H

#include "backends/cuda/kernels/cuda_attention.h"
#include "backends/cuda/kernels/gpu.h"
#include "backends/cuda/kernels/gpu_rows.h"

enum { GPU_TILE = 64, GPU_LANES = 16 };

/* What a block computes (cuda_attention.h). */
struct gpu_unit {
    int32_t row, n_rows, head, n_heads, kv_head;
    int32_t partition, slot; /* of cuda_attention_entry */
    int32_t first, last;     /* at least one of the rows sees the positions [first, last) */
    int32_t *done;           /* of cuda_attention_args; for split runs */
    const int32_t *blocks;   /* of the sequence */
};

/* A row and a head, in shared memory. It sees positions [first, last). last is 0 where there is no query. */
struct gpu_query {
    int32_t row, head, first, last;
    float scale;                   /* of scores */
    float m, l[GPU_LANES];         /* state of the partition, without its weighted sums */
    float c;                       /* factor of the sums before the tile */
    float all_m, all_l[GPU_LANES]; /* merged state of the partitions before */
};

MR_INLINE int32_t gpu_min(int32_t a, int32_t b) {
    return a < b ? a : b;
}
MR_INLINE int32_t gpu_max(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* The first position that a row at this position sees. */
MR_INLINE int32_t gpu_attention_first(const cuda_attention_args &a, int32_t position) {
    return a.window && position + 1 > a.window ? position + 1 - a.window : 0;
}

MR_INLINE float gpu_attention_scale(const cuda_attention_args &a, int32_t position) {
    if (a.temperature_length == 0 || position < a.temperature_length)
        return a.scale;
    double steps = (double)(position / a.temperature_length);
    return a.scale * (float)(1.0 + (double)a.temperature_growth * mr_log(1.0 + steps));
}

/* Whether the query sees a position of [position, position + n). */
MR_INLINE bool gpu_sees(const gpu_query *x, int32_t position, int32_t n) {
    return x->first < position + n && x->last > position;
}

/* Claims a unit for the block. Returns false if there are none left. The last block of the grid to see that makes the
 * list ready for the next node that shares it. claimed: in shared memory. */
MR_INLINE bool gpu_claim(const cuda_attention_args &a, int32_t *claimed, gpu_unit *out) {
    gpu_sync(); /* all threads have ended the unit before */
    if (gpu_thread() == 0)
        *claimed = gpu_atomic_add(&a.work->next, 1);
    gpu_sync();
    int32_t n_units = a.n_kv_heads * a.n_units_each, idx = *claimed / n_units, unit = *claimed % n_units;
    int32_t n_whole = gpu_read(&a.work->n_whole), n_all = n_whole + gpu_read(&a.work->n_split);
    int32_t group = a.n_heads / a.n_kv_heads;
    if (idx >= n_all) {
        if (gpu_thread() == 0 && *claimed == n_all * n_units + a.n_blocks - 1)
            a.work->next = 0;
        return false;
    }
    const cuda_attention_entry *e = idx < n_whole ? a.whole + idx : a.split + idx - n_whole;
    int32_t head = unit % a.n_units_each * a.unit_heads, position = gpu_read(a.row_position + e->row);
    *out = {e->row,
            e->n_rows,
            unit / a.n_units_each * group + head,
            gpu_min(a.unit_heads, group - head),
            unit / a.n_units_each,
            e->partition,
            e->slot,
            gpu_attention_first(a, position),
            position + e->n_rows,
            a.done + (size_t)e->slot * (size_t)n_units + (size_t)unit,
            a.block_table + (size_t)gpu_read(a.row_seq + e->row) * (size_t)a.table_stride};
    return true;
}

/* Writes the queries of a unit, `each` for a warp. A warp has room for N. */
template <int N>
MR_INLINE void gpu_list_queries(const cuda_attention_args &a, const gpu_unit &u, int32_t each, gpu_query *queries) {
    int32_t t = (int32_t)gpu_thread(), i = t / N * each + t % N;
    if (t >= CUDA_ATTENTION_WARPS * N)
        return;
    gpu_query *x = &queries[t];
    bool is_query = t % N < each && i < u.n_rows * u.n_heads;
    int32_t row = is_query ? i / u.n_heads : 0, position = u.last - u.n_rows + row;
    x->row = u.row + row;
    x->head = u.head + i % u.n_heads;
    x->first = is_query ? gpu_attention_first(a, position) : 0;
    x->last = is_query ? position + 1 : 0;
    x->scale = gpu_attention_scale(a, position);
    x->m = -INFINITY;
    for (int32_t lane = 0; lane < GPU_LANES; lane++)
        x->l[lane] = 0.0f;
}

/* --- States ------------------------------------------------------------------------------------------------------
 * A state is m, the same in all lanes; l[lane % 16]; and the lane's pairs of o. */

struct gpu_pair {
    float x, y;
};

/* Element of o that is the first of the lane's pair. */
MR_INLINE int32_t gpu_element(int32_t pair) {
    return 2 * ((int32_t)gpu_lane() + 32 * pair);
}

template <int PAIRS> MR_INLINE void gpu_put_sums(const cuda_attention_args &a, float *to, const float (&o)[PAIRS][2]) {
    MR_UNROLL
    for (int i = 0; i < PAIRS; i++)
        if (gpu_element(i) < a.v_dim)
            *(gpu_pair *)(to + gpu_element(i)) = {o[i][0], o[i][1]};
}

/* o = fma(all, c1, o * c2) */
template <int PAIRS>
MR_INLINE void gpu_merge(const cuda_attention_args &a, const float *all, float c1, float c2, float (&o)[PAIRS][2]) {
    MR_UNROLL
    for (int i = 0; i < PAIRS; i++)
        if (gpu_element(i) < a.v_dim) {
            gpu_pair before = *(const gpu_pair *)(all + gpu_element(i));
            o[i][0] = fmaf(before.x, c1, o[i][0] * c2);
            o[i][1] = fmaf(before.y, c1, o[i][1] * c2);
        }
}

MR_INLINE float *gpu_out(const cuda_attention_args &a, const gpu_query *x) {
    return gpu_row<float>(a.out, x->row, a.out_row_bytes) + (size_t)x->head * (size_t)a.v_dim;
}

/* Writes the result of a query from the state of all its partitions. */
template <int PAIRS>
MR_INLINE void gpu_finish(const cuda_attention_args &a, const gpu_query *x, float m, float l, float (&o)[PAIRS][2]) {
    float c = 1.0f;
    for (int step = GPU_LANES / 2; step >= 1; step /= 2)
        l = l + gpu_shuffle_xor(l, step);
    if (a.sinks) {
        float sink = gpu_read(a.sinks + x->head), most = sink > m ? sink : m;
        c = mr_expf_or_nan(m - most);
        l = fmaf(l, c, mr_expf_or_nan(sink - most));
    }
    MR_UNROLL
    for (int i = 0; i < PAIRS; i++) {
        o[i][0] = o[i][0] * c / l;
        o[i][1] = o[i][1] * c / l;
    }
    gpu_put_sums(a, gpu_out(a, x), o);
}

/* Where the state of a query of a split run lies: o[v_dim], l[16], m. */
MR_INLINE float *gpu_state_at(const cuda_attention_args &a, const gpu_unit &u, const gpu_query *x, int32_t part) {
    int32_t slot = u.slot + (part - u.first / CUDA_PARTITION) * u.n_rows + x->row - u.row;
    return a.states + ((size_t)slot * (size_t)a.n_heads + (size_t)x->head) * (size_t)(a.v_dim + CUDA_ATTENTION_SUMS);
}

/* Ends a partition of a query: stores its state, or merges it with those before. The next partition begins with an
 * empty state. The merged sums lie in out. */
template <int PAIRS>
MR_INLINE void gpu_close(const cuda_attention_args &a, const gpu_unit &u, int32_t part, gpu_query *x,
                         float (&o)[PAIRS][2]) {
    gpu_sync_warp();
    int lane = (int)gpu_lane() % GPU_LANES;
    float m = x->m, l = x->l[lane];
    if (u.partition >= 0) {
        float *state = gpu_state_at(a, u, x, part);
        gpu_put_sums(a, state, o);
        state[a.v_dim + lane] = l;
        state[a.v_dim + GPU_LANES] = m;
        return;
    }
    if (part > x->first / CUDA_PARTITION) {
        float most = m > x->all_m ? m : x->all_m;
        float c1 = mr_expf_or_nan(x->all_m - most), c2 = mr_expf_or_nan(m - most);
        l = fmaf(x->all_l[lane], c1, l * c2);
        gpu_merge(a, gpu_out(a, x), c1, c2, o);
        m = most;
    }
    if ((part + 1) * CUDA_PARTITION >= x->last) {
        gpu_finish(a, x, m, l, o);
        return;
    }
    gpu_sync_warp(); /* all lanes have read the query */
    x->all_l[lane] = l;
    x->l[lane] = 0.0f;
    x->all_m = m;
    x->m = -INFINITY;
    gpu_put_sums(a, gpu_out(a, x), o);
    MR_UNROLL
    for (int i = 0; i < PAIRS; i++)
        o[i][0] = o[i][1] = 0.0f;
}

/* Merges the states of a query of a split run. */
template <int PAIRS>
MR_INLINE void gpu_merge_states(const cuda_attention_args &a, const gpu_unit &u, const gpu_query *x) {
    int lane = (int)gpu_lane() % GPU_LANES;
    int32_t part = x->first / CUDA_PARTITION;
    float *state = gpu_state_at(a, u, x, part), m = state[a.v_dim + GPU_LANES], l = state[a.v_dim + lane];
    float o[PAIRS][2];
    MR_UNROLL
    for (int i = 0; i < PAIRS; i++) {
        gpu_pair p = gpu_element(i) < a.v_dim ? *(const gpu_pair *)(state + gpu_element(i)) : gpu_pair{0.0f, 0.0f};
        o[i][0] = p.x;
        o[i][1] = p.y;
    }
    while (++part * CUDA_PARTITION < x->last) {
        state = gpu_state_at(a, u, x, part);
        float own = state[a.v_dim + GPU_LANES], most = own > m ? own : m;
        float c1 = mr_expf_or_nan(m - most), c2 = mr_expf_or_nan(own - most);
        l = fmaf(l, c1, state[a.v_dim + lane] * c2);
        MR_UNROLL
        for (int i = 0; i < PAIRS; i++)
            if (gpu_element(i) < a.v_dim) {
                gpu_pair p = *(const gpu_pair *)(state + gpu_element(i));
                o[i][0] = fmaf(o[i][0], c1, p.x * c2);
                o[i][1] = fmaf(o[i][1], c1, p.y * c2);
            }
        m = most;
    }
    gpu_finish(a, x, m, l, o);
}

/* Whether all states of a split run are there, after the block has written its own. Their count begins anew then, for
 * the next node that shares the list. flag: in shared memory. */
MR_INLINE bool gpu_is_complete(const gpu_unit &u, int32_t *flag) {
    gpu_fence();
    gpu_sync();
    if (gpu_thread() == 0) {
        int32_t n_parts = (u.last - 1) / CUDA_PARTITION + 1 - u.first / CUDA_PARTITION;
        *flag = gpu_atomic_add(u.done, 1) == n_parts - 1;
        if (*flag)
            *u.done = 0;
    }
    gpu_sync();
    gpu_fence();
    return *flag != 0;
}

#endif
