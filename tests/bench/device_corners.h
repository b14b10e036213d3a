/* tests/bench/device_corners.h - single operations on awkward numbers: denormals, results around the smallest normal
 * number, NaNs of all kinds, ties of roundings. A device that rounds or flushes in another way than the CPU shows it
 * here, by the name of the operation. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_BENCH_DEVICE_CORNERS_H
#define MR_TESTS_BENCH_DEVICE_CORNERS_H

#include "tests/bench/device_rig.h"

/* Prints a line of JSON for each. Returns how many rows differ. */
int32_t run_corners(rig *device, rig *cpu);

#endif
