/* backends/cuda/cuda_queue.c - fences, and the events that say how far the queue is. Marks and copies have an event
 * each. A wait for any other fence takes the next event behind it. */
// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include "backends/cuda/cuda_device.h"
#include "engine/base/clock.h"
#include "engine/base/thread.h"

/* A wait asks the driver this many times at once, some 100 us, and then in pauses. */
enum { SPINS = 200, PAUSE_NS = 20000 };

_Static_assert((int)CUDA_EVENTS > (int)MR_KEPT_MARKS, "the times of these marks are kept");

static mr_status create_events(cuda_backend *be, cuda_events *e, mr_err *err) {
    mr_status status = MR_OK;
    for (int i = 0; i < CUDA_EVENTS && status == MR_OK; i++)
        status = cuda_check_new(be, be->driver->event_create(&e->at[i], CUDA_EVENT_DEFAULT), "create an event", err);
    return status;
}

mr_status cuda_queue_init(cuda_backend *be, mr_err *err) {
    mr_status status =
        cuda_check_new(be, be->driver->stream_create(&be->stream, CUDA_STREAM_NON_BLOCKING), "create a stream", err);
    if (status == MR_OK)
        status = create_events(be, &be->marks, err);
    if (status == MR_OK)
        status = create_events(be, &be->copies, err);
    return status;
}

void cuda_queue_deinit(cuda_backend *be) {
    for (int i = 0; i < CUDA_EVENTS; i++) {
        if (be->marks.at[i])
            (void)be->driver->event_destroy(be->marks.at[i]);
        if (be->copies.at[i])
            (void)be->driver->event_destroy(be->copies.at[i]);
    }
    if (be->stream)
        (void)be->driver->stream_destroy(be->stream);
}

/* Records an event for the fence of the last call. It takes the place of the oldest one. */
static mr_status record(cuda_backend *be, cuda_events *e, mr_err *err) {
    uint64_t i = e->n % CUDA_EVENTS;
    mr_status status = cuda_check(be, be->driver->event_record(e->at[i], be->stream), "record an event", err);
    if (status == MR_OK) {
        e->fences[i] = be->last;
        e->n++;
    }
    return status;
}

mr_status cuda_queue_copied(cuda_backend *be, mr_fence *out, mr_err *err) {
    (void)cuda_queue_fence(be);
    mr_status status = record(be, &be->copies, err);
    if (status == MR_OK)
        *out = be->last;
    return status;
}

/* Asks whether event i is reached. */
static mr_status ask(cuda_backend *be, const cuda_events *e, uint64_t i, mr_err *err) {
    cuda_result result = be->driver->event_query(e->at[i % CUDA_EVENTS]);
    if (result == CUDA_NOT_READY)
        return MR_E_TIMEOUT;
    mr_status status = cuda_check(be, result, "ask for an event", err);
    if (status == MR_OK && e->fences[i % CUDA_EVENTS] > be->reached)
        be->reached = e->fences[i % CUDA_EVENTS];
    return status;
}

/* The first event that reaches the fence; e->n: there is none. */
static uint64_t find(const cuda_events *e, mr_fence fence) {
    uint64_t i = e->n > CUDA_EVENTS ? e->n - CUDA_EVENTS : 0;
    while (i < e->n && e->fences[i % CUDA_EVENTS] < fence)
        i++;
    return i;
}

/* MR_E_TIMEOUT leaves err as it is. */
static mr_status wait_event(cuda_backend *be, const cuda_events *e, uint64_t i, int64_t deadline_ns, mr_err *err) {
    mr_status status = ask(be, e, i, err);
    for (int n = 0; status == MR_E_TIMEOUT && mr_clock_now_ns() < deadline_ns; n++) {
        if (n < SPINS)
            mr_cpu_pause();
        else
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        status = ask(be, e, i, err);
    }
    return status;
}

mr_status cuda_queue_wait(cuda_backend *be, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    if (fence <= be->reached)
        return MR_OK;
    uint64_t mark = find(&be->marks, fence), copy = find(&be->copies, fence);
    bool has_mark = mark < be->marks.n, has_copy = copy < be->copies.n;
    if (!has_mark && !has_copy) {
        mr_status status = record(be, &be->copies, err);
        if (status != MR_OK)
            return status;
    } else if (has_mark &&
               (!has_copy || be->marks.fences[mark % CUDA_EVENTS] < be->copies.fences[copy % CUDA_EVENTS])) {
        return wait_event(be, &be->marks, mark, deadline_ns, err);
    }
    return wait_event(be, &be->copies, copy, deadline_ns, err);
}

mr_status cuda_wait(mr_backend *base, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    if (fence <= be->reached)
        return MR_OK;
    mr_status status = cuda_enter(be, err);
    if (status == MR_OK)
        status = cuda_queue_wait(be, fence, deadline_ns, err);
    return status == MR_E_TIMEOUT ? mr_err_set(err, status, "%s has not reached the fence", be->info.name) : status;
}

/* Computes the times of the marks that are reached: the driver gives the time between two events as a float, so the
 * sums are ours. */
static mr_status time_marks(cuda_backend *be, mr_err *err) {
    cuda_events *m = &be->marks;
    for (; be->n_timed < m->n && m->fences[be->n_timed % CUDA_EVENTS] <= be->reached; be->n_timed++) {
        uint64_t i = be->n_timed % CUDA_EVENTS, before = (be->n_timed - 1) % CUDA_EVENTS;
        float ms = 0.0f;
        if (be->n_timed == 0)
            continue;
        mr_status status =
            cuda_check(be, be->driver->event_elapsed_time(&ms, m->at[before], m->at[i]), "time an event", err);
        if (status != MR_OK)
            return status;
        be->ns[i] = be->ns[before] + (int64_t)((double)ms * (double)MR_NS_PER_MS);
    }
    return MR_OK;
}

mr_status cuda_mark(mr_backend *base, mr_fence *out, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    mr_status status = cuda_enter(be, err);
    /* The event that is going to be recorded anew has no part in a time any more. */
    uint64_t n_needed = be->marks.n < CUDA_EVENTS ? 0 : be->marks.n - CUDA_EVENTS + 2;
    if (status == MR_OK && be->n_timed < n_needed) {
        status = cuda_queue_wait(be, be->marks.fences[(n_needed - 1) % CUDA_EVENTS], MR_NEVER, err);
        if (status == MR_OK)
            status = time_marks(be, err);
    }
    if (status != MR_OK)
        return status;
    (void)cuda_queue_fence(be);
    status = record(be, &be->marks, err);
    if (status == MR_OK)
        *out = be->last;
    return status;
}

mr_status cuda_fence_ns(mr_backend *base, mr_fence mark, int64_t *out_ns, mr_err *err) {
    cuda_backend *be = (cuda_backend *)base;
    uint64_t i = find(&be->marks, mark);
    if (i == be->marks.n || be->marks.n - i > MR_KEPT_MARKS || be->marks.fences[i % CUDA_EVENTS] != mark)
        return mr_err_set(err, MR_E_INVALID, "%s does not keep the time of mark %llu", be->info.name,
                          (unsigned long long)mark);
    mr_status status = cuda_wait(base, mark, 0, err);
    if (status == MR_OK)
        status = cuda_enter(be, err);
    if (status == MR_OK)
        status = time_marks(be, err);
    if (status == MR_OK)
        *out_ns = be->ns[i % CUDA_EVENTS];
    return status;
}
