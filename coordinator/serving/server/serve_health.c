/* coordinator/serving/server/serve_health.c - whether the server is up, for supervisors and balancers: /health, /livez,
 * /readyz, /version, and the refusal of requests while the model is not ready. /health tells a supervisor whether to
 * start the server anew, /readyz tells a balancer whether to send requests here. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/json/json.h"
#include "coordinator/serving/server/serve.h"
#include "coordinator/session/session_recovered.h"
#include "coordinator/session/session_starve.h"

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

/* Answers with the error that out has, and with the members of more beside it. Releases more; NULL: no memory. */
static void add_to_error(mr_http_answer *out, json_t *more) {
    json_t *root = mr_json_read((mr_str){out->body.data, out->body.len}, 0, NULL);
    if (!more || json_object_update(root, more) != 0) {
        json_decref(root);
        root = NULL;
    }
    json_decref(more);
    mr_text_buf_clear(&out->body);
    serve_answer_json(out, root);
}

/* Where the service is not ready, answers with the error, the state and the share that is loaded. */
static bool is_refused(mr_serve *s, mr_http_answer *out) {
    mr_service_stats stats;
    mr_service_get_stats(s->service, &stats);
    if (stats.state == MR_SERVICE_READY)
        return false;
    refuse(out, &stats, stats.text);
    add_to_error(out, json_pack("{s:s, s:f}", "status", mr_service_state_name(stats.state), "loaded", stats.loaded));
    return true;
}

static json_t *degraded_json(const mr_session *session, const mr_session_starvation *state) {
    json_t *ranks = json_array();
    for (int32_t i = 0; i < session->cluster.n_ranks; i++)
        if (!mr_session_cluster_is_lost(&session->cluster, i))
            json_array_append_new(ranks, json_integer(i));
    return json_pack("{s:s, s:s, s:I, s:o}", "status", "degraded", "reason", state->why, "missing_bytes",
                     (json_int_t)state->missing_bytes, "ranks", ranks);
}

static json_t *ok_json(void) {
    return json_pack("{s:s}", "status", "ok");
}

/* A job that waits for memory accepts requests, which wait. So the status of HTTP is 200: a supervisor that took the
 * server for dead would lose the requests. */
static void answer_health(mr_serve *s, mr_http_answer *out) {
    mr_session_starvation starvation;
    if (is_refused(s, out))
        return;
    mr_session_get_starvation(&s->session, &starvation);
    serve_answer_json(out, starvation.is_on ? degraded_json(&s->session, &starvation) : ok_json());
}

/* 200 only where a request would run now. One that has to wait for a plan is better off at another server. */
static void answer_readyz(mr_serve *s, mr_http_answer *out) {
    mr_session_starvation starvation;
    if (is_refused(s, out))
        return;
    mr_session_get_starvation(&s->session, &starvation);
    if (starvation.is_on) {
        mr_http_answer_error(out, MR_ERROR_NO_PLAN, "requests wait: the ranks lack memory for the model");
        add_to_error(out, degraded_json(&s->session, &starvation));
    } else if (serve_stats_changes_plan(s->stats)) {
        static const char WHY[] = "requests wait: another plan is being made";
        mr_http_answer_error(out, MR_ERROR_NO_PLAN, WHY);
        add_to_error(out, json_pack("{s:s, s:s}", "status", "changing", "reason", WHY));
    } else {
        serve_answer_json(out, ok_json());
    }
}

void serve_health_answer(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out) {
    mr_serve *s = ctx;
    (void)request;
    switch ((serve_probe)endpoint) {
    case SERVE_HEALTH:
        answer_health(s, out);
        break;
    case SERVE_LIVEZ:
        serve_answer_json(out, ok_json());
        break;
    case SERVE_READYZ:
        answer_readyz(s, out);
        break;
    case SERVE_VERSION:
        serve_answer_json(
            out, json_pack("{s:s, s:s, s:s}", "version", MILLRACE_VERSION, "name", "millrace", "commit", s->commit));
        break;
    }
}
