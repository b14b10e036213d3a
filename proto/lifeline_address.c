/* proto/lifeline_address.c - writes and reads the address text of a lifeline: the token and the addresses of rank 0. */
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/lifeline_internal.h"

enum { HEX_BYTES = 2 * LIFELINE_TOKEN_BYTES, HOST_BYTES = 64, N_ORDERS = 4 };

/* The order in the text: IPv4, IPv6, IPv4 loopback, IPv6 loopback. -1: no other host can use the address. */
static int address_order(const struct sockaddr *a, int family) {
    if (a->sa_family == AF_INET) {
        uint32_t ip = ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr);
        if (ip >> 16 == 0xa9fe) /* 169.254.0.0/16 */
            return -1;
        return ip >> 24 == 127 ? 2 : 0;
    }
    if (a->sa_family != AF_INET6 || family != AF_INET6)
        return -1;
    const struct in6_addr *ip = &((const struct sockaddr_in6 *)a)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(ip))
        return -1;
    return IN6_IS_ADDR_LOOPBACK(ip) ? 3 : 1;
}

/* Appends " host:port". False: no room. */
static bool host_append(const struct sockaddr *a, uint16_t port, char *text) {
    char ip[INET6_ADDRSTRLEN], host[HOST_BYTES];
    bool v6 = a->sa_family == AF_INET6;
    const void *bytes = v6 ? (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr
                           : (const void *)&((const struct sockaddr_in *)a)->sin_addr;
    if (!inet_ntop(a->sa_family, bytes, ip, sizeof ip))
        return false;
    size_t n = (size_t)snprintf(host, sizeof host, v6 ? " [%s]:%" PRIu16 : " %s:%" PRIu16, ip, port);
    size_t used = strlen(text);
    if (used + n >= MR_LIFELINE_ADDRESS_BYTES)
        return false;
    memcpy(text + used, host, n + 1);
    return true;
}

mr_status lifeline_address_write(const uint8_t *token, int family, uint16_t port,
                                 char out_text[MR_LIFELINE_ADDRESS_BYTES], mr_err *err) {
    char text[MR_LIFELINE_ADDRESS_BYTES] = "";
    struct ifaddrs *all;
    int n = 0;
    if (getifaddrs(&all) != 0)
        return mr_err_set(err, MR_E_IO, "the network interfaces cannot be listed: %s", strerror(errno));
    for (int i = 0; i < LIFELINE_TOKEN_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", token[i]);
    for (int order = 0; order < N_ORDERS; order++)
        for (const struct ifaddrs *i = all; i && n < LIFELINE_MAX_HOSTS; i = i->ifa_next)
            if (i->ifa_addr && i->ifa_flags & IFF_UP && address_order(i->ifa_addr, family) == order)
                n += host_append(i->ifa_addr, port, text);
    freeifaddrs(all);
    if (n == 0)
        return mr_err_set(err, MR_E_IO, "no network interface of this machine is up, not even loopback");
    memcpy(out_text, text, sizeof text);
    return MR_OK;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool token_read(const char *text, uint8_t *out_token) {
    for (int i = 0; i < LIFELINE_TOKEN_BYTES; i++) {
        int high = hex_digit(text[2 * i]);
        int low = high < 0 ? -1 : hex_digit(text[2 * i + 1]);
        if (low < 0)
            return false;
        out_token[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool port_read(const char *s, in_port_t *out_port) {
    uint32_t port = 0;
    size_t n = strlen(s);
    if (n < 1 || n > 5 || strspn(s, "0123456789") != n)
        return false;
    for (; *s; s++)
        port = 10 * port + (uint32_t)(*s - '0');
    *out_port = htons((uint16_t)port);
    return port >= 1 && port <= UINT16_MAX;
}

/* Reads host:port or [host]:port. The host is a numeric address; names are not looked up. */
static bool host_read(const char *s, size_t n_bytes, struct sockaddr_storage *out) {
    char host[HOST_BYTES];
    if (n_bytes >= sizeof host)
        return false;
    memcpy(host, s, n_bytes);
    host[n_bytes] = 0;
    char *colon = strrchr(host, ':');
    if (!colon)
        return false;
    *colon = 0;
    if (host[0] != '[') {
        struct sockaddr_in *a = (struct sockaddr_in *)out;
        a->sin_family = AF_INET;
        return port_read(colon + 1, &a->sin_port) && inet_pton(AF_INET, host, &a->sin_addr) == 1;
    }
    if (colon[-1] != ']')
        return false;
    colon[-1] = 0;
    struct sockaddr_in6 *a = (struct sockaddr_in6 *)out;
    a->sin6_family = AF_INET6;
    return port_read(colon + 1, &a->sin6_port) && inet_pton(AF_INET6, host + 1, &a->sin6_addr) == 1;
}

mr_status lifeline_address_read(const char *text, lifeline_places *out, mr_err *err) {
    lifeline_places places = {0};
    if (strnlen(text, MR_LIFELINE_ADDRESS_BYTES) == MR_LIFELINE_ADDRESS_BYTES)
        return mr_err_set(err, MR_E_PROTOCOL, "the lifeline's address has %d bytes or more", MR_LIFELINE_ADDRESS_BYTES);
    if (strlen(text) < HEX_BYTES || !token_read(text, places.token))
        return mr_err_set(err, MR_E_PROTOCOL, "the lifeline's address has no token");
    for (const char *at = text + HEX_BYTES; *at || places.n_hosts == 0;) {
        size_t n = *at == ' ' ? strcspn(at + 1, " ") : 0;
        if (n == 0 || places.n_hosts == LIFELINE_MAX_HOSTS || !host_read(at + 1, n, &places.hosts[places.n_hosts]))
            return mr_err_set(err, MR_E_PROTOCOL, "host %d of the lifeline's address is malformed", places.n_hosts + 1);
        places.n_hosts++;
        at += 1 + n;
    }
    *out = places;
    return MR_OK;
}
