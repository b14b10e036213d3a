/* cmd_batch.c - `millrace batch`: works through a file of requests. The main thread runs the job. A second thread
 * submits the lines of the file as requests, and writes the answers as results. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "coordinator/cli/cmd.h"
#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/serving/batch/batch_run.h"
#include "coordinator/serving/server/session_api.h"
#include "coordinator/session/session_starve.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/vocab/vocab.h"

enum { MAX_LIVE = 1000, GRACE_S = 5 };

typedef struct batch {
    const mr_options *options;
    mr_batch_input input;
    mr_batch_results results;
    mr_session session;
    mr_tokenizer *tok;
    char *model;
    mr_service *service;
    mr_session_api api;
    mr_thread *thread;
    /* Set by the second thread. Read them only after the thread has ended. */
    mr_status status;
    mr_err err;
    mr_batch_counts counts;
    /* Shared by both threads. */
    mr_mutex lock;
    mr_batch_counts shown; /* guarded by lock */
    atomic_bool over;      /* the job has ended, so no request can finish any more */
    /* For the main thread only. */
    bool is_ready;
    mr_progress bar;
    int64_t start_ns;
    uint32_t n_before; /* results that the file had at the start */
} batch;

/* The batch of this process. Global, because is_over has no context. */
static batch *running;

/* --- Progress ---------------------------------------------------------------------------------------------------- */

static void duration_text(double s, char out[24]) {
    if (s < 100)
        snprintf(out, 24, "%.0f s", s);
    else if (s < 6000)
        snprintf(out, 24, "%.0f min", s / 60);
    else
        snprintf(out, 24, "%.1f h", s / 3600);
}

static void show_progress(batch *b) {
    char text[PROGRESS_TEXT], left[24] = "?";
    if (!mr_progress_is_due(&b->bar))
        return;
    mr_mutex_lock(&b->lock);
    mr_batch_counts c = b->shown;
    mr_mutex_unlock(&b->lock);
    double s = (double)(mr_clock_now_ns() - b->start_ns) / 1e9, rate = (c.n_done - b->n_before) / s;
    if (rate > 0)
        duration_text((c.n_lines - c.n_done) / rate, left);
    snprintf(text, sizeof text,
             "%" PRIu32 " of %" PRIu32 " done (%.1f %%), %" PRIu32 " failed, %" PRIu32
             " under way; %.3g/s, %.4g tokens/s, %s left",
             c.n_done, c.n_lines, 100.0 * c.n_done / c.n_lines, c.n_failed, c.n_live, rate,
             (double)c.generated_tokens / s, left);
    mr_progress_show(&b->bar, text);
}

static void take_counts(void *ctx, const mr_batch_counts *counts) {
    batch *b = ctx;
    mr_mutex_lock(&b->lock);
    b->shown = *counts;
    mr_mutex_unlock(&b->lock);
}

/* The session's callback interrupted, called ten times a second. While the batch runs, the second thread checks for
 * signals itself. */
static bool is_over(void) {
    if (!running->is_ready)
        return mr_session_cluster_ended();
    show_progress(running);
    return mr_rank_loss_reported() || (mr_interrupt_seen() && mr_session_is_starved(&running->session));
}

/* --- The thread -------------------------------------------------------------------------------------------------- */

static bool stops(void *ctx) {
    batch *b = ctx;
    return mr_interrupt_seen() || atomic_load(&b->over);
}

/* Waits for the first turn of the job. The service refuses requests that come before it. */
static void wait_for_service(batch *b) {
    const struct timespec pause = {.tv_nsec = MR_NS_PER_MS};
    mr_service_stats stats = {.state = MR_SERVICE_LOADING};
    while (stats.state == MR_SERVICE_LOADING && !atomic_load(&b->over)) {
        nanosleep(&pause, NULL);
        mr_service_get_stats(b->service, &stats);
    }
}

static void work(void *ctx) {
    batch *b = ctx;
    wait_for_service(b);
    int32_t live = 2 * b->session.max_sequences; /* as many requests again are queued, so that no slot is idle */
    const mr_batch_config config = {.api = b->api.api,
                                    .input = &b->input,
                                    .results = &b->results,
                                    .max_live = live < MAX_LIVE ? live : MAX_LIVE,
                                    .prompts_are_chats = mr_options_number(b->options, MR_OPTION_BATCH_CHAT) != 0,
                                    .max_tokens = (int32_t)mr_options_number(b->options, MR_OPTION_N_PREDICT),
                                    .grace_ns = GRACE_S * MR_NS_PER_S,
                                    .stops = stops,
                                    .progress = take_counts,
                                    .ctx = b};
    b->status = mr_batch_run(&config, &b->counts, &b->err);
    if (b->status == MR_OK)
        b->status = mr_batch_input_check(&b->input, mr_options_text(b->options, MR_OPTION_BATCH_INPUT), &b->err);
    mr_service_stop(b->service);
}

/* --- The command ------------------------------------------------------------------------------------------------- */

static mr_status open_files(batch *b, mr_err *err) {
    const char *in = mr_options_text(b->options, MR_OPTION_BATCH_INPUT),
               *out = mr_options_text(b->options, MR_OPTION_BATCH_OUT);
    if (!in || !out)
        return mr_err_set(err, MR_E_INVALID, "%s is missing: the file of %s", in ? "-o" : "-i",
                          in ? "results" : "requests");
    if (strcmp(in, "-") == 0)
        return mr_err_set(err, MR_E_INVALID,
                          "-i: the input is read more than once, so it cannot be standard input; "
                          "hint: put it into a file");
    mr_status status = mr_batch_input_open(in, &b->input, err);
    if (status == MR_OK)
        status = mr_batch_results_open(out, &b->input, &b->results, err);
    if (status != MR_OK)
        return status;
    b->n_before = b->results.n_found;
    if (b->results.n_cut_bytes)
        mr_output_warning("%.160s: the last result is incomplete; its %zu bytes are removed", out,
                          b->results.n_cut_bytes);
    if (b->n_before)
        mr_output_note("%" PRIu32 " of %" PRIu32 " requests have results already", b->n_before, b->input.n);
    return MR_OK;
}

static mr_status load(batch *b, mr_err *err) {
    const mr_service_config config = {.max_waiting = 2 * MAX_LIVE};
    mr_status status = mr_session_open(b->options, &b->session, err);
    b->session.interrupted = is_over;
    if (status == MR_OK)
        status = mr_vocab_load(b->session.gguf, &b->tok, err);
    if (status == MR_OK)
        status = mr_session_size_for_server(&b->session, err);
    if (status == MR_OK)
        status = mr_service_create(&config, &b->service, err);
    if (status != MR_OK)
        return status;
    b->model = mr_session_api_model_name(b->session.model_path);
    if (!b->model)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the name of the model");
    status = mr_session_api_open(&b->api, &b->session, b->tok, b->service, b->model, err);
    return status == MR_OK ? mr_session_start(&b->session, err) : status;
}

static void report(const batch *b) {
    const mr_batch_counts *c = &b->counts;
    double s = (double)(mr_clock_now_ns() - b->start_ns) / 1e9;
    mr_output_note("%" PRIu32 " of %" PRIu32 " done; this run took %.1f s for %" PRIu32 " of them, with %" PRId64
                   " prompt tokens (%" PRId64 " from the prefix cache) and %" PRId64 " generated tokens: %.4g tokens/s",
                   c->n_done, c->n_lines, s, c->n_done - b->n_before, c->prompt_tokens, c->cached_tokens,
                   c->generated_tokens, (double)c->generated_tokens / s);
    if (c->n_failed)
        mr_output_warning("%" PRIu32 " of %" PRIu32 " results are errors", c->n_failed, c->n_done);
}

static mr_status run(batch *b, mr_err *err) {
    mr_status status = load(b, err);
    if (status != MR_OK)
        return status;
    b->is_ready = true;
    b->start_ns = mr_clock_now_ns();
    b->shown = (mr_batch_counts){.n_lines = b->input.n, .n_done = b->n_before};
    mr_progress_begin(&b->bar);
    status = mr_thread_create("batch", 0, work, b, &b->thread, err);
    if (status != MR_OK)
        return status;
    status = mr_service_run(b->service, b->session.job, b->tok, err);
    atomic_store(&b->over, true);
    mr_thread_join(b->thread);
    mr_progress_end(&b->bar);
    report(b);
    if (status == MR_OK && b->status != MR_OK) {
        *err = b->err;
        status = b->status;
    }
    return status == MR_OK ? mr_session_stop(&b->session, err) : status;
}

mr_status cmd_batch(const mr_options *options, mr_err *err) {
    batch b = {.options = options, .results.fd = -1};
    running = &b;
    mr_mutex_init(&b.lock);
    mr_interrupt_catch();
    mr_status status = open_files(&b, err);
    if (status == MR_OK && b.n_before < b.input.n)
        status = run(&b, err);
    mr_session_api_close(&b.api);
    mr_session_close(&b.session);
    mr_service_destroy(b.service);
    mr_tokenizer_destroy(b.tok);
    mr_free(b.model);
    mr_batch_results_close(&b.results);
    mr_batch_input_close(&b.input);
    mr_mutex_deinit(&b.lock);
    return status;
}
