/* worker/stage/stage.c - builds a stage from its config. Creation is in two parts: `describe` loads nothing, so that
 * mr_stage_measure can answer before any memory is taken, and mr_stage_create loads. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "engine/graph/debug.h"
#include "worker/stage/devices.h"
#include "worker/stage/products.h"
#include "worker/stage/stage_internal.h"

/* Notes how many bytes the host needs for a copy of a result that a device computes. */
static void note_copy(const mr_graph *g, int32_t tensor, size_t *bytes) {
    if (tensor == MR_NO_TENSOR || mr_graph_is_on_host(g, tensor))
        return;
    const mr_tensor *t = mr_graph_tensor(g, tensor);
    *bytes = t->bytes > *bytes ? t->bytes : *bytes;
}

/* Builds and plans the graph of one bucket. */
static mr_status build_bucket(mr_stage *s, int32_t max_rows, stage_bucket *out, mr_err *err) {
    int32_t max_out = s->config.max_out_rows < max_rows ? s->config.max_out_rows : max_rows;
    mr_stage_shape shape = {.max_rows = max_rows,
                            .max_out_rows = max_out,
                            .choices = use_counts_choices(s->uses, (int32_t)(out - s->buckets)),
                            .only_shared_choices = !s->config.counts_uses};
    mr_graph_stats stats;
    out->max_rows = max_rows;
    mr_status status =
        mr_stage_graph_build(s->weights, mr_stage_state_tensors(s->state), &shape, &out->graph, &out->io, err);
    if (status == MR_OK)
        status = mr_graph_finish(out->graph, &s->backends, &stats, err);
    for (int32_t b = 0; status == MR_OK && b < s->backends.n; b++)
        if (stats.work_bytes[b] > s->work_bytes[b])
            s->work_bytes[b] = stats.work_bytes[b];
    if (status == MR_OK) {
        use_counts_note(s->uses, (int32_t)(out - s->buckets), out->graph);
        s->needs_host = s->needs_host || stats.needs_host;
        s->n_copies = stats.n_copies > s->n_copies ? stats.n_copies : s->n_copies;
        s->record_bytes = stats.record_bytes > s->record_bytes ? stats.record_bytes : s->record_bytes;
        note_copy(out->graph, out->io.top, &s->top_bytes);
        note_copy(out->graph, out->io.logits, &s->logits_bytes);
        note_copy(out->graph, out->io.hidden, &s->hidden_bytes);
    }
    return status;
}

mr_status stage_rebuild_bucket(mr_stage *s, stage_bucket *b, mr_err *err) {
    mr_graph_destroy(b->graph);
    b->graph = NULL;
    mr_status status = build_bucket(s, b->max_rows, b, err);
    return status == MR_OK ? mr_graph_place(b->graph, s->work, err) : status;
}

/* The buckets hold 1, 2, 4 ... rows; the last bucket holds max_rows. */
static mr_status build_all_buckets(mr_stage *s, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t rows = 1; status == MR_OK; rows *= 2) {
        MR_ASSERT(s->n_buckets < STAGE_MAX_BUCKETS);
        bool last = rows >= s->config.max_rows;
        stage_bucket *b = &s->buckets[s->n_buckets++];
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

/* Makes all products move to the memory of devices, or none. */
static void move_products(mr_backends *backends, bool all) {
    for (int32_t b = 0; b < backends->n; b++)
        backends->rates[b] = (mr_rates){0};
    int32_t holder = all ? mr_devices_holder(backends) : -1;
    if (holder < 0)
        return;
    backends->rates[holder] = (mr_rates){.products_per_s = 1e30, .copied_bytes_per_s = 1e30};
    backends->rates[backends->n - 1].products_per_s = 1;
}

/* Plans the work memory for every result that the measurements of products.h can have: each type's products on each
 * backend, and products that move to a device. */
static mr_status measure_buckets(mr_stage *s, mr_err *err) {
    mr_type types[MR_PRODUCTS_TYPES];
    bool measures = s->config.measures_products, may_move = measures && mr_devices_holder(&s->backends) >= 0;
    int32_t n_types = measures ? mr_products_types(s->weights, types) : 0, n_choices = 1;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < n_types; i++)
        n_choices *= s->backends.n;
    for (int32_t choice = 0; choice < n_choices + may_move && status == MR_OK; choice++) {
        if (measures)
            mr_products_leave_all(&s->backends);
        if (may_move)
            move_products(&s->backends, choice == n_choices);
        for (int32_t i = 0, rest = choice; i < n_types && choice < n_choices; i++, rest /= s->backends.n)
            s->backends.min_rows[rest % s->backends.n][types[i]] = 0;
        status = build_all_buckets(s, err);
        destroy_buckets(s);
    }
    return status;
}

/* Allocates the work memory and gives it to every graph. */
static mr_status place_buckets(mr_stage *s, mr_err *err) {
    mr_status status = MR_OK;
    s->notes_works =
        s->config.notes_works && s->needs_host && s->reuses_graphs && mr_devices_holder(&s->config.devices) >= 0;
    for (int32_t i = 0; i < s->n_buckets && status == MR_OK && s->notes_works; i++)
        status = mr_graph_note_work(s->buckets[i].graph, err);
    for (int32_t b = 0; b < s->backends.n && status == MR_OK; b++)
        if (s->work_bytes[b] > 0)
            status = s->backends.at[b]->ops->buffer_create(s->backends.at[b], s->work_bytes[b], &s->work[b], err);
    for (int32_t i = 0; i < s->n_buckets && status == MR_OK; i++)
        status = mr_graph_place(s->buckets[i].graph, s->work, err);
    return status;
}

enum { ROW_ARRAYS = 7 }; /* of a slot: those of its rows, and out_place */

static void point_rows(stage_slot *slot, int32_t *arrays, bool *only_top, int32_t max_rows) {
    slot->rows = (mr_step_rows){
        .ids = arrays,
        .positions = arrays + max_rows,
        .slots = arrays + 2 * max_rows,
        .row_seq = arrays + 3 * max_rows,
        .out_rows = arrays + 4 * max_rows,
        .only_top = only_top,
        .hidden_rows = arrays + 5 * max_rows,
    };
    slot->out_place = arrays + 6 * max_rows;
}

/* Of record and copies. An mr_top wants 8 bytes of alignment, and comes first. */
static size_t bytes_of_slot(const mr_stage *s) {
    return mr_round_up(s->top_bytes + s->record_bytes + s->logits_bytes + s->hidden_bytes, 64);
}

/* Takes the memory of each slot: rows, flight, and what goes to devices and comes back. */
static mr_status create_slots(mr_stage *s, mr_err *err) {
    int32_t max_rows = s->config.max_rows;
    size_t slot_bytes = bytes_of_slot(s);
    s->row_arrays = mr_alloc_array((size_t)MR_STAGE_STEPS * ROW_ARRAYS * (size_t)max_rows, sizeof *s->row_arrays);
    s->only_top = mr_alloc_array(MR_STAGE_STEPS * (size_t)max_rows, sizeof *s->only_top);
    if (!s->row_arrays || !s->only_top)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the rows of a step");
    mr_status status = mr_pinned_create(&s->backends, MR_STAGE_STEPS * slot_bytes, &s->staging, err);
    for (int32_t i = 0; i < MR_STAGE_STEPS && status == MR_OK; i++) {
        stage_slot *slot = &s->slots[i];
        point_rows(slot, s->row_arrays + i * ROW_ARRAYS * max_rows, s->only_top + i * max_rows, max_rows);
        slot->top.copy = s->staging.data + (size_t)i * slot_bytes;
        slot->record = slot->top.copy + s->top_bytes;
        slot->logits.copy = slot->record + s->record_bytes;
        slot->hidden.copy = slot->logits.copy + s->logits_bytes;
        status = mr_graph_flight_create(s->n_copies, &slot->flight, err);
    }
    return status;
}

static mr_status check(const mr_stage_config *config, mr_err *err) {
    if (config->max_rows < 1 || config->max_rows > 1 << (STAGE_MAX_BUCKETS - 1) || config->max_out_rows < 1 ||
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
    s->needs_host = true;
    mr_synthetic_prepare();
    const mr_model_info *m = config->info;
    s->zeros = mr_alloc_array((size_t)(m->vocab_size > m->d_model ? m->vocab_size : m->d_model), sizeof *s->zeros);
    status = s->zeros ? create_slots(s, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a stage");
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
    /* A graph is not built anew while it runs, and choices are read before the next step overwrites them. */
    s->needs_host = !s->reuses_graphs || config->counts_uses;
    s->backends = config->devices;
    s->backends.at[s->backends.n++] = backend;
    mr_weights_desc weights = {.gguf = config->gguf,
                               .info = config->info,
                               .range = config->range,
                               .map = config->map_weights,
                               .max_context = config->max_context,
                               .expert_order = config->expert_order,
                               .store = config->store};
    status = mr_weights_create(&weights, &s->backends, &s->weights, err);
    if (status == MR_OK)
        status = mr_stage_state_create(config, &s->backends, &s->state, err);
    if (status == MR_OK && (config->counts_uses || stage_renews(s)))
        status = use_counts_create(config->range, STAGE_MAX_BUCKETS, &s->uses, err);
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
    if (status == MR_OK && config->measures_products)
        status = mr_products_measure_rates(&s->backends, s->weights, config->map_weights, config->max_rows, err);
    if (status == MR_OK)
        status = mr_stage_state_allocate(s->state, err);
    if (status == MR_OK)
        status = build_all_buckets(s, err);
    if (status == MR_OK)
        status = place_buckets(s, err);
    if (status == MR_OK)
        status = create_slots(s, err);
    if (status == MR_OK && s->uses)
        status = use_counts_allocate(s->uses, 0, err);
    if (status == MR_OK && stage_renews(s))
        status = stage_create_renewal(s, err);
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
    for (int32_t i = 0; i < MR_STAGE_STEPS; i++)
        mr_graph_flight_destroy(s->slots[i].flight); /* waits for the steps under way */
    for (int32_t b = 0; b < s->backends.n; b++)
        mr_backend_drain(s->backends.at[b]); /* a step that failed before its start may have left a record on its way */
    mr_pinned_destroy(&s->staging);
    destroy_buckets(s);
    for (int32_t b = 0; b < s->backends.n; b++)
        s->backends.at[b]->ops->buffer_destroy(s->backends.at[b], s->work[b]);
    mr_stage_state_destroy(s->state);
    mr_weights_destroy(s->weights);
    use_counts_destroy(s->uses);
    mr_expert_renewal_destroy(s->renewal);
    mr_free(s->renewed);
    mr_free(s->row_arrays);
    mr_free(s->only_top);
    mr_free(s->zeros);
    mr_free(s);
}

bool mr_stage_is_synthetic(const mr_stage *s) {
    return s->config.synthetic != NULL;
}

static size_t pages_of(size_t bytes) {
    return bytes > 0 ? mr_pages_bytes(bytes) : 0;
}

mr_stage_sizes mr_stage_get_sizes(const mr_stage *s) {
    mr_stage_sizes sizes = {.work_bytes = MR_STAGE_STEPS * bytes_of_slot(s) + use_counts_bytes(s->uses)};
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
        sizes.page_bytes += mr_weights_page_bytes(s->weights, b) + pages_of(bytes.tables) + pages_of(bytes.work);
    }
    return sizes;
}

int32_t mr_stage_kept_layers(const mr_stage *s) {
    return s->config.synthetic ? 0 : mr_weights_kept_layers(s->weights);
}

bool mr_stage_has_kept_kv(const mr_stage *s) {
    return !s->config.synthetic && mr_stage_state_has_kept_kv(s->state);
}

mr_kv_store *mr_stage_kv_store(const mr_stage *s) {
    return s->config.synthetic ? NULL : mr_stage_state_kv_store(s->state);
}

size_t mr_stage_loaded_bytes(const mr_stage *s) {
    return s->config.synthetic ? 0 : mr_weights_bytes(s->weights) - mr_weights_kept_bytes(s->weights);
}
