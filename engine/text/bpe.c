/* engine/text/bpe.c - byte-level BPE: turns each word of a text into tokens. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/bpe.h"

#include "engine/text/utf8.h"

mr_status bpe_init(bpe *b, const vocab *v, const mr_vocab_desc *desc, mr_err *err) {
    b->v = v;
    mr_status s = pretokenizer_create(desc->pre, PRETOK_JIT_IF_POSSIBLE, &b->pre, err);
    if (s || (desc->n_merges == 0 && pretokenizer_ids_are_ranks(b->pre)))
        return s;
    return merge_table_init(&b->merges, v, desc, err);
}

void bpe_deinit(bpe *b) {
    pretokenizer_destroy(b->pre);
    merge_table_deinit(&b->merges);
    *b = (bpe){0};
}

typedef struct bpe_word {
    const vocab *v;
    const char *bytes;
} bpe_word;

/* Without merges: the pair merges if its bytes are a token. */
static bool pair_by_id(const void *ctx, const merge_symbol *a, const merge_symbol *b, uint32_t *out_order,
                       int32_t *out_id) {
    const bpe_word *w = ctx;
    int32_t id = vocab_find_piece(w->v, w->bytes + a->start, (size_t)a->len + b->len);
    *out_order = (uint32_t)id;
    *out_id = id;
    return id >= 0;
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
    if (b->merges.slots)
        merge_run(work, merge_table_pair, &b->merges);
    else
        merge_run(work, pair_by_id, &(bpe_word){v, word});
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
