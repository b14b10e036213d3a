/* coordinator/lobby/roll_call.h - who is there before there is a plan: takes the hello of every rank, checks that they
 * can work together, and tells each to take part or to end (the other side is worker/lobby/lobby.h).
 * Owns:    its links, of epoch 0. Borrows: the channel.
 * Threads: bound to the coordinator thread.
 * Errors:  name the rank and its host. MR_E_TIMEOUT: somebody has not said hello. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_LOBBY_ROLL_CALL_H
#define MR_COORDINATOR_LOBBY_ROLL_CALL_H

#include <stdbool.h>

#include "proto/channel.h"

/* A rank, as it describes itself. */
typedef struct mr_rank_info {
    bool here; /* it has said hello */
    char version[32], host[64], isa[16];
    char model_path[256]; /* the end of its first 511 bytes */
    char problem[256];    /* why it cannot take part */
    mr_status status;     /* likewise; MR_OK: it can */
    uint32_t numerics;
    int32_t cores, threads;
    uint64_t self_test, memory_bytes, memory_group;
    uint64_t file_bytes, header_bytes, file_digest; /* file_bytes 0: it has no such file */
} mr_rank_info;

typedef struct mr_roll_call mr_roll_call;

/* Opens the lobby of endpoints 0 .. n_ranks - 1. */
MR_MUST_USE mr_status mr_roll_call_create(mr_channel *ch, int32_t n_ranks, mr_roll_call **out, mr_err *err);
void mr_roll_call_destroy(mr_roll_call *r);

/* Waits until all have said hello, until deadline_ns at most. missing, if not NULL, is called ten times a second with
 * the ranks that are awaited, as "rank 2 on node7, rank 3 on node8", and returns false to give up: MR_E_CANCELLED. */
MR_MUST_USE mr_status mr_roll_call_wait(mr_roll_call *r, int64_t deadline_ns,
                                        bool (*missing)(void *ctx, const char *ranks), void *ctx, mr_err *err);
const mr_rank_info *mr_roll_call_info(const mr_roll_call *r, int32_t rank);
/* The ranks run the same program, compute the same bits, and have the same model file or none. */
MR_MUST_USE mr_status mr_roll_call_check(const mr_roll_call *r, mr_err *err);

/* Tells ranks without the model file who has it, and those that they may be asked for it; *out_n: how many have none.
 * Before start. */
MR_MUST_USE mr_status mr_roll_call_share_file(mr_roll_call *r, int32_t *out_n, mr_err *err);

/* How far the clock of a rank is ahead of this one, to half of the fastest way there and back. */
MR_MUST_USE mr_status mr_roll_call_compare_clocks(mr_roll_call *r, int32_t rank, int64_t *out_offset_ns, mr_err *err);
/* Tells a rank to take part in an epoch. */
MR_MUST_USE mr_status mr_roll_call_start(mr_roll_call *r, int32_t rank, uint32_t epoch, mr_err *err);
/* Tells all ranks to end, and waits until they have heard it, until deadline_ns at most. abandon: a rank is lost, the
 * others shall not wait for anybody. Once. */
void mr_roll_call_dismiss(mr_roll_call *r, bool abandon, int64_t deadline_ns);

#endif
