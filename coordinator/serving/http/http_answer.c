/* Makes the heads of answers, error objects and request ids, and writes the log line of each request. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <jansson.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "coordinator/serving/http/http_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"

/* --- Errors ------------------------------------------------------------------------------------------------------ */

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

void mr_http_answer_error(mr_http_answer *out, mr_error_id id, const char *message) {
    out->status = mr_error_kinds[id].status;
    out->content_type = "application/json";
    mr_text_buf_clear(&out->body);
    (void)!http_error_body(&out->body, id, message); /* without memory for a body, the status has to do */
}

const char *mr_http_query(const mr_http_request *request, const char *name) {
    /* libmicrohttpd's own functions are not const. */
    struct MHD_Connection *mhd = (struct MHD_Connection *)(uintptr_t)request->connection;
    return MHD_lookup_connection_value(mhd, MHD_GET_ARGUMENT_KIND, name);
}

/* --- Heads ------------------------------------------------------------------------------------------------------- */

static void put(struct MHD_Response *r, const char *name, const char *value) {
    if (value)
        (void)MHD_add_response_header(r, name,
                                      value); /* fails without memory, or for a value that is not allowed in a header */
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
        put(response, "X-Accel-Buffering", "no"); /* keeps nginx from buffering the stream */
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

/* --- Ids and the log --------------------------------------------------------------------------------------------- */

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

void http_client_address(struct MHD_Connection *mhd, char out[HTTP_CLIENT_BYTES]) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    socklen_t bytes = a && a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (!a || (a->sa_family != AF_INET && a->sa_family != AF_INET6) ||
        getnameinfo(a, bytes, out, HTTP_CLIENT_BYTES, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(out, HTTP_CLIENT_BYTES, "unix");
}

/* Copies a path from a client for the log. Characters that JSON would have to escape become question marks. */
static void plain_path(char *path) {
    for (char *p = path; *p; p++)
        if (*p <= ' ' || *p > '~' || *p == '"' || *p == '\\')
            *p = '?';
}

const char *mr_http_outcome_name(http_outcome outcome) {
    static const char *const NAMES[] = {[HTTP_OUTCOME_OK] = "ok",
                                        [HTTP_OUTCOME_REFUSED] = "refused",
                                        [HTTP_OUTCOME_FAILED] = "failed",
                                        [HTTP_OUTCOME_CANCELLED] = "cancelled"};
    return NAMES[outcome];
}

static http_outcome outcome_of(const http_exchange *x, bool completed) {
    if (x->info.failed)
        return HTTP_OUTCOME_FAILED;
    if (!completed || !x->queued)
        return atomic_load(&x->server->stopping) ? HTTP_OUTCOME_FAILED : HTTP_OUTCOME_CANCELLED;
    if (x->status < 400)
        return HTTP_OUTCOME_OK;
    bool is_refusal = x->status < 500 || (x->status == MHD_HTTP_SERVICE_UNAVAILABLE && x->info.prompt_tokens == 0);
    return is_refusal ? HTTP_OUTCOME_REFUSED : HTTP_OUTCOME_FAILED;
}

static void write_log(http_exchange *x, mr_log_level level, const mr_http_done *done) {
    char text[512], fields[768];
    const char *outcome = mr_http_outcome_name(done->outcome);
    double ms = done->seconds * 1e3;
    plain_path(x->path);
    plain_path(x->method);
    int n = snprintf(text, sizeof text, "%s %s %d %.1f ms", x->method, x->path, done->status, ms);
    if (x->info.prompt_tokens > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %" PRId64 " + %" PRId64 " tokens", x->info.prompt_tokens,
                      x->info.new_tokens);
    snprintf(text + n, sizeof text - (size_t)n, "%s%s, from %s, %s", done->outcome == HTTP_OUTCOME_OK ? "" : ", ",
             done->outcome == HTTP_OUTCOME_OK ? "" : outcome, x->client, x->id);
    n = snprintf(fields, sizeof fields,
                 "\"id\":\"%s\",\"client\":\"%s\",\"method\":\"%s\",\"path\":\"%s\",\"status\":%d,\"outcome\":\"%s\","
                 "\"ms\":%.3f",
                 x->id, x->client, x->method, x->path, done->status, outcome, ms);
    if (x->call)
        snprintf(fields + n, sizeof fields - (size_t)n,
                 ",\"prompt_tokens\":%" PRId64 ",\"new_tokens\":%" PRId64 ",\"first_token_ms\":%.3f",
                 x->info.prompt_tokens, x->info.new_tokens, x->info.first_token_s * 1e3);
    mr_log_event(level, "http", text, fields);
}

void http_exchange_log(http_exchange *x, bool completed) {
    mr_log_level level = x->route && x->route->quiet ? MR_LOG_DEBUG : MR_LOG_INFO;
    if (x->call)
        x->route->call->info(x->call, &x->info);
    const mr_http_done done = {.route = x->route ? x->route->path : "other",
                               .status = x->queued ? x->status : 499,
                               .outcome = outcome_of(x, completed),
                               .seconds = (double)(mr_clock_now_ns() - x->begin_ns) / 1e9};
    if (x->server->config.on_done)
        x->server->config.on_done(x->server->config.ctx, &done);
    if (mr_log_enabled(level))
        write_log(x, level, &done);
}
