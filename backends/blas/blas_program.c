/* backends/blas/blas_program.c - runs matrix products on the threads of the backend. A product is cut into blocks of
 * rows of the matrix. A thread claims a block, converts it to float32 if need be, and multiplies. Steps allocate
 * nothing: the buffers for converted blocks are made with the program. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/blas/blas_internal.h"
#include "backends/host_memory.h"
#include "engine/base/mem.h"

/* The library packs all activations again for each block, so large matrices are cut into large blocks. */
enum {
    FEW_ROWS = 256,         /* size of a block that is worth the packing: see choose_block */
    BLOCK_FLOATS = 1 << 20, /* most floats of a block, unless 16 rows have more */
    ROW_STEP = 16,          /* rows of a block are a multiple of this */
};

typedef struct blas_node {
    const mr_tensor *w, *a, *bias, *add, *out;
    size_t row_bytes; /* bytes of a row of w in the file */
    blas_to_floats_fn *to_floats;
    int32_t block_rows;
    int32_t n_blocks; /* of the current run; valid once the node's group has begun */
} blas_node;

struct mr_program {
    blas_node *nodes;
    int32_t *group_first; /* [n_groups + 1] the first node of each group, then n_nodes */
    int32_t n_nodes, n_groups;
    const blas_backend *be;
    const mr_run *run; /* of the current submit */
};

void blas_program_destroy(mr_backend *be, mr_program *p) {
    (void)be;
    if (!p)
        return;
    mr_free(p->nodes);
    mr_free(p->group_first);
    mr_free(p);
}

static int32_t at_most(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Rows of a block of w. Two blocks for each thread, so that all threads end at nearly the same time. If such blocks had
 * at most FEW_ROWS rows, one block for each thread, of FEW_ROWS rows at most. */
static int32_t choose_block(const mr_tensor *w, int n_threads) {
    int32_t n = w->ne[1], half = n / (2 * n_threads), share = (n + n_threads - 1) / n_threads;
    int32_t rows = half > FEW_ROWS ? half : at_most(share, FEW_ROWS);
    rows = at_most(rows, BLOCK_FLOATS / w->ne[0]);
    return (int32_t)mr_round_up(rows < 1 ? 1 : (size_t)rows, ROW_STEP);
}

static const mr_tensor *tensor_at(const mr_program_desc *desc, int32_t id) {
    return id == MR_NO_TENSOR ? NULL : &desc->tensors[id];
}

static mr_status fill_node(blas_node *b, const mr_program_desc *desc, int32_t i, int n_threads, mr_err *err) {
    const mr_node *n = &desc->nodes[i];
    *b = (blas_node){.w = tensor_at(desc, n->in[0]),
                     .a = tensor_at(desc, n->in[1]),
                     .bias = tensor_at(desc, n->in[2]),
                     .add = tensor_at(desc, n->in[3]),
                     .out = tensor_at(desc, n->out)};
    b->to_floats = blas_to_floats_of(b->w->type);
    b->block_rows = choose_block(b->w, n_threads);
    if (!mr_type_bytes(b->w->type, b->w->ne[0], &b->row_bytes))
        return mr_err_set(err, MR_E_INTERNAL, "a weight row of %d elements", b->w->ne[0]);
    return MR_OK;
}

/* Makes the scratch large enough for the largest block of the program. */
static mr_status grow_scratch(blas_backend *be, const mr_program *p, mr_err *err) {
    size_t floats = be->scratch_floats;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        size_t need = (size_t)p->nodes[i].block_rows * (size_t)p->nodes[i].w->ne[0];
        floats = need > floats ? need : floats;
    }
    if (floats == be->scratch_floats)
        return MR_OK;
    mr_free(be->scratch_memory);
    be->scratch_floats = 0;
    be->scratch_memory = mr_alloc(floats * sizeof(float) * (size_t)be->n_threads + BLAS_ALIGNMENT);
    if (!be->scratch_memory)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to convert weights in: %zu floats for each of %d threads",
                          floats, be->n_threads);
    be->scratch = (float *)mr_round_up((uintptr_t)be->scratch_memory, BLAS_ALIGNMENT);
    be->scratch_floats = floats;
    return MR_OK;
}

mr_status blas_program_create(mr_backend *base, const mr_program_desc *desc, mr_program **out, mr_err *err) {
    blas_backend *be = (blas_backend *)base;
    mr_program *p = mr_alloc(sizeof *p);
    if (p) {
        p->nodes = mr_alloc_array((size_t)desc->n_nodes, sizeof *p->nodes);
        p->group_first = mr_alloc_array((size_t)desc->n_nodes + 1, sizeof *p->group_first);
    }
    if (!p || !p->nodes || !p->group_first) {
        blas_program_destroy(base, p);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a program of %d products", desc->n_nodes);
    }
    p->be = be;
    p->n_nodes = desc->n_nodes;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < p->n_nodes && status == MR_OK; i++) {
        if (i == 0 || desc->nodes[i].group != desc->nodes[i - 1].group)
            p->group_first[p->n_groups++] = i;
        status = fill_node(&p->nodes[i], desc, i, be->n_threads, err);
    }
    p->group_first[p->n_groups] = p->n_nodes;
    if (status == MR_OK)
        status = grow_scratch(be, p, err);
    if (status == MR_OK)
        *out = p;
    else
        blas_program_destroy(base, p);
    return status;
}

/* --- Running ----------------------------------------------------------------------------------------------------- */

static int32_t real_rows(const blas_node *n, const mr_run *run) {
    return n->out->row_count == MR_ROWS_FIXED ? n->out->ne[1] : run->n_rows[n->out->row_count];
}

/* The address of the matrix in the file. A WEIGHT tensor holds this address (weight_load). */
static const uint8_t *file_rows(const mr_tensor *w) {
    const uint8_t *rows = mr_host_data(w);
    if (w->storage == MR_STORAGE_WEIGHT)
        memcpy(&rows, mr_host_data(w), sizeof rows);
    return rows;
}

/* Rows [first, first + n) of the matrix as float32: in place if they are aligned float32, else converted to scratch. */
static const float *rows_as_floats(const blas_node *b, int32_t first, int32_t n, float *scratch) {
    const uint8_t *src = file_rows(b->w) + (size_t)first * b->row_bytes;
    int32_t k = b->w->ne[0];
    if (b->w->type == MR_TYPE_F32 && (uintptr_t)src % _Alignof(float) == 0)
        return (const float *)(const void *)src;
    for (int32_t r = 0; r < n; r++)
        b->to_floats(b->w->type, src + (size_t)r * b->row_bytes, scratch + (size_t)r * (size_t)k, k);
    return scratch;
}

/* Writes bias + add into columns [first, first + n) of the result; the product is added to them (beta = 1). add may be
 * the result itself. */
static void put_sums(const blas_node *b, int32_t n_rows, int32_t first, int32_t n) {
    const float *bias = b->bias ? (const float *)mr_host_data(b->bias) + first : NULL;
    for (int32_t r = 0; r < n_rows; r++) {
        float *y = (float *)(mr_host_data(b->out) + (size_t)r * b->out->row_bytes) + first;
        const float *add =
            b->add ? (const float *)(mr_host_data(b->add) + (size_t)r * b->add->row_bytes) + first : NULL;
        for (int32_t i = 0; i < n; i++)
            y[i] = (bias ? bias[i] : 0.0f) + (add ? add[i] : 0.0f);
    }
}

static void run_block(const blas_node *b, int32_t n_rows, int32_t idx, float *scratch) {
    int32_t first = idx * b->block_rows, n = at_most(b->block_rows, b->w->ne[1] - first);
    bool has_sums = b->bias || b->add;
    if (has_sums)
        put_sums(b, n_rows, first, n);
    blas_product p = {
        .m = n_rows,
        .n = n,
        .k = b->w->ne[0],
        .a = (const float *)mr_host_data(b->a),
        .w = rows_as_floats(b, first, n, scratch),
        .y = (float *)mr_host_data(b->out) + first,
        .lda = b->a->row_bytes / sizeof(float),
        .ldw = (size_t)b->w->ne[0],
        .ldy = b->out->row_bytes / sizeof(float),
        .beta = has_sums ? 1.0f : 0.0f,
    };
    blas_multiply(&p);
}

static int32_t count_blocks(void *ctx, int32_t group) {
    mr_program *p = ctx;
    int32_t n = 0;
    if (mr_run_is_stopped(p->run))
        return 0;
    for (int32_t i = p->group_first[group]; i < p->group_first[group + 1]; i++) {
        blas_node *b = &p->nodes[i];
        b->n_blocks = real_rows(b, p->run) == 0 ? 0 : (b->w->ne[1] + b->block_rows - 1) / b->block_rows;
        n += b->n_blocks;
    }
    return n;
}

static void run_task(void *ctx, int32_t group, int32_t task, int thread_idx) {
    const mr_program *p = ctx;
    const blas_node *b = &p->nodes[p->group_first[group]];
    for (; task >= b->n_blocks; b++)
        task -= b->n_blocks;
    run_block(b, real_rows(b, p->run), task, p->be->scratch + (size_t)thread_idx * p->be->scratch_floats);
}

static void call_progress(void *ctx) {
    const mr_run *run = ((const mr_program *)ctx)->run;
    run->progress(run->progress_ctx);
}

mr_status blas_submit(mr_backend *be, mr_program *p, const mr_run *run, mr_fence *out, mr_err *err) {
    p->run = run;
    mr_pool_run(p->be->pool, &(mr_pool_job){.n_groups = p->n_groups,
                                            .count = count_blocks,
                                            .run = run_task,
                                            .progress = run->progress ? call_progress : NULL,
                                            .ctx = p});
    p->run = NULL;
    if (mr_run_is_stopped(run))
        return mr_err_set(err, MR_E_CANCELLED, "the run was stopped");
    *out = mr_host_fence(be);
    return MR_OK;
}
