/* coordinator/job/job_epoch.c - the life of an epoch: sends the plan, waits until the stages have loaded, and stops the
 * stages. A job whose stages are lost begins another epoch with other stages. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "coordinator/job/hot_experts.h"
#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

static const int64_t SILENCE_NS = 10 * MR_NS_PER_S, FLUSH_NS = MR_NS_PER_S / 2, STOP_NS = MR_NS_PER_S;

/* kv_epoch: 0: no KV blocks go on. */
static mr_status send_plan(mr_job *job, const mr_epoch_kv *kv, uint32_t kv_epoch, mr_err *err) {
    int32_t n = job->epoch.plan.n_stages;
    Millrace__StageRange *ranges = mr_alloc_array((size_t)n, sizeof *ranges);
    Millrace__StageRange **range_ptrs = mr_alloc_array((size_t)n, sizeof(Millrace__StageRange *));
    mr_status status = MR_OK;
    bool ready = false;
    mr_hot_experts hot = {0};
    if (!ranges || !range_ptrs) {
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a plan of %d stages", n);
        goto out;
    }
    status = mr_hot_experts_list(&job->epoch.plan, job->config.profile, &hot, err);
    if (status != MR_OK)
        goto out;
    uint32_t *next_hot = hot.at;
    for (int32_t i = 0; i < n; i++) {
        millrace__stage_range__init(&ranges[i]);
        ranges[i].rank = (uint32_t)job->epoch.plan.stages[i].rank;
        ranges[i].first_layer = (uint32_t)job->epoch.plan.stages[i].first;
        ranges[i].device_layers = (uint32_t)job->epoch.plan.stages[i].device_layers;
        ranges[i].host_experts = (uint32_t)job->epoch.plan.stages[i].host_experts;
        ranges[i].device_experts = (uint32_t)job->epoch.plan.stages[i].device_experts;
        ranges[i].cold_partitions = (uint32_t)job->epoch.plan.stages[i].cold_partitions;
        ranges[i].way = (uint32_t)job->epoch.plan.stages[i].way;
        ranges[i].last_layer = (uint32_t)job->epoch.plan.stages[i].last;
        ranges[i].synthetic_fixed_ns = (uint64_t)job->epoch.plan.stages[i].synthetic_fixed_ns;
        ranges[i].synthetic_row_ns = (uint64_t)job->epoch.plan.stages[i].synthetic_row_ns;
        ranges[i].held_experts = next_hot;
        ranges[i].n_held_experts = hot.n[i];
        ranges[i].kv_from = kv_epoch > 0 ? (uint32_t)(kv->from[i] + 1) : 0;
        ranges[i].kv_ahead = kv_epoch > 0 && kv->has_ahead[i];
        if (next_hot)
            next_hot += hot.n[i];
        range_ptrs[i] = &ranges[i];
    }
    Millrace__Plan plan = MILLRACE__PLAN__INIT;
    plan.epoch = job->epoch.config.number;
    plan.n_stages = (size_t)n;
    plan.stages = range_ptrs;
    plan.n_kv_blocks = (uint32_t)job->epoch.config.n_kv_blocks;
    plan.kv_type = (uint32_t)job->config.kv_type;
    plan.max_rows = (uint32_t)job->config.max_rows;
    plan.max_out_rows = (uint32_t)job->config.max_out_rows;
    plan.max_sequences = (uint32_t)job->config.max_sequences;
    plan.max_context = (uint32_t)job->config.max_context;
    plan.ring_slots = (uint32_t)job->epoch.ring_slots;
    plan.map_weights = job->config.map_weights;
    plan.grammars = job->config.grammars;
    plan.fast_numerics = job->config.fast_numerics;
    plan.must_ways = job->epoch.plan.must_ways;
    plan.synthetic = job->epoch.plan.synthetic;
    plan.trace = job->config.on_spans != NULL;
    plan.counts_uses = job->config.counts_uses;
    plan.renew_rows = (uint32_t)job->config.renew_rows;
    plan.kv_epoch = kv_epoch;
    mr_weights_root root = job->config.weights_root;
    if (mr_weights_root_is_known(&root))
        plan.weights_root = (ProtobufCBinaryData){.len = sizeof root.bytes, .data = root.bytes};
    plan.n_sent_blocks = kv_epoch > 0 ? (uint32_t)kv->n_sent : 0;
    Millrace__Control message = MILLRACE__CONTROL__INIT;
    message.body_case = MILLRACE__CONTROL__BODY_PLAN;
    message.plan = &plan;
    status = mr_stage_links_ready(job->epoch.links, &ready, err);
    if (status == MR_OK)
        status = mr_stage_links_send(job->epoch.links, &message, NULL, err);
out:
    mr_hot_experts_deinit(&hot);
    mr_free(ranges);
    mr_free(range_ptrs);
    return status;
}

/* Reports the stages that have sent nothing for SILENCE_NS while loading, at most once per SILENCE_NS. */
static void name_silent(mr_job *job) {
    char names[256], place[MR_CHANNEL_NAME_BYTES + 4];
    size_t used = 0;
    int64_t now = mr_clock_now_ns();
    for (int32_t i = 0; i < job->epoch.plan.n_stages && used + 1 < sizeof names; i++) {
        if (job->epoch.stages[i].ready || now - job->epoch.stages[i].heard_ns < SILENCE_NS)
            continue;
        job->epoch.stages[i].heard_ns = now;
        int n = snprintf(names + used, sizeof names - used, "%sstage %d%s", used ? "; " : "", i,
                         job_place_of(job, (uint32_t)i, place));
        used += n > 0 ? (size_t)n : 0;
    }
    if (used > 0 && job->config.silent)
        job->config.silent(names);
}

static mr_status wait_until_loaded(mr_job *job, mr_err *err) {
    for (int32_t i = 0; i < job->epoch.plan.n_stages; i++)
        job->epoch.stages[i].heard_ns = mr_clock_now_ns();
    for (;;) {
        bool did = false;
        mr_status status = job_take_reports(job, &did, err);
        if (status != MR_OK)
            return status;
        bool all = true;
        for (int32_t i = 0; i < job->epoch.plan.n_stages; i++)
            all = all && job->epoch.stages[i].ready;
        if (all)
            return MR_OK;
        name_silent(job);
        if (!did)
            status = job_wait(job, MR_NEVER, err);
        if (status != MR_OK)
            return status;
    }
}

static mr_status create_links(mr_job *job, mr_err *err) {
    const mr_job_config *c = &job->config;
    job_epoch *e = &job->epoch;
    mr_stage_links_config links = {
        .channel = c->channel,
        .plan = &e->plan,
        .epoch = e->config.number,
        .ring_slots = e->ring_slots,
        .n_embd = (uint32_t)c->info->d_model,
        .control_bytes = c->control_bytes,
        .limits = {.n_stages = (uint32_t)e->plan.n_stages,
                   .max_rows = (uint32_t)c->max_rows,
                   .max_sequences = (uint32_t)c->max_sequences,
                   .max_context = (uint32_t)c->max_context,
                   .n_kv_blocks = (uint32_t)e->config.n_kv_blocks,
                   .n_vocab = (uint32_t)c->info->vocab_size},
    };
    return mr_stage_links_create(&links, &e->links, err);
}

static mr_status create_scheduler(mr_job *job, const mr_pipeline_times *times, mr_err *err) {
    const mr_job_config *c = &job->config;
    job_epoch *e = &job->epoch;
    mr_scheduler_config scheduler = {.n_stages = e->plan.n_stages,
                                     .max_rows = c->max_rows,
                                     .max_out_rows = c->max_out_rows,
                                     .max_sequences = c->max_sequences,
                                     .ring_slots = e->ring_slots,
                                     .token_s = c->token_s};
    mr_status status = mr_scheduler_create(&scheduler, e->ledger, &e->scheduler, err);
    if (status == MR_OK)
        status = mr_learned_times_create(e->plan.n_stages, &e->times, err);
    if (status == MR_OK && times) {
        mr_learned_times_measured(e->times, times);
        mr_scheduler_set_times(e->scheduler, mr_learned_times_get(e->times));
    }
    return status;
}

/* kept: as in job_epoch_begin. */
static mr_status create_epoch(mr_job *job, const mr_epoch_config *config, mr_ledger *kept, mr_err *err) {
    job_epoch *e = &job->epoch;
    int32_t max_blocks = (job->config.max_context + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS;
    size_t n_stages = (size_t)config->plan->n_stages, n_slots = (size_t)job->config.max_sequences;
    job_stage *stages = mr_alloc_array(n_stages, sizeof *stages);
    e->ring_slots = mr_scheduler_ring_slots(config->plan->n_stages);
    e->slots = mr_alloc_array(n_slots, sizeof *e->slots);
    e->steps = mr_alloc_array((size_t)e->ring_slots, sizeof *e->steps);
    e->copy_from = mr_alloc_array(n_slots, sizeof *e->copy_from);
    e->copy_to = mr_alloc_array(n_slots, sizeof *e->copy_to);
    mr_mutex_lock(&job->seconds_lock);
    e->stages = stages;
    e->plan = *config->plan;
    e->plan.n_stages = stages ? config->plan->n_stages : 0;
    mr_mutex_unlock(&job->seconds_lock);
    e->config = *config;
    e->config.plan = &e->plan;
    e->config.times = NULL;
    e->config.kv = NULL;
    e->ledger = kept;
    if (!stages || !e->slots || !e->steps || !e->copy_from || !e->copy_to)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a job of %zu stages", n_stages);
    mr_status status = MR_OK;
    if (!kept)
        status = mr_ledger_create(config->n_kv_blocks, job->config.max_sequences, max_blocks, &e->ledger, err);
    if (status == MR_OK)
        status = create_scheduler(job, config->times, err);
    return status == MR_OK ? create_links(job, err) : status;
}

/* All stages are loaded. Forgets KV blocks that some of them do not have. */
static void keep_blocks(mr_job *job, const mr_epoch_kv *kv) {
    bool all_have = kv != NULL;
    for (int32_t i = 0; i < job->epoch.plan.n_stages; i++)
        all_have = all_have && job->epoch.stages[i].report.has_kv;
    if (!all_have || kv->kept)
        mr_ledger_forget(job->epoch.ledger, all_have ? kv->kept : NULL);
    job->stats.n_kept_blocks = mr_ledger_n_cached(job->epoch.ledger);
}

mr_status job_epoch_begin(mr_job *job, const mr_epoch_config *config, mr_ledger *kept, uint32_t kept_epoch,
                          mr_err *err) {
    const mr_epoch_kv *kv = kept ? config->kv : NULL;
    job->failed_rank = job->lacking_rank = -1;
    mr_status status = create_epoch(job, config, kept, err);
    if (status == MR_OK) {
        status = mr_stage_links_open_results(job->epoch.links, err);
        if (status == MR_OK)
            status = send_plan(job, kv, kv ? kept_epoch : 0, err);
        if (status == MR_OK)
            status = wait_until_loaded(job, err);
        status = job_find_cause(job, status, err);
    }
    job->may_admit = true;
    job->admit_ns = 0;
    if (status != MR_OK) {
        job_epoch_end(job);
        return status;
    }
    keep_blocks(job, kv);
    job_count_again(job);
    return MR_OK;
}

/* Tells the stages to end, if their links still work. */
static void send_shutdown(mr_job *job) {
    mr_err ignored;
    bool ready = false;
    Millrace__Shutdown shutdown = MILLRACE__SHUTDOWN__INIT;
    Millrace__Control message = MILLRACE__CONTROL__INIT;
    message.body_case = MILLRACE__CONTROL__BODY_SHUTDOWN;
    message.shutdown = &shutdown;
    job->epoch.stopped = true;
    if (mr_stage_links_ready(job->epoch.links, &ready, &ignored) == MR_OK && ready &&
        mr_stage_links_send(job->epoch.links, &message, NULL, &ignored) == MR_OK)
        mr_stage_links_flush(job->epoch.links, mr_clock_now_ns() + FLUSH_NS);
}

void mr_job_stop(mr_job *job) {
    int64_t deadline = mr_clock_now_ns() + STOP_NS;
    mr_err ignored;
    if (!mr_job_has_epoch(job))
        return;
    if (!job->epoch.stopped)
        send_shutdown(job);
    while (mr_clock_now_ns() < deadline) {
        bool did = false, all = true;
        mr_status status = job_take_reports(job, &did, &ignored);
        if (status != MR_OK && status != MR_E_PEER_LOST) /* stages disconnect one after the other */
            return;
        for (int32_t i = 0; i < job->epoch.plan.n_stages; i++)
            all = all && job->epoch.stages[i].seconds.known;
        if (all || (!did && mr_channel_wait(job->config.channel, deadline, &ignored) != MR_OK))
            return;
    }
}

mr_status job_recover(mr_job *job, mr_status status, mr_err *err) {
    if (status == MR_OK || status == MR_E_CANCELLED || !job->config.recover)
        return status;
    return job->config.recover(job->config.recover_ctx, job, status, err);
}

mr_ledger *job_epoch_end_keeping(mr_job *job) {
    job_epoch *e = &job->epoch;
    mr_ledger *ledger = e->ledger;
    if (e->links && !e->stopped)
        send_shutdown(job);
    job_queue_all(job); /* before the prefix cache goes, which sequences may wait for */
    mr_stage_links_destroy(e->links);
    mr_scheduler_destroy(e->scheduler);
    mr_learned_times_destroy(e->times);
    if (ledger)
        mr_ledger_release_all(ledger);
    mr_free(e->slots);
    mr_free(e->steps);
    mr_free(e->copy_from);
    mr_free(e->copy_to);
    mr_mutex_lock(&job->seconds_lock);
    mr_free(e->stages);
    *e = (job_epoch){.config.n_kv_blocks = e->config.n_kv_blocks}; /* submit refuses what would not fit */
    mr_mutex_unlock(&job->seconds_lock);
    return ledger;
}

void job_epoch_end(mr_job *job) {
    mr_ledger_destroy(job_epoch_end_keeping(job));
}
