/* coordinator/serving/http/http_server.h - an HTTP/1.1 server for a table of routes: who may ask, how much, how slowly;
 * answers that are there at once, answers that are waited for, and streams of server-sent events with pings.
 * It knows nothing of models: routes belong to the caller.
 * Owns:    socket, connections, threads of its own (libmicrohttpd's, and one that watches connections).
 *          Borrows: the configuration's routes and texts, which outlive it; not keys and certificates.
 * Threads: create, renew, drain and destroy are for one thread; the others for any. Functions of routes run on threads
 *          of the server, several at once; they must not block.
 * Errors:  of the configuration: MR_E_INVALID; of sockets: MR_E_IO. A bad request is answered, with OpenAI's error
 *          object. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_HTTP_HTTP_SERVER_H
#define MR_COORDINATOR_SERVING_HTTP_HTTP_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/serving/errors/errors.h"
#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"

typedef struct mr_http_server mr_http_server;

enum { HTTP_ID_BYTES = 72, HTTP_CHUNK_BYTES = 32768 };

typedef struct mr_http_request {
    const char *method, *path; /* "POST", "/v1/completions": decoded, without the query */
    const char *tail;          /* what stands in the place of the route's *; "" */
    const char *id;            /* x-request-id: the client's, or one of ours */
    mr_str body;
    const void *connection; /* for mr_http_query */
} mr_http_request;

/* The value of ?name=value, decoded; NULL: not there. */
const char *mr_http_query(const mr_http_request *request, const char *name);

/* An answer that is there at once. All texts but the body are constant. */
typedef struct mr_http_answer {
    int status;               /* 200 at first */
    const char *content_type; /* "application/json" at first */
    const char *policy;       /* Content-Security-Policy; NULL: nothing may be loaded */
    mr_text_buf body;         /* the server's afterwards */
} mr_http_answer;

typedef enum mr_http_state {
    HTTP_MORE, /* bytes were appended */
    HTTP_WAIT, /* nothing now; wake comes */
    HTTP_END,
} mr_http_state;

/* What is known of an answer that is made bit by bit: its head before the first bytes, the rest at its end. */
typedef struct mr_http_call_info {
    int status;
    bool streams;             /* bytes are server-sent events, and are sent as they come */
    const char *content_type; /* NULL: application/json, or that of events */
    int32_t retry_after_s;    /* 0: no hint */
    /* For the log. */
    bool failed; /* a stream has said an error: too late for its status */
    int64_t prompt_tokens, new_tokens;
    double first_token_s; /* after the request; 0: there was none */
} mr_http_call_info;

typedef struct mr_http_call_ops {
    /* NULL: no memory. The body lives until end. wake(wake_ctx) may be called by any thread until end has returned, and
     * says that next has something, or the end. */
    void *(*begin)(void *ctx, int endpoint, const mr_http_request *request, void (*wake)(void *), void *wake_ctx);
    mr_http_state (*next)(void *call, mr_text_buf *out);
    void (*info)(const void *call, mr_http_call_info *out);
    /* Frees the call, and gives up what it still does. */
    void (*end)(void *call);
} mr_http_call_ops;

typedef struct mr_http_route {
    const char *method; /* "GET" (which answers HEAD, too), "POST", "DELETE" */
    const char *path;   /* "/v1/models"; a * at the end stands for any rest that is not empty */
    bool open;          /* needs no key */
    bool quiet;         /* asked again and again: logged at the level debug */
    /* One of the two. */
    void (*answer)(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out);
    const mr_http_call_ops *call;
    int endpoint; /* for the functions */
} mr_http_route;

/* How a request ended. REFUSED: a status of 400 to 499, or 503 before a prompt was read (loading, ending, no
 * memory). FAILED: any other status from 500 on, a stream that said an error, or an answer that was cut off because
 * the server stopped. CANCELLED: the client went away before the end. */
typedef enum http_outcome {
    HTTP_OUTCOME_OK,
    HTTP_OUTCOME_REFUSED,
    HTTP_OUTCOME_FAILED,
    HTTP_OUTCOME_CANCELLED,
} http_outcome;
const char *mr_http_outcome_name(http_outcome outcome);

/* One request that is over. */
typedef struct mr_http_done {
    const char *route; /* its path in the table; "other" */
    int status;        /* 499: the client went away before there was one */
    http_outcome outcome;
    double seconds;
} mr_http_done;

typedef struct mr_http_config {
    const char *host;      /* a name or an address */
    int port;              /* 0: any */
    const char *unix_path; /* instead of host and port */
    const char *const *keys;
    int32_t n_keys;                 /* 0: everybody may ask */
    const char *tls_cert, *tls_key; /* PEM texts; NULL: no TLS */
    const char *const *origins;     /* other origins whose pages may ask; "*": all */
    int32_t n_origins;
    bool insecure; /* may be reached from other hosts without a key */
    size_t max_body_bytes;
    int32_t max_connections;
    /* For a request's head to be there, for the next one of a connection to begin, and for a client that takes nothing;
     * a body has as long, and a second more for each 16 KiB. */
    int32_t client_timeout_s;
    int32_t ping_s; /* of a stream that has nothing to say */
    const mr_http_route *routes;
    int32_t n_routes;
    void *ctx;                                            /* of the routes' functions */
    void (*on_done)(void *ctx, const mr_http_done *done); /* from threads of the server; may be NULL */
} mr_http_config;

/* Listens and answers from now on: *out is set before the first request comes, so that routes may use it. */
MR_MUST_USE mr_status mr_http_server_create(const mr_http_config *config, mr_http_server **out, mr_err *err);
/* Where: "http://127.0.0.1:8080", "unix:/run/millrace.sock". */
const char *mr_http_server_url(const mr_http_server *s);
/* Requests that begin from here on are judged by the keys of config, and new connections get its certificate; what is
 * under way goes on. The rest of config does not count. MR_E_INVALID, MR_E_NO_MEMORY, MR_E_BUSY (so many certificates
 * still have connections that there is no place for another): all stays as it was. */
MR_MUST_USE mr_status mr_http_server_renew(mr_http_server *s, const mr_http_config *config, mr_err *err);
/* No more connections, and none is kept for a next request. Answers go on. */
void mr_http_server_drain(mr_http_server *s);
/* Requests that are not answered yet. */
int32_t mr_http_server_n_requests(const mr_http_server *s);
int32_t http_server_n_connections(const mr_http_server *s);
/* Cuts off what is not answered yet; all calls are ended when it returns. NULL is accepted. */
void mr_http_server_destroy(mr_http_server *s);

/* OpenAI's error object: {"error":{"message":...,"type":...,"param":null,"code":...}}. message: UTF-8. False: no
 * memory. */
MR_MUST_USE bool http_error_body(mr_text_buf *out, mr_error_id id, const char *message);
/* The answer to a failure. */
void mr_http_answer_error(mr_http_answer *out, mr_error_id id, const char *message);

#endif
