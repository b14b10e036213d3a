/* tests/cuda_emulation/emulator.h - runs kernels of backends/cuda/kernels on the CPU, for tests and for the emulated
 * driver.
 *
 *     const emulator_kernel *k = emulator_find("cuda_scale");
 *     emulator_launch(k, (emulator_grid){4, 1, 1}, 256, &args);
 *
 * The threads of a block run one after the other, each until it has to wait for others. emulator_set_order says in
 * which order, so that a missing barrier shows. A kernel whose threads wait at different barriers, or for ever, ends
 * the process with the line.
 * Threads: one kernel runs at a time; emulator_launch takes a lock. The denormal mode is set for the kernel's time. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_EMULATOR_H
#define MR_TESTS_CUDA_EMULATION_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulator_kernel emulator_kernel;
typedef struct emulator_grid {
    uint32_t x, y;         /* blocks */
    uint32_t shared_bytes; /* dynamic shared memory of a block, which holds rubbish when the block begins */
} emulator_grid;

typedef enum emulator_order { EMULATOR_FORWARD, EMULATOR_REVERSED, EMULATOR_DRAWN } emulator_order;

/* Counts of all kernels since emulator_reset_counts. The last three are counted while emulator_count_traffic is on, for
 * instructions of warps (emulator_traffic.h). A read of the device's memory takes a sector for each piece of 32 bytes
 * that its lanes touch. A read of shared memory takes turns: in a turn, each of 32 banks gives a word of 4 bytes to any
 * lanes; lanes that read 8 or 16 bytes come 16 or 8 in a turn. Bank conflicts are turns beyond these. */
typedef struct emulator_counts {
    uint64_t n_launches, n_blocks, n_switches;
    uint64_t read_bytes;                       /* of gpu_read and gpu_copy16 */
    uint64_t n_sectors;                        /* of these */
    uint64_t n_shared_turns, n_bank_conflicts; /* of gpu_read_shared */
} emulator_counts;

/* NULL: there is no kernel of this name. */
const emulator_kernel *emulator_find(const char *name);
/* Largest number of threads of a block, and size of the argument. */
uint32_t emulator_max_threads(const emulator_kernel *k);
size_t emulator_args_bytes(const emulator_kernel *k);
/* Runs all blocks. args: emulator_args_bytes of the kernel. n_threads: a multiple of 32, at most
 * emulator_max_threads. */
void emulator_launch(const emulator_kernel *k, emulator_grid grid, uint32_t n_threads, const void *args);
/* The order of threads and warps of later launches, and of blocks if it is REVERSED. seed: of DRAWN. The environment
 * variable EMULATOR_ORDER (forward, reversed, or a number as seed) sets the order of a process. */
void emulator_set_order(emulator_order order, uint64_t seed);
/* Slows kernels down. Off at first. */
void emulator_count_traffic(bool on);
emulator_counts emulator_get_counts(void);
void emulator_reset_counts(void);

#ifdef __cplusplus
}
#endif

#endif
