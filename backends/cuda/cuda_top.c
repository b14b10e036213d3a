/* backends/cuda/cuda_top.c - plans TOP, the first tokens of rows of logits: kernels/cuda_top.h says how they are
 * found. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_top.h"

#include "backends/cuda/cuda_plan.h"
#include "engine/base/mem.h"
#include "engine/base/top.h"

enum { MAX_LOGITS = 1 << 22 }; /* of a row */

static bool supports(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *logits = &tensors[node->in[0]], *out = &tensors[node->out];
    return cuda_is_rows(logits, MR_TYPE_F32) && logits->ne[0] <= MAX_LOGITS && cuda_is_rows(out, MR_TYPE_I32) &&
           out->ne[0] == MR_TOP_COLUMNS;
}

/* Places the states and pieces of the rows. */
static mr_status place(cuda_builder *b, cuda_top_args *a, size_t n_rows, mr_err *err) {
    size_t states = mr_round_up(n_rows * sizeof *a->states, CUDA_ALIGNMENT);
    void *memory;
    mr_status status = cuda_scratch(b, states + n_rows * (size_t)a->n_pieces * sizeof *a->pieces, &memory, err);
    if (status != MR_OK)
        return status;
    a->states = memory;
    a->pieces = (cuda_top_piece *)(void *)((uint8_t *)memory + states);
    return MR_OK;
}

static mr_status plan(cuda_builder *b, const cuda_node *n, mr_err *err) {
    static const struct {
        const char *kernel;
        int32_t level;
    } STEPS[] = {{"cuda_top_begin", 0}, {"cuda_top_count", 0}, {"cuda_top_count", 1},
                 {"cuda_top_count", 2}, {"cuda_top_list", 0},  {"cuda_top_write", 0}};
    int32_t n_logits = n->in[0]->ne[0];
    cuda_top_args args = {.step = cuda_step_of(b),
                          .rows = cuda_rows_of(n->out),
                          .n = n_logits,
                          .n_pieces = (int32_t)cuda_count_blocks(n_logits, CUDA_TOP_PIECE),
                          .n_taken = n_logits < MR_TOP_TOKENS ? n_logits : MR_TOP_TOKENS,
                          .logits = cuda_data(n->in[0]),
                          .out = cuda_data(n->out),
                          .logits_row_bytes = (uint32_t)n->in[0]->row_bytes,
                          .out_row_bytes = (uint32_t)n->out->row_bytes};
    mr_status status = place(b, &args, (size_t)n->out->ne[1], err);
    for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS && status == MR_OK; i++) {
        args.level = STEPS[i].level;
        const cuda_launch_desc launch = {STEPS[i].kernel, .n_threads = CUDA_TOP_THREADS, .args = &args,
                                         .args_bytes = sizeof args};
        status = cuda_launch_rows(b, launch, (uint32_t)args.n_pieces, n->out, err);
    }
    return status;
}

const cuda_op cuda_op_top = {.supports = supports, .plan = plan};
