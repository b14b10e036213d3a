/* engine/base/arena.h - a bump allocator with a byte budget: one lifetime (model, sequence, step), freed as a whole.
 * Owns:    its chunks; every pointer it gives lives until reset or destroy. A fixed arena owns nothing: it lives in
 *          the caller's buffer, and never calls the allocator.
 * Threads: caller serialises.
 * Errors:  allocations return NULL when the budget (or the buffer) is spent or the system has no memory. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_ARENA_H
#define MR_ENGINE_BASE_ARENA_H

#include <stddef.h>

#include "engine/base/status.h"

typedef struct mr_arena mr_arena;

/* Takes memory in chunks of chunk_bytes (0: 64 KiB; a larger request gets a chunk of its own), budget_bytes in total,
 * headers included (0: no budget). Nothing but the object itself is allocated before the first request. */
MR_MUST_USE mr_status mr_arena_create(size_t chunk_bytes, size_t budget_bytes, mr_arena **out_arena, mr_err *err);
/* An arena that lives in buf, and hands out the rest of it; NULL where buf is too small for the arena itself. */
mr_arena *mr_arena_create_fixed(void *buf, size_t bytes);
/* The same in memory of its own, which it takes at once; NULL without memory. */
mr_arena *mr_arena_create_whole(size_t bytes);
void mr_arena_destroy(mr_arena *arena);
/* Forgets all allocations and keeps the memory. */
void mr_arena_reset(mr_arena *arena);

/* Zeroed memory, aligned for any type; bytes may be 0. */
void *mr_arena_alloc(mr_arena *arena, size_t bytes);
/* The same with an alignment that is a power of two. */
void *mr_arena_alloc_aligned(mr_arena *arena, size_t bytes, size_t alignment);
/* n * item_bytes with overflow checked. */
void *mr_arena_alloc_array(mr_arena *arena, size_t n, size_t item_bytes);
char *mr_arena_strdup(mr_arena *arena, const char *s);
/* At most n bytes of s, then a zero. */
char *mr_arena_strndup(mr_arena *arena, const char *s, size_t n);

typedef struct mr_arena_stats {
    size_t used_bytes;       /* handed out since the last reset, padding included */
    size_t high_water_bytes; /* the most that used_bytes has been */
    size_t held_bytes;       /* taken from the system (or the buffer's size) */
} mr_arena_stats;
mr_arena_stats mr_arena_get_stats(const mr_arena *arena);

#endif
