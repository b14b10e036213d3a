/* engine/text/bpe.c - byte-level BPE: loads the merges into a hash table, and turns each word of a text into tokens. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/bpe.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"

static uint64_t pair_of_ids(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Returns the slot that holds pair, or the empty slot where pair belongs. */
static bpe_merge *find_merge(const bpe *b, uint64_t pair) {
    size_t i = (size_t)token_index_mix(pair ^ b->key, UINT64_C(0x9E3779B97F4A7C15)) & b->mask;
    while (b->merges[i].id >= 0 && b->merges[i].pair != pair)
        i = (i + 1) & b->mask;
    return &b->merges[i];
}

static bool allocate_merges(bpe *b, int32_t n_merges) {
    size_t n_slots = 16;
    while (n_slots < (size_t)n_merges + (size_t)n_merges / 2)
        n_slots *= 2;
    b->mask = n_slots - 1;
    b->key = token_index_random_key();
    b->merges = mr_alloc_array(n_slots, sizeof *b->merges);
    for (size_t i = 0; b->merges && i < n_slots; i++)
        b->merges[i].id = -1;
    return b->merges != NULL;
}

/* Returns the plain-text token named by one half of a merge, or -1. buf has room for one token. */
static int32_t half_id(const vocab *v, mr_str half, char *buf) {
    bool all;
    if (half.len > MR_VOCAB_MAX_TOKEN_BYTES)
        return -1;
    size_t n = byte_alphabet_decode(half, buf, &all);
    return all ? vocab_find_piece(v, buf, n) : -1;
}

/* Adds one merge. Returns false when one of its three tokens is not in the vocabulary. buf has room for two tokens. */
static bool add_merge(bpe *b, mr_str left, mr_str right, uint32_t rank, char *buf) {
    int32_t left_id = half_id(b->v, left, buf);
    int32_t right_id = left_id < 0 ? -1 : half_id(b->v, right, buf);
    if (right_id < 0)
        return false;
    mr_str l = vocab_piece(b->v, left_id), r = vocab_piece(b->v, right_id);
    memcpy(buf, l.data, l.len);
    memcpy(buf + l.len, r.data, r.len);
    int32_t id = vocab_find_piece(b->v, buf, l.len + r.len);
    if (id < 0)
        return false;
    uint64_t pair = pair_of_ids(left_id, right_id);
    bpe_merge *slot = find_merge(b, pair);
    if (slot->id < 0)
        *slot = (bpe_merge){.pair = pair, .rank = rank, .id = id};
    return true;
}

static mr_status load_merges(bpe *b, const mr_vocab_desc *desc, char *buf, mr_err *err) {
    for (int32_t i = 0; i < desc->n_merges; i++) {
        mr_str m = desc->merges[i];
        /* The halves contain no space: the byte alphabet writes a space as another character. */
        const char *space = m.len ? memchr(m.data, ' ', m.len) : NULL;
        size_t at = space ? (size_t)(space - m.data) : 0;
        if (at == 0 || at + 1 >= m.len)
            return mr_err_set(err, MR_E_FORMAT, "merge %d is not two texts with a space between them", i);
        mr_str left = {m.data, at}, right = {m.data + at + 1, m.len - at - 1};
        if (!add_merge(b, left, right, (uint32_t)i, buf))
            b->n_skipped++;
    }
    return MR_OK;
}

mr_status bpe_init(bpe *b, const vocab *v, const mr_vocab_desc *desc, mr_err *err) {
    b->v = v;
    char *buf = NULL;
    mr_status s = pretokenizer_create(desc->pre, PRETOK_JIT_IF_POSSIBLE, &b->pre, err);
    if (s || (desc->n_merges == 0 && pretokenizer_ids_are_ranks(b->pre)))
        return s;
    if (desc->n_merges < 1 || desc->n_merges > MR_VOCAB_MAX_MERGES || !desc->merges)
        return mr_err_set(err, MR_E_FORMAT, "tokenizer.ggml.merges has %d entries; 1 to %d are allowed", desc->n_merges,
                          MR_VOCAB_MAX_MERGES);
    buf = mr_alloc(2 * MR_VOCAB_MAX_TOKEN_BYTES);
    if (!buf || !allocate_merges(b, desc->n_merges))
        s = mr_err_set(err, MR_E_NO_MEMORY, "no memory for %d merges", desc->n_merges);
    else
        s = load_merges(b, desc, buf, err);
    mr_free(buf);
    return s;
}

void bpe_deinit(bpe *b) {
    pretokenizer_destroy(b->pre);
    mr_free(b->merges);
    *b = (bpe){0};
}

typedef struct bpe_word {
    const bpe *b;
    const char *bytes;
} bpe_word;

/* Without merges: the pair merges if its bytes are a token. */
static bool pair_by_id(const void *ctx, const merge_symbol *a, const merge_symbol *b, uint32_t *out_order,
                       int32_t *out_id) {
    const bpe_word *w = ctx;
    int32_t id = vocab_find_piece(w->b->v, w->bytes + a->start, (size_t)a->len + b->len);
    *out_order = (uint32_t)id;
    *out_id = id;
    return id >= 0;
}

static bool pair_by_merge(const void *ctx, const merge_symbol *a, const merge_symbol *b, uint32_t *out_order,
                          int32_t *out_id) {
    const bpe_word *w = ctx;
    if (a->id < 0 || b->id < 0)
        return false;
    const bpe_merge *m = find_merge(w->b, pair_of_ids(a->id, b->id));
    *out_order = m->rank;
    *out_id = m->id;
    return m->id >= 0;
}

/* Appends the token of a symbol. id -1 is a byte without a token. */
static bool push_symbol(const bpe *b, int32_t id, mr_token_buf *out) {
    id = id >= 0 ? id : b->v->unk_id;
    return id < 0 || mr_token_buf_push(out, id);
}

static bool encode_word(const bpe *b, merge_work *work, const char *word, size_t len, mr_token_buf *out) {
    const vocab *v = b->v;
    if (len == 1)
        return push_symbol(b, v->byte_ids[(uint8_t)word[0]], out);
    if (pretokenizer_ignores_merges(b->pre)) {
        int32_t id = vocab_find_piece(v, word, len);
        if (id >= 0)
            return mr_token_buf_push(out, id);
    }
    if (!merge_work_begin(work, len))
        return false;
    for (size_t i = 0; i < len; i++)
        merge_work_add(work, (uint32_t)i, 1, v->byte_ids[(uint8_t)word[i]]);
    merge_run(work, b->merges ? pair_by_merge : pair_by_id, &(bpe_word){b, word});
    for (int32_t i = 0; i >= 0; i = work->symbols[i].next)
        if (!push_symbol(b, work->symbols[i].id, out))
            return false;
    return true;
}

/* Returns the end of the valid UTF-8 that starts at from. */
static size_t valid_end(mr_str text, size_t from) {
    size_t i = from, n;
    while (i < text.len && (n = mr_utf8_char_len(text.data + i, text.len - i)) > 0)
        i += n;
    return i;
}

mr_status bpe_encode(const bpe *b, merge_work *work, pretok_work *pieces, mr_str text, mr_token_buf *out_ids,
                     mr_err *err) {
    for (size_t at = 0; at < text.len;) {
        size_t end = valid_end(text, at);
        if (end == at) {
            if (!encode_word(b, work, text.data + at, 1, out_ids))
                goto no_memory;
            at++;
            continue;
        }
        mr_str run = {text.data + at, end - at};
        mr_status s = pretokenizer_split(b->pre, pieces, run, err);
        if (s)
            return s;
        size_t from = 0;
        for (size_t i = 0; i < pieces->n; i++) {
            if (!encode_word(b, work, run.data + from, pieces->ends[i] - from, out_ids))
                goto no_memory;
            from = pieces->ends[i];
        }
        at = end;
    }
    return MR_OK;
no_memory:
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory to tokenise %zu bytes", text.len);
}
