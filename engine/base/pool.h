/* engine/base/pool.h - a fixed set of threads that run one function together, again and again, as a step does.
 * Owns:    n_threads - 1 threads; the caller of mr_pool_run is thread 0.
 * Threads: caller serialises mr_pool_run and mr_pool_destroy; mr_pool_barrier belongs to the function that runs.
 * Errors:  create alone can fail; a run allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_POOL_H
#define MR_ENGINE_BASE_POOL_H

#include "engine/base/status.h"

enum { MR_POOL_MAX_THREADS = 1024 };

typedef struct mr_pool mr_pool;
typedef void (*mr_pool_fn)(void *ctx, int thread_idx, int n_threads);

/* cpu_ids: thread i > 0 is bound to cpu_ids[i] (a refusal is ignored); NULL binds nobody. The caller itself is not bound,
 * because threads that it makes later would inherit that. MR_E_INVALID: n_threads is not in [1, MR_POOL_MAX_THREADS]. */
MR_MUST_USE mr_status mr_pool_create(int n_threads, const int *cpu_ids, mr_pool **out_pool, mr_err *err);
void mr_pool_destroy(mr_pool *pool);
int mr_pool_n_threads(const mr_pool *pool);

/* Runs fn(ctx, i, n_threads) on all threads and returns when all are done; what they wrote is then visible to the
 * caller. Denormals are flushed in all of them, the caller included, from then on. fn must not call mr_pool_run. */
void mr_pool_run(mr_pool *pool, mr_pool_fn fn, void *ctx);
/* Inside fn: returns when all threads of the pool have called it; what they wrote before is then visible to all. Every
 * thread calls it the same number of times. */
void mr_pool_barrier(mr_pool *pool);

#endif
