/* engine/grammar/schema.h - a JSON schema as the rules of a GBNF grammar. What a schema asks for and the grammar cannot
 * hold is refused by name, never left out.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_SCHEMA_H
#define MR_ENGINE_GRAMMAR_SCHEMA_H

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"

/* Appends rules to out: one named `name` ([A-Za-z0-9-], starts with a letter), the JSON values that the schema allows, and
 * those that it needs, all named `name-...`. Several schemas go into one grammar under different names, none of which is
 * another one with "-..." behind it. MR_E_FORMAT: no JSON, or a keyword has a value of the wrong type; MR_E_UNSUPPORTED: a
 * keyword that cannot be honoured, named with its path; MR_E_INVALID: no value is valid; MR_E_TOO_LONG: nested too deep, or
 * the rules exceed MR_GRAMMAR_MAX_TEXT_BYTES. On failure out is as it was. */
MR_MUST_USE mr_status mr_grammar_schema_to_gbnf(mr_str json_schema, const char *name, mr_text_buf *out, mr_err *err);

#endif
