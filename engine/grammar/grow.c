/* engine/grammar/grow.c - makes room in an array of any type, by doubling. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/grow.h"

#include <string.h>

#include "engine/base/mem.h"

bool mr_grammar_grow(void *p, size_t *cap, size_t n, size_t item_bytes) {
    if (n <= *cap)
        return true;
    size_t want = *cap < 32 ? 32 : *cap, bytes;
    while (want < n)
        if (!mr_mul_size(want, 2, &want))
            return false;
    void *old;
    memcpy(&old, p, sizeof old);
    void *grown = mr_mul_size(want, item_bytes, &bytes) ? mr_realloc(old, bytes) : NULL;
    if (!grown)
        return false;
    memcpy(p, &grown, sizeof grown);
    *cap = want;
    return true;
}
