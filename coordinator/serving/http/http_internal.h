/* coordinator/serving/http/http_internal.h - internal: the server, its connections, and requests under way.
 * Locks, in this order: server.lock, exchange.lock, libmicrohttpd's, server.heads_lock. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_HTTP_HTTP_INTERNAL_H
#define MR_COORDINATOR_SERVING_HTTP_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "coordinator/serving/http/http_framing.h"
#include "coordinator/serving/http/http_guard.h"
#include "coordinator/serving/http/http_listen.h"
#include "coordinator/serving/http/http_server.h"
#include "engine/base/thread.h"

enum { HTTP_MAX_OLDER = 8 };

typedef struct http_exchange http_exchange;

enum { HTTP_CLIENT_BYTES = 64 };

typedef enum conn_phase {
    CONN_HEAD, /* waits for the head of the next request */
    CONN_BODY,
    CONN_ANSWER,
} conn_phase;

/* A connection, in an entry of server.conns. Guarded by server.lock. */
typedef struct http_conn {
    uint32_t generation; /* tells apart two connections that used the same entry */
    bool used, hung_up;  /* hung_up: the client has closed its side */
    int fd;              /* open as long as used is set */
    conn_phase phase;
    int64_t since_ns; /* start of the phase */
    size_t body_bytes;
    http_exchange *exchange; /* NULL between requests */
    http_target target;      /* of the current request; used only on the thread of the connection */
    int32_t next_free;
} http_conn;

/* The head of a request that is being read. Guarded by server.heads_lock. */
typedef struct http_head {
    struct MHD_Connection *mhd; /* NULL: none, or it was handed out */
    pthread_t thread;           /* of the connection */
} http_head;

struct mr_http_server {
    mr_http_config config;
    http_listener listener;
    struct MHD_Daemon *daemon;                /* gets new connections; replaced under lock */
    struct MHD_Daemon *older[HTTP_MAX_OLDER]; /* daemons with older certificates, which keep their connections */
    int32_t n_older;
    uint8_t tls_digests[2][HTTP_DIGEST_BYTES]; /* of the certificate and its key */
    mr_thread *watcher;
    int epoll_fd;

    mr_mutex lock;
    http_keys keys;
    bool accepts;     /* the epoll set contains the listening socket */
    http_conn *conns; /* [n_conns] */
    int32_t n_conns, first_free;

    mr_mutex heads_lock;
    http_head *heads; /* [n_conns] */

    atomic_bool draining, stopping;
    atomic_int n_connections, n_requests;
    atomic_size_t body_bytes; /* of all requests under way */
};

struct http_exchange {
    mr_http_server *server;
    http_conn *conn;
    struct MHD_Connection *mhd;
    const mr_http_route *route;                    /* NULL: none fits */
    char id[HTTP_ID_BYTES], method[16], path[128]; /* the latter two for the log: cut to fit */
    char client[HTTP_CLIENT_BYTES];                /* its address, for the log */
    const char *origin;                            /* the origin that the answer allows; NULL: none */
    int64_t begin_ns;

    mr_text_buf body;
    size_t body_bytes; /* received bytes, kept or dropped */
    bool keeps_body, too_large, no_memory;

    int status;        /* status of an answer that needs no route; 0: the route answers */
    const char *allow; /* for 405 */
    bool malformed;    /* the end of the request is ambiguous */
    bool closes;       /* the connection ends after the answer */
    bool preflight, queued;
    void *call;
    mr_http_call_info info;
    mr_http_answer answer;
    mr_text_buf out; /* output of the call; of a stream, the part from out_sent on is not sent yet */
    size_t out_sent;
    bool call_ended, cut; /* cut: the client disconnected during a stream */
    int64_t sent_ns;      /* time of the last bytes of a stream */

    mr_mutex lock;
    bool suspended, woken, gone; /* under lock */
    int64_t look_ns;             /* under lock: time of the next check without a wake */
};

/* --- http_watch.c: new connections, and deadlines of connections --- */

MR_MUST_USE mr_status http_watch_init(mr_http_server *s, mr_err *err);
void http_watch_deinit(mr_http_server *s);
/* Begins or ends accepting connections. */
MR_MUST_USE mr_status http_watch_accept(mr_http_server *s, mr_err *err);
void http_watch_accept_no_more(mr_http_server *s);
/* The MHD_NotifyConnectionCallback. */
void http_watch_connection(void *ctx, struct MHD_Connection *mhd, void **socket_ctx,
                           enum MHD_ConnectionNotificationCode code);
void http_conn_set_phase(mr_http_server *s, http_conn *c, conn_phase phase);
void http_conn_add_body(mr_http_server *s, http_conn *c, size_t bytes);
/* Sets the current request of a connection, or NULL for none. */
void http_conn_set_exchange(mr_http_server *s, http_conn *c, http_exchange *x);
/* Ends all waiting requests and connections, because the server stops. */
void http_watch_cut_all(mr_http_server *s);

/* --- http_refusal.c: heads that libmicrohttpd would refuse twice --- */

/* begin: the request line was read. end: the head was handed out, or the connection ended. On the connection's
 * thread. */
void http_head_begin(mr_http_server *s, struct MHD_Connection *mhd);
void http_head_end(mr_http_server *s, struct MHD_Connection *mhd);
/* Called when libmicrohttpd writes to its log. */
void http_head_refuse(mr_http_server *s);

/* --- http_exchange.c: one request --- */

/* The MHD_OPTION_URI_LOG_CALLBACK, the MHD_AccessHandlerCallback and the MHD_RequestCompletedCallback. */
void *http_exchange_target(void *ctx, const char *target, struct MHD_Connection *mhd);
enum MHD_Result http_exchange_handle(void *ctx, struct MHD_Connection *mhd, const char *url, const char *method,
                                     const char *version, const char *upload, size_t *upload_bytes, void **request_ctx);
void http_exchange_completed(void *ctx, struct MHD_Connection *mhd, void **request_ctx,
                             enum MHD_RequestTerminationCode code);
/* Resumes a suspended request. From any thread. */
void http_exchange_wake(void *exchange);
/* Wakes a request if its look_ns has passed. gone: the request has to end, so it is always woken. */
void http_exchange_look(http_exchange *x, int64_t now_ns, bool gone);

/* --- http_answer.c: heads of answers, ids, the log --- */

/* Queues an answer, and releases response. */
enum MHD_Result http_exchange_send(http_exchange *x, struct MHD_Response *response, int status,
                                   const char *content_type);
/* The id that the client sent, if it is valid, or a random id. */
void http_request_id(const char *of_client, char out[HTTP_ID_BYTES]);
/* The address of the client, or of the proxy in front of the server. */
void http_client_address(struct MHD_Connection *mhd, char out[HTTP_CLIENT_BYTES]);
/* completed: the whole answer was sent. */
void http_exchange_log(http_exchange *x, bool completed);

#endif
