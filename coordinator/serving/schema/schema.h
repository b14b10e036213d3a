/* coordinator/serving/schema/schema.h - turns a JSON schema into the rules of a GBNF grammar. If a grammar cannot
 * enforce a keyword of the schema, the schema is refused with the keyword's name. Only annotations are ignored.
 *
 * Covers:  type (a name or a list), enum, const, properties, required, additionalProperties (see below),
 *          minProperties up to 1, maxProperties of objects without properties,
 *          items, prefixItems, additionalItems, minItems, maxItems, minLength, maxLength, pattern, format (date,
 *          time, date-time, duration, uuid, ipv4, ipv6, hostname, email, uri), minimum, maximum, exclusiveMinimum,
 *          exclusiveMaximum, $ref into the schema itself, $defs, allOf, anyOf, and oneOf if its alternatives are
 *          provably disjoint: by their types, by their constants, or by the constants of a property that both
 *          alternatives require. The property that "discriminator" names is required in each alternative.
 * Closed:  an object with "properties" and without "additionalProperties" allows only the described and the required
 *          properties, at any depth. The standard would allow others, but authors of schemas for models do not want
 *          others. allOf, anyOf and oneOf are merged first, so the properties of all parts count. An object without
 *          "properties" allows any property, as in the standard.
 * Subset:  the grammar accepts valid values only, but not all valid values. Properties come in the order of the schema,
 *          additional ones at the end. Between parts stands nothing, a space, or a newline and at most 32 spaces or 8
 *          tabs. Numbers with bounds have no exponent and at most 15 digits; other numbers have at most 16 digits
 *          before and 16 behind the point. Names of additional properties have no escapes if the schema describes
 *          properties. Characters of patterns and enum values are escaped in one way only. Negated shorthands in
 *          patterns (\W) match ASCII characters only.
 * Notes:   title, description, default, examples and other annotations have no effect. A keyword that starts with x-
 *          has no effect either.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SCHEMA_SCHEMA_H
#define MR_COORDINATOR_SERVING_SCHEMA_SCHEMA_H

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/grammar/grammar.h"
#include "engine/text/buffers.h"

enum { MR_GRAMMAR_MAX_SCHEMA_BYTES = 1 << 20 }; /* bytes of the text of a JSON schema */

/* Appends rules to out. The rule `name` ([A-Za-z0-9-], starts with a letter) matches the JSON values that the schema
 * allows. The rules that it uses are named `name-...`. One grammar can hold several schemas under different names, but
 * no name may be another name followed by "-...".
 * MR_E_FORMAT: the text is no JSON, or a keyword has a value of the wrong type. MR_E_UNSUPPORTED: the grammar cannot
 * enforce a keyword, which the error names with its path. MR_E_INVALID: the schema allows no value. MR_E_TOO_LONG: the
 * schema is too large or nested too deeply, or the rules exceed MR_GRAMMAR_MAX_TEXT_BYTES. On failure out is
 * unchanged. */
MR_MUST_USE mr_status mr_grammar_schema_to_gbnf(mr_str json_schema, const char *name, mr_text_buf *out, mr_err *err);

/* Compiles the rules of mr_grammar_schema_to_gbnf. The errors are the same. */
MR_MUST_USE mr_status mr_grammar_from_schema(mr_str json_schema, mr_grammar **out, mr_err *err);
/* A grammar of the texts that a regular expression matches from their start to their end. The expression has the syntax
 * of "pattern" in schemas. MR_E_UNSUPPORTED: the error names the unsupported construct. Other errors: as in
 * mr_grammar_parse. */
MR_MUST_USE mr_status mr_grammar_from_regex(mr_str pattern, mr_grammar **out, mr_err *err);
/* A grammar of n texts: each of them is accepted. Errors: as in mr_grammar_parse. */
MR_MUST_USE mr_status mr_grammar_from_choice(const mr_str *texts, size_t n, mr_grammar **out, mr_err *err);
/* A grammar of all JSON objects, for the response_format json_object of OpenAI's API. */
MR_MUST_USE mr_status mr_grammar_any_object(mr_grammar **out, mr_err *err);

#endif
