/* engine/base/mem.h - the one allocator of the project: counted, limited by a budget, and made to fail by tests.
 * Threads: thread-safe.
 * Errors:  every function returns NULL when the system, the budget or an injected failure says no. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_MEM_H
#define MR_ENGINE_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory; bytes may be 0 (a unique pointer comes back). Free with mr_free. */
void *mr_alloc(size_t bytes);
/* n * size with overflow checked; zeroed. */
void *mr_alloc_array(size_t n, size_t size);
/* Grows or shrinks; the bytes added are not zeroed. On failure NULL comes back and the old block stays valid. */
void *mr_realloc(void *p, size_t bytes);
/* Large blocks (weights, KV, work memory): zeroed pages aligned to 2 MiB, huge pages asked for. Free with
 * mr_pages_free. */
void *mr_pages_alloc(size_t bytes);
void mr_pages_free(void *p, size_t bytes);
/* What mr_pages_alloc takes of memory and budget: whole pages of 2 MiB, at least one. bytes is far from SIZE_MAX. */
size_t mr_pages_bytes(size_t bytes);
void mr_free(void *p);
char *mr_strdup(const char *s);
char *mr_strndup(const char *s, size_t n);

typedef struct mr_mem_stats {
    uint64_t n_allocs;   /* calls that allocated since the start of the process */
    size_t live_bytes;   /* pages only: bytes held by mr_pages_alloc now */
    size_t budget_bytes; /* limit of live_bytes, 0 for none */
} mr_mem_stats;
mr_mem_stats mr_mem_get_stats(void);

/* Bytes that the system would give without swapping: free ones and those of file pages, limits of control groups
 * (versions 1 and 2) counted, the budget not. 0: not known. */
uint64_t mr_mem_available(void);

/* For a process that lives long and has large bodies to read: call once, at its start. Freed blocks of 1 MiB and
 * more, and freed memory at the end of a heap, go back to the system at once. The C library would raise these limits
 * by itself, to 64 MiB. */
void mr_mem_keep_little(void);
/* Gives back what lies freed between other blocks, too, in the heaps of all threads. Takes milliseconds for each 100
 * MB. */
void mr_mem_trim(void);

/* Limits what mr_pages_alloc may hold at any time; 0 lifts the limit. */
void mr_mem_set_budget(size_t bytes);

/* Tests: the nth allocation from now on fails (0 is the next one), once; a negative n switches this off. */
void mr_mem_fail_at(int64_t n);
/* Allocations of the calling thread so far: proves that a step allocates nothing. */
uint64_t mr_mem_thread_allocs(void);

/* out = a * b or a + b; false on overflow, and then out is untouched. */
static inline bool mr_mul_size(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}
static inline bool mr_add_size(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}
static inline size_t mr_round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

#endif
