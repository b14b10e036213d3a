/* coordinator/serving/errors/errors.h - the errors that clients see, for all parts of the server. errors.def is the
 * table.
 * Owns:    nothing but constants.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_ERRORS_ERRORS_H
#define MR_COORDINATOR_SERVING_ERRORS_ERRORS_H

typedef enum mr_error_id {
#define MR_ERROR(id, ...) MR_ERROR_##id,
#include "coordinator/serving/errors/errors.def"
#undef MR_ERROR
    MR_ERROR_COUNT,
} mr_error_id;

typedef struct mr_error_kind {
    int status;       /* of HTTP */
    const char *code; /* of OpenAI's error object; NULL: null */
} mr_error_kind;

extern const mr_error_kind mr_error_kinds[MR_ERROR_COUNT];

/* The type of OpenAI's error object for an HTTP status. */
const char *mr_error_type(int status);

#endif
