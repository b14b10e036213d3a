/* The life of a request: its head, its body, and then an answer, which is ready at once, comes later, or is streamed.
 * While a request waits for its answer, its connection is suspended. http_exchange_wake() resumes the connection,
 * once. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "coordinator/serving/http/http_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

enum {
    SWALLOW_BYTES = 64 << 20, /* of a refused body are read and dropped, so that the client reads the answer */
    TRIM_BYTES = 1 << 20,     /* a larger body is trimmed after use: the C library would keep its small pieces */
    BODIES = 8,               /* all bodies under way together have at most this many times the maximum size */
    LOOK_MS = 250,            /* interval at which waiting requests are checked without a wake */
};

/* --- Waiting ----------------------------------------------------------------------------------------------------- */

/* Resumes the connection. Call with the lock held. MHD_resume_connection may be called only for a suspended connection,
 * and only once. */
static void resume(http_exchange *x) {
    x->woken = true;
    if (!x->suspended)
        return;
    x->suspended = false;
    MHD_resume_connection(x->mhd);
}

void http_exchange_wake(void *exchange) {
    http_exchange *x = exchange;
    mr_mutex_lock(&x->lock);
    resume(x);
    mr_mutex_unlock(&x->lock);
}

void http_exchange_look(http_exchange *x, int64_t now_ns, bool gone) {
    mr_mutex_lock(&x->lock);
    x->gone |= gone;
    if (gone || (x->suspended && now_ns >= x->look_ns))
        resume(x);
    mr_mutex_unlock(&x->lock);
}

typedef enum wait_result { WAIT_SUSPENDED, WAIT_WOKEN, WAIT_GONE } wait_result;

/* Suspends the connection until look_ns at most, unless a wake came since the last check. On the connection's
 * thread. */
static wait_result wait_for_more(http_exchange *x, int64_t look_ns) {
    mr_mutex_lock(&x->lock);
    wait_result r = x->gone ? WAIT_GONE : x->woken ? WAIT_WOKEN : WAIT_SUSPENDED;
    if (r == WAIT_SUSPENDED) {
        x->suspended = true;
        x->look_ns = look_ns;
        MHD_suspend_connection(x->mhd);
    }
    mr_mutex_unlock(&x->lock);
    return r;
}

static mr_http_state next_of(http_exchange *x) {
    mr_mutex_lock(&x->lock);
    x->woken = false; /* before the check, so that a later wake is not missed */
    mr_mutex_unlock(&x->lock);
    return x->route->call->next(x->call, &x->out);
}

/* --- The answer -------------------------------------------------------------------------------------------------- */

/* Ends a stream in its midst: what libmicrohttpd still writes fails, and it closes the connection at once. One whose
 * reader says MHD_CONTENT_READER_END_WITH_ERROR would stay until the next time that its thread looks at the clock. */
static ssize_t cut_stream(http_exchange *x) {
    x->cut = true;
    shutdown(x->conn->fd, SHUT_RDWR);
    return MHD_CONTENT_READER_END_OF_STREAM;
}

/* Sends a comment event. Without it, a proxy may take a long silence for a dead connection. */
static bool add_ping(http_exchange *x, int64_t now_ns) {
    static const char PING[] = ": ping\n\n";
    if (now_ns - x->sent_ns < x->server->config.ping_s * MR_NS_PER_S)
        return false;
    return mr_text_buf_append(&x->out, PING, sizeof PING - 1);
}

/* The MHD_ContentReaderCallback of a stream. */
static ssize_t read_stream(void *ctx, uint64_t pos, char *buf, size_t max) {
    http_exchange *x = ctx;
    (void)pos;
    for (;;) {
        if (x->out_sent < x->out.len) {
            size_t n = x->out.len - x->out_sent < max ? x->out.len - x->out_sent : max;
            memcpy(buf, x->out.data + x->out_sent, n);
            x->out_sent += n;
            x->sent_ns = mr_clock_now_ns();
            return (ssize_t)n;
        }
        mr_text_buf_clear(&x->out);
        x->out_sent = 0;
        if (x->call_ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        mr_http_state state = next_of(x);
        x->call_ended = state == HTTP_END;
        if (state != HTTP_WAIT || add_ping(x, mr_clock_now_ns()))
            continue;
        switch (wait_for_more(x, x->sent_ns + x->server->config.ping_s * MR_NS_PER_S)) {
        case WAIT_SUSPENDED:
            return 0;
        case WAIT_GONE:
            return cut_stream(x);
        case WAIT_WOKEN:
            break;
        }
    }
}

static enum MHD_Result send_bytes(http_exchange *x, const mr_text_buf *bytes, int status, const char *type) {
    static char nothing[1];
    /* The bytes are valid until the request has ended. */
    return http_exchange_send(
        x, MHD_create_response_from_buffer(bytes->len, bytes->len ? bytes->data : nothing, MHD_RESPMEM_PERSISTENT),
        status, type);
}

static enum MHD_Result send_call(http_exchange *x) {
    const char *type = x->info.content_type;
    if (!x->info.streams)
        return send_bytes(x, &x->out, x->info.status, type ? type : "application/json");
    x->sent_ns = mr_clock_now_ns();
    return http_exchange_send(
        x, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, HTTP_CHUNK_BYTES, read_stream, x, NULL), x->info.status,
        type ? type : "text/event-stream; charset=utf-8");
}

/* Collects the output of the call until it is complete. A stream begins at once, so that pings are sent during a long
 * prefill. */
static enum MHD_Result turn_call(http_exchange *x) {
    for (;;) {
        x->route->call->info(x->call, &x->info);
        if (x->info.streams || x->call_ended)
            return send_call(x);
        mr_http_state state = next_of(x);
        x->call_ended = state == HTTP_END;
        if (state != HTTP_WAIT)
            continue;
        switch (wait_for_more(x, mr_clock_now_ns() + LOOK_MS * MR_NS_PER_MS)) {
        case WAIT_SUSPENDED:
            return MHD_YES;
        case WAIT_GONE:
            return MHD_NO;
        case WAIT_WOKEN:
            break;
        }
    }
}

static void error(http_exchange *x, mr_error_id id, const char *message) {
    mr_http_answer_error(&x->answer, id, message);
    x->status = x->answer.status;
}

static enum MHD_Result answer(http_exchange *x, const char *url, const char *method) {
    mr_http_request request = {.method = method, .path = url, .tail = "", .id = x->id, .connection = x->mhd};
    if (x->too_large)
        error(x, MR_ERROR_REQUEST_TOO_LARGE, "the body is larger than this server accepts (--max-body)");
    else if (x->no_memory)
        error(x, MR_ERROR_OVERLOADED, "no memory for the body; try again later");
    if (x->status)
        return send_bytes(x, &x->answer.body, x->status, x->answer.content_type);
    size_t n_path = strlen(x->route->path);
    if (x->route->path[n_path - 1] == '*')
        request.tail = url + n_path - 1;
    request.body = (mr_str){x->body.data, x->body.len};
    if (x->route->answer) {
        x->route->answer(x->server->config.ctx, x->route->endpoint, &request, &x->answer);
        x->status = x->answer.status;
        return send_bytes(x, &x->answer.body, x->status, x->answer.content_type);
    }
    x->call = x->route->call->begin(x->server->config.ctx, x->route->endpoint, &request, http_exchange_wake, x);
    if (x->call)
        return turn_call(x);
    error(x, MR_ERROR_OVERLOADED, "no memory for the request; try again later");
    return send_bytes(x, &x->answer.body, x->status, x->answer.content_type);
}

/* --- The head ---------------------------------------------------------------------------------------------------- */

static const char *header(const http_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}

static bool fits_path(const mr_http_route *r, const char *path) {
    size_t n = strlen(r->path);
    if (r->path[n - 1] == '*')
        return strncmp(r->path, path, n - 1) == 0 && path[n - 1];
    return strcmp(r->path, path) == 0;
}

static bool fits_method(const mr_http_route *r, const char *method) {
    return strcmp(r->method, method) == 0 || (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0);
}

/* Finds the route. *out_other: a route with the same path and another method. */
static const mr_http_route *find_route(const mr_http_server *s, const char *path, const char *method,
                                       const mr_http_route **out_other) {
    *out_other = NULL;
    for (int32_t i = 0; i < s->config.n_routes; i++) {
        const mr_http_route *r = &s->config.routes[i];
        if (!fits_path(r, path))
            continue;
        if (fits_method(r, method))
            return r;
        *out_other = r;
    }
    return NULL;
}

/* Checks the Host header, the origin and the key. False: the request is refused. */
static bool admit(http_exchange *x, const mr_http_route *known, bool is_options) {
    mr_http_server *s = x->server;
    const char *host = header(x, "Host"), *origin = header(x, "Origin");
    /* A page may reach this machine by a name of its own; with keys that gains it nothing, and a proxy may pass any
     * name. */
    if (s->listener.is_loopback && !s->config.unix_path && s->config.n_keys == 0 &&
        !http_host_is_local(host, s->config.host)) {
        error(x, MR_ERROR_WRONG_HOST,
              "the Host header does not name this machine; hint: with --api-key, any Host is accepted");
        return false;
    }
    http_origin judged = http_origin_judge(origin, host, s->config.origins, s->config.n_origins);
    if (judged == HTTP_ORIGIN_FOREIGN) {
        error(x, MR_ERROR_FOREIGN_ORIGIN, "web pages of other origins may not use this server (--cors-origin)");
        return false;
    }
    x->origin = judged == HTTP_ORIGIN_ALLOWED ? origin : NULL;
    if (is_options || (known && known->open))
        return true;
    mr_mutex_lock(&s->lock);
    bool admitted = http_keys_admit(&s->keys, header(x, "Authorization"), header(x, "X-Api-Key"));
    mr_mutex_unlock(&s->lock);
    if (admitted)
        return true;
    error(x, MR_ERROR_INVALID_API_KEY, "this server needs a valid API key in the header Authorization: Bearer KEY");
    return false;
}

/* Decides by the head alone whether the request is refused. */
static void judge_head(http_exchange *x, const char *url, const char *method, const char *version) {
    const mr_http_route *other;
    http_framing framing;
    http_framing_judge(x->mhd, &x->conn->target, url, method, version, &framing);
    /* Some lone LFs in a chunked body pass libmicrohttpd; behind an end of the connection nothing can hide. */
    x->malformed = framing.fault != NULL;
    x->closes = framing.is_chunked || x->malformed;
    if (x->malformed) {
        error(x, framing.error, framing.fault);
        return;
    }
    url = http_framing_path(url);
    bool is_options = strcmp(method, "OPTIONS") == 0;
    x->route = find_route(x->server, url, method, &other);
    if (!admit(x, x->route, is_options))
        return;
    if (atomic_load(&x->server->draining)) {
        error(x, MR_ERROR_ENDING, "the server is ending");
    } else if (x->route) {
        x->keeps_body = true;
    } else if (!other) {
        error(x, MR_ERROR_UNKNOWN_URL, "there is nothing at this path");
    } else if (is_options) {
        x->status = MHD_HTTP_NO_CONTENT;
        x->allow = other->method;
        x->preflight = x->origin != NULL;
    } else {
        x->allow = other->method;
        error(x, MR_ERROR_METHOD_NOT_ALLOWED,
              "this path does not support the method (the Allow header lists those that it supports)");
    }
}

/* Whether a refused body is not read to its end: because it is too large, or because the client waits for 100
 * Continue. */
static bool is_refused_at_once(http_exchange *x) {
    const char *length = header(x, "Content-Length"), *expect = header(x, "Expect");
    unsigned long long n = length ? strtoull(length, NULL, 10) : 0;
    x->too_large = n > x->server->config.max_body_bytes;
    x->keeps_body &= !x->too_large;
    return (x->too_large || x->status) &&
           (x->malformed || expect || n > x->server->config.max_body_bytes + SWALLOW_BYTES);
}

/* --- The body ---------------------------------------------------------------------------------------------------- */

static void drop_body(http_exchange *x) {
    atomic_fetch_sub(&x->server->body_bytes, x->body.len);
    mr_text_buf_deinit(&x->body);
    x->keeps_body = false;
}

/* Adds bytes to the body. False: the rest of the body is not read. */
static bool take_body(http_exchange *x, const char *bytes, size_t n) {
    mr_http_server *s = x->server;
    size_t max = s->config.max_body_bytes;
    x->body_bytes += n;
    http_conn_add_body(s, x->conn, n);
    x->too_large |= x->body_bytes > max;
    if (x->too_large && x->keeps_body)
        drop_body(x);
    if (!x->keeps_body)
        return x->body_bytes <= max + SWALLOW_BYTES;
    if (atomic_fetch_add(&s->body_bytes, n) + n > max * BODIES || !mr_text_buf_append(&x->body, bytes, n)) {
        atomic_fetch_sub(&s->body_bytes, n);
        x->no_memory = true;
        drop_body(x);
    }
    return true;
}

/* --- Life -------------------------------------------------------------------------------------------------------- */

static void release(http_exchange *x) {
    if (x->call)
        x->route->call->end(x->call); /* after end(), no wake comes */
    if (x->conn) {
        http_conn_set_exchange(x->server, x->conn, NULL);
        http_conn_set_phase(x->server, x->conn, CONN_HEAD);
    }
    drop_body(x);
    mr_text_buf_deinit(&x->answer.body);
    mr_text_buf_deinit(&x->out);
    mr_mutex_deinit(&x->lock);
    bool was_large = x->body_bytes >= TRIM_BYTES;
    mr_free(x);
    if (was_large)
        mr_mem_trim();
}

static http_exchange *begin(mr_http_server *s, struct MHD_Connection *mhd, const char *url, const char *method,
                            const char *version) {
    http_head_end(s, mhd);
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    http_exchange *x = info && info->socket_context ? mr_alloc(sizeof *x) : NULL;
    if (!x)
        return NULL;
    *x = (http_exchange){.server = s,
                         .conn = info->socket_context,
                         .mhd = mhd,
                         .begin_ns = mr_clock_now_ns(),
                         .answer = {.status = MHD_HTTP_OK, .content_type = "application/json"}};
    mr_mutex_init(&x->lock);
    atomic_fetch_add(&s->n_requests, 1);
    http_request_id(header(x, "X-Request-Id"), x->id);
    http_client_address(mhd, x->client);
    snprintf(x->path, sizeof x->path, "%s", url);
    snprintf(x->method, sizeof x->method, "%s", method);
    http_conn_set_phase(s, x->conn, CONN_BODY);
    http_conn_set_exchange(s, x->conn, x);
    judge_head(x, url, method, version);
    return x;
}

void *http_exchange_target(void *ctx, const char *target, struct MHD_Connection *mhd) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    http_conn *c = info ? info->socket_context : NULL;
    http_head_begin(ctx, mhd);
    if (c)
        http_framing_target(target, &c->target);
    return NULL; /* *request_ctx at the first call of the handler */
}

enum MHD_Result http_exchange_handle(void *ctx, struct MHD_Connection *mhd, const char *url, const char *method,
                                     const char *version, const char *upload, size_t *upload_bytes,
                                     void **request_ctx) {
    mr_http_server *s = ctx;
    http_exchange *x = *request_ctx;
    if (!x) {
        x = *request_ctx = begin(s, mhd, url, method, version);
        if (!x)
            return MHD_NO;
        return is_refused_at_once(x) ? answer(x, url, method) : MHD_YES;
    }
    url = http_framing_path(url);
    if (*upload_bytes > 0) {
        size_t n = *upload_bytes;
        *upload_bytes = 0;
        return take_body(x, upload, n) ? MHD_YES : MHD_NO;
    }
    if (x->call)
        return turn_call(x); /* the connection was suspended and is resumed */
    http_conn_set_phase(s, x->conn, CONN_ANSWER);
    return answer(x, url, method);
}

void http_exchange_completed(void *ctx, struct MHD_Connection *mhd, void **request_ctx,
                             enum MHD_RequestTerminationCode code) {
    mr_http_server *s = ctx;
    http_exchange *x = *request_ctx;
    if (!x) {
        http_head_end(s, mhd);
        return;
    }
    *request_ctx = NULL;
    bool completed = code == MHD_REQUEST_TERMINATED_COMPLETED_OK && !x->cut;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_HTTP_STATUS);
    if (!x->queued && info) { /* libmicrohttpd itself has refused the body, and calls that an error */
        x->queued = completed = true;
        x->status = (int)info->http_status;
    }
    http_exchange_log(x, completed);
    release(x);
    atomic_fetch_sub(&s->n_requests, 1);
}
