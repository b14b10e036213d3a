/* engine/base/thread.c - threads, locks and condition variables over POSIX threads, binding to CPUs, the time that
 * threads wait for a core, and the mode that flushes denormals. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#include "engine/base/clock.h"
#include "engine/base/mem.h"

struct mr_thread {
    pthread_t handle;
    mr_thread_fn fn;
    void *ctx;
    char name[16]; /* the kernel's limit */
};

static void *thread_main(void *arg) {
    mr_thread *t = arg;
    pthread_setname_np(pthread_self(), t->name);
    t->fn(t->ctx);
    return NULL;
}

/* The stack size to ask for: bytes, at least the minimum of the system, in whole pages. */
static size_t stack_size(size_t bytes) {
    size_t least = (size_t)PTHREAD_STACK_MIN, page = (size_t)sysconf(_SC_PAGESIZE);
    return mr_round_up(bytes > least ? bytes : least, page);
}

mr_status mr_thread_create(const char *name, size_t stack_bytes, mr_thread_fn fn, void *ctx, mr_thread **out_thread,
                           mr_err *err) {
    mr_status status = MR_OK;
    pthread_attr_t attr;
    sigset_t all, old;
    mr_thread *t = mr_alloc(sizeof *t);
    if (!t || pthread_attr_init(&attr) != 0) {
        mr_free(t);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for thread %s", name);
    }
    t->fn = fn;
    t->ctx = ctx;
    snprintf(t->name, sizeof t->name, "%s", name);
    if (stack_bytes && pthread_attr_setstacksize(&attr, stack_size(stack_bytes)) != 0) {
        status = mr_err_set(err, MR_E_INVALID, "thread %s: a stack of %zu bytes is refused", name, stack_bytes);
        goto out;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&t->handle, &attr, thread_main, t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        status = mr_err_set(err, MR_E_NO_MEMORY, "thread %s does not start: error %d%s", name, rc,
                            rc == EAGAIN ? "; hint: the limit of threads or memory is reached (ulimit -u)" : "");
        goto out;
    }
    *out_thread = t;
    t = NULL;
out:
    pthread_attr_destroy(&attr);
    mr_free(t);
    return status;
}

void mr_thread_join(mr_thread *t) {
    if (!t)
        return;
    MR_ASSERT(pthread_join(t->handle, NULL) == 0);
    mr_free(t);
}

/* On Linux none of these calls allocates memory, so a failure is a bug of the caller. */
void mr_mutex_init(mr_mutex *m) {
    MR_ASSERT(pthread_mutex_init(&m->m, NULL) == 0);
}

void mr_mutex_deinit(mr_mutex *m) {
    MR_ASSERT(pthread_mutex_destroy(&m->m) == 0);
}

void mr_mutex_lock(mr_mutex *m) {
    MR_ASSERT(pthread_mutex_lock(&m->m) == 0);
}

void mr_mutex_unlock(mr_mutex *m) {
    MR_ASSERT(pthread_mutex_unlock(&m->m) == 0);
}

void mr_cond_init(mr_cond *c) {
    pthread_condattr_t attr;
    MR_ASSERT(pthread_condattr_init(&attr) == 0 && pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    MR_ASSERT(pthread_cond_init(&c->c, &attr) == 0);
    pthread_condattr_destroy(&attr);
}

void mr_cond_deinit(mr_cond *c) {
    MR_ASSERT(pthread_cond_destroy(&c->c) == 0);
}

bool mr_cond_wait_until(mr_cond *c, mr_mutex *m, int64_t deadline_ns) {
    if (deadline_ns == MR_NEVER) {
        MR_ASSERT(pthread_cond_wait(&c->c, &m->m) == 0);
        return true;
    }
    deadline_ns = deadline_ns > 0 ? deadline_ns : 0;
    struct timespec ts = {.tv_sec = (time_t)(deadline_ns / MR_NS_PER_S), .tv_nsec = (long)(deadline_ns % MR_NS_PER_S)};
    int rc = pthread_cond_timedwait(&c->c, &m->m, &ts);
    MR_ASSERT(rc == 0 || rc == ETIMEDOUT);
    return rc == 0;
}

void mr_cond_signal(mr_cond *c) {
    pthread_cond_signal(&c->c);
}

void mr_cond_broadcast(mr_cond *c) {
    pthread_cond_broadcast(&c->c);
}

mr_status mr_thread_pin_any(const int *cpu_ids, int n, mr_err *err) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < n; i++)
        if (cpu_ids[i] >= 0 && cpu_ids[i] < CPU_SETSIZE)
            CPU_SET((size_t)cpu_ids[i], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return mr_err_set(err, MR_E_INVALID, "cannot bind a thread to cpu %d: error %d", cpu_ids[0], errno);
    return MR_OK;
}

mr_status mr_thread_pin(int cpu_id, mr_err *err) {
    return mr_thread_pin_any(&cpu_id, 1, err);
}

int32_t mr_thread_id(void) {
    return (int32_t)syscall(SYS_gettid);
}

static void watch_open(mr_thread_watch *w, const char *tasks, int32_t thread_id) {
    char path[256];
    mr_thread_watch_deinit(w);
    if ((size_t)snprintf(path, sizeof path, "%s/%" PRId32 "/schedstat", tasks, thread_id) >= sizeof path)
        return;
    w->fd = open(path, O_RDONLY | O_CLOEXEC);
    w->thread_id = w->fd >= 0 ? thread_id : 0;
}

/* The file has three numbers: time on a core (ns), time of waiting for one (ns), and how often the thread got a core.
 * A kernel that does not count writes three zeros. */
int64_t mr_thread_watch_look(mr_thread_watch *w, const char *tasks, int32_t thread_id) {
    bool is_first = w->thread_id != thread_id;
    char text[80];
    int64_t waited_ns = 0, n_turns = 0;
    if (is_first)
        watch_open(w, tasks, thread_id);
    ssize_t n = w->thread_id ? pread(w->fd, text, sizeof text - 1, 0) : -1;
    text[n > 0 ? n : 0] = 0;
    if (sscanf(text, "%*s %" SCNd64 "%" SCNd64, &waited_ns, &n_turns) != 2 || n_turns <= 0) {
        mr_thread_watch_deinit(w);
        return -1;
    }
    int64_t since_ns = waited_ns - w->waited_ns;
    w->waited_ns = waited_ns;
    return is_first || since_ns < 0 ? -1 : since_ns;
}

void mr_thread_watch_deinit(mr_thread_watch *w) {
    if (w->thread_id)
        close(w->fd);
    *w = (mr_thread_watch){0};
}

void mr_thread_set_denormals_flushed(void) {
#if defined(__x86_64__) || defined(__i386__)
    const unsigned flush = 1u << 15 | 1u << 6; /* FTZ, DAZ */
    unsigned mode = _mm_getcsr();
    if ((mode & flush) != flush)
        _mm_setcsr(mode | flush);
#elif defined(__aarch64__)
    const uint64_t flush = UINT64_C(1) << 24; /* FZ; FZ16 (bit 19) stays off */
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    if (!(mode & flush))
        __asm__ volatile("msr fpcr, %0" : : "r"(mode | flush));
#endif
}
