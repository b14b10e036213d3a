/* worker/stage/stage.c - builds a stage from its config and runs it. Creation is in two parts: `describe` loads
 * nothing, so that mr_stage_measure can answer before any memory is taken, and mr_stage_create loads. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/stage.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/graph/debug.h"
#include "worker/stage/products.h"
#include "worker/stage/stage_state.h"

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
    mr_weights *weights;
    mr_stage_state *state;
    mr_buffer *work[MR_MAX_BACKENDS]; /* shared by all buckets, which never run at the same time */
    size_t work_bytes[MR_MAX_BACKENDS];
    bucket buckets[MAX_BUCKETS];
    int32_t n_buckets;
    bool reuses_graphs;
    const bucket *last; /* the bucket of the last run */
    mr_step_rows rows;
    int32_t *row_arrays; /* memory of the arrays in rows */
};

/* Builds and plans the graph of one bucket. */
static mr_status build_bucket(mr_stage *s, int32_t max_rows, bucket *out, mr_err *err) {
    int32_t max_out = s->config.max_out_rows < max_rows ? s->config.max_out_rows : max_rows;
    mr_stage_shape shape = {.max_rows = max_rows, .max_out_rows = max_out};
    mr_graph_stats stats;
    out->max_rows = max_rows;
    mr_status status =
        mr_stage_graph_build(s->weights, mr_stage_state_tensors(s->state), &shape, &out->graph, &out->io, err);
    if (status == MR_OK)
        status = mr_graph_finish(out->graph, &s->backends, &stats, err);
    for (int32_t b = 0; status == MR_OK && b < s->backends.n; b++)
        if (stats.work_bytes[b] > s->work_bytes[b])
            s->work_bytes[b] = stats.work_bytes[b];
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
        status = mr_stage_state_create(config, &s->backends, &s->state, err);
    if (status != MR_OK) {
        mr_stage_destroy(s);
        return status;
    }
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
        status = mr_stage_state_allocate(s->state, err);
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
    mr_stage_state_destroy(s->state);
    mr_weights_destroy(s->weights);
    mr_free(s->row_arrays);
    mr_free(s);
}

bool mr_stage_is_synthetic(const mr_stage *s) {
    return s->config.synthetic != NULL;
}

static size_t pages_of(size_t bytes) {
    return bytes > 0 ? mr_pages_bytes(bytes) : 0;
}

mr_stage_sizes mr_stage_get_sizes(const mr_stage *s) {
    mr_stage_sizes sizes = {0};
    for (int32_t b = 0; b < s->backends.n; b++) {
        mr_stage_bytes bytes = {.weights = mr_weights_bytes_on(s->weights, b),
                                .kv = mr_stage_state_kv_bytes(s->state, b),
                                .tables = mr_stage_state_table_bytes(s->state, b),
                                .work = s->work_bytes[b]};
        mr_device_info device;
        s->backends.at[b]->ops->describe(s->backends.at[b], &device);
        if (!device.host_addressable) {
            sizes.devices[b] = bytes;
            continue;
        }
        sizes.weight_bytes += bytes.weights;
        sizes.kv_bytes += bytes.kv;
        sizes.work_bytes += bytes.work;
        sizes.page_bytes += pages_of(bytes.weights) + pages_of(bytes.tables) + pages_of(bytes.work);
    }
    return sizes;
}

mr_step_rows *mr_stage_rows(mr_stage *s) {
    return &s->rows;
}

mr_status mr_stage_set_blocks(mr_stage *s, int32_t slot, int32_t first, const int32_t *blocks, int32_t n, mr_err *err) {
    return s->config.synthetic ? MR_OK : mr_stage_state_set_blocks(s->state, slot, first, blocks, n, err);
}

void mr_stage_copy_block(mr_stage *s, int32_t from, int32_t to) {
    if (!s->config.synthetic)
        mr_stage_state_copy_block(s->state, from, to);
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
    mr_status status = mr_stage_state_update(s->state, err);
    if (status == MR_OK && !s->reuses_graphs)
        status = rebuild_bucket(s, b, err);
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
