/* worker/stage/sequences.h - what a stage knows of the sequence slots: which sequence is in a slot, its KV blocks,
 * its last sampled id. All of this can be rebuilt from the coordinator's journal (invariant I2).
 * Owns:    tables sized at create; on the tail also a sampler and a grammar state for each open slot.
 * Threads: bound to the step thread.
 * Errors:  MR_E_PROTOCOL: a message names a slot, generation or block that contradicts earlier messages. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_SEQUENCES_H
#define MR_WORKER_STAGE_SEQUENCES_H

#include <stdbool.h>

#include "engine/base/status.h"
#include "engine/sample/sampler.h"
#include "proto/messages.h"
#include "proto/prefix_sums.h"
#include "worker/stage/grammars.h"

typedef struct mr_sequence {
    bool is_open;
    uint32_t generation;
    int32_t n_blocks; /* entries of blocks in use */
    int32_t *blocks;  /* [max blocks of a sequence] KV block ids in position order */
    int32_t last_id;
    int64_t last_position; /* position of last_id; -1: no id has come since the slot was opened */
    mr_prefix_sums sums;   /* of the ids and the blocks that this stage was told of */
    bool knows_ids;        /* false: a sampled id went by that this stage does not get, so sums.ids lacks it */
    /* On the tail only. */
    mr_sampler *sampler;      /* NULL: nothing is sampled */
    bool logprobs;            /* as in OpenSequence */
    int32_t n_top_logprobs;   /* as in OpenSequence */
    mr_grammar_use *grammar;  /* NULL: no grammar */
    mr_status grammar_status; /* an error of the grammar; goes into the next token of the sequence */
} mr_sequence;

typedef struct mr_sequences mr_sequences;

MR_MUST_USE mr_status mr_sequences_create(const mr_msg_limits *limits, bool is_tail, mr_sequences **out, mr_err *err);
void mr_sequences_destroy(mr_sequences *all);

/* Tail only. grammars is borrowed. Without this call a sequence with a grammar fails with MR_E_UNSUPPORTED. */
void mr_sequences_set_grammars(mr_sequences *all, mr_grammars *grammars);

/* A grammar that is malformed, or that does not allow the generated ids, fails the sequence, not the stage: the error
 * goes into grammar_status. */
MR_MUST_USE mr_status mr_sequences_open(mr_sequences *all, const Millrace__OpenSequence *open, mr_err *err);
MR_MUST_USE mr_status mr_sequences_close(mr_sequences *all, const Millrace__CloseSequence *close, mr_err *err);
/* The sequence in a slot. MR_E_PROTOCOL: the slot is not open in this generation. */
MR_MUST_USE mr_status mr_sequences_find(mr_sequences *all, uint32_t slot, uint32_t generation, mr_sequence **out,
                                        mr_err *err);
/* Compares the sums of the run with those of this stage, appends the run's new block table entries, and checks that the
 * positions of the run lie inside the table. MR_E_PROTOCOL also if this stage has other ids, or another block table,
 * than the coordinator. */
MR_MUST_USE mr_status mr_sequence_take_run(mr_sequence *s, const Millrace__Run *run, mr_err *err);
/* Notes a sampled id. Ignored if the slot is closed or has another generation by now. */
void mr_sequences_note_token(mr_sequences *all, const Millrace__Token *token);

#endif
