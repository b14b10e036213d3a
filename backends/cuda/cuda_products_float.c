// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_products_float.h"

#include "engine/base/mem.h"

/* The kernels by the number of activation rows that a block multiplies. */
enum { FEW, SOME, MANY, KERNELS };
static const struct {
    int32_t n, rows; /* of a block: rows of the matrix, and of the activations */
    uint32_t n_threads;
} BLOCKS[KERNELS] = {
    [FEW] = {CUDA_FLOAT_N, CUDA_FLOAT_THREADS / 32, CUDA_FLOAT_THREADS},
    [SOME] = {CUDA_FLOAT_N, CUDA_FLOAT_THREADS / 32 * CUDA_FLOAT_WARP_ROWS, CUDA_FLOAT_THREADS},
    [MANY] = {CUDA_FLOAT_MANY_N, CUDA_FLOAT_MANY_ROWS, CUDA_FLOAT_MANY_THREADS},
};

static const char *kernel_name(mr_type type, int kernel) {
    static const char *const F32[] = {"cuda_product_f32_few", "cuda_product_f32_some", "cuda_product_f32_many"};
    static const char *const F16[] = {"cuda_product_f16_few", "cuda_product_f16_some", "cuda_product_f16_many"};
    static const char *const BF16[] = {"cuda_product_bf16_few", "cuda_product_bf16_some", "cuda_product_bf16_many"};
    return (type == MR_TYPE_F32 ? F32 : type == MR_TYPE_F16 ? F16 : BF16)[kernel];
}

static int32_t divide_up(int32_t n, int32_t by) {
    return (n + by - 1) / by;
}

size_t cuda_float_bytes(mr_type type, int32_t columns, int32_t rows) {
    size_t row_bytes = 0, bytes = 0;
    if ((type != MR_TYPE_F32 && type != MR_TYPE_F16 && type != MR_TYPE_BF16) || columns < 2 || rows < 1 ||
        !mr_type_bytes(type, columns, &row_bytes) ||
        !mr_mul_size(mr_round_up(row_bytes, 16), (size_t)divide_up(rows, CUDA_PANEL) * CUDA_PANEL, &bytes))
        return 0;
    return bytes;
}

void cuda_float_repack(const cuda_repack *repack, cuda_repack_float_args *args, cuda_launch_desc *desc) {
    size_t panel_bytes = cuda_float_bytes(repack->type, repack->columns, CUDA_PANEL);
    uint32_t n_panels = (uint32_t)divide_up(repack->rows, CUDA_PANEL);
    *args = (cuda_repack_float_args){.src = repack->src, .dst = repack->dst, .n_rows = repack->rows};
    args->row_bytes = (uint64_t)repack->columns * (repack->type == MR_TYPE_F32 ? 4 : 2);
    *desc = (cuda_launch_desc){"cuda_repack_float",
                               {n_panels, (uint32_t)divide_up((int32_t)(panel_bytes / 16), CUDA_REPACK_THREADS)},
                               CUDA_REPACK_THREADS,
                               args,
                               .args_bytes = sizeof *args};
}

/* Few and some: a matrix is read once. Many: each number that is read is used more often, but blocks are fewer. */
static int choose_kernel(const cuda_product_size *size, int32_t n) {
    int32_t rows = size->n_experts ? divide_up(size->n_rows, size->n_experts) : size->n_rows;
    if (rows <= BLOCKS[FEW].rows)
        return FEW;
    int64_t blocks = (int64_t)divide_up(n, BLOCKS[MANY].n) * divide_up(rows, BLOCKS[MANY].rows) * size->n_heads *
                     (size->n_experts ? size->n_experts : 1);
    return rows > BLOCKS[SOME].rows && 2 * blocks >= size->n_processors ? MANY : SOME;
}

void cuda_float_choose(const cuda_product_size *size, cuda_product_args *args, cuda_launch_desc *desc) {
    int kernel = choose_kernel(size, args->n);
    int32_t tiles = cuda_product_tiles(size, BLOCKS[kernel].rows);
    args->blocks_of_matrix = (uint32_t)divide_up(args->n, BLOCKS[kernel].n);
    *desc = (cuda_launch_desc){kernel_name(size->type, kernel),
                               {args->blocks_of_matrix * (uint32_t)size->n_heads, (uint32_t)tiles},
                               BLOCKS[kernel].n_threads,
                               args,
                               .args_bytes = sizeof *args};
}
