/* Heads of answers, error objects, request ids, and the line that each request leaves in the log. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "coordinator/http/http_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"

/* --- Errors ---------------------------------------------------------------------------------------------------------------- */

bool http_error_body(mr_text_buf *out, mr_error_id id, const char *message) {
    const mr_error_kind *kind = &mr_error_kinds[id];
    json_t *root = json_pack("{s:{s:s, s:s, s:n, s:s?}}", "error", "message", message, "type",
                             mr_error_type(kind->status), "param", "code", kind->code);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    bool ok = text && mr_text_buf_append(out, text, strlen(text)) && mr_text_buf_append(out, "\n", 1);
    free(text);
    json_decref(root);
    return ok;
}

void http_answer_error(http_answer *out, mr_error_id id, const char *message) {
    out->status = mr_error_kinds[id].status;
    out->content_type = "application/json";
    mr_text_buf_clear(&out->body);
    (void)!http_error_body(&out->body, id, message); /* the status says enough */
}

const char *http_query(const http_request *request, const char *name) {
    /* libmicrohttpd's own functions are not const. */
    struct MHD_Connection *mhd = (struct MHD_Connection *)(uintptr_t)request->connection;
    return MHD_lookup_connection_value(mhd, MHD_GET_ARGUMENT_KIND, name);
}

/* --- Heads ----------------------------------------------------------------------------------------------------------------- */

static void put(struct MHD_Response *r, const char *name, const char *value) {
    if (value)
        (void)MHD_add_response_header(r, name, value); /* fails without memory, or for a value that is no header */
}

static void put_cors(const http_exchange *x, struct MHD_Response *r) {
    if (x->server->config.n_origins > 0)
        put(r, "Vary", "Origin");
    if (!x->origin)
        return;
    put(r, "Access-Control-Allow-Origin", x->origin);
    put(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (!x->preflight)
        return;
    put(r, "Access-Control-Allow-Methods", "GET, POST, DELETE");
    put(r, "Access-Control-Allow-Headers",
        MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Access-Control-Request-Headers"));
    put(r, "Access-Control-Max-Age", "600");
}

static void put_retry(const http_exchange *x, struct MHD_Response *r, int status) {
    char seconds[16];
    int32_t s = x->info.retry_after_s;
    if (s <= 0 && (status == MHD_HTTP_SERVICE_UNAVAILABLE || status == MHD_HTTP_TOO_MANY_REQUESTS))
        s = 1;
    if (s <= 0)
        return;
    snprintf(seconds, sizeof seconds, "%" PRId32, s);
    put(r, "Retry-After", seconds);
}

enum MHD_Result http_exchange_send(http_exchange *x, struct MHD_Response *response, int status,
                                   const char *content_type) {
    if (!response)
        return MHD_NO;
    if (status != MHD_HTTP_NO_CONTENT)
        put(response, "Content-Type", content_type);
    put(response, "X-Request-Id", x->id);
    put(response, "X-Content-Type-Options", "nosniff");
    put(response, "Cache-Control", x->info.streams ? "no-cache, no-transform" : "no-store");
    put(response, "Content-Security-Policy", x->answer.policy ? x->answer.policy : "default-src 'none'");
    if (x->info.streams)
        put(response, "X-Accel-Buffering", "no"); /* for nginx */
    put(response, "Allow", x->allow);
    put(response, "WWW-Authenticate", status == MHD_HTTP_UNAUTHORIZED ? "Bearer" : NULL);
    put(response, "Connection", x->closes || atomic_load(&x->server->draining) ? "close" : NULL);
    put_cors(x, response);
    put_retry(x, response, status);
    x->status = status;
    enum MHD_Result queued = MHD_queue_response(x->mhd, (unsigned)status, response);
    x->queued = queued == MHD_YES;
    MHD_destroy_response(response);
    return queued;
}

/* --- Ids and the log ----------------------------------------------------------------------------------------------------- */

static bool is_id(const char *id) {
    size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n > 0 && !id[n] && n < HTTP_ID_BYTES;
}

void http_request_id(const char *of_client, char out[HTTP_ID_BYTES]) {
    uint64_t random[2] = {0};
    if (of_client && is_id(of_client)) {
        snprintf(out, HTTP_ID_BYTES, "%s", of_client);
        return;
    }
    if (getrandom(random, sizeof random, 0) != sizeof random)
        random[0] = (uint64_t)mr_clock_now_ns();
    snprintf(out, HTTP_ID_BYTES, "req-%016" PRIx64 "%016" PRIx64, random[0], random[1]);
}

/* A path of anybody, for JSON: what is no plain letter becomes a question mark. */
static void plain_path(char *path) {
    for (char *p = path; *p; p++)
        if (*p <= ' ' || *p > '~' || *p == '"' || *p == '\\')
            *p = '?';
}

void http_exchange_log(http_exchange *x, bool completed) {
    char text[512], fields[768];
    bool is_call = x->call != NULL;
    int status = x->queued ? x->status : 499;
    double ms = (double)(mr_clock_now_ns() - x->begin_ns) / 1e6;
    http_done done = {.route = x->route ? x->route->path : "other", .status = status, .seconds = ms / 1e3};
    mr_log_level level = x->route && x->route->quiet ? MR_LOG_DEBUG : MR_LOG_INFO;
    if (is_call)
        x->route->call->info(x->call, &x->info);
    if (x->server->config.on_done)
        x->server->config.on_done(x->server->config.ctx, &done);
    if (!mr_log_enabled(level))
        return;
    plain_path(x->path);
    plain_path(x->method);
    int n = snprintf(text, sizeof text, "%s %s %d %.1f ms", x->method, x->path, status, ms);
    if (x->info.prompt_tokens > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %" PRId64 " + %" PRId64 " tokens", x->info.prompt_tokens,
                      x->info.new_tokens);
    snprintf(text + n, sizeof text - (size_t)n, "%s, %s", completed ? "" : ", client gone", x->id);
    n = snprintf(fields, sizeof fields,
                 "\"id\":\"%s\",\"method\":\"%s\",\"path\":\"%s\",\"status\":%d,\"ms\":%.3f,\"completed\":%s", x->id,
                 x->method, x->path, status, ms, completed ? "true" : "false");
    if (is_call)
        snprintf(fields + n, sizeof fields - (size_t)n,
                 ",\"prompt_tokens\":%" PRId64 ",\"new_tokens\":%" PRId64 ",\"first_token_ms\":%.3f",
                 x->info.prompt_tokens, x->info.new_tokens, x->info.first_token_s * 1e3);
    mr_log_event(level, "http", text, fields);
}
