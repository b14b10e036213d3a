/* worker/stage/sequences.h - what a stage knows of the sequence slots: who is in them, their KV blocks, the last
 * sampled id. All of it can be rebuilt from the coordinator's journal (invariant I2).
 * Owns:    tables sized at create, and on the tail a sampler, and a grammar's state, for each open slot.
 * Threads: bound to the step thread.
 * Errors:  MR_E_PROTOCOL: the coordinator named a slot, generation or block that does not fit what it said before. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_SEQUENCES_H
#define MR_WORKER_STAGE_SEQUENCES_H

#include <stdbool.h>

#include "engine/base/status.h"
#include "engine/sample/sampler.h"
#include "proto/messages.h"
#include "worker/stage/grammars.h"

typedef struct mr_sequence {
    bool is_open;
    uint32_t generation;
    int32_t n_blocks; /* known entries of blocks */
    int32_t *blocks;  /* [max blocks of a sequence] KV block ids in position order */
    int32_t last_id;
    int64_t last_position; /* of last_id; -1: none since the slot was opened */
    mr_sampler *sampler;   /* tail only */
    bool logprobs;         /* likewise, as OpenSequence says */
    int32_t n_top_logprobs;
    mr_grammar_use *grammar;  /* likewise; NULL: none */
    mr_status grammar_status; /* why it cannot go on by its grammar: told in its next token */
} mr_sequence;

typedef struct mr_sequences mr_sequences;

MR_MUST_USE mr_status mr_sequences_create(const mr_msg_limits *limits, bool is_tail, mr_sequences **out, mr_err *err);
void mr_sequences_destroy(mr_sequences *all);

/* Of a tail that knows grammars, borrowed; without it sequences that have one fail. */
void mr_sequences_set_grammars(mr_sequences *all, mr_grammars *grammars);

/* A grammar that is malformed, or that the ids do not follow, fails the sequence, not the stage. */
MR_MUST_USE mr_status mr_sequences_open(mr_sequences *all, const Millrace__OpenSequence *open, mr_err *err);
MR_MUST_USE mr_status mr_sequences_close(mr_sequences *all, const Millrace__CloseSequence *close, mr_err *err);
/* The slot of a run, if it is open in that generation. */
MR_MUST_USE mr_status mr_sequences_find(mr_sequences *all, uint32_t slot, uint32_t generation, mr_sequence **out,
                                        mr_err *err);
/* Takes the run's new block table entries and checks that its positions lie inside the table. */
MR_MUST_USE mr_status mr_sequence_take_blocks(mr_sequence *s, const Millrace__Run *run, mr_err *err);
/* A sampled id has come back; of a slot that was opened anew since, it is ignored. */
void mr_sequences_note_token(mr_sequences *all, const Millrace__Token *token);

#endif
