/* worker/lobby/measure_device.c - measures the bytes of layers on a device, and the time in which the rows of a step go
 * to a device and come back. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "engine/base/clock.h"
#include "worker/lobby/measure_internal.h"

/* KV blocks of a stage whose bytes are measured; and its buffers that grow with sequences and their length. */
enum { BYTES_BLOCKS = 64, BYTES_OUT_ROWS = 64, BYTES_SEQUENCES = 64, BYTES_CONTEXT = 4096 };

bool mr_measure_describe_device(const mr_measure_config *config, mr_measured_device *out) {
    int32_t b = config->devices ? mr_devices_holder(&config->devices->list) : -1;
    mr_device_info info;
    if (b < 0)
        return false;
    mr_backend *be = config->devices->list.at[b];
    be->ops->describe(be, &info);
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, info.name);
    out->memory_bytes = info.memory_bytes;
    return true;
}

/* --- Bytes ------------------------------------------------------------------------------------------------------- */

/* A layer with its experts or neurons, without them, and with one expert or all partitions of neurons but one. */
static const mr_devices_share WHOLE = {1, 0, 0, 0}, TRUNK = {1, 1, 0, INT32_MAX}, SHARED = {1, 1, 1, 1};

/* What a stage of layer l alone takes on the device. */
static mr_status bytes_of(const measure *m, int32_t l, mr_devices_share share, mr_stage_bytes *out, mr_err *err) {
    const mr_measure_config *c = m->config;
    mr_stage_config config = {.gguf = c->gguf,
                              .info = c->info,
                              .range = {l, l + 1},
                              .max_rows = c->max_rows,
                              .max_out_rows = c->max_rows < BYTES_OUT_ROWS ? c->max_rows : BYTES_OUT_ROWS,
                              .max_sequences = BYTES_SEQUENCES,
                              .max_context = BYTES_CONTEXT,
                              .n_kv_blocks = BYTES_BLOCKS,
                              .kv_type = c->kv_type,
                              .map_weights = c->map_weights,
                              .devices = c->devices->list,
                              .measures_products = c->devices->is_measured};
    int32_t b = mr_devices_holder(&config.devices);
    mr_stage_sizes sizes;
    mr_devices_hold(&config.devices, share);
    mr_status status = mr_stage_measure(&config, c->backend, &sizes, err);
    if (status == MR_OK)
        *out = sizes.devices[b];
    return status;
}

static uint64_t above(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/* What the first or the last layer of the model takes more than a layer of its kind. */
static mr_status more_bytes_of(const measure *m, int32_t l, const mr_measured_device *d, uint64_t *out, mr_err *err) {
    mr_stage_bytes bytes;
    mr_status status = bytes_of(m, l, WHOLE, &bytes, err);
    if (status == MR_OK)
        *out = above(bytes.weights, d->layer_bytes[m->kind[l]]) + above(bytes.work + bytes.tables, d->stage_bytes);
    return status;
}

mr_status measure_device_bytes(const measure *m, int32_t n_kinds, mr_measured_device *out, mr_err *err) {
    enum { TOKENS = BYTES_BLOCKS * MR_KV_BLOCK };
    mr_status status = MR_OK;
    for (int32_t k = 0; k < n_kinds && status == MR_OK; k++) {
        mr_layer_range range;
        mr_stage_bytes bytes = {0};
        if (!measure_next_inner(m, (uint8_t)k, 0, &range))
            range = measure_outer(m, (uint8_t)k);
        status = bytes_of(m, range.first, TRUNK, &bytes, err);
        out->trunk_bytes[k] = bytes.weights;
        if (status == MR_OK) /* needs the most work memory of a layer with experts */
            status = bytes_of(m, range.first, SHARED, &bytes, err);
        size_t shared_bytes = bytes.work + bytes.tables;
        if (status == MR_OK)
            status = bytes_of(m, range.first, WHOLE, &bytes, err);
        out->layer_bytes[k] = bytes.weights;
        out->token_bytes[k] = (bytes.kv + TOKENS - 1) / TOKENS;
        if (shared_bytes > out->stage_bytes)
            out->stage_bytes = shared_bytes;
        if (bytes.work + bytes.tables > out->stage_bytes)
            out->stage_bytes = bytes.work + bytes.tables;
    }
    if (status == MR_OK)
        status = more_bytes_of(m, 0, out, &out->head_bytes, err);
    if (status == MR_OK)
        status = more_bytes_of(m, m->config->info->n_layers - 1, out, &out->tail_bytes, err);
    return status;
}

/* --- Crossing ---------------------------------------------------------------------------------------------------- */

/* The time of a stage of these layers. */
static mr_status time_stage(const measure *m, mr_layer_range range, mr_step_times *out, mr_err *err) {
    const int32_t n = measure_points(m->config->max_rows < MEASURE_MOST_ROWS ? m->config->max_rows : MEASURE_MOST_ROWS);
    const trial_desc desc = {range, 1 << (n - 1), m->free_bytes, m->on_device, false};
    series all[MR_STEP_TIMES_MAX] = {0};
    double seconds;
    trial t;
    mr_status status = trial_init(&t, m->config, &desc, err);
    if (status != MR_OK)
        return status;
    status = trial_run(&t, &(trial_step){.n_rows = 1}, &seconds, err); /* to warm up */
    int64_t end_ns = mr_clock_now_ns() + m->budget_ns / 3;
    for (int round = 0; round < MEASURE_MOST_ROUNDS && status == MR_OK; round++)
        for (int32_t i = 0; i < n && status == MR_OK && (round == 0 || mr_clock_now_ns() < end_ns); i++) {
            status = trial_run(&t, &(trial_step){.n_rows = 1 << i}, &seconds, err);
            if (status == MR_OK)
                series_add(&all[i], seconds);
        }
    series_curve(all, n, out);
    trial_deinit(&t);
    return status;
}

mr_status measure_crossing(measure *m, mr_step_times *out, mr_err *err) {
    const mr_model_info *info = m->config->info;
    int32_t l = info->n_layers >= 4 ? 1 : 0; /* better two inner layers */
    mr_step_times first, second, both;
    *out = (mr_step_times){.n = 1, .rows = {1}};
    if (info->n_layers < 2)
        return MR_OK;
    mr_status status = time_stage(m, (mr_layer_range){l, l + 2}, &both, err);
    if (status == MR_OK)
        status = time_stage(m, (mr_layer_range){l, l + 1}, &first, err);
    if (status == MR_OK)
        status = time_stage(m, (mr_layer_range){l + 1, l + 2}, &second, err);
    if (status != MR_OK)
        return status == MR_E_NO_MEMORY ? MR_OK : status;
    for (int32_t i = 0; i < both.n; i++) {
        double more = first.seconds[i] + second.seconds[i] - both.seconds[i];
        both.seconds[i] = more > 0 ? more : 0;
    }
    *out = both;
    return MR_OK;
}

void measure_take_crossing(const measure *m, mr_step_times *curve) {
    for (int32_t i = 0; i < curve->n; i++) {
        int32_t at = i < m->crossing.n ? i : m->crossing.n - 1;
        double less = curve->seconds[i] - m->crossing.seconds[at] / m->n_layers;
        curve->seconds[i] = less > 0 ? less : 0;
    }
}

/* --- Trials ------------------------------------------------------------------------------------------------------ */

mr_status measure_load_on_device(measure *m, uint8_t kind, mr_err *err) {
    mr_layer_range range;
    if (!measure_next_inner(m, kind, 0, &range))
        range = measure_outer(m, kind);
    for (m->max_rows = m->config->max_rows;;) {
        mr_status status = measure_add_trial(m, range, m->max_rows, err);
        if (status != MR_E_NO_MEMORY)
            return status;
        if (range.last - range.first > 1)
            range.last--;
        else if (m->max_rows > MEASURE_MOST_ROWS)
            m->max_rows = MEASURE_MOST_ROWS;
        else
            return status;
    }
}
