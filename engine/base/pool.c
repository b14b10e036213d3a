/* engine/base/pool.c - a pool of threads that claim tasks of the open group by lowering one counter. The thread that
 * finishes the last task of a group opens the next group, so no thread waits for one that has no task of the group. A
 * thread reads nothing of a job before it has claimed a task: a claimed task keeps its group open, and an open group
 * keeps the job alive. A thread that was preempted before its claim finds whatever group is open when the thread runs
 * again.
 *
 * A waiting thread spins for a bounded time and then sleeps on a futex. Groups that follow each other start in under a
 * microsecond, and an idle pool takes no CPU time. Ranks may share cores, and then the thread that is waited for may
 * need the core of the waiting thread: hence a hundred pauses (2 to 5 us) and then yields. Measured for two threads on
 * a Xeon: with a core each, a run takes 0.4 us; with one core for both, a group takes 7 us with 100 pauses, 20 us with
 * 400 and 120 us with 4000. Beside other busy programs a yield may cost a whole time slice of some milliseconds, but a
 * sleeping thread gets its core back soon after the wake-up. After a yield that lost the core, a thread therefore
 * sleeps at once for a while instead of yielding. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum {
    LINE_BYTES = 64,  /* of a cache line */
    YIELD_NS = 60000, /* how long a thread yields between two jobs before it sleeps */
    /* The same during a job. Other threads have tasks of a long group, and the next group opens soon. */
    JOB_YIELD_NS = 2000000,
    LOST_NS = 200000,      /* a yield that takes longer has given the core to another program */
    CROWDED_NS = 20000000, /* how long a thread then does not yield */
    SPINS = 100,           /* pauses before a thread yields its core each time */
    /* Kernels keep tiles and one long row on the stack. Sanitizers need more stack. */
    WORKER_STACK = 4 << 20,
    /* Classes of threads, by index: 0, 1, 2 to 3, 4 to 7 ... 512 to 1023. Each class is a bit of the futex. */
    N_CLASSES = 11,
};

typedef struct pool_worker {
    mr_pool *pool;
    mr_thread *thread;
    int thread_idx;
    int64_t crowded_until_ns; /* used by this thread alone */
    atomic_int thread_id;     /* mr_thread_id of this thread; 0: it has not begun */
    mr_thread_watch watch;    /* used by the caller alone */
} pool_worker;

/* Each member that several threads write has a cache line of its own. */
struct mr_pool {
    int n_threads;
    pool_worker *workers; /* [n_threads]; the first one is the caller and has no thread */
    int *cpu_ids;         /* [n_threads], or NULL */
    const char *tasks;    /* the folder with the statistics of threads */
    bool caller_is_loose; /* the caller may run on all of cpu_ids, for jobs on one thread */
    /* The open group. The thread that opens the group writes these members before it raises left (release). Other
     * threads read them after a claim (acquire). */
    const mr_pool_job *job; /* NULL between runs */
    int32_t n_tasks;
    /* Index of the open group. The caller of the job may read it at any time, and returns (acquire) when it equals the
     * job's n_groups (release). */
    atomic_int group;
    atomic_int n_groups; /* of the job; a thread that reads an old value only waits for a wrong length of time */
    /* How many threads may claim. A worker that reads an old value takes part by mistake or not at all, which does no
     * harm. */
    atomic_int n_active;
    atomic_bool stop;
    char pad0[LINE_BYTES];
    /* Tasks of the open group that no thread has claimed. A claim lowers the number. */
    _Atomic uint32_t left;
    char pad1[LINE_BYTES];
    /* Tasks of the open group that are done. Additions are acquire and release, so each thread sees the work of those
     * before. */
    _Atomic uint32_t n_done;
    char pad2[LINE_BYTES];
    /* Raised after a group has been opened and after a job has ended. A thread that finds no task to claim spins on
     * this word, then sleeps on it as a futex. */
    _Atomic uint32_t n_opened;
    /* Threads of each class that sleep or are about to. A thread adds itself here and then lets the kernel compare
     * n_opened. A thread that opens a group raises n_opened and then reads these counts. All accesses are sequentially
     * consistent, so at least one of the two threads sees the other. */
    _Atomic uint32_t n_parked[N_CLASSES];
    char pad3[LINE_BYTES];
};

/* --- Waiting ----------------------------------------------------------------------------------------------------- */

/* Bounds the spinning, so it is real time even when tests have frozen the clock. */
static int64_t spin_clock_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * MR_NS_PER_S + ts.tv_nsec;
}

static bool spin_pauses(_Atomic uint32_t *word, uint32_t value) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value)
            return true;
        mr_cpu_pause();
    }
    return false;
}

static bool is_in_job(const mr_pool *pool) {
    return atomic_load_explicit(&pool->group, memory_order_relaxed) <
           atomic_load_explicit(&pool->n_groups, memory_order_relaxed);
}

/* Waits for a bounded time while *word equals value. Returns false if it still does. */
static bool spin_while_equal(pool_worker *w, _Atomic uint32_t *word, uint32_t value) {
    if (spin_pauses(word, value))
        return true;
    int64_t now_ns = spin_clock_ns(), end_ns = now_ns + (is_in_job(w->pool) ? JOB_YIELD_NS : YIELD_NS);
    if (now_ns < w->crowded_until_ns)
        return false;
    while (now_ns < end_ns) {
        int64_t before_ns = now_ns;
        sched_yield();
        now_ns = spin_clock_ns();
        if (now_ns - before_ns > LOST_NS)
            w->crowded_until_ns = now_ns + CROWDED_NS;
        if (atomic_load_explicit(word, memory_order_acquire) != value)
            return true;
    }
    return false;
}

static bool takes_part(const pool_worker *w) {
    return w->thread_idx < atomic_load_explicit(&w->pool->n_active, memory_order_relaxed);
}

static int class_of(int thread_idx) {
    return thread_idx == 0 ? 0 : 32 - __builtin_clz((unsigned)thread_idx);
}

/* Waits until n_opened differs from seen. A thread that does not take part sleeps at once. */
static void wait_for_group(pool_worker *w, uint32_t seen) {
    mr_pool *pool = w->pool;
    int class = class_of(w->thread_idx);
    if (takes_part(w) && spin_while_equal(w, &pool->n_opened, seen))
        return;
    atomic_fetch_add(&pool->n_parked[class], 1);
    if (atomic_load(&pool->n_opened) == seen)
        syscall(SYS_futex, (void *)&pool->n_opened, FUTEX_WAIT_BITSET_PRIVATE, seen, NULL, NULL, 1u << class);
    atomic_fetch_sub(&pool->n_parked[class], 1);
}

/* Raises n_opened and wakes the sleeping threads among the first n_threads. */
static void announce(mr_pool *pool, int n_threads) {
    uint32_t classes = 0;
    atomic_fetch_add(&pool->n_opened, 1);
    for (int c = 0; c <= class_of(n_threads - 1); c++)
        classes |= atomic_load(&pool->n_parked[c]) > 0 ? 1u << c : 0;
    if (classes)
        syscall(SYS_futex, (void *)&pool->n_opened, FUTEX_WAKE_BITSET_PRIVATE, INT32_MAX, NULL, NULL, classes);
}

/* --- Groups ------------------------------------------------------------------------------------------------------ */

/* Opens the first group at or after group that has tasks, or ends the job. All earlier tasks are done. */
static void open_group(mr_pool *pool, int32_t group) {
    const mr_pool_job *job = pool->job;
    int n_active = atomic_load_explicit(&pool->n_active, memory_order_relaxed);
    for (; group < job->n_groups; group++) {
        int32_t n = job->count(job->ctx, group);
        if (n == 0)
            continue;
        atomic_store_explicit(&pool->group, group, memory_order_relaxed);
        pool->n_tasks = n;
        atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->left, (uint32_t)n, memory_order_release);
        announce(pool, n < n_active ? n : n_active);
        return;
    }
    atomic_store_explicit(&pool->group, group, memory_order_release);
    announce(pool, 1);
}

/* Claims a task. Returns false when none is left. */
static bool claim(mr_pool *pool, uint32_t *out_left) {
    uint32_t left = atomic_load_explicit(&pool->left, memory_order_relaxed);
    while (left > 0)
        if (atomic_compare_exchange_weak_explicit(&pool->left, &left, left - 1, memory_order_acquire,
                                                  memory_order_relaxed)) {
            *out_left = left;
            return true;
        }
    return false;
}

/* Claims and runs tasks of the open group until none is left. Returns false when there was none. The thread adds its
 * tasks to n_done only at the end, so the group stays open until then. */
static bool work(mr_pool *pool, int thread_idx) {
    uint32_t left, n = 0, n_tasks = 0;
    int32_t group = 0;
    for (; claim(pool, &left); n++) {
        group = atomic_load_explicit(&pool->group, memory_order_relaxed);
        n_tasks = (uint32_t)pool->n_tasks;
        pool->job->run(pool->job->ctx, group, (int32_t)(n_tasks - left), thread_idx);
    }
    if (n == 0)
        return false;
    if (atomic_fetch_add_explicit(&pool->n_done, n, memory_order_acq_rel) + n == n_tasks)
        open_group(pool, group + 1);
    return true;
}

static void worker_main(void *ctx) {
    pool_worker *w = ctx;
    mr_pool *pool = w->pool;
    mr_thread_set_denormals_flushed();
    atomic_store_explicit(&w->thread_id, mr_thread_id(), memory_order_relaxed);
    if (pool->cpu_ids)
        (void)!mr_thread_pin(pool->cpu_ids[w->thread_idx], NULL);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&pool->n_opened, memory_order_acquire);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed))
            return;
        if (!takes_part(w) || !work(pool, w->thread_idx))
            wait_for_group(w, seen);
    }
}

/* --- Runs -------------------------------------------------------------------------------------------------------- */

static void run_alone(const mr_pool_job *job) {
    for (int32_t g = 0; g < job->n_groups; g++) {
        int32_t n = job->count(job->ctx, g);
        for (int32_t task = 0; task < n; task++)
            job->run(job->ctx, g, task, 0);
        if (job->progress)
            job->progress(job->ctx);
    }
}

/* A caller that runs a job alone may run on any CPU of the pool: beside other busy programs its own core need not be
 * the best. */
static void place_caller(mr_pool *pool, bool loose) {
    if (!pool->cpu_ids || loose == pool->caller_is_loose)
        return;
    pool->caller_is_loose = loose;
    (void)!(loose ? mr_thread_pin_any(pool->cpu_ids, pool->n_threads, NULL) : mr_thread_pin(pool->cpu_ids[0], NULL));
}

/* Calls progress for each group that has ended. Returns false after the last group. */
static bool pass_groups(mr_pool *pool, int32_t *n_passed) {
    const mr_pool_job *job = pool->job;
    int32_t group = atomic_load_explicit(&pool->group, memory_order_acquire);
    for (; *n_passed < group; ++*n_passed)
        if (job->progress)
            job->progress(job->ctx);
    return group < job->n_groups;
}

void mr_pool_run(mr_pool *pool, const mr_pool_job *job) {
    int n = job->n_threads > 0 && job->n_threads < pool->n_threads ? job->n_threads : pool->n_threads;
    mr_thread_set_denormals_flushed();
    if (pool->n_threads > 1)
        place_caller(pool, n == 1);
    if (n == 1) {
        run_alone(job);
        return;
    }
    MR_ASSERT(!pool->job);
    pool->job = job;
    atomic_store_explicit(&pool->n_active, n, memory_order_relaxed);
    atomic_store_explicit(&pool->n_groups, job->n_groups, memory_order_relaxed);
    open_group(pool, 0);
    int32_t n_passed = 0;
    do {
        uint32_t seen = atomic_load_explicit(&pool->n_opened, memory_order_acquire);
        if (!work(pool, 0) && is_in_job(pool))
            wait_for_group(&pool->workers[0], seen);
    } while (pass_groups(pool, &n_passed));
    pool->job = NULL;
}

typedef struct each {
    mr_pool_fn fn;
    void *ctx;
    int n_threads;
    atomic_int n_there;
} each;

static int32_t count_each(void *ctx, int32_t group) {
    (void)group;
    return ((each *)ctx)->n_threads;
}

/* No thread can claim a second task before all threads have one, and then no task is left. */
static void run_one_each(void *ctx, int32_t group, int32_t task, int thread_idx) {
    each *e = ctx;
    (void)group;
    (void)task;
    atomic_fetch_add_explicit(&e->n_there, 1, memory_order_acq_rel);
    while (atomic_load_explicit(&e->n_there, memory_order_acquire) < e->n_threads)
        sched_yield();
    e->fn(e->ctx, thread_idx, e->n_threads);
}

void mr_pool_run_each(mr_pool *pool, mr_pool_fn fn, void *ctx) {
    each e = {.fn = fn, .ctx = ctx, .n_threads = pool->n_threads};
    mr_pool_run(pool, &(mr_pool_job){.n_groups = 1, .count = count_each, .run = run_one_each, .ctx = &e});
}

/* --- Waits for cores --------------------------------------------------------------------------------------------- */

int64_t mr_pool_waited_ns(mr_pool *pool, int n_threads) {
    int64_t longest_ns = -1;
    bool all_known = true;
    atomic_store_explicit(&pool->workers[0].thread_id, mr_thread_id(), memory_order_relaxed);
    for (int i = 0; i < n_threads && i < pool->n_threads && i < MR_POOL_WATCHED; i++) {
        pool_worker *w = &pool->workers[i];
        int thread_id = atomic_load_explicit(&w->thread_id, memory_order_relaxed);
        int64_t ns = thread_id ? mr_thread_watch_look(&w->watch, pool->tasks, thread_id) : -1;
        all_known = all_known && ns >= 0;
        longest_ns = ns > longest_ns ? ns : longest_ns;
    }
    return all_known ? longest_ns : -1;
}

void mr_pool_set_tasks(mr_pool *pool, const char *tasks) {
    pool->tasks = tasks;
}

/* --- Life -------------------------------------------------------------------------------------------------------- */

int mr_pool_n_threads(const mr_pool *pool) {
    return pool->n_threads;
}

mr_status mr_pool_create(int n_threads, const int *cpu_ids, mr_pool **out_pool, mr_err *err) {
    if (n_threads < 1 || n_threads > MR_POOL_MAX_THREADS)
        return mr_err_set(err, MR_E_INVALID, "a pool of %d threads: 1 to %d are possible", n_threads,
                          MR_POOL_MAX_THREADS);
    mr_status status = MR_OK;
    mr_pool *pool = mr_alloc(sizeof *pool);
    pool_worker *workers = mr_alloc_array((size_t)n_threads, sizeof *workers);
    int *ids = cpu_ids ? mr_alloc_array((size_t)n_threads, sizeof *ids) : NULL;
    if (!pool || !workers || (cpu_ids && !ids)) {
        mr_free(ids);
        mr_free(workers);
        mr_free(pool);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a pool of %d threads", n_threads);
    }
    pool->n_threads = n_threads;
    pool->workers = workers;
    pool->cpu_ids = ids;
    pool->tasks = MR_THREAD_TASKS;
    for (int i = 0; i < n_threads && ids; i++)
        ids[i] = cpu_ids[i];
    workers[0] = (pool_worker){.pool = pool};
    for (int i = 1; i < n_threads && status == MR_OK; i++) {
        pool_worker *w = &workers[i];
        *w = (pool_worker){.pool = pool, .thread_idx = i};
        char name[32];
        snprintf(name, sizeof name, "mr-pool-%d", i);
        status = mr_thread_create(name, WORKER_STACK, worker_main, w, &w->thread, err);
    }
    if (status != MR_OK)
        mr_pool_destroy(pool);
    else
        *out_pool = pool;
    return status;
}

void mr_pool_destroy(mr_pool *pool) {
    if (!pool)
        return;
    atomic_store_explicit(&pool->stop, true, memory_order_relaxed); /* n_opened publishes it */
    announce(pool, pool->n_threads);
    for (int i = 1; i < pool->n_threads; i++)
        mr_thread_join(pool->workers[i].thread);
    for (int i = 0; i < pool->n_threads; i++)
        mr_thread_watch_deinit(&pool->workers[i].watch);
    mr_free(pool->cpu_ids);
    mr_free(pool->workers);
    mr_free(pool);
}
