// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/plan.h"

#include <inttypes.h>

#include "engine/base/mem.h"

void mr_plan_weigh(const mr_gguf *g, const mr_model_info *info, mr_plan *plan) {
    for (int32_t s = 0; s < plan->n_stages; s++) {
        mr_plan_stage *stage = &plan->stages[s];
        stage->weight_bytes = mr_model_shared_bytes(g);
        for (int32_t i = stage->first; i < stage->last; i++)
            stage->weight_bytes += mr_model_layer_bytes(g, info, i);
        if (stage->first == 0)
            stage->weight_bytes += mr_model_embedding_bytes(g);
        if (stage->last == info->n_layers)
            stage->weight_bytes += mr_model_output_bytes(g);
    }
}

/* Bytes that a decode step of stage [first, last) reads for one token. The embedding is left out: a token reads one row
 * of it. */
static size_t range_cost(const mr_gguf *g, const mr_model_info *info, const size_t *prefix, int32_t first,
                         int32_t last) {
    return prefix[last] - prefix[first] + (last == info->n_layers ? mr_model_output_bytes(g) : 0);
}

/* out[i]: bytes that a token reads of the layers before i; NULL: no memory. */
static size_t *layer_prefix(const mr_gguf *g, const mr_model_info *info) {
    size_t *prefix = mr_alloc_array((size_t)info->n_layers + 1, sizeof *prefix);
    for (int32_t i = 0; prefix && i < info->n_layers; i++)
        prefix[i + 1] = prefix[i] + mr_model_layer_read_bytes(g, info, i);
    return prefix;
}

/* Cuts from the front: each stage is as large as limit allows, while at least one layer stays for each later stage.
 * false: a stage exceeds limit. */
static bool cut_within(const mr_gguf *g, const mr_model_info *info, const size_t *prefix, int32_t n_stages,
                       size_t limit, mr_plan *out) {
    int32_t first = 0;
    for (int32_t s = 0; s < n_stages; s++) {
        int32_t most = info->n_layers - (n_stages - 1 - s), last = first + 1;
        while (last < most && range_cost(g, info, prefix, first, last + 1) <= limit)
            last++;
        if (s == n_stages - 1)
            last = info->n_layers;
        out->stages[s] = (mr_plan_stage){.first = first, .last = last, .rank = s};
        if (range_cost(g, info, prefix, first, last) > limit)
            return false;
        first = last;
    }
    out->n_stages = n_stages;
    return true;
}

mr_status mr_plan_balance(const mr_gguf *g, const mr_model_info *info, int32_t n_stages, mr_plan *out, mr_err *err) {
    if (n_stages < 1 || n_stages > MR_MAX_STAGES || n_stages > info->n_layers)
        return mr_err_set(err, MR_E_INVALID,
                          "%" PRId32 " stages for a model of %" PRId32 " layers; hint: 1 to %" PRId32, n_stages,
                          info->n_layers, info->n_layers < MR_MAX_STAGES ? info->n_layers : MR_MAX_STAGES);
    size_t *prefix = layer_prefix(g, info);
    if (!prefix)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan %" PRId32 " layers", info->n_layers);
    *out = (mr_plan){0};
    /* Bisection for the smallest limit with which a cut exists. */
    size_t low = 0, high = range_cost(g, info, prefix, 0, info->n_layers);
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (cut_within(g, info, prefix, n_stages, mid, out))
            high = mid;
        else
            low = mid + 1;
    }
    bool found = cut_within(g, info, prefix, n_stages, low, out);
    mr_free(prefix);
    MR_ASSERT(found);
    mr_plan_weigh(g, info, out);
    return MR_OK;
}

mr_status mr_plan_cut(const mr_gguf *g, const mr_model_info *info, const int32_t *first_layers, int32_t n, mr_plan *out,
                      mr_err *err) {
    if (n < 0 || n >= MR_MAX_STAGES)
        return mr_err_set(err, MR_E_INVALID, "a cut at %" PRId32 " places; hint: 0 to %d", n, MR_MAX_STAGES - 1);
    int32_t before = 0;
    *out = (mr_plan){0};
    for (int32_t i = 0; i < n; i++) {
        if (first_layers[i] <= before || first_layers[i] >= info->n_layers)
            return mr_err_set(err, MR_E_INVALID,
                              "the cut at layer %" PRId32 " is not possible; hint: ascending layers from 1 to %" PRId32
                              ", each above the one before",
                              first_layers[i], info->n_layers - 1);
        before = first_layers[i];
    }
    for (int32_t s = 0; s <= n; s++) {
        int32_t first = s == 0 ? 0 : first_layers[s - 1], last = s == n ? info->n_layers : first_layers[s];
        out->stages[s] = (mr_plan_stage){.first = first, .last = last, .rank = s};
    }
    out->n_stages = n + 1;
    mr_plan_weigh(g, info, out);
    return MR_OK;
}

bool mr_plan_is_same(const mr_plan *a, const mr_plan *b) {
    bool same = a->n_stages == b->n_stages;
    for (int32_t i = 0; i < a->n_stages && same; i++) {
        const mr_plan_stage *x = &a->stages[i], *y = &b->stages[i];
        same = x->rank == y->rank && x->first == y->first && x->last == y->last &&
               x->device_layers == y->device_layers && x->host_experts == y->host_experts &&
               x->device_experts == y->device_experts && x->cold_partitions == y->cold_partitions;
    }
    return same;
}
