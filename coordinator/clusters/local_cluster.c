// SPDX-License-Identifier: Apache-2.0
#include "coordinator/clusters/local_cluster.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/cores.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "proto/channel_local.h"
#include "worker/stage/devices_check.h"
#include "worker/worker.h"

typedef struct stage_thread {
    mr_local_cluster *cluster;
    int cpu_id; /* of the step thread; -1: not bound */
    mr_channel *channel;
    mr_backend *backend;
    mr_devices devices;
    mr_thread *thread;
} stage_thread;

struct mr_local_cluster {
    mr_local_cluster_config config;
    char *model_path;
    mr_local_hub *hub;
    mr_channel *channel; /* the coordinator's */
    stage_thread *stages;
    atomic_bool ending;
    int *cpu_ids; /* one for each thread, if the cluster has as many threads as there are cores; else NULL */
};

/* Tells a synthetic stage, which may be sleeping and not see the end of the channel. */
static bool told_to_end(void *ctx) {
    return atomic_load_explicit(&((mr_local_cluster *)ctx)->ending, memory_order_relaxed);
}

static void run_stage(void *ctx) {
    stage_thread *t = ctx;
    mr_err err;
    if (t->cpu_id >= 0 && mr_thread_pin(t->cpu_id, &err) != MR_OK)
        mr_log_write(MR_LOG_DEBUG, "worker", "stage %d is not bound to a CPU: %s", t->channel->self, err.text);
    mr_worker_config config = {.model_path = t->cluster->model_path,
                               .channel = t->channel,
                               .coordinator = t->cluster->config.n_stages,
                               .epoch = t->cluster->config.epoch,
                               .backend = t->backend,
                               .devices = &t->devices,
                               .told_to_end = told_to_end,
                               .told_to_end_ctx = t->cluster};
    if (mr_worker_run(&config, &err) != MR_OK)
        mr_log_write(MR_LOG_DEBUG, "worker", "stage %d ended: %s", t->channel->self, err.text);
    mr_channel_destroy(t->channel);
}

static mr_status open_channel(mr_local_cluster *c, int32_t idx, mr_channel **out, mr_err *err) {
    mr_status status = mr_local_channel_open(c->hub, idx, out, err);
    if (status != MR_OK || !c->config.wrap)
        return status;
    status = c->config.wrap(c->config.wrap_ctx, out, err);
    if (status != MR_OK) {
        mr_channel_destroy(*out);
        *out = NULL;
    }
    return status;
}

static mr_status start_stage(mr_local_cluster *c, int32_t idx, mr_err *err) {
    stage_thread *t = &c->stages[idx];
    int32_t n_threads = c->config.threads_per_stage;
    const int *cpu_ids = c->cpu_ids ? c->cpu_ids + idx * n_threads : NULL;
    mr_cpu_options options = {.n_threads = n_threads, .adapts = c->config.threads_adapt, .cpu_ids = cpu_ids};
    mr_devices_config devices = c->config.devices;
    char name[32];
    snprintf(name, sizeof name, "stage %d", idx);
    devices.seat = idx;
    devices.n_seats = c->config.n_stages;
    t->cluster = c;
    t->cpu_id = cpu_ids ? cpu_ids[0] : -1;
    mr_status status = mr_cpu_backend_create(&options, &t->backend, err);
    if (status == MR_OK)
        status = mr_devices_create(&devices, n_threads, cpu_ids, &t->devices, err);
    if (status == MR_OK)
        status = mr_devices_check(&t->devices, err);
    if (status == MR_OK)
        status = open_channel(c, idx, &t->channel, err);
    if (status != MR_OK)
        return status;
    status = mr_thread_create(name, 0, run_stage, t, &t->thread, err);
    if (status != MR_OK)
        mr_channel_destroy(t->channel);
    return status;
}

/* Binds each thread to a core if there is exactly one thread for each core. Otherwise the system may keep two busy
 * threads on one core. The threads of a stage get neighbouring cores. With fewer threads, another process may need the
 * same cores, and with more, binding gains nothing. */
static mr_status choose_cpus(mr_local_cluster *c, mr_err *err) {
    mr_cores cores;
    mr_cores_get(&cores);
    int32_t n_threads = c->config.n_stages * c->config.threads_per_stage;
    if (cores.n != n_threads)
        return MR_OK;
    c->cpu_ids = mr_alloc_array((size_t)n_threads, sizeof *c->cpu_ids);
    if (!c->cpu_ids)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d CPU ids", n_threads);
    memcpy(c->cpu_ids, cores.cpu_ids, (size_t)n_threads * sizeof *c->cpu_ids);
    return MR_OK;
}

mr_status mr_local_cluster_create(const mr_local_cluster_config *config, mr_local_cluster **out, mr_err *err) {
    mr_local_cluster *c = mr_alloc(sizeof *c);
    if (c) {
        c->config = *config;
        c->model_path = mr_strdup(config->model_path);
        c->stages = mr_alloc_array((size_t)config->n_stages, sizeof *c->stages);
    }
    mr_status status = c && c->model_path && c->stages
                           ? mr_local_hub_create(config->n_stages + 1, MR_LOCAL_CLUSTER_REQUESTS, &c->hub, err)
                           : mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d stages", config->n_stages);
    if (status == MR_OK)
        status = choose_cpus(c, err);
    if (status == MR_OK)
        status = open_channel(c, config->n_stages, &c->channel, err);
    for (int32_t i = 0; i < config->n_stages && status == MR_OK; i++)
        status = start_stage(c, i, err);
    if (status != MR_OK) {
        mr_local_cluster_destroy(c);
        return status;
    }
    *out = c;
    return MR_OK;
}

mr_channel *mr_local_cluster_channel(mr_local_cluster *c) {
    return c->channel;
}

void mr_local_cluster_destroy(mr_local_cluster *c) {
    if (!c)
        return;
    c->ending = true;
    mr_channel_destroy(c->channel);
    for (int32_t i = 0; c->stages && i < c->config.n_stages; i++) {
        mr_thread_join(c->stages[i].thread);
        mr_devices_destroy(&c->stages[i].devices);
        mr_backend_destroy(c->stages[i].backend);
    }
    mr_local_hub_destroy(c->hub);
    mr_free(c->stages);
    mr_free(c->cpu_ids);
    mr_free(c->model_path);
    mr_free(c);
}
