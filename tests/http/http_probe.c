/* http_probe - an HTTP server whose routes do nothing but what tests of the server need. Prints its address, and ends
 * in order on SIGTERM: then it says how many calls were begun and ended.
 *   GET  /open           needs no key            GET /fixed           "fixed\n"
 *   GET  /item/ANY       the rest of the path    POST /echo           the body
 *   POST /wait?ms=N      one answer, after N ms  POST /stream?n=N&ms=M   N events, M ms apart
 *                                               the first after M ms too, or after &first=F ms;
 *                                               with &fails=1 it fails at its end
 *   GET  /counts         {"live":calls}          POST /fail?status=N  a call whose answer is a 429, or N
 * Options: --port N --unix PATH --host H --key K (again) --origin O (again) --insecure --cert FILE --key-file FILE
 *          --max-body N --max-connections N --timeout S --ping S --drain S --json */
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordinator/serving/http/http_server.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum { MAX_LIST = 8, FIXED = 0, OPEN, ITEM, ECHO, COUNTS, WAIT, STREAM, FAIL };

/* --- Calls ------------------------------------------------------------------------------------------------------- */

typedef struct probe_call {
    int endpoint;
    void (*wake)(void *);
    void *wake_ctx;
    int64_t n, n_said, step_ns, next_ns;
    bool fails;
    int status;
    struct probe_call *next;
} probe_call;

static mr_mutex lock;
static probe_call *calls; /* all that live; under lock */
static atomic_int n_begun, n_ended;
static atomic_bool ending;

static int64_t number_of(const mr_http_request *r, const char *name, int64_t otherwise) {
    const char *text = mr_http_query(r, name);
    return text ? strtoll(text, NULL, 10) : otherwise;
}

static void *call_begin(void *ctx, int endpoint, const mr_http_request *r, void (*wake)(void *), void *wake_ctx) {
    probe_call *c = mr_alloc(sizeof *c);
    (void)ctx;
    if (!c)
        return NULL;
    *c = (probe_call){.endpoint = endpoint,
                      .wake = wake,
                      .wake_ctx = wake_ctx,
                      .n = number_of(r, "n", 1),
                      .fails = number_of(r, "fails", 0) != 0,
                      .status = endpoint == FAIL ? (int)number_of(r, "status", 429) : 200,
                      .step_ns = number_of(r, "ms", 0) * MR_NS_PER_MS};
    c->next_ns = mr_clock_now_ns() + number_of(r, "first", c->step_ns / MR_NS_PER_MS) * MR_NS_PER_MS;
    mr_mutex_lock(&lock);
    c->next = calls;
    calls = c;
    mr_mutex_unlock(&lock);
    atomic_fetch_add(&n_begun, 1);
    return c;
}

static mr_http_state call_next(void *call, mr_text_buf *out) {
    probe_call *c = call;
    char text[64];
    if (c->endpoint == FAIL && c->n_said == 0) {
        c->n_said = c->n = 1;
        return http_error_body(out, MR_ERROR_RATE_LIMIT, "try later") ? HTTP_MORE : HTTP_END;
    }
    if (c->n_said == c->n)
        return HTTP_END;
    mr_mutex_lock(&lock);
    bool is_time = mr_clock_now_ns() >= c->next_ns;
    if (is_time)
        c->next_ns += c->step_ns;
    mr_mutex_unlock(&lock);
    if (!is_time)
        return HTTP_WAIT;
    int n = snprintf(text, sizeof text, c->endpoint == STREAM ? "data: %lld\n\n" : "said %lld\n", (long long)c->n_said);
    c->n_said++;
    return mr_text_buf_append(out, text, (size_t)n) ? HTTP_MORE : HTTP_END;
}

static void call_info(const void *call, mr_http_call_info *out) {
    const probe_call *c = call;
    *out = (mr_http_call_info){.status = c->status,
                               .streams = c->endpoint == STREAM,
                               .failed = c->fails && c->n_said == c->n,
                               .retry_after_s = c->endpoint == FAIL ? 7 : 0,
                               .prompt_tokens = 3,
                               .new_tokens = c->n_said};
}

static void call_end(void *call) {
    mr_mutex_lock(&lock);
    probe_call **place = &calls;
    while (*place != call)
        place = &(*place)->next;
    *place = (*place)->next;
    mr_mutex_unlock(&lock);
    mr_free(call);
    atomic_fetch_add(&n_ended, 1);
}

static const mr_http_call_ops CALL = {call_begin, call_next, call_info, call_end};

/* Wakes those whose time has come. */
static void tick(void *ctx) {
    const struct timespec pause = {.tv_nsec = 200000};
    (void)ctx;
    while (!atomic_load(&ending)) {
        mr_mutex_lock(&lock);
        for (probe_call *c = calls; c; c = c->next)
            if (mr_clock_now_ns() >= c->next_ns)
                c->wake(c->wake_ctx);
        mr_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
    }
}

/* --- Answers ----------------------------------------------------------------------------------------------------- */

static void answer(void *ctx, int endpoint, const mr_http_request *r, mr_http_answer *out) {
    char text[96];
    mr_str said = {"fixed\n", 6};
    const mr_http_server *const *server = ctx;
    out->content_type = "text/plain";
    if (endpoint == ECHO)
        said = r->body;
    if (endpoint == ITEM)
        said = mr_str_from(r->tail);
    if (endpoint == COUNTS) {
        snprintf(text, sizeof text, "{\"live\":%d,\"requests\":%d,\"connections\":%d}",
                 atomic_load(&n_begun) - atomic_load(&n_ended), mr_http_server_n_requests(*server),
                 http_server_n_connections(*server));
        said = mr_str_from(text);
    }
    if (!mr_text_buf_append(&out->body, said.data ? said.data : "", said.len))
        mr_http_answer_error(out, MR_ERROR_INTERNAL, "no memory");
}

static const mr_http_route ROUTES[] = {
    {"GET", "/open", true, false, answer, NULL, OPEN},      {"GET", "/fixed", false, false, answer, NULL, FIXED},
    {"GET", "/item/*", false, false, answer, NULL, ITEM},   {"POST", "/echo", false, false, answer, NULL, ECHO},
    {"GET", "/counts", true, true, answer, NULL, COUNTS},   {"POST", "/wait", false, false, NULL, &CALL, WAIT},
    {"POST", "/stream", false, false, NULL, &CALL, STREAM}, {"POST", "/fail", false, false, NULL, &CALL, FAIL},
};

/* --- The program ------------------------------------------------------------------------------------------------- */

static char *read_text(const char *path) {
    static char texts[2][16384];
    static int n;
    FILE *f = fopen(path, "re");
    char *text = texts[n++ % 2];
    text[f ? fread(text, 1, sizeof texts[0] - 1, f) : 0] = 0;
    if (f)
        fclose(f);
    return text;
}

int main(int argc, char **argv) {
    static const char *keys[MAX_LIST], *origins[MAX_LIST];
    mr_http_server *server = NULL;
    int drain_s = 30;
    mr_http_config c = {.host = "127.0.0.1",
                        .keys = keys,
                        .origins = origins,
                        .max_body_bytes = 1 << 20,
                        .max_connections = 320,
                        .client_timeout_s = 30,
                        .ping_s = 5,
                        .routes = ROUTES,
                        .n_routes = sizeof ROUTES / sizeof ROUTES[0],
                        .ctx = &server};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        i += strcmp(name, "--insecure") != 0 && strcmp(name, "--json") != 0;
        if (strcmp(name, "--port") == 0)
            c.port = atoi(value);
        else if (strcmp(name, "--unix") == 0)
            c.unix_path = value;
        else if (strcmp(name, "--host") == 0)
            c.host = value;
        else if (strcmp(name, "--key") == 0 && c.n_keys < MAX_LIST)
            keys[c.n_keys++] = value;
        else if (strcmp(name, "--origin") == 0 && c.n_origins < MAX_LIST)
            origins[c.n_origins++] = value;
        else if (strcmp(name, "--insecure") == 0)
            c.insecure = true;
        else if (strcmp(name, "--json") == 0)
            mr_log_set_json(true);
        else if (strcmp(name, "--cert") == 0)
            c.tls_cert = read_text(value);
        else if (strcmp(name, "--key-file") == 0)
            c.tls_key = read_text(value);
        else if (strcmp(name, "--max-body") == 0)
            c.max_body_bytes = (size_t)atoll(value);
        else if (strcmp(name, "--max-connections") == 0)
            c.max_connections = atoi(value);
        else if (strcmp(name, "--timeout") == 0)
            c.client_timeout_s = atoi(value);
        else if (strcmp(name, "--ping") == 0)
            c.ping_s = atoi(value);
        else if (strcmp(name, "--drain") == 0)
            drain_s = atoi(value);
    }
    mr_err err;
    mr_thread *ticker = NULL;
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    signal(SIGPIPE, SIG_IGN);
    mr_mutex_init(&lock);
    if (mr_http_server_create(&c, &server, &err) != MR_OK ||
        mr_thread_create("tick", 0, tick, NULL, &ticker, &err) != MR_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    printf("%s\n", mr_http_server_url(server));
    fflush(stdout);
    int number;
    sigwait(&term, &number);
    mr_http_server_drain(server);
    const struct timespec pause = {.tv_nsec = MR_NS_PER_MS};
    for (int64_t end = mr_clock_now_ns() + drain_s * MR_NS_PER_S;
         mr_http_server_n_requests(server) > 0 && mr_clock_now_ns() < end;)
        nanosleep(&pause, NULL);
    mr_http_server_destroy(server);
    atomic_store(&ending, true);
    mr_thread_join(ticker);
    mr_mutex_deinit(&lock);
    printf("begun %d ended %d\n", atomic_load(&n_begun), atomic_load(&n_ended));
    return 0;
}
