/* backends/cuda/kernels/top.cu - finds the first tokens of rows of logits, and the sum of all weights: cuda_top.h. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/gpu_top.h"

MR_KERNEL(cuda_top_begin, cuda_top_args, CUDA_TOP_THREADS) {
    MR_SHARED uint32_t shared[GPU_TOP_WARPS];
    uint32_t keys[CUDA_TOP_EACH], max = GPU_TOP_NONE;
    if (!gpu_top_has_row(a))
        return;
    gpu_top_read_keys(a, keys);
    cuda_top_state *state = gpu_top_state(a);
    for (uint32_t i = gpu_block_y() * CUDA_TOP_THREADS + gpu_thread(); i < CUDA_TOP_LEVELS * CUDA_TOP_BINS;
         i += (uint32_t)a.n_pieces * CUDA_TOP_THREADS)
        state->bins[i / CUDA_TOP_BINS][i % CUDA_TOP_BINS] = 0;
    for (int j = 0; j < CUDA_TOP_EACH; j++)
        max = keys[j] > max ? keys[j] : max;
    max = gpu_warp_max(max);
    if (gpu_lane() == 0)
        shared[gpu_warp()] = max;
    gpu_sync();
    if (gpu_thread() != 0)
        return;
    for (int w = 0; w < GPU_TOP_WARPS; w++)
        max = shared[w] > max ? shared[w] : max;
    gpu_top_pieces(a)[gpu_block_y()].max_key = max;
    if (gpu_block_y() == 0)
        state->cuts[0] = {0, a.n_taken};
}

/* Adds the weights of the piece. */
MR_INLINE void add_weights(const cuda_top_args &a, const uint32_t (&keys)[CUDA_TOP_EACH]) {
    MR_SHARED uint32_t maxima[GPU_TOP_WARPS];
    MR_SHARED uint64_t sums[GPU_TOP_WARPS];
    uint32_t max_key = gpu_top_max(a, maxima);
    float max = mr_key_logit(max_key);
    uint64_t sum = 0;
    MR_UNROLL
    for (int j = 0; j < CUDA_TOP_EACH; j++)
        if (keys[j] != GPU_TOP_NONE)
            sum += mr_weight_of(keys[j] == max_key ? 0.0f : mr_key_logit(keys[j]) - max);
    sum = gpu_top_sum(sum, sums);
    if (gpu_thread() == 0)
        gpu_top_pieces(a)[gpu_block_y()].sum = sum;
}

MR_KERNEL(cuda_top_count, cuda_top_args, CUDA_TOP_THREADS) {
    MR_SHARED int32_t bins[CUDA_TOP_BINS];
    uint32_t keys[CUDA_TOP_EACH];
    if (!gpu_top_has_row(a))
        return;
    gpu_top_read_keys(a, keys);
    for (uint32_t i = gpu_thread(); i < CUDA_TOP_BINS; i += CUDA_TOP_THREADS)
        bins[i] = 0;
    cuda_top_state *state = gpu_top_state(a);
    uint32_t mask = 0; /* of the bits that are known */
    cuda_top_cut cut = state->cuts[0];
    if (a.level == 0) {
        add_weights(a, keys);
    } else {
        cut = gpu_top_next_cut(state->cuts[a.level - 1], state->bins[a.level - 1], a.level - 1);
        mask = 0xffffffffu << gpu_top_shift(a.level - 1);
        if (gpu_block_y() == 0 && gpu_thread() == 0)
            state->cuts[a.level] = cut;
    }
    gpu_sync();
    MR_UNROLL
    for (int j = 0; j < CUDA_TOP_EACH; j++)
        if (keys[j] != GPU_TOP_NONE && ((keys[j] ^ cut.key) & mask) == 0)
            gpu_atomic_add(&bins[(keys[j] & ~mask) >> gpu_top_shift(a.level)], 1);
    gpu_sync();
    for (uint32_t i = gpu_thread(); i < CUDA_TOP_BINS; i += CUDA_TOP_THREADS)
        if (bins[i] > 0)
            gpu_atomic_add(&state->bins[a.level][i], bins[i]);
}

MR_KERNEL(cuda_top_list, cuda_top_args, CUDA_TOP_THREADS) {
    MR_SHARED int32_t shared[GPU_TOP_WARPS];
    uint32_t keys[CUDA_TOP_EACH];
    const int last = CUDA_TOP_LEVELS - 1;
    if (!gpu_top_has_row(a))
        return;
    gpu_top_read_keys(a, keys);
    cuda_top_state *state = gpu_top_state(a);
    cuda_top_cut cut = gpu_top_next_cut(state->cuts[last], state->bins[last], last);
    int32_t n_above = 0, n_equal = 0;
    for (int j = 0; j < CUDA_TOP_EACH; j++) {
        n_above += keys[j] > cut.key;
        n_equal += keys[j] == cut.key;
    }
    n_above = gpu_top_sum(n_above, shared);
    n_equal = gpu_top_sum(n_equal, shared);
    if (gpu_thread() != 0)
        return;
    cuda_top_piece *piece = &gpu_top_pieces(a)[gpu_block_y()];
    piece->n_above = n_above;
    piece->n_equal = n_equal;
    if (gpu_block_y() == 0)
        state->cuts[CUDA_TOP_LEVELS] = cut;
}

/* Writes what is not a token: the sum, the number of tokens, and zeros behind them. */
MR_INLINE void write_rest(const cuda_top_args &a, mr_top *out, int32_t n_taken) {
    MR_SHARED uint64_t sums[GPU_TOP_WARPS];
    uint64_t sum = 0;
    for (int32_t i = (int32_t)gpu_thread(); i < a.n_pieces; i += CUDA_TOP_THREADS)
        sum += gpu_read(&gpu_top_pieces(a)[i].sum);
    sum = gpu_top_sum(sum, sums);
    if (gpu_thread() == 0) {
        out->sum = n_taken > 0 ? sum : 0;
        out->n = n_taken;
        out->unused = 0;
    }
    for (int32_t i = n_taken + (int32_t)gpu_thread(); i < MR_TOP_TOKENS; i += CUDA_TOP_THREADS) {
        out->ids[i] = 0;
        out->logits[i] = 0.0f;
    }
}

/* How many tokens with a key above that of the cut, and with this key, stand before a token. */
struct top_place {
    int32_t n_above, n_equal;
};

/* The place of the first token of the warp. */
MR_INLINE top_place place_of_warp(const cuda_top_args &a, const uint32_t (&keys)[CUDA_TOP_EACH], cuda_top_cut cut) {
    MR_SHARED top_place warps[GPU_TOP_WARPS];
    MR_SHARED int32_t shared[GPU_TOP_WARPS];
    top_place place = {0, 0}, own = {0, 0};
    for (int32_t i = (int32_t)gpu_thread(); i < (int32_t)gpu_block_y(); i += CUDA_TOP_THREADS) {
        place.n_above += gpu_read(&gpu_top_pieces(a)[i].n_above);
        place.n_equal += gpu_read(&gpu_top_pieces(a)[i].n_equal);
    }
    place = {gpu_top_sum(place.n_above, shared), gpu_top_sum(place.n_equal, shared)};
    for (int j = 0; j < CUDA_TOP_EACH; j++) {
        own.n_above += keys[j] > cut.key;
        own.n_equal += keys[j] == cut.key;
    }
    own = {(int32_t)gpu_warp_sum((uint32_t)own.n_above), (int32_t)gpu_warp_sum((uint32_t)own.n_equal)};
    if (gpu_lane() == 0)
        warps[gpu_warp()] = own;
    gpu_sync();
    for (uint32_t w = 0; w < gpu_warp(); w++) {
        place.n_above += warps[w].n_above;
        place.n_equal += warps[w].n_equal;
    }
    return place;
}

/* Of the tokens with the key of the cut, the first n_left are taken. */
MR_KERNEL(cuda_top_write, cuda_top_args, CUDA_TOP_THREADS) {
    MR_SHARED uint32_t shared[GPU_TOP_WARPS];
    uint32_t bits[CUDA_TOP_EACH], keys[CUDA_TOP_EACH];
    if (!gpu_top_has_row(a))
        return;
    gpu_top_read(a, bits);
    MR_UNROLL
    for (int j = 0; j < CUDA_TOP_EACH; j++)
        keys[j] = gpu_top_key(a, j, bits[j]);
    mr_top *out = gpu_row<mr_top>(a.out, (int32_t)gpu_block(), a.out_row_bytes);
    bool is_nan = gpu_top_max(a, shared) == GPU_TOP_NAN;
    if (gpu_block_y() == 0)
        write_rest(a, out, is_nan ? 0 : a.n_taken);
    if (is_nan)
        return;
    cuda_top_cut cut = gpu_top_state(a)->cuts[CUDA_TOP_LEVELS];
    top_place place = place_of_warp(a, keys, cut);
    uint32_t before = (1u << gpu_lane()) - 1;
    MR_UNROLL
    for (int j = 0; j < CUDA_TOP_EACH; j++) {
        uint32_t above = gpu_ballot(keys[j] > cut.key), equal = gpu_ballot(keys[j] == cut.key);
        int32_t n_above = place.n_above + __builtin_popcount(above & before);
        int32_t n_equal = place.n_equal + __builtin_popcount(equal & before);
        if (keys[j] > cut.key || (keys[j] == cut.key && n_equal < cut.n_left)) {
            int32_t to = n_above + (n_equal < cut.n_left ? n_equal : cut.n_left);
            out->ids[to] = gpu_top_id(j);
            memcpy(&out->logits[to], &bits[j], sizeof bits[j]);
        }
        place.n_above += __builtin_popcount(above);
        place.n_equal += __builtin_popcount(equal);
    }
}
