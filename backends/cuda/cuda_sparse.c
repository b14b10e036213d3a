/* backends/cuda/cuda_sparse.c - plans the ops of sparse feed-forward parts: RELU, ACTIVE, SPARSE_GATE_UP and AXPY (rule
 * S of engine/NUMERICS.md). */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_sparse.h"

#include "backends/cuda/cuda_plan.h"
#include "backends/cuda/kernels/cuda_elements.h"
#include "engine/base/mem.h"

/* Kernels by the type of their matrix; the same kernel has all quantised ones. */
typedef struct sparse_type {
    const char *few, *many; /* units of float matrices */
    const char *axpy_one, *axpy;
} sparse_type;

/* NULL: the kernels do not read the type. */
static const sparse_type *type_of(mr_type type) {
    static const sparse_type floats[] = {
        {"cuda_sparse_f32_few", "cuda_sparse_f32_many", "cuda_axpy_any_one", "cuda_axpy_any"},
        {"cuda_sparse_f16_few", "cuda_sparse_f16_many", "cuda_axpy_f16_one", "cuda_axpy_f16"},
        {"cuda_sparse_bf16_few", "cuda_sparse_bf16_many", "cuda_axpy_any_one", "cuda_axpy_any"}};
    static const sparse_type quants = {NULL, NULL, "cuda_axpy_any_one", "cuda_axpy_any"};
    static const sparse_type q4_0 = {NULL, NULL, "cuda_axpy_q4_0_one", "cuda_axpy_q4_0"};
    switch (type) {
    case MR_TYPE_F32:
        return &floats[0];
    case MR_TYPE_F16:
        return &floats[1];
    case MR_TYPE_BF16:
        return &floats[2];
    case MR_TYPE_Q4_0:
        return &q4_0;
    case MR_TYPE_Q8_0:
    case MR_TYPE_IQ4_NL:
    case MR_TYPE_IQ4_XS:
    case MR_TYPE_MXFP4:
    case MR_TYPE_Q4_K:
    case MR_TYPE_Q5_K:
    case MR_TYPE_Q6_K:
        return &quants;
    default:
        return NULL;
    }
}

static cuda_sparse_matrix matrix_of(const mr_tensor *t) {
    cuda_sparse_matrix m = {.data = cuda_data(t)};
    if (t) {
        m.row_bytes = t->row_bytes;
        m.type = t->type;
    }
    return m;
}

static bool is_neurons(const mr_tensor *w) {
    return w->storage == MR_STORAGE_FILE && type_of(w->type) && w->ne[0] <= CUDA_MAX_ROW_COLUMNS;
}

/* --- RELU --------------------------------------------------------------------------------------------------------- */

static bool supports_relu(const mr_tensor *tensors, const mr_node *node) {
    return cuda_is_rows(&tensors[node->in[0]], MR_TYPE_F32) && cuda_is_rows(&tensors[node->out], MR_TYPE_F32);
}

static mr_status plan_relu(cuda_builder *b, const cuda_node *n, mr_err *err) {
    cuda_relu_args args = {.step = cuda_step_of(b),
                           .rows = cuda_rows_of(n->out),
                           .n = n->out->ne[0],
                           .x = cuda_data(n->in[0]),
                           .y = cuda_data(n->out),
                           .x_row_bytes = (uint32_t)n->in[0]->row_bytes,
                           .y_row_bytes = (uint32_t)n->out->row_bytes};
    const cuda_launch_desc launch = {"cuda_relu", .n_threads = CUDA_ELEMENT_THREADS, .args = &args,
                                     .args_bytes = sizeof args};
    return cuda_launch_rows(b, launch, cuda_count_blocks(n->out->ne[0], CUDA_ELEMENT_THREADS), n->out, err);
}

/* --- ACTIVE ------------------------------------------------------------------------------------------------------- */

static bool supports_active(const mr_tensor *tensors, const mr_node *node) {
    return cuda_is_rows(&tensors[node->in[0]], MR_TYPE_F32) && tensors[node->out].type == MR_TYPE_I32;
}

static mr_status plan_active(cuda_builder *b, const cuda_node *n, mr_err *err) {
    const mr_tensor *scores = n->in[0];
    mr_neurons neurons = mr_neurons_of(n->node, scores->ne[0]);
    cuda_active_args args = {.step = cuda_step_of(b),
                             .rows = cuda_rows_of(scores),
                             .n = neurons.n,
                             .n_parts = mr_count_partitions(neurons.n),
                             .threshold = n->node->params.sparse.threshold,
                             .scores = cuda_data(scores) + (size_t)neurons.first * sizeof(float),
                             .scores_row_bytes = (uint32_t)scores->row_bytes,
                             .active = mr_active_at(cuda_data(n->out), neurons.n)};
    const cuda_launch_desc launch = {
        "cuda_active", {(uint32_t)args.n_parts, 1}, CUDA_SPARSE_THREADS, &args, sizeof args, 0};
    return cuda_launch(b, &launch, err);
}

/* --- SPARSE_GATE_UP ----------------------------------------------------------------------------------------------- */

static bool supports_units(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *gate = &tensors[node->in[0]], *up = node->in[1] == MR_NO_TENSOR ? NULL : &tensors[node->in[1]];
    const mr_tensor *a = &tensors[node->in[2]];
    return is_neurons(gate) && (!up || (is_neurons(up) && mr_type_activation(up->type) == a->type)) &&
           cuda_is_activations(a) && a->row_bytes % 16 == 0 && mr_type_activation(gate->type) == a->type &&
           tensors[node->in[3]].type == MR_TYPE_I32 && cuda_is_rows(&tensors[node->out], MR_TYPE_F32);
}

/* The kernel for the matrices, with the neurons and rows of its blocks. */
typedef struct units_kernel {
    const char *name;
    int32_t neurons, rows;
} units_kernel;

static units_kernel choose_units(const cuda_node *n) {
    const sparse_type *type = type_of(n->in[0]->type);
    if (!type->few)
        return (units_kernel){"cuda_sparse_int", CUDA_SPARSE_INT_NEURONS, CUDA_SPARSE_INT_ROWS};
    if (n->in[1] && n->in[1]->type != n->in[0]->type)
        return (units_kernel){"cuda_sparse_plain", MR_PARTITION, CUDA_SPARSE_PLAIN_ROWS};
    if (n->out->ne[1] <= CUDA_SPARSE_FEW_ROWS)
        return (units_kernel){type->few, CUDA_SPARSE_FLOAT_NEURONS, CUDA_SPARSE_FEW_ROWS};
    return (units_kernel){type->many, CUDA_SPARSE_FLOAT_NEURONS, CUDA_SPARSE_MANY_ROWS};
}

static mr_status plan_units(cuda_builder *b, const cuda_node *n, mr_err *err) {
    const units_kernel kernel = choose_units(n);
    int32_t n_neurons = n->in[0]->ne[1];
    cuda_sparse_units_args args = {.step = cuda_step_of(b),
                                   .rows = cuda_rows_of(n->out),
                                   .k = n->in[0]->ne[0],
                                   .n = n_neurons,
                                   .n_parts = mr_count_partitions(n_neurons),
                                   .matrices = {matrix_of(n->in[0]), matrix_of(n->in[1])},
                                   .unit = n->node->params.sparse.unit,
                                   .a = cuda_data(n->in[2]),
                                   .active = mr_active_at(cuda_data(n->in[3]), n_neurons),
                                   .y = cuda_data(n->out),
                                   .a_row_bytes = (uint32_t)n->in[2]->row_bytes,
                                   .y_row_bytes = (uint32_t)n->out->row_bytes};
    uint32_t n_groups = (uint32_t)(args.n_parts * (MR_PARTITION / kernel.neurons));
    const cuda_launch_desc launch = {kernel.name,         {n_groups, cuda_count_blocks(n->out->ne[1], kernel.rows)},
                                     CUDA_SPARSE_THREADS, &args,
                                     sizeof args,         0};
    return cuda_launch(b, &launch, err);
}

/* --- AXPY --------------------------------------------------------------------------------------------------------- */

static bool is_summand(const mr_tensor *tensors, int32_t id) {
    return id == MR_NO_TENSOR || cuda_is_rows(&tensors[id], MR_TYPE_F32);
}

static bool supports_axpy(const mr_tensor *tensors, const mr_node *node) {
    return is_neurons(&tensors[node->in[0]]) && cuda_is_rows(&tensors[node->in[1]], MR_TYPE_F32) &&
           is_summand(tensors, node->in[2]) && is_summand(tensors, node->in[3]) &&
           cuda_is_rows(&tensors[node->out], MR_TYPE_F32);
}

/* Partitions are computed side by side where the rows alone would leave the device idle. Places their sums. */
static mr_status place_partials(cuda_builder *b, cuda_axpy_args *a, int32_t n_rows, mr_err *err) {
    int64_t n_blocks = (int64_t)cuda_count_blocks(n_rows, CUDA_AXPY_ROWS) * a->n_tiles;
    size_t n_sums = (size_t)n_rows * (size_t)a->n_parts;
    if (a->n_parts < 2 || n_blocks >= cuda_processors(b) || (int64_t)a->n_tiles * a->n_parts > CUDA_MAX_GRID_Y)
        return MR_OK;
    size_t bytes = mr_round_up(n_sums * (size_t)a->k * sizeof *a->partials, CUDA_ALIGNMENT);
    void *memory;
    mr_status status = cuda_scratch(b, bytes + n_sums * sizeof *a->counts, &memory, err);
    if (status != MR_OK)
        return status;
    a->partials = memory;
    a->counts = (int32_t *)(void *)((uint8_t *)memory + bytes);
    return MR_OK;
}

static mr_status plan_axpy(cuda_builder *b, const cuda_node *n, mr_err *err) {
    const mr_tensor *w = n->in[0], *add = n->in[2], *start = n->in[3];
    const sparse_type *type = type_of(w->type);
    bool is_one = n->out->ne[1] == 1;
    cuda_axpy_args args = {.step = cuda_step_of(b),
                           .rows = cuda_rows_of(n->out),
                           .k = w->ne[0],
                           .n = w->ne[1],
                           .n_tiles = (int32_t)cuda_count_blocks(w->ne[0], CUDA_AXPY_COLUMNS),
                           .n_parts = mr_count_partitions(w->ne[1]),
                           .w = matrix_of(w),
                           .h = cuda_data(n->in[1]),
                           .start = cuda_data(start),
                           .add = cuda_data(add),
                           .y = cuda_data(n->out),
                           .h_row_bytes = (uint32_t)n->in[1]->row_bytes,
                           .start_row_bytes = start ? (uint32_t)start->row_bytes : 0,
                           .add_row_bytes = add ? (uint32_t)add->row_bytes : 0,
                           .y_row_bytes = (uint32_t)n->out->row_bytes};
    mr_status status = place_partials(b, &args, n->out->ne[1], err);
    uint32_t n_parts = args.partials ? (uint32_t)args.n_parts : 1;
    const cuda_launch_desc sums = {
        is_one ? type->axpy_one : type->axpy,
        {cuda_count_blocks(n->out->ne[1], is_one ? 1 : CUDA_AXPY_ROWS), (uint32_t)args.n_tiles * n_parts},
        CUDA_SPARSE_THREADS,
        &args,
        sizeof args,
        0};
    if (status == MR_OK)
        status = cuda_launch(b, &sums, err);
    if (status != MR_OK || !args.partials)
        return status;
    const cuda_launch_desc all = {"cuda_axpy_sum", .n_threads = CUDA_SPARSE_THREADS, .args = &args,
                                  .args_bytes = sizeof args};
    return cuda_launch_rows(b, all, cuda_count_blocks(w->ne[0], CUDA_SPARSE_THREADS), n->out, err);
}

const cuda_op cuda_op_relu = {.supports = supports_relu, .plan = plan_relu};
const cuda_op cuda_op_active = {.supports = supports_active, .plan = plan_active};
const cuda_op cuda_op_sparse_gate_up = {.supports = supports_units, .plan = plan_units};
const cuda_op cuda_op_axpy = {.supports = supports_axpy, .plan = plan_axpy};
