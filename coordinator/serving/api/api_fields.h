/* coordinator/serving/api/api_fields.h - reads the fields of a JSON object into a struct, by tables of name, type,
 * range and offset in the struct. A field that is absent or null leaves the struct as it is. Fields that no table names
 * are ignored.
 * Owns:    nothing: texts and values in the struct point into the JSON object.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_API_API_FIELDS_H
#define MR_COORDINATOR_SERVING_API_API_FIELDS_H

#include <jansson.h>
#include <stddef.h>

#include "coordinator/serving/wire/api_error.h"

typedef enum api_field_type {
    API_FIELD_BOOL,
    API_FIELD_INT32, /* a number without a fraction, in [low, high] */
    API_FIELD_INT64, /* a number without a fraction; no range */
    API_FIELD_FLOAT, /* in [low, high] */
    API_FIELD_TEXT,  /* mr_str; low..high bytes */
    API_FIELD_ARRAY, /* const json_t *; at most high elements */
    API_FIELD_OBJECT,
    API_FIELD_ANY,
    API_FIELD_IGNORED, /* a known field that does not change the output of the model */
    /* A feature that this server lacks and that would change the output. Only values that mean "off" are accepted: an
     * empty text, list or object, a word that asks for what this server does anyway, or a number in [low, high] (false
     * is 0, true is 1). Where low is above high, only false is accepted. */
    API_FIELD_REFUSED,
} api_field_type;

typedef struct api_field {
    const char *name;
    api_field_type type;
    size_t offset; /* of a bool, int32_t, int64_t, float, mr_str or const json_t * */
    double low, high;
} api_field;

/* Reads fields in the order of the table: of two names with the same offset, the later one counts. prefix stands in
 * front of names in errors ("stream_options."); NULL: nothing. false: e names the wrong field. */
MR_MUST_USE bool api_fields_read(const api_field *fields, size_t n, const char *prefix, const json_t *object, void *out,
                                 mr_api_error *e);

/* Checks one number, for elements of lists. whole: a fraction is refused. name: for errors. */
MR_MUST_USE bool api_field_number(const json_t *value, const char *name, double low, double high, bool whole,
                                  double *out, mr_api_error *e);

#endif
