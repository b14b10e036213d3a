/* coordinator/serving/api/api_fields.h - reads the fields of a JSON object into a struct, by tables: name, type, range,
 * and where it goes. Absent and null leave the struct as it is. Fields that no table names are passed over.
 * Owns:    nothing: texts and values that are kept point into the body.
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
    API_FIELD_INT64, /* any */
    API_FIELD_FLOAT, /* in [low, high] */
    API_FIELD_TEXT,  /* mr_str; low..high bytes */
    API_FIELD_ARRAY, /* const json_t *; at most high elements */
    API_FIELD_OBJECT,
    API_FIELD_ANY,
    API_FIELD_IGNORED, /* known, and it does not change what the model answers */
    /* Something that this server does not do and that would change the answer. Taken where it says "off": an empty
     * text, list or object, or a number in [low, high], false being 0 and true 1; never where low is above high. */
    API_FIELD_REFUSED,
} api_field_type;

typedef struct api_field {
    const char *name;
    api_field_type type;
    size_t offset; /* of a bool, int32_t, int64_t, float, mr_str or const json_t * */
    double low, high;
} api_field;

/* Reads in the order of the table: of two names for the same place, the later one counts. prefix: put in front of names
 * in errors ("stream_options."), NULL: nothing. false: e names the field. */
MR_MUST_USE bool api_fields_read(const api_field *fields, size_t n, const char *prefix, const json_t *object, void *out,
                                 mr_api_error *e);

/* One value of the types INT32 and FLOAT, for lists of them. */
MR_MUST_USE bool api_field_number(const json_t *value, const char *name, double low, double high, bool whole,
                                  double *out, mr_api_error *e);

#endif
