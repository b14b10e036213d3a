/* proto/facts_message.c - copies the curves of mr_measured to and from the arrays of the message. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/facts_message.h"

static void fill_times(mr_facts_message *f, int32_t i, const mr_step_times *t) {
    Millrace__Times *out = &f->times[i];
    millrace__times__init(out);
    for (int32_t k = 0; k < t->n; k++) {
        f->rows[i][k] = (uint32_t)t->rows[k];
        f->seconds[i][k] = t->seconds[k];
    }
    out->n_rows = out->n_seconds = (size_t)t->n;
    out->rows = f->rows[i];
    out->seconds = f->seconds[i];
}

void mr_facts_message_fill(mr_facts_message *f, const mr_measured *measured) {
    millrace__facts__init(&f->message);
    if (!measured)
        return;
    for (int32_t k = 0; k < measured->n_kinds; k++) {
        fill_times(f, k, &measured->layer[k]);
        f->layers[k] = &f->times[k];
        f->position_s[k] = measured->position_s[k];
    }
    fill_times(f, MR_MAX_LAYER_KINDS, &measured->output);
    f->message.n_layers = f->message.n_position_s = (size_t)measured->n_kinds;
    f->message.layers = f->layers;
    f->message.output = &f->times[MR_MAX_LAYER_KINDS];
    f->message.position_s = f->position_s;
    f->message.sample_s = measured->sample_s;
    f->message.core_share = measured->core_share;
}

static void read_times(const Millrace__Times *t, mr_step_times *out) {
    out->n = (int32_t)t->n_rows;
    for (size_t k = 0; k < t->n_rows; k++) {
        out->rows[k] = (int32_t)t->rows[k];
        out->seconds[k] = t->seconds[k];
    }
}

void mr_facts_message_read(const Millrace__Facts *message, mr_measured *out) {
    *out = (mr_measured){
        .n_kinds = (int32_t)message->n_layers,
        .sample_s = message->sample_s,
        .core_share = message->core_share,
    };
    for (size_t k = 0; k < message->n_layers; k++) {
        read_times(message->layers[k], &out->layer[k]);
        out->position_s[k] = message->position_s[k];
    }
    if (message->output)
        read_times(message->output, &out->output);
}
