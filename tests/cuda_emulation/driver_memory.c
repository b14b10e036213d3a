/* tests/cuda_emulation/driver_memory.c - the emulated driver's memory: of devices, of the host, and registered. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda_emulation/driver_internal.h"
#include "tests/support/sanitizers.h"

#if MR_TEST_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { ALIGNMENT = 256, RUBBISH = 0xa5, HUGE_PAGE = 2 << 20 };

typedef enum block_kind { BLOCK_DEVICE, BLOCK_HOST, BLOCK_REGISTERED } block_kind;

/* Owned memory ends, but for its alignment, where a protected page begins. */
typedef struct block {
    struct block *next;
    block_kind kind;
    const context *context; /* of BLOCK_DEVICE */
    bool is_mapped;         /* kernels reach it */
    uint8_t *at;
    size_t bytes;
    uint8_t *pages; /* NULL: registered */
    size_t pages_bytes;
} block;

static emulated *const e = &emulated_state;
static block *blocks;

static size_t round_up(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

static int32_t *n_live_of(block_kind kind) {
    return kind == BLOCK_DEVICE ? &e->counts.n_live_memory
           : kind == BLOCK_HOST ? &e->counts.n_live_host_memory
                                : &e->counts.n_live_registered;
}

static void protect(const block *b, int protection) {
    if (mprotect(b->pages, b->pages_bytes, protection) != 0)
        emulated_stop("pages cannot be protected", NULL);
}

static block *add(block_kind kind, uint8_t *at, size_t bytes) {
    block *b = emulated_alloc(sizeof *b);
    *b = (block){.next = blocks, .kind = kind, .at = at, .bytes = bytes};
    blocks = b;
    ++*n_live_of(kind);
    return b;
}

/* Owned memory full of rubbish; NULL: the system has none. Large blocks end with a huge page: to protect many small
 * ones takes longer than most work of a stream. */
static block *create(block_kind kind, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), used = round_up(bytes, ALIGNMENT), inside = round_up(bytes, page);
    bool is_large = inside >= HUGE_PAGE;
    size_t mapped = inside + 2 * page + (is_large ? HUGE_PAGE : 0);
    uint8_t *pages = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    uint8_t *end = pages + page + inside;
    if (is_large)
        end += (0 - (uintptr_t)end) % HUGE_PAGE;
    block *b = add(kind, end - used, bytes);
    b->pages = end - inside;
    b->pages_bytes = inside;
    protect(b, PROT_READ | PROT_WRITE);
    if (is_large)
        (void)madvise(b->pages, inside, MADV_HUGEPAGE); /* only faster */
    memset(b->pages, RUBBISH, inside);
    ASAN_POISON_MEMORY_REGION(b->pages, inside - used);
    ASAN_POISON_MEMORY_REGION(b->at + bytes, used - bytes);
    return b;
}

/* The addresses of owned memory stay protected for ever, so that late uses show. */
static void destroy(block *b) {
    block **at = &blocks;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    --*n_live_of(b->kind);
    if (b->pages) {
        ASAN_UNPOISON_MEMORY_REGION(b->pages, b->pages_bytes);
        if (mmap(b->pages, b->pages_bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) ==
            MAP_FAILED)
            emulated_stop("pages cannot be given back", NULL);
    }
    free(b);
}

/* The block of a kind that begins at the address. */
static block *find(block_kind kind, const void *at) {
    block *b = blocks;
    while (b && (b->kind != kind || b->at != at))
        b = b->next;
    return b;
}

static bool contains(const block *b, const void *at, size_t bytes) {
    size_t offset = (uintptr_t)at - (uintptr_t)b->at;
    return (uintptr_t)at >= (uintptr_t)b->at && offset <= b->bytes && bytes <= b->bytes - offset;
}

bool emulated_is_device_memory(const context *c, cuda_address address, size_t bytes) {
    for (const block *b = blocks; b; b = b->next)
        if ((b->kind == BLOCK_DEVICE ? b->context == c : b->is_mapped) &&
            contains(b, (const void *)(uintptr_t)address, bytes))
            return true;
    return false;
}

bool emulated_is_pinned(const void *host, size_t bytes) {
    for (const block *b = blocks; b; b = b->next)
        if (b->kind != BLOCK_DEVICE && contains(b, host, bytes))
            return true;
    return false;
}

static void protect_device(const context *c, int protection) {
    for (const block *b = blocks; b; b = b->next)
        if (b->kind == BLOCK_DEVICE && b->context == c)
            protect(b, protection);
}

void emulated_memory_open(context *c) {
    if (c->n_open++ == 0)
        protect_device(c, PROT_READ | PROT_WRITE);
}

void emulated_memory_close(context *c) {
    if (--c->n_open == 0 && !e->options.open_memory)
        protect_device(c, PROT_NONE);
}

void emulated_memory_reset(void) {
    while (blocks)
        destroy(blocks);
}

/* --- The device's memory ----------------------------------------------------------------------------------------- */

cuda_result emulated_mem_get_info(size_t *free_bytes, size_t *total_bytes) {
    call c = emulated_begin(CALL_mem_get_info);
    if (c.result == CUDA_OK) {
        *total_bytes = emulated_total_bytes();
        *free_bytes = *total_bytes - c.context->used_bytes;
    }
    return emulated_end(&c);
}

cuda_result emulated_mem_alloc(cuda_address *address, size_t bytes) {
    call c = emulated_begin(CALL_mem_alloc);
    if (c.result == CUDA_OK && bytes == 0)
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result != CUDA_OK)
        return emulated_end(&c);
    size_t left = emulated_total_bytes() - c.context->used_bytes;
    block *b = bytes <= left && round_up(bytes, ALIGNMENT) <= left ? create(BLOCK_DEVICE, bytes) : NULL;
    if (b) {
        b->context = c.context;
        if (c.context->n_open == 0 && !e->options.open_memory)
            protect(b, PROT_NONE);
        c.context->used_bytes += round_up(bytes, ALIGNMENT);
        e->counts.n_allocations++;
        e->counts.live_bytes += bytes;
        if (e->counts.live_bytes > e->counts.most_bytes)
            e->counts.most_bytes = e->counts.live_bytes;
        *address = (uintptr_t)b->at;
    } else {
        c.result = CUDA_OUT_OF_MEMORY;
    }
    return emulated_end(&c);
}

cuda_result emulated_mem_free(cuda_address address) {
    call c = emulated_begin(CALL_mem_free);
    block *b = c.refused ? NULL : find(BLOCK_DEVICE, (const void *)(uintptr_t)address);
    if (b && b->context == c.context) {
        c.context->used_bytes -= round_up(b->bytes, ALIGNMENT);
        e->counts.live_bytes -= b->bytes;
        destroy(b);
    } else if (!c.refused) {
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    }
    return emulated_end(&c);
}

/* --- Memory of the host ------------------------------------------------------------------------------------------ */

cuda_result emulated_mem_host_alloc(void **host, size_t bytes, unsigned flags) {
    call c = emulated_begin(CALL_mem_host_alloc);
    if (c.result == CUDA_OK && (bytes == 0 || flags > (CUDA_HOST_ALLOC_PORTABLE | CUDA_HOST_ALLOC_MAPPED)))
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result != CUDA_OK)
        return emulated_end(&c);
    block *b = create(BLOCK_HOST, bytes);
    if (b) {
        b->is_mapped = (flags & CUDA_HOST_ALLOC_MAPPED) != 0;
        *host = b->at;
    } else {
        c.result = CUDA_OUT_OF_MEMORY;
    }
    return emulated_end(&c);
}

cuda_result emulated_mem_free_host(void *host) {
    call c = emulated_begin(CALL_mem_free_host);
    block *b = c.refused ? NULL : find(BLOCK_HOST, host);
    if (b)
        destroy(b);
    else if (!c.refused)
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    return emulated_end(&c);
}

cuda_result emulated_mem_host_register(void *host, size_t bytes, unsigned flags) {
    call c = emulated_begin(CALL_mem_host_register);
    if (c.result == CUDA_OK &&
        (!host || bytes == 0 || flags > (CUDA_HOST_REGISTER_PORTABLE | CUDA_HOST_REGISTER_MAPPED)))
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    for (const block *b = blocks; b && c.result == CUDA_OK; b = b->next)
        if ((uintptr_t)host < (uintptr_t)b->at + b->bytes && (uintptr_t)b->at < (uintptr_t)host + bytes)
            emulated_refuse(&c, CUDA_ALREADY_REGISTERED);
    if (c.result == CUDA_OK)
        add(BLOCK_REGISTERED, host, bytes)->is_mapped = (flags & CUDA_HOST_REGISTER_MAPPED) != 0;
    return emulated_end(&c);
}

cuda_result emulated_mem_host_unregister(void *host) {
    call c = emulated_begin(CALL_mem_host_unregister);
    block *b = c.refused ? NULL : find(BLOCK_REGISTERED, host);
    if (b)
        destroy(b);
    else if (!c.refused)
        emulated_refuse(&c, CUDA_NOT_REGISTERED);
    return emulated_end(&c);
}

cuda_result emulated_mem_host_get_device_pointer(cuda_address *address, void *host, unsigned flags) {
    call c = emulated_begin(CALL_mem_host_get_device_pointer);
    bool found = false;
    for (const block *b = blocks; b; b = b->next)
        found |= b->kind != BLOCK_DEVICE && b->is_mapped && contains(b, host, 1);
    if (c.result == CUDA_OK && (!found || flags != 0))
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result == CUDA_OK)
        *address = (uintptr_t)host;
    return emulated_end(&c);
}
