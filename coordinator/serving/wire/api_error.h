/* coordinator/serving/wire/api_error.h - errors as OpenAI's clients know them: an HTTP status and the members of
 * {"error": {"message", "type", "param", "code"}}. mr_api_json_write_error (api_json.h) writes the JSON.
 * Owns:    nothing; an mr_api_error is plain data.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_WIRE_API_ERROR_H
#define MR_COORDINATOR_SERVING_WIRE_API_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct mr_api_error {
    int status;       /* of HTTP; 0: no error */
    const char *code; /* static; NULL becomes null in JSON */
    char param[96];   /* the wrong field of the request; "" becomes null in JSON */
    char message[MR_ERR_TEXT_BYTES];
    int64_t n_prompt_tokens; /* of a prompt that is too long for n_ctx tokens */
    int32_t n_ctx;           /* 0: another error, whose JSON has neither number */
} mr_api_error;

/* Returns false, so that a caller can fail with `return mr_api_error_set(...)`. code, param and e may be NULL. */
bool mr_api_error_set(mr_api_error *e, int status, const char *code, const char *param, const char *fmt, ...)
    MR_PRINTF(5, 6);
/* The error of a prompt that does not fit the context: it has n_tokens, or that many at least, and n_ctx are allowed,
 * the first generated token included. Clients look for "maximum context length is N tokens". Returns false. */
bool mr_api_error_too_long(mr_api_error *e, const char *param, size_t n_tokens, bool at_least, int32_t n_ctx);
/* Translates an mr_status to an HTTP status and code. The message is the text of err, or the name of the status where
 * err is NULL or has no text. Returns false. */
bool mr_api_error_from(mr_api_error *e, mr_status status, const mr_err *err);

#endif
