/* worker/stage/stage_experts.c - renews the experts that the device of a stage holds: gives the counts of the steps to
 * expert_renewal.c, and makes the exchanges that it asks for. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "worker/stage/stage_internal.h"

static int32_t n_layers_of(const mr_stage *s) {
    return s->config.range.last - s->config.range.first;
}

static int32_t n_shared_layers(const mr_stage *s) {
    int32_t n = 0;
    for (int32_t l = 0; l < n_layers_of(s); l++)
        n += mr_weights_held_experts(s->weights, l) > 0;
    return n;
}

bool stage_renews(const mr_stage *s) {
    return s->config.renews.rows > 0 && n_shared_layers(s) > 0;
}

/* The counts of a layer of the model. */
static const mr_use_counts *counts_of(const mr_stage *s, int32_t layer) {
    int32_t n, i = 0;
    const mr_use_counts *layers = use_counts_layers(s->uses, &n);
    while (i < n && layers[i].layer != layer)
        i++;
    MR_ASSERT(i < n);
    return &layers[i];
}

mr_status stage_create_renewal(mr_stage *s, mr_err *err) {
    int32_t n = 0, n_shared = n_shared_layers(s);
    mr_renewed_layer *layers = mr_alloc_array((size_t)n_shared, sizeof *layers);
    s->renewed = mr_alloc_array((size_t)n_shared, sizeof *s->renewed);
    mr_status status = MR_OK;
    if (!layers || !s->renewed) {
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for the counts of %d layers", n_shared);
        goto out;
    }
    for (int32_t l = 0; l < n_layers_of(s); l++) {
        int32_t n_held = mr_weights_held_experts(s->weights, l);
        if (n_held == 0)
            continue;
        layers[n] = (mr_renewed_layer){.layer = l,
                                       .n = s->config.info->n_experts,
                                       .held = mr_weights_held_list(s->weights, l),
                                       .n_held = n_held,
                                       .expert_bytes = mr_weights_held_bytes(s->weights, l)};
        s->renewed[n++] = counts_of(s, s->config.range.first + l);
    }
    status = mr_expert_renewal_create(&s->config.renews, layers, n, &s->renewal, err);
out:
    mr_free(layers);
    return status;
}

mr_status mr_stage_renew_experts(mr_stage *s, mr_err *err) {
    mr_expert_swap swap;
    mr_status status = MR_OK;
    MR_ASSERT(s->n_started == s->n_ended);
    if (!s->renewal)
        return MR_OK;
    mr_expert_renewal_begin(s->renewal, s->renewed);
    while (status == MR_OK && mr_expert_renewal_next(s->renewal, &swap))
        status = mr_weights_exchange_expert(s->weights, swap.layer, swap.place, swap.expert, err);
    return status;
}

mr_expert_share mr_stage_expert_share(const mr_stage *s) {
    return s->renewal ? mr_expert_renewal_share(s->renewal) : (mr_expert_share){0};
}
