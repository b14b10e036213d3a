/* worker/stage/stage.c - builds a stage from its config and runs it. Creation is in two parts: `describe` loads
 * nothing, so that mr_stage_measure can answer before any memory is taken, and mr_stage_create loads. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/stage.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/graph/debug.h"
#include "worker/stage/products.h"

enum { MAX_BUCKETS = 16 };

/* A graph for up to max_rows rows: 1, 2, 4 ... */
typedef struct bucket {
    int32_t max_rows;
    mr_graph *graph;
    mr_stage_io io;
} bucket;

struct mr_stage {
    mr_stage_config config;
    mr_synthetic synthetic; /* config.synthetic points here, or is NULL */
    mr_backends backends;
    mr_backend *kv_backend; /* the backend that holds keys, values and block table */
    mr_weights *weights;
    mr_kv_store *kv;
    mr_buffer *work[MR_MAX_BACKENDS]; /* shared by all buckets, which never run at the same time */
    size_t work_bytes[MR_MAX_BACKENDS];
    mr_buffer *table;       /* memory of the block table */
    mr_kv_shape *kv_shapes; /* [layers] */
    mr_tensor *kv_tensors;  /* [2 * layers]: keys of all layers, then values */
    mr_stage_state state;
    bucket buckets[MAX_BUCKETS];
    int32_t n_buckets;
    bool reuses_graphs;
    const bucket *last; /* the bucket of the last run */
    mr_step_rows rows;
    int32_t *row_arrays; /* memory of the arrays in rows */
    mr_stage_sizes sizes;
};

static int32_t blocks_of(int32_t tokens) {
    return (tokens + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
}

static mr_status take_kv_shapes(mr_stage *s, mr_err *err) {
    mr_layer_range range = s->config.range;
    s->kv_shapes = mr_alloc_array((size_t)(range.last - range.first), sizeof *s->kv_shapes);
    if (!s->kv_shapes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a stage");
    for (int32_t l = range.first; l < range.last; l++) {
        const mr_layer_info *layer = mr_model_layer(s->config.info, l);
        s->kv_shapes[l - range.first] = (mr_kv_shape){layer->n_kv_heads, layer->k_dim, layer->v_dim};
    }
    return MR_OK;
}

static mr_kv_desc kv_desc(const mr_stage *s) {
    const mr_stage_config *c = &s->config;
    return (mr_kv_desc){
        .n_layers = c->range.last - c->range.first,
        .n_blocks = c->n_kv_blocks,
        .shapes = s->kv_shapes,
        .type = c->kv_type,
    };
}

/* A graph with the attention node of one layer, to find out which backend supports attention. */
static mr_status make_attention(const mr_stage *s, int32_t layer, mr_graph **out, mr_err *err) {
    const mr_layer_info *m = mr_model_layer(s->config.info, layer);
    mr_kv_desc desc = kv_desc(s);
    mr_tensor k, v, table;
    mr_status status = mr_kv_layer_describe(&desc, layer - s->config.range.first, &k, &v, err);
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
        .temperature = s->config.info->temperature,
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
static mr_status try_attention(const mr_stage *s, mr_backend *be, mr_err *err) {
    const mr_model_info *m = s->config.info;
    mr_layer_range range = s->config.range;
    mr_status status = MR_OK;
    for (int32_t l = range.first; l < range.last && status == MR_OK; l++) {
        mr_graph *g = NULL;
        mr_graph_stats stats;
        if (l > range.first && m->shape_of[l] == m->shape_of[l - 1])
            continue;
        status = make_attention(s, l, &g, err);
        if (status == MR_OK)
            status = mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, err);
        mr_graph_destroy(g);
    }
    return status;
}

/* Keys and values live on the first backend that supports attention. */
static mr_status choose_kv_backend(mr_stage *s, mr_err *err) {
    mr_status status = MR_E_UNSUPPORTED;
    int32_t b = 0;
    for (; b < s->backends.n - 1 && status == MR_E_UNSUPPORTED; b++)
        status = try_attention(s, s->backends.at[b], err);
    s->kv_backend = s->backends.at[status == MR_OK ? b - 1 : b];
    return status == MR_E_UNSUPPORTED ? MR_OK : status;
}

/* Describes the state tensors without memory behind them. */
static mr_status describe_state(mr_stage *s, mr_err *err) {
    int32_t n = s->config.range.last - s->config.range.first;
    mr_kv_desc desc = kv_desc(s);
    mr_status status = MR_OK;
    s->kv_tensors = mr_alloc_array(2 * (size_t)n, sizeof *s->kv_tensors);
    if (!s->kv_tensors)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a stage");
    for (int32_t l = 0; l < n && status == MR_OK; l++) {
        mr_tensor *k = &s->kv_tensors[l], *v = &s->kv_tensors[n + l];
        status = mr_kv_layer_describe(&desc, l, k, v, err);
        k->home = v->home = s->kv_backend;
    }
    if (status != MR_OK)
        return status;
    s->state.k = s->kv_tensors;
    s->state.v = s->kv_tensors + n;
    if (!mr_tensor_init(&s->state.block_table, "block_table", MR_TYPE_I32, blocks_of(s->config.max_context),
                        s->config.max_sequences, MR_STORAGE_STATE, MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_TOO_LONG, "block tables of %d tokens for %d sequences", s->config.max_context,
                          s->config.max_sequences);
    s->state.block_table.home = s->kv_backend;
    return MR_OK;
}

static mr_status allocate_state(mr_stage *s, mr_err *err) {
    mr_kv_desc desc = kv_desc(s);
    mr_status status = mr_kv_store_create(s->kv_backend, &desc, &s->kv, err);
    if (status == MR_OK)
        status = s->kv_backend->ops->buffer_create(s->kv_backend, s->state.block_table.bytes, &s->table, err);
    if (status != MR_OK)
        return status;
    s->state.block_table.buffer = s->table;
    for (int32_t l = 0; l < desc.n_layers; l++)
        mr_kv_store_layer(s->kv, l, &s->kv_tensors[l], &s->kv_tensors[desc.n_layers + l]);
    return MR_OK;
}

/* Builds and plans the graph of one bucket. */
static mr_status build_bucket(mr_stage *s, int32_t max_rows, bucket *out, mr_err *err) {
    int32_t max_out = s->config.max_out_rows < max_rows ? s->config.max_out_rows : max_rows;
    mr_stage_shape shape = {.max_rows = max_rows, .max_out_rows = max_out};
    mr_graph_stats stats;
    out->max_rows = max_rows;
    mr_status status = mr_stage_graph_build(s->weights, &s->state, &shape, &out->graph, &out->io, err);
    if (status == MR_OK)
        status = mr_graph_finish(out->graph, &s->backends, &stats, err);
    for (int32_t b = 0; status == MR_OK && b < s->backends.n; b++)
        if (stats.work_bytes[b] > s->work_bytes[b]) {
            s->sizes.work_bytes += stats.work_bytes[b] - s->work_bytes[b];
            s->work_bytes[b] = stats.work_bytes[b];
        }
    return status;
}

/* Builds the graph anew in the memory of the old graph (MILLRACE_GRAPH_REUSE=off), to measure what reuse saves. */
static mr_status rebuild_bucket(mr_stage *s, bucket *b, mr_err *err) {
    mr_graph_destroy(b->graph);
    b->graph = NULL;
    mr_status status = build_bucket(s, b->max_rows, b, err);
    return status == MR_OK ? mr_graph_place(b->graph, s->work, err) : status;
}

/* The buckets hold 1, 2, 4 ... rows; the last bucket holds max_rows. */
static mr_status build_all_buckets(mr_stage *s, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t rows = 1; status == MR_OK; rows *= 2) {
        MR_ASSERT(s->n_buckets < MAX_BUCKETS);
        bool last = rows >= s->config.max_rows;
        bucket *b = &s->buckets[s->n_buckets++];
        status = build_bucket(s, last ? s->config.max_rows : rows, b, err);
        if (last)
            break;
    }
    return status;
}

static void destroy_buckets(mr_stage *s) {
    for (int32_t i = 0; i < s->n_buckets; i++)
        mr_graph_destroy(s->buckets[i].graph);
    s->n_buckets = 0;
}

/* Plans the work memory for every result that mr_products_measure can have: each type's products on each backend. */
static mr_status measure_buckets(mr_stage *s, mr_err *err) {
    mr_type types[MR_PRODUCTS_TYPES];
    int32_t n_types = s->config.measures_products ? mr_products_types(s->weights, types) : 0, n_choices = 1;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < n_types; i++)
        n_choices *= s->backends.n;
    for (int32_t choice = 0; choice < n_choices && status == MR_OK; choice++) {
        if (s->config.measures_products)
            mr_products_leave_all(&s->backends);
        for (int32_t i = 0, rest = choice; i < n_types; i++, rest /= s->backends.n)
            s->backends.min_rows[rest % s->backends.n][types[i]] = 0;
        status = build_all_buckets(s, err);
        destroy_buckets(s);
    }
    return status;
}

/* Allocates the work memory and gives it to every graph. */
static mr_status place_buckets(mr_stage *s, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t b = 0; b < s->backends.n && status == MR_OK; b++)
        if (s->work_bytes[b] > 0)
            status = s->backends.at[b]->ops->buffer_create(s->backends.at[b], s->work_bytes[b], &s->work[b], err);
    for (int32_t i = 0; i < s->n_buckets && status == MR_OK; i++)
        status = mr_graph_place(s->buckets[i].graph, s->work, err);
    return status;
}

static mr_status allocate_rows(mr_stage *s, mr_err *err) {
    size_t n = (size_t)s->config.max_rows;
    s->row_arrays = mr_alloc_array(6 * n, sizeof *s->row_arrays);
    if (!s->row_arrays)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the rows of a step");
    s->rows = (mr_step_rows){
        .ids = s->row_arrays,
        .positions = s->row_arrays + n,
        .slots = s->row_arrays + 2 * n,
        .row_seq = s->row_arrays + 3 * n,
        .out_rows = s->row_arrays + 4 * n,
        .hidden_rows = s->row_arrays + 5 * n,
    };
    return MR_OK;
}

static mr_status check(const mr_stage_config *config, mr_err *err) {
    if (config->max_rows < 1 || config->max_rows > 1 << (MAX_BUCKETS - 1) || config->max_out_rows < 1 ||
        config->max_out_rows > config->max_rows || config->max_sequences < 1 || config->max_context < 1)
        return mr_err_set(err, MR_E_INVALID, "a stage for %d rows, %d with logits, %d sequences of %d tokens",
                          config->max_rows, config->max_out_rows, config->max_sequences, config->max_context);
    return MR_OK;
}

/* A stage without weights, state or graphs. */
static mr_status create_synthetic(const mr_stage_config *config, mr_stage **out, mr_err *err) {
    mr_status status = check(config, err);
    mr_stage *s = status == MR_OK ? mr_alloc(sizeof *s) : NULL;
    if (status != MR_OK)
        return status;
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a stage");
    s->config = *config;
    s->synthetic = *config->synthetic;
    s->config.synthetic = &s->synthetic;
    mr_synthetic_prepare();
    status = allocate_rows(s, err);
    if (status != MR_OK) {
        mr_stage_destroy(s);
        return status;
    }
    *out = s;
    return MR_OK;
}

/* The part of creation that loads nothing: table of the weights, state tensors, sizes. */
static mr_status describe(const mr_stage_config *config, mr_backend *backend, mr_stage **out, mr_err *err) {
    mr_status status = check(config, err);
    if (status != MR_OK)
        return status;
    if (config->devices.n >= MR_MAX_BACKENDS)
        return mr_err_set(err, MR_E_INVALID, "a stage with %d devices beside its CPU; at most %d", config->devices.n,
                          MR_MAX_BACKENDS - 1);
    mr_stage *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a stage");
    s->config = *config;
    s->reuses_graphs = mr_graph_reuse_wanted();
    s->backends = config->devices;
    s->backends.at[s->backends.n++] = backend;
    mr_weights_desc weights = {config->gguf, config->info, config->range, config->map_weights, config->max_context};
    status = mr_weights_create(&weights, &s->backends, &s->weights, err);
    if (status == MR_OK)
        status = take_kv_shapes(s, err);
    if (status == MR_OK)
        status = choose_kv_backend(s, err);
    if (status == MR_OK)
        status = describe_state(s, err);
    mr_kv_desc kv = kv_desc(s);
    if (status == MR_OK)
        status = mr_kv_store_bytes(&kv, &s->sizes.kv_bytes, err);
    if (status != MR_OK) {
        mr_stage_destroy(s);
        return status;
    }
    s->sizes.weight_bytes = mr_weights_bytes(s->weights);
    *out = s;
    return MR_OK;
}

mr_status mr_stage_measure(const mr_stage_config *config, mr_backend *backend, mr_stage_sizes *out, mr_err *err) {
    mr_stage *s = NULL;
    mr_status status = describe(config, backend, &s, err);
    if (status != MR_OK)
        return status;
    status = measure_buckets(s, err);
    if (status == MR_OK)
        *out = mr_stage_get_sizes(s);
    mr_stage_destroy(s);
    return status;
}

mr_status mr_stage_create(const mr_stage_config *config, mr_backend *backend, mr_load_progress *progress,
                          void *progress_ctx, mr_stage **out, mr_err *err) {
    if (config->synthetic)
        return create_synthetic(config, out, err);
    mr_stage *s = NULL;
    mr_status status = describe(config, backend, &s, err);
    if (status != MR_OK)
        return status;
    status = mr_weights_load(s->weights, progress, progress_ctx, err);
    if (status == MR_OK && config->measures_products)
        status = mr_products_measure(&s->backends, s->weights, config->map_weights, config->max_rows, err);
    if (status == MR_OK)
        status = allocate_state(s, err);
    if (status == MR_OK)
        status = build_all_buckets(s, err);
    if (status == MR_OK)
        status = place_buckets(s, err);
    if (status == MR_OK)
        status = allocate_rows(s, err);
    if (status != MR_OK) {
        mr_stage_destroy(s);
        return status;
    }
    *out = s;
    return MR_OK;
}

void mr_stage_destroy(mr_stage *s) {
    if (!s)
        return;
    destroy_buckets(s);
    for (int32_t b = 0; b < s->backends.n; b++)
        s->backends.at[b]->ops->buffer_destroy(s->backends.at[b], s->work[b]);
    if (s->table)
        s->kv_backend->ops->buffer_destroy(s->kv_backend, s->table);
    mr_kv_store_destroy(s->kv);
    mr_weights_destroy(s->weights);
    mr_free(s->kv_shapes);
    mr_free(s->kv_tensors);
    mr_free(s->row_arrays);
    mr_free(s);
}

bool mr_stage_is_synthetic(const mr_stage *s) {
    return s->config.synthetic != NULL;
}

mr_stage_sizes mr_stage_get_sizes(const mr_stage *s) {
    mr_stage_sizes sizes = s->sizes;
    for (int32_t b = 0; b < s->backends.n; b++) {
        const size_t buffers[] = {mr_weights_bytes_on(s->weights, b), s->work_bytes[b],
                                  s->backends.at[b] == s->kv_backend ? s->state.block_table.bytes : 0};
        mr_device_info device;
        s->backends.at[b]->ops->describe(s->backends.at[b], &device);
        for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
            sizes.page_bytes += device.host_addressable && buffers[i] > 0 ? mr_pages_bytes(buffers[i]) : 0;
    }
    return sizes;
}

mr_step_rows *mr_stage_rows(mr_stage *s) {
    return &s->rows;
}

mr_status mr_stage_set_blocks(mr_stage *s, int32_t slot, int32_t first, const int32_t *blocks, int32_t n, mr_err *err) {
    if (s->config.synthetic)
        return MR_OK;
    const mr_tensor *t = &s->state.block_table;
    MR_ASSERT(slot >= 0 && slot < t->ne[1] && first >= 0 && n >= 0 && n <= t->ne[0] - first);
    if (n == 0)
        return MR_OK;
    mr_fence fence = 0;
    size_t offset = t->offset + (size_t)slot * t->row_bytes + (size_t)first * sizeof *blocks;
    mr_status status =
        s->kv_backend->ops->set(s->kv_backend, t->buffer, offset, blocks, (size_t)n * sizeof *blocks, &fence, err);
    return status == MR_OK ? s->kv_backend->ops->wait(s->kv_backend, fence, MR_NEVER, err) : status;
}

mr_status mr_stage_copy_block(mr_stage *s, int32_t from, int32_t to, mr_err *err) {
    return s->config.synthetic ? MR_OK : mr_kv_store_copy(s->kv, from, to, err);
}

/* Writes one i32 for each row. Does nothing if this stage does not have the input. */
static mr_status set_input(const bucket *b, int32_t tensor, const int32_t *values, int32_t n, mr_err *err) {
    if (tensor == MR_NO_TENSOR || n == 0)
        return MR_OK;
    return mr_graph_set_rows(b->graph, tensor, values, sizeof *values, n, err);
}

mr_status mr_stage_run(mr_stage *s, const float *x_in, void (*progress)(void *ctx), void *progress_ctx, mr_err *err) {
    const mr_step_rows *r = &s->rows;
    MR_ASSERT(r->n_rows >= 1 && r->n_rows <= s->config.max_rows && r->n_out >= 0 &&
              r->n_out <= s->config.max_out_rows && r->n_hidden >= 0 && r->n_hidden <= r->n_rows);
    if (s->config.synthetic)
        return mr_synthetic_run(s->config.synthetic, r->n_rows, progress, progress_ctx)
                   ? MR_OK
                   : mr_err_set(err, MR_E_CANCELLED, "told to end");
    int32_t i = 0;
    while (s->buckets[i].max_rows < r->n_rows)
        i++;
    bucket *b = &s->buckets[i];
    s->last = b;
    mr_status status = s->reuses_graphs ? MR_OK : rebuild_bucket(s, b, err);
    if (status == MR_OK)
        status = set_input(b, b->io.ids, r->ids, r->n_rows, err);
    if (status == MR_OK && b->io.x_in != MR_NO_TENSOR)
        status = mr_graph_set_rows(b->graph, b->io.x_in, x_in, (size_t)s->config.info->d_model * sizeof *x_in,
                                   r->n_rows, err);
    if (status == MR_OK)
        status = set_input(b, b->io.positions, r->positions, r->n_rows, err);
    if (status == MR_OK)
        status = set_input(b, b->io.slots, r->slots, r->n_rows, err);
    if (status == MR_OK)
        status = set_input(b, b->io.row_seq, r->row_seq, r->n_rows, err);
    if (status == MR_OK)
        status = set_input(b, b->io.out_rows, r->out_rows, r->n_out, err);
    if (status == MR_OK)
        status = set_input(b, b->io.hidden_rows, r->hidden_rows, r->n_hidden, err);
    mr_run run = {.n_rows = {[MR_ROWS_STEP] = r->n_rows, [MR_ROWS_OUT] = r->n_out, [MR_ROWS_HIDDEN] = r->n_hidden},
                  .progress = progress,
                  .progress_ctx = progress_ctx};
    return status == MR_OK ? mr_graph_run(b->graph, &run, err) : status;
}

mr_status mr_stage_read_activations(mr_stage *s, float *out_x, mr_err *err) {
    size_t row_bytes = (size_t)s->config.info->d_model * sizeof *out_x;
    if (s->config.synthetic) {
        memset(out_x, 0, (size_t)s->rows.n_rows * row_bytes);
        return MR_OK;
    }
    return mr_graph_get_rows(s->last->graph, s->last->io.x_out, 0, s->rows.n_rows, out_x, row_bytes, err);
}

mr_status mr_stage_read_logits(mr_stage *s, int32_t out_row, float *out_logits, mr_err *err) {
    size_t row_bytes = (size_t)s->config.info->vocab_size * sizeof *out_logits;
    if (s->config.synthetic) {
        memset(out_logits, 0, row_bytes);
        return MR_OK;
    }
    return mr_graph_get_rows(s->last->graph, s->last->io.logits, out_row, 1, out_logits, row_bytes, err);
}

mr_status mr_stage_read_hidden(mr_stage *s, int32_t first, int32_t n, float *out_rows, mr_err *err) {
    size_t row_bytes = (size_t)s->config.info->d_model * sizeof *out_rows;
    if (s->config.synthetic) {
        memset(out_rows, 0, (size_t)n * row_bytes);
        return MR_OK;
    }
    return mr_graph_get_rows(s->last->graph, s->last->io.hidden, first, n, out_rows, row_bytes, err);
}
