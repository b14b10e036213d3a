/* proto/facts_message.h - converts mr_measured to a Facts message and back.
 * Owns:    the arrays that the message points to. Threads: plain data. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_FACTS_MESSAGE_H
#define MR_PROTO_FACTS_MESSAGE_H

#include "proto/measured.h"
#include "proto/millrace.pb-c.h"

/* A message Times with its arrays. */
typedef struct mr_times_message {
    Millrace__Times message;
    uint32_t rows[MR_STEP_TIMES_MAX];
    double seconds[MR_STEP_TIMES_MAX];
} mr_times_message;

/* Fills the message, which points into out, and returns it. */
Millrace__Times *mr_times_message_fill(mr_times_message *out, const mr_step_times *t);
/* The message must have been checked (mr_msg_unpack_report). */
void mr_times_message_read(const Millrace__Times *t, mr_step_times *out);

/* Those of the CPU, or of the device. */
typedef struct mr_layers_message {
    mr_times_message times[MR_MAX_LAYER_KINDS], output;
    Millrace__Times *layers[MR_MAX_LAYER_KINDS];
    double position_s[MR_MAX_LAYER_KINDS];
} mr_layers_message;

typedef struct mr_facts_message {
    Millrace__Facts message;
    Millrace__DeviceFacts device;
    mr_layers_message on_cpu, on_device;
    mr_times_message crossing, trunks[MR_MAX_LAYER_KINDS];
    Millrace__Times *trunk_ptrs[MR_MAX_LAYER_KINDS];
    uint64_t layer_bytes[MR_MAX_LAYER_KINDS], token_bytes[MR_MAX_LAYER_KINDS], trunk_bytes[MR_MAX_LAYER_KINDS];
    char name[64];
} mr_facts_message;

/* Fills the message, which points into f. measured NULL: the message has no layers. */
void mr_facts_message_fill(mr_facts_message *f, const mr_measured *measured);
/* The message must have been checked (mr_msg_unpack_report). */
void mr_facts_message_read(const Millrace__Facts *message, mr_measured *out);

#endif
