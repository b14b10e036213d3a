/* engine/model/stage_graph.c - builds the graph of a layer range, from the inputs to the activations or logits. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/fmath.h"
#include "engine/base/top.h"
#include "engine/model/weights_internal.h"

/* Adds a weight to the graph, with its place on each backend that holds it. Returns MR_NO_TENSOR for a weight that the
 * file lacks. */
static int32_t use(mr_graph *g, const mr_weights *ws, const weight *w) {
    int32_t id = weight_exists(w) && w->is_mapped ? mr_graph_use(g, &w->tensor) : MR_NO_TENSOR;
    for (int32_t b = 0; weight_exists(w) && b < ws->backends.n; b++) {
        if (!w->at[b].is_used)
            continue;
        mr_tensor t = weight_instance(ws, w, b);
        if (id == MR_NO_TENSOR)
            id = mr_graph_use(g, &t);
        else
            mr_graph_use_also(g, id, &t);
    }
    if (w->op == MR_OP_MATMUL && weight_exists(w))
        mr_graph_matrix_source(g, id, w->data);
    return id;
}

static void add_inputs(mr_graph *g, const mr_weights *ws, mr_stage_io *io) {
    *io = (mr_stage_io){MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR,
                        MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR};
    if (weights_is_head(ws))
        io->ids = mr_graph_input(g, "ids", MR_TYPE_I32, 1, MR_ROWS_STEP);
    else
        io->x_in = mr_graph_input(g, "x", MR_TYPE_F32, ws->info->d_model, MR_ROWS_STEP);
    io->positions = mr_graph_input(g, "positions", MR_TYPE_I32, 1, MR_ROWS_STEP);
    io->slots = mr_graph_input(g, "slots", MR_TYPE_I32, 1, MR_ROWS_STEP);
    io->row_seq = mr_graph_input(g, "row_seq", MR_TYPE_I32, 1, MR_ROWS_STEP);
    if (weights_is_tail(ws)) {
        io->out_rows = mr_graph_input(g, "out_rows", MR_TYPE_I32, 1, MR_ROWS_OUT);
        io->hidden_rows = mr_graph_input(g, "hidden_rows", MR_TYPE_I32, 1, MR_ROWS_HIDDEN);
    }
}

/* factor 0 or 1: x as it is. */
static int32_t scale_if(mr_graph *g, int32_t x, float factor) {
    return factor == 0.0f || factor == 1.0f ? x : mr_graph_scale(g, x, factor);
}

/* Adds the output norm of the rows that the tensor rows lists. */
static int32_t add_output_norm(mr_graph *g, const mr_weights *ws, int32_t x, int32_t rows) {
    return mr_graph_rms_norm(g, mr_graph_take_rows(g, x, rows), use(g, ws, &ws->output_norm), ws->info->norm_eps);
}

/* What the layers of a stage share in its graph, on each backend that has layers; else MR_NO_TENSOR. */
typedef struct stage_ctx {
    const mr_weights *ws;
    const mr_stage_io *io;
    int32_t block_tables[MR_MAX_BACKENDS];
    int32_t rope_tables[MR_MAX_BACKENDS][MR_MODEL_MAX_ROPES];
} stage_ctx;

/* Layers on different backends compute their RoPE tables themselves, so that no step copies them. */
static stage_ctx stage_context(mr_graph *g, const mr_weights *ws, const mr_state_tensors *state,
                               const mr_stage_io *io) {
    stage_ctx ctx = {.ws = ws, .io = io};
    for (int32_t b = 0; b < ws->backends.n; b++) {
        ctx.block_tables[b] = state->block_tables[b] ? mr_graph_use(g, state->block_tables[b]) : MR_NO_TENSOR;
        for (int32_t i = 0; i < MR_MODEL_MAX_ROPES; i++)
            ctx.rope_tables[b][i] = MR_NO_TENSOR;
    }
    for (int32_t l = ws->range.first; l < ws->range.last; l++) {
        int32_t i = mr_model_layer(ws->info, l)->rope;
        int32_t *tables = ctx.rope_tables[mr_backends_of_layer(&ws->backends, l - ws->range.first)];
        if (i != MR_MODEL_NO_ROPE && tables[i] == MR_NO_TENSOR)
            tables[i] = mr_graph_rope_table(g, use(g, ws, &ws->rope_angles[i]), io->positions, ws->rope_magnitude[i]);
    }
    return ctx;
}

/* Layer idx of the stage. */
static layer_ctx layer_context(const stage_ctx *stage, int32_t idx, int32_t block_table) {
    const mr_weights *ws = stage->ws;
    const mr_model_info *m = ws->info;
    const mr_layer_info *l = mr_model_layer(m, ws->range.first + idx);
    layer_ctx ctx = {
        .layer = l,
        .eps = m->norm_eps,
        .rope_table = MR_NO_TENSOR,
        .attention = {.n_heads = l->n_heads,
                      .n_kv_heads = l->n_kv_heads,
                      .k_dim = l->k_dim,
                      .v_dim = l->v_dim,
                      /* IEEE 754 rounds square root and division exactly, so all machines get the same bits. */
                      .scale = m->attention_scale > 0 ? m->attention_scale : 1.0f / sqrtf((float)l->k_dim),
                      .window = l->window,
                      .temperature = m->temperature,
                      .slots = stage->io->slots,
                      .row_seq = stage->io->row_seq,
                      .row_position = stage->io->positions,
                      .block_table = block_table},
        .residual_scale = m->residual_scale,
        .glu = ws->arch->glu,
        .relu_unit = ws->arch->relu_unit,
        .sparse_threshold = m->sparse_threshold,
        .n_experts = m->n_experts,
        .n_experts_used = m->n_experts_used,
        .routing = m->routing,
        .latent = m->latent,
    };
    if (m->latent.k_dim > 0)
        ctx.attention.scale = m->ropes[0].score_factor / sqrtf((float)m->latent.k_dim);
    if (l->rope != MR_MODEL_NO_ROPE) {
        ctx.rope_table = stage->rope_tables[mr_backends_of_layer(&ws->backends, idx)][l->rope];
        ctx.rope =
            (mr_rope_desc){.head_dim = l->k_dim, .n_rot = m->ropes[l->rope].n_rot, .pairs = ws->arch->rope_pairs};
    }
    return ctx;
}

/* Adds the experts of a layer that a device holds. Returns false if it holds none. */
static bool use_held(mr_graph *g, const mr_weights *ws, int32_t layer, mr_experts_held *out) {
    int32_t ids[HELD_TENSORS], places[2], n = mr_weights_held_experts(ws, layer);
    for (int i = 0; i < HELD_TENSORS && n > 0; i++) {
        const mr_tensor t = held_tensor(ws, layer, i);
        ids[i] = t.name[0] ? mr_graph_use(g, &t) : MR_NO_TENSOR;
    }
    for (int side = 0; side < 2 && n > 0; side++) {
        const mr_tensor t = held_places(ws, layer, side);
        places[side] = mr_graph_use(g, &t);
    }
    if (n > 0)
        *out = (mr_experts_held){n, ids[0], ids[1], ids[2], ids[3], ids[4], ids[5], places[0], places[1]};
    return n > 0;
}

/* Whether first tokens are found for this stage: if a device computes the logits and can find them, and if they are
 * fewer bytes than the logits. In the host's memory the sampler reads logits where they are. */
static bool finds_top(const mr_weights *ws) {
    mr_tensor tensors[2];
    const mr_node node = {.op = MR_OP_TOP,
                          .in = {0, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR},
                          .out = 1};
    int32_t n_vocab = ws->info->vocab_size, b = 0;
    while (b < ws->backends.n - 1 && !ws->output.at[b].is_used)
        b++;
    mr_backend *be = ws->backends.at[b];
    mr_device_info device;
    be->ops->describe(be, &device);
    return !device.host_addressable && device.exact && (size_t)n_vocab * sizeof(float) > sizeof(mr_top) &&
           mr_tensor_init(&tensors[0], "logits", MR_TYPE_F32, n_vocab, 1, MR_STORAGE_OUTPUT, MR_ROWS_OUT) &&
           mr_tensor_init(&tensors[1], "top", MR_TYPE_I32, MR_TOP_COLUMNS, 1, MR_STORAGE_OUTPUT, MR_ROWS_TOP) &&
           be->ops->supports(be, tensors, &node);
}

/* Finds the choice of a layer among the nodes from first on, and makes it an output. */
static mr_layer_choice expose_choice(mr_graph *g, int32_t first) {
    int32_t n_nodes;
    const mr_node *nodes = mr_graph_nodes(g, &n_nodes);
    mr_layer_choice choice = {.tensor = MR_NO_TENSOR, .cold = MR_NO_TENSOR};
    for (int32_t i = first; i < n_nodes; i++) {
        const mr_node *node = &nodes[i];
        if (node->op == MR_OP_ROUTE) {
            choice.tensor = node->out;
            choice.n = node->params.experts.n;
            choice.n_used = node->params.experts.n_used;
        } else if (node->op == MR_OP_ACTIVE && choice.tensor == MR_NO_TENSOR) {
            choice.tensor = node->out;
            choice.is_neurons = true;
            choice.n = mr_graph_tensor(g, node->in[0])->ne[0];
            choice.n_hot = node->params.sparse.n > 0 ? node->params.sparse.n : choice.n;
        } else if (node->op == MR_OP_ACTIVE) {
            choice.cold = node->out;
        } else {
            continue;
        }
        mr_graph_output(g, node->out);
    }
    return choice;
}

mr_status mr_stage_graph_build(const mr_weights *ws, const mr_state_tensors *state, const mr_stage_shape *shape,
                               mr_graph **out, mr_stage_io *out_io, mr_err *err) {
    mr_graph *g;
    mr_status status = mr_graph_create(shape->max_rows, shape->max_out_rows, &g, err);
    if (status != MR_OK)
        return status;
    mr_stage_io io;
    add_inputs(g, ws, &io);
    int32_t x = weights_is_head(ws) ? mr_graph_embed(g, use(g, ws, &ws->token_embd), io.ids) : io.x_in;
    if (weights_is_head(ws))
        x = scale_if(g, x, ws->info->embedding_scale);

    stage_ctx stage = stage_context(g, ws, state, &io);
    for (int32_t l = 0; l < ws->range.last - ws->range.first; l++) {
        layer_ctx ctx = layer_context(&stage, l, stage.block_tables[state->home[l]]);
        int32_t w[LAYER_SLOTS], n_nodes;
        (void)mr_graph_nodes(g, &n_nodes);
        for (int s = 0; s < LAYER_SLOTS; s++)
            w[s] = use(g, ws, &ws->layers[l][s]);
        mr_experts_held held;
        if (use_held(g, ws, l, &held))
            ctx.held = &held;
        ctx.attention.k_state = mr_graph_use(g, &state->k[l]);
        ctx.attention.v_state = mr_graph_use(g, &state->v[l]);
        x = ws->arch->layer(g, &ctx, w, x);
        if (shape->choices && shape->only_shared_choices && !ctx.held)
            shape->choices[l] = (mr_layer_choice){.tensor = MR_NO_TENSOR, .cold = MR_NO_TENSOR};
        else if (shape->choices)
            shape->choices[l] = expose_choice(g, n_nodes);
    }
    if (weights_is_tail(ws)) {
        io.hidden = add_output_norm(g, ws, x, io.hidden_rows);
        mr_graph_output(g, io.hidden);
        x = add_output_norm(g, ws, x, io.out_rows);
        x = mr_graph_matmul(g, use(g, ws, &ws->output), x, MR_NO_TENSOR, MR_NO_TENSOR);
        io.logits = scale_if(g, x, ws->info->logit_scale);
        mr_graph_output(g, io.logits);
        if (finds_top(ws)) {
            io.top = mr_graph_top(g, io.logits);
            mr_graph_output(g, io.top);
        }
    } else {
        io.x_out = x;
        mr_graph_output(g, x);
    }
    *out = g;
    *out_io = io;
    return MR_OK;
}
