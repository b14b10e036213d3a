/* backends/cuda/cuda_gather.c - plans the ops whose rows are rows of another tensor: EMBED and TAKE_ROWS. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_gather.h"

#include "backends/cuda/cuda_plan.h"
#include "backends/cuda/kernels/cuda_elements.h"

static mr_status launch_gather(cuda_builder *b, const char *kernel, const cuda_node *n, mr_err *err) {
    cuda_gather_args args = {.step = cuda_step_of(b),
                             .rows = cuda_rows_of(n->out),
                             .n = n->out->ne[0],
                             .type = n->in[0]->type,
                             .x = cuda_data(n->in[0]),
                             .x_row_bytes = n->in[0]->row_bytes,
                             .from = (const int32_t *)(const void *)cuda_data(n->in[1]),
                             .y = cuda_data(n->out),
                             .y_row_bytes = (uint32_t)n->out->row_bytes};
    const cuda_launch_desc launch = {kernel, .n_threads = CUDA_ELEMENT_THREADS, .args = &args,
                                     .args_bytes = sizeof args};
    return cuda_launch_rows(b, launch, cuda_count_blocks(n->out->ne[0], CUDA_ELEMENT_THREADS), n->out, err);
}

static bool has_list_and_result(const mr_tensor *tensors, const mr_node *node) {
    return cuda_is_list(&tensors[node->in[1]], MR_TYPE_I32) && cuda_is_rows(&tensors[node->out], MR_TYPE_F32);
}

/* Whether embed.cu unpacks tables of this type. */
static bool is_table(mr_type type) {
    switch (type) {
    case MR_TYPE_F32:
    case MR_TYPE_F16:
    case MR_TYPE_BF16:
    case MR_TYPE_Q8_0:
    case MR_TYPE_Q4_0:
    case MR_TYPE_IQ4_NL:
    case MR_TYPE_MXFP4:
    case MR_TYPE_Q4_K:
    case MR_TYPE_Q5_K:
    case MR_TYPE_Q6_K:
    case MR_TYPE_IQ4_XS:
        return true;
    default:
        return false;
    }
}

static bool supports_embed(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *table = &tensors[node->in[0]];
    return table->storage == MR_STORAGE_FILE && is_table(table->type) && has_list_and_result(tensors, node);
}

static mr_status plan_embed(cuda_builder *b, const cuda_node *n, mr_err *err) {
    return launch_gather(b, "cuda_embed", n, err);
}

static bool supports_take_rows(const mr_tensor *tensors, const mr_node *node) {
    return tensors[node->in[0]].type == MR_TYPE_F32 && has_list_and_result(tensors, node);
}

static mr_status plan_take_rows(cuda_builder *b, const cuda_node *n, mr_err *err) {
    return launch_gather(b, "cuda_take_rows", n, err);
}

const cuda_op cuda_op_embed = {.supports = supports_embed, .plan = plan_embed};
const cuda_op cuda_op_take_rows = {.supports = supports_take_rows, .plan = plan_take_rows};
