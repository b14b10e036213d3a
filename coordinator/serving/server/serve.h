/* coordinator/serving/server/serve.h - what the files of `millrace serve` share: the parts of the server, its routes,
 * and the two kinds of answers that take time: calls of the API, and recordings of /trace.
 * Life:    cmd_serve.c creates and destroys all parts.
 * Threads: the session is for the main thread. Routes run on threads of the HTTP server, and read published texts. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SERVER_SERVE_H
#define MR_COORDINATOR_SERVING_SERVER_SERVE_H

#include <stdatomic.h>

#include <jansson.h>

#include "coordinator/serving/batch/batch_store.h"
#include "coordinator/serving/http/http_server.h"
#include "coordinator/serving/metrics/metrics.h"
#include "coordinator/serving/server/serve_keys.h"
#include "coordinator/serving/server/serve_stats.h"
#include "coordinator/serving/server/session_api.h"
#include "coordinator/serving/service/service.h"
#include "coordinator/session/session.h"

typedef struct serve_trace serve_trace;
typedef struct serve_starter serve_starter;
struct mr_api; /* coordinator/serving/api/api.h */

/* JSON answers that change only with the plan. */
typedef enum serve_text { SERVE_MODELS, SERVE_MODEL, SERVE_PROPS, SERVE_PLAN, SERVE_TEXTS } serve_text;

typedef struct mr_serve {
    const mr_options *options;
    const char *commit; /* that the program was built from */
    char *model;        /* the name in /v1/models */
    mr_service *service;
    mr_metrics *metrics;
    serve_stats *stats;
    serve_trace *trace;
    serve_starter *starter;
    mr_http_server *http;
    mr_session session;
    mr_tokenizer *tok;
    mr_session_api parts;
    _Atomic(struct mr_api *) api; /* the api of parts, set once the model is loaded; NULL: not loaded */
    mr_batch_store *batches;      /* NULL: no --batch-dir */
    mr_mutex texts_lock;
    char *texts[SERVE_TEXTS]; /* under texts_lock; NULL: not published yet */
    bool is_ready;            /* main thread: the model is loaded */
    int64_t loss_ns;          /* main thread: when a rank was lost; 0: none */
    int64_t end_ns;           /* main thread: when draining is over; 0: no draining */
} mr_serve;

/* --- serve_routes.c: the table of routes, and the answers about what the server does --- */

extern const mr_http_route serve_routes[];
extern const int32_t serve_n_routes;
/* The mr_http_config.on_done. */
void serve_count_request(void *ctx, const mr_http_done *done);
/* Answers that there is no memory for the answer. */
void serve_no_memory(mr_http_answer *out);
/* Answers with root, and releases root; NULL: no memory. */
void serve_answer_json(mr_http_answer *out, json_t *root);

/* --- serve_health.c: whether the server is up --- */

typedef enum serve_probe { SERVE_HEALTH, SERVE_LIVEZ, SERVE_READYZ, SERVE_VERSION } serve_probe;

/* Where the model is not ready, sets out to an error and returns true. */
bool serve_refuse(mr_serve *s, mr_http_answer *out);
/* Endpoints are those of serve_probe. */
void serve_health_answer(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out);

/* --- serve_texts.c: what the server says of the model and of the plan --- */

/* Before any other function of the texts. */
void mr_serve_init_texts(mr_serve *s);
/* Makes and publishes the texts. */
MR_MUST_USE mr_status mr_serve_publish_texts(mr_serve *s, mr_err *err);
/* Publishes the plan again: it has changed, or the states of ranks have. */
MR_MUST_USE mr_status mr_serve_publish_plan(mr_serve *s, mr_err *err);
/* When no route runs any more. */
void mr_serve_free_texts(mr_serve *s);
/* Endpoints are those of serve_text. */
void serve_texts_answer(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out);

/* --- serve_api.c: completions, chat, embeddings, tokens --- */

/* The threads that begin calls. destroy: after the HTTP server has ended all calls, and before the API and the service
 * are destroyed; waits for calls that are being begun. NULL is accepted. */
MR_MUST_USE mr_status mr_serve_starter_create(serve_starter **out, mr_err *err);
void mr_serve_starter_destroy(serve_starter *t);
extern const mr_http_call_ops serve_api_call; /* endpoints are those of api.h */

/* --- serve_batches.c: /v1/files and /v1/batches --- */

MR_MUST_USE mr_status mr_serve_batches_create(mr_serve *s, mr_err *err);
/* To be called once the API is set. */
MR_MUST_USE mr_status mr_serve_batches_start(mr_serve *s, mr_err *err);
void serve_batches_answer(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out);

/* --- serve_trace.c: GET /trace?seconds=N --- */

MR_MUST_USE mr_status mr_serve_trace_create(serve_trace **out, mr_err *err);
void mr_serve_trace_destroy(serve_trace *t);
/* Main thread, once the clocks of the stages are compared. */
void mr_serve_trace_begin(serve_trace *t, const mr_session *session);
/* The session's on_spans; ctx is the serve_trace. */
void mr_serve_trace_spans(void *ctx, int32_t stage, const mr_span *spans, int32_t n);
extern const mr_http_call_ops serve_trace_call;

/* --- serve_config.c: the HTTP server's configuration from the options --- */

typedef struct mr_serve_config {
    mr_http_config http;
    serve_keys keys;
    mr_text_buf tls_cert, tls_key;
} mr_serve_config;

MR_MUST_USE mr_status mr_serve_config_read(mr_serve_config *c, const mr_options *o, mr_err *err);
void mr_serve_config_deinit(mr_serve_config *c);
/* Main thread: reads keys and certificate again. Where they are wrong, warns and keeps the old ones. */
void mr_serve_renew(mr_serve *s);

#endif
