/* coordinator/serving/http/http_guard.h - who may ask: keys, the Host header, and pages of other origins.
 * Threads: pure functions after init.
 * Errors:  none but MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_HTTP_HTTP_GUARD_H
#define MR_COORDINATOR_SERVING_HTTP_HTTP_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { HTTP_DIGEST_BYTES = 32 };

/* Keys as their SHA-256, so that comparing takes the same time whatever is asked. */
typedef struct http_keys {
    uint8_t (*digests)[HTTP_DIGEST_BYTES];
    int32_t n;
} http_keys;

void http_digest(const char *text, uint8_t out[HTTP_DIGEST_BYTES]);
MR_MUST_USE mr_status http_keys_init(http_keys *k, const char *const *keys, int32_t n, mr_err *err);
void http_keys_deinit(http_keys *k);
/* authorization: the header's value, "Bearer KEY"; or api_key: that of X-Api-Key. Both may be NULL. True where no key
 * is needed. The time depends on the lengths alone. */
bool http_keys_admit(const http_keys *k, const char *authorization, const char *api_key);

/* Whether a Host header names this machine's loopback, or own_name: a page whose name was made to point here (DNS
 * rebinding) names something else. NULL, of HTTP/1.0, is accepted: no browser leaves it out. */
bool http_host_is_local(const char *host_header, const char *own_name);

typedef enum http_origin {
    HTTP_ORIGIN_OWN,     /* none was named, or our own */
    HTTP_ORIGIN_ALLOWED, /* another one, of the list */
    HTTP_ORIGIN_FOREIGN,
} http_origin;
http_origin http_origin_judge(const char *origin, const char *host_header, const char *const *allowed, int32_t n);

#endif
