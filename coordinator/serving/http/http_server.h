/* coordinator/serving/http/http_server.h - an HTTP/1.1 server for a table of routes. It checks keys, origins, sizes and
 * timeouts. A route answers at once, answers later, or streams server-sent events, with pings while there are none.
 * The server knows nothing of models: the caller defines the routes.
 * Owns:    the socket, the connections, and its threads (those of libmicrohttpd, and one that watches connections).
 *          Borrows: routes and texts of the configuration, which must outlive the server; keys and certificates are
 *          copied.
 * Threads: create, renew, drain and destroy are for one thread; the other functions are for any. Functions of routes
 *          run on threads of the server, several at the same time, and must not block.
 * Errors:  MR_E_INVALID: a wrong configuration. MR_E_IO: a socket failed. A bad request gets an answer with OpenAI's
 *          error object. */
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
    const char *tail;          /* the part of the path that matches the * of the route; "" without a * */
    const char *id;            /* x-request-id: the id of the client, or a random id */
    mr_str body;
    const void *connection; /* for mr_http_query */
} mr_http_request;

/* The decoded value of ?name=value; NULL: the query does not have the name. */
const char *mr_http_query(const mr_http_request *request, const char *name);

/* An answer that is complete at once. All texts except the body are constants. */
typedef struct mr_http_answer {
    int status;               /* default 200 */
    const char *content_type; /* default "application/json" */
    const char *policy;       /* Content-Security-Policy; NULL: nothing may be loaded */
    mr_text_buf body;         /* the server takes ownership */
} mr_http_answer;

typedef enum mr_http_state {
    HTTP_MORE, /* bytes were appended */
    HTTP_WAIT, /* no bytes now; wake() will be called */
    HTTP_END,
} mr_http_state;

/* The head of an answer that is made piece by piece, and facts for the log. The head is read before the first bytes,
 * the facts at the end. */
typedef struct mr_http_call_info {
    int status;
    bool streams;             /* the bytes are server-sent events, and are sent at once */
    const char *content_type; /* NULL: application/json, or with streams text/event-stream */
    int32_t retry_after_s;    /* value of the header Retry-After; 0: no header */
    /* For the log. */
    bool failed; /* the stream contains an error, which came too late for the status */
    int64_t prompt_tokens, new_tokens;
    double first_token_s; /* time from the request to the first token; 0: no token */
} mr_http_call_info;

typedef struct mr_http_call_ops {
    /* Begins a call; NULL: no memory. The body of the request is valid until end. Any thread may call wake(wake_ctx)
     * until end has returned, to say that next() has bytes or has reached the end. */
    void *(*begin)(void *ctx, int endpoint, const mr_http_request *request, void (*wake)(void *), void *wake_ctx);
    mr_http_state (*next)(void *call, mr_text_buf *out);
    void (*info)(const void *call, mr_http_call_info *out);
    /* Frees the call, and cancels its work if it is not complete. */
    void (*end)(void *call);
} mr_http_call_ops;

typedef struct mr_http_route {
    const char *method; /* "GET" (which answers HEAD, too), "POST", "DELETE" */
    const char *path;   /* "/v1/models"; a * at the end matches any rest that is not empty */
    bool open;          /* needs no key */
    bool quiet;         /* polled often, so it is logged at level debug */
    /* Set one of the two: answer for an answer at once, call for one that comes later or is streamed. */
    void (*answer)(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out);
    const mr_http_call_ops *call;
    int endpoint; /* passed to the functions */
} mr_http_route;

/* How a request ended. REFUSED: a status of 400 to 499, or 503 before the prompt was computed (loading, ending, no
 * memory). FAILED: any other status from 500 on, an error in a stream, or an answer that was cut off because the server
 * stopped. CANCELLED: the client disconnected before the end. */
typedef enum http_outcome {
    HTTP_OUTCOME_OK,
    HTTP_OUTCOME_REFUSED,
    HTTP_OUTCOME_FAILED,
    HTTP_OUTCOME_CANCELLED,
} http_outcome;
const char *mr_http_outcome_name(http_outcome outcome);

/* A request that has ended. */
typedef struct mr_http_done {
    const char *route; /* its path in the table; "other" */
    int status;        /* 499: the client disconnected before the answer */
    http_outcome outcome;
    double seconds;
} mr_http_done;

typedef struct mr_http_config {
    const char *host;      /* a name or an address */
    int port;              /* 0: any free port */
    const char *unix_path; /* instead of host and port */
    const char *const *keys;
    int32_t n_keys;                 /* 0: no key is needed */
    const char *tls_cert, *tls_key; /* PEM texts; NULL: no TLS */
    const char *const *origins;     /* other origins whose web pages are allowed; "*": all */
    int32_t n_origins;
    bool insecure; /* may be reached from other hosts without a key */
    size_t max_body_bytes;
    int32_t max_connections;
    /* The time limit for the head of a request, for the next request of a connection, and for a client that reads no
     * bytes of its answer. A body has as long, and one more second for each 16 KiB. */
    int32_t client_timeout_s;
    int32_t ping_s; /* a silent stream sends a ping at this interval */
    const mr_http_route *routes;
    int32_t n_routes;
    void *ctx;                                            /* passed to the functions of the routes */
    void (*on_done)(void *ctx, const mr_http_done *done); /* from threads of the server; may be NULL */
} mr_http_config;

/* Starts the server. *out is set before the first request is accepted, so routes may use it. */
MR_MUST_USE mr_status mr_http_server_create(const mr_http_config *config, mr_http_server **out, mr_err *err);
/* The address: "http://127.0.0.1:8080" or "unix:/run/millrace.sock". */
const char *mr_http_server_url(const mr_http_server *s);
/* Replaces the keys for new requests, and the certificate for new connections, by those of config. Requests under way
 * continue. Other fields of config are ignored. On failure nothing changes: MR_E_INVALID, MR_E_NO_MEMORY, or MR_E_BUSY
 * (too many older certificates still have connections). */
MR_MUST_USE mr_status mr_http_server_renew(mr_http_server *s, const mr_http_config *config, mr_err *err);
/* Accepts no more connections, and closes each connection after its current request. Answers continue. */
void mr_http_server_drain(mr_http_server *s);
/* The number of requests under way. */
int32_t mr_http_server_n_requests(const mr_http_server *s);
int32_t http_server_n_connections(const mr_http_server *s);
/* Cuts off requests under way. When the function returns, all calls have ended. NULL is accepted. */
void mr_http_server_destroy(mr_http_server *s);

/* OpenAI's error object: {"error":{"message":...,"type":...,"param":null,"code":...}}. message: UTF-8. False: no
 * memory. */
MR_MUST_USE bool http_error_body(mr_text_buf *out, mr_error_id id, const char *message);
/* Makes *out an error answer with the status of id. */
void mr_http_answer_error(mr_http_answer *out, mr_error_id id, const char *message);

#endif
