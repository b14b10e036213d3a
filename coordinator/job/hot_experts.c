/* coordinator/job/hot_experts.c - lists the experts that devices get, by the profile of the model. The lists travel
 * with the plan, so that the other ranks need no profile. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/hot_experts.h"

#include "engine/base/mem.h"

/* Writes the n most used experts of a layer, or the first n if the profile does not have it. order: scratch. */
static mr_status list_layer(const mr_profile *p, int32_t layer, int32_t n, int32_t *order, uint32_t *out, mr_err *err) {
    const mr_profile_layer *l = mr_profile_find_layer(p, layer);
    mr_status status = l ? mr_profile_order(l, order, err) : MR_OK;
    for (int32_t i = 0; i < n && status == MR_OK; i++)
        out[i] = l && i < l->n ? (uint32_t)order[i] : (uint32_t)i;
    return status;
}

mr_status mr_hot_experts_list(const mr_plan *plan, const mr_profile *profile, mr_hot_experts *out, mr_err *err) {
    mr_hot_experts h = {0};
    int32_t *order = NULL;
    size_t n_all = 0, at = 0;
    for (int32_t i = 0; profile && !profile->is_neurons && i < plan->n_stages; i++)
        n_all += (size_t)plan->stages[i].host_experts * (size_t)plan->stages[i].device_experts;
    mr_status status = MR_OK;
    if (n_all == 0 || n_all > MR_MAX_HELD_EXPERTS)
        goto out;
    h.at = mr_alloc_array(n_all, sizeof *h.at);
    order = mr_alloc_array(MR_MAX_EXPERTS, sizeof *order);
    if (!h.at || !order)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for the experts of devices");
    for (int32_t i = 0; i < plan->n_stages && status == MR_OK; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        int32_t end = s->first + s->device_layers;
        for (int32_t l = end - s->host_experts; l < end && s->device_experts > 0 && status == MR_OK; l++) {
            status = list_layer(profile, l, s->device_experts, order, h.at + at, err);
            at += (size_t)s->device_experts;
            h.n[i] += (size_t)s->device_experts;
        }
    }
out:
    mr_free(order);
    if (status == MR_OK)
        *out = h;
    else
        mr_hot_experts_deinit(&h);
    return status;
}

void mr_hot_experts_deinit(mr_hot_experts *h) {
    mr_free(h->at);
    *h = (mr_hot_experts){0};
}
