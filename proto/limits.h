/* proto/limits.h - what a message from a peer may hold at most. Checked on both sides (invariant I3). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LIMITS_H
#define MR_PROTO_LIMITS_H

enum {
    MR_MAX_STAGES = 1024,
    MR_MAX_LAYERS = 1 << 16,
    MR_MAX_SEQUENCES = 4096,  /* live at once, in all micro-batches */
    MR_MAX_STEP_ROWS = 4096,  /* rows of one micro-batch */
    MR_MAX_RING_SLOTS = 64,   /* steps in flight */
    MR_MAX_CONTEXT = 1 << 20, /* tokens of one sequence */
    MR_MAX_KV_BLOCKS = 1 << 26,
    MR_WIRE_BLOCK_TOKENS = 16,      /* token positions of one KV block */
    MR_MAX_CONTROL_BYTES = 4 << 20, /* one control message, packed */
    MR_MAX_TOKENS_BYTES = 256 << 10,
    MR_MAX_REPORT_BYTES = 64 << 10,
    MR_MAX_LOGITS_BYTES = 8 << 20, /* one logits message: rows are split over several */
    MR_MAX_ERROR_TEXT = 512,       /* bytes of a failure's text, its end included */
};

#endif
