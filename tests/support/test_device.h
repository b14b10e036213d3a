/* tests/support/test_device.h - a backend that is as awkward as a device may be, and computes with a CPU backend of its
 * own. Its memory cannot be touched by the host: buffers have no address, and their pages are closed but while its own
 * thread works. Calls go into an ordered queue; they begin late, and their fences are reached later still. The
 * destination of a get holds rubbish until then. It runs only the ops that it is told to, has as much memory as it is
 * told, and may break.
 * Owns:    one thread, one CPU backend, its buffers' pages.
 * Threads: as backends/backend.h says; test_device_stats may be read where calls may be made.
 * Errors:  MR_E_NO_MEMORY: more than memory_bytes. MR_E_DEVICE: from call fail_at on. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_TEST_DEVICE_H
#define MR_TESTS_SUPPORT_TEST_DEVICE_H

#include "backends/backend.h"

#define TEST_DEVICE_ALL_OPS ((1u << MR_OP_COUNT) - 1)

typedef struct test_device_options {
    uint32_t ops;          /* bit op: it runs here */
    int32_t min_rows;      /* nodes with fewer rows at most do not */
    size_t memory_bytes;   /* of buffers; 0: no limit */
    bool host_addressable; /* like BLAS: its buffers are the host's, only its matrices are its own */
    bool keeps_source;     /* host_addressable only: matrices are read where the file lies */
    uint64_t seed;         /* of the delays */
    int32_t max_delay_us;  /* before and after each call; 0: none */
    int32_t n_good;        /* so many calls of set, get, weight_load and submit work, the next breaks it; 0: all work */
} test_device_options;

typedef struct test_device_stats {
    int n_sets, n_gets, n_submits, n_loads;
    size_t set_bytes, get_bytes; /* of sets and gets */
    size_t live_bytes;           /* of buffers */
    int most_waiting;            /* calls in the queue at once */
} test_device_stats;

MR_MUST_USE mr_status test_device_create(const test_device_options *options, mr_backend **out, mr_err *err);
test_device_stats test_device_get_stats(mr_backend *device);
/* Counts calls from now on; after n_good of them the device breaks (0: never). */
void test_device_reset(mr_backend *device, int32_t n_good);
/* From now on no call begins until the host has come to a deadline of wait so often, or waits without one. */
void test_device_hold(mr_backend *device, int32_t n_waits);

#endif
