/* proto/message_bytes.c - computes the largest packed size of a control message. message_checks.c bounds every list of
 * a message, so the packed size is bounded, too. The buffers of a link have this size, and a larger message is refused
 * when it is packed and when it is unpacked. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/messages.h"

/* Packed sizes of protobuf: a number below 2^7 takes one byte, below 2^14 two bytes, and so on; a uint32 takes five
 * bytes at most. A tag stands in front of each number, and in front of the length of a list, a string or a message. */
enum {
    HEAD = 6,      /* a tag below 16 and a uint32, enum, bool or float */
    ANY_HEAD = 12, /* any tag of millrace.proto and any number, also a double or a negative int32 */
    /* An upper bound of the fields of Sampling: each field takes four bytes or more of the struct. */
    N_SAMPLING = sizeof(Millrace__Sampling) / sizeof(uint32_t),
};

#define BLOCKS_OF(tokens) (((tokens) + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS)

/* A run is the head of a message, eight numbers and two lists. All runs together have as many ids as the step has rows,
 * and no more new blocks than rows, because each run has at most ceil(rows / MR_WIRE_BLOCK_TOKENS) new blocks. */
#define RUN_BYTES (10 * (size_t)HEAD + ANY_HEAD)
#define STEP_BYTES(rows, sequences, id_bytes, block_bytes)                                                             \
    (5 * (size_t)ANY_HEAD + (rows) * (RUN_BYTES + (id_bytes) + (block_bytes)) + 2 * (sequences) * (size_t)(block_bytes))

/* The lengths in the list of bad words take two bytes at most. */
#define SAMPLING_BYTES(id_bytes)                                                                                       \
    ((N_SAMPLING + 1) * (size_t)ANY_HEAD + (MR_MAX_DRY_BREAKERS + MR_MAX_LATE_IDS) * (size_t)(id_bytes) +              \
     MR_MAX_BAD_WORDS * ((size_t)(id_bytes) + 1) + MR_MAX_LOGIT_BIASES * ((size_t)(id_bytes) + sizeof(float)))
#define OPEN_BYTES(context, id_bytes, block_bytes)                                                                     \
    (8 * (size_t)HEAD + ANY_HEAD + (context) * (size_t)(id_bytes) + BLOCKS_OF(context) * (size_t)(block_bytes) +       \
     SAMPLING_BYTES(id_bytes) + MR_MAX_GRAMMAR_BYTES)

/* The number of an expert takes two bytes. */
#define RANGE_BYTES (10 * (size_t)HEAD + 2 * (size_t)ANY_HEAD)
#define PLAN_BYTES                                                                                                     \
    (17 * (size_t)HEAD + 3 * (size_t)ANY_HEAD + MR_MAX_STAGES * RANGE_BYTES + 2 * (size_t)MR_MAX_HELD_EXPERTS)

/* Checks with every limit at its largest, and ids below 2^21. A larger vocabulary leaves less room for the context. */
enum { MOST_ID_BYTES = 3, MOST_BLOCK_BYTES = 4 };
_Static_assert(MR_MAX_KV_BLOCKS <= 1 << 7 * MOST_BLOCK_BYTES, "a block id takes more bytes");
_Static_assert(STEP_BYTES(MR_MAX_STEP_ROWS, MR_MAX_SEQUENCES, MOST_ID_BYTES, MOST_BLOCK_BYTES) <= MR_MAX_CONTROL_BYTES,
               "a step plan may not fit its message");
_Static_assert(OPEN_BYTES(MR_MAX_CONTEXT, MOST_ID_BYTES, MOST_BLOCK_BYTES) <= MR_MAX_CONTROL_BYTES,
               "an open sequence may not fit its message");
_Static_assert(PLAN_BYTES <= MR_MAX_CONTROL_BYTES, "a plan may not fit its message");
/* Messages of the lobby: the lists of askers and of parts grow. A rank below MR_MAX_STAGES takes two bytes. A part
 * takes two sizes of at most seven bytes, a digest, a number, and its sources. */
enum { FILE_PART_BYTES = 4 + 2 * 8 + 9 + 6 + 2 + 2 * MR_MAX_PART_SOURCES };
_Static_assert(MR_MAX_STAGES <= 1 << 14 && (uint64_t)MR_MAX_FILE_BLOCKS * MR_FILE_BLOCK_BYTES <= UINT64_C(1) << 49 &&
                   9 * ANY_HEAD + 2 * MR_MAX_STAGES + MR_MAX_FILE_PARTS * (FILE_PART_BYTES + MR_FILE_HASH_BYTES) <=
                       MR_MAX_LOBBY_BYTES,
               "lists of askers and parts may not fit their message");
_Static_assert(5 * ANY_HEAD + MR_MAX_GIVEN_KV_BYTES <= MR_MAX_LOBBY_BYTES, "a GiveKv may not fit its message");
enum { DIGEST_PART_BYTES = 3 + 8 }; /* an op and a type below 2^16; a digest */
_Static_assert(17 * ANY_HEAD + 5 * MR_MAX_ERROR_TEXT + MR_MAX_FILE_PARTS * (FILE_PART_BYTES + MR_FILE_HASH_BYTES) +
                       MR_MAX_DIGEST_PARTS * DIGEST_PART_BYTES <=
                   MR_MAX_HELLO_BYTES,
               "a hello may not fit its message");

/* The packed size of a number below limit. */
static size_t number_bytes(uint32_t limit) {
    size_t n = 1;
    for (uint32_t rest = limit ? (limit - 1) >> 7 : 0; rest > 0; rest >>= 7)
        n++;
    return n;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

size_t mr_msg_control_bytes(const mr_msg_limits *limits) {
    size_t id_bytes = number_bytes(limits->n_vocab), block_bytes = number_bytes(limits->n_kv_blocks);
    size_t context = limits->max_context;
    size_t step = STEP_BYTES((size_t)limits->max_rows, (size_t)limits->max_sequences, id_bytes, block_bytes);
    return larger(PLAN_BYTES, larger(step, OPEN_BYTES(context, id_bytes, block_bytes)));
}
