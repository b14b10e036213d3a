// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/local_facts.h"

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "engine/base/cores.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "proto/channel_local.h"
#include "worker/lobby/lobby.h"
#include "worker/stage/devices_check.h"

enum { MAX_REQUESTS = 64 }; /* posted by one rank; the coordinator may post as many for each rank */
static const int64_t PATIENCE_NS = 60 * MR_NS_PER_S;

typedef struct local_rank {
    mr_lobby_config lobby;
    mr_devices devices;
    mr_thread *thread;
    const int *cpu_ids; /* one for each thread; NULL: not bound */
} local_rank;

typedef struct local_ranks {
    const mr_local_cluster_config *config;
    mr_local_hub *hub;
    mr_channel *channel; /* the coordinator's */
    mr_roll_call *roll;
    local_rank *at; /* [n_stages] */
    int32_t n_started;
    mr_cores cores;
    bool fills; /* there is one thread for each core, so each thread is bound to its core, as in local_cluster.c */
} local_ranks;

static void run_lobby(void *ctx) {
    const local_rank *k = ctx;
    bool abandoned;
    mr_err err;
    if (k->cpu_ids && mr_thread_pin(k->cpu_ids[0], &err) != MR_OK)
        mr_log_write(MR_LOG_DEBUG, "worker", "rank %d is not bound to a CPU: %s", (int)k->lobby.channel->self,
                     err.text);
    if (mr_lobby_run(&k->lobby, &abandoned, &err) != MR_OK)
        mr_log_write(MR_LOG_DEBUG, "worker", "rank %d ended: %s", (int)k->lobby.channel->self, err.text);
    mr_channel_destroy(k->lobby.channel);
}

static mr_status start_rank(local_ranks *l, int32_t idx, const char *cache_dir, mr_err *err) {
    local_rank *k = &l->at[idx];
    const mr_local_cluster_config *c = l->config;
    k->cpu_ids = l->fills ? l->cores.cpu_ids + idx * c->threads_per_stage : NULL;
    mr_cpu_options options = {.n_threads = c->threads_per_stage, .adapts = c->threads_adapt, .cpu_ids = k->cpu_ids};
    k->lobby = (mr_lobby_config){.model_path = c->model_path,
                                 .cache_dir = cache_dir,
                                 .coordinator = c->n_stages,
                                 .devices = &k->devices,
                                 .n_threads = c->threads_per_stage};
    mr_devices_config devices = c->devices;
    devices.seat = idx;
    devices.n_seats = c->n_stages;
    mr_status status = mr_cpu_backend_create(&options, &k->lobby.backend, err);
    if (status == MR_OK)
        status = mr_devices_create(&devices, c->threads_per_stage, k->cpu_ids, &k->devices, err);
    if (status == MR_OK)
        status = mr_devices_check(&k->devices, err);
    if (status == MR_OK)
        status = mr_local_channel_open(l->hub, idx, &k->lobby.channel, err);
    if (status != MR_OK)
        return status;
    status = mr_thread_create("rank", 0, run_lobby, k, &k->thread, err);
    if (status != MR_OK)
        mr_channel_destroy(k->lobby.channel);
    l->n_started += status == MR_OK;
    return status;
}

static mr_status start(local_ranks *l, const char *cache_dir, mr_err *err) {
    int32_t n = l->config->n_stages;
    mr_cores_get(&l->cores);
    l->fills = l->cores.n == n * l->config->threads_per_stage;
    l->at = mr_alloc_array((size_t)n, sizeof *l->at);
    if (!l->at)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to measure %d stages", (int)n);
    mr_status status = mr_local_hub_create(n + 1, MAX_REQUESTS * (n + 1), &l->hub, err);
    if (status == MR_OK)
        status = mr_local_channel_open(l->hub, n, &l->channel, err);
    if (status == MR_OK)
        status = mr_roll_call_create(l->channel, n, &l->roll, err);
    for (int32_t i = 0; i < n && status == MR_OK; i++)
        status = start_rank(l, i, cache_dir, err);
    return status;
}

static void stop(local_ranks *l) {
    if (l->n_started == l->config->n_stages)
        mr_roll_call_dismiss(l->roll, false, mr_clock_now_ns() + PATIENCE_NS);
    mr_roll_call_destroy(l->roll);
    mr_channel_destroy(l->channel); /* ends the ranks that were not told to end */
    for (int32_t i = 0; l->at && i < l->config->n_stages; i++) {
        mr_thread_join(l->at[i].thread);
        mr_devices_destroy(&l->at[i].devices);
        mr_backend_destroy(l->at[i].lobby.backend);
    }
    mr_local_hub_destroy(l->hub);
    mr_free(l->at);
}

mr_status local_facts_measure(const mr_local_cluster_config *config, const char *cache_dir, const mr_facts_wish *wish,
                              mr_facts *f, mr_err *err) {
    local_ranks l = {.config = config};
    mr_facts_wish each = *wish;
    each.memory_limit = wish->memory_limit / (uint64_t)config->n_stages;
    mr_status status = start(&l, cache_dir, err);
    if (status == MR_OK)
        status = mr_roll_call_wait(l.roll, mr_clock_now_ns() + PATIENCE_NS, NULL, NULL, err);
    if (status == MR_OK)
        status = mr_roll_call_check(l.roll, err);
    if (status == MR_OK)
        status = mr_facts_measure(f, l.roll, &each, err);
    stop(&l);
    return status;
}
