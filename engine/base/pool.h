/* engine/base/pool.h - a fixed set of threads that run groups of tasks, again and again, as a step does.
 * A group begins when all tasks of the group before it are done, no matter which threads ran them. A thread that comes
 * late because it slept or lost its core delays the group only if it has claimed a task.
 * Owns:    n_threads - 1 threads; the caller of mr_pool_run is thread 0.
 * Threads: caller serialises all functions but mr_pool_n_threads.
 * Errors:  only create can fail; a run allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_POOL_H
#define MR_ENGINE_BASE_POOL_H

#include <stdint.h>

#include "engine/base/status.h"

enum { MR_POOL_MAX_THREADS = 1024, MR_POOL_WATCHED = 64 };

typedef struct mr_pool mr_pool;

/* All threads that call these functions flush denormals. None of the functions may call mr_pool_run. */
typedef struct mr_pool_job {
    int32_t n_groups;
    int32_t n_threads; /* how many may take part; 0, or more than the pool has: all */
    /* Returns the number of tasks of a group, which may be 0. Called once for a group, by any thread, when all earlier
     * tasks are done. */
    int32_t (*count)(void *ctx, int32_t group);
    void (*run)(void *ctx, int32_t group, int32_t task, int thread_idx);
    /* Called on the calling thread once for each group. When other threads have ended several groups meanwhile, the
     * calls follow each other. NULL: not wanted. */
    void (*progress)(void *ctx);
    void *ctx;
} mr_pool_job;

/* cpu_ids: thread i > 0 is bound to cpu_ids[i] (a failure is ignored); NULL binds no thread. The caller has bound
 * itself to cpu_ids[0]. A job on one thread of several lets the caller run on all of cpu_ids, until the next job on
 * more threads. MR_E_INVALID: n_threads is not in [1, MR_POOL_MAX_THREADS]. */
MR_MUST_USE mr_status mr_pool_create(int n_threads, const int *cpu_ids, mr_pool **out_pool, mr_err *err);
void mr_pool_destroy(mr_pool *pool);
int mr_pool_n_threads(const mr_pool *pool);

/* Runs all tasks and returns when they are done. The caller then sees all that the tasks wrote, and tasks of a group
 * see all that earlier groups wrote. The job may be on the caller's stack. */
void mr_pool_run(mr_pool *pool, const mr_pool_job *job);

/* Returns the longest time in nanoseconds that one of the first n_threads threads was ready to run and had no core,
 * since the last question about that thread. Returns -1 where the system does not say, and for a new thread or caller.
 * Of many threads only the first MR_POOL_WATCHED are asked, a microsecond each. The caller is the thread that calls
 * mr_pool_run, between runs. */
int64_t mr_pool_waited_ns(mr_pool *pool, int n_threads);
/* For tests: another folder in place of MR_THREAD_TASKS (thread.h). It is borrowed. */
void mr_pool_set_tasks(mr_pool *pool, const char *tasks);

typedef void (*mr_pool_fn)(void *ctx, int thread_idx, int n_threads);
/* For measurements: runs fn(ctx, i, n_threads) once on every thread, and begins when all threads are ready. */
void mr_pool_run_each(mr_pool *pool, mr_pool_fn fn, void *ctx);

#endif
