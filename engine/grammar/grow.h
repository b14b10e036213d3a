/* engine/grammar/grow.h - arrays that grow while a grammar is compiled.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAMMAR_GROW_H
#define MR_ENGINE_GRAMMAR_GROW_H

#include <stdbool.h>
#include <stddef.h>

/* p points to a pointer to items (NULL at first) with room for *cap of them: makes room for n. false: no memory. */
bool mr_grammar_grow(void *p, size_t *cap, size_t n, size_t item_bytes);

#endif
