/* engine/base/arena.h - a bump allocator with a byte budget. All allocations of an arena have one lifetime (model,
 * sequence, step) and are freed together.
 * Owns:    its chunks; a pointer from the arena is valid until reset or destroy. A fixed arena owns nothing: it lies in
 *          the caller's buffer, and never calls the allocator.
 * Threads: caller serialises.
 * Errors:  allocations return NULL when the budget (or the buffer) is used up or the system has no memory. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_ARENA_H
#define MR_ENGINE_BASE_ARENA_H

#include <stddef.h>

#include "engine/base/status.h"

typedef struct mr_arena mr_arena;

/* Takes memory in chunks of chunk_bytes (0: 64 KiB). A larger request gets a chunk of its own. budget_bytes limits the
 * sum of all chunks with their headers (0: no limit). Before the first request only the object itself is allocated. */
MR_MUST_USE mr_status mr_arena_create(size_t chunk_bytes, size_t budget_bytes, mr_arena **out_arena, mr_err *err);
/* Creates an arena inside buf, which allocates from the rest of buf. Returns NULL when buf is too small for the arena
 * itself. */
mr_arena *mr_arena_create_fixed(void *buf, size_t bytes);
/* Creates a fixed arena in a block of bytes, which is allocated at once and freed by destroy. Returns NULL without
 * memory. */
mr_arena *mr_arena_create_whole(size_t bytes);
void mr_arena_destroy(mr_arena *arena);
/* Frees all allocations but keeps the chunks. */
void mr_arena_reset(mr_arena *arena);

/* Returns zeroed memory, aligned for any type. bytes may be 0. */
void *mr_arena_alloc(mr_arena *arena, size_t bytes);
/* The same with an alignment, which must be a power of two. */
void *mr_arena_alloc_aligned(mr_arena *arena, size_t bytes, size_t alignment);
/* Allocates n * item_bytes; NULL if the product overflows. */
void *mr_arena_alloc_array(mr_arena *arena, size_t n, size_t item_bytes);
char *mr_arena_strdup(mr_arena *arena, const char *s);
/* Copies at most n bytes of s and adds a zero. */
char *mr_arena_strndup(mr_arena *arena, const char *s, size_t n);

typedef struct mr_arena_stats {
    size_t used_bytes;       /* allocated since the last reset, padding included */
    size_t high_water_bytes; /* the most that used_bytes has been */
    size_t held_bytes;       /* taken from the system; in a fixed arena, the buffer's size */
} mr_arena_stats;
mr_arena_stats mr_arena_get_stats(const mr_arena *arena);

#endif
