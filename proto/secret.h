/* proto/secret.h - the secret that the ranks of a launch share, and keys that are derived from it. The launcher gives
 * every rank the same secret: MILLRACE_SECRET has 64 hexadecimal digits, or MILLRACE_SECRET_FILE names a file that
 * has them, on each host. A rank never sends the secret.
 * When:    at the start of a rank; keys are derived when links are created and lifelines connect.
 * Owns:    nothing. Threads: pure functions, except mr_secret_find, which reads the environment.
 * Errors:  of mr_secret_find only. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_SECRET_H
#define MR_PROTO_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { MR_SECRET_BYTES = 32 };

typedef struct mr_secret {
    bool is_set; /* false: there is no secret, and bytes are zeros */
    uint8_t bytes[MR_SECRET_BYTES];
} mr_secret;

/* The secret of this process; not set: neither variable exists. MR_E_INVALID: the text is not 64 hexadecimal digits, or
 * others than the owner may read the file. MR_E_IO: the file cannot be read. No error text has the secret. */
MR_MUST_USE mr_status mr_secret_find(mr_secret *out, mr_err *err);
/* Derives another secret for one purpose: HMAC-SHA-256 (RFC 2104) with the secret as its key, over the label, its
 * terminating zero and data[n]. The result is set if the secret is set. */
mr_secret mr_secret_derive(const mr_secret *secret, const char *label, const uint8_t *data, size_t n);
/* Compares in constant time, so that the time does not tell where the first difference is. */
bool mr_secret_same_bytes(const uint8_t *a, const uint8_t *b, size_t n);

#endif
