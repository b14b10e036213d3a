/* engine/base/str.h - a piece of text that another object owns: bytes with a length, without a terminating zero.
 * Owns:    nothing; the function that returns an mr_str says how long its bytes are valid.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_STR_H
#define MR_ENGINE_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct mr_str {
    const char *data; /* may be NULL if len is 0 */
    size_t len;
} mr_str;

static inline mr_str mr_str_from(const char *s) {
    return (mr_str){s, strlen(s)};
}
static inline bool mr_str_equal(mr_str a, mr_str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}
static inline bool mr_str_is(mr_str a, const char *s) {
    return mr_str_equal(a, mr_str_from(s));
}
/* Compares the bytes as unsigned numbers. A prefix comes before the longer text. */
static inline int mr_str_compare(mr_str a, mr_str b) {
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n ? memcmp(a.data, b.data, n) : 0;
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

#endif
