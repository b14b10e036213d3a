/* coordinator/serving/http/http_guard.h - decides who may use the server: by API key, Host header, and origin of web
 * pages.
 * Threads: after init, any thread may read.
 * Errors:  only MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_HTTP_HTTP_GUARD_H
#define MR_COORDINATOR_SERVING_HTTP_HTTP_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { HTTP_DIGEST_BYTES = 32 };

/* The SHA-256 of each key. Comparing digests takes the same time for right and wrong keys. */
typedef struct http_keys {
    uint8_t (*digests)[HTTP_DIGEST_BYTES];
    int32_t n;
} http_keys;

void http_digest(const char *text, uint8_t out[HTTP_DIGEST_BYTES]);
MR_MUST_USE mr_status http_keys_init(http_keys *k, const char *const *keys, int32_t n, mr_err *err);
void http_keys_deinit(http_keys *k);
/* Whether a request has a valid key. authorization: the value of that header, "Bearer KEY". api_key: the value of
 * X-Api-Key. Each may be NULL. True if the server needs no key. The time depends only on the lengths. */
bool http_keys_admit(const http_keys *k, const char *authorization, const char *api_key);

/* Whether a Host header names the loopback of this machine, or own_name. In an attack by DNS rebinding, a web page has
 * a name that points to this machine, and the header has that name. NULL (HTTP/1.0) is accepted, because browsers
 * always send the header. */
bool http_host_is_local(const char *host_header, const char *own_name);

typedef enum http_origin {
    HTTP_ORIGIN_OWN,     /* no origin, or the server's own */
    HTTP_ORIGIN_ALLOWED, /* another origin that is in the list */
    HTTP_ORIGIN_FOREIGN,
} http_origin;
http_origin http_origin_judge(const char *origin, const char *host_header, const char *const *allowed, int32_t n);

#endif
