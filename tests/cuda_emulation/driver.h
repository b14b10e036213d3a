/* tests/cuda_emulation/driver.h - a table of the driver's functions that runs kernels on emulator.h, for tests without
 * a GPU and for the program millrace_emulated.
 * Time. Each stream has a thread, which carries out copies, launches and graphs later and in order, after a delay that
 * a seed draws. The nodes of a graph run in an order that a seed draws and that keeps only to their dependencies.
 * Memory. Device memory is memory of the host at the same address, with protected pages around it. It is itself
 * protected while no stream of its device works, so a host that touches it ends the process. New memory holds rubbish.
 * mem_free waits for nothing. A copy up reads pinned memory when its turn comes, other memory at once. The destination
 * of a copy down holds rubbish until its turn comes; where it is not pinned, the call waits.
 * Checks. A call with a wrong argument, a handle that is not alive, or no current context of the object is refused with
 * the driver's error, and counted in n_refused. Queued work that uses freed memory, and a module that is unloaded while
 * its kernels are queued, end the process.
 * Stricter than the driver: there is no default stream, calls about a stream or an event need its context, and host
 * memory has an address on the device only where MAPPED says so. Functions for errors are not counted and never fail.
 * Owns:    what its functions create, until emulated_driver_reset.
 * Threads: the table is thread-safe, as the driver. The functions below: while no call of the table is under way. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_DRIVER_H
#define MR_TESTS_CUDA_EMULATION_DRIVER_H

#include <stdbool.h>

#include "backends/cuda/cuda_driver.h"

enum { EMULATED_MAX_DEVICES = 8 };

typedef struct emulated_options {
    bool no_device;
    int32_t n_devices;    /* 0: 1 */
    const char *name;     /* of each device; NULL: "emulated GPU" */
    size_t memory_bytes;  /* of each device; 0: 2 GiB */
    int32_t version;      /* of the driver; 0: 12040 */
    int32_t capability;   /* 10 * major + minor; 0: 90 */
    int32_t n_processors; /* 0: 4 */
    int32_t shared_bytes; /* most of a block, by func_set_attribute; 0: 227 KiB */
    bool open_memory;     /* device memory is never protected, as if a library reached it from the host */
    int32_t max_delay_us; /* before and after each piece of queued work */
    uint64_t seed;        /* of delays, and of the order of a graph's nodes */
    const char *fail;     /* a member of cuda_driver: fail_at counts calls of this function; NULL: of all functions */
    int32_t fail_at;      /* the call with this number fails; 0: none. Those that destroy or wait do so all the same */
    cuda_result result;   /* of this call; 0: CUDA_UNKNOWN. CUDA_LAUNCH_FAILED and its like break the context */
    int32_t break_at;     /* the copy, launch or graph of this number breaks its context in its turn; 0: none */
} emulated_options;

/* Since emulated_driver_reset. */
typedef struct emulated_counts {
    int32_t n_calls;
    const char *failed;  /* the function that fail_at hit; NULL: none */
    int32_t n_refused;   /* calls with wrong arguments */
    const char *refused; /* the function that refused last */
    int32_t n_launches;  /* of kernels outside of graphs */
    int32_t n_graph_launches;
    int32_t n_nodes; /* of launched graphs */
    int32_t n_copies_up, n_copies_down, n_copies_inside;
    size_t up_bytes, down_bytes;
    int32_t n_not_pinned;          /* copies whose memory on the host is not pinned */
    int32_t n_waits;               /* stream_synchronize, event_synchronize, copies down to memory that is not pinned */
    int32_t n_polls;               /* queries of an event that was not ready */
    int32_t n_allocations;         /* of device memory */
    size_t live_bytes, most_bytes; /* of device memory, of all devices */
    int32_t n_live;                /* objects that the caller still has to destroy, of every kind */
    int32_t n_live_memory, n_live_host_memory, n_live_registered, n_live_contexts, n_live_streams, n_live_events,
        n_live_modules, n_live_graphs, n_live_execs;
} emulated_counts;

/* The table. Its first use without emulated_driver_reset takes the options from the environment variable EMULATED_CUDA:
 * words with the names of emulated_options, as "n_devices=2 memory_bytes=1e9 fail=mem_alloc fail_at=3 no_device". */
const cuda_driver *emulated_driver(void);
/* As a new process: destroys what is left, waits for queued work, sets the counts to 0 and the options. NULL: those of
 * the environment. Names are borrowed. */
void emulated_driver_reset(const emulated_options *options);
emulated_counts emulated_driver_counts(void);
/* Queues a call of another library that uses this memory of the device. fn runs in the stream's turn, on its thread.
 * False: the driver refuses, as it would refuse a launch. The context is the thread's current one. */
bool emulated_driver_enqueue(cuda_stream stream, const void *memory, size_t bytes, void (*fn)(void *ctx), void *ctx);
/* Names of the table's members in their order, and NULL behind them, for sweeps. */
extern const char *const emulated_driver_functions[];

#endif
