// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/http/http_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/own_ports.h"

enum { BACKLOG = 512, UNIX_MODE = 0600, HOST_BYTES = 1025 };

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

/* Removes a socket file that no process listens on, as a killed server leaves it. */
static void remove_stale(const char *path, const struct sockaddr_un *address) {
    struct stat st;
    int fd = -1;
    if (lstat(path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 && errno == ECONNREFUSED)
        unlink(path);
    if (fd >= 0)
        close(fd);
}

static mr_status open_unix(http_listener *l, const char *path, mr_err *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return mr_err_set(err, MR_E_INVALID, "--unix-socket: the path has %zu bytes, but the system allows only %zu",
                          strlen(path), sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    remove_stale(path, &address);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0 || bind(l->fd, (const struct sockaddr *)&address, sizeof address) != 0)
        return mr_err_set(err, MR_E_IO, "--unix-socket: %.200s cannot be created: %s%s", path, strerror(errno),
                          errno == EADDRINUSE ? "; hint: another server may be running with this socket" : "");
    l->unix_path = path;
    l->is_loopback = true;
    snprintf(l->url, sizeof l->url, "unix:%s", path);
    if (chmod(path, UNIX_MODE) != 0 || listen(l->fd, BACKLOG) != 0) /* no client can connect before listen */
        return mr_err_set(err, MR_E_IO, "--unix-socket: %.200s: %s", path, strerror(errno));
    return MR_OK;
}

static mr_status bind_tcp(http_listener *l, const mr_http_config *config, const struct addrinfo *a, mr_err *err) {
    const int on = 1;
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    char name[INET6_ADDRSTRLEN + 64] = "", port[16] = "";
    l->is_loopback = is_loopback(a->ai_addr);
    if (!l->is_loopback && config->n_keys == 0 && !config->insecure)
        return mr_err_set(err, MR_E_INVALID,
                          "--host %.100s can be reached from other hosts, so anybody there could use the model; hint: "
                          "set --api-key-file or --api-key, or allow it with --insecure",
                          config->host);
    l->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0 || setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(l->fd, a->ai_addr, a->ai_addrlen) != 0 || listen(l->fd, BACKLOG) != 0)
        return mr_err_set(err, MR_E_IO, "cannot listen on %.100s, port %d: %s%s", config->host, config->port,
                          strerror(errno), errno == EADDRINUSE ? "; hint: choose another --port" : "");
    if (getsockname(l->fd, (struct sockaddr *)&bound, &n) != 0 ||
        getnameinfo((struct sockaddr *)&bound, n, name, sizeof name, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return mr_err_set(err, MR_E_IO, "cannot listen on %.100s: %s", config->host, strerror(errno));
    snprintf(l->url, sizeof l->url, "%s://%s%s%s:%s", config->tls_cert ? "https" : "http",
             a->ai_family == AF_INET6 ? "[" : "", name, a->ai_family == AF_INET6 ? "]" : "", port);
    mr_own_ports_add(htons((uint16_t)atoi(port)));
    return MR_OK;
}

static mr_status open_tcp(http_listener *l, const mr_http_config *config, mr_err *err) {
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[16], host[HOST_BYTES];
    snprintf(port, sizeof port, "%d", config->port);
    bool is_in_brackets = config->host[0] == '[' && config->host[strlen(config->host) - 1] == ']'; /* as in URLs */
    snprintf(host, sizeof host, "%.*s", (int)strlen(config->host) - 2 * is_in_brackets, config->host + is_in_brackets);
    int code = getaddrinfo(host, port, &hints, &found);
    if (code != 0)
        return mr_err_set(err, MR_E_INVALID, "--host %.100s: %s", config->host, gai_strerror(code));
    mr_status status = bind_tcp(l, config, found, err);
    freeaddrinfo(found);
    return status;
}

mr_status http_listener_open(http_listener *l, const mr_http_config *config, mr_err *err) {
    *l = (http_listener){.fd = -1};
    mr_status status = config->unix_path ? open_unix(l, config->unix_path, err) : open_tcp(l, config, err);
    if (status != MR_OK)
        http_listener_close(l);
    return status;
}

void http_listener_shut(http_listener *l) {
    if (l->fd >= 0)
        shutdown(l->fd, SHUT_RDWR);
    if (l->unix_path)
        unlink(l->unix_path);
    l->unix_path = NULL;
}

void http_listener_close(http_listener *l) {
    if (l->fd < 0)
        return;
    http_listener_shut(l);
    close(l->fd);
    l->fd = -1;
}
