/* coordinator/serving/json/json.h - reads any legal JSON into values of jansson, and writes such values. jansson alone
 * refuses three things that JSON allows; this reader takes them:
 * - a number beyond 64 bits, or beyond a double, becomes a "long number". It keeps its digits. To jansson it is an
 *   object of one member, whose name no text that was read can have.
 * - half a surrogate pair (\ud800 alone) becomes U+FFFD.
 * - \u0000 in the name of a member becomes U+FFFD. In a string \u0000 stays: a string may hold zero bytes, so use
 *   json_string_length.
 * Owns:    the caller owns what is returned.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_JSON_JSON_H
#define MR_COORDINATOR_SERVING_JSON_JSON_H

#include <jansson.h>

#include "engine/base/status.h"
#include "engine/base/str.h"

enum {
    MR_JSON_UNIQUE_NAMES = 1, /* equal names in an object are an error; otherwise the last one counts */
    MR_JSON_ROUNDED = 2,      /* there are no long numbers: they are rounded to doubles, the largest one at most */
};

/* Reads a value of any type. flags: MR_JSON_. NULL with MR_E_FORMAT: the text is no JSON, and err says where; or with
 * MR_E_NO_MEMORY. err may be NULL. */
json_t *mr_json_read(mr_str text, unsigned flags, mr_err *err);

/* The digits of a long number as they were read; NULL for any other value. */
const char *mr_json_digits(const json_t *value);
/* Whether the value is a number of any length, and its value, rounded to a double (infinite beyond its range). */
bool mr_json_number(const json_t *value, double *out);

/* json_dumps for values that may hold long numbers, and of any type. The caller frees the text with free().
 * NULL: no memory. flags: those of jansson, without JSON_ENSURE_ASCII. */
char *mr_json_dump(const json_t *value, size_t flags);

#endif
