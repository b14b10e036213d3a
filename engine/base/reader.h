/* engine/base/reader.h - a checked cursor over bytes from outside: it never reads past their end.
 * Owns:    nothing. Borrows: the bytes, which outlive the reader and every pointer into them.
 * Threads: caller serialises.
 * Errors:  sticky. After the first read that does not fit, every read returns 0 or NULL and the position stays, so a
 *          caller may read a whole structure and check mr_reader_status() once. The caller must still check lengths and
 *          counts against a bound before using them. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_READER_H
#define MR_ENGINE_BASE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/le.h"
#include "engine/base/status.h"

typedef struct mr_reader {
    const uint8_t *data;
    size_t size;
    size_t pos;      /* <= size */
    uint64_t wanted; /* bytes that the failed read needed */
    bool failed;
} mr_reader;

/* data may be NULL if size is 0. */
void mr_reader_init(mr_reader *r, const void *data, size_t size);

/* Numbers are little-endian. */
uint8_t mr_reader_u8(mr_reader *r);
uint16_t mr_reader_u16(mr_reader *r);
uint32_t mr_reader_u32(mr_reader *r);
uint64_t mr_reader_u64(mr_reader *r);
int8_t mr_reader_i8(mr_reader *r);
int16_t mr_reader_i16(mr_reader *r);
int32_t mr_reader_i32(mr_reader *r);
int64_t mr_reader_i64(mr_reader *r);
float mr_reader_f32(mr_reader *r);
double mr_reader_f64(mr_reader *r);

/* The next n bytes, or n items of item_bytes, as a pointer into the data (unaligned). NULL only on failure. */
const uint8_t *mr_reader_bytes(mr_reader *r, uint64_t n);
const uint8_t *mr_reader_array(mr_reader *r, uint64_t n, size_t item_bytes);
/* Skips n bytes. */
void mr_reader_skip(mr_reader *r, uint64_t n);
/* Skips to the next multiple of alignment (> 0), counted from the start of the data. */
void mr_reader_align(mr_reader *r, size_t alignment);

size_t mr_reader_position(const mr_reader *r);
/* Bytes left; 0 after a failure. */
size_t mr_reader_remaining(const mr_reader *r);

static inline bool mr_reader_ok(const mr_reader *r) {
    return !r->failed;
}
/* MR_OK, or MR_E_FORMAT with the position at which the data ended. */
MR_MUST_USE mr_status mr_reader_status(const mr_reader *r, mr_err *err);

#endif
