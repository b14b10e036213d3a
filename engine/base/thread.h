/* engine/base/thread.h - threads, locks with monotonic deadlines, and the floating point mode of threads that compute.
 * Threads: as said at each function; locks and conditions are thread-safe.
 * Deadlines are real monotonic time: a frozen clock (clock.h) does not move them. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_THREAD_H
#define MR_ENGINE_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct mr_thread mr_thread;
typedef void (*mr_thread_fn)(void *ctx);

/* Starts fn(ctx) on a new thread. name: at most 15 bytes are kept. stack_bytes: 0 for the system's default. Signals are
 * blocked in the new thread, so that handlers run in threads that were not created here.
 * MR_E_NO_MEMORY: the system has no memory or no more threads. */
MR_MUST_USE mr_status mr_thread_create(const char *name, size_t stack_bytes, mr_thread_fn fn, void *ctx,
                                       mr_thread **out_thread, mr_err *err);
/* Waits until the thread's function returns, and frees the thread; NULL is accepted. */
void mr_thread_join(mr_thread *thread);

typedef struct mr_mutex {
    pthread_mutex_t m;
} mr_mutex;
typedef struct mr_cond {
    pthread_cond_t c;
} mr_cond;

void mr_mutex_init(mr_mutex *m);
void mr_mutex_deinit(mr_mutex *m);
void mr_mutex_lock(mr_mutex *m);
void mr_mutex_unlock(mr_mutex *m);

void mr_cond_init(mr_cond *c);
void mr_cond_deinit(mr_cond *c);
/* Waits for a signal until deadline_ns of mr_clock_now_ns(); MR_NEVER for no deadline. Returns false when the deadline
 * has passed. The wait may also end without a signal, so the caller checks its condition again. The caller holds m. */
bool mr_cond_wait_until(mr_cond *c, mr_mutex *m, int64_t deadline_ns);
void mr_cond_signal(mr_cond *c);
void mr_cond_broadcast(mr_cond *c);

/* Binds the calling thread to one CPU id. MR_E_INVALID: the system refuses it. */
MR_MUST_USE mr_status mr_thread_pin(int cpu_id, mr_err *err);
/* Lets the calling thread run on any of n CPU ids, and on no others. MR_E_INVALID: the system refuses it. */
MR_MUST_USE mr_status mr_thread_pin_any(const int *cpu_ids, int n, mr_err *err);

/* The folder with the statistics of the threads of this process. */
#define MR_THREAD_TASKS "/proc/self/task"

/* The number that the system has given to the calling thread. */
int32_t mr_thread_id(void);

/* Looks again and again how long a thread of this process waited for a core. {0} has not looked yet; deinit it. */
typedef struct mr_thread_watch {
    int32_t thread_id; /* of the thread that fd is about; 0: no file is open */
    int fd;
    int64_t waited_ns; /* since the thread began, at the last look */
} mr_thread_watch;

/* Returns the nanoseconds that the thread was ready to run and had no core, since the last look at the same thread.
 * Returns -1 at the first look, and where the system does not say. tasks: MR_THREAD_TASKS; tests have a folder of their
 * own. The file thread_id/schedstat stays open between looks. A look takes about a microsecond. Caller serialises. */
int64_t mr_thread_watch_look(mr_thread_watch *watch, const char *tasks, int32_t thread_id);
void mr_thread_watch_deinit(mr_thread_watch *watch);

/* Makes the calling thread read and write float32 denormals as zero (FTZ and DAZ on x86, FZ on AArch64; elsewhere it
 * does nothing). This is part of the numerics contract: every thread that computes calls it. f16 denormals keep their
 * values. */
void mr_thread_set_denormals_flushed(void);

/* Tells the core that this thread spins. */
static inline void mr_cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
