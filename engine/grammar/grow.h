/* engine/grammar/grow.h - arrays that grow while a grammar is compiled.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_GROW_H
#define MR_ENGINE_GRAMMAR_GROW_H

#include <stdbool.h>
#include <stddef.h>

/* Makes room for n items in an array that has room for *cap. p points to the pointer to the items, which is NULL at
 * first. Returns false without memory. */
bool mr_grammar_grow(void *p, size_t *cap, size_t n, size_t item_bytes);

#endif
