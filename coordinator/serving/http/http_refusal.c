/* Refuses what libmicrohttpd up to 0.9.77 refuses twice: a head whose Content-Length it cannot read, or whose cookies
 * it has no memory for. The library builds its answer, goes on as with a good head, and builds the head of that answer
 * again behind the first. None of the server's callbacks runs between but that of the library's log. So this callback
 * answers, on the connection's socket, and ends its writing side: what the library writes fails, and it closes the
 * connection. Were that callback not called, the library's own answer would come, twice. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "coordinator/serving/http/http_internal.h"

static void set_head(mr_http_server *s, struct MHD_Connection *mhd, http_head head) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    const http_conn *c = info ? info->socket_context : NULL;
    if (!c)
        return;
    mr_mutex_lock(&s->heads_lock);
    s->heads[c - s->conns] = head;
    mr_mutex_unlock(&s->heads_lock);
}

void http_head_begin(mr_http_server *s, struct MHD_Connection *mhd) {
    set_head(s, mhd, (http_head){.mhd = mhd, .thread = pthread_self()});
}

void http_head_end(mr_http_server *s, struct MHD_Connection *mhd) {
    set_head(s, mhd, (http_head){.mhd = NULL});
}

/* Finds the head that libmicrohttpd processes on this thread: a complete head that was not handed out and has no
 * answer. There is at most one, because a complete head is handed out before the thread turns to another connection. */
static struct MHD_Connection *take_head(mr_http_server *s) {
    struct MHD_Connection *found = NULL;
    mr_mutex_lock(&s->heads_lock);
    for (int32_t i = 0; i < s->n_conns && !found; i++) {
        http_head *h = &s->heads[i];
        if (!h->mhd || !pthread_equal(h->thread, pthread_self()) ||
            !MHD_get_connection_info(h->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE) ||
            MHD_get_connection_info(h->mhd, MHD_CONNECTION_INFO_HTTP_STATUS))
            continue;
        found = h->mhd;
        h->mhd = NULL;
    }
    mr_mutex_unlock(&s->heads_lock);
    return found;
}

/* NULL: there is nothing to refuse. */
static const char *status_of(struct MHD_Connection *mhd) {
    const char *length = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (length && (!*length || length[strspn(length, "0123456789")]))
        return "400 Bad Request";
    errno = 0;
    if (length)
        (void)strtoull(length, NULL, 10);
    if (errno == ERANGE)
        return "413 Content Too Large";
    return MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_COOKIE)
               ? "431 Request Header Fields Too Large"
               : NULL;
}

/* Sends an answer without a body, because the request may be HEAD. Bytes that do not fit into the socket buffer are
 * lost. */
static void send_last(struct MHD_Connection *mhd, const char *status) {
    char head[128];
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *tls = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    int n = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", status);
    if (tls) {
        (void)gnutls_record_send(tls->tls_session, head, (size_t)n);
        (void)gnutls_bye(tls->tls_session, GNUTLS_SHUT_WR);
    } else {
        (void)send(fd->connect_fd, head, (size_t)n, MSG_NOSIGNAL);
    }
    shutdown(fd->connect_fd, SHUT_WR);
}

void http_head_refuse(mr_http_server *s) {
#if MHD_VERSION < 0x00097701
    struct MHD_Connection *mhd = take_head(s);
    const char *status = mhd ? status_of(mhd) : NULL;
    if (status)
        send_last(mhd, status);
#else
    (void)s;
#endif
}
