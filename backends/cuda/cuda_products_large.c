// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_products_large.h"

typedef struct kernel_names {
    const char *of_short, *of_long;
} kernel_names;
static const kernel_names KERNELS[MR_TYPE_FILE_COUNT] = {
#define PANEL(name, TYPE, ...)                                                                                         \
    [MR_TYPE_##TYPE] = {"cuda_product_" #name "_large_short", "cuda_product_" #name "_large_long"},
#include "backends/cuda/kernels/cuda_panels.def"
#undef PANEL
};

static int32_t divide_up(int32_t n, int32_t by) {
    return (n + by - 1) / by;
}

bool cuda_large_choose(const cuda_product_size *size, cuda_product_args *args, cuda_launch_desc *desc) {
    int32_t n_matrices = size->n_experts ? size->n_experts : size->n_heads;
    int32_t rows = size->n_experts ? divide_up(size->n_rows, size->n_experts) : size->n_rows; /* of a matrix */
    if (rows <= CUDA_LARGE_SHORT)
        return false;
    args->blocks_of_matrix = (uint32_t)divide_up(args->n, CUDA_LARGE_PANELS * CUDA_PANEL);
    /* Long tiles read fewer numbers for each product; short ones give work to more of the device. */
    int32_t long_rows = size->type == MR_TYPE_Q6_K ? CUDA_LARGE_LONG_BLOCK : CUDA_LARGE_LONG;
    int64_t blocks = (int64_t)args->blocks_of_matrix * n_matrices * divide_up(rows, long_rows);
    bool is_long = blocks >= size->n_processors;
    const kernel_names *names = &KERNELS[size->type];
    *desc = (cuda_launch_desc){is_long ? names->of_long : names->of_short,
                               {args->blocks_of_matrix * (uint32_t)size->n_heads,
                                (uint32_t)cuda_product_tiles(size, is_long ? long_rows : CUDA_LARGE_SHORT)},
                               CUDA_LARGE_THREADS,
                               args,
                               .args_bytes = sizeof *args};
    return true;
}
