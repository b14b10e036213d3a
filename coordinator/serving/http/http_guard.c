// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/http/http_guard.h"

#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <string.h>
#include <strings.h>

#include "engine/base/mem.h"

void http_digest(const char *text, uint8_t out[HTTP_DIGEST_BYTES]) {
    struct sha256_ctx sha;
    sha256_init(&sha);
    sha256_update(&sha, strlen(text), (const uint8_t *)text);
    sha256_digest(&sha, HTTP_DIGEST_BYTES, out);
}

mr_status http_keys_init(http_keys *k, const char *const *keys, int32_t n, mr_err *err) {
    *k = (http_keys){0};
    if (n == 0)
        return MR_OK;
    k->digests = mr_alloc_array((size_t)n, HTTP_DIGEST_BYTES);
    if (!k->digests)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for keys");
    for (k->n = 0; k->n < n; k->n++)
        http_digest(keys[k->n], k->digests[k->n]);
    return MR_OK;
}

void http_keys_deinit(http_keys *k) {
    mr_free(k->digests);
    *k = (http_keys){0};
}

bool http_keys_admit(const http_keys *k, const char *authorization, const char *api_key) {
    static const char SCHEME[] = "Bearer ";
    if (k->n == 0)
        return true;
    if (authorization && strncasecmp(authorization, SCHEME, sizeof SCHEME - 1) == 0)
        api_key = authorization + sizeof SCHEME - 1;
    if (!api_key)
        return false;
    uint8_t digest[HTTP_DIGEST_BYTES];
    int found = 0;
    http_digest(api_key, digest);
    for (int32_t i = 0; i < k->n; i++) /* always all keys, for a constant time */
        found |= memeql_sec(digest, k->digests[i], HTTP_DIGEST_BYTES);
    return found != 0;
}

/* The name in "name:port" or "[::1]:port", without brackets. */
static size_t host_name(const char *host, const char **out_name) {
    *out_name = host;
    if (*host == '[') {
        *out_name = host + 1;
        return strcspn(host + 1, "]");
    }
    return strcspn(host, ":");
}

static bool is_name(const char *name, size_t len, const char *wanted) {
    return strlen(wanted) == len && strncasecmp(name, wanted, len) == 0;
}

bool http_host_is_local(const char *host_header, const char *own_name) {
    static const char SUFFIX[] = ".localhost";
    const char *name;
    if (!host_header)
        return true;
    size_t len = host_name(host_header, &name), n_suffix = sizeof SUFFIX - 1;
    /* An address of 127.0.0.0/8 has only digits and points; 127.evil.example is a name. */
    bool numeric = len > 4 && strncmp(name, "127.", 4) == 0 && strspn(name, "0123456789.") >= len;
    return numeric || is_name(name, len, "localhost") || is_name(name, len, "::1") || is_name(name, len, own_name) ||
           (len > n_suffix && strncasecmp(name + len - n_suffix, SUFFIX, n_suffix) == 0);
}

http_origin http_origin_judge(const char *origin, const char *host_header, const char *const *allowed, int32_t n) {
    if (!origin)
        return HTTP_ORIGIN_OWN;
    /* The scheme is not compared, because a proxy may have terminated TLS. */
    const char *host = strstr(origin, "://");
    if (host && host_header && strcasecmp(host + 3, host_header) == 0)
        return HTTP_ORIGIN_OWN;
    for (int32_t i = 0; i < n; i++)
        if (strcmp(allowed[i], "*") == 0 || strcasecmp(allowed[i], origin) == 0)
            return HTTP_ORIGIN_ALLOWED;
    return HTTP_ORIGIN_FOREIGN;
}
