/* tests/support/test_device_queue.c - the queue of a test device and the thread that serves it: delays, costs, times,
 * and when the device breaks. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/rng.h"
#include "tests/support/test_device_internal.h"

enum { QUEUE_CALLS = 256 };

/* --- The device's thread ----------------------------------------------------------------------------------------- */

static void sleep_ns(int64_t ns) {
    if (ns > 0)
        nanosleep(&(struct timespec){.tv_sec = ns / MR_NS_PER_S, .tv_nsec = ns % MR_NS_PER_S}, NULL);
}

static void delay(test_device *d) {
    if (d->options.max_delay_us > 0)
        sleep_ns((int64_t)(mr_rng_u64(d->options.seed, 77, d->n_delays++) >> 33) % d->options.max_delay_us * 1000);
}

static void protect(uint8_t *from, size_t bytes, int protection) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)from / page * page;
    MR_ASSERT(mprotect((void *)first, (uintptr_t)from + bytes - first, protection) == 0);
}

/* The memory that a call uses: all of it takes long, and is for programs alone. */
static void open_pages(test_device *d, const call *c, int protection) {
    if (c->kind == CALL_MARK || d->options.host_addressable)
        return;
    if (c->kind == CALL_SET || c->kind == CALL_GET) {
        protect(c->buffer->inside.base + c->offset, c->bytes, protection);
    } else if (c->kind == CALL_LOAD) {
        protect(c->tensor.buffer->base + c->tensor.offset, c->tensor.bytes, protection);
    } else {
        for (int i = 0; i < MAX_BUFFERS; i++)
            if (d->buffers[i] && d->buffers[i]->mapped_bytes > 0)
                protect(d->buffers[i]->inside.base, d->buffers[i]->mapped_bytes, protection);
    }
}

/* Makes the panels of the matrices whose source was kept. */
static mr_status prepare(test_device *d, const call *c) {
    const mr_backend_ops *ops = d->cpu->ops;
    mr_program *p = c->program;
    mr_fence fence;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < p->n_tensors && status == MR_OK; i++) {
        mr_tensor *t = &p->tensors[i];
        const uint8_t *src;
        if (t->storage != MR_STORAGE_WEIGHT || !d->options.keeps_source || !t->buffer)
            continue;
        memcpy(&src, t->buffer->base + t->offset, sizeof src);
        status = ops->weight_bytes(d->cpu, t->type, t->ne[0], t->ne[1], &t->bytes, NULL);
        if (status == MR_OK)
            status = ops->buffer_create(d->cpu, t->bytes, &p->panels[i], NULL);
        t->buffer = p->panels[i];
        t->offset = 0;
        if (status == MR_OK)
            status = ops->weight_load(d->cpu, t, src, &fence, NULL);
    }
    return status;
}

static mr_status work(test_device *d, call *c) {
    mr_fence fence;
    switch (c->kind) {
    case CALL_SET:
        memcpy(c->buffer->inside.base + c->offset, c->src, c->bytes);
        return MR_OK;
    case CALL_GET:
        memcpy(c->dst, c->buffer->inside.base + c->offset, c->bytes);
        return MR_OK;
    case CALL_LOAD:
        if (!d->options.keeps_source)
            return d->cpu->ops->weight_load(d->cpu, &c->tensor, c->src, &fence, NULL);
        memcpy(c->tensor.buffer->base + c->tensor.offset, &c->src, sizeof c->src);
        return MR_OK;
    case CALL_PREPARE:
        return prepare(d, c);
    case CALL_MARK:
        return MR_OK;
    default:
        return d->cpu->ops->submit(d->cpu, c->program->inside, &c->run, &fence, NULL);
    }
}

static void serve(void *ctx) {
    test_device *d = ctx;
    call c;
    mr_thread_set_denormals_flushed();
    while (mr_queue_pop(d->queue, &c, MR_NEVER) == MR_OK && c.kind != CALL_END) {
        int64_t start_ns = mr_clock_now_ns();
        delay(d);
        mr_mutex_lock(&d->lock);
        while (d->n_held > 0)
            mr_cond_wait_until(&d->reached, &d->lock, MR_NEVER);
        bool works = (d->broken_at == 0 || d->broken_at > c.fence) && !c.breaks;
        mr_mutex_unlock(&d->lock);
        mr_mutex_lock(&d->memory_lock);
        if (works) {
            open_pages(d, &c, PROT_READ | PROT_WRITE);
            works = work(d, &c) == MR_OK;
            open_pages(d, &c, PROT_NONE);
        }
        mr_mutex_unlock(&d->memory_lock);
        delay(d);
        if (!d->options.clock)
            sleep_ns(start_ns + c.cost_ns - mr_clock_now_ns());
        mr_mutex_lock(&d->lock);
        if (!works && d->broken_at == 0)
            d->broken_at = c.fence;
        if (c.kind == CALL_MARK)
            d->marks[d->n_marks++ % MR_KEPT_MARKS] = (mark){c.fence, d->options.clock ? c.end_ns : mr_clock_now_ns()};
        d->done = c.fence;
        mr_cond_broadcast(&d->reached);
        mr_mutex_unlock(&d->lock);
    }
}

/* --- Calls ------------------------------------------------------------------------------------------------------- */

const char *test_device_name(const test_device *d) {
    return d->options.name ? d->options.name : "test device";
}

static mr_status broken(const test_device *d, mr_err *err) {
    return mr_err_set(err, MR_E_DEVICE, "the %s is broken", test_device_name(d));
}

/* Call with the lock held. */
static void release(test_device *d, int32_t n_waits) {
    d->n_held = n_waits < d->n_held ? d->n_held - n_waits : 0;
    mr_cond_broadcast(&d->reached);
}

mr_status test_device_wait_until(test_device *d, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    MR_ASSERT(fence <= d->issued);
    mr_mutex_lock(&d->lock);
    bool in_time = true;
    if (deadline_ns == MR_NEVER)
        release(d, d->n_held);
    while (d->done < fence && in_time)
        in_time = mr_cond_wait_until(&d->reached, &d->lock, deadline_ns);
    if (!in_time)
        release(d, 1);
    bool reached = d->done >= fence, is_broken = d->broken_at != 0 && d->broken_at <= fence;
    mr_mutex_unlock(&d->lock);
    if (!reached)
        return mr_err_set(err, MR_E_TIMEOUT, "the %s is not ready", test_device_name(d));
    return is_broken ? broken(d, err) : MR_OK;
}

/* On a simulated clock the time decides, not how far the device's thread is. */
static bool is_reached(test_device *d, mr_fence fence) {
    if (d->options.clock)
        return test_timeline_end_ns(&d->timeline, fence) <= test_clock_now_ns(d->options.clock);
    mr_mutex_lock(&d->lock);
    bool reached = d->done >= fence;
    mr_mutex_unlock(&d->lock);
    return reached;
}

mr_status test_device_count(test_device *d, test_device_call kind, mr_err *err) {
    if (++d->n_all_calls != d->options.fail_at)
        return MR_OK;
    d->stats.failed = kind;
    if (kind == TEST_DEVICE_BUFFER_CREATE || kind == TEST_DEVICE_PROGRAM_CREATE)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory on the %s", test_device_name(d));
    (void)!test_device_wait_until(d, d->issued, MR_NEVER, NULL); /* a broken device leaves no work, as backend.h says */
    mr_mutex_lock(&d->lock);
    d->broken_at = d->broken_at ? d->broken_at : d->issued + 1;
    mr_mutex_unlock(&d->lock);
    return broken(d, err);
}

mr_status test_device_give(test_device *d, call *c, mr_fence *out, mr_err *err) {
    static const test_device_call counted_as[] = {[CALL_SET] = TEST_DEVICE_SET,
                                                  [CALL_GET] = TEST_DEVICE_GET,
                                                  [CALL_LOAD] = TEST_DEVICE_WEIGHT_LOAD,
                                                  [CALL_SUBMIT] = TEST_DEVICE_SUBMIT,
                                                  [CALL_MARK] = TEST_DEVICE_MARK};
    mr_status status = c->kind == CALL_PREPARE ? MR_OK : test_device_count(d, counted_as[c->kind], err);
    if (status != MR_OK)
        return status;
    c->fence = ++d->issued;
    if (c->kind != CALL_PREPARE)
        c->breaks = ++d->n_calls > d->options.n_good && d->options.n_good > 0;
    mr_mutex_lock(&d->lock);
    bool is_broken = d->broken_at != 0;
    int waiting = (int)(d->issued - d->done);
    d->stats.most_waiting = waiting > d->stats.most_waiting ? waiting : d->stats.most_waiting;
    if (is_broken)
        d->issued--;
    mr_mutex_unlock(&d->lock);
    if (is_broken)
        return broken(d, err);
    if (d->options.clock)
        c->end_ns = test_timeline_add(&d->timeline, c->cost_ns, d->options.host_addressable);
    MR_ASSERT(mr_queue_push(d->queue, c, MR_NEVER) == MR_OK);
    *out = c->fence;
    bool is_copy = c->kind == CALL_SET || c->kind == CALL_GET;
    return d->options.host_addressable && is_copy ? test_device_wait_until(d, c->fence, MR_NEVER, err) : MR_OK;
}

mr_status test_device_wait(mr_backend *base, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    test_device *d = (test_device *)base;
    mr_status status = test_device_count(d, TEST_DEVICE_WAIT, err);
    if (status != MR_OK)
        return status;
    if (!is_reached(d, fence))
        *(deadline_ns > mr_clock_now_ns() ? &d->stats.n_waits : &d->stats.n_polls) += 1;
    if (d->options.clock && !test_timeline_wait(&d->timeline, fence, deadline_ns != MR_NEVER))
        return mr_err_set(err, MR_E_TIMEOUT, "the %s is not ready", test_device_name(d));
    return test_device_wait_until(d, fence, d->options.clock ? MR_NEVER : deadline_ns, err);
}

mr_status test_device_mark(mr_backend *base, mr_fence *out, mr_err *err) {
    test_device *d = (test_device *)base;
    d->stats.n_marks++;
    return test_device_give(d, &(call){.kind = CALL_MARK}, out, err);
}

mr_status test_device_fence_ns(mr_backend *base, mr_fence fence, int64_t *out_ns, mr_err *err) {
    test_device *d = (test_device *)base;
    int i = 0;
    if (!is_reached(d, fence))
        return mr_err_set(err, MR_E_TIMEOUT, "the %s has not reached the mark", test_device_name(d));
    mr_status status = test_device_wait_until(d, fence, MR_NEVER, err);
    if (status != MR_OK)
        return status;
    mr_mutex_lock(&d->lock);
    while (i < MR_KEPT_MARKS && (fence == 0 || d->marks[i].fence != fence))
        i++;
    if (i < MR_KEPT_MARKS)
        *out_ns = d->marks[i].ns;
    mr_mutex_unlock(&d->lock);
    return i < MR_KEPT_MARKS
               ? MR_OK
               : mr_err_set(err, MR_E_INVALID, "the %s does not keep the time of that mark", test_device_name(d));
}

const char *test_device_call_name(test_device_call kind) {
    static const char *const names[TEST_DEVICE_CALLS] = {
        [TEST_DEVICE_BUFFER_CREATE] = "buffer_create",
        [TEST_DEVICE_PROGRAM_CREATE] = "program_create",
        [TEST_DEVICE_WEIGHT_LOAD] = "weight_load",
        [TEST_DEVICE_SET] = "set",
        [TEST_DEVICE_GET] = "get",
        [TEST_DEVICE_SUBMIT] = "submit",
        [TEST_DEVICE_MARK] = "mark",
        [TEST_DEVICE_WAIT] = "wait",
    };
    return kind < TEST_DEVICE_CALLS ? names[kind] : "nothing";
}

/* --- Life -------------------------------------------------------------------------------------------------------- */

mr_status test_device_queue_start(test_device *d, mr_err *err) {
    mr_mutex_init(&d->lock);
    mr_mutex_init(&d->memory_lock);
    mr_cond_init(&d->reached);
    mr_status status = mr_queue_create(sizeof(call), QUEUE_CALLS, &d->queue, err);
    if (status == MR_OK)
        status = mr_thread_create("test device", 0, serve, d, &d->thread, err);
    return status;
}

void test_device_queue_end(test_device *d) {
    mr_mutex_lock(&d->lock);
    release(d, d->n_held);
    mr_mutex_unlock(&d->lock);
    if (d->thread)
        MR_ASSERT(mr_queue_push(d->queue, &(call){.kind = CALL_END}, MR_NEVER) == MR_OK);
    mr_thread_join(d->thread);
    mr_queue_destroy(d->queue);
    mr_cond_deinit(&d->reached);
    mr_mutex_deinit(&d->lock);
    mr_mutex_deinit(&d->memory_lock);
}

void test_device_hold(mr_backend *device, int32_t n_waits) {
    test_device *d = (test_device *)device;
    mr_mutex_lock(&d->lock);
    d->n_held = n_waits;
    mr_mutex_unlock(&d->lock);
}
