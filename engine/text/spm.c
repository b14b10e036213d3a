/* engine/text/spm.c - SentencePiece's BPE: merges the characters of a text by the scores of the resulting tokens, or
 * by a list of merges. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/spm.h"

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/utf8.h"

/* Returns a number that is lower for a higher score. */
static uint32_t order_of_score(float score) {
    float positive_zero = score + 0.0f; /* -0 and 0 are the same score */
    uint32_t u;
    memcpy(&u, &positive_zero, sizeof u);
    return u & 0x80000000u ? u : ~u & 0x7FFFFFFFu;
}

static bool any_space_inside(const vocab *v) {
    for (int32_t id = 0; id < v->n_tokens; id++) {
        mr_str p = vocab_piece(v, id);
        if (vocab_find_piece(v, p.data, p.len) != id)
            continue;
        for (size_t i = 1; i < p.len; i++)
            if (p.data[i] == ' ' && p.data[i - 1] != ' ')
                return true;
    }
    return false;
}

static mr_status load_scores(spm *s, const vocab *v, const mr_vocab_desc *desc, mr_err *err) {
    if (desc->n_scores != v->n_tokens || !desc->scores)
        return mr_err_set(err, MR_E_FORMAT, "tokenizer.ggml.scores has %d entries for %d tokens", desc->n_scores,
                          v->n_tokens);
    s->orders = mr_alloc_array((size_t)v->n_tokens, sizeof *s->orders);
    if (!s->orders)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the scores of %d tokens", v->n_tokens);
    for (int32_t id = 0; id < v->n_tokens; id++) {
        if (isnan(desc->scores[id]))
            return mr_err_set(err, MR_E_FORMAT, "the score of token %d is not a number", id);
        s->orders[id] = order_of_score(desc->scores[id]);
    }
    return MR_OK;
}

mr_status spm_init(spm *s, const vocab *v, bool by_merges, const mr_vocab_desc *desc, mr_err *err) {
    s->v = v;
    s->splits_at_spaces = !any_space_inside(v);
    return by_merges ? merge_table_init(&s->merges, v, desc, err) : load_scores(s, v, desc, err);
}

void spm_deinit(spm *s) {
    mr_free(s->orders);
    merge_table_deinit(&s->merges);
    *s = (spm){0};
}

typedef struct spm_word {
    const spm *s;
    const char *text;
} spm_word;

static bool pair_by_score(const void *ctx, const merge_symbol *a, const merge_symbol *b, uint32_t *out_order,
                          int32_t *out_id) {
    const spm_word *w = ctx;
    int32_t id = vocab_find_piece(w->s->v, w->text + a->start, (size_t)a->len + b->len);
    if (id < 0)
        return false;
    *out_order = w->s->orders[id];
    *out_id = id;
    return true;
}

/* Appends a character that did not merge: its token, or the tokens of its bytes, or the unknown token. */
static bool push_character(const vocab *v, const char *text, size_t len, mr_token_buf *out) {
    int32_t id = vocab_find_piece(v, text, len);
    if (id >= 0)
        return mr_token_buf_push(out, id);
    for (size_t i = 0; i < len; i++)
        if (v->byte_ids[(uint8_t)text[i]] < 0)
            return v->unk_id < 0 || mr_token_buf_push(out, v->unk_id);
    for (size_t i = 0; i < len; i++)
        if (!mr_token_buf_push(out, v->byte_ids[(uint8_t)text[i]]))
            return false;
    return true;
}

/* Merges one stretch of text, in which spaces are plain spaces. Returns false without memory. */
static bool encode_stretch(const spm *s, merge_work *work, const char *text, size_t len, mr_token_buf *out) {
    if (!merge_work_begin(work, len))
        return false;
    for (size_t i = 0; i < len;) {
        size_t n = mr_utf8_char_len(text + i, len - i);
        n = n ? n : 1; /* a byte that is not valid UTF-8 is a symbol of its own */
        /* Pairs by score are found by their text, so only merges need the ids of characters. */
        merge_work_add(work, (uint32_t)i, (uint32_t)n, s->orders ? -1 : vocab_find_piece(s->v, text + i, n));
        i += n;
    }
    if (s->orders)
        merge_run(work, pair_by_score, &(spm_word){s, text});
    else
        merge_run(work, merge_table_pair, &s->merges);
    for (int32_t i = 0; i >= 0; i = work->symbols[i].next) {
        const merge_symbol *sym = &work->symbols[i];
        bool ok =
            sym->id >= 0 ? mr_token_buf_push(out, sym->id) : push_character(s->v, text + sym->start, sym->len, out);
        if (!ok)
            return false;
    }
    return true;
}

/* Returns the end of the stretch that starts at from. */
static size_t stretch_end(const spm *s, const char *text, size_t len, size_t from) {
    if (!s->splits_at_spaces)
        return len;
    size_t i = from + 1;
    while (i < len && !(text[i] == ' ' && text[i - 1] != ' '))
        i++;
    return i;
}

mr_status spm_encode(const spm *s, merge_work *work, mr_str text, bool add_space, mr_token_buf *out_ids, mr_err *err) {
    bool ok = false;
    size_t len = 0;
    char *plain = mr_alloc(text.len + 1);
    if (!plain)
        goto out;
    if (add_space)
        plain[len++] = ' ';
    len += vocab_spaces_decode(text, plain + len);
    for (size_t i = 0; i < len;) {
        size_t end = stretch_end(s, plain, len, i);
        if (!encode_stretch(s, work, plain + i, end - i, out_ids))
            goto out;
        i = end;
    }
    ok = true;
out:
    mr_free(plain);
    return ok ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory to tokenise %zu bytes", text.len);
}
