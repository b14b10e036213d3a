// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/cluster_facts.h"

#include <string.h>

void mr_cluster_facts_set_model(mr_cluster_facts *f, const mr_model_info *info) {
    f->n_experts = info->n_experts;
    f->n_partitions = mr_model_partitions(info);
    for (int32_t l = 0; l < f->n_layers; l++)
        f->window[f->kind[l]] = mr_model_layer(info, l)->window;
}

/* How many earlier positions a row attends to. */
static int32_t attended(const mr_cluster_facts *f, int32_t kind, int32_t depth) {
    int32_t window = f->window[kind];
    return window > 0 && window <= depth ? window - 1 : depth;
}

double mr_cluster_facts_layer_seconds(const mr_cluster_facts *f, const mr_rank_facts *rank, int32_t kind, double rows,
                                      int32_t depth) {
    return mr_step_times_at(&rank->layer[kind], rows) + rank->position_s[kind] * rows * attended(f, kind, depth);
}

double mr_cluster_facts_device_seconds(const mr_cluster_facts *f, const mr_rank_facts *rank, int32_t kind, double rows,
                                       int32_t depth) {
    const mr_measured_device *d = &rank->device;
    return mr_step_times_at(&d->layer[kind], rows) + d->position_s[kind] * rows * attended(f, kind, depth);
}

double mr_cluster_facts_trunk_seconds(const mr_cluster_facts *f, const mr_rank_facts *rank, int32_t kind, double rows,
                                      int32_t depth) {
    const mr_measured_device *d = &rank->device;
    return mr_step_times_at(&d->trunk[kind], rows) + d->position_s[kind] * rows * attended(f, kind, depth);
}

double mr_cluster_facts_experts_seconds(const mr_rank_facts *rank, int32_t kind, double rows) {
    const mr_measured_device *d = &rank->device;
    return d->trunk[kind].n > 0 && d->layer[kind].n > 0
               ? mr_step_times_at(&d->trunk[kind], rows) - mr_step_times_at(&d->layer[kind], rows)
               : 0;
}

double mr_cluster_facts_expert_share(const mr_cluster_facts *f, int32_t n) {
    if (n <= 0 || f->n_experts <= 0)
        return 0;
    n = n < f->n_experts ? n : f->n_experts;
    return f->expert_shares ? f->expert_shares[n] : (double)n / f->n_experts;
}

double mr_cluster_facts_expert_bytes(const mr_cluster_facts *f, const mr_rank_facts *rank, int32_t kind) {
    const mr_measured_device *d = &rank->device;
    bool is_known = d->trunk[kind].n > 0 && f->n_experts > 0 && d->layer_bytes[kind] > d->trunk_bytes[kind];
    return is_known ? (double)(d->layer_bytes[kind] - d->trunk_bytes[kind]) / f->n_experts : 0;
}

static bool on_same_host(const mr_cluster_facts *f, int32_t a, int32_t b) {
    return strcmp(f->ranks[a].host, f->ranks[b].host) == 0;
}

const mr_way_facts *mr_cluster_facts_way(const mr_cluster_facts *f, int32_t from, int32_t to, mr_way way) {
    const mr_way_facts *worst = NULL;
    for (int32_t i = 0; i < f->n_ways; i++) {
        const mr_way_facts *w = &f->ways[i];
        if (w->way != way)
            continue;
        if (w->from == from && w->to == to)
            return w;
        bool is_alike = mr_way_facts_works(w) && on_same_host(f, w->from, from) && on_same_host(f, w->to, to);
        if (is_alike && (!worst || w->link.bytes_per_second < worst->link.bytes_per_second))
            worst = w;
    }
    return worst;
}
