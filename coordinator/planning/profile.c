/* coordinator/planning/profile.c - collects the counts of the layers, and orders experts or neurons by them. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

void mr_profile_deinit(mr_profile *p) {
    for (int32_t i = 0; i < p->n_layers; i++)
        mr_free(p->layers[i].counts);
    mr_free(p->layers);
    *p = (mr_profile){0};
}

/* The index of the layer, or of the place where it belongs. */
static int32_t place_of(const mr_profile *p, int32_t layer) {
    int32_t i = 0;
    while (i < p->n_layers && p->layers[i].layer < layer)
        i++;
    return i;
}

const mr_profile_layer *mr_profile_find_layer(const mr_profile *p, int32_t layer) {
    int32_t i = place_of(p, layer);
    return i < p->n_layers && p->layers[i].layer == layer ? &p->layers[i] : NULL;
}

static mr_status insert_layer(mr_profile *p, int32_t at, const mr_profile_part *part, mr_err *err) {
    mr_profile_layer *layers = mr_realloc(p->layers, (size_t)(p->n_layers + 1) * sizeof *layers);
    p->layers = layers ? layers : p->layers;
    uint64_t *counts = layers ? mr_alloc_array((size_t)part->n, sizeof *counts) : NULL;
    if (!counts)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the counts of layer %" PRId32, part->layer);
    memmove(layers + at + 1, layers + at, (size_t)(p->n_layers - at) * sizeof *layers);
    layers[at] = (mr_profile_layer){.layer = part->layer, .n = part->n, .counts = counts};
    if (p->n_layers++ == 0) {
        p->is_neurons = part->is_neurons;
        p->n_rows = part->n_rows;
    }
    return MR_OK;
}

mr_status mr_profile_add(mr_profile *p, const mr_profile_part *part, mr_err *err) {
    int32_t at = place_of(p, part->layer);
    bool is_known = at < p->n_layers && p->layers[at].layer == part->layer;
    if (p->n_layers > 0 && (p->is_neurons != part->is_neurons || p->n_rows != part->n_rows))
        return mr_err_set(err, MR_E_PROTOCOL,
                          "layer %" PRId32 " has the counts of %" PRIu64 " rows of %s, other layers of %" PRIu64
                          " rows of %s",
                          part->layer, part->n_rows, part->is_neurons ? "neurons" : "experts", p->n_rows,
                          p->is_neurons ? "neurons" : "experts");
    int32_t n_known = is_known ? p->layers[at].n_known : 0;
    if (part->first != n_known || (is_known && p->layers[at].n != part->n) || part->n_counts < 1 ||
        part->n_counts > part->n - part->first)
        return mr_err_set(err, MR_E_PROTOCOL,
                          "layer %" PRId32 ": counts %" PRId32 " to %" PRId32 " of %" PRId32
                          " do not follow the %" PRId32 " before",
                          part->layer, part->first, part->first + part->n_counts - 1, part->n, n_known);
    mr_status status = is_known ? MR_OK : insert_layer(p, at, part, err);
    if (status != MR_OK)
        return status;
    mr_profile_layer *l = &p->layers[at];
    memcpy(l->counts + l->n_known, part->counts, (size_t)part->n_counts * sizeof *l->counts);
    l->n_known += part->n_counts;
    return MR_OK;
}

mr_status mr_profile_check_model(const mr_profile *p, const mr_model_info *info, mr_err *err) {
    int32_t next = 0;
    for (int32_t l = 0; l < info->n_layers; l++) {
        const mr_layer_info *layer = mr_model_layer(info, l);
        int32_t n = layer->has_experts ? info->n_experts : layer->n_predictor > 0 ? layer->n_ff : 0;
        if (n == 0)
            continue;
        bool is_there = next < p->n_layers && p->layers[next].layer == l && p->is_neurons == !layer->has_experts;
        int32_t n_known = is_there && p->layers[next].n == n ? p->layers[next].n_known : 0;
        if (n_known != n)
            return mr_err_set(err, MR_E_FORMAT,
                              "layer %" PRId32 " has %" PRId32 " %s, and there are counts of %" PRId32, l, n,
                              layer->has_experts ? "experts" : "neurons", is_there ? p->layers[next].n_known : 0);
        next++;
    }
    if (next < p->n_layers)
        return mr_err_set(err, MR_E_FORMAT,
                          "there are counts of layer %" PRId32 ", which has neither experts nor predictors",
                          p->layers[next].layer);
    return MR_OK;
}

uint64_t mr_profile_sum(const mr_profile_layer *l) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < l->n; i++)
        sum += l->counts[i];
    return sum;
}

/* One expert or neuron in an order. */
typedef struct counted {
    uint64_t count;
    int32_t number;
} counted;

static int compare(const void *a, const void *b) {
    const counted *x = a, *y = b;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

mr_status mr_profile_order(const mr_profile_layer *l, int32_t *out, mr_err *err) {
    counted *list = mr_alloc_array((size_t)l->n, sizeof *list);
    if (!list)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to order the counts of layer %" PRId32, l->layer);
    for (int32_t i = 0; i < l->n; i++)
        list[i] = (counted){l->counts[i], i};
    qsort(list, (size_t)l->n, sizeof *list, compare);
    for (int32_t i = 0; i < l->n; i++)
        out[i] = list[i].number;
    mr_free(list);
    return MR_OK;
}

int32_t mr_profile_n_hottest(const mr_profile_layer *l, int32_t percent) {
    return (int32_t)(((int64_t)l->n * percent + 99) / 100);
}

mr_status mr_profile_shares(const mr_profile *p, double *out, mr_err *err) {
    int32_t n = p->layers[0].n;
    int32_t *order = mr_alloc_array((size_t)n, sizeof *order);
    mr_status status = order ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the order of %d experts", n);
    for (int32_t i = 0; i <= n; i++)
        out[i] = 0;
    for (int32_t l = 0; l < p->n_layers && status == MR_OK; l++) {
        const mr_profile_layer *layer = &p->layers[l];
        double sum = (double)mr_profile_sum(layer), used = 0;
        status = mr_profile_order(layer, order, err);
        for (int32_t i = 0; i < n && status == MR_OK; i++) {
            used += (double)layer->counts[order[i]];
            out[i + 1] += (sum > 0 ? used / sum : (double)(i + 1) / n) / p->n_layers;
        }
    }
    mr_free(order);
    return status;
}
