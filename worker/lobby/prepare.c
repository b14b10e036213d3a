/* worker/lobby/prepare.c - a load without a stage: the weights of some ranges are loaded and destroyed, which leaves
 * their buffers in the store. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/prepare.h"

#include "engine/base/mem.h"

enum { SOME_CONTEXT = 1 }; /* of the constants, which no store keeps */

void mr_prepare_read(const Millrace__Prepare *message, mr_prepare_wish *out) {
    *out = (mr_prepare_wish){
        .map_weights = message->map_weights, .fast_numerics = message->fast_numerics, .n = (int32_t)message->n_stages};
    for (int32_t i = 0; i < out->n; i++) {
        const Millrace__StageRange *s = message->stages[i];
        out->stages[i] = (mr_prepare_stage){.range = {(int32_t)s->first_layer, (int32_t)s->last_layer},
                                            .device = {.n_layers = (int32_t)s->device_layers,
                                                       .n_host_experts = (int32_t)s->host_experts,
                                                       .n_device_experts = (int32_t)s->device_experts,
                                                       .n_cold_partitions = (int32_t)s->cold_partitions}};
    }
}

static bool goes_on(void *ctx, size_t done_bytes, size_t total_bytes) {
    const mr_prepare_config *c = ctx;
    (void)done_bytes;
    (void)total_bytes;
    return !c->must_stop(c->ctx);
}

/* Describes the weights as the stage will, and takes what the store has of them. */
static mr_status take_kept(const mr_prepare_config *c, const mr_prepare_wish *wish, int32_t i, mr_weights **out,
                           mr_err *err) {
    const mr_prepare_stage *s = &wish->stages[i];
    mr_backends backends = mr_devices_for(c->devices, wish->fast_numerics).list;
    if (s->device.n_layers > 0 && mr_devices_holder(&backends) < 0)
        return mr_err_set(err, MR_E_PROTOCOL, "%d layers for a device, and this rank has none for layers",
                          (int)s->device.n_layers);
    if (s->device.n_cold_partitions > mr_model_partitions(c->info))
        return mr_err_set(err, MR_E_PROTOCOL, "cold_partitions is %d, the model has %d partitions of neurons",
                          (int)s->device.n_cold_partitions, (int)mr_model_partitions(c->info));
    if (s->device.n_layers > 0)
        mr_devices_hold(&backends, s->device);
    backends.at[backends.n++] = c->backend;
    const mr_weights_desc desc = {.gguf = c->gguf,
                                  .info = c->info,
                                  .range = s->range,
                                  .map = wish->map_weights,
                                  .max_context = SOME_CONTEXT,
                                  .store = c->store};
    mr_status status = mr_weights_create(&desc, &backends, out, err);
    return status == MR_OK ? mr_weights_take_kept(*out, err) : status;
}

mr_status mr_prepare_layers(const mr_prepare_config *config, const mr_prepare_wish *wish, uint64_t *out_loaded_bytes,
                            mr_err *err) {
    mr_weights **weights = mr_alloc_array((size_t)wish->n, sizeof(mr_weights *));
    mr_status status = weights ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d stages", (int)wish->n);
    *out_loaded_bytes = 0;
    for (int32_t i = 0; i < wish->n && status == MR_OK; i++)
        status = take_kept(config, wish, i, &weights[i], err);
    mr_weight_store_clear(config->store); /* nobody wants the rest */
    for (int32_t i = 0; i < wish->n && status == MR_OK; i++) {
        status = mr_weights_load(weights[i], goes_on, (void *)(uintptr_t)config, err);
        *out_loaded_bytes += mr_weights_bytes(weights[i]) - mr_weights_kept_bytes(weights[i]);
    }
    for (int32_t i = 0; weights && i < wish->n; i++)
        mr_weights_destroy(weights[i]);
    mr_free(weights);
    return status;
}
