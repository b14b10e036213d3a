/* coordinator/serving/schema/schema_internal.h - shared declarations of the files that turn a JSON schema into rules.
 * Each subschema becomes a rule. The writer keeps a list of the rules and writes one after another, without recursion.
 * Owns:    the writer owns its list of rules and holds a reference to each schema in the list.
 * Threads: caller serialises.
 * Errors:  the first error stays in the writer's status. After an error the functions do nothing. */
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
    SCHEMA_MAX_PARTS = 256,    /* schemas that are merged into one (allOf, $ref) */
    SCHEMA_MAX_OPTIONAL = 200, /* optional properties in a row: each adds a state to the automaton at that place */
    SCHEMA_MAX_ITEMS = 256,    /* schemas in prefixItems */
};

typedef struct schema_rule {
    json_t *schema;
    char path[SCHEMA_PATH_BYTES]; /* JSON pointer into the schema, for errors; cut to the size of the array */
    bool merged;                  /* the schema was made by merging and is no part of the caller's schema */
} schema_rule;

typedef struct schema_writer {
    const char *name;
    json_t *root;
    mr_text_buf *out; /* complete rules */
    mr_text_buf body; /* right-hand side of the rule that is being written */
    schema_rule *rules;
    size_t n_rules, cap_rules, n_merged;
    size_t now;    /* index of the rule that is being written */
    uint64_t work; /* comparisons of values so far */
    mr_status status;
    mr_err *err;
} schema_writer;

/* Record an error about a keyword. The text begins with the path of the rule that is being written. */
mr_status schema_refuse(schema_writer *w, const char *keyword, const char *why);
mr_status schema_bad_type(schema_writer *w, const char *keyword, const char *wanted);
mr_status schema_no_memory(schema_writer *w);
/* Adds a * b comparisons to the work. Returns false, with an error, if the total is over the limit. */
bool schema_spend(schema_writer *w, size_t a, size_t b);
mr_status schema_fail(schema_writer *w, mr_status status, const char *fmt, ...) MR_PRINTF(3, 4);

void schema_put(schema_writer *w, mr_text_buf *buf, const char *fmt, ...) MR_PRINTF(3, 4);
/* Appends the bytes as a GBNF literal. */
void schema_put_literal(schema_writer *w, mr_text_buf *buf, mr_str bytes);
/* Appends the compact JSON text of a value as a GBNF literal. */
void schema_put_value(schema_writer *w, mr_text_buf *buf, const json_t *value);

/* Returns the index of the rule of a subschema, and adds the rule to the list if it is new. The path of the rule is
 * that of the current rule, then key, then index (unless negative). */
size_t schema_rule_of(schema_writer *w, json_t *schema, bool merged, const char *key, long index);

/* A schema with all that it refers to, merged. keywords has no $ref, allOf, anyOf, oneOf and const, and its type is a
 * list. */
typedef struct schema_all {
    json_t *keywords;
    json_t *choices; /* a list of objects {"one": bool, "of": [...]}, one for each anyOf (one: false) and oneOf */
    bool never;      /* no value is valid */
} schema_all;

/* schema_merge.c */
mr_status schema_flatten(schema_writer *w, json_t *schema, schema_all *out);
void schema_all_deinit(schema_all *a);
/* Whether no value is valid for both schemas. Returns false if this cannot be proved. */
bool schema_disjoint(schema_writer *w, const schema_all *a, const schema_all *b);

/* schema_container.c, schema_string.c, schema_number.c: append to the body the values of one type. */
void schema_write_object(schema_writer *w, const json_t *keywords);
void schema_write_array(schema_writer *w, const json_t *keywords);
void schema_write_string(schema_writer *w, const json_t *keywords);
void schema_write_number(schema_writer *w, const json_t *keywords, bool integer);
/* schema_keys.c: appends the characters of any key except n names, without quotes. The key has no escapes. */
void schema_write_other_keys(schema_writer *w, mr_text_buf *buf, const mr_str *names, size_t n);

/* schema_regex.c: appends the texts that a regular expression matches. any: the name of the rule of one character of a
 * JSON string. The texts are then escaped as in JSON, and the expression may match anywhere in the string. any NULL:
 * the texts are not escaped, and the expression matches the whole text. out_lengths: the shortest and the longest text,
 * in characters; UINT32_MAX: unbounded. Returns false for an unsupported expression; out_why then names the unsupported
 * construct. */
typedef struct schema_lengths {
    uint32_t min, max;
} schema_lengths;
bool schema_write_regex(mr_str pattern, const char *any, mr_text_buf *out, schema_lengths *out_lengths,
                        const char **out_why);

#endif
