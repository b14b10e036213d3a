/* engine/text/token_index.c - a hash table with open addressing and linear probing, from the bytes of a token to its
 * id. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/token_index.h"

#include <string.h>
#include <sys/random.h>

#include "engine/base/clock.h"
#include "engine/base/le.h"
#include "engine/base/mem.h"

/* Odd constants with irregular bits: the fractions of the square roots of 2, 3 and 5. */
#define MIX_1 UINT64_C(0x6A09E667F3BCC909)
#define MIX_2 UINT64_C(0xBB67AE8584CAA73B)
#define MIX_3 UINT64_C(0x3C6EF372FE94F82B)

uint64_t token_index_random_key(void) {
    uint64_t key;
    if (getrandom(&key, sizeof key, GRND_NONBLOCK) != (ssize_t)sizeof key)
        key = (uint64_t)mr_clock_now_ns() * MIX_1 ^ (uint64_t)(uintptr_t)&key;
    return key;
}

static uint64_t hash(uint64_t key, const char *bytes, size_t len) {
    uint64_t h = key ^ len * MIX_1;
    size_t i = 0;
    for (; i + 8 <= len; i += 8)
        h = token_index_mix(h ^ mr_load_le64(bytes + i), MIX_2 ^ key);
    uint64_t tail = 0;
    for (unsigned shift = 0; i < len; i++, shift += 8)
        tail |= (uint64_t)(uint8_t)bytes[i] << shift;
    return token_index_mix(h ^ tail, MIX_3 ^ (key >> 32 | key << 32));
}

bool token_index_init(token_index *ix, int32_t n_tokens, const char *bytes, const uint32_t *starts) {
    size_t n_slots = 16;
    while (n_slots < (size_t)n_tokens * 2)
        n_slots *= 2;
    *ix = (token_index){.mask = n_slots - 1, .key = token_index_random_key(), .bytes = bytes, .starts = starts};
    ix->slots = mr_alloc_array(n_slots, sizeof *ix->slots);
    if (!ix->slots)
        return false;
    for (size_t i = 0; i < n_slots; i++)
        ix->slots[i].id = -1;
    return true;
}

void token_index_deinit(token_index *ix) {
    mr_free(ix->slots);
    *ix = (token_index){0};
}

/* Returns the slot that holds these bytes, or the empty slot where they belong. The table is at most half full. */
static token_slot *find_slot(const token_index *ix, const char *bytes, size_t len, uint32_t *out_tag) {
    uint64_t h = hash(ix->key, bytes, len);
    *out_tag = (uint32_t)(h >> 32);
    for (size_t i = (size_t)h & ix->mask;; i = (i + 1) & ix->mask) {
        token_slot *slot = &ix->slots[i];
        if (slot->id < 0)
            return slot;
        uint32_t at = ix->starts[slot->id];
        if (slot->tag == *out_tag && ix->starts[slot->id + 1] - at == len && memcmp(ix->bytes + at, bytes, len) == 0)
            return slot;
    }
}

void token_index_add(token_index *ix, int32_t id) {
    uint32_t at = ix->starts[id], tag;
    token_slot *slot = find_slot(ix, ix->bytes + at, ix->starts[id + 1] - at, &tag);
    if (slot->id < 0)
        *slot = (token_slot){.tag = tag, .id = id};
}

int32_t token_index_find(const token_index *ix, const char *bytes, size_t len) {
    uint32_t tag;
    return find_slot(ix, bytes, len, &tag)->id;
}
