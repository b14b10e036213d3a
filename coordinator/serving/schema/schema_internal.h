/* coordinator/serving/schema/schema_internal.h - the parts of the way from a JSON schema to rules. Each subschema
 * becomes a rule; a list of rules that are still to be written stands in for recursion.
 * Owns:    the writer owns its list and holds references to all values in it.
 * Threads: caller serialises.
 * Errors:  the first error stays in the writer's status; functions do nothing after it. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SCHEMA_SCHEMA_INTERNAL_H
#define MR_COORDINATOR_SERVING_SCHEMA_SCHEMA_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"

enum {
    SCHEMA_PATH_BYTES = 160,
    SCHEMA_MAX_RULES = 4096,   /* subschemas of one schema, merged ones included */
    SCHEMA_MAX_PARTS = 256,    /* schemas that are merged into one */
    SCHEMA_MAX_OPTIONAL = 200, /* properties in a row that may be left out: each is a reading of its own */
    SCHEMA_MAX_ITEMS = 256,    /* schemas in prefixItems */
};

typedef struct schema_rule {
    json_t *schema;
    char path[SCHEMA_PATH_BYTES]; /* a pointer into the schema; cut where it is long */
    bool merged;                  /* made here, not a part of what was given */
} schema_rule;

typedef struct schema_writer {
    const char *name;
    json_t *root;
    mr_text_buf *out; /* whole rules */
    mr_text_buf body; /* of the rule that is being written */
    schema_rule *rules;
    size_t n_rules, cap_rules, n_merged;
    size_t now;    /* the rule that is being written */
    uint64_t work; /* values that were compared */
    mr_status status;
    mr_err *err;
} schema_writer;

/* The path of the rule that is being written, and a keyword: for errors. */
mr_status schema_refuse(schema_writer *w, const char *keyword, const char *why);
mr_status schema_bad_type(schema_writer *w, const char *keyword, const char *wanted);
mr_status schema_no_memory(schema_writer *w);
/* Counts a * b comparisons; false, with an error, where all together are too many. */
bool schema_spend(schema_writer *w, size_t a, size_t b);
mr_status schema_fail(schema_writer *w, mr_status status, const char *fmt, ...) MR_PRINTF(3, 4);

void schema_put(schema_writer *w, mr_text_buf *buf, const char *fmt, ...) MR_PRINTF(3, 4);
/* The bytes as a literal of GBNF. */
void schema_put_literal(schema_writer *w, mr_text_buf *buf, mr_str bytes);
/* A JSON value as a literal. */
void schema_put_value(schema_writer *w, mr_text_buf *buf, const json_t *value);

/* The rule of a subschema, which is written later; key and index name it below the rule that is being written. */
size_t schema_rule_of(schema_writer *w, json_t *schema, bool merged, const char *key, long index);

/* Everything that a schema asks for, in one object without $ref, allOf, anyOf, oneOf, const, and with type as a list.
 * */
typedef struct schema_all {
    json_t *keywords;
    json_t *choices; /* of objects {"one": bool, "of": [...]}, from anyOf and oneOf */
    bool never;      /* nothing is valid */
} schema_all;

/* schema_merge.c */
mr_status schema_flatten(schema_writer *w, json_t *schema, schema_all *out);
void schema_all_deinit(schema_all *a);
/* No value fits both. Cautious: false where it cannot be seen. */
bool schema_disjoint(schema_writer *w, const schema_all *a, const schema_all *b);

/* schema_container.c, schema_string.c, schema_number.c: append to the body what values of one type look like. */
void schema_write_object(schema_writer *w, const json_t *keywords);
void schema_write_array(schema_writer *w, const json_t *keywords);
void schema_write_string(schema_writer *w, const json_t *keywords);
void schema_write_number(schema_writer *w, const json_t *keywords, bool integer);
/* schema_keys.c: appends the characters of a key that is none of n names (without its quotes, and without escapes). */
void schema_write_other_keys(schema_writer *w, mr_text_buf *buf, const mr_str *names, size_t n);

/* schema_regex.c: appends the characters that a regular expression matches: as JSON writes them in a string, anywhere
 * in it, any being the rule of one character; where any is NULL, as they are, and all of the text. Lengths in
 * characters; UINT32_MAX for no end. On failure out_why says what is not supported. */
typedef struct schema_lengths {
    uint32_t min, max;
} schema_lengths;
bool schema_write_regex(mr_str pattern, const char *any, mr_text_buf *out, schema_lengths *out_lengths,
                        const char **out_why);

#endif
