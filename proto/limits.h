/* proto/limits.h - what a message from a peer may hold at most. Checked on both sides (invariant I3). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LIMITS_H
#define MR_PROTO_LIMITS_H

#include <stdint.h>

enum {
    MR_MAX_STAGES = 1024,
    MR_MAX_LAYERS = 1 << 16,
    MR_MAX_SEQUENCES = 4096, /* live at once, in all micro-batches */
    MR_MAX_STEP_ROWS = 4096, /* rows of one micro-batch */
    MR_ROW_CLASSES = 13,     /* of steps by their rows: up to 1, 2, 4 ... 4096 */
    /* Steps in flight, and of them those between two neighbours, each with room for a step's activations. */
    MR_MAX_RING_SLOTS = 2 * MR_MAX_STAGES + 4,
    MR_MAX_HOP_SLOTS = 256,
    MR_MAX_CONTEXT = 1 << 20, /* tokens of one sequence */
    MR_MAX_KV_BLOCKS = 1 << 26,
    MR_WIRE_BLOCK_TOKENS = 16,      /* token positions of one KV block */
    MR_MAX_CONTROL_BYTES = 4 << 20, /* one control message, packed */
    MR_MAX_TOKENS_BYTES =
        1 << 20,                /* with all log-probabilities of MR_MAX_STEP_ROWS tokens; see mr_tokens_message_bytes */
    MR_MAX_TOP_LOGPROBS = 20,   /* of one position */
    MR_MAX_LOGIT_BIASES = 4096, /* of one sequence */
    MR_MAX_DRY_BREAKERS = 16384,    /* likewise */
    MR_MAX_LATE_IDS = 1024,         /* likewise */
    MR_MAX_BAD_WORDS = 4096,        /* likewise: numbers of the list */
    MR_MAX_GRAMMAR_BYTES = 1 << 19, /* one grammar, packed */
    MR_MAX_REPORT_BYTES = 64 << 10,
    MR_MAX_SYNTHETIC_MS = 60000,       /* of a step, and of each of its rows */
    MR_MAX_SYNTHETIC_STEP_MS = 600000, /* of a step with all its rows */
    MR_MAX_LOGITS_BYTES = 8 << 20,     /* one logits message: rows are split over several */
    MR_MAX_ERROR_TEXT = 512,           /* bytes of a failure's text, its end included */
    MR_MAX_HELLO_BYTES = 16 << 10,
    MR_MAX_LOBBY_BYTES = 4 << 10, /* a control message of epoch 0 */
    MR_LOGITS_BYTES_WANTED = 1 << 20,
    /* Model files that go from rank to rank: in blocks, the last one shorter, each named by its SHA-256. */
    MR_FILE_BLOCK_BYTES = 1 << 20,
    MR_MAX_FILE_BLOCKS = 1 << 24,
    MR_FILE_HASH_BYTES = 32,
    MR_MAX_FILE_HASHES = 256, /* in one answer */
    MR_MAX_FILE_REQUEST_BYTES = 64,
    MR_FILE_REQUEST_SLOTS = 16, /* requests of one rank to another that are not answered yet */
    MR_FILE_ANSWER_SLOTS = 4,
    /* Slots of the links; those of activations and tokens are the plan's ring slots. */
    MR_CONTROL_SLOTS = 32,
    MR_REPORT_SLOTS = 8,
    MR_LOGITS_SLOTS = 2,
    MR_LOBBY_SLOTS = 2,
};

/* What the tokens of a step take at most, packed: for each some 50 bytes, and 8 for a log-probability. */
enum { MR_TOKENS_BYTES = 64, MR_TOKEN_BYTES = 56 + 8 * MR_MAX_TOP_LOGPROBS };
_Static_assert(MR_TOKENS_BYTES + MR_MAX_STEP_ROWS * MR_TOKEN_BYTES <= MR_MAX_TOKENS_BYTES,
               "the tokens of a step may not fit their message");
static inline uint32_t mr_tokens_message_bytes(uint32_t max_rows) {
    return MR_TOKENS_BYTES + max_rows * MR_TOKEN_BYTES;
}

/* Rows of so many float32 in one logits message: as many as fit the wanted size, at least one. */
static inline uint32_t mr_logits_message_rows(uint32_t n_columns) {
    uint32_t rows = n_columns ? MR_LOGITS_BYTES_WANTED / 4 / n_columns : 0;
    return rows ? rows : 1;
}

/* The largest such message, of rows of logits or of n_embd float32. */
static inline uint64_t mr_logits_message_bytes(uint32_t n_vocab, uint32_t n_embd) {
    uint64_t logits = (uint64_t)mr_logits_message_rows(n_vocab) * n_vocab * 4;
    uint64_t hidden = (uint64_t)mr_logits_message_rows(n_embd) * n_embd * 4;
    return logits > hidden ? logits : hidden;
}

#endif
