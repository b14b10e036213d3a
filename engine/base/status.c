/* engine/base/status.c - writes errors into an mr_err, and names statuses. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mr_status mr_err_setv(mr_err *err, mr_status status, const char *fmt, va_list args) {
    if (err) {
        err->status = status;
        vsnprintf(err->text, sizeof err->text, fmt, args);
    }
    return status;
}

mr_status mr_err_set(mr_err *err, mr_status status, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    mr_err_setv(err, status, fmt, args);
    va_end(args);
    return status;
}

mr_status mr_err_prefix(mr_err *err, const char *fmt, ...) {
    if (!err)
        return MR_E_INTERNAL;
    char old[MR_ERR_TEXT_BYTES];
    memcpy(old, err->text, sizeof old);
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", old);
    return err->status;
}

const char *mr_status_name(mr_status status) {
    switch (status) {
    case MR_OK:
        return "ok";
    case MR_E_INVALID:
        return "invalid";
    case MR_E_TOO_LONG:
        return "too long";
    case MR_E_UNSUPPORTED:
        return "unsupported";
    case MR_E_NOT_FOUND:
        return "not found";
    case MR_E_FORMAT:
        return "malformed";
    case MR_E_CANCELLED:
        return "cancelled";
    case MR_E_IO:
        return "i/o error";
    case MR_E_NO_MEMORY:
        return "no memory";
    case MR_E_BUSY:
        return "busy";
    case MR_E_UNAVAILABLE:
        return "unavailable";
    case MR_E_NUMERICS:
        return "not a number";
    case MR_E_TIMEOUT:
        return "timeout";
    case MR_E_PEER_LOST:
        return "peer lost";
    case MR_E_PROTOCOL:
        return "protocol error";
    case MR_E_INTERNAL:
        return "internal error";
    case MR_E_DEVICE:
        return "device error";
    }
    return "unknown status";
}

void mr_assert_failed(const char *cond, const char *file, int line) {
    fprintf(stderr, "millrace: broken invariant at %s:%d: %s\n", file, line, cond);
    abort();
}
