/* coordinator/serving/schema/schema.h - turns a JSON schema into the rules of a GBNF grammar. A keyword of JSON Schema
 * that limits values, and that the grammar cannot enforce, is left out, with a line in the log at the debug level. A
 * strict schema is refused instead, with the keyword's name. Other keywords and formats are annotations. A keyword with
 * the value null is absent, but for const.
 *
 * Covers:  type (a name or a list), nullable, enum, const, properties, required, additionalProperties (see below),
 *          patternProperties (up to 4), propertyNames, unevaluatedProperties and unevaluatedItems (as
 *          additionalProperties and items after merging), minProperties up to 1, minProperties and maxProperties of
 *          objects without properties, items, prefixItems, additionalItems, minItems, maxItems, uniqueItems of a few
 *          constants, minLength, maxLength, pattern, format (date, time, date-time, duration, uuid, uuid1 to uuid5,
 *          ipv4, ipv6, hostname, email, uri, uri-reference, json-pointer), minimum, maximum, exclusiveMinimum,
 *          exclusiveMaximum (also as true, in draft 4), multipleOf, $ref into the schema itself, $defs, allOf, anyOf,
 *          not for types and strings, and oneOf if its alternatives are provably disjoint: by their types, by their
 *          constants, or by the constants of a property that both alternatives require. The property that
 *          "discriminator" names is required in each alternative.
 * Closed:  an object with "properties" and without "additionalProperties" allows only the described and the required
 *          properties, at any depth. The standard would allow others, but authors of schemas for models do not want
 *          others. allOf, anyOf and oneOf are merged first, so the properties of all parts count. An object without
 *          "properties" allows any property, as in the standard.
 * Subset:  the grammar accepts valid values only, but not all valid values. Properties come in the order of the schema,
 *          additional ones at the end. Between parts stands nothing, a space, or a newline and at most 32 spaces or 8
 *          tabs. Numbers with bounds have no exponent. Beyond bounds of its own a number lies between -9e18 and 9e18. A
 *          fraction has at most 16 digits, beside bounds 15 with those before the point. Characters of texts with
 *          limits, and of enum values, are escaped in one way only. Patterns count characters as \d, \w, \s and their
 *          opposites where ECMA-262 and Python agree.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SCHEMA_SCHEMA_H
#define MR_COORDINATOR_SERVING_SCHEMA_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/grammar/grammar.h"
#include "engine/text/buffers.h"

enum { MR_GRAMMAR_MAX_SCHEMA_BYTES = 1 << 20 }; /* bytes of the text of a JSON schema */

/* Appends rules to out. The rule `name` ([A-Za-z0-9-], starts with a letter) matches the JSON values that the schema
 * allows. The rules that it uses are named `name-...`. One grammar can hold several schemas under different names, but
 * no name may be another name followed by "-...".
 * MR_E_FORMAT: the text is no JSON, or a keyword has a value of the wrong type. MR_E_UNSUPPORTED: the grammar cannot
 * enforce a keyword of a strict schema, which the error names with its path. MR_E_INVALID: the schema allows no value.
 * MR_E_TOO_LONG: the schema is too large or nested too deeply, takes too long to compile, or the rules exceed
 * MR_GRAMMAR_MAX_TEXT_BYTES. On failure out is unchanged. */
MR_MUST_USE mr_status mr_grammar_schema_to_gbnf(mr_str json_schema, bool strict, const char *name, mr_text_buf *out,
                                                mr_err *err);

/* A schema whose values are strings that stand in a text without quotes, up to a mark. */
typedef struct mr_schema_text {
    mr_str json_schema;
    bool strict;
    const char *name; /* of the rule */
    mr_str lead;      /* between text and mark; may be empty */
    mr_str mark;      /* the text does not contain it */
} mr_schema_text;

/* Appends the rule `name` and rules `name-...`: a text that the schema allows, the lead, and the mark. out_any: any
 * text is allowed, and no rule was written. Errors: as above. */
MR_MUST_USE mr_status mr_grammar_text_to_gbnf(const mr_schema_text *text, mr_text_buf *out, bool *out_any, mr_err *err);
/* The keywords of a schema with those of its $ref and allOf, without annotations; a new reference. type is a list then.
 * If the schema is not strict, the properties of anyOf and oneOf are among these. Errors: as above. */
MR_MUST_USE mr_status mr_schema_merged(const json_t *schema, bool strict, json_t **out, mr_err *err);

/* Compiles the rules of mr_grammar_schema_to_gbnf. The errors are the same. */
MR_MUST_USE mr_status mr_grammar_from_schema(mr_str json_schema, bool strict, mr_grammar **out, mr_err *err);
/* A grammar of the texts that a regular expression matches from their start to their end. The expression has the syntax
 * of "pattern" in schemas. MR_E_UNSUPPORTED: the error names the unsupported construct. Other errors: as in
 * mr_grammar_parse. */
MR_MUST_USE mr_status mr_grammar_from_regex(mr_str pattern, mr_grammar **out, mr_err *err);
/* A grammar of n texts: each of them is accepted. Errors: as in mr_grammar_parse. */
MR_MUST_USE mr_status mr_grammar_from_choice(const mr_str *texts, size_t n, mr_grammar **out, mr_err *err);
/* A grammar of all JSON objects, for the response_format json_object of OpenAI's API. */
MR_MUST_USE mr_status mr_grammar_any_object(mr_grammar **out, mr_err *err);

#endif
