/* tests/simulation/fibre.c - fibres by ucontext. AddressSanitizer is told of every switch, because it keeps notes of
 * the stack that is in use. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/fibre.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "tests/support/sanitizers.h"

#if MR_TEST_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

/* Plans of 1024 stages lie on the stack. Pages that nobody touches take no memory. */
enum { STACK_BYTES = 8 << 20 };

struct fibre {
    ucontext_t state;
    void *stack, *asan; /* asan: what AddressSanitizer keeps while the fibre is paused */
    void (*run)(void *ctx);
    void *ctx;
    bool ended;
};

static fibre *current;
static ucontext_t caller;
static void *caller_asan;
static const void *caller_bottom;
static size_t caller_bytes;

static void leave(void **kept, const void *bottom, size_t bytes) {
#if MR_TEST_ASAN
    __sanitizer_start_switch_fiber(kept, bottom, bytes);
#else
    (void)kept, (void)bottom, (void)bytes;
#endif
}

static void arrive(void *kept, const void **bottom, size_t *bytes) {
#if MR_TEST_ASAN
    __sanitizer_finish_switch_fiber(kept, bottom, bytes);
#else
    (void)kept, (void)bottom, (void)bytes;
#endif
}

static void enter(void) {
    fibre *f = current;
    arrive(NULL, &caller_bottom, &caller_bytes);
    f->run(f->ctx);
    f->ended = true;
    leave(NULL, caller_bottom, caller_bytes);
    setcontext(&caller);
}

fibre *fibre_create(void) {
    fibre *f = calloc(1, sizeof *f);
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!f || stack == MAP_FAILED) {
        fprintf(stderr, "no memory for a fibre\n");
        exit(1);
    }
    f->stack = stack;
    f->ended = true;
    return f;
}

void fibre_destroy(fibre *f) {
    munmap(f->stack, STACK_BYTES);
    free(f);
}

void fibre_begin(fibre *f, void (*run)(void *ctx), void *ctx) {
    f->run = run;
    f->ctx = ctx;
    f->ended = false;
    getcontext(&f->state);
    f->state.uc_stack.ss_sp = f->stack;
    f->state.uc_stack.ss_size = STACK_BYTES;
    f->state.uc_link = NULL;
    makecontext(&f->state, enter, 0);
}

void fibre_resume(fibre *f) {
    current = f;
    leave(&caller_asan, f->stack, STACK_BYTES);
    swapcontext(&caller, &f->state);
    arrive(caller_asan, NULL, NULL);
    current = NULL;
}

void fibre_pause(void) {
    fibre *f = current;
    leave(&f->asan, caller_bottom, caller_bytes);
    swapcontext(&f->state, &caller);
    arrive(f->asan, &caller_bottom, &caller_bytes);
}

bool fibre_has_ended(const fibre *f) {
    return f->ended;
}
