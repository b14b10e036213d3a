/* proto/limits.h - upper limits of every number in a message from a peer. Checked on both sides (invariant I3). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LIMITS_H
#define MR_PROTO_LIMITS_H

#include <stdint.h>

enum {
    MR_MAX_STAGES = 1024,
    MR_MAX_LAYERS = 1 << 16,
    MR_MAX_EXPERTS = 4096,         /* of a layer */
    MR_MAX_RENEW_ROWS = 1000000,   /* between two looks for experts to exchange */
    MR_MAX_HELD_EXPERTS = 1 << 15, /* numbers of experts in a plan */
    MR_MAX_PARTITIONS = 1 << 14,   /* of the neurons of one feed-forward part */
    MR_MAX_SEQUENCES = 4096,       /* sequence slots, over all micro-batches */
    MR_MAX_STEP_ROWS = 4096,       /* rows of one micro-batch */
    MR_ROW_CLASSES = 13,           /* classes of steps by their rows: up to 1, 2, 4 ... 4096 */
    /* Steps in flight; and steps in flight between two neighbours, each with a buffer for the activations of a step. */
    MR_MAX_RING_SLOTS = 2 * MR_MAX_STAGES + 4,
    MR_MAX_HOP_SLOTS = 256,
    MR_MAX_CONTEXT = 1 << 20, /* tokens of one sequence */
    MR_MAX_KV_BLOCKS = 1 << 26,
    MR_WIRE_BLOCK_TOKENS = 16,      /* token positions of one KV block */
    MR_MAX_CONTROL_BYTES = 4 << 20, /* one control message, packed */
    MR_MAX_TOKENS_BYTES = 1 << 20,  /* MR_MAX_STEP_ROWS tokens with log-probabilities; see mr_tokens_message_bytes */
    MR_MAX_TOP_LOGPROBS = 20,       /* for one position */
    /* For one sequence. MR_MAX_BAD_WORDS counts the numbers in the list, lengths included. */
    MR_MAX_LOGIT_BIASES = 4096,
    MR_MAX_DRY_BREAKERS = 16384,
    MR_MAX_LATE_IDS = 1024,
    MR_MAX_BAD_WORDS = 4096,
    MR_MAX_GRAMMAR_BYTES = 1 << 19, /* one grammar, packed */
    MR_MAX_REPORT_BYTES = 64 << 10,
    MR_MAX_USED = 1 << 22,             /* experts or neurons of one layer */
    MR_USE_COUNTS_AT_ONCE = 4096,      /* in one report */
    MR_MAX_SYNTHETIC_MS = 60000,       /* fixed time of a step; time of each row */
    MR_MAX_SYNTHETIC_STEP_MS = 600000, /* time of a step with all its rows */
    MR_MAX_LOGITS_BYTES = 8 << 20,     /* one logits message; the rows of a step are split over several messages */
    MR_MAX_ERROR_TEXT = 512,           /* bytes of an error text, with its terminating zero */
    MR_MAX_HELLO_BYTES = 48 << 10,
    MR_MAX_DIGEST_PARTS = 192,
    MR_MAX_LOBBY_BYTES = 64 << 10,    /* a control message of epoch 0 */
    MR_MAX_GIVEN_KV_BYTES = 31 << 10, /* GiveKv.blocks: 4 million tokens */
    MR_LOGITS_BYTES_WANTED = 1 << 20,
    /* Model files go from rank to rank in blocks. Each block is named by its SHA-256. The last block may be shorter. */
    MR_FILE_BLOCK_BYTES = 1 << 20,
    MR_MAX_FILE_BLOCKS = 1 << 24,
    MR_MAX_FILE_PARTS = 512,
    MR_MAX_PART_SOURCES = 4, /* ranks that one rank asks for one part */
    MR_FILE_HASH_BYTES = 32,
    MR_MAX_FILE_HASHES = 256, /* hashes in one answer */
    MR_MAX_FILE_REQUEST_BYTES = 64,
    MR_FILE_REQUEST_SLOTS = 16, /* open requests of one rank to another rank */
    MR_FILE_ANSWER_SLOTS = 4,
    /* Slots of the links. Links of activations and tokens have the plan's ring slots. */
    MR_CONTROL_SLOTS = 32,
    MR_REPORT_SLOTS = 8,
    MR_LOGITS_SLOTS = 2,
    MR_LOBBY_SLOTS = 2,
    MR_LINK_SETUP_SLOTS = 2,
    MR_MAX_LINK_SETUP_BYTES = 1024,
};

/* The largest packed size of the tokens of a step: some 50 bytes for each token, and 8 bytes for each
 * log-probability. */
enum { MR_TOKENS_BYTES = 64, MR_TOKEN_BYTES = 56 + 8 * MR_MAX_TOP_LOGPROBS };
_Static_assert(MR_TOKENS_BYTES + MR_MAX_STEP_ROWS * MR_TOKEN_BYTES <= MR_MAX_TOKENS_BYTES,
               "the tokens of a step may not fit their message");
/* Rows that a stage counts: MR_MAX_USED times as many do not overflow. */
#define MR_MAX_COUNTED_ROWS (UINT64_C(1) << 40)
#define MR_MAX_EXPERT_USES (UINT64_C(1) << 53) /* of a stage, and experts exchanged */
_Static_assert(64 + MR_USE_COUNTS_AT_ONCE * 6 <= MR_MAX_REPORT_BYTES, "use counts may not fit their report");
static inline uint32_t mr_tokens_message_bytes(uint32_t max_rows) {
    return MR_TOKENS_BYTES + max_rows * MR_TOKEN_BYTES;
}

/* How many rows of n_columns float32 go into one logits message: as many as fit MR_LOGITS_BYTES_WANTED, at least
 * one. */
static inline uint32_t mr_logits_message_rows(uint32_t n_columns) {
    uint32_t rows = n_columns ? MR_LOGITS_BYTES_WANTED / 4 / n_columns : 0;
    return rows ? rows : 1;
}

/* The largest logits message in bytes, with rows of n_vocab logits or hidden rows of n_embd float32. */
static inline uint64_t mr_logits_message_bytes(uint32_t n_vocab, uint32_t n_embd) {
    uint64_t logits = (uint64_t)mr_logits_message_rows(n_vocab) * n_vocab * 4;
    uint64_t hidden = (uint64_t)mr_logits_message_rows(n_embd) * n_embd * 4;
    return logits > hidden ? logits : hidden;
}

#endif
