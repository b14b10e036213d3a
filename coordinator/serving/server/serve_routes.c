/* coordinator/serving/server/serve_routes.c - the table of routes of `millrace serve`, and the answers that are made at
 * once: health, model, slots, metrics and the page. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordinator/serving/api/api.h"
#include "coordinator/serving/page/page.h"
#include "coordinator/serving/server/serve.h"
#include "coordinator/session/output_json.h"
#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_recover.h"
#include "coordinator/session/session_recovered.h"
#include "coordinator/session/session_recut.h"
#include "coordinator/session/session_spares.h"
#include "coordinator/session/session_starve.h"
#include "engine/base/mem.h"

typedef enum fixed_endpoint {
    HEALTH,
    TEXT_OF_MODELS,
    TEXT_OF_MODEL,
    TEXT_OF_PROPS,
    TEXT_OF_PLAN,
    SLOTS,
    METRICS,
    STATE,
    PAGE,
    DRAIN,
    UNDRAIN,
    RECUT
} fixed_endpoint;

static void no_memory(mr_http_answer *out) {
    mr_http_answer_error(out, MR_ERROR_OVERLOADED, "no memory for the answer; try again later");
}

/* Answers with root and releases root; NULL: no memory. */
static void answer_json(mr_http_answer *out, json_t *root) {
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    bool ok = text && mr_text_buf_append(&out->body, text, strlen(text)) && mr_text_buf_append(&out->body, "\n", 1);
    free(text);
    json_decref(root);
    if (!ok)
        no_memory(out);
}

/* --- Health ------------------------------------------------------------------------------------------------------ */

/* The error for a state other than ready. why: the text where the model has failed. */
static void refuse(mr_http_answer *out, const mr_service_stats *f, const char *why) {
    char text[MR_ERR_TEXT_BYTES + 64];
    if (f->state == MR_SERVICE_FAILED) {
        snprintf(text, sizeof text, "the model does not run: %s", why);
        mr_http_answer_error(out, MR_ERROR_FAILED, text);
    } else if (f->state == MR_SERVICE_ENDING) {
        mr_http_answer_error(out, MR_ERROR_ENDING, "the server is ending");
    } else {
        snprintf(text, sizeof text, "the model is loading: %d %%", (int)(100 * f->loaded));
        mr_http_answer_error(out, MR_ERROR_LOADING, text);
    }
}

bool serve_refuse(mr_serve *s, mr_http_answer *out) {
    mr_service_stats stats;
    mr_service_get_stats(s->service, &stats);
    if (stats.state == MR_SERVICE_READY)
        return false;
    refuse(out, &stats,
           "the server's log says why; hint: try again later"); /* clients must not learn ranks and hosts */
    return true;
}

/* The job waits for memory: requests are accepted, and wait. So the status of HTTP is 200: a supervisor that took the
 * server for dead would lose the requests. */
static json_t *degraded_json(const mr_session *session, const mr_session_starvation *state) {
    json_t *ranks = json_array();
    for (int32_t i = 0; i < session->cluster.n_ranks; i++)
        if (!mr_session_cluster_is_lost(&session->cluster, i))
            json_array_append_new(ranks, json_integer(i));
    return json_pack("{s:s, s:s, s:I, s:o}", "status", "degraded", "reason", state->why, "missing_bytes",
                     (json_int_t)state->missing_bytes, "ranks", ranks);
}

/* {"status":"ok"} where the model is ready; otherwise the error, the state and the share that is loaded. */
static void answer_health(mr_serve *s, mr_http_answer *out) {
    mr_service_stats stats;
    mr_service_get_stats(s->service, &stats);
    if (stats.state == MR_SERVICE_READY) {
        mr_session_starvation starvation;
        mr_session_get_starvation(&s->session, &starvation);
        answer_json(out,
                    starvation.is_on ? degraded_json(&s->session, &starvation) : json_pack("{s:s}", "status", "ok"));
        return;
    }
    refuse(out, &stats, stats.text);
    json_t *root = out->body.data ? json_loadb(out->body.data, out->body.len, 0, NULL) : NULL;
    json_object_set_new(root, "status", json_string(mr_service_state_name(stats.state)));
    json_object_set_new(root, "loaded", json_real(stats.loaded));
    mr_text_buf_clear(&out->body);
    answer_json(out, root);
}

/* --- The model --------------------------------------------------------------------------------------------------- */

static json_t *model_json(const mr_serve *s) {
    const mr_model_info *i = &s->session.info;
    return json_pack("{s:o, s:s, s:I, s:s, s:{s:o, s:i, s:i, s:i, s:i, s:i}}", "id",
                     mr_output_json_text(mr_str_from(s->model)), "object", "model", "created", (json_int_t)time(NULL),
                     "owned_by", "millrace", "meta", "name", mr_output_json_text(mr_str_from(i->name)), "n_vocab",
                     i->vocab_size, "n_ctx", s->session.ctx, "n_ctx_train", i->context_length, "n_embd", i->d_model,
                     "n_layers", i->n_layers);
}

/* The layers that a spare holds. */
static json_t *held_json(const mr_session *c, int32_t rank) {
    const bool *row = session_layers_row(c, rank);
    json_t *out = json_array();
    for (int32_t l = 0; l < c->info.n_layers; l++)
        if (row[l])
            json_array_append_new(out, json_integer(l));
    return out;
}

/* How the last recovery went, and what the job waits for. */
static json_t *recovery_json(mr_session *c) {
    mr_session_recovered done;
    mr_session_starvation starvation;
    mr_session_get_recovered(c, &done);
    mr_session_get_starvation(c, &starvation);
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:I}", "recoveries", (json_int_t)done.n, "detection_s",
                     done.detection_s, "planning_s", done.planning_s, "loading_s", done.loading_s, "computing_s",
                     done.again_s, "missing_bytes", (json_int_t)starvation.missing_bytes);
}

static json_t *plan_json(mr_serve *s) {
    mr_session *c = &s->session;
    json_t *lost = json_array(), *drained = json_array(), *spares = json_array(), *states = json_array();
    for (int32_t i = 0; i < c->cluster.n_ranks; i++) {
        if (mr_session_cluster_is_lost(&c->cluster, i))
            json_array_append_new(lost, json_integer(i));
        mr_rank_state state = mr_session_rank_state(c, i);
        if (state == MR_RANK_DRAINED)
            json_array_append_new(drained, json_integer(i));
        json_array_append_new(states, json_string(mr_rank_state_name(state)));
        if (session_spares_is_one(c, i))
            json_array_append_new(spares, json_pack("{s:i, s:o}", "rank", i, "layers", held_json(c, i)));
    }
    json_t *plan =
        json_pack("{s:I, s:o, s:o, s:o, s:o, s:i, s:i, s:i, s:i, s:o}", "epoch", (json_int_t)(c->epoch ? c->epoch : 1),
                  "lost", lost, "drained", drained, "spares", spares, "model",
                  mr_output_json_text(mr_str_from(s->model)), "context", c->ctx, "max_sequences", c->max_sequences,
                  "kv_blocks", c->n_kv_blocks, "kv_block_tokens", (int)MR_WIRE_BLOCK_TOKENS, "stages",
                  mr_session_is_starved(c) ? json_array() /* none runs */
                                           : mr_output_json_plan(&c->plan, c->sizes, &c->cluster));
    if (plan && c->recovery.is_on)
        json_object_set_new(plan, "ranks", states); /* the states of all ranks */
    else
        json_decref(states);
    if (plan && c->recovery.is_on)
        json_object_set_new(plan, "recovery", recovery_json(c));
    return plan;
}

/* The source of the template, or null where the template is PLAIN: such a model was not trained to chat. */
static json_t *template_json(const mr_chat_template *t) {
    bool has_one = t && mr_chat_template_get_origin(t) != CHAT_TEMPLATE_PLAIN;
    return has_one ? mr_output_json_text(mr_str_from(mr_chat_template_source(t))) : json_null();
}

static json_t *props_json(const mr_serve *s) {
    const char *path = s->session.model_path, *slash = path ? strrchr(path, '/') : NULL;
    return json_pack("{s:{s:i}, s:i, s:o, s:o, s:s}", "default_generation_settings", "n_ctx", s->session.ctx,
                     "total_slots", s->session.max_sequences, "model_path",
                     mr_output_json_text(mr_str_from(slash  ? slash + 1
                                                     : path ? path
                                                            : s->model)),
                     "chat_template", template_json(s->parts.chat), "build_info", "millrace " MILLRACE_VERSION);
}

static mr_status publish(mr_serve *s, serve_text which, json_t *root, mr_err *err) {
    char *dumped = root ? json_dumps(root, JSON_COMPACT) : NULL, *text = dumped ? mr_strdup(dumped) : NULL;
    free(dumped);
    json_decref(root);
    if (!text)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for what the server says of the model");
    mr_mutex_lock(&s->texts_lock);
    char *old = s->texts[which];
    s->texts[which] = text;
    mr_mutex_unlock(&s->texts_lock);
    mr_free(old);
    return MR_OK;
}

void mr_serve_init_texts(mr_serve *s) {
    mr_mutex_init(&s->texts_lock);
}

void mr_serve_free_texts(mr_serve *s) {
    for (int i = 0; i < SERVE_TEXTS; i++)
        mr_free(s->texts[i]);
    mr_mutex_deinit(&s->texts_lock);
}

mr_status mr_serve_publish_plan(mr_serve *s, mr_err *err) {
    mr_serve_stats_ranks(s->stats, &s->session);
    return publish(s, SERVE_PLAN, plan_json(s), err);
}

mr_status mr_serve_publish_texts(mr_serve *s, mr_err *err) {
    mr_status status =
        publish(s, SERVE_MODELS, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(s)), err);
    if (status == MR_OK)
        status = publish(s, SERVE_MODEL, model_json(s), err);
    if (status == MR_OK)
        status = publish(s, SERVE_PROPS, props_json(s), err);
    return status == MR_OK ? mr_serve_publish_plan(s, err) : status;
}

static void answer_text(mr_serve *s, serve_text which, mr_http_answer *out) {
    mr_mutex_lock(&s->texts_lock);
    const char *text = s->texts[which];
    bool is_copied = text && mr_text_buf_append(&out->body, text, strlen(text));
    mr_mutex_unlock(&s->texts_lock);
    if (!text)
        (void)serve_refuse(s, out);
    else if (!is_copied || !mr_text_buf_append(&out->body, "\n", 1))
        no_memory(out);
}

static void answer_model(mr_serve *s, const mr_http_request *request, mr_http_answer *out) {
    if (strcmp(request->tail, s->model) == 0)
        answer_text(s, SERVE_MODEL, out);
    else
        mr_http_answer_error(out, MR_ERROR_MODEL_NOT_FOUND, "the model does not exist here (see /v1/models)");
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
    answer_json(out, ok ? list : NULL);
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
        no_memory(out);
}

static void answer_state(mr_serve *s, mr_http_answer *out) {
    mr_err err;
    if (serve_stats_write(s->stats, s->metrics, &out->body, &err) != MR_OK)
        no_memory(out);
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
        no_memory(out);
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
        answer_json(out, json_pack("{s:i, s:b}", "rank", (int)rank, "drains", drains));
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
        answer_json(out, json_pack("{s:s}", "text", text));
}

static void answer(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out) {
    mr_serve *s = ctx;
    switch ((fixed_endpoint)endpoint) {
    case HEALTH:
        answer_health(s, out);
        break;
    case TEXT_OF_MODELS:
        answer_text(s, SERVE_MODELS, out);
        break;
    case TEXT_OF_MODEL:
        answer_model(s, request, out);
        break;
    case TEXT_OF_PROPS:
        answer_text(s, SERVE_PROPS, out);
        break;
    case TEXT_OF_PLAN:
        answer_text(s, SERVE_PLAN, out);
        break;
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

#define FIXED(path, is_open, is_quiet, endpoint)                                                                       \
    { "GET", path, is_open, is_quiet, answer, NULL, endpoint }
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
    FIXED("/", true, true, PAGE),
    FIXED("/page/state", false, true, STATE),
    FIXED("/page*", true, true, PAGE),
    FIXED("/health", true, true, HEALTH),
    FIXED("/v1/health", true, true, HEALTH),
    FIXED("/metrics", false, true, METRICS),
    FIXED("/v1/models", false, false, TEXT_OF_MODELS),
    FIXED("/v1/models/*", false, false, TEXT_OF_MODEL),
    FIXED("/models", false, false, TEXT_OF_MODELS),
    FIXED("/models/*", false, false, TEXT_OF_MODEL),
    FIXED("/props", false, false, TEXT_OF_PROPS),
    FIXED("/plan", false, true, TEXT_OF_PLAN),
    FIXED("/slots", false, true, SLOTS),
    {"POST", "/cluster/drain", false, false, answer, NULL, DRAIN},
    {"POST", "/cluster/undrain", false, false, answer, NULL, UNDRAIN},
    {"POST", "/cluster/recut", false, false, answer, NULL, RECUT},
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
