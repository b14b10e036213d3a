/* backends/cuda/cuda_products.c - plans the matrix products: MATMUL, EXPERT_MATMUL, HEAD_MATMUL and GATE_UP. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_plan.h"
#include "backends/cuda/cuda_products_float.h"
#include "backends/cuda/cuda_products_int.h"
#include "backends/cuda/kernels/cuda_activations.h"
#include "backends/cuda/kernels/cuda_heads.h"
#include "engine/base/mem.h"

_Static_assert(sizeof(cuda_product_args) <= CUDA_MAX_ARGS, "the argument of a kernel");

/* Kernels find activations by offsets of 32 bits. */
static bool fits_offsets(uint64_t bytes) {
    return bytes <= UINT32_MAX;
}

/* Whether the kernels can multiply n rows of matrices w by activations a of k columns. */
static bool is_product(const mr_tensor *w, const mr_tensor *a, int32_t n) {
    return w->storage == MR_STORAGE_WEIGHT && cuda_weight_bytes(w->type, w->ne[0], n) > 0 &&
           a->type == mr_type_activation(w->type) && a->ne[0] == w->ne[0] && fits_offsets(a->bytes);
}

static bool is_absent_or(const mr_tensor *tensors, int32_t id, mr_type type) {
    return id == MR_NO_TENSOR || tensors[id].type == type;
}

/* What the products of all ops have: w with n rows in each matrix, by activations a. */
static cuda_product_args args_of(const cuda_builder *b, const mr_tensor *w, int32_t n, const mr_tensor *a,
                                 const mr_tensor *out) {
    return (cuda_product_args){
        .step = cuda_step_of(b),
        .rows = cuda_rows_of(out),
        .k = w->ne[0],
        .n = n,
        .w = cuda_data(w),
        .matrix_bytes = cuda_weight_bytes(w->type, w->ne[0], n),
        .a = cuda_data(a),
        .y = cuda_data(out),
        .a_row_bytes = (uint32_t)a->row_bytes,
        .y_row_bytes = (uint32_t)out->row_bytes,
    };
}

static void set_bias(cuda_product_args *args, const mr_tensor *bias) {
    args->bias = cuda_data(bias);
    args->bias_matrix_bytes = bias ? (uint32_t)bias->row_bytes : 0;
}

/* Adds a product to the node. size: all but the processors. */
static mr_status launch_product(cuda_builder *b, cuda_product_size size, cuda_product_args *args, mr_err *err) {
    cuda_launch_desc desc;
    size.n_processors = cuda_processors(b);
    if (cuda_int_bytes(size.type, args->k, args->n) > 0)
        cuda_int_choose(&size, args, &desc);
    else
        cuda_float_choose(&size, args, &desc);
    return cuda_launch(b, &desc, err);
}

/* --- MATMUL ------------------------------------------------------------------------------------------------------ */

static bool supports_matmul(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *w = &tensors[node->in[0]];
    return is_product(w, &tensors[node->in[1]], w->ne[1]) && is_absent_or(tensors, node->in[2], MR_TYPE_F32) &&
           is_absent_or(tensors, node->in[3], MR_TYPE_F32) && tensors[node->out].type == MR_TYPE_F32;
}

static mr_status plan_matmul(cuda_builder *b, const cuda_node *n, mr_err *err) {
    const mr_tensor *w = n->in[0], *add = n->in[3];
    cuda_product_args args = args_of(b, w, w->ne[1], n->in[1], n->out);
    set_bias(&args, n->in[2]);
    args.add = cuda_data(add);
    args.add_row_bytes = add ? (uint32_t)add->row_bytes : 0;
    return launch_product(b, (cuda_product_size){.type = w->type, .n_rows = n->out->ne[1], .n_heads = 1}, &args, err);
}

/* --- EXPERT_MATMUL ----------------------------------------------------------------------------------------------- */

static bool supports_expert_matmul(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *w = &tensors[node->in[0]], *out = &tensors[node->out];
    return is_product(w, &tensors[node->in[1]], out->ne[0]) && w->ne[1] == out->ne[0] * node->params.experts.n &&
           tensors[node->in[2]].type == MR_TYPE_I32 && is_absent_or(tensors, node->in[3], MR_TYPE_F32) &&
           out->type == MR_TYPE_F32;
}

static mr_status plan_expert_matmul(cuda_builder *b, const cuda_node *n, mr_err *err) {
    const mr_tensor *w = n->in[0], *a = n->in[1], *lists = n->in[2];
    int32_t n_experts = n->node->params.experts.n, n_slots = (lists->ne[0] - n_experts - 1) / 2;
    mr_expert_rows rows = mr_expert_rows_at(cuda_data(lists), n_experts, n_slots);
    cuda_product_args args = args_of(b, w, n->out->ne[0], a, n->out);
    set_bias(&args, n->in[3]);
    args.first = rows.first;
    args.a_rows = a->row_count == MR_ROWS_SLOTS ? rows.slots : rows.rows;
    args.y_rows = rows.slots;
    args.n_experts = n_experts;
    cuda_product_size size = {.type = w->type, .n_rows = n->out->ne[1], .n_heads = 1, .n_experts = n_experts};
    return launch_product(b, size, &args, err);
}

/* --- HEAD_MATMUL ------------------------------------------------------------------------------------------------- */

/* Bytes of the activations of a head of k elements; 0: they cannot be made. */
static size_t head_bytes(mr_type type, int32_t k) {
    size_t bytes = 0;
    return mr_type_bytes(type, k + (type == MR_TYPE_BF16 ? k % 2 : 0), &bytes) ? mr_round_up(bytes, 64) : 0;
}

static bool supports_head_matmul(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *w = &tensors[node->in[0]], *x = &tensors[node->in[1]], *out = &tensors[node->out];
    int32_t n_heads = node->params.heads.n;
    size_t bytes = head_bytes(mr_type_activation(w->type), w->ne[0]);
    return w->storage == MR_STORAGE_WEIGHT && cuda_weight_bytes(w->type, w->ne[0], w->ne[1] / n_heads) > 0 &&
           cuda_is_rows(x, MR_TYPE_F32) && cuda_is_rows(out, MR_TYPE_F32) && bytes > 0 &&
           fits_offsets((uint64_t)bytes * (uint64_t)n_heads * (uint64_t)x->ne[1]);
}

/* Makes the activations of all heads in scratch, and copies the elements that no matrix multiplies. */
static mr_status plan_heads(cuda_builder *b, const cuda_node *n, cuda_activations *out, size_t bytes, mr_err *err) {
    const mr_tensor *x = n->in[1];
    int32_t n_heads = n->node->params.heads.n;
    void *scratch = NULL;
    out->row_bytes = (uint32_t)(bytes * (size_t)n_heads);
    mr_status s = cuda_scratch(b, (size_t)out->row_bytes * (size_t)x->ne[1], &scratch, err);
    if (s != MR_OK)
        return s;
    out->data = (uint8_t *)scratch;
    cuda_heads_args args = {.step = cuda_step_of(b),
                            .rows = cuda_rows_of(n->out),
                            .x = cuda_data(x),
                            .x_row_bytes = (uint32_t)x->row_bytes,
                            .n_kept = x->ne[0] / n_heads - out->n,
                            .n_out = n->in[0]->ne[1] / n_heads,
                            .a = *out,
                            .a_head_bytes = (uint32_t)bytes,
                            .y = cuda_data(n->out),
                            .y_row_bytes = (uint32_t)n->out->row_bytes};
    const cuda_launch_desc launch = {"cuda_heads", .n_threads = CUDA_HEADS_THREADS, .args = &args,
                                     .args_bytes = sizeof args};
    return cuda_launch_rows(b, launch, (uint32_t)n_heads, n->out, err);
}

static mr_status plan_head_matmul(cuda_builder *b, const cuda_node *n, mr_err *err) {
    const mr_tensor *w = n->in[0];
    int32_t n_heads = n->node->params.heads.n;
    cuda_activations a = {.type = mr_type_activation(w->type), .n = w->ne[0]};
    size_t bytes = head_bytes(a.type, a.n);
    mr_status s = plan_heads(b, n, &a, bytes, err);
    if (s != MR_OK)
        return s;
    cuda_product_args args = args_of(b, w, w->ne[1] / n_heads, n->in[1], n->out);
    args.a = a.data;
    args.a_row_bytes = a.row_bytes;
    args.a_head_bytes = (uint32_t)bytes;
    args.y_head_bytes = (uint32_t)(n->out->ne[0] / n_heads) * (uint32_t)sizeof(float);
    return launch_product(b, (cuda_product_size){.type = w->type, .n_rows = n->out->ne[1], .n_heads = n_heads}, &args,
                          err);
}

/* --- GATE_UP ----------------------------------------------------------------------------------------------------- */

static bool supports_gate_up(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *gate = &tensors[node->in[0]], *up = &tensors[node->in[1]], *a = &tensors[node->in[2]];
    return is_product(gate, a, gate->ne[1]) && is_product(up, a, up->ne[1]) && gate->ne[1] == up->ne[1] &&
           cuda_is_activations(&tensors[node->out]);
}

/* The products of gate and up, side by side in rows of scratch: the matrix that comes first in memory has the left
 * half. Matrices of one type are multiplied in one launch, as those of two heads with the same activations. */
static mr_status plan_halves(cuda_builder *b, const cuda_node *n, int first, uint8_t *scratch, size_t half,
                             mr_err *err) {
    bool together = n->in[0]->type == n->in[1]->type;
    mr_status s = MR_OK;
    for (int i = 0; i < (together ? 1 : 2) && s == MR_OK; i++) {
        const mr_tensor *w = n->in[i == 0 ? first : 1 - first];
        cuda_product_args args = args_of(b, w, w->ne[1], n->in[2], n->out);
        cuda_product_size size = {.type = w->type, .n_rows = n->out->ne[1], .n_heads = together ? 2 : 1};
        args.matrix_bytes = (uint64_t)(cuda_data(n->in[1 - first]) - cuda_data(n->in[first]));
        args.y = scratch + (size_t)i * half;
        args.y_row_bytes = (uint32_t)(2 * half);
        args.y_head_bytes = (uint32_t)half;
        s = launch_product(b, size, &args, err);
    }
    return s;
}

static mr_status plan_gate_up(cuda_builder *b, const cuda_node *n, mr_err *err) {
    size_t half = mr_round_up((size_t)n->out->ne[0] * sizeof(float), 64);
    int first = cuda_data(n->in[0]) < cuda_data(n->in[1]) ? 0 : 1;
    void *scratch = NULL;
    mr_status s = cuda_scratch(b, 2 * half * (size_t)n->out->ne[1], &scratch, err);
    if (s == MR_OK)
        s = plan_halves(b, n, first, scratch, half, err);
    if (s != MR_OK)
        return s;
    cuda_floats left = {scratch, (uint32_t)(2 * half)}, right = {(uint8_t *)scratch + half, left.row_bytes};
    return cuda_plan_glu(b, n, first == 0 ? &left : &right, first == 0 ? &right : &left, err);
}

const cuda_op cuda_op_matmul = {.supports = supports_matmul, .plan = plan_matmul};
const cuda_op cuda_op_expert_matmul = {.supports = supports_expert_matmul, .plan = plan_expert_matmul};
const cuda_op cuda_op_head_matmul = {.supports = supports_head_matmul, .plan = plan_head_matmul};
const cuda_op cuda_op_gate_up = {.supports = supports_gate_up, .plan = plan_gate_up};
