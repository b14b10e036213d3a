// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/test_job_support.h"
#include "tests/support/test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"

tiny_desc job_model_desc(void) {
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    d.n_layers = 4;
    return d;
}

void job_save_bytes(char path[64], const void *bytes, size_t n) {
    strcpy(path, "/tmp/millrace-test-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    close(fd);
}

void job_model_init(job_model *m, gguf_writer *w) {
    size_t n;
    const uint8_t *bytes = gguf_writer_bytes(w, &n);
    job_save_bytes(m->path, bytes, n);
    m->tiny = tiny_model_open(w);
}

void job_model_deinit(job_model *m) {
    unlink(m->path);
    tiny_model_destroy(m->tiny);
}

static int32_t or_else(int32_t v, int32_t otherwise) {
    return v ? v : otherwise;
}

static void count_rows(void *ctx, int32_t n_rows) {
    *(int64_t *)ctx += n_rows;
}

mr_status job_rig_start(job_rig *rig, const job_rig_config *config, mr_err *err) {
    const job_model *m = config->model;
    *rig = (job_rig){0};
    mr_local_cluster_config local = {.model_path = config->stage_path ? config->stage_path : m->path,
                                     .n_stages = config->n_stages,
                                     .threads_per_stage = or_else(config->n_threads, 1),
                                     .devices = config->devices,
                                     .epoch = 1,
                                     .wrap = config->wrap,
                                     .wrap_ctx = config->wrap_ctx};
    if (mr_plan_balance(m->tiny->gguf, &m->tiny->info, config->n_stages, &rig->plan, err) != MR_OK ||
        mr_local_cluster_create(&local, &rig->cluster, err) != MR_OK)
        fail_msg("%s", err->text);
    rig->plan.synthetic = config->synthetic;
    rig->plan.must_ways = config->way != MR_WAY_HOST;
    for (int32_t i = 0; i < config->n_stages; i++) {
        mr_plan_stage *stage = &rig->plan.stages[i];
        stage->synthetic_fixed_ns = config->synthetic_ns;
        stage->way = config->way;
        if (mr_devices_may_hold_layers(&config->devices))
            stage->device_layers = stage->last - stage->first;
    }
    mr_job_config job = {.info = &m->tiny->info,
                         .epoch.plan = &rig->plan,
                         .channel = mr_local_cluster_channel(rig->cluster),
                         .epoch.number = 1,
                         .max_rows = or_else(config->max_rows, 64),
                         .max_out_rows = or_else(config->max_rows, 64),
                         .max_sequences = or_else(config->max_sequences, 4),
                         .max_context = or_else(config->max_context, 64),
                         .epoch.n_kv_blocks = or_else(config->n_kv_blocks, 16),
                         .token_s = config->token_s,
                         .grammars = config->grammars,
                         .control_bytes = config->control_bytes,
                         .kv_type = MR_TYPE_F16,
                         .fast_numerics = config->devices.is_fast,
                         .counts_uses = config->counts_uses,
                         .wants_restart = config->wants_restart,
                         .recover = config->recover,
                         .on_step = config->n_rows ? count_rows : NULL,
                         .on_step_ctx = config->n_rows};
    return mr_job_create(&job, &rig->job, err);
}

void job_rig_must_start(job_rig *rig, const job_rig_config *config) {
    mr_err err;
    expect_ok(job_rig_start(rig, config, &err), &err);
}

void job_rig_run(job_rig *rig) {
    mr_err err;
    if (mr_job_run(rig->job, &err) != MR_OK || mr_ledger_check(rig->job->epoch.ledger, &err) != MR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(mr_ledger_n_free(rig->job->epoch.ledger), rig->job->epoch.config.n_kv_blocks);
}

void job_rig_stop(job_rig *rig) {
    mr_job_destroy(rig->job);
    mr_local_cluster_destroy(rig->cluster);
    *rig = (job_rig){0};
}

bool listener_token(void *ctx, const mr_token_event *event) {
    listener *l = ctx;
    assert_int_equal(l->finish, MR_FINISH_NONE);
    l->finish = event->finish;
    l->status = event->status;
    if (event->finish == MR_FINISH_ERROR) {
        snprintf(l->text, sizeof l->text, "%s", event->text);
        return false;
    }
    assert_int_equal(event->status, MR_OK);
    assert_true(event->time_ns > l->heard_ns);
    l->heard_ns = event->time_ns;
    assert_true(l->n_ids < MAX_HEARD);
    if (l->n_ids == 0 && l->clock)
        l->first_token_at = (*l->clock)++;
    l->ids[l->n_ids++] = event->id;
    assert_int_equal(event->n_generated, l->n_ids);
    if (l->n_ids != l->stop_after)
        return false;
    l->finish = MR_FINISH_STOP;
    return true;
}

void listener_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits) {
    listener *l = ctx;
    (void)logits;
    assert_int_equal(first_position, l->n_logits);
    l->n_logits += n_rows;
}

void job_logits_take(void *ctx, int32_t first_position, int32_t n_rows, const float *logits) {
    job_logits *l = ctx;
    assert_int_equal(first_position, l->n_rows);
    assert_true(n_rows <= MAX_HEARD - l->n_rows);
    memcpy(l->rows[l->n_rows], logits, (size_t)n_rows * sizeof l->rows[0]);
    l->n_rows += n_rows;
}

void job_prompt(int32_t number, int32_t n, int32_t limit, int32_t *out_ids) {
    for (int32_t i = 0; i < n; i++)
        out_ids[i] = (int32_t)(mr_rng_u64(7, (uint32_t)number, (uint64_t)i) % (uint64_t)limit);
}

mr_sequence_desc job_sequence(int32_t number, listener *l) {
    static const int32_t ids[] = {3, 17, 40};
    static const float biases[] = {2, -INFINITY, -1.5f};
    mr_sequence_desc desc = {.sampling = {.temperature = 0.9f,
                                          .top_k = 40,
                                          .top_p = 0.95f,
                                          .repeat_penalty = 1.1f,
                                          .repeat_last_n = 32,
                                          .mirostat_tau = 3,
                                          .mirostat_eta = 0.2f,
                                          .seed = 1000 + (uint64_t)number},
                             .on_token = listener_token,
                             .ctx = l};
    mr_sampling_params *p = &desc.sampling;
    p->mirostat = number % 4 == 1 ? 2 : number % 4 == 2 ? 1 : 0;
    if (number % 4 == 3) {
        p->typical_p = 0.95f;
        p->top_n_sigma = 3;
        p->xtc_probability = 0.5f;
        p->xtc_threshold = 0.05f;
    }
    if (number % 4 != 0) {
        p->presence_penalty = 0.3f;
        p->frequency_penalty = 0.2f;
        p->dry_multiplier = 0.8f;
        p->dry_base = 1.75f;
        p->dry_allowed_length = 1;
        p->dry_last_n = number % 2 ? -1 : 20;
        p->bias_ids = p->dry_breakers = ids;
        p->biases = biases;
        p->n_biases = p->n_dry_breakers = 3;
    }
    return desc;
}

static void do_nothing(void *ctx) {
    (void)ctx;
}

void job_expect_threads(int n) {
    int have = job_count_threads();
    for (int i = 0; i < 2000 && have != n; i++) {
        usleep(1000);
        have = job_count_threads();
    }
    assert_int_equal(have, n);
}

int job_count_threads(void) {
    int n = 0;
    mr_thread *thread;
    mr_err err;
    /* The thread sanitizer adds a thread of its own when the first thread is created. */
    expect_ok(mr_thread_create("nothing", 0, do_nothing, NULL, &thread, &err), &err);
    mr_thread_join(thread);
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}
