/* worker/lobby/measure_trial.c - builds a stage with block tables for flat and deep steps, fills its rows, and times
 * one step. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/measure_trial.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

enum {
    LEAST_DEPTH = 256,
    MOST_DEPTH = 4096,
    SEED = 1,
    N_SHIFTS = 61, /* places in the input at which the rows of a step begin, in turn: each step has other rows */
};

uint64_t trial_free_bytes(const mr_measure_config *c) {
    uint64_t bytes = mr_mem_available();
    return bytes == 0 ? UINT64_MAX : c->n_together > 1 ? bytes / (uint64_t)c->n_together : bytes;
}

/* Context of each row of a deep step: long enough that reading keys and values takes a time that shows beside reading
 * the weights of a layer. */
static int32_t depth_of(const mr_measure_config *c, mr_layer_range range) {
    size_t wanted = mr_model_layer_read_bytes(c->gguf, c->info, range.first) / 2;
    size_t depth = wanted / (MEASURE_DEEP_ROWS * (mr_model_kv_bytes(c->info, range.first, c->kv_type) + 1));
    depth = depth < LEAST_DEPTH ? LEAST_DEPTH : depth > MOST_DEPTH ? MOST_DEPTH : depth;
    return (int32_t)depth / MR_KV_BLOCK * MR_KV_BLOCK;
}

/* At least 1, because it divides a time. */
static int32_t attended(const mr_measure_config *c, mr_layer_range range, int32_t depth) {
    int32_t window = mr_model_layer(c->info, range.first)->window;
    int32_t n = window > 0 && window < depth ? window : depth;
    return n > 1 ? n - 1 : 1;
}

static int32_t deep_blocks(const trial *t) {
    return t->depth / MR_KV_BLOCK;
}

/* Sets the block tables. The first MEASURE_DEEP_ROWS sequences have contexts. The other sequences need one position
 * each, so MR_KV_BLOCK of them share a block. */
static mr_status set_tables(trial *t, int32_t n_sequences, mr_err *err) {
    int32_t blocks[MOST_DEPTH / MR_KV_BLOCK];
    mr_status status = MR_OK;
    for (int32_t s = 0; s < n_sequences && status == MR_OK; s++) {
        int32_t n = s < MEASURE_DEEP_ROWS ? deep_blocks(t) : 1;
        for (int32_t b = 0; b < n; b++)
            blocks[b] = s < MEASURE_DEEP_ROWS ? s * n + b : s / MR_KV_BLOCK;
        status = mr_stage_set_blocks(t->stage, s, 0, blocks, n, err);
    }
    return status;
}

/* Random rows, so that rows and steps differ. The router chooses experts by the values of a row, and the experts of a
 * step must not be in the caches from the step before. */
static mr_status make_rows(const trial *t, int32_t n_rows, float **out, mr_err *err) {
    size_t n = (size_t)n_rows * (size_t)t->config->info->d_model;
    *out = mr_alloc_array(n, sizeof **out);
    if (!*out)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to measure layers");
    for (size_t i = 0; i < n; i++)
        (*out)[i] = mr_rng_f32(SEED, 0, i) - 0.5f;
    return MR_OK;
}

static mr_status make_sampler(trial *t, mr_err *err) {
    mr_sampler_config config = {
        .n_vocab = t->config->info->vocab_size, .params = mr_sampling_params_default(), .max_context = 1};
    config.params.temperature = 0;
    mr_status status = mr_sampler_create(&config, &t->sampler, err);
    return status == MR_OK ? mr_sampler_scratch_create(config.n_vocab, &t->scratch, err) : status;
}

static mr_stage_config stage_config(const trial *t, const trial_desc *d) {
    const mr_measure_config *c = t->config;
    int32_t n_sequences = d->max_rows < MEASURE_DEEP_ROWS ? MEASURE_DEEP_ROWS : d->max_rows;
    int32_t n_deep = MEASURE_DEEP_ROWS * deep_blocks(t), n_flat = (n_sequences + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    mr_stage_config config = {.gguf = c->gguf,
                              .info = c->info,
                              .range = d->range,
                              .max_rows = n_sequences,
                              .max_out_rows = d->range.last == c->info->n_layers ? n_sequences : 1,
                              .max_sequences = n_sequences,
                              .max_context = t->depth,
                              .n_kv_blocks = n_deep > n_flat ? n_deep : n_flat,
                              .kv_type = c->kv_type,
                              .map_weights = c->map_weights};
    if (c->devices) {
        config.devices = c->devices->list;
        config.measures_products = c->devices->is_measured;
    }
    if (d->on_device)
        mr_devices_hold(&config.devices, (mr_devices_share){.n_layers = t->n_layers,
                                                            .n_host_experts = d->host_experts ? t->n_layers : 0,
                                                            .n_cold_partitions = d->host_experts ? INT32_MAX : 0});
    return config;
}

/* Whether the device that holds layers has memory for those of the config. */
static bool fits_device(const mr_stage_config *config, const mr_stage_sizes *sizes) {
    int32_t b = mr_devices_holder(&config->devices);
    const mr_stage_bytes *bytes = &sizes->devices[b];
    mr_device_info device;
    config->devices.at[b]->ops->describe(config->devices.at[b], &device);
    return device.memory_bytes == 0 || bytes->weights + bytes->kv + bytes->tables + bytes->work <= device.memory_bytes;
}

static bool goes_on(void *ctx, size_t done_bytes, size_t total_bytes) {
    const mr_measure_config *c = ctx;
    (void)done_bytes;
    (void)total_bytes;
    return !c->told_to_end || !c->told_to_end(c->ctx);
}

mr_status trial_init(trial *t, const mr_measure_config *c, const trial_desc *d, mr_err *err) {
    *t = (trial){.config = c, .n_layers = d->range.last - d->range.first, .depth = depth_of(c, d->range)};
    t->n_attended = attended(c, d->range, t->depth);
    const mr_stage_config config = stage_config(t, d);
    bool is_tail = d->range.last == c->info->n_layers;
    mr_stage_sizes sizes;
    mr_status status = mr_stage_measure(&config, c->backend, &sizes, err);
    if (status == MR_OK)
        t->bytes = sizes.weight_bytes + sizes.kv_bytes + sizes.work_bytes;
    if (status == MR_OK && (t->bytes > d->free_bytes || (d->on_device && !fits_device(&config, &sizes))))
        status = mr_err_set(err, MR_E_NO_MEMORY, "too little memory is free to measure layer %d", (int)d->range.first);
    if (status == MR_OK)
        status = mr_stage_create(&config, c->backend, goes_on, (void *)(uintptr_t)c, &t->stage, err);
    if (status == MR_OK)
        status = set_tables(t, config.max_sequences, err);
    if (status == MR_OK && d->range.first > 0)
        status = make_rows(t, config.max_sequences + N_SHIFTS, &t->x, err);
    if (status == MR_OK && d->on_device && !is_tail)
        status = make_rows(t, config.max_sequences, &t->x_out, err);
    if (status == MR_OK && is_tail)
        status = make_sampler(t, err);
    if (status != MR_OK)
        trial_deinit(t);
    return status;
}

void trial_deinit(trial *t) {
    mr_stage_destroy(t->stage);
    mr_sampler_destroy(t->sampler);
    mr_sampler_scratch_destroy(t->scratch);
    mr_free(t->x);
    mr_free(t->x_out);
    *t = (trial){0};
}

static void fill_rows(trial *t, const trial_step *step) {
    mr_step_rows *rows = mr_stage_rows(t->stage);
    rows->n_rows = step->n_rows;
    rows->n_out = step->n_out;
    for (int32_t r = 0; r < step->n_rows; r++) {
        rows->ids[r] = (int32_t)(((int64_t)r + t->shift) * 7919 % t->config->info->vocab_size);
        rows->positions[r] = step->deep ? t->depth - 1 : 0;
        rows->slots[r] = step->deep ? (r + 1) * t->depth - 1 : r; /* a KV slot of its own for each row */
        rows->row_seq[r] = r;
        if (r >= step->n_out)
            continue;
        rows->out_rows[r] = r;
        rows->only_top[r] = r < mr_stage_max_top(t->stage) && mr_sampler_can_use_top(t->sampler);
    }
}

mr_status trial_run(trial *t, const trial_step *step, double *out_seconds, mr_err *err) {
    const mr_measure_config *c = t->config;
    int32_t id;
    if (c->told_to_end && c->told_to_end(c->ctx))
        return mr_err_set(err, MR_E_CANCELLED, "told to end");
    t->shift = (t->shift + 1) % N_SHIFTS;
    fill_rows(t, step);
    const float *x = t->x ? t->x + (size_t)t->shift * (size_t)c->info->d_model : NULL;
    int64_t start_ns = mr_clock_now_ns();
    const mr_stage_step run = {.x_in = x, .x_out = t->x_out, .progress = c->progress, .progress_ctx = c->ctx};
    mr_status status = mr_stage_run(t->stage, &run, err);
    for (int32_t r = 0; r < step->n_out && status == MR_OK; r++) {
        mr_sampler_row row = {.top = mr_stage_top(t->stage, r), .position = 1};
        if (!row.top)
            row.logits = mr_stage_logits(t->stage, r);
        status = mr_sampler_sample(t->sampler, t->scratch, &row, &id, err);
    }
    *out_seconds = (double)(mr_clock_now_ns() - start_ns) / (double)MR_NS_PER_S;
    return status;
}
