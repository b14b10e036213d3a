/* tests/support/test_kinds.h - the list of backends of a program that has, beside those of the product, the backend
 * "test": a test device (tests/support/test_device.h). A program has this list if it links test_kinds.c.
 * The options of a device come from test_kinds_set, or else from the environment variable TEST_DEVICE, in words like
 * "memory_bytes=1000000 node_ns=2000": the names of test_device_options and test_device_costs that are numbers. The
 * word "none": there is no device. The words "wrong=attention": a wrong bit of this op in the comparison with the CPU
 * (tests/support/wrong_bits.h; one device at a time). The word "devices=2": the host has so many, whose names end with
 * their number, and memory_bytes is that of each. Without options, a device runs every op.
 * Threads: test_kinds_set is called before any device is created; devices may be created by any thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_TEST_KINDS_H
#define MR_TESTS_SUPPORT_TEST_KINDS_H

#include "tests/support/test_device.h"

/* The i-th device that is created from now on gets options[i], the later ones the last of them. Borrowed until the next
 * call. n 0: the environment decides. */
void test_kinds_set(const test_device_options *options, int n);
/* Devices that were created since test_kinds_set. */
int test_kinds_n_created(void);

#endif
