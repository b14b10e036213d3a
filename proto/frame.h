/* proto/frame.h - the fixed header in front of everything that crosses a process boundary (little-endian, 56 bytes).
 *   u32 magic "MRF1", u16 version, u16 kind, u32 epoch, u32 rows, u64 step, u32 type (its top bit: by_device),
 *   u32 row_bytes, u64 payload_bytes, u64 counter, u64 checksum
 * The checksum covers the 48 bytes before it and the payload. Without a secret it is XXH3-64, which finds accidents,
 * and the counter is 0. With the secret of a launch it is UMAC-64 (RFC 4418) with the key of the link. Its nonce is the
 * counter, which grows by 1 with every frame of an outbox: nobody without the secret can make a frame, and a frame that
 * comes a second time is known. Between two outboxes of a link of epoch 0 the counter jumps, and an inbox of epoch 0
 * accepts gaps. CPU time for 64 KiB (x86-64, libnettle 3.8): XXH3 4 us, UMAC-64 5 us,
 * Poly1305-AES 24 us, SipHash-2-4 25 us, HMAC-SHA-256 43 us.
 * Owns:    nothing but a key, which belongs to one end of a link.
 * Threads: pure functions; the caller serialises the use of a key. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_FRAME_H
#define MR_PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "proto/secret.h"

enum { MR_FRAME_BYTES = 56, MR_WIRE_VERSION = 2 };

typedef enum mr_frame_kind {
    MR_FRAME_CONTROL = 1, /* a packed Millrace.Control message */
    MR_FRAME_ACTIVATIONS, /* rows of float32, from stage to stage */
    MR_FRAME_TOKENS,      /* a packed Millrace.Tokens message, from the tail */
    MR_FRAME_LOGITS,      /* rows of float32, logits or hidden rows, from the tail to the coordinator */
    MR_FRAME_REPORT,      /* a packed Millrace.Report message, from a stage to the coordinator */
    MR_FRAME_FILE,        /* a packed Millrace.FileRequest message, from rank to rank */
    MR_FRAME_FILE_ANSWER, /* hashes and blocks of the model file, from rank to rank */
    MR_FRAME_KINDS,
} mr_frame_kind;

typedef struct mr_frame {
    mr_frame_kind kind;
    uint32_t epoch;
    uint64_t step;
    uint32_t rows;      /* activations and logits: rows of the payload */
    uint32_t type;      /* activations: mr_type of the elements */
    uint32_t row_bytes; /* activations and logits: bytes of a row, no padding */
    uint64_t payload_bytes;
    /* Activations: the rows go from device to device beside the frame, which has no payload (proto/device_link.h). */
    bool by_device;
} mr_frame;

/* Checks frames of activations and logits; other kinds have no rows. MR_E_PROTOCOL: rows * row_bytes is not the length
 * of the payload, or there are more than MR_MAX_STEP_ROWS rows. */
MR_MUST_USE mr_status mr_frame_check_rows(const mr_frame *frame, mr_err *err);
/* The key and the counter of one end of a link. */
typedef struct mr_frame_key mr_frame_key;

/* What makes the key of a link different from all others. */
typedef struct mr_frame_link {
    uint32_t kind, epoch;
    int32_t from, to; /* endpoints */
    /* Frames may be missing between two that come. Epoch 0 has links whose ends come and go; the counter of such a link
     * begins with the time of its end. */
    bool has_gaps;
} mr_frame_link;

/* NULL: no memory. */
mr_frame_key *mr_frame_key_create(const mr_secret *secret, const mr_frame_link *link);
void mr_frame_key_destroy(mr_frame_key *key);
/* For an end that sends: sets the first counter. With has_gaps it comes from the clock, so that it is above those of an
 * earlier end. */
void mr_frame_key_begin(mr_frame_key *key);
/* Call when the frame that was sealed last is on its way: the next one gets the next counter. NULL is accepted. */
void mr_frame_key_advance(mr_frame_key *key);
/* As mr_frame_seal, with the key; NULL: without. */
void mr_frame_seal_with(const mr_frame *frame, mr_frame_key *key, uint8_t *buffer);
/* As mr_frame_open, with the key; NULL: without. *out_again: the frame has come before, or a later one has; it is not
 * to be used, *out is not written, and MR_OK is returned. MR_E_PROTOCOL also for a frame of somebody without the
 * secret, and when frames before this one are missing. */
MR_MUST_USE mr_status mr_frame_open_with(const uint8_t *buffer, size_t bytes, mr_frame_kind expected, mr_frame_key *key,
                                         mr_frame *out, bool *out_again, mr_err *err);

/* Writes the header for the payload that lies at buffer + MR_FRAME_BYTES. */
void mr_frame_seal(const mr_frame *frame, uint8_t *buffer);
/* Checks buffer[bytes]: magic, version, kind, lengths (payload_bytes == bytes - MR_FRAME_BYTES, rows * row_bytes ==
 * payload_bytes where rows are used), checksum. MR_E_PROTOCOL names the wrong value. The caller checks epoch, type and
 * row_bytes. */
MR_MUST_USE mr_status mr_frame_open(const uint8_t *buffer, size_t bytes, mr_frame_kind expected, mr_frame *out,
                                    mr_err *err);

#endif
