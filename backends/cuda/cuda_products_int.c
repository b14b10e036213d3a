// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_products_int.h"

#include "backends/cuda/cuda_products_large.h"
#include "engine/base/mem.h"

/* The kernels of few rows: most rows of activations, and whether the warps of a block share a panel. */
enum { SMALL_KERNELS = 6 };
static const struct {
    int32_t rows;
    bool shared;
} SMALL[SMALL_KERNELS] = {{8, true}, {8, false}, {16, true}, {16, false}, {32, false}, {64, false}};

typedef struct panel_type {
    int32_t unit, unit_bytes, step, step_bytes;
    const char *repack, *small[SMALL_KERNELS];
} panel_type;

/* NULL: the type has no panels of quants. */
static const panel_type *panel_type_of(mr_type type) {
    static const panel_type TYPES[MR_TYPE_FILE_COUNT] = {
#define SMALL_NAME(name, rows) "cuda_product_" #name "_" #rows
#define PANEL(name, TYPE, ...)                                                                                         \
    [MR_TYPE_##TYPE] = {__VA_ARGS__,                                                                                   \
                        "cuda_repack_" #name,                                                                          \
                        {SMALL_NAME(name, 8_shared), SMALL_NAME(name, 8), SMALL_NAME(name, 16_shared),                 \
                         SMALL_NAME(name, 16), SMALL_NAME(name, 32), SMALL_NAME(name, 64)}},
#include "backends/cuda/kernels/cuda_panels.def"
#undef PANEL
#undef SMALL_NAME
    };
    return (unsigned)type < MR_TYPE_FILE_COUNT && TYPES[type].repack ? &TYPES[type] : NULL;
}

static int32_t divide_up(int32_t n, int32_t by) {
    return (n + by - 1) / by;
}

static size_t panel_bytes(const panel_type *t, int32_t columns) {
    return cuda_panel_bytes(columns, t->unit, t->unit_bytes, t->step, t->step_bytes);
}

size_t cuda_int_bytes(mr_type type, int32_t columns, int32_t rows) {
    const panel_type *t = panel_type_of(type);
    size_t bytes = 0;
    if (!t || columns < 1 || rows < 1 || columns % mr_type_get(type)->block_elems ||
        !mr_mul_size(panel_bytes(t, columns), (size_t)divide_up(rows, CUDA_PANEL), &bytes))
        return 0;
    return bytes;
}

void cuda_int_repack(const cuda_repack *repack, cuda_repack_panel_args *args, cuda_launch_desc *desc) {
    const panel_type *t = panel_type_of(repack->type);
    const mr_type_info *info = mr_type_get(repack->type);
    size_t bytes = panel_bytes(t, repack->columns), part = 4 * CUDA_REPACK_PANEL_THREADS;
    *args = (cuda_repack_panel_args){
        .src = repack->src,
        .dst = repack->dst,
        .row_bytes = (uint64_t)(repack->columns / info->block_elems) * (uint64_t)info->block_bytes,
        .panel_bytes = bytes,
        .k = repack->columns,
        .n = repack->rows,
    };
    *desc = (cuda_launch_desc){t->repack,
                               {(uint32_t)divide_up(repack->rows, CUDA_PANEL), (uint32_t)((bytes + part - 1) / part)},
                               CUDA_REPACK_PANEL_THREADS,
                               args,
                               .args_bytes = sizeof *args};
}

/* The warps of a block share a panel where a warp for each panel would leave the device idle. */
static int choose_small(const cuda_product_size *size, int32_t n_panels) {
    int32_t n_matrices = size->n_heads, rows = size->n_rows;
    if (size->n_experts) {
        n_matrices = size->n_experts < rows ? size->n_experts : rows; /* that have rows */
        rows = 2 * divide_up(rows, size->n_experts);                  /* some have more rows than others */
    }
    bool shared = (int64_t)n_panels * n_matrices < 4 * (int64_t)size->n_processors;
    for (int i = 0; i < SMALL_KERNELS; i++)
        if (rows <= SMALL[i].rows && (shared || !SMALL[i].shared))
            return i;
    return SMALL_KERNELS - 1;
}

void cuda_int_choose(const cuda_product_size *size, cuda_product_args *args, cuda_launch_desc *desc) {
    if (cuda_large_choose(size, args, desc))
        return;
    int32_t n_panels = divide_up(args->n, CUDA_PANEL);
    int i = choose_small(size, n_panels);
    uint32_t tiles = (uint32_t)cuda_product_tiles(size, SMALL[i].rows);
    args->blocks_of_matrix = (uint32_t)(SMALL[i].shared ? n_panels : divide_up(n_panels, CUDA_SMALL_PANELS));
    *desc = (cuda_launch_desc){panel_type_of(size->type)->small[i],
                               {args->blocks_of_matrix * (uint32_t)size->n_heads, tiles},
                               32 * (SMALL[i].shared ? CUDA_SMALL_WARPS : CUDA_SMALL_PANELS),
                               args,
                               .args_bytes = sizeof *args};
}
