/* proto/messages.h - packs, unpacks and checks the messages of millrace.proto.
 * An unpacked message has been checked: every count, slot, position, block and id is inside the limits, so that the
 * caller may use it as an index. A message with an unknown field is refused, because all ranks of a job speak one wire
 * version.
 * Owns:    nothing; unpacked messages live in the caller's arena.
 * Threads: pure functions; the caller serialises the arena.
 * Errors:  MR_E_PROTOCOL names the field, its value and what is allowed. With an arena over a fixed buffer nothing is
 *          allocated. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_MESSAGES_H
#define MR_PROTO_MESSAGES_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/arena.h"
#include "engine/base/status.h"
#include "proto/limits.h"
#include "proto/millrace.pb-c.h"

/* The bounds that follow from the plan in force and from the model. All zero: there is no plan yet, and the only
 * control messages that pass are Plan, Start, Ping, ShareFile, Measure, Probe and Shutdown. */
typedef struct mr_msg_limits {
    uint32_t n_stages;
    uint32_t max_rows;      /* rows of one step */
    uint32_t max_sequences; /* sequence slots */
    uint32_t max_context;   /* tokens of one sequence */
    uint32_t n_kv_blocks;
    uint32_t n_vocab; /* token ids are below it */
} mr_msg_limits;

/* Packs any message into dst[capacity]. MR_E_TOO_LONG: it does not fit, and dst is untouched. */
MR_MUST_USE mr_status mr_msg_pack(const ProtobufCMessage *message, uint8_t *dst, size_t capacity, size_t *out_bytes,
                                  mr_err *err);

/* Wraps body into a Control or a Report. body must be a message of its oneof, and is borrowed. */
Millrace__Control mr_msg_control_of(ProtobufCMessage *body);
Millrace__Report mr_msg_report_of(ProtobufCMessage *body);

/* The largest packed size of a control message within limits; a Plan always fits. At most MR_MAX_CONTROL_BYTES, unless
 * context and vocabulary are both near their largest. */
size_t mr_msg_control_bytes(const mr_msg_limits *limits);
/* Entries of the block table of a sequence. */
static inline uint32_t mr_msg_table_entries(const mr_msg_limits *limits) {
    return limits->max_context / MR_WIRE_BLOCK_TOKENS + (limits->max_context % MR_WIRE_BLOCK_TOKENS > 0);
}

/* The size of a fixed arena that holds any well-packed message within limits, and any Plan. */
size_t mr_msg_arena_bytes(const mr_msg_limits *limits);

/* Unpack and check data[bytes]. The arena is reset first, so a message lives until the next message is unpacked into
 * the same arena. MR_E_PROTOCOL: the message is malformed, outside the limits, or too large for its kind or for the
 * arena. */
MR_MUST_USE mr_status mr_msg_unpack_control(const uint8_t *data, size_t bytes, const mr_msg_limits *limits,
                                            mr_arena *arena, Millrace__Control **out, mr_err *err);
MR_MUST_USE mr_status mr_msg_unpack_tokens(const uint8_t *data, size_t bytes, const mr_msg_limits *limits,
                                           mr_arena *arena, Millrace__Tokens **out, mr_err *err);
/* Texts of the message are made printable (other bytes become '?') and cut below MR_MAX_ERROR_TEXT. */
MR_MUST_USE mr_status mr_msg_unpack_report(const uint8_t *data, size_t bytes, const mr_msg_limits *limits,
                                           mr_arena *arena, Millrace__Report **out, mr_err *err);
/* n_file_blocks: blocks of the file that the request is about. */
MR_MUST_USE mr_status mr_msg_unpack_file_request(const uint8_t *data, size_t bytes, uint64_t n_file_blocks,
                                                 mr_arena *arena, Millrace__FileRequest **out, mr_err *err);

/* Texts as in mr_msg_unpack_report. */
MR_MUST_USE mr_status mr_msg_unpack_link_setup(const uint8_t *data, size_t bytes, mr_arena *arena,
                                               Millrace__LinkSetup **out, mr_err *err);

/* The checks of unpack, for a sender that wants to know whether the receiver will accept a message. */
MR_MUST_USE mr_status mr_msg_check_control(const Millrace__Control *m, const mr_msg_limits *limits, mr_err *err);
MR_MUST_USE mr_status mr_msg_check_tokens(const Millrace__Tokens *m, const mr_msg_limits *limits, mr_err *err);
MR_MUST_USE mr_status mr_msg_check_report(const Millrace__Report *m, const mr_msg_limits *limits, mr_err *err);
MR_MUST_USE mr_status mr_msg_check_link_setup(const Millrace__LinkSetup *m, mr_err *err);
MR_MUST_USE mr_status mr_msg_check_file_request(const Millrace__FileRequest *m, uint64_t n_file_blocks, mr_err *err);

#endif
