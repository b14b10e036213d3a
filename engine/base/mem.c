/* engine/base/mem.c - the allocator: calloc and realloc with a count of the calls, pages from the kernel with a budget,
 * and failures that tests inject. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A multiple of the small pages of all machines, which have 4 to 64 KiB. */
enum { HUGE_PAGE = 2 << 20, PAGE_UNIT = 64 << 10 };

/* No heap block of this program comes near this size, so a larger request comes from an unchecked length in outside
 * data. (The allocators of sanitizers end the process at such sizes instead of returning NULL.) */
static const size_t MAX_HEAP_BYTES = SIZE_MAX >> 25;

static atomic_uint_fast64_t n_allocs;
static atomic_size_t live_bytes, budget_bytes;
static atomic_int_fast64_t fail_at = -1;
static _Thread_local uint64_t n_thread_allocs;

/* Counts one allocation. Returns false when a test wants this allocation to fail. */
static bool count_one(void) {
    atomic_fetch_add_explicit(&n_allocs, 1, memory_order_relaxed);
    n_thread_allocs++;
    if (atomic_load_explicit(&fail_at, memory_order_relaxed) < 0)
        return true;
    return atomic_fetch_sub(&fail_at, 1) != 0;
}

void *mr_alloc(size_t bytes) {
    return count_one() && bytes <= MAX_HEAP_BYTES ? calloc(1, bytes ? bytes : 1) : NULL;
}

void *mr_alloc_array(size_t n, size_t size) {
    size_t bytes;
    return mr_mul_size(n, size, &bytes) ? mr_alloc(bytes) : NULL;
}

void *mr_realloc(void *p, size_t bytes) {
    return count_one() && bytes <= MAX_HEAP_BYTES ? realloc(p, bytes ? bytes : 1) : NULL;
}

void mr_free(void *p) {
    free(p);
}

void mr_mem_keep_little(void) {
#ifdef __GLIBC__
    enum { KEEP_BYTES = 1 << 20 };
    (void)mallopt(M_MMAP_THRESHOLD, KEEP_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, KEEP_BYTES);
#endif
}

#ifdef __GLIBC__
static void trim(void) {
    (void)malloc_trim(0);
}
#endif

#ifdef __GLIBC__
/* Small blocks that were freed become the free end of a heap only when glibc looks for larger ones, and malloc_trim
 * leaves the end as it is, but for the main heap (2.36). A large block that is freed makes glibc do both for the heap
 * of this thread: merge the small ones, and give the end back. */
static void trim_end_of_own_heap(void) {
    enum { LARGE_BYTES = 96 << 10 }; /* above FASTBIN_CONSOLIDATION_THRESHOLD, below blocks with pages of their own */
    void *volatile p = malloc(LARGE_BYTES); /* volatile: the compiler would leave out both calls */
    free(p);
}
#endif

/* glibc (2.36) sets its allocator up at the first call, without a lock. Under AddressSanitizer, which has an allocator
 * of its own, malloc_trim may be this first call, in two threads at once. Both threads would then count as the first
 * user of one arena, and an assertion of glibc fails when the second thread ends. So malloc_trim is called once under
 * pthread_once. */
void mr_mem_trim(void) {
#ifdef __GLIBC__
    static pthread_once_t first = PTHREAD_ONCE_INIT;
    (void)pthread_once(&first, trim);
    trim();
    trim_end_of_own_heap();
#endif
}

char *mr_strndup(const char *s, size_t n) {
    size_t len = strnlen(s, n);
    char *copy = mr_alloc(len + 1);
    if (copy)
        memcpy(copy, s, len);
    return copy;
}

char *mr_strdup(const char *s) {
    return mr_strndup(s, strlen(s));
}

/* Takes bytes from the budget. Returns false when the budget has not enough left. */
static bool budget_take(size_t bytes) {
    size_t budget = atomic_load(&budget_bytes);
    size_t held = atomic_fetch_add(&live_bytes, bytes);
    if (budget == 0 || (held <= budget && bytes <= budget - held))
        return true;
    atomic_fetch_sub(&live_bytes, bytes);
    return false;
}

void *mr_pages_alloc(size_t bytes) {
    size_t size, span;
    if (!count_one() || !mr_add_size(bytes ? bytes : 1, PAGE_UNIT - 1, &size))
        return NULL;
    size = size / PAGE_UNIT * PAGE_UNIT;
    if (!mr_add_size(size, HUGE_PAGE, &span) || !budget_take(size))
        return NULL;
    char *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        atomic_fetch_sub(&live_bytes, size);
        return NULL;
    }
    /* Unmaps everything but the aligned part of the span. */
    size_t head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (head)
        munmap(p, head);
    if (HUGE_PAGE - head)
        munmap(p + head + size, HUGE_PAGE - head);
    if (bytes >= HUGE_PAGE)
        madvise(p + head, size, MADV_HUGEPAGE);
    return p + head;
}

size_t mr_pages_bytes(size_t bytes) {
    return mr_round_up(bytes ? bytes : 1, PAGE_UNIT);
}

void mr_pages_free(void *p, size_t bytes) {
    if (!p)
        return;
    size_t size = mr_pages_bytes(bytes);
    munmap(p, size);
    atomic_fetch_sub(&live_bytes, size);
}

mr_mem_stats mr_mem_get_stats(void) {
    return (mr_mem_stats){
        .n_allocs = atomic_load(&n_allocs),
        .live_bytes = atomic_load(&live_bytes),
        .budget_bytes = atomic_load(&budget_bytes),
    };
}

void mr_mem_set_budget(size_t bytes) {
    atomic_store(&budget_bytes, bytes);
}

void mr_mem_fail_at(int64_t n) {
    atomic_store(&fail_at, n);
}

uint64_t mr_mem_thread_allocs(void) {
    return n_thread_allocs;
}
