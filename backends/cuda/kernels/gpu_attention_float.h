/* backends/cuda/kernels/gpu_attention_float.h - rule T on F16 and F32 stores.
 * The chunks of a tile are its keys, some head elements at a time, then its values, some positions at a time. A warp
 * computes the scores of its queries with two positions a lane, then their weighted sums with two elements
 * a lane for each pair. Order of accumulation: as rule T says; no sum is split over lanes or warps.
 * A shape has: Chunks; PAIRS, pairs of o that a lane owns; MOST, queries of a warp; K_DIM, most
 * elements of a key. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_ATTENTION_FLOAT_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_ATTENTION_FLOAT_H

#include "backends/cuda/kernels/gpu_attention_ring.h"

/* Chunks of keys [KEYS][64], and of values [VALUES][v_dim]. Element: of the store. PAIRS: as in a shape. */
template <class Element_, int PAIRS> struct gpu_float_chunks {
    typedef Element_ Element;
    static constexpr int BYTES = 4096, SIZE = (int)sizeof(Element);
    static constexpr int KEYS = BYTES / GPU_TILE / SIZE;
    static constexpr int VALUES =
        BYTES / (64 * PAIRS * SIZE) < CUDA_KV_BLOCK ? BYTES / (64 * PAIRS * SIZE) : CUDA_KV_BLOCK;

    MR_INLINE int32_t count_keys(const cuda_attention_args &a) { return (a.k_dim + KEYS - 1) / KEYS; }
    MR_INLINE int32_t count(const cuda_attention_args &a) { return count_keys(a) + GPU_TILE / VALUES; }

    /* Head elements from `element` on, at the 64 positions of a tile. Zeros follow up to a multiple of 4 elements. */
    MR_INLINE void copy_keys(const cuda_attention_args &a, const gpu_unit &u, int32_t position, int32_t element,
                             uint8_t *to) {
        constexpr int PIECES = KEYS * SIZE; /* 16 bytes each, of a KV block; an element has SIZE of them */
        int32_t width = (a.k_dim + 3) / 4 * 4;
        for (int32_t i = (int32_t)gpu_thread(); i < GPU_TILE / CUDA_KV_BLOCK * PIECES; i += CUDA_ATTENTION_THREADS) {
            int32_t block = i / PIECES, piece = i % PIECES, p = position + block * CUDA_KV_BLOCK;
            uint8_t *at = to + ((piece / SIZE * GPU_TILE / CUDA_KV_BLOCK + block) * SIZE + piece % SIZE) * 16;
            if (element + piece / SIZE < a.k_dim && gpu_has_block(u, p))
                gpu_copy16(at, gpu_keys(a, u, p) + (element * SIZE + piece) * 16);
            else if (element + piece / SIZE >= a.k_dim && element + piece / SIZE < width)
                *(gpu_int4 *)at = gpu_int4{};
        }
    }
    MR_INLINE void copy_values(const cuda_attention_args &a, const gpu_unit &u, int32_t position, uint8_t *to) {
        int32_t row_bytes = a.v_dim * SIZE;
        if (!gpu_has_block(u, position / CUDA_KV_BLOCK * CUDA_KV_BLOCK))
            return;
        const uint8_t *values = gpu_values(a, u, position) + position % CUDA_KV_BLOCK * row_bytes;
        if (VALUES * SIZE % 8 != 0 && VALUES * row_bytes % 16 != 0) {
            for (int32_t i = (int32_t)gpu_thread() * 4; i < VALUES * row_bytes; i += CUDA_ATTENTION_THREADS * 4)
                *(uint32_t *)(to + i) = gpu_read((const uint32_t *)(values + i));
            return;
        }
        for (int32_t i = (int32_t)gpu_thread() * 16; i < VALUES * row_bytes; i += CUDA_ATTENTION_THREADS * 16)
            gpu_copy16(to + i, values + i);
    }
    MR_INLINE void copy(const cuda_attention_args &a, const gpu_unit &u, int32_t position, int32_t chunk, uint8_t *to) {
        int32_t n_keys = count_keys(a);
        if (chunk < n_keys)
            copy_keys(a, u, position, chunk * KEYS, to);
        else
            copy_values(a, u, position + (chunk - n_keys) * VALUES, to);
    }
};

template <class Shape> struct gpu_attention_shared {
    gpu_ring<typename Shape::Chunks> ring;
    alignas(16) float q[CUDA_ATTENTION_WARPS * Shape::MOST][Shape::K_DIM];
    alignas(16) float w[CUDA_ATTENTION_WARPS * Shape::MOST][GPU_TILE]; /* weights of a tile */
    gpu_query queries[CUDA_ATTENTION_WARPS * Shape::MOST];
    int32_t flag;
};

/* --- Copies ------------------------------------------------------------------------------------------------------ */

/* Zeros follow a query up to a multiple of 4 elements. */
template <class Shape, int N>
MR_INLINE void gpu_copy_queries(const cuda_attention_args &a, gpu_attention_shared<Shape> &shared) {
    int32_t pieces = a.k_dim / 4, width = 4 * pieces + 4;
    if (a.k_dim % 4 != 0) { /* heads do not begin at multiples of 16 bytes */
        for (int32_t i = (int32_t)gpu_thread(); i < CUDA_ATTENTION_WARPS * N * width; i += CUDA_ATTENTION_THREADS) {
            const gpu_query *x = &shared.queries[i / width];
            const float *q = gpu_row<const float>(a.q, x->row, a.q_row_bytes) + (size_t)x->head * (size_t)a.k_dim;
            if (x->last > 0)
                shared.q[i / width][i % width] = i % width < a.k_dim ? gpu_read(q + i % width) : 0.0f;
        }
        gpu_copy_commit();
        return;
    }
    for (int32_t i = (int32_t)gpu_thread(); i < CUDA_ATTENTION_WARPS * N * pieces; i += CUDA_ATTENTION_THREADS) {
        const gpu_query *x = &shared.queries[i / pieces];
        if (x->last > 0)
            gpu_copy16(&shared.q[i / pieces][i % pieces * 4], gpu_row<const float>(a.q, x->row, a.q_row_bytes) +
                                                                  (size_t)x->head * (size_t)a.k_dim + i % pieces * 4);
    }
    gpu_copy_commit();
}

/* --- Scores and weights ------------------------------------------------------------------------------------------ */

MR_INLINE void gpu_read_pair(const uint16_t *at, float (&out)[2]) {
    uint32_t both = gpu_read_shared((const uint32_t *)at);
    out[0] = gpu_half((uint16_t)both);
    out[1] = gpu_half((uint16_t)(both >> 16));
}
MR_INLINE void gpu_read_pair(const float *at, float (&out)[2]) {
    gpu_int2 both = gpu_read_shared((const gpu_int2 *)at);
    out[0] = mr_bits_f32((uint32_t)both.x);
    out[1] = mr_bits_f32((uint32_t)both.y);
}
MR_INLINE void gpu_read_four(const float *at, float (&out)[4]) {
    gpu_int4 all = gpu_read_shared((const gpu_int4 *)at);
    out[0] = mr_bits_f32((uint32_t)all.x);
    out[1] = mr_bits_f32((uint32_t)all.y);
    out[2] = mr_bits_f32((uint32_t)all.z);
    out[3] = mr_bits_f32((uint32_t)all.w);
}

/* s[j][i] += q[j] . key of position 2 lane + i, over n head elements; zeros follow up to a multiple of 4. q: of the
 * warp's first query, from the first of these elements on. */
template <class Shape, int N>
MR_INLINE void gpu_add_scores(const typename Shape::Chunks::Element *keys, const float *q, int32_t n,
                              float (&s)[N][2]) {
    for (int32_t d = 0; d < n; d += 4) {
        float k[4][2];
        MR_UNROLL
        for (int i = 0; i < 4; i++)
            gpu_read_pair(keys + (d + i) * GPU_TILE + 2 * gpu_lane(), k[i]);
        MR_UNROLL
        for (int j = 0; j < N; j++) {
            float x[4];
            gpu_read_four(q + j * Shape::K_DIM + d, x);
            MR_UNROLL
            for (int i = 0; i < 4; i++) {
                s[j][0] = fmaf(x[i], k[i][0], s[j][0]);
                s[j][1] = fmaf(x[i], k[i][1], s[j][1]);
            }
        }
    }
}

/* Makes weights of the scores of a query, and the maximum and c of its state. w: [64]. first, last: the positions of
 * the tile that the query sees. Returns c. */
MR_INLINE float gpu_weigh(const cuda_attention_args &a, gpu_query *x, int32_t first, int32_t last, float (&s)[2],
                          float *w) {
    int32_t i = 2 * (int32_t)gpu_lane();
    float before = x->m, most = before, scale = x->scale;
    MR_UNROLL
    for (int k = 0; k < 2; k++) {
        s[k] = s[k] * scale;
        if (a.soft_cap != 0.0f)
            s[k] = a.soft_cap * mr_tanhf(s[k] * (1.0f / a.soft_cap));
        if (i + k >= first && i + k < last)
            most = s[k] > most ? s[k] : most; /* a NaN is not the maximum */
    }
    for (int step = 16; step >= 1; step /= 2) {
        float other = gpu_shuffle_xor(most, step);
        most = other > most ? other : most;
    }
    MR_UNROLL
    for (int k = 0; k < 2; k++)
        w[i + k] = i + k >= first && i + k < last ? mr_expf_or_nan(s[k] - most) : 0.0f;
    float c = before == -INFINITY ? 0.0f : mr_expf_or_nan(before - most);
    if (i == 0) {
        x->m = most;
        x->c = c;
    }
    return c;
}

/* Adds the weights of a tile to the sums of weights of the warp's queries. */
template <int N> MR_INLINE void gpu_add_lanes(gpu_query *mine, const float (*w)[GPU_TILE], int32_t position) {
    for (int32_t i = (int32_t)gpu_lane(); i < N * GPU_LANES; i += 32) {
        gpu_query *x = &mine[i / GPU_LANES];
        const float *lane = w[i / GPU_LANES] + i % GPU_LANES;
        if (gpu_sees(x, position, GPU_TILE))
            x->l[i % GPU_LANES] = fmaf(x->l[i % GPU_LANES], x->c, ((lane[0] + lane[16]) + lane[32]) + lane[48]);
    }
}

/* Weights of the tile at position, from the scores s. o is multiplied by c. Returns whether all queries of the warp see
 * all of the tile. */
template <class Shape, int N>
MR_INLINE bool gpu_weigh_tile(const cuda_attention_args &a, int32_t position, gpu_query *mine, float (*w)[GPU_TILE],
                              float (&s)[N][2], float (&o)[N][Shape::PAIRS][2]) {
    bool is_full = true;
    MR_UNROLL
    for (int j = 0; j < N; j++) {
        int32_t first = mine[j].first - position, last = mine[j].last - position;
        is_full = is_full && (mine[j].last == 0 || (first <= 0 && last >= GPU_TILE));
        if (first >= GPU_TILE || last <= 0)
            continue;
        float c = gpu_weigh(a, &mine[j], first, last, s[j], w[j]);
        MR_UNROLL
        for (int i = 0; i < Shape::PAIRS; i++) {
            o[j][i][0] *= c;
            o[j][i][1] *= c;
        }
    }
    gpu_sync_warp();
    gpu_add_lanes<N>(mine, w, position);
    return is_full;
}

/* --- Values ------------------------------------------------------------------------------------------------------ */

/* Adds a chunk of values to the weighted sums. w: of the warp's first query, from the chunk's first position on.
 * MASKED: some of the queries do not see all of the chunk. */
template <class Shape, int N, bool MASKED>
MR_INLINE void gpu_add_values(const typename Shape::Chunks::Element *values, const float *w, int32_t position,
                              int32_t v_dim, const gpu_query *mine, float (&o)[N][Shape::PAIRS][2]) {
    constexpr int STEP = Shape::PAIRS > 4 ? 1 : 4;
    MR_NO_UNROLL
    for (int32_t p = 0; p < Shape::Chunks::VALUES; p += STEP) {
        float x[N][4];
        MR_UNROLL
        for (int j = 0; j < N; j++)
            if (STEP == 4)
                gpu_read_four(w + j * GPU_TILE + p, x[j]);
            else
                x[j][0] = gpu_read_shared(w + j * GPU_TILE + p);
        MR_UNROLL
        for (int k = 0; k < STEP; k++) {
            float v[Shape::PAIRS][2] = {};
            MR_UNROLL
            for (int i = 0; i < Shape::PAIRS; i++)
                if (gpu_element(i) < v_dim)
                    gpu_read_pair(values + (p + k) * v_dim + gpu_element(i), v[i]);
            MR_UNROLL
            for (int j = 0; j < N; j++) {
                if (MASKED && !gpu_sees(&mine[j], position + p + k, 1))
                    continue;
                MR_UNROLL
                for (int i = 0; i < Shape::PAIRS; i++) {
                    o[j][i][0] = fmaf(x[j][k], v[i][0], o[j][i][0]);
                    o[j][i][1] = fmaf(x[j][k], v[i][1], o[j][i][1]);
                }
            }
        }
    }
}

/* --- Units ------------------------------------------------------------------------------------------------------- */

/* Adds a tile to the states of the warp's queries. The weighted sums of the states are o. */
template <class Shape, int N>
MR_INLINE void gpu_add_tile(const cuda_attention_args &a, const gpu_unit &u, gpu_attention_shared<Shape> &shared,
                            int32_t position, gpu_ahead &ahead, float (&o)[N][Shape::PAIRS][2]) {
    typedef typename Shape::Chunks chunks;
    typedef typename chunks::Element element;
    int first = (int)gpu_warp() * N;
    gpu_query *mine = shared.queries + first;
    float s[N][2] = {};
    for (int32_t d = 0; d < a.k_dim; d += chunks::KEYS)
        gpu_add_scores<Shape, N>((const element *)gpu_ring_next(a, u, shared.ring, ahead), shared.q[first] + d,
                                 gpu_min(chunks::KEYS, a.k_dim - d), s);
    bool is_full = gpu_weigh_tile<Shape, N>(a, position, mine, shared.w + first, s, o);
    for (int32_t p = 0; p < GPU_TILE; p += chunks::VALUES) {
        const element *values = (const element *)gpu_ring_next(a, u, shared.ring, ahead);
        if (is_full)
            gpu_add_values<Shape, N, false>(values, shared.w[first] + p, position + p, a.v_dim, mine, o);
        else
            gpu_add_values<Shape, N, true>(values, shared.w[first] + p, position + p, a.v_dim, mine, o);
    }
}

/* A unit with at most N queries for each warp. */
template <class Shape, int N>
MR_INLINE void gpu_run_unit(const cuda_attention_args &a, const gpu_unit &u, gpu_attention_shared<Shape> &shared) {
    gpu_query *mine = shared.queries + gpu_warp() * N;
    float o[N][Shape::PAIRS][2] = {};
    gpu_ahead ahead = gpu_ahead_of(u);
    const int32_t start = ahead.position, end = ahead.end;
    gpu_list_queries<N>(a, u, (u.n_rows * u.n_heads + CUDA_ATTENTION_WARPS - 1) / CUDA_ATTENTION_WARPS, shared.queries);
    gpu_sync();
    gpu_copy_queries<Shape, N>(a, shared);
    for (int i = 0; i < GPU_STAGES - 1; i++)
        gpu_ring_ahead(a, u, shared.ring, ahead);
    for (int32_t p = start; p < end; p += GPU_TILE) {
        gpu_add_tile<Shape, N>(a, u, shared, p, ahead, o);
        int32_t part = p / CUDA_PARTITION;
        if (p + GPU_TILE < end && p / CUDA_PARTITION == (p + GPU_TILE) / CUDA_PARTITION)
            continue;
        MR_UNROLL
        for (int j = 0; j < N; j++)
            if (gpu_sees(&mine[j], part * CUDA_PARTITION, CUDA_PARTITION))
                gpu_close(a, u, part, &mine[j], o[j]);
    }
    if (u.partition < 0 || !gpu_is_complete(u, &shared.flag))
        return;
    MR_NO_UNROLL
    for (int j = 0; j < N; j++)
        if (mine[j].last > 0)
            gpu_merge_states<Shape::PAIRS>(a, u, &mine[j]);
}

/* Runs the version for the fewest queries a warp, from N on, that is enough: it needs fewer registers, and does no work
 * for queries that are not there. */
template <class Shape, int N>
MR_INLINE void gpu_run_version(const cuda_attention_args &a, const gpu_unit &u, gpu_attention_shared<Shape> &shared) {
    if constexpr (N < Shape::MOST)
        if (u.n_rows * u.n_heads > CUDA_ATTENTION_WARPS * N) {
            gpu_run_version<Shape, 2 * N>(a, u, shared);
            return;
        }
    gpu_run_unit<Shape, N>(a, u, shared);
}

/* The body of a kernel. */
template <class Shape> MR_INLINE void gpu_attend(const cuda_attention_args &a, gpu_attention_shared<Shape> &shared) {
    gpu_unit u;
    while (gpu_claim(a, &shared.flag, &u))
        gpu_run_version<Shape, 1>(a, u, shared);
}

#endif
