/* engine/base/arena.c - a bump allocator. An arena is a list of chunks; an allocation moves the end of the used bytes
 * of the current chunk. A fixed arena has one chunk, in memory that the caller gives. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/arena.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/mem.h"

enum { DEFAULT_CHUNK_BYTES = 64 << 10 };

/* The memory of a chunk follows its header. Bytes from dirty on have never been used and are still zero, so an
 * allocation need not clear them. */
typedef struct chunk {
    struct chunk *next;
    size_t size;  /* bytes after the header */
    size_t used;  /* <= dirty */
    size_t dirty; /* <= size */
} chunk;

struct mr_arena {
    chunk *first, *current;
    size_t chunk_bytes, budget_bytes;
    bool fixed;
    void *owned; /* the memory that contains the arena, if the arena must free it; else NULL */
    mr_arena_stats stats;
};

static char *chunk_data(chunk *c) {
    return (char *)(c + 1);
}

/* Takes bytes from the free end of c. Returns NULL when they do not fit. out_taken: bytes with their padding. */
static void *chunk_alloc(chunk *c, size_t bytes, size_t alignment, size_t *out_taken) {
    uintptr_t at = (uintptr_t)(chunk_data(c) + c->used);
    size_t pad = (size_t)(-at & (alignment - 1)), room = c->size - c->used;
    if (pad > room || bytes > room - pad)
        return NULL;
    size_t start = c->used + pad, end = start + bytes;
    char *p = chunk_data(c) + start;
    if (start < c->dirty)
        memset(p, 0, (end < c->dirty ? end : c->dirty) - start);
    c->used = end;
    c->dirty = end > c->dirty ? end : c->dirty;
    *out_taken = pad + bytes;
    return p;
}

/* Inserts a chunk after the current one, with room for bytes at the given or a smaller alignment. Returns NULL over the
 * budget. */
static chunk *chunk_create(mr_arena *a, size_t bytes, size_t alignment) {
    size_t least, size = a->chunk_bytes;
    if (!mr_add_size(bytes, alignment, &least) || !mr_add_size(least, sizeof(chunk), &least))
        return NULL;
    size = size > least ? size : least;
    if (a->budget_bytes) {
        size_t left = a->budget_bytes - a->stats.held_bytes;
        if (least > left)
            return NULL;
        size = size < left ? size : left;
    }
    chunk *c = mr_alloc(size);
    if (!c)
        return NULL;
    c->size = size - sizeof *c;
    a->stats.held_bytes += size;
    if (a->current) {
        c->next = a->current->next;
        a->current->next = c;
    } else {
        a->first = c;
    }
    return c;
}

mr_status mr_arena_create(size_t chunk_bytes, size_t budget_bytes, mr_arena **out_arena, mr_err *err) {
    mr_arena *a = mr_alloc(sizeof *a);
    if (!a)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for an arena");
    a->chunk_bytes = chunk_bytes ? chunk_bytes : DEFAULT_CHUNK_BYTES;
    a->budget_bytes = budget_bytes;
    *out_arena = a;
    return MR_OK;
}

mr_arena *mr_arena_create_fixed(void *buf, size_t bytes) {
    size_t pad = (size_t)(-(uintptr_t)buf & (alignof(max_align_t) - 1)), head = sizeof(mr_arena) + sizeof(chunk);
    if (!buf || bytes < pad || bytes - pad < head)
        return NULL;
    mr_arena *a = (mr_arena *)((char *)buf + pad);
    *a = (mr_arena){.fixed = true, .stats.held_bytes = bytes};
    a->first = a->current = (chunk *)(a + 1);
    size_t size = bytes - pad - head;
    *a->first = (chunk){.size = size, .dirty = size};
    return a;
}

mr_arena *mr_arena_create_whole(size_t bytes) {
    void *memory = mr_alloc(bytes);
    mr_arena *a = mr_arena_create_fixed(memory, bytes);
    if (a)
        a->owned = memory;
    else
        mr_free(memory);
    return a;
}

void mr_arena_destroy(mr_arena *a) {
    if (!a || a->fixed) {
        mr_free(a ? a->owned : NULL);
        return;
    }
    for (chunk *c = a->first, *next; c; c = next) {
        next = c->next;
        mr_free(c);
    }
    mr_free(a);
}

void mr_arena_reset(mr_arena *a) {
    for (chunk *c = a->first; c; c = c->next)
        c->used = 0;
    a->current = a->first;
    a->stats.used_bytes = 0;
}

void *mr_arena_alloc_aligned(mr_arena *a, size_t bytes, size_t alignment) {
    MR_ASSERT(alignment > 0 && (alignment & (alignment - 1)) == 0);
    size_t taken = 0;
    void *p = NULL;
    /* The chunks after the current one are empty: they were filled before a reset. */
    for (chunk *c = a->current; c && !p; c = c->next) {
        p = chunk_alloc(c, bytes, alignment, &taken);
        if (p)
            a->current = c;
    }
    if (!p && !a->fixed) {
        chunk *c = chunk_create(a, bytes, alignment);
        if (c) {
            p = chunk_alloc(c, bytes, alignment, &taken);
            a->current = c;
        }
    }
    a->stats.used_bytes += taken;
    if (a->stats.used_bytes > a->stats.high_water_bytes)
        a->stats.high_water_bytes = a->stats.used_bytes;
    return p;
}

void *mr_arena_alloc(mr_arena *a, size_t bytes) {
    return mr_arena_alloc_aligned(a, bytes, alignof(max_align_t));
}

void *mr_arena_alloc_array(mr_arena *a, size_t n, size_t item_bytes) {
    size_t bytes;
    return mr_mul_size(n, item_bytes, &bytes) ? mr_arena_alloc(a, bytes) : NULL;
}

char *mr_arena_strndup(mr_arena *a, const char *s, size_t n) {
    size_t len = strnlen(s, n);
    char *copy = mr_arena_alloc_aligned(a, len + 1, 1);
    if (copy)
        memcpy(copy, s, len);
    return copy;
}

char *mr_arena_strdup(mr_arena *a, const char *s) {
    return mr_arena_strndup(a, s, strlen(s));
}

mr_arena_stats mr_arena_get_stats(const mr_arena *a) {
    return a->stats;
}
