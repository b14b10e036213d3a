/* coordinator/serving/wire/api_error.h - errors as OpenAI's clients know them: a status of HTTP and
 * {"error": {"message", "type", "param", "code"}}.
 * Owns:    nothing; an mr_api_error is plain data.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_WIRE_API_ERROR_H
#define MR_COORDINATOR_SERVING_WIRE_API_ERROR_H

#include <stdbool.h>

#include "engine/base/status.h"

typedef struct mr_api_error {
    int status;       /* of HTTP; 0: no error */
    const char *code; /* static; NULL: null */
    char param[96];   /* the field at fault; "": null */
    char message[MR_ERR_TEXT_BYTES];
} mr_api_error;

/* Returns false, for callers that say so themselves. code and param may be NULL. e may be NULL. */
bool mr_api_error_set(mr_api_error *e, int status, const char *code, const char *param, const char *fmt, ...)
    MR_PRINTF(5, 6);
/* What a status of ours means to a client; err holds its text. Returns false. */
bool mr_api_error_from(mr_api_error *e, mr_status status, const mr_err *err);

#endif
