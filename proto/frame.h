/* proto/frame.h - the fixed header in front of everything that crosses a process boundary (little-endian, 48 bytes).
 *   u32 magic "MRF1", u16 version, u16 kind, u32 epoch, u32 rows, u64 step, u32 type (its top bit: by_device),
 *   u32 row_bytes, u64 payload_bytes, u64 checksum (XXH3-64 of the 40 bytes before it, followed by the payload)
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_FRAME_H
#define MR_PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { MR_FRAME_BYTES = 48, MR_WIRE_VERSION = 1 };

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
/* Writes the header for the payload that lies at buffer + MR_FRAME_BYTES. */
void mr_frame_seal(const mr_frame *frame, uint8_t *buffer);
/* Checks buffer[bytes]: magic, version, kind, lengths (payload_bytes == bytes - MR_FRAME_BYTES, rows * row_bytes ==
 * payload_bytes where rows are used), checksum. MR_E_PROTOCOL names the wrong value. The caller checks epoch, type and
 * row_bytes. */
MR_MUST_USE mr_status mr_frame_open(const uint8_t *buffer, size_t bytes, mr_frame_kind expected, mr_frame *out,
                                    mr_err *err);

#endif
