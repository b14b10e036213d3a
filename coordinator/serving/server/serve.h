/* coordinator/serving/server/serve.h - what the files of `millrace serve` share: the server's parts, its routes, and
 * the two kinds of answers that take time: those of the API, and recordings.
 * Life:    cmd_serve.c makes and ends all of it.
 * Threads: the session is for the main thread; routes run on those of the HTTP server, and read what was published. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SERVER_SERVE_H
#define MR_COORDINATOR_SERVING_SERVER_SERVE_H

#include <stdatomic.h>

#include "coordinator/serving/batch/batch_store.h"
#include "coordinator/serving/http/http_server.h"
#include "coordinator/serving/metrics/metrics.h"
#include "coordinator/serving/server/serve_stats.h"
#include "coordinator/serving/server/session_api.h"
#include "coordinator/serving/service/service.h"
#include "coordinator/session/session.h"

typedef struct serve_trace serve_trace;
typedef struct serve_starter serve_starter;
struct mr_api; /* coordinator/serving/api/api.h */

/* Answers that do not change once the model is planned; JSON. */
typedef enum serve_text { SERVE_MODELS, SERVE_MODEL, SERVE_PROPS, SERVE_PLAN, SERVE_TEXTS } serve_text;

typedef struct mr_serve {
    const mr_options *options;
    char *model; /* as /v1/models names it */
    mr_service *service;
    mr_metrics *metrics;
    serve_stats *stats;
    serve_trace *trace;
    serve_starter *starter;
    mr_http_server *http;
    mr_session session;
    mr_tokenizer *tok;
    mr_session_api parts;
    _Atomic(struct mr_api *) api; /* that of parts, once the model is loaded; it says itself what it cannot do then */
    mr_batch_store *batches;      /* NULL: no --batch-dir */
    _Atomic(char *) texts[SERVE_TEXTS]; /* NULL: not yet */
    bool is_ready;                      /* of the main thread: the model is loaded */
    int64_t loss_ns;                    /* likewise: when a rank was lost; 0: none */
    int64_t end_ns;                     /* of the main thread: when draining is over; 0: it has not begun */
} mr_serve;

/* --- serve_routes.c: the table, and answers that are there at once --- */

extern const mr_http_route serve_routes[];
extern const int32_t serve_n_routes;
/* Makes the texts, and publishes them. */
MR_MUST_USE mr_status mr_serve_publish_texts(mr_serve *s, mr_err *err);
/* The mr_http_config.on_done. */
void serve_count_request(void *ctx, const mr_http_done *done);
/* Sets out to an error and returns true where the model is not there to answer. */
bool serve_refuse(mr_serve *s, mr_http_answer *out);

/* --- serve_api.c: completions, chat, embeddings, tokens --- */

/* Threads that begin calls. destroy: when the HTTP server has ended all calls, and before the API and the service go;
 * it waits for those that are being begun. NULL is accepted. */
MR_MUST_USE mr_status mr_serve_starter_create(serve_starter **out, mr_err *err);
void mr_serve_starter_destroy(serve_starter *t);
extern const mr_http_call_ops serve_api_call; /* endpoints are those of api.h */

/* --- serve_batches.c: /v1/files and /v1/batches --- */

MR_MUST_USE mr_status mr_serve_batches_create(mr_serve *s, mr_err *err);
/* Once the API is there. */
MR_MUST_USE mr_status mr_serve_batches_start(mr_serve *s, mr_err *err);
void serve_batches_answer(void *ctx, int endpoint, const mr_http_request *request, mr_http_answer *out);

/* --- serve_trace.c: GET /trace?seconds=N --- */

MR_MUST_USE mr_status mr_serve_trace_create(serve_trace **out, mr_err *err);
void mr_serve_trace_destroy(serve_trace *t);
/* Once the clocks of the stages are compared; on the main thread. */
void mr_serve_trace_begin(serve_trace *t, const mr_session *session);
/* The session's on_spans; ctx is the serve_trace. */
void mr_serve_trace_spans(void *ctx, int32_t stage, const mr_span *spans, int32_t n);
extern const mr_http_call_ops serve_trace_call;

/* --- serve_config.c: the HTTP server's configuration from the options --- */

typedef struct mr_serve_config {
    mr_http_config http;
    const char **keys; /* [n_keys]: those of the options, then those of the file */
    mr_text_buf key_file, tls_cert, tls_key;
} mr_serve_config;

/* Reads a file of text whole; option is for errors. MR_E_INVALID. */
MR_MUST_USE mr_status serve_read_file(const char *option, const char *path, mr_text_buf *out, mr_err *err);

MR_MUST_USE mr_status mr_serve_config_read(mr_serve_config *c, const mr_options *o, mr_err *err);
void mr_serve_config_deinit(mr_serve_config *c);
/* Reads keys and certificate anew; what is wrong with them is a warning, and those before stay. On the main thread. */
void mr_serve_renew(mr_serve *s);

#endif
