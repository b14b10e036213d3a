/* tests/support/test_device_internal.h - the structure of a test device, and its queue: calls wait in it for
 * the device's thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_TEST_DEVICE_INTERNAL_H
#define MR_TESTS_SUPPORT_TEST_DEVICE_INTERNAL_H

#include "engine/base/thread.h"
#include "tests/support/queue.h"
#include "tests/support/test_device.h"

enum { MAX_BUFFERS = 64, MAX_PINNED = 32, RUBBISH = 0xa5 };

typedef enum call_kind { CALL_SET, CALL_GET, CALL_LOAD, CALL_SUBMIT, CALL_MARK, CALL_PREPARE, CALL_END } call_kind;

typedef struct device_buffer {
    mr_buffer base;   /* the host's view: no address unless host_addressable */
    mr_buffer inside; /* the view of the device's thread */
    size_t mapped_bytes;
} device_buffer;

typedef struct call {
    call_kind kind;
    mr_fence fence;
    bool breaks;             /* this call breaks the device */
    int64_t cost_ns, end_ns; /* end_ns: on the simulated clock */
    device_buffer *buffer;   /* SET, GET */
    size_t offset, bytes;
    const void *src;     /* SET, LOAD */
    void *dst;           /* GET */
    mr_tensor tensor;    /* LOAD: the device's view */
    mr_program *program; /* SUBMIT, PREPARE */
    mr_run run;
} call;

/* A program of the CPU backend over the device's view of the tensors. */
struct mr_program {
    mr_program_desc desc; /* as the caller gave it */
    mr_tensor *tensors;
    mr_program *inside;
    int32_t n_tensors;
    mr_buffer **panels; /* [n_tensors]: of matrices whose source was kept, else NULL */
};

typedef struct mark {
    mr_fence fence; /* 0: none */
    int64_t ns;
} mark;

typedef struct pinned_range {
    const uint8_t *host; /* NULL: none */
    size_t bytes;
} pinned_range;

typedef struct test_device {
    mr_backend base;
    test_device_options options;
    mr_backend *cpu; /* used by the device's thread, and by the host while the thread waits */
    mr_queue *queue;
    mr_thread *thread;
    device_buffer *buffers[MAX_BUFFERS];
    pinned_range pinned[MAX_PINNED];
    int n_programs;
    uint64_t n_delays;
    mr_fence issued;
    int32_t n_calls;           /* into the queue, since the last reset */
    int32_t n_all_calls;       /* of all kinds */
    mr_mutex memory_lock;      /* guards buffers and the protection of their pages */
    mr_mutex lock;             /* guards the fields below */
    mr_cond reached;           /* done or n_held changed */
    int32_t n_held;            /* waits of the host until calls begin */
    mr_fence done, broken_at;  /* broken_at 0: the device works */
    mark marks[MR_KEPT_MARKS]; /* the last ones that were reached */
    int n_marks;
    test_device_stats stats; /* this and timeline: used by the calling thread only */
    test_timeline timeline;
} test_device;

/* Starts and ends the device's thread. end accepts a device whose start has failed. */
mr_status test_device_queue_start(test_device *d, mr_err *err);
void test_device_queue_end(test_device *d);
/* Counts a call of this kind. An error: the call fails. */
mr_status test_device_count(test_device *d, test_device_call kind, mr_err *err);
/* Queues the call. Copies in the memory of the host are done when it returns, because the host reads there. */
mr_status test_device_give(test_device *d, call *c, mr_fence *out, mr_err *err);
/* Waits in real time. */
mr_status test_device_wait_until(test_device *d, mr_fence fence, int64_t deadline_ns, mr_err *err);
const char *test_device_name(const test_device *d);

/* Ops of the backend. */
mr_status test_device_wait(mr_backend *base, mr_fence fence, int64_t deadline_ns, mr_err *err);
mr_status test_device_mark(mr_backend *base, mr_fence *out, mr_err *err);
mr_status test_device_fence_ns(mr_backend *base, mr_fence fence, int64_t *out_ns, mr_err *err);

#endif
