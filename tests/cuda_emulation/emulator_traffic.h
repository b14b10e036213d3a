/* tests/cuda_emulation/emulator_traffic.h - what the reads of a warp cost a GPU's memory. The reads of its lanes in one
 * line since the warp last met are taken together, the first with the first, the second with the second and so on: each
 * such group is one instruction.
 * Threads: as emulator_launch. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_EMULATOR_TRAFFIC_H
#define MR_TESTS_CUDA_EMULATION_EMULATOR_TRAFFIC_H

#include "tests/cuda_emulation/emulator.h"

enum traffic_memory { TRAFFIC_DEVICE, TRAFFIC_SHARED };

/* A thread of the block reads bytes (at most 16, and aligned to their number) at an address. */
void traffic_add(uint32_t thread, traffic_memory memory, const void *at, size_t bytes, int line);
/* Counts the reads of the warp since the last call. */
void traffic_count(uint32_t warp, emulator_counts *counts);

#endif
