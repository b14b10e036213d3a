/* backends/cuda/cuda_attention.c - plans ATTENTION: chooses the version of the kernel, and plans the memory of its work
 * list and of the states of split runs. Layers with the same window and shape share one list, which the first of them
 * makes, and all layers share the memory of the states. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_attention.h"
#include "backends/cuda/cuda_kv.h"
#include "engine/base/mem.h"

enum {
    BLOCKS_PER_PROCESSOR = 4,
    STATE_BYTES = 4 << 20, /* most bytes of the states */
};

typedef struct version {
    int32_t k_dim, v_dim, n_queries; /* most elements of keys and values; most queries of a unit */
    const char *f16, *f32, *q8_0;    /* kernels */
} version;
#define SHAPE(k, v, queries)                                                                                           \
    {k,                                                                                                                \
     v,                                                                                                                \
     (queries)*CUDA_ATTENTION_WARPS,                                                                                   \
     "cuda_attention_f16_" #k,                                                                                         \
     "cuda_attention_f32_" #k,                                                                                         \
     "cuda_attention_q8_0_" #k},
static const version VERSIONS[] = {
#include "backends/cuda/kernels/cuda_attention.def"
};
#undef SHAPE

/* The smallest version that is large enough. */
static const version *version_of(int32_t k_dim, int32_t v_dim) {
    const version *v = VERSIONS;
    while (v->k_dim < k_dim || v->v_dim < v_dim)
        v++;
    return v;
}

static bool is_list(const mr_tensor *t) {
    return t->type == MR_TYPE_I32 && t->ne[0] == 1;
}

static bool supports(const mr_tensor *tensors, const mr_node *n) {
    const mr_tensor *q = &tensors[n->in[0]], *k = &tensors[n->in[1]], *v = &tensors[n->in[2]];
    const mr_tensor *sinks = n->in[6] == MR_NO_TENSOR ? NULL : &tensors[n->in[6]];
    int32_t n_heads = n->params.attention.n_heads;
    return q->type == MR_TYPE_F32 && q->ne[0] == n_heads * n->params.attention.k_dim && k->type == v->type &&
           cuda_kv_is_supported(k, n->params.attention.k_dim) && cuda_kv_is_supported(v, n->params.attention.v_dim) &&
           is_list(&tensors[n->in[3]]) && is_list(&tensors[n->in[4]]) && tensors[n->in[5]].type == MR_TYPE_I32 &&
           (!sinks || sinks->type == MR_TYPE_F32) && tensors[n->out].type == MR_TYPE_F32 &&
           n_heads % n->params.attention.n_kv_heads == 0;
}

static cuda_attention_args args_of(const cuda_builder *b, const cuda_node *n) {
    const mr_tensor *q = n->in[0], *k = n->in[1], *v = n->in[2], *table = n->in[5];
    int32_t k_dim = n->node->params.attention.k_dim, v_dim = n->node->params.attention.v_dim;
    return (cuda_attention_args){
        .step = cuda_step_of(b),
        .rows = cuda_rows_of(n->out),
        .q = cuda_data(q),
        .k_store = cuda_data(k),
        .v_store = cuda_data(v),
        .out = cuda_data(n->out),
        .q_row_bytes = (uint32_t)q->row_bytes,
        .out_row_bytes = (uint32_t)n->out->row_bytes,
        .k_block_bytes = k->row_bytes,
        .v_block_bytes = v->row_bytes,
        .k_head_bytes = cuda_kv_head_bytes(k->type, k_dim),
        .v_head_bytes = cuda_kv_head_bytes(v->type, v_dim),
        .row_seq = (const int32_t *)(const void *)cuda_data(n->in[3]),
        .row_position = (const int32_t *)(const void *)cuda_data(n->in[4]),
        .block_table = (const int32_t *)(const void *)cuda_data(table),
        .sinks = (const float *)(const void *)cuda_data(n->in[6]),
        .table_stride = (int32_t)(table->row_bytes / sizeof(int32_t)),
        .n_heads = n->node->params.attention.n_heads,
        .n_kv_heads = n->node->params.attention.n_kv_heads,
        .k_dim = k_dim,
        .v_dim = v_dim,
        .window = n->node->params.attention.window,
        .scale = n->node->params.attention.scale,
        .soft_cap = n->node->params.attention.soft_cap,
        .temperature_growth = n->node->params.attention.temperature.growth,
        .temperature_length = n->node->params.attention.temperature.length,
    };
}

/* How the heads of a KV head, and the rows of a run, are cut into units. */
static void cut(cuda_attention_args *a, int32_t n_queries) {
    int32_t group = a->n_heads / a->n_kv_heads;
    a->n_units_each = (group + n_queries - 1) / n_queries;
    a->unit_heads = (group + a->n_units_each - 1) / a->n_units_each;
    a->n_units_each = (group + a->unit_heads - 1) / a->unit_heads;
    a->unit_rows = n_queries / a->unit_heads;
}

/* Kinds of memory that nodes share. */
enum { SHARED_LIST = 1, SHARED_STATES };

/* Two nodes with the same key have the same work list: it follows from these numbers and the rows of a step. */
static cuda_shared_key list_key(const cuda_node *n, const cuda_attention_args *a) {
    return (cuda_shared_key){{SHARED_LIST, n->node->in[3], n->node->in[4], a->rows.kind, n->out->ne[1], a->window,
                              a->unit_rows, a->n_kv_heads * a->n_units_each, a->n_blocks, a->max_slots}};
}

/* Places the work list, which nodes of the same kind share, and the states, which all nodes share. max_parts: most
 * partitions of a sequence. */
static mr_status place(cuda_builder *b, const cuda_node *n, cuda_attention_args *a, size_t max_parts,
                       bool *out_makes_list, mr_err *err) {
    const cuda_shared_key states_key = {{SHARED_STATES}};
    size_t max_rows = (size_t)n->out->ne[1], most_slots = max_rows * max_parts;
    size_t slot_bytes = (size_t)a->n_heads * (size_t)(a->v_dim + CUDA_ATTENTION_SUMS) * sizeof(float);
    size_t n_units = (size_t)a->n_kv_heads * (size_t)a->n_units_each;
    size_t n_slots = STATE_BYTES / slot_bytes < most_slots ? STATE_BYTES / slot_bytes : most_slots;
    n_slots = max_parts > 1 ? n_slots : 0;
    size_t done = sizeof *a->work + (max_rows + n_slots) * sizeof *a->whole;
    void *list = NULL, *states = NULL;
    bool is_first;
    a->max_slots = (int32_t)n_slots;
    const cuda_shared_key key = list_key(n, a);
    mr_status status = cuda_shared(b, &key, done + n_slots * n_units * sizeof *a->done, &list, out_makes_list, err);
    if (status == MR_OK && n_slots > 0)
        status = cuda_shared(b, &states_key, n_slots * slot_bytes, &states, &is_first, err);
    if (status != MR_OK)
        return status;
    a->work = list;
    a->whole = (cuda_attention_entry *)(void *)((uint8_t *)list + sizeof *a->work);
    a->split = a->whole + max_rows;
    a->done = (int32_t *)(void *)((uint8_t *)list + done);
    a->states = states;
    return MR_OK;
}

static mr_status plan(cuda_builder *b, const cuda_node *n, mr_err *err) {
    cuda_attention_args args = args_of(b, n);
    const version *v = version_of(args.k_dim, args.v_dim);
    mr_type type = n->in[1]->type;
    int32_t partition_blocks = CUDA_PARTITION / MR_KV_BLOCK, max_blocks = n->in[5]->ne[0];
    args.n_blocks = cuda_processors(b) * BLOCKS_PER_PROCESSOR;
    cut(&args, v->n_queries);
    bool makes_list = false;
    mr_status status =
        place(b, n, &args, (size_t)((max_blocks + partition_blocks - 1) / partition_blocks), &makes_list, err);
    if (status != MR_OK)
        return status;
    cuda_launch_desc list = {.kernel = "cuda_attention_list",
                             .grid = {1, 1},
                             .n_threads = CUDA_ATTENTION_LIST_THREADS,
                             .args = &args,
                             .args_bytes = sizeof args};
    cuda_launch_desc attend = {.kernel = type == MR_TYPE_F16   ? v->f16
                                         : type == MR_TYPE_F32 ? v->f32
                                                               : v->q8_0,
                               .grid = {(uint32_t)args.n_blocks, 1},
                               .n_threads = CUDA_ATTENTION_THREADS,
                               .args = &args,
                               .args_bytes = sizeof args};
    if (makes_list)
        status = cuda_launch(b, &list, err);
    return status == MR_OK ? cuda_launch(b, &attend, err) : status;
}

const cuda_op cuda_op_attention = {.supports = supports, .plan = plan};
