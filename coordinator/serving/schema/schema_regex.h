/* coordinator/serving/schema/schema_regex.h - regular expressions, and the formats of JSON Schema, as sets of texts.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SCHEMA_SCHEMA_REGEX_H
#define MR_COORDINATOR_SERVING_SCHEMA_SCHEMA_REGEX_H

#include "coordinator/serving/schema/text_set.h"

/* The texts that a regular expression matches: as a whole, or with a match anywhere in them. Returns false for an
 * unsupported expression and on failure of p. out_why then names the unsupported construct. */
bool schema_read_regex(text_sets *p, mr_str pattern, bool whole, text_set *out, const char **out_why);

/* schema_format.c: the texts of a format of JSON Schema. loose: without the lengths of parts, which make large automata
 * of lengths beside the format. Returns false if the format is not known, or on failure of p. */
bool schema_read_format(text_sets *p, const char *name, bool loose, text_set *out);

#endif
