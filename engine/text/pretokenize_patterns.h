/* engine/text/pretokenize_patterns.h - the table of pre-tokenizers.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_PRETOKENIZE_PATTERNS_H
#define MR_ENGINE_TEXT_PRETOKENIZE_PATTERNS_H

#include <stdbool.h>

#include "engine/base/str.h"

enum { PRETOK_MAX_STEPS = 6, PRETOK_MAX_NAMES = 9 };

typedef struct pretok_kind {
    const char *names[PRETOK_MAX_NAMES]; /* values of tokenizer.ggml.pre */
    /* Each step cuts every word of the step before. The matches become words, and so does the text between them. */
    const char *steps[PRETOK_MAX_STEPS];
    bool ignores_merges;
    bool adds_bos;
    bool ids_are_ranks; /* without merges in the file, any two tokens merge into a third, the lowest id first */
} pretok_kind;

/* Finds a kind by its name; NULL for an unknown name. The empty name means the first kind. */
const pretok_kind *pretok_kind_find(mr_str name);
/* Writes the first name of each kind to out, separated by commas. */
void pretok_kind_list(char *out, size_t size);

#endif
