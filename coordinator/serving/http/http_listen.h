/* coordinator/serving/http/http_listen.h - internal: the socket that the server listens on.
 * Owns:    the descriptor and the socket file. {.fd = -1} is a closed listener.
 * Threads: caller serialises.
 * Errors:  MR_E_INVALID, MR_E_IO; the error texts name the option and give a hint. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_HTTP_HTTP_LISTEN_H
#define MR_COORDINATOR_SERVING_HTTP_HTTP_LISTEN_H

#include <stdbool.h>

#include "coordinator/serving/http/http_server.h"

typedef struct http_listener {
    int fd;
    bool is_loopback;      /* other hosts cannot reach it */
    const char *unix_path; /* borrowed; NULL: TCP */
    char url[320];
} http_listener;

MR_MUST_USE mr_status http_listener_open(http_listener *l, const mr_http_config *config, mr_err *err);
/* Refuses new connections. The descriptor stays open. */
void http_listener_shut(http_listener *l);
void http_listener_close(http_listener *l);

#endif
