/* backends/cpu/cpu_heads.c - HEAD_MATMUL: each head's matrix times a part of the head. A task is one head and some
 * rows. It writes their activations, in the type that the product takes, into the thread's scratch, and then calls the
 * kernel of ordinary products. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_internal.h"
#include "engine/base/mem.h"

enum { TASK_ROWS = 32 };

/* The sizes of a HEAD_MATMUL node. Each head has k + n_kept elements in x, and n_out + n_kept in the result. */
typedef struct head_sizes {
    int32_t n_heads, k, n_out, n_kept;
    mr_type activation;
    size_t row_bytes; /* of activations in scratch */
} head_sizes;

static head_sizes sizes_of(const cpu_node *n) {
    const mr_tensor *w = n->in[0];
    head_sizes s = {.n_heads = n->node->params.heads.n, .k = w->ne[0], .activation = mr_type_activation(w->type)};
    s.n_out = w->ne[1] / s.n_heads;
    s.n_kept = n->in[1]->ne[0] / s.n_heads - s.k;
    bool fits = mr_type_bytes(s.activation, s.k, &s.row_bytes);
    MR_ASSERT(fits); /* cpu_supports */
    s.row_bytes = mr_round_up(s.row_bytes, CPU_ALIGNMENT);
    return s;
}

static int32_t count_chunks(int32_t n_rows) {
    return (n_rows + TASK_ROWS - 1) / TASK_ROWS;
}

int32_t cpu_count_head_tasks(const cpu_node *n, int32_t n_rows) {
    return n->node->params.heads.n * count_chunks(n_rows);
}

/* Where the activations begin in scratch: cpu_multiply uses what is before. */
static size_t activations_offset(const cpu_node *n) {
    return mr_round_up(cpu_file_scratch_bytes(n->in[0]), CPU_ALIGNMENT);
}

size_t cpu_head_scratch_bytes(const cpu_node *n) {
    return activations_offset(n) + TASK_ROWS * sizes_of(n).row_bytes;
}

/* Writes the activations of n_rows rows and copies the elements that the matrix leaves out. x and y: the head in the
 * first row. */
static void take_rows(const cpu_backend *be, const cpu_node *n, const head_sizes *s, const uint8_t *x, uint8_t *y,
                      int32_t n_rows, uint8_t *activations) {
    for (int32_t row = 0; row < n_rows; row++) {
        const float *from = (const float *)(const void *)(x + (size_t)row * n->in[1]->row_bytes);
        float *to = (float *)(void *)(y + (size_t)row * n->out->row_bytes);
        cpu_make_activations(be, from, s->activation, activations + (size_t)row * s->row_bytes, s->k);
        memcpy(to + s->n_out, from + s->k, (size_t)s->n_kept * sizeof *to);
    }
}

void cpu_run_head_matmul(const cpu_backend *be, const cpu_node *n, int32_t n_rows, int32_t idx, int thread_idx) {
    const mr_tensor *w = n->in[0], *x = n->in[1];
    head_sizes s = sizes_of(n);
    int32_t n_panels = (s.n_out + MR_PANEL - 1) / MR_PANEL, n_chunks = count_chunks(n_rows);
    int32_t head = idx / n_chunks, row = idx % n_chunks * TASK_ROWS;
    size_t panels_bytes = mr_panel_bytes(w->type, s.k) * (size_t)n_panels;
    size_t matrix_bytes = w->storage == MR_STORAGE_FILE ? w->row_bytes * (size_t)s.n_out : panels_bytes;
    uint8_t *activations = be->scratch + (size_t)thread_idx * be->scratch_bytes + activations_offset(n);
    uint8_t *y =
        cpu_data(n->out) + (size_t)row * n->out->row_bytes + (size_t)(head * (s.n_out + s.n_kept)) * sizeof(float);
    n_rows = mr_min_i32(n_rows - row, TASK_ROWS);
    take_rows(be, n, &s, cpu_data(x) + (size_t)row * x->row_bytes + (size_t)(head * (s.k + s.n_kept)) * sizeof(float),
              y, n_rows, activations);
    mr_matmul_args args = {
        .w = cpu_data(w) + (size_t)head * matrix_bytes,
        .k = s.k,
        .n = s.n_out,
        .a = activations,
        .a_row_bytes = s.row_bytes,
        .y = (float *)(void *)y,
        .y_row_bytes = n->out->row_bytes,
    };
    cpu_multiply(be, w, &args, (cpu_panels){0, n_panels}, n_rows, thread_idx);
}
