/* tests/support/test_device.h - a backend that behaves like an awkward device and computes with its own CPU backend.
 * The host cannot touch the device's memory: buffers have no address, and their pages are protected except while the
 * device's thread works. Calls go into an ordered queue and begin after a delay. A fence is reached after a further
 * delay; until then, the destination of a get holds rubbish. The test chooses the ops that the device runs, the size of
 * its memory, what calls cost, and the call that fails. Costs are times in which the device's thread sleeps; on a
 * simulated clock nobody sleeps, and only the clock moves.
 * Owns:    one thread, one CPU backend, the pages of its buffers.
 * Threads: as backends/backend.h says; test_device_stats may be read by the thread that may make calls.
 * Errors:  MR_E_NO_MEMORY: more than memory_bytes. MR_E_DEVICE: after n_good calls. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_TEST_DEVICE_H
#define MR_TESTS_SUPPORT_TEST_DEVICE_H

#include "backends/backend.h"
#include "tests/support/test_clock.h"

#define TEST_DEVICE_ALL_OPS ((1u << MR_OP_COUNT) - 1)

typedef struct test_device_costs {
    int64_t call_ns; /* of each set, get, weight_load and submit */
    double byte_ns;  /* of each byte of a set, get and weight_load */
    int64_t node_ns; /* of each node of a program */
    int64_t row_ns;  /* of each row of a node; a node of MR_ROWS_FIXED has none */
    /* The cost of a run of a program, instead of node_ns and row_ns; or NULL. */
    int64_t (*program_ns)(void *ctx, const mr_program_desc *program, const mr_run *run);
    void *ctx;
} test_device_costs;

/* The calls that fail where options.fail_at says so. */
typedef enum test_device_call {
    TEST_DEVICE_BUFFER_CREATE,
    TEST_DEVICE_PROGRAM_CREATE,
    TEST_DEVICE_WEIGHT_LOAD,
    TEST_DEVICE_SET,
    TEST_DEVICE_GET,
    TEST_DEVICE_SUBMIT,
    TEST_DEVICE_MARK,
    TEST_DEVICE_WAIT,
    TEST_DEVICE_CALLS,
} test_device_call;

typedef struct test_device_options {
    const char *name;      /* in errors; NULL: "test device" */
    uint32_t ops;          /* bit op set: the device runs the op */
    int32_t min_rows;      /* nodes whose maximum of rows is lower do not run here */
    size_t memory_bytes;   /* limit of all buffers; 0: no limit */
    bool host_addressable; /* like BLAS: buffers are memory of the host, weight matrices are not */
    bool keeps_source;     /* host_addressable only: matrices are read from the mapped file */
    uint64_t seed;         /* of the delays */
    int32_t max_delay_us;  /* before and after each call; 0: none */
    int32_t n_good;        /* calls into the queue before one breaks the device; 0: no limit */
    /* The call of this number, counted from 1 over all kinds, returns an error; 0: none. The device has no memory for
     * that buffer or program, or else is broken from then on. */
    int32_t fail_at;
    bool is_inexact; /* describe says that the device is not exact */
    test_device_costs costs;
    test_clock *clock; /* NULL: real time */
} test_device_options;

typedef struct test_device_stats {
    int n_sets, n_gets, n_submits, n_loads, n_marks;
    int n_waits;                 /* with a deadline in the future, for a fence that was not reached */
    int n_polls;                 /* with a deadline in the past, for a fence that was not reached */
    size_t set_bytes, get_bytes; /* copied by sets and gets */
    int n_not_pinned;            /* sets and gets whose memory on the host is not pinned */
    size_t live_bytes;           /* of buffers */
    test_device_call failed;     /* what fail_at hit; TEST_DEVICE_CALLS: nothing yet */
    int most_waiting;            /* highest number of calls in the queue */
    /* On a simulated clock: sums of the works and of the times between two works, and the number of these times. */
    int64_t busy_ns, idle_ns;
    int32_t n_gaps;
} test_device_stats;

MR_MUST_USE mr_status test_device_create(const test_device_options *options, mr_backend **out, mr_err *err);
test_device_stats test_device_get_stats(mr_backend *device);
const char *test_device_call_name(test_device_call kind);
/* Counts calls from now on; the device breaks after n_good calls (0: never). */
void test_device_reset(mr_backend *device, int32_t n_good);
/* From now on no call begins until n_waits waits of the host have timed out, or the host waits without a deadline. */
void test_device_hold(mr_backend *device, int32_t n_waits);

#endif
