/* coordinator/serving/wire/api_json.h - reads JSON that clients send, within bounds, and writes JSON for clients.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_WIRE_API_JSON_H
#define MR_COORDINATOR_SERVING_WIRE_API_JSON_H

#include <jansson.h>

#include "coordinator/serving/wire/api_error.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"

/* Bounds of one body. */
enum {
    API_MAX_DEPTH = 64, /* of nested arrays and objects */
    API_MAX_VALUES = 1 << 20,
};

/* Parses the body, which has to be a JSON object. Of equal keys the last one counts. NULL: the body is no object, is
 * nested deeper or has more values than the bounds allow, is not UTF-8, or there is no memory; e says which. */
json_t *mr_api_json_parse(mr_str body, mr_api_error *e);

/* A JSON string of any bytes: bytes that are not UTF-8 become U+FFFD. NULL: no memory. */
json_t *mr_api_json_text(mr_str text);

/* Appends value on one line, and releases value. A value of NULL fails: functions that build values return NULL where
 * there is no memory and accept NULL, so that only the result of this function has to be checked. */
MR_MUST_USE bool mr_api_json_write(json_t *value, mr_text_buf *out);
/* Appends the error as {"error": {"message", "type", "param", "code"}}, with "n_prompt_tokens" and "n_ctx" where the
 * prompt is too long; false: no memory. */
MR_MUST_USE bool mr_api_json_write_error(const mr_api_error *e, mr_text_buf *out);

/* Puts value into the object or array, takes over the reference to value, and returns the object or array. NULL: one of
 * them is NULL or there is no memory; both have been released. */
json_t *mr_api_json_put(json_t *object, const char *key, json_t *value);
json_t *mr_api_json_add(json_t *array, json_t *value);

/* The type of a value for error texts: "a string". */
const char *mr_api_json_kind(const json_t *value);

#endif
