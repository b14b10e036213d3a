// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/measure_wish.h"

#include "worker/link_device.h"
#include "worker/lobby/kept_facts.h"

/* devices: those of a run. */
static mr_measure_config config_of(const mr_measure_wish *w, const mr_devices *devices) {
    return (mr_measure_config){.gguf = w->gguf,
                               .info = w->info,
                               .backend = w->lobby->backend,
                               .devices = devices,
                               .kv_type = (mr_type)w->message->kv_type,
                               .max_rows = (int32_t)w->message->max_rows,
                               .map_weights = w->message->map_weights,
                               .n_together = (int32_t)w->message->n_together,
                               .progress = w->progress,
                               .told_to_end = w->told_to_end,
                               .ctx = w->ctx};
}

/* A link to a neighbour takes memory of the device, too. Kept facts are without it. */
static void add_links(const mr_lobby_config *c, const mr_measure_config *m, mr_measured *out) {
    int32_t holder = mr_devices_holder(&m->devices->list);
    if (out->device.is_known && holder >= 0 && c->coordinator > 1) /* the endpoint behind the last rank */
        out->device.stage_bytes +=
            mr_link_device_stage_bytes(m->devices->list.at[holder], m->max_rows, m->info->d_model);
}

mr_status mr_measure_wish_facts(const mr_measure_wish *w, mr_facts_message *out, mr_err *err) {
    const mr_lobby_config *c = w->lobby;
    const mr_devices devices = mr_devices_for(c->devices, w->message->fast_numerics);
    const mr_measure_config config = config_of(w, &devices);
    mr_measured measured;
    bool is_known = false;
    mr_status status = mr_kept_facts_get(c->cache_dir, c->n_threads, &config, w->message, &measured, &is_known, err);
    if (status == MR_OK && is_known)
        add_links(c, &config, &measured);
    mr_facts_message_fill(out, status == MR_OK && is_known ? &measured : NULL);
    return status;
}

mr_status mr_measure_wish_again(const mr_measure_wish *w, mr_step_times *out, mr_err *err) {
    const mr_devices devices = mr_devices_for(w->lobby->devices, w->message->fast_numerics);
    const mr_measure_config config = config_of(w, &devices);
    return mr_measure_again(&config, out, err);
}
