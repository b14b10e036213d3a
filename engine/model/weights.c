/* engine/model/weights.c - the weights of a layer range: chooses the backends that hold each tensor, and adds up the
 * bytes. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "engine/model/weights_internal.h"

mr_status weights_visit(mr_weights *ws, weight_visitor *visit, void *ctx, mr_err *err) {
    weight *const others[WEIGHTS_OUTSIDE_LAYERS] = {&ws->token_embd, &ws->output_norm, &ws->output, &ws->rope_angles[0],
                                                    &ws->rope_angles[1]};
    mr_status status = MR_OK;
    for (int i = 0; i < WEIGHTS_OUTSIDE_LAYERS && status == MR_OK; i++)
        if (weight_exists(others[i]))
            status = visit(ws, others[i], ctx, err);
    for (int32_t l = 0; l < ws->range.last - ws->range.first; l++)
        for (int s = 0; s < LAYER_SLOTS && status == MR_OK; s++)
            if (weight_exists(&ws->layers[l][s]))
                status = visit(ws, &ws->layers[l][s], ctx, err);
    return status;
}

static mr_device_info describe(const mr_weights *ws, int32_t b) {
    mr_device_info device;
    ws->backends.at[b]->ops->describe(ws->backends.at[b], &device);
    return device;
}

/* Bytes of the tensor on backend b. MR_E_UNSUPPORTED: the backend has no layout for the matrix. */
static mr_status bytes_on(const mr_weights *ws, const weight *w, int32_t b, size_t *out, mr_err *err) {
    const mr_tensor *t = &w->tensor;
    mr_backend *be = ws->backends.at[b];
    *out = t->bytes;
    if (t->storage != MR_STORAGE_WEIGHT)
        return MR_OK;
    mr_status status = be->ops->weight_bytes(be, t->type, t->ne[0], t->ne[1] / w->n_matrices, out, err);
    if (status == MR_OK && !mr_mul_size(*out, (size_t)w->n_matrices, out))
        status = mr_err_set(err, MR_E_TOO_LONG, "%d matrices are too large", w->n_matrices);
    return status == MR_OK ? MR_OK : mr_err_prefix(err, "tensor '%s'", t->name);
}

/* The tensors of a node that reads a matrix or table, each with one row of the step. */
enum { PROBE_MATRIX, PROBE_X, PROBE_RESULT, PROBE_LIST, PROBE_TENSORS };

typedef struct probe_shape {
    mr_type x_type;
    int64_t x_columns, result_columns;
    mr_row_count result_rows;
    int64_t n_list; /* integers of the list of experts' rows or of active neurons */
} probe_shape;

static probe_shape probe_shape_of(const mr_weights *ws, const weight *w) {
    int32_t columns = w->tensor.ne[0], rows = w->tensor.ne[1];
    mr_type type = mr_type_activation(w->tensor.type);
    switch (w->op) {
    case MR_OP_EMBED:
        return (probe_shape){MR_TYPE_I32, 1, columns, MR_ROWS_STEP, 1};
    case MR_OP_HEAD_MATMUL:
        return (probe_shape){MR_TYPE_F32, (int64_t)columns * w->n_matrices, rows, MR_ROWS_STEP, 1};
    case MR_OP_EXPERT_MATMUL:
        return (probe_shape){type, columns, rows / w->n_matrices, MR_ROWS_SLOTS,
                             w->n_matrices + 1 + 2 * (int64_t)ws->info->n_experts_used};
    case MR_OP_SPARSE_GATE_UP:
        return (probe_shape){type, columns, rows, MR_ROWS_STEP, mr_active_ints(rows, 1)};
    case MR_OP_AXPY:
        return (probe_shape){MR_TYPE_F32, rows, columns, MR_ROWS_STEP, 1};
    default:
        return (probe_shape){type, columns, rows, MR_ROWS_STEP, 1};
    }
}

/* Sets the inputs behind the matrix, and the parameters. */
static void fill_probe(const mr_weights *ws, const weight *w, mr_node *node) {
    node->in[1] = PROBE_X;
    if (w->op == MR_OP_HEAD_MATMUL)
        node->params.heads.n = w->n_matrices;
    if (w->op == MR_OP_EXPERT_MATMUL) {
        node->params.experts.n = w->n_matrices;
        node->params.experts.n_used = ws->info->n_experts_used;
        node->in[2] = PROBE_LIST;
    }
    if (w->op == MR_OP_SPARSE_GATE_UP) {
        node->params.sparse.unit = ws->arch->relu_unit;
        node->in[1] = ws->arch->relu_unit == MR_RELU_ALONE ? MR_NO_TENSOR : PROBE_MATRIX; /* up has gate's shape */
        node->in[2] = PROBE_X;
        node->in[3] = PROBE_LIST;
    }
}

/* Returns false if a size overflows. */
static bool make_probe(const mr_weights *ws, const weight *w, mr_tensor t[PROBE_TENSORS], mr_node *node) {
    const probe_shape shape = probe_shape_of(ws, w);
    int32_t n_used = ws->info->n_experts_used;
    *node = (mr_node){.op = w->op, .out = PROBE_RESULT};
    node->in[0] = PROBE_MATRIX;
    for (int k = 1; k < MR_MAX_INPUTS; k++)
        node->in[k] = MR_NO_TENSOR;
    fill_probe(ws, w, node);
    t[PROBE_MATRIX] = w->tensor;
    return mr_tensor_init(&t[PROBE_X], "x", shape.x_type, shape.x_columns, 1, MR_STORAGE_WORK, MR_ROWS_STEP) &&
           mr_tensor_init(&t[PROBE_RESULT], "y", MR_TYPE_F32, shape.result_columns, n_used > 0 ? n_used : 1,
                          MR_STORAGE_WORK, shape.result_rows) &&
           mr_tensor_init(&t[PROBE_LIST], "list", MR_TYPE_I32, shape.n_list, 1, MR_STORAGE_WORK, MR_ROWS_FIXED);
}

/* Whether backend b runs the op that reads the matrix. Products are not asked about: the graph shares them out. */
static bool runs_op(const mr_weights *ws, const weight *w, int32_t b) {
    mr_tensor t[PROBE_TENSORS];
    mr_node node;
    mr_backend *be = ws->backends.at[b];
    return w->op == MR_OP_MATMUL || (make_probe(ws, w, t, &node) && be->ops->supports(be, t, &node));
}

bool weights_fit(const mr_weights *ws, const weight *w, int32_t b) {
    size_t bytes;
    return bytes_on(ws, w, b, &bytes, NULL) == MR_OK && runs_op(ws, w, b);
}

/* The backend that holds the tensor: that of its layer, or the last one. The host's memory has one copy of a vector. */
static int32_t choose_home(const mr_weights *ws, const weight *w) {
    int32_t last = ws->backends.n - 1;
    bool fits = weight_is_matrix(w) ? weights_fit(ws, w, w->home) : !describe(ws, w->home).host_addressable;
    return fits ? w->home : last;
}

static bool has_layers(const mr_weights *ws, int32_t b) {
    bool has = false;
    for (int32_t l = 0; l < ws->range.last - ws->range.first; l++)
        has = has || mr_backends_of_layer(&ws->backends, l) == b;
    return has;
}

/* Whether backend b holds the tensor, too: matrices of the last backend go to backends that need no copy of them,
 * vectors to the last backend beside their home, and constants to each device with layers, so that no step copies
 * them. */
static bool is_wanted(const mr_weights *ws, const weight *w, int32_t home, int32_t b) {
    int32_t last = ws->backends.n - 1;
    mr_device_info device = describe(ws, b);
    size_t bytes;
    if (w->op == MR_OP_MATMUL)
        return home == last && device.keeps_source && bytes_on(ws, w, b, &bytes, NULL) == MR_OK;
    return !weight_is_matrix(w) && (b == last || (w->values && !device.host_addressable && has_layers(ws, b)));
}

mr_status weights_take(mr_weights *ws, int32_t part, int32_t b, size_t bytes, size_t *out_offset, mr_err *err) {
    size_t whole = mr_round_up(bytes, describe(ws, b).alignment);
    weight_part *p = &ws->parts[part_on(ws, part, b)];
    *out_offset = p->bytes[b];
    if (mr_add_size(ws->bytes[b], whole, &ws->bytes[b])) {
        p->bytes[b] += whole;
        return MR_OK;
    }
    return mr_err_set(err, MR_E_TOO_LONG, "the weights of layers %d to %d are too large", ws->range.first,
                      ws->range.last);
}

/* Notes which part each tensor belongs to. */
static void assign_parts(mr_weights *ws) {
    ws->token_embd.part = PART_EMBEDDING - PART_CONSTANTS;
    ws->output_norm.part = ws->output.part = PART_OUTPUT - PART_CONSTANTS;
    for (int32_t l = 0; l < ws->range.last - ws->range.first; l++)
        for (int s = 0; s < LAYER_SLOTS; s++)
            ws->layers[l][s].part = PARTS_OUTSIDE_LAYERS + l;
}

static mr_status assign_places(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    (void)ctx;
    int32_t last = ws->backends.n - 1, home = choose_home(ws, w);
    w->is_mapped = weight_is_matrix(w) && home == last && (w->op == MR_OP_EMBED ? ws->can_map : ws->map);
    if (w->is_mapped) {
        w->tensor.storage = MR_STORAGE_FILE;
        return MR_OK;
    }
    for (int32_t b = 0; b <= last; b++) {
        weight_place *at = &w->at[b];
        if (b != home && !is_wanted(ws, w, home, b))
            continue;
        mr_status status = bytes_on(ws, w, b, &at->bytes, err);
        if (status == MR_OK)
            status = weights_take(ws, w->part, b, at->bytes, &at->offset, err);
        if (status != MR_OK)
            return status;
        at->is_used = true;
        ws->parts[part_on(ws, w->part, b)].n_on[b]++;
    }
    ws->parts[w->part].n_tensors++;
    return MR_OK;
}

mr_status mr_weights_create(const mr_weights_desc *desc, const mr_backends *backends, mr_weights **out, mr_err *err) {
    mr_layer_range range = desc->range;
    const mr_model_info *info = desc->info;
    if (range.first < 0 || range.first >= range.last || range.last > info->n_layers)
        return mr_err_set(err, MR_E_INVALID, "layers %d to %d of a model with %d", range.first, range.last,
                          info->n_layers);
    mr_weights *ws = mr_alloc(sizeof *ws);
    if (!ws)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the weights' table");
    ws->gguf = desc->gguf;
    ws->info = info;
    ws->backends = *backends;
    ws->backend = backends->at[backends->n - 1];
    ws->range = range;
    ws->max_context = desc->max_context;
    ws->can_map = describe(ws, backends->n - 1).host_addressable;
    ws->map = ws->can_map && desc->map;
    ws->expert_order = desc->expert_order;
    ws->store = desc->store;
    size_t n_layers = (size_t)(range.last - range.first);
    ws->layers = mr_alloc_array(n_layers, sizeof *ws->layers);
    ws->held = mr_alloc_array(n_layers, sizeof *ws->held);
    ws->parts = mr_alloc_array(PARTS_OUTSIDE_LAYERS + n_layers, sizeof *ws->parts);
    mr_status status = ws->layers && ws->held && ws->parts
                           ? mr_arch_find(info->arch, &ws->arch, err)
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the weights' table");
    if (status == MR_OK)
        status = weights_find(ws, err);
    if (status == MR_OK)
        assign_parts(ws);
    if (status == MR_OK)
        status = weights_visit(ws, assign_places, NULL, err);
    if (status == MR_OK)
        status = held_place(ws, err);
    if (status != MR_OK) {
        mr_weights_destroy(ws);
        return status;
    }
    *out = ws;
    return MR_OK;
}

void mr_weights_destroy(mr_weights *ws) {
    if (!ws)
        return;
    parts_destroy(ws);
    ws->backend->ops->buffer_destroy(ws->backend, ws->mapped);
    held_destroy(ws);
    mr_free(ws->layers);
    for (int32_t i = 0; i < MR_MODEL_MAX_ROPES; i++)
        mr_free(ws->rope_angles[i].values);
    mr_free(ws);
}

size_t mr_weights_bytes(const mr_weights *ws) {
    size_t bytes = 0;
    for (int32_t b = 0; b < ws->backends.n; b++)
        bytes += ws->bytes[b];
    return bytes;
}

size_t mr_weights_bytes_on(const mr_weights *ws, int32_t b) {
    return ws->bytes[b];
}

static void keep_larger(const mr_weights *ws, const weight *w, mr_type type, const mr_gguf_tensor **best) {
    bool is_on_last = weight_exists(w) && (w->is_mapped || w->at[ws->backends.n - 1].is_used);
    if (is_on_last && w->op == MR_OP_MATMUL && w->source->type == type && (!*best || w->source->bytes > (*best)->bytes))
        *best = w->source;
}

const mr_gguf_tensor *mr_weights_largest(const mr_weights *ws, mr_type type) {
    const mr_gguf_tensor *best = NULL;
    keep_larger(ws, &ws->output, type, &best);
    for (int32_t l = 0; l < ws->range.last - ws->range.first; l++)
        for (int s = 0; s < LAYER_SLOTS; s++)
            keep_larger(ws, &ws->layers[l][s], type, &best);
    return best;
}

mr_tensor weight_instance(const mr_weights *ws, const weight *w, int32_t b) {
    mr_tensor t = w->tensor;
    t.bytes = w->at[b].bytes;
    t.offset = w->at[b].offset;
    t.buffer = part_buffer(ws, w->part, b);
    t.home = ws->backends.at[b];
    return t;
}
