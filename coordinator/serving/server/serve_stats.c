/* coordinator/serving/server/serve_stats.c - collects the numbers of service, job and plan under one lock, so that any
 * thread can read them while the main thread opens and closes the session. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/server/serve_stats.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "coordinator/session/session_recovered.h"
#include "coordinator/session/session_starve.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

struct serve_stats {
    mr_service *service;
    char *model;
    int64_t start_ns;
    mr_mutex lock;             /* guards the fields below; held while the session is read */
    mr_session *opened;        /* for what any thread may ask once it runs */
    const mr_session *session; /* NULL: there is no plan, or it may not be read */
    mr_job *job;
    bool is_paused;
    uint32_t epoch, counted_epoch; /* of the present plan, and of the one that the metrics were set from; 0: none */
    mr_page_ranks ranks[MR_RANK_STATES];
    char description[256];
    char host[HOST_NAME_MAX + 1]; /* this host, for stages that are threads of this process */
};

mr_status mr_serve_stats_create(mr_service *service, const char *model, serve_stats **out, mr_err *err) {
    serve_stats *f = mr_alloc(sizeof *f);
    if (f) {
        mr_mutex_init(&f->lock);
        f->service = service;
        f->start_ns = mr_clock_now_ns();
        for (int i = 0; i < MR_RANK_STATES; i++)
            f->ranks[i].state = mr_rank_state_name((mr_rank_state)i);
        f->model = mr_strdup(model);
        if (gethostname(f->host, sizeof f->host - 1) != 0)
            f->host[0] = 0;
    }
    if (!f || !f->model) {
        mr_serve_stats_destroy(f);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the statistics of a server");
    }
    *out = f;
    return MR_OK;
}

void mr_serve_stats_destroy(serve_stats *f) {
    if (!f)
        return;
    mr_mutex_deinit(&f->lock);
    mr_free(f->model);
    mr_free(f);
}

/* What the session says of ranks and plan. The lock is held. */
static void note_ranks(serve_stats *f, const mr_session *session) {
    int32_t n[MR_RANK_STATES];
    mr_session_count_ranks(session, n);
    for (int i = 0; i < MR_RANK_STATES; i++)
        f->ranks[i].n = n[i];
    f->epoch = session->epoch;
}

void mr_serve_stats_planned(serve_stats *f, mr_session *session) {
    const char *name = session->info.name;
    mr_mutex_lock(&f->lock);
    f->opened = session;
    f->session = session;
    snprintf(f->description, sizeof f->description, "%s%s%s", name, *name ? ", " : "", session->info.arch);
    note_ranks(f, session);
    mr_mutex_unlock(&f->lock);
}

void mr_serve_stats_started(serve_stats *f, const mr_session *session) {
    mr_mutex_lock(&f->lock);
    f->is_paused = false;
    note_ranks(f, session);
    f->session = mr_session_is_starved(session) ? NULL : session;
    f->job = session->job;
    mr_mutex_unlock(&f->lock);
}

void mr_serve_stats_ranks(serve_stats *f, const mr_session *session) {
    mr_mutex_lock(&f->lock);
    if (!f->is_paused) /* else mr_serve_stats_started does so */
        note_ranks(f, session);
    mr_mutex_unlock(&f->lock);
}

void mr_serve_stats_paused(serve_stats *f) {
    mr_mutex_lock(&f->lock);
    f->session = NULL;
    f->job = NULL;
    f->is_paused = true;
    mr_mutex_unlock(&f->lock);
}

bool serve_stats_changes_plan(serve_stats *f) {
    mr_mutex_lock(&f->lock);
    bool changes = f->is_paused;
    mr_mutex_unlock(&f->lock);
    return changes;
}

/* A stage reports only with steps. A stage that has reported all steps has been idle since then, and that idle time is
 * added here. n_steps: the number of all steps of the epoch, where no step is under way; otherwise -1. */
static void add_done(mr_job *job, int32_t i, int64_t n_steps, int64_t now_ns, mr_page_stage *out) {
    mr_stage_seconds s;
    mr_job_copy_stage_seconds(job, i, &s);
    for (int k = 0; k < MR_PHASE_COUNT; k++)
        out->ns[k] = s.ns[k];
    if (s.heard_ns > 0 && (int64_t)s.n_steps == n_steps)
        out->ns[MR_PHASE_NO_WORK] += now_ns - s.heard_ns;
    out->n_steps = s.n_steps;
    out->n_rows = s.n_rows;
    out->in_bytes = s.in_bytes;
    out->out_bytes = s.out_bytes;
    out->n_expert_uses = s.n_expert_uses;
    out->n_device_expert_uses = s.n_device_expert_uses;
    out->n_expert_swaps = s.n_expert_swaps;
    out->step_rows = s.usual.rows;
    out->step_s = s.usual.seconds;
}

static void fill_stage(const serve_stats *f, int32_t i, int64_t n_steps, int64_t now_ns, mr_page_stage *out) {
    const mr_session *s = f->session;
    const mr_plan_stage *stage = &s->plan.stages[i];
    const char *host = mr_session_facts_host(s, i);
    *out = (mr_page_stage){.first_layer = stage->first,
                           .last_layer = stage->last,
                           .rank = host ? stage->rank : 0,
                           .host = host ? host : f->host};
    if (s->sizes) {
        out->weight_bytes = s->sizes[i].weight_bytes;
        out->kv_bytes = s->sizes[i].kv_bytes;
        out->work_bytes = s->sizes[i].work_bytes;
    }
    if (f->job)
        add_done(f->job, i, n_steps, now_ns, out);
    if (s->facts.prediction && out->step_rows > 0)
        out->predicted_s = mr_plan_step_seconds(s->facts.prediction, i, out->step_rows);
}

static void fill_job(const mr_job_stats *job, mr_page_stats *out) {
    out->n_live = job->n_live;
    out->n_waiting = job->n_waiting;
    out->max_sequences = job->max_sequences;
    out->n_context = job->max_context;
    out->n_blocks = job->n_blocks;
    out->n_held_blocks = job->n_held_blocks;
    out->n_cached_blocks = job->n_cached_blocks;
    out->n_free_blocks = job->n_free_blocks;
    out->block_tokens = MR_WIRE_BLOCK_TOKENS;
    out->n_prompt_tokens = job->n_prompt_tokens;
    out->n_cached_tokens = job->n_cached_tokens;
    out->n_generated = job->n_generated;
    out->n_preempted = job->n_preempted;
    out->n_steps = job->n_steps;
    out->n_open_steps = job->n_open_steps;
    out->n_micro_batches = job->n_micro_batches;
}

static void fill(const serve_stats *f, const mr_service_stats *service, mr_page_stage *stages, mr_page_stats *out) {
    static const mr_page_state STATES[] = {[MR_SERVICE_LOADING] = MR_PAGE_LOADING,
                                           [MR_SERVICE_READY] = MR_PAGE_READY,
                                           [MR_SERVICE_ENDING] = MR_PAGE_ENDING,
                                           [MR_SERVICE_FAILED] = MR_PAGE_FAILED};
    int64_t now_ns = mr_clock_now_ns();
    *out = (mr_page_stats){.state = STATES[service->state],
                           .error = service->state == MR_SERVICE_FAILED ? service->text : NULL,
                           .loaded = service->loaded,
                           .version = MILLRACE_VERSION,
                           .model = f->model,
                           .description = f->description,
                           .now_ns = now_ns,
                           .start_ns = f->start_ns,
                           .stages = stages,
                           .plan = f->epoch,
                           .changes_plan = f->is_paused,
                           .n_rank_states = MR_RANK_STATES,
                           .ranks = f->ranks};
    fill_job(&service->job, out);
    if (service->state == MR_SERVICE_READY) {
        mr_session_starvation starvation;
        mr_session_get_starvation(f->opened, &starvation);
        out->waits_for_memory = starvation.is_on;
    }
    if (!f->session)
        return;
    out->n_layers = f->session->info.n_layers;
    out->n_context = f->session->ctx;
    out->n_stages = f->session->plan.n_stages;
    for (int32_t i = 0; i < out->n_stages; i++)
        fill_stage(f, i, service->job.n_open_steps == 0 ? service->job.n_epoch_steps : -1, now_ns, &stages[i]);
}

/* The lock is held, so that threads count in the order in which they have read. */
static mr_status count_now(serve_stats *f, const mr_page_stats *stats, mr_metrics *m, mr_err *err) {
    mr_status status = mr_page_count(stats, f->counted_epoch, m, err);
    if (status == MR_OK && !stats->changes_plan)
        f->counted_epoch = stats->plan;
    return status;
}

/* Writes the page's state (m and out), or counts for the metrics (count); the other one is NULL. */
static mr_status tell(serve_stats *f, mr_metrics *count, const mr_metrics *m, mr_text_buf *out, mr_err *err) {
    mr_service_stats service;
    mr_page_stats stats;
    mr_status status = MR_OK;
    mr_service_get_stats(f->service, &service); /* may wait for the job, so without the lock */
    mr_mutex_lock(&f->lock);
    size_t n = f->session ? (size_t)f->session->plan.n_stages : 0;
    mr_page_stage *stages = mr_alloc_array(n, sizeof *stages);
    if (!stages)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for the statistics of %zu stages", n);
    if (status == MR_OK)
        fill(f, &service, stages, &stats);
    if (status == MR_OK && count)
        status = count_now(f, &stats, count, err);
    if (status == MR_OK && out)
        status = mr_page_write_state(&stats, m, out, err);
    mr_mutex_unlock(&f->lock);
    mr_free(stages);
    return status;
}

mr_status serve_stats_write(serve_stats *f, const mr_metrics *m, mr_text_buf *out, mr_err *err) {
    return tell(f, NULL, m, out, err);
}

mr_status serve_stats_count(serve_stats *f, mr_metrics *m, mr_err *err) {
    return tell(f, m, NULL, NULL, err);
}
