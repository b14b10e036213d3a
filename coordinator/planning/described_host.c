// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/described_host.h"

#include <stdio.h>

enum { N_POINTS = 13 }; /* 1, 2, 4 ... 4096 rows */

static double longer(double a, double b) {
    return a > b ? a : b;
}

/* Seconds to read so many bytes and to compute so many products, whichever takes longer. */
static double seconds_of(const mr_described_host *h, double bytes, double products) {
    return longer(bytes / h->read_bytes_s, h->operations_s > 0 ? 2 * products / h->operations_s : 0);
}

/* share: of the experts, those that a row uses. */
static mr_step_times curve(const mr_described_host *h, const mr_layer_work *w, double share) {
    mr_step_times t = {.n = N_POINTS};
    double unused = 1 - share; /* of the experts, those that no row of the step uses */
    for (int32_t i = 0; i < N_POINTS; i++) {
        t.rows[i] = 1 << i;
        t.seconds[i] =
            seconds_of(h, (double)w->bytes + (double)w->expert_bytes * (1 - unused), w->n_products * t.rows[i]);
        unused *= unused;
    }
    return t;
}

/* Seconds that a row takes more for a position: its keys and values are read, and multiplied with those of each head.
 * Layers that keep no keys take as long at any position. */
static double position_seconds(const mr_described_host *h, const mr_model_info *info, int32_t layer, mr_type kv_type) {
    const mr_layer_info *l = mr_model_layer(info, layer);
    size_t bytes = mr_model_kv_bytes(info, layer, kv_type);
    return bytes > 0 ? seconds_of(h, (double)bytes, (double)l->n_heads * (l->k_dim + l->v_dim)) : 0;
}

void mr_described_host_facts(const mr_described_host *h, const mr_gguf *g, const mr_model_info *info,
                             const mr_cluster_facts *f, mr_type kv_type, mr_rank_facts *out) {
    double share = info->n_experts > 0 ? (double)info->n_experts_used / info->n_experts : 1;
    *out = (mr_rank_facts){.threads = 1, .memory_bytes = (uint64_t)h->memory_bytes};
    snprintf(out->host, sizeof out->host, "%s", h->name);
    for (int32_t l = 0; l < f->n_layers; l++) {
        int32_t k = f->kind[l];
        if (out->layer[k].n > 0)
            continue;
        mr_layer_work work = mr_model_layer_work(g, info, l);
        out->layer[k] = curve(h, &work, share);
        out->position_s[k] = position_seconds(h, info, l, kv_type);
    }
    mr_layer_work output = {.bytes = mr_model_output_bytes(g), .n_products = (double)info->d_model * info->vocab_size};
    out->output = curve(h, &output, share);
}

mr_link_facts mr_described_host_link(const mr_described_host *from, const mr_described_host *to) {
    return (mr_link_facts){.latency_s = longer(from->latency_s, to->latency_s),
                           .bytes_per_second =
                               from->link_bytes_s < to->link_bytes_s ? from->link_bytes_s : to->link_bytes_s};
}
