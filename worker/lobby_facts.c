// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby_facts.h"

#include <xxhash.h>

#include "engine/base/log.h"
#include "worker/file_layers.h"
#include "worker/kept_facts.h"
#include "worker/probe.h"

/* Told to end, and made to move messages along, while it measures. */
typedef struct watch {
    mr_channel *channel;
    bool (*told_to_end)(void *ctx);
    void *ctx;
} watch;

static bool watch_told_to_end(void *ctx) {
    const watch *w = ctx;
    return w->told_to_end(w->ctx);
}

static void watch_progress(void *ctx) {
    const watch *w = ctx;
    mr_channel_progress(w->channel);
}

/* What was kept where that is enough and still holds; else, where it is wanted, a new measurement. */
static mr_status get_times(const mr_lobby_config *c, const mr_measure_config *m, const Millrace__Measure *wish,
                           mr_measured *out, bool *out_known, mr_err *err) {
    uint64_t key = mr_kept_facts_key(m, c->n_threads, (int32_t)wish->n_together);
    double sample_s = 0;
    mr_status status = MR_OK;
    *out_known = false;
    if (!wish->anew && mr_kept_facts_read(c->cache_dir, key, out)) {
        status = mr_measure_sample(m, &sample_s, err);
        *out_known = status == MR_OK && mr_kept_facts_hold(out, sample_s);
        if (status == MR_OK && !*out_known)
            mr_log_write(MR_LOG_INFO, "worker",
                         "a layer takes %.3f ms, not %.3f ms as when this machine was measured: measuring anew",
                         sample_s * 1e3, out->sample_s * 1e3);
    }
    if (!wish->anew || status != MR_OK)
        return status;
    status = mr_measure_stage_times(m, out, err);
    *out_known = status == MR_OK;
    if (status == MR_OK)
        mr_kept_facts_write(c->cache_dir, key, out);
    return status;
}

/* Without the file the header and small tensors are enough: matrices that are zeros take the same time as others. */
static mr_status open_model(const mr_lobby_config *c, const mr_lobby_file *file, watch *w, mr_gguf **out_gguf,
                            mr_model_info *out_info, mr_err *err) {
    const mr_file_wait wait = {watch_told_to_end, NULL, w};
    mr_file_client *client = file->client;
    if (file->problem)
        return mr_err_set(err, file->problem->status, "%s", file->problem->text);
    if (!c->backend || !c->model_path)
        return mr_err_set(err, MR_E_NOT_FOUND, "there is nothing to measure with");
    mr_status status =
        client ? mr_file_layers_open(client, &wait, out_gguf, err) : mr_gguf_open(c->model_path, out_gguf, err);
    if (status == MR_OK)
        status = mr_model_info_read(*out_gguf, out_info, err);
    if (status == MR_OK && client)
        status = mr_file_layers_fetch_to_measure(client, *out_gguf, out_info, &wait, err);
    return status;
}

/* The backends are those of a run, so without a model or a backend there is nothing to measure. */
static mr_status measure(const mr_lobby_config *c, const mr_lobby_file *file, const Millrace__Measure *wish, watch *w,
                         mr_lobby_facts *out, mr_err *err) {
    mr_gguf *gguf = NULL;
    mr_model_info info;
    mr_measured measured;
    bool is_known = false;
    mr_status status = open_model(c, file, w, &gguf, &info, err);
    if (status == MR_OK) {
        const mr_measure_config m = {.gguf = gguf,
                                     .info = &info,
                                     .backend = c->backend,
                                     .devices = wish->fast_numerics ? c->devices : NULL,
                                     .kv_type = (mr_type)wish->kv_type,
                                     .max_rows = (int32_t)wish->max_rows,
                                     .map_weights = wish->map_weights,
                                     .n_together = (int32_t)wish->n_together,
                                     .progress = watch_progress,
                                     .told_to_end = watch_told_to_end,
                                     .ctx = w};
        status = get_times(c, &m, wish, &measured, &is_known, err);
    }
    mr_gguf_close(gguf);
    mr_facts_message_fill(&out->facts, is_known ? &measured : NULL);
    return status;
}

mr_status mr_lobby_measure(const mr_lobby_config *config, const mr_lobby_file *file, const Millrace__Measure *wish,
                           bool (*told_to_end)(void *ctx), void *ctx, mr_lobby_facts *out) {
    watch w = {.channel = config->channel, .told_to_end = told_to_end, .ctx = ctx};
    mr_status status = measure(config, file, wish, &w, out, &out->problem);
    if (status == MR_E_CANCELLED)
        return status;
    out->facts.message.status = (uint32_t)status;
    if (status != MR_OK)
        out->facts.message.text = out->problem.text;
    return MR_OK;
}

mr_status mr_lobby_probe(const mr_lobby_config *config, const Millrace__Probe *wish, bool (*told_to_end)(void *ctx),
                         void *ctx, mr_lobby_facts *out) {
    const mr_probe_config probe = {.channel = config->channel,
                                   .peer = (int32_t)wish->peer,
                                   .answers_first = wish->answers_first,
                                   .told_to_end = told_to_end,
                                   .ctx = ctx};
    millrace__link_facts__init(&out->link);
    out->link.peer = wish->peer;
    mr_status status = (int32_t)wish->peer >= config->coordinator || (int32_t)wish->peer == config->channel->self
                           ? mr_err_set(&out->problem, MR_E_PROTOCOL, "there is no link to rank %u", wish->peer)
                           : mr_probe_link(&probe, &out->link.latency_s, &out->link.second_bytes, &out->problem);
    if (status == MR_E_CANCELLED)
        return status;
    out->link.status = (uint32_t)status;
    if (status != MR_OK)
        out->link.text = out->problem.text;
    return MR_OK;
}
