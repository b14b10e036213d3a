/* tests/cuda_emulation/fake_nccl.h - a table of NCCL's functions between emulated GPUs, for tests without a GPU and for
 * millrace_emulated. The two ends of a communicator meet at a Unix socket, whether they are threads or processes.
 * As NCCL: calls of a non-blocking communicator go on after they have returned. A transfer is work of the stream that
 * waits for the other end, without an end, until the communicator is aborted. The first transfer of a communicator is
 * launched only when both ends have called. An end that is lost is not noticed.
 * Stricter than NCCL: a call while the one before goes on, one device at both ends, a communicator that is used after
 * its abort, and work that outlives its communicator are refused, or end the process.
 * Owns:    communicators, until fake_nccl_reset.
 * Threads: the table is thread-safe; the functions below: while no call of the table is under way. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_FAKE_NCCL_H
#define MR_TESTS_CUDA_EMULATION_FAKE_NCCL_H

#include <stdbool.h>

#include "proto/nccl/nccl_library.h"

typedef struct fake_nccl_options {
    bool missing;         /* there is no library */
    int32_t version;      /* 0: 22809 */
    int32_t delay_us;     /* before each step of a connection, and at each end of a transfer */
    int32_t max_delay_us; /* drawn, of at most this, in addition */
    /* Lets a delay pass in place of a sleep, on any thread. */
    void (*pass)(int64_t ns);
    int32_t n_asks;   /* so often the state of a later transfer's call is that it goes on */
    const char *fail; /* a member of nccl_library: fail_at counts its calls; "connect", "transfer": what goes on */
    int32_t fail_at;  /* the call with this number fails; 0: none */
    const char *die;  /* the process ends, as by SIGKILL, at the call die_at of this member, or in the middle of
                       * "connect" or "transfer" */
    int32_t die_at;
    int32_t halt_at;  /* the transfer with this number halts after half of its bytes, until the abort; 0: none */
    bool abort_hangs; /* comm_abort never returns */
} fake_nccl_options;

typedef struct fake_nccl_counts {
    int32_t n_live; /* communicators without an abort */
    int32_t n_aborted, n_transfers;
    int32_t n_cut; /* transfers that an abort has ended */
} fake_nccl_counts;

/* As nccl_library_load. Unless fake_nccl_reset has set the options, they come from the environment: words with their
 * names, as "fail=send fail_at=3 abort_hangs", in the variable FAKE_NCCL_2 on rank 2, or else in FAKE_NCCL. */
mr_status fake_nccl_load(const nccl_library **out, mr_err *err);
/* As a new process. Every communicator must be aborted. NULL: the options of the environment. */
void fake_nccl_reset(const fake_nccl_options *options);
fake_nccl_counts fake_nccl_get_counts(void);

#endif
