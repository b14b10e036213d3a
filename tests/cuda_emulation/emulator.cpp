/* tests/cuda_emulation/emulator.cpp - runs the threads of a block as fibres of one thread. A warp runs as far as it can
 * before the next warp; inside a warp a lane runs until it waits. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/emulator.h"

#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "tests/cuda_emulation/emulator_traffic.h"
#include "tests/cuda_emulation/gpu_emulated.h"
#include "tests/support/sanitizers.h"

#if MR_TEST_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" void mr_thread_set_denormals_flushed(void); /* engine/base/thread.h */

namespace {

enum {
    /* Some lines of the cache longer than a power of two, so that the ends of the stacks share no sets. */
    STACK_BYTES = (64 << 10) + 9 * 64,
    MAX_THREADS = 1024,
    LANES = 32,
    MAX_WARPS = MAX_THREADS / LANES,
    MAX_COPIES = 256,
    RUBBISH = 0xa5
};

struct copy16 {
    void *to;
    uint8_t bytes[16];
    int group;
};

struct fibre {
    void *stack_at;   /* where a switch continues */
    ucontext_t state; /* the same, where there is no switch of our own */
    void *asan;       /* what AddressSanitizer keeps of the stack between switches */
    uint32_t thread;
    bool done;
    uint64_t *waits_for; /* NULL: it can run */
    uint64_t until;
    copy16 *copies;      /* [MAX_COPIES] */
    int n_copies, group; /* group: copies since the last commit belong to it */
};

struct warp {
    void *slots[LANES];
    int n, line; /* lanes that have come */
    uint64_t n_meetings;
};

fibre *fibres;
warp warps[MAX_WARPS];
uint8_t *stacks;
fibre *current;
const emulator_kernel *kernel;
const void *kernel_args;
uint32_t n_threads_of_block, n_live, n_at_barrier;
uint64_t n_barriers;
int barrier_line;
emulator_order order = EMULATOR_FORWARD;
uint64_t drawn;
bool order_is_set;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
const emulator_kernel *kernels;

[[noreturn]] void stop(const char *what, int line, int other) {
    fprintf(stderr, "emulator: kernel %s, block %u, %u, thread %u: %s (lines %d, %d)\n", kernel->name,
            emulator_here.block, emulator_here.block_y, emulator_here.thread, what, line, other);
    abort();
}

/* --- Fibres ------------------------------------------------------------------------------------------------------ */

void enter();

/* Tell AddressSanitizer of switches: the one that leaves names the stack to come and a place for what is kept of its
 * own, NULL if it ends; the one that arrives gives that place, and learns the stack before. */
#if MR_TEST_ASAN
void leave(void **kept, const void *bottom, size_t bytes) {
    __sanitizer_start_switch_fiber(kept, bottom, bytes);
}
void arrive(void *kept, const void **bottom, size_t *bytes) {
    __sanitizer_finish_switch_fiber(kept, bottom, bytes);
}
#else
void leave(void **, const void *, size_t) {}
void arrive(void *, const void **, size_t *) {}
#endif
const void *main_bottom;
size_t main_bytes;
void *main_asan;
fibre *left; /* the fibre that the last switch left; NULL: the launch */

uint8_t *stack_of(const fibre *f) {
    return stacks + (size_t)f->thread * STACK_BYTES;
}

#if defined(__x86_64__) && !MR_TEST_TSAN
void *main_at;
/* Saves the registers that a function must keep (System V ABI for x86-64, 3.2.1), and continues at load. */
extern "C" void emulator_switch(void **save, void *load);
asm(".text\n.globl emulator_switch\nemulator_switch:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
void prepare(fibre *f) {
    void **top = (void **)(stack_of(f) + STACK_BYTES - 64);
    *--top = nullptr; /* the return address of enter, which never returns; it also aligns the stack */
    *--top = (void *)enter;
    for (int r = 0; r < 6; r++)
        *--top = nullptr;
    f->stack_at = top;
}
void switch_to(fibre *from, fibre *to) {
    emulator_switch(from ? &from->stack_at : &main_at, to ? to->stack_at : main_at);
}
#else
ucontext_t main_state;
void prepare(fibre *f) {
    getcontext(&f->state);
    f->state.uc_stack.ss_sp = stack_of(f);
    f->state.uc_stack.ss_size = STACK_BYTES;
    f->state.uc_link = nullptr;
    makecontext(&f->state, enter, 0);
}
void switch_to(fibre *from, fibre *to) {
    swapcontext(from ? &from->state : &main_state, to ? &to->state : &main_state);
}
#endif

uint64_t next_drawn() { /* SplitMix64 (Steele, Lea and Flood, 2014) */
    uint64_t z = drawn += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The i-th of n in the order of this turn: first is drawn anew for each turn, step has no factor in common with n. */
uint32_t pick(uint32_t i, uint32_t n, uint32_t first) {
    if (order == EMULATOR_REVERSED)
        return n - 1 - i;
    return order == EMULATOR_DRAWN ? (first / 2 + (first % 2 ? i : n - i)) % n : i;
}

/* All threads of the block have stopped. */
void count_block() {
    for (uint32_t w = 0; emulator_counts_traffic && w < n_threads_of_block / LANES; w++)
        traffic_count(w, &emulator_counted);
}

/* --- Turns ------------------------------------------------------------------------------------------------------- */

/* Where the block stands: its warps have turns one after the other, and in a turn each lane that can run does. A warp
 * whose lanes moved has another turn. */
struct turns {
    uint32_t warp, n_warps, first_warp; /* warp: the number of warps that have begun their turns */
    uint32_t lane, first_lane;
    fibre *lanes; /* of the warp that has its turn */
    bool moved, warp_moved;
};
turns now;

void begin_turn() {
    now.lane = 0;
    now.first_lane = order == EMULATOR_DRAWN ? (uint32_t)next_drawn() : 0;
    now.warp_moved = false;
}

void begin_warp() {
    if (now.warp == now.n_warps) {
        if (!now.moved)
            stop("threads wait for ever", barrier_line, warps[0].line);
        now.warp = 0;
        now.moved = false;
    }
    if (now.warp == 0)
        now.first_warp = order == EMULATOR_DRAWN ? (uint32_t)next_drawn() : 0;
    now.lanes = fibres + pick(now.warp++, now.n_warps, now.first_warp) * LANES;
    begin_turn();
}

void begin_turns() {
    now = {};
    now.n_warps = n_threads_of_block / LANES;
    begin_warp();
}

/* After the last lane of a turn. In a drawn order another warp may overtake one that moved. */
void end_turn() {
    bool again = now.warp_moved && (order != EMULATOR_DRAWN || next_drawn() % 4 != 0);
    now.moved |= now.warp_moved;
    if (again)
        begin_turn();
    else
        begin_warp();
}

/* The fibre that runs next; NULL: all have ended. */
fibre *next_fibre() {
    while (n_live > 0) {
        while (now.lane < LANES) {
            fibre *f = &now.lanes[pick(now.lane++, LANES, now.first_lane)];
            if (f->done || (f->waits_for && *f->waits_for < f->until))
                continue;
            f->waits_for = nullptr;
            now.warp_moved = true;
            return f;
        }
        end_turn();
    }
    return nullptr;
}

/* Leaves a fibre, or the launch, for another one. NULL: the launch. */
void go(fibre *from, fibre *to) {
    if (from == to)
        return;
    if (to)
        leave(!from ? &main_asan : from->done ? nullptr : &from->asan, stack_of(to), STACK_BYTES);
    else
        leave(from->done ? nullptr : &from->asan, main_bottom, main_bytes);
    left = from;
    current = to;
    if (to) {
        emulator_here.thread = to->thread;
        emulator_counted.n_switches++;
    }
    switch_to(from, to);
    if (from)
        arrive(from->asan, left ? nullptr : &main_bottom, left ? nullptr : &main_bytes);
    else
        arrive(main_asan, nullptr, nullptr);
}

void enter() {
    arrive(nullptr, left ? nullptr : &main_bottom, left ? nullptr : &main_bytes);
    kernel->body(kernel_args);
    emulator_copy_wait(0);
    fibre *own = current;
    own->done = true;
    n_live--;
    if (n_at_barrier > 0)
        stop("it ended while others wait at a barrier", barrier_line, 0);
    go(own, next_fibre());
    abort();
}

void wait_for(uint64_t *what, uint64_t until) {
    fibre *own = current;
    own->waits_for = what;
    own->until = until;
    go(own, next_fibre());
}

void run_block() {
    for (uint32_t i = 0; i < n_threads_of_block; i++) {
        fibre *f = &fibres[i];
        f->thread = i;
        f->done = false;
        f->waits_for = nullptr;
        f->n_copies = f->group = 0;
        prepare(f);
    }
    n_live = n_threads_of_block;
    n_at_barrier = 0;
    begin_turns();
    go(nullptr, next_fibre());
    count_block();
    emulator_counted.n_blocks++;
}

void read_order() {
    const char *text = getenv("EMULATOR_ORDER");
    if (order_is_set || !text)
        return;
    if (strcmp(text, "reversed") == 0)
        emulator_set_order(EMULATOR_REVERSED, 0);
    else if (strcmp(text, "forward") != 0)
        emulator_set_order(EMULATOR_DRAWN, strtoull(text, nullptr, 10));
}

} // namespace

/* --- What kernels call ------------------------------------------------------------------------------------------- */

emulator_place emulator_here;
uint8_t *emulator_dynamic_shared;
emulator_counts emulator_counted;
bool emulator_counts_traffic;

void emulator_sync(int line) {
    if (n_at_barrier > 0 && barrier_line != line)
        stop("threads of a block wait at different barriers", line, barrier_line);
    if (n_live < n_threads_of_block)
        stop("a barrier after a thread has ended", line, 0);
    barrier_line = line;
    if (++n_at_barrier == n_live) {
        n_at_barrier = 0;
        n_barriers++;
        count_block();
        return;
    }
    wait_for(&n_barriers, n_barriers + 1);
}

void emulator_meet(void *mine, void (*meet)(void **slots), int line) {
    warp *w = &warps[current->thread / LANES];
    if (w->n > 0 && w->line != line)
        stop("lanes of a warp meet at different lines", line, w->line);
    w->line = line;
    w->slots[current->thread % LANES] = mine;
    if (++w->n == LANES) {
        meet(w->slots);
        w->n = 0;
        w->n_meetings++;
        if (emulator_counts_traffic)
            traffic_count(current->thread / LANES, &emulator_counted);
        return;
    }
    wait_for(&w->n_meetings, w->n_meetings + 1);
}

void emulator_copy16(void *shared, const void *global, int line) {
    fibre *f = current;
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16)
        stop("a copy of 16 bytes is not aligned to 16", line, 0);
    if (f->n_copies == MAX_COPIES)
        stop("a thread has too many copies under way", line, 0);
    copy16 *c = &f->copies[f->n_copies++];
    c->to = shared;
    c->group = f->group;
    memcpy(c->bytes, global, 16);
    memset(shared, RUBBISH, 16);
    emulator_count_read(global, 16, line);
}

void emulator_copy_commit() {
    current->group++;
}

void emulator_copy_wait(int n_groups) {
    fibre *f = current;
    int kept = 0;
    for (int i = 0; i < f->n_copies; i++)
        if (f->copies[i].group < f->group - n_groups)
            memcpy(f->copies[i].to, f->copies[i].bytes, 16);
        else
            f->copies[kept++] = f->copies[i];
    f->n_copies = kept;
}

void emulator_note_read(const void *at, size_t bytes, int line) {
    if ((uintptr_t)at % bytes)
        stop("a read of the device's memory is not aligned", line, 0);
    traffic_add(current->thread, TRAFFIC_DEVICE, at, bytes, line);
}

void emulator_note_shared(const void *at, size_t bytes, int line) {
    if ((uintptr_t)at % bytes)
        stop("a read of shared memory is not aligned", line, 0);
    traffic_add(current->thread, TRAFFIC_SHARED, at, bytes, line);
}

emulator_kernel::emulator_kernel(const char *kernel_name, uint32_t threads, size_t bytes,
                                 void (*function)(const void *))
    : name(kernel_name), max_threads(threads), args_bytes(bytes), body(function), next(kernels) {
    kernels = this;
}

/* --- What tests call --------------------------------------------------------------------------------------------- */

const emulator_kernel *emulator_find(const char *name) {
    for (const emulator_kernel *k = kernels; k; k = k->next)
        if (strcmp(k->name, name) == 0)
            return k;
    return nullptr;
}

uint32_t emulator_max_threads(const emulator_kernel *k) {
    return k->max_threads;
}

size_t emulator_args_bytes(const emulator_kernel *k) {
    return k->args_bytes;
}

void emulator_launch(const emulator_kernel *k, emulator_grid grid, uint32_t n_threads, const void *args) {
    pthread_mutex_lock(&lock);
    read_order();
    if (!stacks) {
        stacks = (uint8_t *)mmap(nullptr, (size_t)MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        fibres = (fibre *)calloc(MAX_THREADS, sizeof *fibres);
        copy16 *copies = (copy16 *)calloc((size_t)MAX_THREADS * MAX_COPIES, sizeof *copies);
        for (int i = 0; i < MAX_THREADS; i++)
            fibres[i].copies = copies + (size_t)i * MAX_COPIES;
    }
    kernel = k;
    kernel_args = args;
    n_threads_of_block = n_threads;
    if (n_threads % LANES || n_threads == 0 || n_threads > k->max_threads)
        stop("a launch with a wrong number of threads", (int)n_threads, (int)k->max_threads);
    /* Of exactly these bytes, so that AddressSanitizer finds accesses outside. */
    if (posix_memalign((void **)&emulator_dynamic_shared, 16, grid.shared_bytes) != 0)
        stop("no memory for dynamic shared memory", 0, 0);
    fenv_t mode;
    fegetenv(&mode);
    mr_thread_set_denormals_flushed();
    emulator_here = {0, 0, 0, grid.x};
    bool reversed = order == EMULATOR_REVERSED; /* blocks, too */
    for (uint32_t y = 0; y < grid.y; y++)
        for (uint32_t x = 0; x < grid.x; x++) {
            emulator_here.block = reversed ? grid.x - 1 - x : x;
            emulator_here.block_y = reversed ? grid.y - 1 - y : y;
            memset(emulator_dynamic_shared, RUBBISH, grid.shared_bytes);
            run_block();
        }
    fesetenv(&mode);
    free(emulator_dynamic_shared);
    emulator_counted.n_launches++;
    pthread_mutex_unlock(&lock);
}

void emulator_set_order(emulator_order new_order, uint64_t seed) {
    order = new_order;
    drawn = seed;
    order_is_set = true;
}

void emulator_count_traffic(bool on) {
    emulator_counts_traffic = on;
}

emulator_counts emulator_get_counts(void) {
    return emulator_counted;
}

void emulator_reset_counts(void) {
    emulator_counted = {};
}
