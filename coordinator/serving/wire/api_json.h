/* coordinator/serving/wire/api_json.h - JSON of clients, read with bounds, and JSON for them.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_WIRE_API_JSON_H
#define MR_COORDINATOR_SERVING_WIRE_API_JSON_H

#include <jansson.h>

#include "coordinator/serving/wire/api_error.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"

/* Of one body. */
enum {
    API_MAX_DEPTH = 64,       /* arrays and objects of a body in each other */
    API_MAX_VALUES = 1 << 20, /* in one body */
};

/* The object that body spells; of two equal keys the last counts. NULL: it is none, deeper or larger than these bounds,
 * not UTF-8, or there is no memory; e says which. */
json_t *mr_api_json_parse(mr_str body, mr_api_error *e);

/* Any bytes: those that are no UTF-8 become U+FFFD. NULL: no memory. */
json_t *mr_api_json_text(mr_str text);

/* Appends value on one line, and releases it. NULL is accepted and fails: makers of values return NULL where there is
 * no memory, and takers accept NULL, so that only this has to be checked. */
MR_MUST_USE bool mr_api_json_write(json_t *value, mr_text_buf *out);
/* Appends the error as {"error": {"message", "type", "param", "code"}}; false: no memory. */
MR_MUST_USE bool mr_api_json_write_error(const mr_api_error *e, mr_text_buf *out);

/* object or array with value in it, which is released; NULL, with nothing left, where either is NULL or there is no
 * memory. */
json_t *mr_api_json_put(json_t *object, const char *key, json_t *value);
json_t *mr_api_json_add(json_t *array, json_t *value);

/* What a value is, for error texts: "a string". */
const char *mr_api_json_kind(const json_t *value);

#endif
