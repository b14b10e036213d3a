/* engine/base/reader.c - a cursor over bytes from outside. mr_reader_bytes makes every check of bounds; the other reads
 * go through it. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/reader.h"

#include <inttypes.h>

void mr_reader_init(mr_reader *r, const void *data, size_t size) {
    static const uint8_t empty[1];
    MR_ASSERT(data || size == 0);
    *r = (mr_reader){.data = data ? data : empty, .size = size};
}

const uint8_t *mr_reader_bytes(mr_reader *r, uint64_t n) {
    if (r->failed)
        return NULL;
    if (n > r->size - r->pos) {
        r->failed = true;
        r->wanted = n;
        return NULL;
    }
    const uint8_t *p = r->data + r->pos;
    r->pos += (size_t)n;
    return p;
}

const uint8_t *mr_reader_array(mr_reader *r, uint64_t n, size_t item_bytes) {
    uint64_t bytes;
    if (__builtin_mul_overflow(n, (uint64_t)item_bytes, &bytes))
        bytes = UINT64_MAX;
    return mr_reader_bytes(r, bytes);
}

void mr_reader_skip(mr_reader *r, uint64_t n) {
    (void)mr_reader_bytes(r, n);
}

void mr_reader_align(mr_reader *r, size_t alignment) {
    MR_ASSERT(alignment > 0);
    size_t over = r->pos % alignment;
    if (over)
        mr_reader_skip(r, alignment - over);
}

uint8_t mr_reader_u8(mr_reader *r) {
    const uint8_t *p = mr_reader_bytes(r, 1);
    return p ? *p : 0;
}

uint16_t mr_reader_u16(mr_reader *r) {
    const uint8_t *p = mr_reader_bytes(r, 2);
    return p ? mr_load_le16(p) : 0;
}

uint32_t mr_reader_u32(mr_reader *r) {
    const uint8_t *p = mr_reader_bytes(r, 4);
    return p ? mr_load_le32(p) : 0;
}

uint64_t mr_reader_u64(mr_reader *r) {
    const uint8_t *p = mr_reader_bytes(r, 8);
    return p ? mr_load_le64(p) : 0;
}

int8_t mr_reader_i8(mr_reader *r) {
    return (int8_t)mr_reader_u8(r);
}

int16_t mr_reader_i16(mr_reader *r) {
    return (int16_t)mr_reader_u16(r);
}

int32_t mr_reader_i32(mr_reader *r) {
    return (int32_t)mr_reader_u32(r);
}

int64_t mr_reader_i64(mr_reader *r) {
    return (int64_t)mr_reader_u64(r);
}

float mr_reader_f32(mr_reader *r) {
    const uint8_t *p = mr_reader_bytes(r, 4);
    return p ? mr_load_le_f32(p) : 0.0f;
}

double mr_reader_f64(mr_reader *r) {
    const uint8_t *p = mr_reader_bytes(r, 8);
    return p ? mr_load_le_f64(p) : 0.0;
}

size_t mr_reader_position(const mr_reader *r) {
    return r->pos;
}

size_t mr_reader_remaining(const mr_reader *r) {
    return r->failed ? 0 : r->size - r->pos;
}

mr_status mr_reader_status(const mr_reader *r, mr_err *err) {
    if (!r->failed)
        return MR_OK;
    return mr_err_set(err, MR_E_FORMAT, "data ends early: %" PRIu64 " bytes wanted at byte %zu of %zu", r->wanted,
                      r->pos, r->size);
}
