/* coordinator/serving/server/serve_texts.c - what the server says of the model and of the plan: /v1/models, /props and
 * /plan. The main thread makes these texts when the plan changes, because the session is for that thread; the threads
 * of the HTTP server copy them. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordinator/serving/server/serve.h"
#include "coordinator/session/output_json.h"
#include "coordinator/session/session_layers.h"
#include "coordinator/session/session_recovered.h"
#include "coordinator/session/session_spares.h"
#include "coordinator/session/session_starve.h"
#include "engine/base/mem.h"

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

/* --- Answers ----------------------------------------------------------------------------------------------------- */

static void answer_text(mr_serve *s, serve_text which, mr_http_answer *out) {
    mr_mutex_lock(&s->texts_lock);
    const char *text = s->texts[which];
    bool is_copied = text && mr_text_buf_append(&out->body, text, strlen(text));
    mr_mutex_unlock(&s->texts_lock);
    if (!text)
        (void)serve_refuse(s, out);
    else if (!is_copied || !mr_text_buf_append(&out->body, "\n", 1))
        serve_no_memory(out);
}

static void answer_model(mr_serve *s, const mr_http_request *request, mr_http_answer *out) {
    if (strcmp(request->tail, s->model) == 0)
        answer_text(s, SERVE_MODEL, out);
    else
        mr_http_answer_error(out, MR_ERROR_MODEL_NOT_FOUND, "the model does not exist here (see /v1/models)");
}

void serve_texts_answer(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out) {
    if (endpoint == SERVE_MODEL)
        answer_model(ctx, request, out);
    else
        answer_text(ctx, (serve_text)endpoint, out);
}
