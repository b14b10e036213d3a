/* worker/files/file_client_hashes.c - the hashes of blocks: asks sources for them, and checks whether those of a whole
 * part make its root. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "engine/base/mem.h"
#include "worker/files/file_client_internal.h"

enum { HASHES_AT_ONCE = 16, LOOKS_AT_ONCE = 16 };

int32_t file_client_first_live(const mr_file_client *c) {
    int32_t i = 0;
    while (i < c->n_sources && !c->sources[i].in)
        i++;
    return i;
}

void file_client_begin_proof(mr_file_client *c) {
    c->n_unknown = c->end - c->first;
    for (uint64_t i = c->first; i < c->end; i++)
        c->blocks[i].state = BLOCK_NO_HASH;
}

void file_client_note_hash(mr_file_client *c, uint64_t idx) {
    c->blocks[idx].state = BLOCK_KNOWN;
    c->n_known++;
    c->next_known = idx < c->next_known ? idx : c->next_known;
}

/* Looks for one block in the cache. */
static void look_up(mr_file_client *c, uint64_t idx) {
    block *b = &c->blocks[idx];
    bool was_listed = mr_file_cache_lists(c->cache, idx);
    c->n_known--;
    if (mr_file_cache_has(c->cache, idx, &b->hash)) {
        file_client_note_here(c, b);
        return;
    }
    b->state = BLOCK_MISSING;
    if (was_listed)
        c->total_bytes += file_client_block_bytes(c, idx); /* damaged or of another file; note_needs did not count it */
    file_client_look_again(c, idx);
}

void file_client_look_up(mr_file_client *c) {
    for (int32_t n = 0; n < LOOKS_AT_ONCE && c->n_known > 0; c->next_known++) {
        if (c->blocks[c->next_known].state != BLOCK_KNOWN)
            continue;
        look_up(c, c->next_known);
        n++;
    }
}

/* The hashes of all blocks of the part are known. MR_E_FORMAT: they do not make its root. */
static mr_status end_proof(mr_file_client *c, mr_err *err) {
    uint64_t n = c->end - c->first;
    mr_file_hash *hashes = mr_alloc_array((size_t)n, sizeof *hashes), root;
    char is[MR_FILE_HASH_TEXT], should[MR_FILE_HASH_TEXT];
    if (!hashes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the hashes of %" PRIu64 " blocks", n);
    for (uint64_t i = 0; i < n; i++)
        hashes[i] = c->blocks[c->first + i].hash;
    mr_file_root_of(c->part->bytes, hashes, &root);
    mr_free(hashes);
    if (!mr_file_hash_equal(&root, &c->part->root)) {
        file_client_begin_proof(c);
        return mr_err_set(err, MR_E_FORMAT,
                          "its model file has other bytes (SHA-256 %s...) than the job wants (%s...); hint: its file "
                          "was changed after the start",
                          mr_file_hash_text(&root, is), mr_file_hash_text(&c->part->root, should));
    }
    c->part->is_proven = true;
    for (uint64_t i = c->first; i < c->end; i++) {
        c->blocks[i].hashed_by = NOBODY;
        c->blocks[i].state = BLOCK_IDLE;
        if (c->blocks[i].is_due)
            file_client_note_hash(c, i);
    }
    return MR_OK;
}

mr_status file_client_take_hashes(mr_file_client *c, int32_t idx, const mr_frame *f, const uint8_t *payload,
                                  mr_err *err) {
    bool proves = c->n_unknown > 0;
    if (f->rows == 0 || f->rows > MR_MAX_FILE_HASHES || f->payload_bytes != (uint64_t)f->rows * sizeof(mr_file_hash) ||
        f->step >= c->n_blocks || f->rows > c->n_blocks - f->step)
        return file_client_unexpected(f, err);
    for (uint32_t i = 0; i < f->rows; i++) {
        block *b = &c->blocks[f->step + i];
        if (b->state != BLOCK_HASH_ASKED || b->asked != idx)
            return file_client_unexpected(f, err);
        memcpy(&b->hash, payload + i * sizeof b->hash, sizeof b->hash);
        if (!mr_file_hash_known(&b->hash)) /* zeros: in the cache they mean that the block is absent */
            return mr_err_set(err, MR_E_PROTOCOL, "no hash for block %" PRIu64, f->step + i);
        b->hashed_by = (int8_t)idx;
        if (proves)
            b->state = BLOCK_HASHED;
        else
            file_client_note_hash(c, f->step + i);
    }
    c->sources[idx].n_hashes_due -= f->rows; /* an answer with fewer hashes than were requested leaves some due */
    c->n_unknown -= proves ? f->rows : 0;
    return proves && c->n_unknown == 0 ? end_proof(c, err) : MR_OK;
}

mr_status file_client_ask_for_hashes(mr_file_client *c, int32_t idx, bool *out_sent, mr_err *err) {
    source *s = &c->sources[idx];
    uint32_t n = 0;
    if (c->n_unknown > 0 && idx != file_client_first_live(c))
        return MR_OK;
    while (s->next_hash < c->end && c->blocks[s->next_hash].state != BLOCK_NO_HASH)
        s->next_hash++;
    while (n < HASHES_AT_ONCE && s->next_hash + n < c->end && c->blocks[s->next_hash + n].state == BLOCK_NO_HASH)
        n++;
    if (n == 0)
        return MR_OK;
    mr_status status =
        file_client_send_request(c, s, MILLRACE__FILE_REQUEST__WHAT__HASHES, s->next_hash, n, out_sent, err);
    for (uint32_t i = 0; *out_sent && i < n; i++) {
        c->blocks[s->next_hash + i].state = BLOCK_HASH_ASKED;
        c->blocks[s->next_hash + i].asked = (int8_t)idx;
    }
    s->n_hashes_due += *out_sent ? n : 0;
    return status;
}
