/* tests/support/gbnf_reference.h - a slow reader of GBNF that shares nothing with engine/grammar: it walks the rules
 * as they are written and keeps, for each part of the grammar and each place in the text, where that part can end.
 * Aborts on anything malformed. Grammars have no left recursion and no rule that matches nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_GBNF_REFERENCE_H
#define MR_TESTS_SUPPORT_GBNF_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>

enum { GBNF_REFERENCE_MAX_TEXT = 512 };

typedef struct gbnf_reference gbnf_reference;
gbnf_reference *gbnf_reference_create(const char *gbnf);
void gbnf_reference_destroy(gbnf_reference *g);
/* Whether text matches, and whether it does or begins a text that does. */
void gbnf_reference_read(gbnf_reference *g, const char *text, size_t n, bool *out_matches, bool *out_begins);

#endif
