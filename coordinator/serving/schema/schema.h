/* coordinator/serving/schema/schema.h - a JSON schema as the rules of a GBNF grammar. What a schema asks for and the
 * grammar cannot hold is refused by name, never left out.
 *
 * Held:    type (a name or a list), enum, const, properties, required, additionalProperties (see below),
 *          minProperties up to 1, maxProperties of objects without properties,
 *          items, prefixItems, additionalItems, minItems, maxItems, minLength, maxLength, pattern, format (date,
 *          time, date-time, duration, uuid, ipv4, ipv6, hostname, email, uri), minimum, maximum, exclusiveMinimum,
 *          exclusiveMaximum, $ref into the schema itself, $defs, allOf, anyOf, and oneOf where its alternatives are
 *          seen to be disjoint: by their types, their constants, or the constants of a property that two of them
 *          require. The property that "discriminator" names is required in each alternative.
 * Closed:  an object with properties and no additionalProperties has no other properties but those that are required,
 *          at any depth: who writes a schema for a model means that. allOf and its like are merged first, so that the
 *          properties of all parts count. An object without properties is open, as the standard has it.
 * Written: valid values only, but not all of them. Properties come in the order of the schema, then others. Between
 *          parts stands a space, or a line's end and at most 32 spaces or 8 tabs, or nothing. Numbers with bounds
 *          have no exponent and at most 15 digits, others 16 on both sides of the point. Names of additional
 *          properties have no escapes where others are described; patterns and enum values are escaped in one way.
 *          Negated shorthands in patterns (\W) stand for ASCII alone.
 * Notes:   title, description, default, examples and the like are passed over, and so is any keyword that starts with
 *          x-.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SCHEMA_SCHEMA_H
#define MR_COORDINATOR_SERVING_SCHEMA_SCHEMA_H

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/grammar/grammar.h"
#include "engine/text/buffers.h"

enum { MR_GRAMMAR_MAX_SCHEMA_BYTES = 1 << 20 }; /* of a JSON schema */

/* Appends rules to out: one named `name` ([A-Za-z0-9-], starts with a letter), the JSON values that the schema
 * allows, and those that it needs, all named `name-...`. Several schemas go into one grammar under different names,
 * none of which is another one with "-..." behind it. MR_E_FORMAT: no JSON, or a keyword has a value of the wrong
 * type; MR_E_UNSUPPORTED: a keyword that cannot be honoured, named with its path; MR_E_INVALID: no value is valid;
 * MR_E_TOO_LONG: nested too deep, or the rules exceed MR_GRAMMAR_MAX_TEXT_BYTES. On failure out is as it was. */
MR_MUST_USE mr_status mr_grammar_schema_to_gbnf(mr_str json_schema, const char *name, mr_text_buf *out, mr_err *err);

/* Compiles the GBNF of mr_grammar_schema_to_gbnf, with its errors. */
MR_MUST_USE mr_status mr_grammar_from_schema(mr_str json_schema, mr_grammar **out, mr_err *err);
/* Texts that a regular expression matches from end to end; the expressions are those of "pattern" in schemas.
 * MR_E_UNSUPPORTED: the text names what; otherwise as mr_grammar_parse. */
MR_MUST_USE mr_status mr_grammar_from_regex(mr_str pattern, mr_grammar **out, mr_err *err);
/* One of n texts; errors as mr_grammar_parse. */
MR_MUST_USE mr_status mr_grammar_from_choice(const mr_str *texts, size_t n, mr_grammar **out, mr_err *err);
/* Any JSON object, as response_format json_object asks for. */
MR_MUST_USE mr_status mr_grammar_any_object(mr_grammar **out, mr_err *err);

#endif
