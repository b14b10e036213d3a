/* backends/cuda/cuda_program.c - makes a graph of the driver of each program, and launches it. Nodes are planned
 * twice: the first time says how much scratch memory they need, the second time makes the graph. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_device.h"
#include "backends/cuda/cuda_order.h"
#include "backends/cuda/cuda_scratch.h"
#include "engine/base/mem.h"

struct mr_program {
    cuda_graph_exec exec;
    cuda_address own_scratch; /* 0: none */
};

struct cuda_builder {
    cuda_backend *be;
    const mr_program_desc *desc;
    cuda_scratch_layout scratch;
    /* The rest is for the second time. */
    cuda_graph graph; /* NULL: scratch memory is being counted */
    cuda_graph_node begin;
    cuda_order *order;
    cuda_graph_node *ends;  /* [n_nodes] the last launch of each node */
    int32_t *before;        /* [n_nodes] */
    cuda_graph_node *waits; /* [n_nodes] what the next launch waits for */
    size_t n_waits;
    int32_t n_launches; /* of the node that is planned */
};

/* --- What the files of ops call ---------------------------------------------------------------------------------- */

const cuda_step *cuda_step_of(const cuda_builder *b) {
    return cuda_record_args(b->be).step;
}

int32_t cuda_processors(const cuda_builder *b) {
    return b->be->n_processors;
}

mr_status cuda_scratch(cuda_builder *b, size_t bytes, void **out, mr_err *err) {
    return cuda_scratch_take(&b->scratch, bytes, out, err);
}

mr_status cuda_shared(cuda_builder *b, const cuda_shared_key *key, size_t bytes, void **out, bool *out_is_first,
                      mr_err *err) {
    return cuda_scratch_share(&b->scratch, key, bytes, out, out_is_first, err);
}

mr_status cuda_launch(cuda_builder *b, const cuda_launch_desc *desc, mr_err *err) {
    const cuda_driver *d = b->be->driver;
    void *args = (void *)(uintptr_t)desc->args;
    cuda_kernel_node node = {.grid_x = desc->grid[0],
                             .grid_y = desc->grid[1],
                             .grid_z = 1,
                             .block_x = desc->n_threads,
                             .block_y = 1,
                             .block_z = 1,
                             .dynamic_shared_bytes = desc->shared_bytes,
                             .kernel_params = &args};
    cuda_graph_node made = NULL;
    MR_ASSERT(desc->args_bytes <= CUDA_MAX_ARGS);
    if (!b->graph)
        return MR_OK;
    mr_status status = cuda_kernels_find(b->be, desc, &node.function, err);
    if (status == MR_OK)
        status = cuda_check_new(b->be, d->graph_add_kernel_node(&made, b->graph, b->waits, b->n_waits, &node),
                                "add a kernel to a graph", err);
    b->waits[0] = made; /* the next launch of the node waits for this one */
    b->n_waits = 1;
    b->n_launches++;
    return status;
}

/* --- Nodes ------------------------------------------------------------------------------------------------------- */

static const mr_tensor *tensor_at(const cuda_builder *b, int32_t id) {
    return id == MR_NO_TENSOR ? NULL : &b->desc->tensors[id];
}

static cuda_node node_at(const cuda_builder *b, int32_t i) {
    const mr_node *node = &b->desc->nodes[i];
    cuda_node n = {.node = node, .out = tensor_at(b, node->out)};
    for (int k = 0; k < MR_MAX_INPUTS; k++)
        n.in[k] = tensor_at(b, node->in[k]);
    return n;
}

static cuda_use use_of(const mr_tensor *t, bool is_written) {
    return (cuda_use){(cuda_address)(uintptr_t)cuda_data(t), t->bytes, is_written};
}

/* Lists the memory that node i uses. An op without an output writes to its state. */
static int32_t list_uses(const cuda_builder *b, int32_t i, const cuda_node *n, cuda_use *out) {
    int32_t n_uses = cuda_scratch_uses(&b->scratch, i, out);
    if (n->out)
        out[n_uses++] = use_of(n->out, true);
    for (int k = 0; k < MR_MAX_INPUTS; k++)
        if (n->in[k])
            out[n_uses++] = use_of(n->in[k], !n->out && n->in[k]->storage == MR_STORAGE_STATE);
    return n_uses;
}

static mr_status plan_node(cuda_builder *b, int32_t i, mr_err *err) {
    const mr_node *nodes = b->desc->nodes;
    cuda_node n = node_at(b, i);
    cuda_scratch_begin(&b->scratch, i, i == 0 || nodes[i].group != nodes[i - 1].group);
    return cuda_op_find(nodes[i].op)->plan(b, &n, err);
}

/* Plans all nodes for the first time. */
static mr_status count_scratch(cuda_builder *b, size_t *out_bytes, mr_err *err) {
    mr_status status = cuda_scratch_init(&b->scratch, b->desc->n_nodes, err);
    for (int32_t i = 0; i < b->desc->n_nodes && status == MR_OK; i++)
        status = plan_node(b, i, err);
    return status == MR_OK ? cuda_scratch_bytes(&b->scratch, out_bytes, err) : status;
}

/* Adds the launches of node i to the graph. */
static mr_status add_node(cuda_builder *b, int32_t i, mr_err *err) {
    cuda_node n = node_at(b, i);
    cuda_use uses[CUDA_MAX_USES];
    int32_t n_before = cuda_order_add(b->order, uses, list_uses(b, i, &n, uses), b->before);
    b->waits[0] = b->begin;
    for (int32_t k = 0; k < n_before; k++)
        b->waits[k] = b->ends[b->before[k]];
    b->n_waits = n_before > 0 ? (size_t)n_before : 1;
    b->n_launches = 0;
    mr_status status = plan_node(b, i, err);
    if (status == MR_OK && b->n_launches == 0)
        status = mr_err_set(err, MR_E_INTERNAL, "%s has no launch", mr_op_name(n.node->op));
    b->ends[i] = b->waits[0];
    return status;
}

/* --- Programs ---------------------------------------------------------------------------------------------------- */

static mr_status make_graph(cuda_builder *b, cuda_graph_exec *out, mr_err *err) {
    cuda_backend *be = b->be;
    const cuda_driver *d = be->driver;
    cuda_begin_args args = cuda_record_args(be);
    cuda_launch_desc begin = {"cuda_begin", {1, 1}, CUDA_BEGIN_THREADS, &args, .args_bytes = sizeof args};
    mr_status status = cuda_check_new(be, d->graph_create(&b->graph, 0), "create a graph", err);
    if (status == MR_OK)
        status = cuda_launch(b, &begin, err);
    b->begin = b->waits[0];
    for (int32_t i = 0; i < b->desc->n_nodes && status == MR_OK; i++)
        status = add_node(b, i, err);
    if (status == MR_OK)
        status = cuda_check_new(be, d->graph_instantiate(out, b->graph, 0), "instantiate a graph", err);
    if (status == MR_OK)
        status = cuda_check_new(be, d->graph_upload(*out, be->stream), "upload a graph", err);
    return status;
}

/* Places the scratch memory: where the description says, or in memory of the program's own. */
static mr_status place_scratch(cuda_builder *b, size_t bytes, mr_program *p, mr_err *err) {
    const mr_program_desc *desc = b->desc;
    const cuda_buffer *buffer = (const cuda_buffer *)(const void *)desc->scratch;
    mr_status status = MR_OK;
    if (bytes > 0 && buffer)
        status = cuda_check_range(desc->scratch, desc->scratch_offset, bytes, err);
    else if (bytes > 0)
        status = cuda_memory_alloc(b->be, bytes, "scratch memory of a program", &p->own_scratch, err);
    cuda_scratch_place(&b->scratch, buffer ? buffer->address + desc->scratch_offset : p->own_scratch);
    return status;
}

static mr_status build(cuda_builder *b, mr_program *p, mr_err *err) {
    size_t n = (size_t)b->desc->n_nodes + 1, scratch_bytes = 0;
    b->ends = mr_alloc_array(n, sizeof(cuda_graph_node));
    b->before = mr_alloc_array(n, sizeof *b->before);
    b->waits = mr_alloc_array(n, sizeof(cuda_graph_node));
    if (!b->ends || !b->before || !b->waits)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a program of %d nodes", b->desc->n_nodes);
    mr_status status = cuda_order_create(b->desc->n_nodes, &b->order, err);
    if (status == MR_OK)
        status = count_scratch(b, &scratch_bytes, err);
    if (status == MR_OK)
        status = place_scratch(b, scratch_bytes, p, err);
    return status == MR_OK ? make_graph(b, &p->exec, err) : status;
}

mr_status cuda_program_scratch_bytes(mr_backend *base, const mr_program_desc *desc, size_t *out, mr_err *err) {
    cuda_builder b = {.be = (cuda_backend *)base, .desc = desc};
    mr_status status = count_scratch(&b, out, err);
    cuda_scratch_deinit(&b.scratch);
    return status;
}

mr_status cuda_program_create(mr_backend *base, const mr_program_desc *desc, mr_program **out, mr_err *err) {
    cuda_builder b = {.be = (cuda_backend *)base, .desc = desc};
    mr_status status = cuda_enter(b.be, err);
    if (status != MR_OK)
        return status;
    mr_program *p = mr_alloc(sizeof *p);
    status = p ? build(&b, p, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a program");
    if (b.graph)
        (void)b.be->driver->graph_destroy(b.graph);
    cuda_order_destroy(b.order);
    cuda_scratch_deinit(&b.scratch);
    mr_free(b.ends);
    mr_free(b.before);
    mr_free(b.waits);
    if (status == MR_OK)
        *out = p;
    else
        cuda_program_destroy(base, p);
    return status;
}

void cuda_program_destroy(mr_backend *base, mr_program *p) {
    cuda_backend *be = (cuda_backend *)base;
    if (!p)
        return;
    (void)be->driver->ctx_set_current(be->context);
    if (p->exec)
        (void)be->driver->graph_exec_destroy(p->exec);
    cuda_memory_free(be, p->own_scratch);
    mr_free(p);
}

mr_status cuda_submit(mr_backend *base, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    mr_status status = cuda_enter(be, err);
    if (status == MR_OK)
        status = cuda_record_close(be, run->n_rows, err);
    if (status == MR_OK)
        status = cuda_check(be, be->driver->graph_launch(program->exec, be->stream), "launch a graph", err);
    if (status == MR_OK)
        *out = cuda_record_launched(be);
    return status;
}
