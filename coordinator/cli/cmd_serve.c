/* cmd_serve.c - `millrace serve`: listens, loads the model, and answers requests until a signal ends the server. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "coordinator/cli/cmd.h"
#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/serving/api/api.h"
#include "coordinator/serving/server/serve.h"
#include "coordinator/serving/server/service_manager.h"
#include "coordinator/session/session_starve.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/vocab/vocab.h"
#include "millrace_commit.h"

static const int64_t LOOK_NS = 5 * MR_NS_PER_MS, LAST_WORD_NS = MR_NS_PER_S / 4, FAILURE_NS = MR_NS_PER_S,
                     LOSS_NS = 2 * MR_NS_PER_S;

/* The server of this process. Global, because is_over has no context. */
static mr_serve *running;

/* --- The end ----------------------------------------------------------------------------------------------------- */

/* After the first signal, new requests are refused, and requests under way have --drain-s seconds to finish. */
static void begin_drain(mr_serve *s) {
    int64_t drain_s = mr_options_number(s->options, MR_OPTION_DRAIN_S);
    s->end_ns = mr_clock_now_ns() + drain_s * MR_NS_PER_S;
    s->session.cluster.told = true; /* ending by a signal is not a failure */
    mr_service_manager_is_stopping();
    mr_output_note("%s: ending, %" PRId32 " requests are open", mr_interrupt_name(),
                   mr_http_server_n_requests(s->http));
    if (s->batches)
        mr_batch_store_ask_to_stop(s->batches);
    mr_service_drain(s->service);
    mr_http_server_drain(s->http);
}

/* The session's callback interrupted, called ten times a second. While the model loads, there are no requests to wait
 * for. */
static bool is_over(void) {
    mr_serve *s = running;
    if (!s->is_ready)
        return mr_session_cluster_ended();
    if (mr_interrupt_take_hangup())
        mr_serve_renew(s);
    if (mr_interrupt_seen() && s->end_ns == 0)
        begin_drain(s);
    if (mr_rank_loss_reported() && s->loss_ns == 0)
        s->loss_ns = mr_clock_now_ns();
    /* After the loss of a rank, wait LOSS_NS: the job notices the loss, too, and its error says more. */
    if (s->end_ns > 0 && mr_session_is_starved(&s->session)) /* no request can finish */
        return true;
    return (s->loss_ns > 0 && mr_clock_now_ns() >= s->loss_ns + LOSS_NS) ||
           (s->end_ns > 0 && mr_clock_now_ns() >= s->end_ns);
}

/* Keeps the server up for FAILURE_NS after the job failed, so that clients get the reason as an answer. */
static void tell_of_failure(void) {
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    for (int64_t end_ns = mr_clock_now_ns() + FAILURE_NS; mr_clock_now_ns() < end_ns && !mr_interrupt_seen();)
        nanosleep(&pause, NULL);
}

/* Waits until all answers are sent, at most until the end of the drain time. */
static void finish_answers(mr_serve *s) {
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    int64_t now_ns = mr_clock_now_ns(), end_ns = s->end_ns;
    if (end_ns == 0)
        end_ns = now_ns + mr_options_number(s->options, MR_OPTION_DRAIN_S) * MR_NS_PER_S;
    if (end_ns < now_ns + LAST_WORD_NS) /* time to send an error to requests that were cut off */
        end_ns = now_ns + LAST_WORD_NS;
    mr_http_server_drain(s->http);
    while (mr_http_server_n_requests(s->http) > 0 && mr_clock_now_ns() < end_ns)
        nanosleep(&pause, NULL);
}

/* --- The start --------------------------------------------------------------------------------------------------- */

/* Sets the name of the model: --alias, or the file name without its extension. */
static mr_status name_model(mr_serve *s, mr_err *err) {
    const char *alias = mr_options_text(s->options, MR_OPTION_ALIAS);
    char *path = NULL;
    mr_status status = alias ? MR_OK : mr_session_model_path(s->options, &path, err);
    if (status != MR_OK)
        return status;
    s->model = alias ? mr_strdup(alias) : mr_session_api_model_name(path);
    mr_free(path);
    return s->model ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the name of the model");
}

/* The service's callback on_ready. */
static void tell_of_readiness(void *ctx) {
    const mr_serve *s = ctx;
    mr_output_note("ready at %s", mr_http_server_url(s->http));
    mr_service_manager_is_ready();
}

static mr_status create_parts(mr_serve *s, mr_err *err) {
    mr_status status = name_model(s, err);
    if (status == MR_OK)
        status = mr_metrics_create(&s->metrics, err);
    const mr_service_config config = {.on_ready = tell_of_readiness,
                                      .on_ready_ctx = s,
                                      .on_latency = mr_page_count_latency,
                                      .on_latency_ctx = s->metrics};
    if (status == MR_OK)
        status = mr_service_create(&config, &s->service, err);
    if (status == MR_OK)
        status = mr_serve_stats_create(s->service, s->model, &s->stats, err);
    if (status == MR_OK)
        status = mr_serve_batches_create(s, err);
    if (status == MR_OK)
        status = mr_serve_starter_create(&s->starter, err);
    return status == MR_OK ? mr_serve_trace_create(&s->trace, err) : status;
}

static mr_status listen_for_requests(mr_serve *s, mr_err *err) {
    mr_serve_config config;
    mr_status status = mr_serve_config_read(&config, s->options, err);
    config.http.ctx = s;
    if (status == MR_OK)
        status = mr_http_server_create(&config.http, &s->http, err);
    mr_serve_config_deinit(&config);
    if (status == MR_OK)
        mr_output_note("listening at %s", mr_http_server_url(s->http));
    return status;
}

static void on_loaded(void *ctx, size_t done_bytes, size_t total_bytes) {
    mr_service_set_loaded(ctx, done_bytes, total_bytes);
}

/* The session's on_recovery: what other threads read of the plan is taken away, and put back. */
static void on_recovery(void *ctx, bool begins) {
    mr_serve *s = ctx;
    mr_err err;
    if (begins) {
        mr_serve_stats_paused(s->stats);
        mr_serve_trace_begin(s->trace, NULL);
        return;
    }
    mr_serve_stats_started(s->stats, &s->session);
    if (mr_serve_publish_plan(s, &err) != MR_OK)
        mr_output_warning("/plan shows an old plan: %s", err.text);
    if (!mr_session_is_starved(&s->session))
        mr_serve_trace_begin(s->trace, &s->session);
}

/* The session's on_spares. */
static void on_spares(void *ctx) {
    mr_err ignored;
    (void)!mr_serve_publish_plan(ctx, &ignored); /* else /plan shows less than the spares hold */
}

static mr_status load(mr_serve *s, mr_err *err) {
    mr_status status = mr_session_open(s->options, &s->session, err);
    s->session.on_loaded = on_loaded;
    s->session.on_loaded_ctx = s->service;
    s->session.on_spans = mr_serve_trace_spans;
    s->session.on_spans_ctx = s->trace;
    s->session.interrupted = is_over;
    s->session.on_recovery = on_recovery;
    s->session.on_recovery_ctx = s;
    s->session.on_spares = on_spares;
    if (status == MR_OK)
        status = mr_vocab_load(s->session.gguf, &s->tok, err);
    if (status == MR_OK)
        status = mr_session_size_for_server(&s->session, err);
    if (status == MR_OK)
        status = mr_session_api_open(&s->parts, &s->session, s->tok, s->service, s->model, err);
    if (status == MR_OK)
        status = mr_serve_publish_texts(s, err);
    if (status != MR_OK)
        return status;
    mr_serve_stats_planned(s->stats, &s->session);
    status = mr_session_start(&s->session, err);
    if (status == MR_OK)
        status = mr_serve_publish_plan(s, err); /* now with the states of the ranks */
    if (status != MR_OK)
        return status;
    if (!mr_session_is_starved(&s->session)) { /* else on_recovery does so */
        mr_serve_stats_started(s->stats, &s->session);
        mr_serve_trace_begin(s->trace, &s->session);
    }
    atomic_store(&s->api, s->parts.api);
    return mr_serve_batches_start(s, err);
}

static mr_status run(mr_serve *s, mr_err *err) {
    mr_status status = load(s, err);
    if (status != MR_OK) {
        mr_service_fail(s->service, err->text);
        return status;
    }
    s->is_ready = true;
    status = mr_service_run(s->service, s->session.job, s->tok, err);
    if (status != MR_OK && status != MR_E_CANCELLED)
        tell_of_failure();
    finish_answers(s);
    return status == MR_OK ? mr_session_stop(&s->session, err) : status;
}

mr_status cmd_serve(const mr_options *options, mr_err *err) {
    mr_serve s = {.options = options, .commit = MILLRACE_COMMIT};
    running = &s;
    mr_serve_init_texts(&s);
    mr_mem_keep_little();
    mr_interrupt_catch();
    mr_interrupt_catch_hangup();
    mr_status status = create_parts(&s, err);
    if (status == MR_OK)
        status = listen_for_requests(&s, err);
    if (status == MR_OK)
        status = run(&s, err);
    if (status == MR_E_CANCELLED && mr_interrupt_seen() && !mr_rank_loss_reported()) {
        s.session.cluster.told = true;
        status = MR_OK; /* a signal asked the server to end */
    }
    if (s.batches)
        mr_batch_store_stop(s.batches);
    mr_http_server_destroy(s.http); /* before the objects that its routes use */
    mr_serve_starter_destroy(s.starter);
    mr_batch_store_destroy(s.batches);
    if (s.stats)
        mr_serve_stats_paused(s.stats);
    mr_session_close(&s.session);
    mr_serve_trace_destroy(s.trace);
    mr_serve_stats_destroy(s.stats);
    mr_metrics_destroy(s.metrics);
    mr_service_destroy(s.service);
    mr_session_api_close(&s.parts);
    mr_tokenizer_destroy(s.tok);
    mr_serve_free_texts(&s);
    mr_free(s.model);
    return status;
}
