/* worker/stage/stage_state.c - places the state of a stage on a backend, and changes it between graph runs. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/stage_state.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"

struct mr_stage_state {
    const mr_model_info *info;
    mr_layer_range range;
    mr_backends backends;
    int32_t home; /* index of the backend that holds keys, values and block table */
    mr_kv_desc desc;
    size_t kv_bytes;
    mr_kv_shape *shapes;   /* [layers] */
    mr_tensor *kv_tensors; /* [2 * layers]: keys of all layers, then values */
    mr_state_tensors tensors;
    mr_kv_store *kv;
    mr_buffer *table; /* memory of the block table */
};

static mr_backend *home_of(const mr_stage_state *s) {
    return s->backends.at[s->home];
}

static mr_status take_shapes(mr_stage_state *s, mr_err *err) {
    for (int32_t l = 0; l < s->desc.n_layers; l++) {
        const mr_layer_info *layer = mr_model_layer(s->info, s->range.first + l);
        s->shapes[l] = (mr_kv_shape){layer->n_kv_heads, layer->k_dim, layer->v_dim};
    }
    return mr_kv_store_bytes(&s->desc, &s->kv_bytes, err);
}

/* A graph with the attention node of one layer, to find out which backend supports attention. */
static mr_status make_attention(const mr_stage_state *s, int32_t layer, mr_graph **out, mr_err *err) {
    const mr_layer_info *m = mr_model_layer(s->info, layer);
    mr_tensor k, v, table;
    mr_status status = mr_kv_layer_describe(&s->desc, layer - s->range.first, &k, &v, err);
    if (status == MR_OK)
        status = mr_graph_create(1, 1, out, err);
    if (status != MR_OK)
        return status;
    mr_graph *g = *out;
    if (!mr_tensor_init(&table, "block_table", MR_TYPE_I32, 1, 1, MR_STORAGE_STATE, MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_INTERNAL, "a block table of one entry");
    mr_attention_desc attention = {
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .k_dim = m->k_dim,
        .v_dim = m->v_dim,
        .k_state = mr_graph_use(g, &k),
        .v_state = mr_graph_use(g, &v),
        .slots = mr_graph_input(g, "slots", MR_TYPE_I32, 1, MR_ROWS_STEP),
        .row_seq = mr_graph_input(g, "row_seq", MR_TYPE_I32, 1, MR_ROWS_STEP),
        .row_position = mr_graph_input(g, "positions", MR_TYPE_I32, 1, MR_ROWS_STEP),
        .block_table = mr_graph_use(g, &table),
        .window = m->window,
        .temperature = s->info->temperature,
        .sinks = MR_NO_TENSOR,
    };
    int32_t q = mr_graph_input(g, "q", MR_TYPE_F32, m->n_heads * m->k_dim, MR_ROWS_STEP);
    int32_t keys = mr_graph_input(g, "k", MR_TYPE_F32, m->n_kv_heads * m->k_dim, MR_ROWS_STEP);
    int32_t values = mr_graph_input(g, "v", MR_TYPE_F32, m->n_kv_heads * m->v_dim, MR_ROWS_STEP);
    mr_graph_attention(g, q, keys, values, &attention);
    return MR_OK;
}

/* MR_E_UNSUPPORTED: the backend does not support the attention of every layer. Layers like the one before are not
 * tried. */
static mr_status try_attention(const mr_stage_state *s, mr_backend *be, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t l = s->range.first; l < s->range.last && status == MR_OK; l++) {
        mr_graph *g = NULL;
        mr_graph_stats stats;
        if (l > s->range.first && s->info->shape_of[l] == s->info->shape_of[l - 1])
            continue;
        status = make_attention(s, l, &g, err);
        if (status == MR_OK)
            status = mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, err);
        mr_graph_destroy(g);
    }
    return status;
}

/* Keys and values live on the first backend that supports attention. */
static mr_status choose_home(mr_stage_state *s, mr_err *err) {
    mr_status status = MR_E_UNSUPPORTED;
    int32_t b = 0;
    for (; b < s->backends.n - 1 && status == MR_E_UNSUPPORTED; b++)
        status = try_attention(s, s->backends.at[b], err);
    s->home = status == MR_OK ? b - 1 : b;
    return status == MR_E_UNSUPPORTED ? MR_OK : status;
}

/* Describes the tensors without memory behind them. */
static mr_status describe_tensors(mr_stage_state *s, int32_t max_context, int32_t max_sequences, mr_err *err) {
    int32_t n = s->desc.n_layers, n_blocks = (max_context + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    mr_status status = MR_OK;
    for (int32_t l = 0; l < n && status == MR_OK; l++) {
        mr_tensor *k = &s->kv_tensors[l], *v = &s->kv_tensors[n + l];
        status = mr_kv_layer_describe(&s->desc, l, k, v, err);
        k->home = v->home = home_of(s);
    }
    if (status != MR_OK)
        return status;
    s->tensors.k = s->kv_tensors;
    s->tensors.v = s->kv_tensors + n;
    if (!mr_tensor_init(&s->tensors.block_table, "block_table", MR_TYPE_I32, n_blocks, max_sequences, MR_STORAGE_STATE,
                        MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_TOO_LONG, "block tables of %d tokens for %d sequences", max_context, max_sequences);
    s->tensors.block_table.home = home_of(s);
    return MR_OK;
}

mr_status mr_stage_state_create(const mr_stage_config *c, const mr_backends *backends, mr_stage_state **out,
                                mr_err *err) {
    size_t n_layers = (size_t)(c->range.last - c->range.first);
    mr_stage_state *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the state of a stage");
    s->info = c->info;
    s->range = c->range;
    s->backends = *backends;
    s->shapes = mr_alloc_array(n_layers, sizeof *s->shapes);
    s->kv_tensors = mr_alloc_array(2 * n_layers, sizeof *s->kv_tensors);
    s->desc = (mr_kv_desc){
        .n_layers = (int32_t)n_layers, .n_blocks = c->n_kv_blocks, .shapes = s->shapes, .type = c->kv_type};
    mr_status status =
        s->shapes && s->kv_tensors ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the state of a stage");
    if (status == MR_OK)
        status = take_shapes(s, err);
    if (status == MR_OK)
        status = choose_home(s, err);
    if (status == MR_OK)
        status = describe_tensors(s, c->max_context, c->max_sequences, err);
    if (status != MR_OK) {
        mr_stage_state_destroy(s);
        return status;
    }
    *out = s;
    return MR_OK;
}

void mr_stage_state_destroy(mr_stage_state *s) {
    if (!s)
        return;
    home_of(s)->ops->buffer_destroy(home_of(s), s->table);
    mr_kv_store_destroy(s->kv);
    mr_free(s->shapes);
    mr_free(s->kv_tensors);
    mr_free(s);
}

mr_status mr_stage_state_allocate(mr_stage_state *s, mr_err *err) {
    int32_t n = s->desc.n_layers;
    mr_backend *be = home_of(s);
    mr_status status = mr_kv_store_create(be, &s->desc, &s->kv, err);
    if (status == MR_OK)
        status = be->ops->buffer_create(be, s->tensors.block_table.bytes, &s->table, err);
    if (status != MR_OK)
        return status;
    s->tensors.block_table.buffer = s->table;
    for (int32_t l = 0; l < n; l++)
        mr_kv_store_layer(s->kv, l, &s->kv_tensors[l], &s->kv_tensors[n + l]);
    return MR_OK;
}

const mr_state_tensors *mr_stage_state_tensors(const mr_stage_state *s) {
    return &s->tensors;
}

size_t mr_stage_state_kv_bytes(const mr_stage_state *s, int32_t b) {
    return b == s->home ? s->kv_bytes : 0;
}

size_t mr_stage_state_table_bytes(const mr_stage_state *s, int32_t b) {
    return b == s->home ? s->tensors.block_table.bytes : 0;
}

mr_status mr_stage_state_set_blocks(mr_stage_state *s, int32_t slot, int32_t first, const int32_t *blocks, int32_t n,
                                    mr_err *err) {
    const mr_tensor *t = &s->tensors.block_table;
    mr_backend *be = home_of(s);
    mr_fence fence = 0;
    MR_ASSERT(slot >= 0 && slot < t->ne[1] && first >= 0 && n >= 0 && n <= t->ne[0] - first);
    if (n == 0)
        return MR_OK;
    size_t offset = t->offset + (size_t)slot * t->row_bytes + (size_t)first * sizeof *blocks;
    mr_status status = be->ops->set(be, t->buffer, offset, blocks, (size_t)n * sizeof *blocks, &fence, err);
    return status == MR_OK ? be->ops->wait(be, fence, MR_NEVER, err) : status;
}

mr_status mr_stage_state_copy_block(mr_stage_state *s, int32_t from, int32_t to, mr_err *err) {
    return mr_kv_store_copy(s->kv, from, to, err);
}
