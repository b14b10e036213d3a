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

#include "coordinator/serving/schema/text_set.h"
#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"

enum {
    SCHEMA_PATH_BYTES = 160,
    SCHEMA_MAX_RULES = 4096,   /* subschemas of one schema, merged ones included */
    SCHEMA_MAX_PARTS = 256,    /* schemas that are merged into one (allOf, $ref) */
    SCHEMA_MAX_OPTIONAL = 200, /* optional properties in a row: each adds a state to the automaton at that place */
    SCHEMA_MAX_ITEMS = 256,    /* schemas in prefixItems */
    SCHEMA_MAX_WRITTEN = 64,   /* sets of texts that are used again */
};

/* How texts are written: inside the quotes of a JSON string, or as they are. */
typedef enum text_form { TEXT_JSON, TEXT_BARE } text_form;

typedef struct schema_rule {
    json_t *schema;
    char path[SCHEMA_PATH_BYTES]; /* JSON pointer into the schema, for errors; cut to the size of the array */
    bool merged;                  /* the schema was made by merging and is no part of the caller's schema */
} schema_rule;

typedef struct schema_writer {
    const char *name;
    bool strict; /* a keyword that cannot be honoured is an error */
    json_t *root;
    mr_text_buf *out;   /* complete rules */
    mr_text_buf body;   /* right-hand side of the rule that is being written */
    mr_text_buf number; /* of numbers between bounds, as a regular expression */
    schema_rule *rules;
    size_t n_rules, cap_rules, n_merged;
    size_t now;    /* index of the rule that is being written */
    uint64_t work; /* comparisons of values so far */
    text_sets texts;
    size_t n_automata;
    struct {
        text_set set;
        size_t id;                 /* of the automaton */
    } written[SCHEMA_MAX_WRITTEN]; /* JSON strings */
    size_t n_written;
    mr_status status;
    mr_err *err;
} schema_writer;

/* A keyword limits values and cannot be honoured: an error that names it if the schema is strict, else a line in the
 * log. Returns whether to go on without the keyword. */
bool schema_widen(schema_writer *w, const char *keyword, const char *why);
/* A line in the log about a keyword that does not limit values. */
void schema_note(schema_writer *w, const char *keyword, const char *why);
/* Whether sets of texts can go on being made: begins the work for another one. Else an error. */
bool schema_can_go_on(schema_writer *w);
/* Record an error about a keyword. The text begins with the path of the rule that is being written. */
mr_status schema_refuse(schema_writer *w, const char *keyword, const char *why);
mr_status schema_bad_type(schema_writer *w, const char *keyword, const char *wanted);
mr_status schema_no_memory(schema_writer *w);
/* Adds a * b comparisons to the work. Returns false, with an error, if the total is over the limit. */
bool schema_spend(schema_writer *w, size_t a, size_t b);
mr_status schema_fail(schema_writer *w, mr_status status, const char *fmt, ...) MR_PRINTF(3, 4);

void schema_put(schema_writer *w, mr_text_buf *buf, const char *fmt, ...) MR_PRINTF(3, 4);
void schema_put_bytes(schema_writer *w, mr_text_buf *buf, mr_str bytes);
/* Appends the bytes as a GBNF literal. */
void schema_put_literal(schema_writer *w, mr_text_buf *buf, mr_str bytes);
/* Appends the compact JSON text of a value as a GBNF literal. */
void schema_put_value(schema_writer *w, mr_text_buf *buf, const json_t *value);

/* Returns the index of the rule of a subschema, and adds the rule to the list if it is new. The path of the rule is
 * that of the current rule, then key, then index (unless negative). */
size_t schema_rule_of(schema_writer *w, json_t *schema, bool merged, const char *key, long index);

/* schema_keywords.c: the names of the types. */
enum { SCHEMA_N_TYPES = 7 };
extern const char *const schema_types[SCHEMA_N_TYPES];
bool schema_is(const json_t *value);
/* Whether the value is a type or a list of types. */
bool schema_are_types(const json_t *value);
/* Whether a keyword applies: it is no annotation and not null. Records an error if its value is of a wrong type, or if
 * the schema is strict and the keyword cannot be honoured. */
bool schema_check_keyword(schema_writer *w, const char *name, json_t *value);
/* Whether a keyword has schemas that are not read: these may describe properties and items of which nothing is known
 * here. */
bool schema_is_unread(const char *name);
bool schema_has_unread(const json_t *all);

/* A schema with all that it refers to, merged. keywords has no $ref, allOf, anyOf, oneOf and const, and its type is a
 * list. A keyword that is not read is true there. */
typedef struct schema_all {
    json_t *keywords;
    json_t *choices; /* a list of objects {"one": bool, "of": [...]}, one for each anyOf (one: false) and oneOf */
    bool never;      /* no value is valid */
} schema_all;

/* schema_merge.c */
mr_status schema_flatten(schema_writer *w, json_t *schema, schema_all *out);
void schema_all_deinit(schema_all *a);
/* The schema of the values that are valid for a and for b. NULL stands for the schema `true`. Returns a new
 * reference. */
json_t *schema_both(json_t *a, json_t *b);
/* Whether no value is valid for both schemas. Returns false if this cannot be proved. */
bool schema_disjoint(schema_writer *w, const schema_all *a, const schema_all *b);

/* schema_alternatives.c: adds to the keywords the properties that only the choices describe, none of them required. A
 * property that two alternatives describe in two ways has the types and constants of both. */
void schema_add_properties(schema_writer *w, const json_t *choices, json_t *keywords);

/* schema_container.c, schema_string.c, schema_number.c: append to the body the values of one type. */
void schema_write_object(schema_writer *w, const json_t *keywords);
void schema_write_array(schema_writer *w, const json_t *keywords);
void schema_write_string(schema_writer *w, const json_t *keywords);
void schema_write_number(schema_writer *w, const json_t *keywords, bool integer);

/* schema_string.c */
typedef struct schema_strings {
    text_set all;                                             /* what all keywords of strings allow together */
    text_set loose;                                           /* without the lengths of parts of the format */
    text_set without_most, without_lengths, pattern, lengths; /* what some of the keywords allow */
} schema_strings;
schema_strings schema_string_set(schema_writer *w, const json_t *keywords);
/* Whether a string is in the set; true if that takes too long. */
bool schema_text_fits(schema_writer *w, text_set set, const json_t *value);
/* The constants of an enum that are strings. */
text_set schema_constants(schema_writer *w, const json_t *values);
/* Appends the strings without quotes, up to and with the first mark. lead: stands between text and mark. Returns false,
 * and appends nothing, if any text is allowed. */
bool schema_write_bare(schema_writer *w, const json_t *keywords, mr_str lead, mr_str mark);

/* schema_number.c: whether a number fits the bounds and multiples. */
bool schema_number_fits(schema_writer *w, const json_t *keywords, const json_t *value);

/* schema.c. types NULL: all types. */
bool schema_has_type(const json_t *types, const char *name);
/* Whether a constant fits the keywords. Of the keywords of objects and arrays only the numbers of parts count. */
bool schema_value_fits(schema_writer *w, const json_t *keywords, const json_t *value);

/* schema_text.c: appends the texts of a set, and then `end` in GBNF. Returns false, and appends nothing, on failure of
 * the writer or of its sets of texts. */
bool schema_write_set(schema_writer *w, mr_text_buf *buf, text_set set, text_form form, const char *end);

#endif
