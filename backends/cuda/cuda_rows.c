/* backends/cuda/cuda_rows.c - plans the ops whose results may be the activations of a product: RMS_NORM, QUANTIZE and
 * GLU. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_plan.h"
#include "backends/cuda/kernels/cuda_activations.h"

static cuda_activations result_of(const mr_tensor *t) {
    return (cuda_activations){
        .type = t->type, .n = t->ne[0], .data = cuda_data(t), .row_bytes = (uint32_t)t->row_bytes};
}

static bool supports_quantize(const mr_tensor *tensors, const mr_node *node) {
    return cuda_is_rows(&tensors[node->in[0]], MR_TYPE_F32) && cuda_is_activations(&tensors[node->out]);
}

static mr_status plan_quantize(cuda_builder *b, const cuda_node *n, mr_err *err) {
    cuda_quantize_args args = {.step = cuda_step_of(b),
                               .rows = cuda_rows_of(n->out),
                               .x = cuda_data(n->in[0]),
                               .x_row_bytes = (uint32_t)n->in[0]->row_bytes,
                               .y = result_of(n->out)};
    const cuda_launch_desc launch = {"cuda_quantize", .n_threads = CUDA_ACTIVATION_THREADS, .args = &args,
                                     .args_bytes = sizeof args};
    return cuda_launch_rows(b, launch, cuda_count_blocks(n->out->ne[0], CUDA_ACTIVATION_COLUMNS), n->out, err);
}

static bool supports_glu(const mr_tensor *tensors, const mr_node *node) {
    return cuda_is_rows(&tensors[node->in[0]], MR_TYPE_F32) && cuda_is_rows(&tensors[node->in[1]], MR_TYPE_F32) &&
           cuda_is_activations(&tensors[node->out]);
}

mr_status cuda_plan_glu(cuda_builder *b, const cuda_node *n, const cuda_floats *gate, const cuda_floats *up,
                        mr_err *err) {
    cuda_glu_args args = {.step = cuda_step_of(b),
                          .rows = cuda_rows_of(n->out),
                          .glu = n->node->params.glu,
                          .gate = gate->data,
                          .up = up->data,
                          .gate_row_bytes = gate->row_bytes,
                          .up_row_bytes = up->row_bytes,
                          .y = result_of(n->out)};
    const cuda_launch_desc launch = {"cuda_glu", .n_threads = CUDA_ACTIVATION_THREADS, .args = &args,
                                     .args_bytes = sizeof args};
    return cuda_launch_rows(b, launch, cuda_count_blocks(n->out->ne[0], CUDA_ACTIVATION_COLUMNS), n->out, err);
}

static mr_status plan_glu(cuda_builder *b, const cuda_node *n, mr_err *err) {
    const cuda_floats gate = {cuda_data(n->in[0]), (uint32_t)n->in[0]->row_bytes},
                      up = {cuda_data(n->in[1]), (uint32_t)n->in[1]->row_bytes};
    return cuda_plan_glu(b, n, &gate, &up, err);
}

/* How many groups of m columns a block has. A block that is not alone in its row begins and ends at a multiple of 32
 * columns, and its columns fit into CUDA_NORM_COLUMNS. 0: it cannot be done. */
static int32_t groups_of_block(int32_t m, int32_t n_groups) {
    int32_t step = 32; /* the fewest groups whose columns are a multiple of 32 */
    for (int32_t rest = m; rest % 2 == 0 && step > 1; rest /= 2)
        step /= 2;
    if (n_groups <= CUDA_NORM_GROUPS && (n_groups == 1 || (int64_t)n_groups * m <= CUDA_NORM_COLUMNS))
        return n_groups;
    int32_t most = CUDA_NORM_COLUMNS / m < CUDA_NORM_GROUPS ? CUDA_NORM_COLUMNS / m : CUDA_NORM_GROUPS;
    return most >= step ? most / step * step : step == 1 ? 1 : 0;
}

static bool supports_rms_norm(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *x = &tensors[node->in[0]], *w = &tensors[node->in[1]], *y = &tensors[node->out];
    int32_t n_normed = x->ne[0] - node->params.norm.n_kept;
    return cuda_is_rows(x, MR_TYPE_F32) && w->type == MR_TYPE_F32 && cuda_is_activations(y) && n_normed > 0 &&
           groups_of_block(w->ne[0], n_normed / w->ne[0]) > 0;
}

static mr_status plan_rms_norm(cuda_builder *b, const cuda_node *n, mr_err *err) {
    int32_t m = n->in[1]->ne[0], n_groups = (n->in[0]->ne[0] - n->node->params.norm.n_kept) / m;
    cuda_rms_norm_args args = {.step = cuda_step_of(b),
                               .rows = cuda_rows_of(n->out),
                               .m = m,
                               .n_groups = n_groups,
                               .n_span = groups_of_block(m, n_groups),
                               .eps = n->node->params.norm.eps,
                               .x = cuda_data(n->in[0]),
                               .w = (const float *)(const void *)cuda_data(n->in[1]),
                               .x_row_bytes = (uint32_t)n->in[0]->row_bytes,
                               .y = result_of(n->out)};
    const cuda_launch_desc launch = {"cuda_rms_norm", .n_threads = CUDA_NORM_THREADS, .args = &args,
                                     .args_bytes = sizeof args};
    return cuda_launch_rows(b, launch, cuda_count_blocks(n_groups, args.n_span), n->out, err);
}

const cuda_op cuda_op_quantize = {.supports = supports_quantize, .plan = plan_quantize};
const cuda_op cuda_op_glu = {.supports = supports_glu, .plan = plan_glu};
const cuda_op cuda_op_rms_norm = {.supports = supports_rms_norm, .plan = plan_rms_norm};
