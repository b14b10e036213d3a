/* backends/cuda/kernels/route.cu - which experts a row takes, and how much each of them counts (rule X). A warp has a
 * row. Numbers become keys, integers in routing order: the greatest first, a NaN above all, 0 for what is taken. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_experts.h"
#include "backends/cuda/kernels/gpu_rows.h"

/* Of each expert, in shared memory. */
struct route_memory {
    float *score, *choice, *weight; /* weight: of the chosen ones, in routing order */
    uint32_t *key;
};

MR_INLINE route_memory memory_of(int32_t n) {
    float *at = (float *)gpu_dynamic_shared();
    return {at, at + n, at + 2 * n, (uint32_t *)(at + 3 * n)};
}

/* Greater numbers have greater keys. Zeros and denormals are equal, as in a comparison that flushes denormals. */
MR_INLINE uint32_t key_of(float x) {
    uint32_t u = mr_f32_bits(x), magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return 0xffffffffu;
    if (magnitude < 0x00800000u)
        return 0x80000000u;
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* The first of n keys in routing order. Its key becomes 0. */
MR_INLINE int32_t take_best(uint32_t *key, int32_t n) {
    uint32_t best = 0, at = 0xffffffffu;
    gpu_sync_warp();
    for (int32_t i = (int32_t)gpu_lane(); i < n; i += 32)
        if (key[i] > best) {
            best = key[i];
            at = (uint32_t)i;
        }
    uint32_t greatest = gpu_warp_max(best);
    at = ~gpu_warp_max(best == greatest ? ~at : 0u);
    if (gpu_lane() == 0)
        key[at] = 0;
    return (int32_t)at;
}

/* The softmax of x[n]; the sum has the 16 lanes of rule S1. */
MR_INLINE void softmax(const float *x, int32_t n, float *score) {
    float max = -INFINITY, sum = 0.0f;
    int32_t lane = (int32_t)gpu_lane();
    for (int32_t i = lane; i < n; i += 32)
        max = x[i] > max ? x[i] : max;
    MR_UNROLL
    for (int apart = 16; apart > 0; apart /= 2) {
        float other = gpu_shuffle_xor(max, apart);
        max = other > max ? other : max;
    }
    for (int32_t i = lane; i < n; i += 32)
        score[i] = mr_expf_or_nan(x[i] - max);
    gpu_sync_warp();
    for (int32_t i = lane % 16; i < n; i += 16)
        sum += score[i];
    MR_UNROLL
    for (int apart = 8; apart > 0; apart /= 2)
        sum += gpu_shuffle_xor(sum, apart);
    gpu_sync_warp();
    for (int32_t i = lane; i < n; i += 32)
        score[i] /= sum;
}

/* Of the choices, only those of the best groups stay. Lane g looks at groups g, g + 32, …. */
MR_INLINE void drop_groups(const route_memory &m, const mr_routing &r, int32_t n) {
    int32_t size = n / r.n_groups;
    for (int32_t g = (int32_t)gpu_lane(); g < r.n_groups; g += 32) {
        int32_t first = g * size, second = -1;
        for (int32_t i = g * size + 1; i < (g + 1) * size; i++) {
            uint32_t key = key_of(m.choice[i]);
            if (key > key_of(m.choice[first])) {
                second = first;
                first = i;
            } else if (second < 0 || key > key_of(m.choice[second])) {
                second = i;
            }
        }
        m.key[g] = key_of(r.n_group_best > 1 ? m.choice[first] + m.choice[second] : m.choice[first]);
    }
    for (int32_t i = 0; i < r.n_groups_used; i++)
        take_best(m.key, r.n_groups);
    gpu_sync_warp();
    for (int32_t e = (int32_t)gpu_lane(); e < n; e += 32)
        m.choice[e] = m.key[e / size] ? -INFINITY : m.choice[e];
    gpu_sync_warp();
}

/* Makes weights of the scores of the chosen. Every lane computes the maximum and the sum, in routing order. */
MR_INLINE void weigh(const mr_routing &r, int32_t n_used, float *weight, float *out) {
    float max = weight[0], sum = 0.0f;
    for (int32_t u = 1; u < n_used; u++)
        max = weight[u] > max ? weight[u] : max;
    gpu_sync_warp();
    for (int32_t u = (int32_t)gpu_lane(); u < n_used && r.score == MR_ROUTE_LOGIT; u += 32)
        weight[u] = mr_expf_or_nan(weight[u] - max);
    gpu_sync_warp();
    for (int32_t u = 0; u < n_used; u++)
        sum += weight[u];
    for (int32_t u = (int32_t)gpu_lane(); u < n_used; u += 32) {
        float w = weight[u];
        if (r.score == MR_ROUTE_LOGIT || r.is_normalised)
            w /= sum + 1e-20f;
        out[u] = r.scale > 0.0f ? w * r.scale : w;
    }
}

MR_KERNEL(cuda_route, cuda_route_args, CUDA_ROUTE_THREADS) {
    const route_memory m = memory_of(a.n);
    int32_t row = (int32_t)gpu_block(), lane = (int32_t)gpu_lane();
    if (row >= gpu_real_rows(a.step, a.rows))
        return;
    const float *logits = gpu_row<const float>(a.logits, row, a.logits_row_bytes);
    int32_t *experts = gpu_row<int32_t>(a.routes, row, a.routes_row_bytes);
    if (a.routing.score == MR_ROUTE_SOFTMAX)
        softmax(logits, a.n, m.score);
    else
        for (int32_t e = lane; e < a.n; e += 32)
            m.score[e] = a.routing.score == MR_ROUTE_SIGMOID ? mr_sigmoidf(logits[e]) : logits[e];
    for (int32_t e = lane; e < a.n; e += 32)
        m.choice[e] = a.bias ? m.score[e] + a.bias[e] : m.score[e];
    gpu_sync_warp();
    if (a.routing.n_groups > 1)
        drop_groups(m, a.routing, a.n);
    for (int32_t e = lane; e < a.n; e += 32)
        m.key[e] = key_of(m.choice[e]);
    for (int32_t u = 0; u < a.n_used; u++) {
        int32_t best = take_best(m.key, a.n);
        if (lane == 0) {
            experts[u] = best;
            m.weight[u] = m.score[best];
        }
    }
    gpu_sync_warp();
    weigh(a.routing, a.n_used, m.weight, (float *)(experts + a.n_used));
}
