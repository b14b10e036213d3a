/* proto/facts_message.c - copies the curves of mr_measured to and from the arrays of the message. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/facts_message.h"

#include <stdio.h>
#include <string.h>

Millrace__Times *mr_times_message_fill(mr_times_message *out, const mr_step_times *t) {
    millrace__times__init(&out->message);
    for (int32_t k = 0; k < t->n; k++) {
        out->rows[k] = (uint32_t)t->rows[k];
        out->seconds[k] = t->seconds[k];
    }
    out->message.n_rows = out->message.n_seconds = (size_t)t->n;
    out->message.rows = out->rows;
    out->message.seconds = out->seconds;
    return &out->message;
}

static void fill_layers(mr_layers_message *out, const mr_step_times *layers, const double *position_s, int32_t n) {
    for (int32_t k = 0; k < n; k++) {
        out->layers[k] = mr_times_message_fill(&out->times[k], &layers[k]);
        out->position_s[k] = position_s[k];
    }
}

static void fill_device(mr_facts_message *f, const mr_measured_device *d, int32_t n_kinds) {
    Millrace__DeviceFacts *m = &f->device;
    millrace__device_facts__init(m);
    fill_layers(&f->on_device, d->layer, d->position_s, n_kinds);
    memcpy(f->layer_bytes, d->layer_bytes, sizeof f->layer_bytes);
    memcpy(f->token_bytes, d->token_bytes, sizeof f->token_bytes);
    memcpy(f->trunk_bytes, d->trunk_bytes, sizeof f->trunk_bytes);
    for (int32_t k = 0; k < n_kinds; k++)
        f->trunk_ptrs[k] = mr_times_message_fill(&f->trunks[k], &d->trunk[k]);
    snprintf(f->name, sizeof f->name, "%s", d->name);
    m->name = f->name;
    m->memory_bytes = d->memory_bytes;
    m->n_layers = m->n_position_s = m->n_layer_bytes = m->n_token_bytes = (size_t)n_kinds;
    m->n_trunks = m->n_trunk_bytes = (size_t)n_kinds;
    m->trunks = f->trunk_ptrs;
    m->trunk_bytes = f->trunk_bytes;
    m->layers = f->on_device.layers;
    m->position_s = f->on_device.position_s;
    m->output = mr_times_message_fill(&f->on_device.output, &d->output);
    m->crossing = mr_times_message_fill(&f->crossing, &d->crossing);
    m->layer_bytes = f->layer_bytes;
    m->token_bytes = f->token_bytes;
    m->stage_bytes = d->stage_bytes;
    m->head_bytes = d->head_bytes;
    m->tail_bytes = d->tail_bytes;
    f->message.device = m;
}

void mr_facts_message_fill(mr_facts_message *f, const mr_measured *measured) {
    Millrace__Facts *m = &f->message;
    millrace__facts__init(m);
    if (!measured)
        return;
    fill_layers(&f->on_cpu, measured->layer, measured->position_s, measured->n_kinds);
    m->n_layers = m->n_position_s = (size_t)measured->n_kinds;
    m->layers = f->on_cpu.layers;
    m->output = mr_times_message_fill(&f->on_cpu.output, &measured->output);
    m->position_s = f->on_cpu.position_s;
    m->sample_s = measured->sample_s;
    m->core_share = measured->core_share;
    if (measured->device.is_known)
        fill_device(f, &measured->device, measured->n_kinds);
}

void mr_times_message_read(const Millrace__Times *t, mr_step_times *out) {
    out->n = (int32_t)t->n_rows;
    for (size_t k = 0; k < t->n_rows; k++) {
        out->rows[k] = (int32_t)t->rows[k];
        out->seconds[k] = t->seconds[k];
    }
}

static void read_device(const Millrace__DeviceFacts *m, mr_measured_device *out) {
    *out = (mr_measured_device){
        .is_known = true,
        .memory_bytes = m->memory_bytes,
        .stage_bytes = m->stage_bytes,
        .head_bytes = m->head_bytes,
        .tail_bytes = m->tail_bytes,
    };
    snprintf(out->name, sizeof out->name, "%s", m->name);
    for (size_t k = 0; k < m->n_layers; k++) {
        mr_times_message_read(m->layers[k], &out->layer[k]);
        out->position_s[k] = m->position_s[k];
        out->layer_bytes[k] = m->layer_bytes[k];
        out->token_bytes[k] = m->token_bytes[k];
        mr_times_message_read(m->trunks[k], &out->trunk[k]);
        out->trunk_bytes[k] = m->trunk_bytes[k];
    }
    mr_times_message_read(m->output, &out->output);
    mr_times_message_read(m->crossing, &out->crossing);
}

void mr_facts_message_read(const Millrace__Facts *message, mr_measured *out) {
    *out = (mr_measured){
        .n_kinds = (int32_t)message->n_layers,
        .sample_s = message->sample_s,
        .core_share = message->core_share,
    };
    for (size_t k = 0; k < message->n_layers; k++) {
        mr_times_message_read(message->layers[k], &out->layer[k]);
        out->position_s[k] = message->position_s[k];
    }
    if (message->output)
        mr_times_message_read(message->output, &out->output);
    if (message->device)
        read_device(message->device, &out->device);
}
