/* coordinator/lobby/roll_call.h - the coordinator's side of the lobby, before there is a plan: takes the hello of every
 * rank, checks that the ranks fit together, and tells each rank to take part or to end. worker/lobby/lobby.h is
 * the other side.
 * Owns:    its links, of epoch 0. Borrows: the channel.
 * Threads: bound to the coordinator thread.
 * Errors:  texts name the rank and its host. MR_E_TIMEOUT: the hello of a rank is missing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_LOBBY_ROLL_CALL_H
#define MR_COORDINATOR_LOBBY_ROLL_CALL_H

#include <stdbool.h>

#include "backends/digest/digest.h"
#include "coordinator/planning/hop_ways.h"
#include "coordinator/planning/plan.h"
#include "proto/channel.h"
#include "proto/limits.h"
#include "proto/measured.h"
#include "proto/weights_root.h"

/* A part of the model file. A whole file is one part. */
typedef struct mr_rank_part {
    uint64_t bytes; /* 0: the rank does not have it */
    uint64_t header_bytes, digest;
    uint32_t n_tensors; /* of all parts, as this part says; 0: it does not say */
    bool has_root;      /* the rank has hashed all bytes of the part */
    uint8_t root[MR_FILE_HASH_BYTES];
} mr_rank_part;

/* What a rank without a stage holds of the weights. */
typedef struct mr_rank_held {
    uint32_t number;  /* of the last mr_roll_call_prepare */
    bool is_due;      /* the rank loads: it has not answered, and was told nothing else since */
    bool is_new;      /* the rank has answered it, and nobody has taken the answer */
    mr_status status; /* MR_OK: it holds all that was asked for */
    uint64_t bytes, loaded_bytes;
} mr_rank_held;

/* What a rank without a stage has measured while other ranks ran. */
typedef struct mr_rank_again {
    uint32_t number; /* of the last mr_roll_call_measure_again */
    bool is_due;     /* the rank measures: it has not answered, and was told nothing else since */
    bool is_new;     /* the rank has answered it, and nobody has taken the answer */
    mr_status status;
    mr_step_times layer; /* with MR_OK: as MeasuredAgain of millrace.proto */
} mr_rank_again;

/* A rank, as its hello describes it. */
typedef struct mr_rank_info {
    bool here; /* the hello has come */
    char version[32], host[64], isa[16];
    char model_path[256]; /* the end of the path, of which a hello has the first 511 bytes */
    char problem[256];    /* the reason why the rank cannot take part */
    mr_status status;     /* the status of that reason; MR_OK: the rank can take part */
    uint32_t numerics;
    int32_t cores, threads;
    uint64_t memory_bytes, memory_group;
    uint32_t answered;   /* the latest question of mr_roll_call_ask that it has answered; memory_bytes is of then */
    uint32_t n_signals;  /* SIGUSR1 that the rank has got, as far as it has said so */
    mr_rank_links links; /* of its device */
    mr_digest digest;    /* of what its CPU computes */
    int32_t n_parts;     /* of the model file; 0: the rank has none of them */
    mr_rank_part *parts; /* [n_parts] */
    mr_rank_held held;
    mr_rank_again again;
    uint32_t took_epoch; /* of the latest mr_roll_call_take_kv that it has answered */
    bool took_all;       /* and whether it has all blocks */
} mr_rank_info;

/* Which layers a rank is to hold, as stages of a plan. */
typedef struct mr_prepare_order {
    int32_t n_stages; /* 0: none */
    const mr_plan_stage *stages;
    bool map_weights, fast_numerics;
} mr_prepare_order;

typedef struct mr_roll_call mr_roll_call;

/* Opens the links to endpoints 0 .. n_ranks - 1. */
MR_MUST_USE mr_status mr_roll_call_create(mr_channel *ch, int32_t n_ranks, mr_roll_call **out, mr_err *err);
void mr_roll_call_destroy(mr_roll_call *r);

/* Waits until the hello of every rank has come, until deadline_ns at most. missing, if not NULL, is called ten times a
 * second with the names of the missing ranks: "rank 2 on node7, rank 3 on node8". If it returns false, the wait ends
 * with MR_E_CANCELLED. */
MR_MUST_USE mr_status mr_roll_call_wait(mr_roll_call *r, int64_t deadline_ns,
                                        bool (*missing)(void *ctx, const char *ranks), void *ctx, mr_err *err);
/* A rank by its hello; before the hello has come, `here` is false. Valid while the roll call lives. */
const mr_rank_info *mr_roll_call_info(const mr_roll_call *r, int32_t rank);
/* Checks that the ranks run the same program, compute the same bits, and have the same model file, or the same parts of
 * it, or none; that rank 0 has the first part; and that some rank has each part. */
MR_MUST_USE mr_status mr_roll_call_check(mr_roll_call *r, mr_err *err);

/* The rank is lost: it has no parts of the file any more, and is told nothing. */
void mr_roll_call_lose(mr_roll_call *r, int32_t rank);
/* Tells the ranks that lack parts of the model file which ranks have them, and those which ranks may ask for them.
 * *out_n: how many ranks lack parts. Call before mr_roll_call_start. */
MR_MUST_USE mr_status mr_roll_call_share_file(mr_roll_call *r, int32_t *out_n, mr_err *err);
/* After mr_roll_call_check: the parts of the model file and their digest. */
int32_t mr_roll_call_file(const mr_roll_call *r, const mr_rank_part **out_parts, uint64_t *out_digest);
/* After mr_roll_call_check. false: the ranks do not verify weights. */
bool mr_roll_call_weights_root(const mr_roll_call *r, mr_weights_root *out);
/* Has rank 0, which lacks parts, fetch what the coordinator reads of them. It gives up when goes_on returns false. */
MR_MUST_USE mr_status mr_roll_call_fetch_headers(mr_roll_call *r, bool (*goes_on)(void), mr_err *err);

/* How far the clock of a rank is ahead of this process's clock. The error is at most half of the fastest round trip. */
MR_MUST_USE mr_status mr_roll_call_compare_clocks(mr_roll_call *r, int32_t rank, int64_t *out_offset_ns, mr_err *err);
/* Tells a rank to take part in an epoch. */
MR_MUST_USE mr_status mr_roll_call_start(mr_roll_call *r, int32_t rank, uint32_t epoch, mr_err *err);
/* A rank is lost. The others are told so by mr_roll_call_abort. */
void mr_roll_call_note_gone(mr_roll_call *r, int32_t rank);
/* Tells a rank to give up its stage, if it has one, and to wait in the lobby. keeps_kv: with the KV blocks of the
 * stage, for the next epoch or for mr_roll_call_give_kv. */
MR_MUST_USE mr_status mr_roll_call_abort(mr_roll_call *r, int32_t rank, bool keeps_kv, mr_err *err);
/* KV blocks for a rank that has the layers of another one now: as GiveKv of millrace.proto. */
typedef struct mr_kv_order {
    uint32_t kv_epoch, epoch;
    int32_t to;
    const uint8_t *blocks;
    size_t n_bytes;
    bool ahead;
} mr_kv_order;
/* Tells a rank that keeps KV blocks to send some of them, and to free all; or, ahead, a rank whose stage runs to send
 * some meanwhile. */
MR_MUST_USE mr_status mr_roll_call_give_kv(mr_roll_call *r, int32_t rank, const mr_kv_order *order, mr_err *err);
/* Tells a rank without a stage to receive KV blocks: as TakeKv of millrace.proto. */
typedef struct mr_kv_demand {
    uint32_t kv_epoch, epoch;
    int32_t from, first, last, n_kv_blocks, kv_type, n_sent_blocks;
} mr_kv_demand;
MR_MUST_USE mr_status mr_roll_call_take_kv(mr_roll_call *r, int32_t rank, const mr_kv_demand *demand, mr_err *err);
/* Tells a rank without a stage to hold these layers, and no others. It loads them while other ranks run. */
MR_MUST_USE mr_status mr_roll_call_prepare(mr_roll_call *r, int32_t rank, const mr_prepare_order *order, mr_err *err);
/* The rank's answer to the latest mr_roll_call_prepare, if mr_roll_call_hear has taken it: true once. */
bool mr_roll_call_take_held(mr_roll_call *r, int32_t rank, mr_rank_held *out);
typedef struct mr_again_wish {
    int32_t kv_type, max_rows; /* as in mr_facts_wish */
    bool fast_numerics;
} mr_again_wish;
/* Tells a rank without a stage, which must not be loading layers, to measure some for a moment while other ranks run.
 * Does not wait: where the link has no room, nothing is asked, and again.is_due of the rank stays false. */
MR_MUST_USE mr_status mr_roll_call_measure_again(mr_roll_call *r, int32_t rank, const mr_again_wish *wish, mr_err *err);
/* The rank's answer to the latest mr_roll_call_measure_again, if mr_roll_call_hear has taken it: true once. */
bool mr_roll_call_take_again(mr_roll_call *r, int32_t rank, mr_rank_again *out);
/* Like mr_roll_call_abort. When its stage has ended, the rank frees the weights that it keeps, and answers with its
 * free memory. question: a number other than 0, greater than those before. */
MR_MUST_USE mr_status mr_roll_call_ask(mr_roll_call *r, int32_t rank, uint32_t question, mr_err *err);
/* Takes what a rank has said of itself without being asked for a report that is due: its info changes. Call while no
 * other function waits for reports of the rank. */
MR_MUST_USE mr_status mr_roll_call_hear(mr_roll_call *r, int32_t rank, mr_err *err);
/* Tells all ranks to end, and waits until the messages are received, until deadline_ns at most. abandon: a rank is
 * lost, so the other ranks must not wait for it. Call once. */
void mr_roll_call_dismiss(mr_roll_call *r, bool abandon, int64_t deadline_ns);

#endif
