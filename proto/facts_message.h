/* proto/facts_message.h - converts mr_measured to a Facts message and back.
 * Owns:    the arrays that the message points to. Threads: plain data. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_FACTS_MESSAGE_H
#define MR_PROTO_FACTS_MESSAGE_H

#include "proto/measured.h"
#include "proto/millrace.pb-c.h"

typedef struct mr_facts_message {
    Millrace__Facts message;
    Millrace__Times times[MR_MAX_LAYER_KINDS + 1], *layers[MR_MAX_LAYER_KINDS];
    uint32_t rows[MR_MAX_LAYER_KINDS + 1][MR_STEP_TIMES_MAX];
    double seconds[MR_MAX_LAYER_KINDS + 1][MR_STEP_TIMES_MAX], position_s[MR_MAX_LAYER_KINDS];
} mr_facts_message;

/* Fills the message, which points into f. measured NULL: the message has no layers. */
void mr_facts_message_fill(mr_facts_message *f, const mr_measured *measured);
/* The message must have been checked (mr_msg_unpack_report). */
void mr_facts_message_read(const Millrace__Facts *message, mr_measured *out);

#endif
