/* Starts and stops the server: the socket, the threads of libmicrohttpd, and the thread that watches connections. Also
 * replaces keys and certificates while the server runs. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "coordinator/serving/http/http_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

enum {
    N_THREADS = 4,
    HEAD_BYTES = 65536, /* for the head of a request, and for the part of a body that is read at once */
    OTHER_FILES = 128,  /* descriptors other than client connections */
    STOP_PATIENCE_MS = 5000,
};

static void log_of_library(void *ctx, const char *fmt, va_list args) {
    char text[512];
    http_head_refuse(ctx);
    if (vsnprintf(text, sizeof text, fmt, args) > 0)
        mr_log_write(MR_LOG_DEBUG, "http", "%s", text);
}

/* Makes sure that there are descriptors for all connections. Raises the soft limit of the process where necessary. */
static mr_status allow_files(int32_t n_connections, mr_err *err) {
    struct rlimit limit;
    rlim_t wanted = (rlim_t)n_connections + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return MR_OK;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (limit.rlim_cur < wanted || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return mr_err_set(
            err, MR_E_INVALID,
            "--max-connections %d: the system allows only %llu open files; hint: raise ulimit -n, or set a "
            "smaller --max-connections",
            (int)n_connections, (unsigned long long)limit.rlim_max);
    return MR_OK;
}

/* Without a listening socket: http_watch.c says why. Each of the threads gets one part of the limit, and may have all
 * connections. */
static mr_status start_daemon(mr_http_server *s, const char *cert, const char *key, struct MHD_Daemon **out,
                              mr_err *err) {
    const mr_http_config *c = &s->config;
    unsigned flags =
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    int32_t n_threads = c->max_connections < N_THREADS ? 1 : N_THREADS;
    struct MHD_OptionItem options[] = {
        {MHD_OPTION_CONNECTION_LIMIT, n_threads * (c->max_connections + 1), NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, c->client_timeout_s, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEAD_BYTES, NULL},
#if MHD_VERSION >= 0x00097701
        {MHD_OPTION_CLIENT_DISCIPLINE_LVL, 1, NULL},
#else
        {MHD_OPTION_STRICT_FOR_CLIENT, 0,
         NULL}, /* with 1, the library would close requests without the answer of http_framing.c */
#endif
        {MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)http_exchange_target, s},
        {MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, NULL}, /* main ignores it */
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)http_exchange_completed, s},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)http_watch_connection, s},
        {n_threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, n_threads, NULL},
        {MHD_OPTION_END, 0, NULL},
        {MHD_OPTION_END, 0, NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    size_t n = n_threads > 1 ? 9 : 8;
    if (cert) {
        flags |= MHD_USE_TLS;
        options[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)cert};
        options[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)key};
    }
    *out = MHD_start_daemon(flags, 0, NULL, NULL, http_exchange_handle, s, MHD_OPTION_EXTERNAL_LOGGER, log_of_library,
                            s, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    if (*out)
        return MR_OK;
    if (cert)
        return mr_err_set(err, MR_E_INVALID,
                          "the server does not start; hint: --tls-cert and --tls-key must be PEM files that belong "
                          "together; --log-level debug shows more");
    return mr_err_set(err, MR_E_IO, "the server does not start: %s", strerror(errno));
}

/* Starts libmicrohttpd with all signals blocked. Its threads inherit the mask, so signals go to the main thread. */
static mr_status start_daemon_without_signals(mr_http_server *s, const char *cert, const char *key,
                                              struct MHD_Daemon **out, mr_err *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    mr_status status = start_daemon(s, cert, key, out, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static void digest_tls(const char *cert, const char *key, uint8_t out[2][HTTP_DIGEST_BYTES]) {
    http_digest(cert ? cert : "", out[0]);
    http_digest(key ? key : "", out[1]);
}

mr_status mr_http_server_create(const mr_http_config *config, mr_http_server **out, mr_err *err) {
    mr_http_server *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a server");
    *s = (mr_http_server){.config = *config, .listener = {.fd = -1}, .epoll_fd = -1};
    mr_mutex_init(&s->lock);
    mr_mutex_init(&s->heads_lock);
    mr_status status = allow_files(config->max_connections, err);
    if (status == MR_OK)
        status = http_keys_init(&s->keys, config->keys, config->n_keys, err);
    if (status == MR_OK)
        status = http_listener_open(&s->listener, config, err);
    if (status == MR_OK)
        status = http_watch_init(s, err);
    *out = s;
    if (status == MR_OK)
        status = start_daemon_without_signals(s, config->tls_cert, config->tls_key, &s->daemon, err);
    if (status == MR_OK)
        status = http_watch_accept(s, err);
    digest_tls(config->tls_cert, config->tls_key, s->tls_digests);
    s->config.keys = NULL; /* the keys are not borrowed beyond create */
    s->config.tls_cert = s->config.tls_key = NULL;
    if (status != MR_OK) {
        *out = NULL;
        mr_http_server_destroy(s);
    }
    return status;
}

const char *mr_http_server_url(const mr_http_server *s) {
    return s->listener.url;
}

/* Stops the older daemons that have no connection left. */
static void stop_older(mr_http_server *s) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_older; i++) {
        const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->older[i], MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
        if (info && info->num_connections > 0)
            s->older[n++] = s->older[i];
        else
            MHD_stop_daemon(s->older[i]);
    }
    s->n_older = n;
}

/* Starts a daemon with new certificates. libmicrohttpd reads a certificate only when a daemon starts. So the new daemon
 * gets the new connections, and the older daemon keeps the connections that it has. */
static mr_status renew_tls(mr_http_server *s, const char *cert, const char *key, mr_err *err) {
    struct MHD_Daemon *daemon;
    uint8_t digests[2][HTTP_DIGEST_BYTES];
    digest_tls(cert, key, digests);
    if (memcmp(digests, s->tls_digests, sizeof digests) == 0)
        return MR_OK;
    stop_older(s);
    if (s->n_older == HTTP_MAX_OLDER)
        return mr_err_set(err, MR_E_BUSY, "connections with %d older certificates are still open", HTTP_MAX_OLDER);
    mr_status status = start_daemon_without_signals(s, cert, key, &daemon, err);
    if (status != MR_OK)
        return status;
    mr_mutex_lock(&s->lock);
    s->older[s->n_older++] = s->daemon;
    s->daemon = daemon;
    mr_mutex_unlock(&s->lock);
    memcpy(s->tls_digests, digests, sizeof digests);
    return MR_OK;
}

mr_status mr_http_server_renew(mr_http_server *s, const mr_http_config *config, mr_err *err) {
    http_keys keys, before;
    mr_status status = http_keys_init(&keys, config->keys, config->n_keys, err);
    if (status != MR_OK)
        return status;
    if (!atomic_load(&s->draining)) /* a draining server accepts no connections */
        status = renew_tls(s, config->tls_cert, config->tls_key, err);
    if (status == MR_OK) {
        mr_mutex_lock(&s->lock);
        before = s->keys;
        s->keys = keys;
        mr_mutex_unlock(&s->lock);
        keys = before;
    }
    http_keys_deinit(&keys);
    return status;
}

/* The listening socket is shut first. A client whose idle connection is closed may connect anew at once, and is then
 * refused. */
void mr_http_server_drain(mr_http_server *s) {
    http_watch_accept_no_more(s);
    http_listener_shut(&s->listener);
    atomic_store(&s->draining, true);
}

int32_t mr_http_server_n_requests(const mr_http_server *s) {
    return atomic_load(&s->n_requests);
}

int32_t http_server_n_connections(const mr_http_server *s) {
    return atomic_load(&s->n_connections);
}

/* libmicrohttpd must not be stopped while connections are suspended. */
static void end_requests(mr_http_server *s) {
    const struct timespec ms = {.tv_nsec = MR_NS_PER_MS};
    for (int i = 0; i < STOP_PATIENCE_MS && mr_http_server_n_requests(s) > 0; i++) {
        http_watch_cut_all(s);
        nanosleep(&ms, NULL);
    }
}

void mr_http_server_destroy(mr_http_server *s) {
    if (!s)
        return;
    mr_http_server_drain(s);
    atomic_store(&s->stopping, true);
    if (s->daemon) {
        end_requests(s);
        for (int32_t i = 0; i < s->n_older; i++)
            MHD_stop_daemon(s->older[i]);
        MHD_stop_daemon(s->daemon);
    }
    http_watch_deinit(s);
    http_listener_close(&s->listener);
    http_keys_deinit(&s->keys);
    mr_mutex_deinit(&s->heads_lock);
    mr_mutex_deinit(&s->lock);
    mr_free(s);
}
