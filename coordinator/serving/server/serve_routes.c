/* coordinator/serving/server/serve_routes.c - the table of routes of `millrace serve`, and the answers about its work:
 * slots, metrics, the page, and calls that change the plan. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/api/api.h"
#include "coordinator/serving/page/page.h"
#include "coordinator/serving/server/serve.h"
#include "coordinator/session/session_recover.h"
#include "coordinator/session/session_recovered.h"
#include "coordinator/session/session_recut.h"
#include "coordinator/session/session_starve.h"
#include "engine/base/mem.h"

typedef enum fixed_endpoint { SLOTS, METRICS, STATE, PAGE, DRAIN, UNDRAIN, RECUT } fixed_endpoint;

void serve_no_memory(mr_http_answer *out) {
    mr_http_answer_error(out, MR_ERROR_OVERLOADED, "no memory for the answer; try again later");
}

void serve_answer_json(mr_http_answer *out, json_t *root) {
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    bool ok = text && mr_text_buf_append(&out->body, text, strlen(text)) && mr_text_buf_append(&out->body, "\n", 1);
    free(text);
    json_decref(root);
    if (!ok)
        serve_no_memory(out);
}

/* --- What it does ------------------------------------------------------------------------------------------------ */

static json_t *slot_json(const mr_serve *s, int32_t i, const mr_job_slot *slot) {
    if (!slot)
        return json_pack("{s:i, s:b, s:i}", "id", i, "is_processing", 0, "n_ctx", s->session.ctx);
    return json_pack("{s:i, s:I, s:b, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "id", slot->slot, "sequence",
                     (json_int_t)slot->sequence, "is_processing", 1, "n_ctx", s->session.ctx, "n_prompt",
                     slot->n_prompt, "n_tokens", slot->n_ids, "n_computed", slot->n_issued, "n_cached", slot->n_cached,
                     "max_tokens", slot->max_ids, "priority", slot->priority);
}

/* Lists all slots in order, free ones too, as llama-server does. */
static void answer_slots(mr_serve *s, mr_http_answer *out) {
    if (serve_refuse(s, out))
        return;
    int32_t n_slots = s->session.max_sequences;
    mr_job_slot *live = mr_alloc_array((size_t)n_slots, sizeof *live);
    const mr_job_slot **slots = mr_alloc_array((size_t)n_slots, sizeof *slots);
    json_t *list = live && slots ? json_array() : NULL;
    bool ok = list != NULL;
    int32_t n_live = ok ? mr_service_get_slots(s->service, live, n_slots) : 0;
    for (int32_t i = 0; i < n_live && i < n_slots; i++)
        if (live[i].slot < n_slots)
            slots[live[i].slot] = &live[i];
    for (int32_t i = 0; i < n_slots && ok; i++)
        ok = json_array_append_new(list, slot_json(s, i, slots[i])) == 0;
    mr_free(live);
    mr_free(slots);
    if (!ok)
        json_decref(list);
    serve_answer_json(out, ok ? list : NULL);
}

/* Once the session runs, with --recover. */
static void count_recoveries(mr_serve *s) {
    const mr_labels none = {{0}};
    mr_session_recovered done;
    mr_session_starvation starvation;
    mr_service_stats stats;
    mr_service_get_stats(s->service, &stats);
    if (stats.state != MR_SERVICE_READY)
        return;
    mr_session_get_recovered(&s->session, &done);
    mr_session_get_starvation(&s->session, &starvation);
    if (done.epoch == 0)
        return;
    mr_metrics_set(s->metrics, MR_METRIC_EPOCH, none, done.epoch);
    mr_metrics_set(s->metrics, MR_METRIC_RECOVERIES, none, (double)done.n);
    mr_metrics_set(s->metrics, MR_METRIC_RECOVERY_SECONDS, (mr_labels){{"detection"}}, done.detection_s);
    mr_metrics_set(s->metrics, MR_METRIC_RECOVERY_SECONDS, (mr_labels){{"planning"}}, done.planning_s);
    mr_metrics_set(s->metrics, MR_METRIC_RECOVERY_SECONDS, (mr_labels){{"loading"}}, done.loading_s);
    mr_metrics_set(s->metrics, MR_METRIC_RECOVERY_SECONDS, (mr_labels){{"computing"}}, done.again_s);
    mr_metrics_set(s->metrics, MR_METRIC_MEMORY_MISSING, none, (double)starvation.missing_bytes);
}

static void answer_metrics(mr_serve *s, mr_http_answer *out) {
    mr_err err;
    out->content_type = "text/plain; version=0.0.4; charset=utf-8";
    mr_metrics_set(s->metrics, MR_METRIC_REQUESTS_OPEN, (mr_labels){{0}}, mr_http_server_n_requests(s->http));
    mr_status status = serve_stats_count(s->stats, s->metrics, &err);
    count_recoveries(s);
    if (status != MR_OK || mr_metrics_write(s->metrics, &out->body, &err) != MR_OK)
        serve_no_memory(out);
}

static void answer_state(mr_serve *s, mr_http_answer *out) {
    mr_err err;
    if (serve_stats_write(s->stats, s->metrics, &out->body, &err) != MR_OK)
        serve_no_memory(out);
}

static void answer_page(const mr_http_request *request, mr_http_answer *out) {
    const mr_page_file *file = mr_page_find(mr_str_from(request->path));
    if (!file) {
        mr_http_answer_error(out, MR_ERROR_UNKNOWN_URL, "there is nothing at this path");
        return;
    }
    out->content_type = file->content_type;
    out->policy = mr_page_policy;
    if (!mr_text_buf_append(&out->body, file->data, file->bytes))
        serve_no_memory(out);
}

/* Answers when the wish is noted; /plan shows when it is granted. */
static void answer_drain(mr_serve *s, const mr_http_request *request, bool drains, mr_http_answer *out) {
    const char *text = mr_http_query(request, "rank");
    char *end = NULL;
    long rank = text ? strtol(text, &end, 10) : -1;
    mr_err err;
    if (serve_refuse(s, out))
        return;
    if (!text || end == text || *end || rank < 0 || rank > INT32_MAX)
        mr_http_answer_error(out, MR_ERROR_INVALID_VALUE, "rank has to be the number of a rank: ?rank=1");
    else if (mr_session_drain(&s->session, (int32_t)rank, drains, &err) != MR_OK)
        mr_http_answer_error(out, MR_ERROR_INVALID_VALUE, err.text);
    else
        serve_answer_json(out, json_pack("{s:i, s:b}", "rank", (int)rank, "drains", drains));
}

/* Answers by the latest look for a better plan. */
static void answer_recut(mr_serve *s, mr_http_answer *out) {
    char text[MR_ERR_TEXT_BYTES];
    mr_err err;
    if (serve_refuse(s, out))
        return;
    if (mr_session_recut(&s->session, text, &err) != MR_OK)
        mr_http_answer_error(out, MR_ERROR_INVALID_VALUE, err.text);
    else
        serve_answer_json(out, json_pack("{s:s}", "text", text));
}

static void answer(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out) {
    mr_serve *s = ctx;
    switch ((fixed_endpoint)endpoint) {
    case SLOTS:
        answer_slots(s, out);
        break;
    case METRICS:
        answer_metrics(s, out);
        break;
    case STATE:
        answer_state(s, out);
        break;
    case PAGE:
        answer_page(request, out);
        break;
    case DRAIN:
    case UNDRAIN:
        answer_drain(s, request, (fixed_endpoint)endpoint == DRAIN, out);
        break;
    case RECUT:
        answer_recut(s, out);
        break;
    }
}

/* --- The table --------------------------------------------------------------------------------------------------- */

/* Answers at once to a GET. */
#define AT_ONCE(path, is_open, is_quiet, function, endpoint)                                                           \
    { "GET", path, is_open, is_quiet, function, NULL, endpoint }
#define FIXED(path, is_open, endpoint) AT_ONCE(path, is_open, true, answer, endpoint)
#define TEXT(path, endpoint) AT_ONCE(path, false, false, serve_texts_answer, endpoint)
/* For programs that ask all the time, and have no key. */
#define PROBE(path, endpoint) AT_ONCE(path, true, true, serve_health_answer, endpoint)
#define CHANGE(path, endpoint)                                                                                         \
    { "POST", path, false, false, answer, NULL, endpoint }
#define CALL(path, endpoint)                                                                                           \
    { "POST", path, false, false, NULL, &serve_api_call, endpoint }
#define BATCHES(method, path)                                                                                          \
    { method, path, false, false, serve_batches_answer, NULL, 0 }

const mr_http_route serve_routes[] = {
    CALL("/v1/completions", API_COMPLETIONS),
    CALL("/completions", API_COMPLETIONS),
    CALL("/v1/chat/completions", API_CHAT_COMPLETIONS),
    CALL("/chat/completions", API_CHAT_COMPLETIONS),
    CALL("/v1/embeddings", API_EMBEDDINGS),
    CALL("/embeddings", API_EMBEDDINGS),
    CALL("/v1/rerank", API_RERANK),
    CALL("/rerank", API_RERANK),
    CALL("/v1/reranking", API_RERANK),
    CALL("/reranking", API_RERANK),
    CALL("/tokenize", API_TOKENIZE),
    CALL("/detokenize", API_DETOKENIZE),
    CALL("/apply-template", API_APPLY_TEMPLATE),
    FIXED("/", true, PAGE),
    FIXED("/page/state", false, STATE),
    FIXED("/page*", true, PAGE),
    PROBE("/health", SERVE_HEALTH),
    PROBE("/v1/health", SERVE_HEALTH),
    PROBE("/livez", SERVE_LIVEZ),
    PROBE("/readyz", SERVE_READYZ),
    PROBE("/version", SERVE_VERSION),
    FIXED("/metrics", false, METRICS),
    TEXT("/v1/models", SERVE_MODELS),
    TEXT("/v1/models/*", SERVE_MODEL),
    TEXT("/models", SERVE_MODELS),
    TEXT("/models/*", SERVE_MODEL),
    TEXT("/props", SERVE_PROPS),
    AT_ONCE("/plan", false, true, serve_texts_answer, SERVE_PLAN),
    FIXED("/slots", false, SLOTS),
    CHANGE("/cluster/drain", DRAIN),
    CHANGE("/cluster/undrain", UNDRAIN),
    CHANGE("/cluster/recut", RECUT),
    BATCHES("GET", "/v1/files"),
    BATCHES("POST", "/v1/files"),
    BATCHES("GET", "/v1/files/*"),
    BATCHES("DELETE", "/v1/files/*"),
    BATCHES("GET", "/v1/batches"),
    BATCHES("POST", "/v1/batches"),
    BATCHES("GET", "/v1/batches/*"),
    BATCHES("POST", "/v1/batches/*"),
    {"GET", "/trace", false, false, NULL, &serve_trace_call, 0},
};
const int32_t serve_n_routes = sizeof serve_routes / sizeof serve_routes[0];

void serve_count_request(void *ctx, const mr_http_done *done) {
    mr_serve *s = ctx;
    char status[16];
    snprintf(status, sizeof status, "%d", done->status);
    mr_metrics_add(s->metrics, MR_METRIC_REQUESTS,
                   (mr_labels){{done->route, status, mr_http_outcome_name(done->outcome)}}, 1);
    mr_metrics_observe(s->metrics, MR_METRIC_REQUEST_SECONDS, (mr_labels){{done->route}}, done->seconds);
}
