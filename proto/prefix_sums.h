/* proto/prefix_sums.h - short sums over a sequence: one over the ids before a position, one over the entries of the
 * block table. The coordinator puts the sums into OpenSequence and into every Run. Each stage keeps sums of its own and
 * compares, so a stage that has other ids or another table is found at the next step of the sequence.
 * Each id and its position, or each block and its index, gives a term by the finalizer of SplitMix64 (Steele, Lea and
 * Flood, "Fast splittable pseudorandom number generators", 2014). The sum of the terms does not depend on their order,
 * so that an entry of a table can be replaced. The sums find accidents: two lists have equal sums by a chance of 2^-32.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_PREFIX_SUMS_H
#define MR_PROTO_PREFIX_SUMS_H

#include <stdint.h>

typedef struct mr_prefix_sums {
    uint32_t ids, table;
} mr_prefix_sums;

static inline uint32_t mr_prefix_term(uint32_t at, uint32_t value) {
    uint64_t x = ((uint64_t)at << 32 | value) + UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x ^ x >> 31);
}

static inline void mr_prefix_add_id(mr_prefix_sums *sums, uint32_t position, int32_t id) {
    sums->ids += mr_prefix_term(position, (uint32_t)id);
}
static inline void mr_prefix_add_block(mr_prefix_sums *sums, uint32_t idx, uint32_t block) {
    sums->table += mr_prefix_term(idx, block);
}
static inline void mr_prefix_remove_block(mr_prefix_sums *sums, uint32_t idx, uint32_t block) {
    sums->table -= mr_prefix_term(idx, block);
}

/* The field `prefix` of a message: the sum of the table above the sum of the ids. */
static inline uint64_t mr_prefix_pack(mr_prefix_sums sums) {
    return (uint64_t)sums.table << 32 | sums.ids;
}
static inline mr_prefix_sums mr_prefix_unpack(uint64_t prefix) {
    return (mr_prefix_sums){.ids = (uint32_t)prefix, .table = (uint32_t)(prefix >> 32)};
}

#endif
