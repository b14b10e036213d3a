/* tests/support/gbnf_reference.h - a slow GBNF matcher that shares no code with engine/grammar. The matcher walks the
 * rules as written and stores, for each part of the grammar and each place in the text, where the part can end. A
 * malformed grammar aborts the process. A grammar must have no left recursion and no rule that matches the empty
 * text. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_GBNF_REFERENCE_H
#define MR_TESTS_SUPPORT_GBNF_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>

enum { GBNF_REFERENCE_MAX_TEXT = 512 };

typedef struct gbnf_reference gbnf_reference;
gbnf_reference *gbnf_reference_create(const char *gbnf);
void gbnf_reference_destroy(gbnf_reference *g);
/* out_begins: the text matches, or is the beginning of a text that matches. */
void gbnf_reference_read(gbnf_reference *g, const char *text, size_t n, bool *out_matches, bool *out_begins);

#endif
