/* tests/cuda_emulation/driver_stream.c - the emulated driver's streams, copies and events. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/rng.h"
#include "tests/cuda_emulation/driver_internal.h"

enum { RUBBISH = 0xa5 };

struct stream {
    struct stream *next_ended;
    context *context;
    work *first, *last;
    uint64_t n_given, n_done;
    bool ends, is_open; /* is_open: the device's memory, for this stream */
    mr_thread *thread;
};

/* Alive while the handle or a queued record refers to it. */
typedef struct event {
    int32_t n_references;
    uint64_t n_recorded, n_reached; /* it is ready when they are equal */
    int64_t ns;                     /* when it was reached */
} event;

static emulated *const e = &emulated_state;
static stream *ended; /* destroyed streams, whose threads finish the work and are joined at the reset */

/* --- The thread of a stream -------------------------------------------------------------------------------------- */

static void release_event(void *object) {
    event *v = object;
    if (--v->n_references == 0)
        free(v);
}

/* Call without the lock. */
static void delay(uint64_t draw) {
    if (e->options.max_delay_us > 0) {
        int64_t ns = (int64_t)(draw >> 33) % e->options.max_delay_us * 1000;
        nanosleep(&(struct timespec){.tv_sec = ns / MR_NS_PER_S, .tv_nsec = ns % MR_NS_PER_S}, NULL);
    }
}

/* Call with the lock. */
static uint64_t draw(context *c) {
    return mr_rng_u64(e->options.seed, (uint64_t)(c - e->contexts), c->n_drawn++);
}

/* Memory that was freed, or is no longer pinned, since the copy was queued. Call with the lock. */
static void check(const stream *s, const work *w) {
    if (w->kind == WORK_UP) {
        if (!emulated_is_device_memory(s->context, (uintptr_t)w->to, w->bytes))
            emulated_stop("a queued copy writes memory that was freed", NULL);
        if (!w->staged && !emulated_is_pinned(w->from, w->bytes))
            emulated_stop("a queued copy reads host memory that is no longer pinned", NULL);
    }
    if (w->kind == WORK_DOWN) {
        if (!emulated_is_device_memory(s->context, (uintptr_t)w->from, w->bytes))
            emulated_stop("a queued copy reads memory that was freed", NULL);
        if (w->is_pinned && !emulated_is_pinned(w->to, w->bytes))
            emulated_stop("a queued copy writes host memory that is no longer pinned", NULL);
    }
}

/* The same for copies inside the device's memory, and for the memory of a call. Call with the lock. */
static void check_inside(const stream *s, const work *w) {
    if (w->kind == WORK_INSIDE && (!emulated_is_device_memory(s->context, (uintptr_t)w->to, w->bytes) ||
                                   !emulated_is_device_memory(s->context, (uintptr_t)w->from, w->bytes)))
        emulated_stop("a queued copy uses memory that was freed", NULL);
    if (w->kind == WORK_CALL && !emulated_is_device_memory(s->context, (uintptr_t)w->to, w->bytes))
        emulated_stop("a queued call uses memory that was freed", NULL);
}

static void carry_out(const work *w, uint64_t order) {
    switch (w->kind) {
    case WORK_UP:
        memcpy(w->to, w->staged ? w->staged : w->from, w->bytes);
        return;
    case WORK_DOWN:
    case WORK_INSIDE:
        memmove(w->to, w->from, w->bytes);
        return;
    case WORK_CALL:
        w->call(w->call_ctx);
        return;
    case WORK_LAUNCH:
        emulator_launch(w->launch.kernel, w->launch.grid, w->launch.n_threads, w->launch.args);
        return;
    case WORK_GRAPH:
        emulated_exec_run(w->exec, order);
        return;
    case WORK_RECORD:
        return;
    }
}

/* Call with the lock. */
static void end_work(work *w) {
    if (w->kind == WORK_RECORD) {
        w->event->ns = mr_clock_now_ns();
        if (w->n_recorded > w->event->n_reached)
            w->event->n_reached = w->n_recorded;
        release_event(w->event);
    }
    if (w->kind == WORK_LAUNCH)
        w->launch.module->n_queued--;
    if (w->kind == WORK_GRAPH)
        emulated_exec_release(w->exec);
    free(w->launch.args);
    free(w->staged);
    free(w);
}

/* Takes the lock, and leaves it while the work is done. */
static void serve_one(stream *s, work *w) {
    context *c = s->context;
    bool works = w->kind != WORK_RECORD && !c->broken;
    if (works && ++e->n_works == e->options.break_at) {
        c->broken = CUDA_LAUNCH_FAILED;
        works = false;
    }
    uint64_t before = draw(c), after = draw(c), order = draw(c);
    mr_mutex_unlock(&e->lock);
    delay(before);
    mr_mutex_lock(&e->lock);
    if (works) {
        check(s, w);
        check_inside(s, w);
        if (!s->is_open)
            emulated_memory_open(c);
        s->is_open = true;
        mr_mutex_unlock(&e->lock);
        carry_out(w, order);
        mr_mutex_lock(&e->lock);
    }
    mr_mutex_unlock(&e->lock);
    delay(after);
    mr_mutex_lock(&e->lock);
}

static void serve(void *ctx) {
    stream *s = ctx;
    mr_mutex_lock(&e->lock);
    while (s->first || !s->ends) {
        work *w = s->first;
        if (!w) {
            mr_cond_wait_until(&e->changed, &e->lock, MR_NEVER);
            continue;
        }
        serve_one(s, w);
        s->first = w->next;
        if (s->is_open && !s->first) {
            emulated_memory_close(s->context);
            s->is_open = false;
        }
        end_work(w);
        s->n_done++;
        mr_cond_broadcast(&e->changed);
    }
    mr_mutex_unlock(&e->lock);
}

void emulated_give(stream *s, const work *given) {
    work *w = emulated_alloc(sizeof *w);
    *w = *given;
    w->next = NULL;
    if (s->first)
        s->last->next = w;
    else
        s->first = w;
    s->last = w;
    s->n_given++;
    mr_cond_broadcast(&e->changed);
}

/* --- Streams ----------------------------------------------------------------------------------------------------- */

static void end_stream(void *object) {
    stream *s = object;
    s->ends = true;
    s->next_ended = ended;
    ended = s;
    mr_cond_broadcast(&e->changed);
}

cuda_result emulated_stream_create(cuda_stream *out, unsigned flags) {
    call c = emulated_begin(CALL_stream_create);
    if (c.result == CUDA_OK && flags > CUDA_STREAM_NON_BLOCKING)
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result == CUDA_OK) {
        stream *s = emulated_alloc(sizeof *s);
        s->context = c.context;
        if (mr_thread_create("emulated stream", 0, serve, s, &s->thread, NULL) != MR_OK)
            emulated_stop("a stream has no thread", NULL);
        *out = emulated_add(OBJECT_STREAM, c.context, s);
    }
    return emulated_end(&c);
}

cuda_result emulated_stream_destroy(cuda_stream handle) {
    call c = emulated_begin(CALL_stream_destroy);
    stream *s = emulated_remove(&c, OBJECT_STREAM, handle);
    if (s)
        end_stream(s);
    return emulated_end(&c);
}

static cuda_result synchronize(stream *s) {
    uint64_t until = s->n_given;
    e->counts.n_waits++;
    while (s->n_done < until)
        mr_cond_wait_until(&e->changed, &e->lock, MR_NEVER);
    return s->context->broken;
}

cuda_result emulated_stream_synchronize(cuda_stream handle) {
    call c = emulated_begin(CALL_stream_synchronize);
    stream *s = c.refused ? NULL : emulated_find(&c, OBJECT_STREAM, handle);
    cuda_result result = s ? synchronize(s) : CUDA_OK;
    c.result = c.result == CUDA_OK ? result : c.result;
    return emulated_end(&c);
}

void emulated_streams_reset(void) {
    mr_mutex_lock(&e->lock);
    emulated_remove_all(OBJECT_STREAM, end_stream);
    mr_mutex_unlock(&e->lock);
    while (ended) {
        stream *s = ended;
        ended = s->next_ended;
        mr_thread_join(s->thread);
        free(s);
    }
    emulated_remove_all(OBJECT_EVENT, release_event);
}

/* --- Copies ------------------------------------------------------------------------------------------------------ */

cuda_result emulated_memcpy_htod_async(cuda_address to, const void *from, size_t bytes, cuda_stream handle) {
    call c = emulated_begin(CALL_memcpy_htod_async);
    stream *s = c.result == CUDA_OK ? emulated_find(&c, OBJECT_STREAM, handle) : NULL;
    if (s && !emulated_is_device_memory(c.context, to, bytes))
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result == CUDA_OK) {
        work w = {.kind = WORK_UP, .to = (uint8_t *)(uintptr_t)to, .from = from, .bytes = bytes};
        w.is_pinned = emulated_is_pinned(from, bytes);
        if (!w.is_pinned) {
            w.staged = emulated_alloc(bytes + 1);
            memcpy(w.staged, from, bytes);
        }
        e->counts.n_copies_up++;
        e->counts.up_bytes += bytes;
        e->counts.n_not_pinned += !w.is_pinned;
        emulated_give(s, &w);
    }
    return emulated_end(&c);
}

/* Whether queued copies up still have to read some of the bytes: then the copy down must not spoil them yet. */
static bool is_read(const stream *s, const uint8_t *at, size_t bytes) {
    for (const work *w = s->first; w; w = w->next)
        if (w->kind == WORK_UP && !w->staged && w->from < at + bytes && at < w->from + w->bytes)
            return true;
    return false;
}

cuda_result emulated_memcpy_dtoh_async(void *to, cuda_address from, size_t bytes, cuda_stream handle) {
    call c = emulated_begin(CALL_memcpy_dtoh_async);
    stream *s = c.result == CUDA_OK ? emulated_find(&c, OBJECT_STREAM, handle) : NULL;
    if (s && !emulated_is_device_memory(c.context, from, bytes))
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result == CUDA_OK) {
        work w = {.kind = WORK_DOWN, .to = to, .from = (const uint8_t *)(uintptr_t)from, .bytes = bytes};
        w.is_pinned = emulated_is_pinned(to, bytes);
        e->counts.n_copies_down++;
        e->counts.down_bytes += bytes;
        e->counts.n_not_pinned += !w.is_pinned;
        if (!is_read(s, to, bytes))
            memset(to, RUBBISH, bytes);
        emulated_give(s, &w);
        if (!w.is_pinned)
            c.result = synchronize(s);
    }
    return emulated_end(&c);
}

cuda_result emulated_memcpy_dtod_async(cuda_address to, cuda_address from, size_t bytes, cuda_stream handle) {
    call c = emulated_begin(CALL_memcpy_dtod_async);
    stream *s = c.result == CUDA_OK ? emulated_find(&c, OBJECT_STREAM, handle) : NULL;
    if (s && (!emulated_is_device_memory(c.context, to, bytes) || !emulated_is_device_memory(c.context, from, bytes)))
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result == CUDA_OK) {
        e->counts.n_copies_inside++;
        emulated_give(s, &(work){.kind = WORK_INSIDE,
                                 .to = (uint8_t *)(uintptr_t)to,
                                 .from = (const uint8_t *)(uintptr_t)from,
                                 .bytes = bytes});
    }
    return emulated_end(&c);
}

bool emulated_driver_enqueue(cuda_stream handle, const void *memory, size_t bytes, void (*fn)(void *ctx), void *ctx) {
    call c = emulated_begin(CALL_launch_kernel);
    stream *s = c.result == CUDA_OK ? emulated_find(&c, OBJECT_STREAM, handle) : NULL;
    if (s && !emulated_is_device_memory(c.context, (uintptr_t)memory, bytes))
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result == CUDA_OK)
        emulated_give(
            s, &(work){
                   .kind = WORK_CALL, .to = (uint8_t *)(uintptr_t)memory, .bytes = bytes, .call = fn, .call_ctx = ctx});
    return emulated_end(&c) == CUDA_OK;
}

/* --- Events ------------------------------------------------------------------------------------------------------ */

cuda_result emulated_event_create(cuda_event *out, unsigned flags) {
    call c = emulated_begin(CALL_event_create);
    if (c.result == CUDA_OK && flags != CUDA_EVENT_DEFAULT)
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result == CUDA_OK) {
        event *v = emulated_alloc(sizeof *v);
        v->n_references = 1;
        *out = emulated_add(OBJECT_EVENT, c.context, v);
    }
    return emulated_end(&c);
}

cuda_result emulated_event_destroy(cuda_event handle) {
    call c = emulated_begin(CALL_event_destroy);
    event *v = emulated_remove(&c, OBJECT_EVENT, handle);
    if (v)
        release_event(v);
    return emulated_end(&c);
}

cuda_result emulated_event_record(cuda_event handle, cuda_stream stream_handle) {
    call c = emulated_begin(CALL_event_record);
    event *v = c.result == CUDA_OK ? emulated_find(&c, OBJECT_EVENT, handle) : NULL;
    stream *s = v ? emulated_find(&c, OBJECT_STREAM, stream_handle) : NULL;
    if (s) {
        v->n_references++;
        emulated_give(s, &(work){.kind = WORK_RECORD, .event = v, .n_recorded = ++v->n_recorded});
    }
    return emulated_end(&c);
}

cuda_result emulated_event_query(cuda_event handle) {
    call c = emulated_begin(CALL_event_query);
    event *v = c.result == CUDA_OK ? emulated_find(&c, OBJECT_EVENT, handle) : NULL;
    if (v && v->n_reached < v->n_recorded) {
        c.result = CUDA_NOT_READY;
        e->counts.n_polls++;
    }
    return emulated_end(&c);
}

cuda_result emulated_event_synchronize(cuda_event handle) {
    call c = emulated_begin(CALL_event_synchronize);
    event *v = c.refused ? NULL : emulated_find(&c, OBJECT_EVENT, handle);
    if (v) {
        v->n_references++;
        e->counts.n_waits++;
        for (uint64_t until = v->n_recorded; v->n_reached < until;)
            mr_cond_wait_until(&e->changed, &e->lock, MR_NEVER);
        release_event(v);
        c.result = c.result == CUDA_OK ? c.context->broken : c.result;
    }
    return emulated_end(&c);
}

cuda_result emulated_event_elapsed_time(float *ms, cuda_event start, cuda_event end) {
    call c = emulated_begin(CALL_event_elapsed_time);
    const event *from = c.result == CUDA_OK ? emulated_find(&c, OBJECT_EVENT, start) : NULL;
    const event *to = from ? emulated_find(&c, OBJECT_EVENT, end) : NULL;
    if (to && (from->n_recorded == 0 || to->n_recorded == 0))
        emulated_refuse(&c, CUDA_INVALID_HANDLE);
    else if (to && (from->n_reached < from->n_recorded || to->n_reached < to->n_recorded))
        c.result = CUDA_NOT_READY;
    else if (to)
        *ms = (float)((double)(to->ns - from->ns) * 1e-6);
    return emulated_end(&c);
}
