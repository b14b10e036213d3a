/* backends/cpu/cpu_gate_up.c - runs GATE_UP nodes: a gated unit and its two products in one pass. A piece of both
 * products is computed in scratch. While it is in the cache, the unit is computed from it and rounded. The kernels are
 * the same as for separate nodes, and so are the bits. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_internal.h"
#include "engine/base/mem.h"

enum {
    PIECE_ROWS = 84,      /* the row block of the matmul kernels (matmul_tiles.h) */
    PIECE_FLOATS = 21504, /* 84 rows by 256 columns */
    MAX_COLUMNS = 2048,   /* of a piece with few rows */
};

bool cpu_supports_gate_up(const mr_tensor *tensors, const mr_node *n) {
    const mr_tensor *gate = &tensors[n->in[0]], *up = &tensors[n->in[1]], *a = &tensors[n->in[2]];
    return cpu_supports_matmul(gate, a) && cpu_supports_matmul(up, a) && gate->ne[0] == up->ne[0] &&
           gate->ne[1] == up->ne[1];
}

/* Bytes of scratch that cpu_multiply needs for matrices in file layout. The pieces lie behind them. */
static size_t file_bytes(const cpu_node *n) {
    size_t gate = cpu_file_scratch_bytes(n->in[0]), up = cpu_file_scratch_bytes(n->in[1]);
    return mr_round_up(gate > up ? gate : up, CPU_ALIGNMENT);
}

size_t cpu_gate_up_scratch_bytes(const cpu_node *n) {
    return file_bytes(n) + 2 * PIECE_FLOATS * sizeof(float);
}

/* Computes one of the products (0: gate, 1: up) for rows [row, row + n_rows) and columns [column, column + n_columns)
 * into y [n_rows][n_columns]. */
static void multiply(const cpu_backend *be, const cpu_node *n, int which, int32_t row, int32_t n_rows, int32_t column,
                     int32_t n_columns, float *y, int thread_idx) {
    const mr_tensor *w = n->in[which], *a = n->in[2];
    size_t skipped = w->storage == MR_STORAGE_FILE ? (size_t)column * w->row_bytes
                                                   : (size_t)(column / MR_PANEL) * mr_panel_bytes(w->type, w->ne[0]);
    mr_matmul_args args = {
        .w = cpu_data(w) + skipped,
        .k = w->ne[0],
        .n = n_columns,
        .a = cpu_data(a) + (size_t)row * a->row_bytes,
        .a_row_bytes = a->row_bytes,
        .y = y,
        .y_row_bytes = (size_t)n_columns * sizeof *y,
    };
    cpu_multiply(be, w, &args, (cpu_panels){0, (n_columns + MR_PANEL - 1) / MR_PANEL}, n_rows, thread_idx);
}

/* Stores x[n] as columns [column, column + n) of a row. The row has n_row columns of the type. */
static void store(const cpu_backend *be, const float *x, mr_type type, uint8_t *row, int32_t n_row, int32_t column,
                  int32_t n) {
    if (type != MR_TYPE_A8) {
        size_t bytes = type == MR_TYPE_F32 ? sizeof(float) : sizeof(uint16_t);
        if (type == MR_TYPE_F32)
            memcpy(row + (size_t)column * bytes, x, (size_t)n * bytes);
        else
            be->kernels->round_bf16(x, (uint16_t *)(void *)(row + (size_t)column * bytes), n);
        return;
    }
    _Alignas(CPU_ALIGNMENT) uint8_t a8[MAX_COLUMNS + MAX_COLUMNS / 4];
    be->kernels->quantize(x, a8, n);
    size_t blocks = (size_t)n / 8, at = (size_t)column / 8, all = (size_t)n_row; /* bytes: 4 for each 32 elements */
    memcpy(row + column, a8, (size_t)n);
    memcpy(row + all + at, a8 + n, blocks);
    memcpy(row + all + all / 8 + at, a8 + n + blocks, blocks);
}

void cpu_run_gate_up(const cpu_backend *be, const cpu_node *n, int32_t n_rows, cpu_panels range, int thread_idx) {
    uint8_t *scratch = be->scratch + (size_t)thread_idx * be->scratch_bytes + file_bytes(n);
    float *gate = (float *)(void *)scratch, *up = gate + PIECE_FLOATS;
    int32_t columns = PIECE_FLOATS / mr_min_i32(n_rows, PIECE_ROWS) / 256 * 256;
    int32_t last = mr_min_i32(range.last * MR_PANEL, n->out->ne[0]);
    columns = mr_min_i32(columns, MAX_COLUMNS);
    for (int32_t column = range.first * MR_PANEL, n_columns; column < last; column += n_columns) {
        n_columns = mr_min_i32(columns, last - column);
        for (int32_t row = 0, rows; row < n_rows; row += rows) {
            rows = mr_min_i32(PIECE_ROWS, n_rows - row);
            multiply(be, n, 0, row, rows, column, n_columns, gate, thread_idx);
            multiply(be, n, 1, row, rows, column, n_columns, up, thread_idx);
            for (int32_t r = 0; r < rows; r++) {
                float *x = gate + r * n_columns;
                be->kernels->glu(x, up + r * n_columns, x, n_columns, n->node->params.glu);
                store(be, x, n->out->type, cpu_data(n->out) + (size_t)(row + r) * n->out->row_bytes, n->out->ne[0],
                      column, n_columns);
            }
        }
    }
}
