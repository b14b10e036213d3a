/* backends/cuda/kernels/kv_write.cu - writes keys and values (rule K). A thread has an element of the head. In Q8_0
 * stores, a warp has the 32 elements of a scale. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>

#include "backends/cuda/kernels/cuda_kv.h"
#include "backends/cuda/kernels/gpu.h"
#include "backends/cuda/kernels/gpu_rows.h"

/* The head of a row that a block of threads writes. */
struct kv_row {
    const float *k, *v, *table;
    uint8_t *k_out, *v_out; /* of the block and head */
    int32_t column;         /* in the block */
};

MR_INLINE kv_row row_of(const cuda_kv_write_args &a) {
    int32_t row = (int32_t)gpu_block(), head = (int32_t)gpu_block_y(), slot = gpu_read(a.slots + row);
    size_t block = (size_t)(slot / CUDA_KV_BLOCK);
    return {gpu_row<const float>(a.k, row, a.k_row_bytes) + (size_t)head * (size_t)a.k_dim,
            gpu_row<const float>(a.v, row, a.v_row_bytes) + (size_t)head * (size_t)a.v_dim,
            gpu_row<const float>(a.turn.table, row, a.turn.row_bytes),
            a.k_store + block * a.k_block_bytes + (size_t)head * a.k_head_bytes,
            a.v_store + block * a.v_block_bytes + (size_t)head * a.v_head_bytes,
            slot % CUDA_KV_BLOCK};
}

/* Element i of a head, after rotation (rule R). */
MR_INLINE float turned(const cuda_turn &turn, const float *table, const float *x, int32_t i) {
    int32_t half = turn.n_rot / 2, place = i - turn.first;
    if (!turn.table || place < 0 || place >= 2 * half)
        return gpu_read(x + i);
    int32_t pair = turn.interleaved ? place / 2 : place % half;
    bool is_second = turn.interleaved ? place % 2 : place >= half;
    int32_t i0 = turn.first + (turn.interleaved ? 2 * pair : pair), i1 = i0 + (turn.interleaved ? 1 : half);
    float x0 = gpu_read(x + i0), x1 = gpu_read(x + i1);
    float c = gpu_read(table + pair), s = gpu_read(table + half + pair);
    return is_second ? fmaf(x0, s, x1 * c) : fmaf(x0, c, -(x1 * s));
}

MR_INLINE void kv_put(uint16_t *at, float x) {
    *at = mr_f32_to_f16(x);
}
MR_INLINE void kv_put(float *at, float x) {
    *at = x;
}

/* Keys are [k_dim][16], values [16][v_dim]. */
template <class Element> MR_INLINE void kv_write(const cuda_kv_write_args &a) {
    kv_row row = row_of(a);
    Element *k_out = (Element *)row.k_out, *v_out = (Element *)row.v_out;
    for (int32_t i = (int32_t)gpu_thread(); i < a.k_dim; i += CUDA_KV_WRITE_THREADS)
        kv_put(&k_out[i * CUDA_KV_BLOCK + row.column], turned(a.turn, row.table, row.k, i));
    for (int32_t i = (int32_t)gpu_thread(); i < a.v_dim; i += CUDA_KV_WRITE_THREADS)
        kv_put(&v_out[row.column * a.v_dim + i], gpu_read(row.v + i));
}

MR_KERNEL(cuda_kv_write_f16, cuda_kv_write_args, CUDA_KV_WRITE_THREADS) {
    if ((int32_t)gpu_block() < gpu_real_rows(a.step, a.rows))
        kv_write<uint16_t>(a);
}

MR_KERNEL(cuda_kv_write_f32, cuda_kv_write_args, CUDA_KV_WRITE_THREADS) {
    if ((int32_t)gpu_block() < gpu_real_rows(a.step, a.rows))
        kv_write<float>(a);
}

/* Rounds x to Q8_0, together with the other elements of the warp. Writes the scale, too. */
MR_INLINE int8_t quantize(float x, uint16_t *scale) {
    uint32_t most = mr_f32_bits(x) & 0x7fffffffu; /* a NaN counts as larger than infinity */
    most = gpu_warp_max(most);
    float amax = mr_bits_f32(most);
    uint16_t half = mr_f32_to_f16(amax / 127.0f);
    float d = mr_f16_to_f32(half);
    bool is_number = amax <= FLT_MAX && d <= FLT_MAX;
    float r = is_number && d > 0.0f ? x * (1.0f / d) : 0.0f;
    r = r > 127.0f ? 127.0f : r < -127.0f ? -127.0f : r;
    if (gpu_lane() == 0)
        *scale = is_number ? half : (uint16_t)MR_F16_NAN;
    return (int8_t)((r + MR_EXPF_MAGIC) - MR_EXPF_MAGIC);
}

/* Keys are [k_dim / 4][16][4], then scales [k_dim / 32][16]. Values are [16 / 4][v_dim][4], then scales [v_dim / 32]
 * [16]. */
MR_KERNEL(cuda_kv_write_q8_0, cuda_kv_write_args, CUDA_KV_WRITE_THREADS) {
    if ((int32_t)gpu_block() >= gpu_real_rows(a.step, a.rows))
        return;
    kv_row row = row_of(a);
    uint16_t *k_scales = (uint16_t *)(row.k_out + a.k_dim * CUDA_KV_BLOCK) + row.column;
    uint16_t *v_scales = (uint16_t *)(row.v_out + a.v_dim * CUDA_KV_BLOCK) + row.column;
    for (int32_t i = (int32_t)gpu_thread(); i < a.k_dim; i += CUDA_KV_WRITE_THREADS) {
        int8_t q = quantize(turned(a.turn, row.table, row.k, i), k_scales + i / 32 * CUDA_KV_BLOCK);
        row.k_out[(i / 4 * CUDA_KV_BLOCK + row.column) * 4 + i % 4] = (uint8_t)q;
    }
    for (int32_t i = (int32_t)gpu_thread(); i < a.v_dim; i += CUDA_KV_WRITE_THREADS) {
        int8_t q = quantize(gpu_read(row.v + i), v_scales + i / 32 * CUDA_KV_BLOCK);
        row.v_out[(row.column / 4 * a.v_dim + i) * 4 + row.column % 4] = (uint8_t)q;
    }
}
