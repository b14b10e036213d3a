/* engine/base/mem.h - the one allocator of the project. It counts allocations, limits pages by a budget, and lets tests
 * inject failures.
 * Threads: thread-safe.
 * Errors:  every function returns NULL when the system has no memory, the budget is used up or a test injects a
 *          failure. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_MEM_H
#define MR_ENGINE_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns zeroed memory. bytes may be 0; the pointer is unique even then. Free with mr_free. */
void *mr_alloc(size_t bytes);
/* Allocates n * size bytes, zeroed; NULL if the product overflows. */
void *mr_alloc_array(size_t n, size_t size);
/* Grows or shrinks a block. Added bytes are not zeroed. On failure the result is NULL and the old block stays valid. */
void *mr_realloc(void *p, size_t bytes);
/* For large blocks (weights, KV, work memory): zeroed pages aligned to 2 MiB; the kernel is asked for huge pages.
 * Free with mr_pages_free. */
void *mr_pages_alloc(size_t bytes);
void mr_pages_free(void *p, size_t bytes);
/* The bytes that mr_pages_alloc takes from memory and budget: a multiple of 64 KiB above 0. bytes must be far below
 * SIZE_MAX. */
size_t mr_pages_bytes(size_t bytes);
void mr_free(void *p);
char *mr_strdup(const char *s);
char *mr_strndup(const char *s, size_t n);

typedef struct mr_mem_stats {
    uint64_t n_allocs;   /* allocating calls since the start of the process */
    size_t live_bytes;   /* held by mr_pages_alloc now; heap blocks are not counted */
    size_t budget_bytes; /* limit of live_bytes, 0 for none */
} mr_mem_stats;
mr_mem_stats mr_mem_get_stats(void);

/* Bytes that the system could give without swapping: free memory and pages of files, within the limits of control
 * groups (versions 1 and 2). The budget does not count. 0: not known. */
uint64_t mr_mem_available(void);

/* For a process that runs for long and reads large request bodies: call once, at its start. Freed blocks of 1 MiB and
 * more, and freed memory at the end of a heap, then go back to the system at once. Without the call, the C library
 * would raise these thresholds up to 64 MiB. */
void mr_mem_keep_little(void);
/* Also gives freed memory between used blocks back to the system, in the heaps of all threads, and the end of the heap
 * of the calling thread, however small the freed blocks are. Takes milliseconds for each 100 MB. */
void mr_mem_trim(void);

/* Limits the bytes that mr_pages_alloc may hold at any time; 0 lifts the limit. */
void mr_mem_set_budget(size_t bytes);

/* For tests: the nth allocation from now on fails once (0 is the next one). A negative n switches this off. */
void mr_mem_fail_at(int64_t n);
/* Allocations of the calling thread so far. Tests prove with this count that a step allocates nothing. */
uint64_t mr_mem_thread_allocs(void);

/* out = a * b or a + b. Returns false on overflow and leaves out as it was. */
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
