/* engine/grammar/vocab.c - prepares a vocabulary for masks, once for each model. Tokens with equal bytes are joined,
 * plain tokens get masks of their own, and tokens are sorted into trees of shared beginnings. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/grammar/grammar_internal.h"
#include "engine/grammar/plain.h"

typedef struct entry {
    mr_str bytes;
    int32_t id;
} entry;

bool grammar_vocab_bytes(const mr_grammar_vocab *v, int32_t id, mr_str *out_bytes) {
    return id >= 0 && id < v->n_vocab && mr_tokenizer_piece(v->tok, id, out_bytes) && out_bytes->len > 0 &&
           out_bytes->len <= MR_GRAMMAR_MAX_TOKEN_BYTES && !mr_tokenizer_is_control(v->tok, id) &&
           !mr_tokenizer_is_end(v->tok, id) && mr_tokenizer_type(v->tok, id) != MR_TOKEN_UNKNOWN;
}

static int compare_entries(const void *a, const void *b) {
    const entry *x = a, *y = b;
    int order = mr_str_compare(x->bytes, y->bytes);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static size_t shared_bytes(mr_str a, mr_str b) {
    size_t n = 0;
    while (n < a.len && n < b.len && a.data[n] == b.data[n])
        n++;
    return n;
}

static size_t count_nodes(const entry *entries, size_t n) {
    size_t n_nodes = 0;
    for (size_t i = 0; i < n; i++)
        n_nodes += entries[i].bytes.len - (i ? shared_bytes(entries[i - 1].bytes, entries[i].bytes) : 0);
    return n_nodes;
}

/* entries must be sorted and all differ. */
static mr_status build_tree(vocab_tree *tree, const entry *entries, size_t n, mr_err *err) {
    uint32_t open[MR_GRAMMAR_MAX_TOKEN_BYTES]; /* the nodes from the root to the last node */
    size_t n_open = 0, n_nodes = count_nodes(entries, n);
    tree->nodes = n_nodes < UINT32_MAX ? mr_alloc_array(n_nodes, sizeof *tree->nodes) : NULL;
    if (!tree->nodes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the tree of %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        mr_str bytes = entries[i].bytes;
        size_t shared = i ? shared_bytes(entries[i - 1].bytes, bytes) : 0;
        while (n_open > shared)
            tree->nodes[open[--n_open]].skip = tree->n;
        for (; n_open < bytes.len; n_open++) {
            open[n_open] = tree->n;
            tree->nodes[tree->n++] =
                (vocab_node){.token = -1, .byte = (uint8_t)bytes.data[n_open], .depth = (uint16_t)(n_open + 1)};
        }
        tree->nodes[tree->n - 1].token = entries[i].id;
    }
    while (n_open)
        tree->nodes[open[--n_open]].skip = tree->n;
    return MR_OK;
}

/* Moves the twins out of sorted entries. Returns how many entries are left. */
static size_t take_out_twins(mr_grammar_vocab *v, entry *entries, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (kept && mr_str_equal(entries[kept - 1].bytes, entries[i].bytes))
            v->twins[v->n_twins++] = (vocab_twin){entries[kept - 1].id, entries[i].id};
        else
            entries[kept++] = entries[i];
    }
    return kept;
}

/* Puts the plain tokens into their masks. Returns how many other tokens are left in entries. */
static size_t take_out_plain(mr_grammar_vocab *v, entry *entries, size_t n) {
    size_t kept = 0, n_words = mr_grammar_vocab_mask_words(v);
    for (size_t i = 0; i < n; i++) {
        size_t n_chars = plain_chars(entries[i].bytes);
        if (n_chars == 0)
            entries[kept++] = entries[i];
        for (size_t k = n_chars; k && k <= PLAIN_MAX_CHARS; k++)
            v->plain[k * n_words + (size_t)entries[i].id / 64] |= UINT64_C(1) << (entries[i].id % 64);
    }
    return kept;
}

static mr_status build(mr_grammar_vocab *v, int32_t n_tokens, mr_err *err) {
    size_t n = 0, n_words = mr_grammar_vocab_mask_words(v);
    entry *entries = mr_alloc_array((size_t)n_tokens, sizeof *entries);
    v->twins = mr_alloc_array((size_t)n_tokens, sizeof *v->twins);
    v->plain = mr_alloc_array(n_words, (PLAIN_MAX_CHARS + 1) * sizeof *v->plain);
    mr_status s = MR_OK;
    if (!entries || !v->twins || !v->plain) {
        s = mr_err_set(err, MR_E_NO_MEMORY, "no memory for the tree of %d tokens", n_tokens);
    } else {
        for (int32_t id = 0; id < n_tokens; id++) {
            entries[n].id = id;
            n += grammar_vocab_bytes(v, id, &entries[n].bytes);
        }
        if (n)
            qsort(entries, n, sizeof *entries, compare_entries);
        n = take_out_twins(v, entries, n);
        s = build_tree(&v->all, entries, n, err);
    }
    if (s == MR_OK)
        s = build_tree(&v->odd, entries, take_out_plain(v, entries, n), err);
    mr_free(entries);
    return s;
}

mr_status mr_grammar_vocab_create(const mr_tokenizer *tok, int32_t n_vocab, mr_grammar_vocab **out, mr_err *err) {
    if (n_vocab <= 0 || n_vocab > MR_VOCAB_MAX_TOKENS)
        return mr_err_set(err, MR_E_INVALID, "a vocabulary of %d tokens", n_vocab);
    mr_grammar_vocab *v = mr_alloc(sizeof *v);
    if (!v)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a vocabulary");
    v->tok = tok;
    v->n_vocab = n_vocab;
    mr_status s = build(v, mr_tokenizer_n_tokens(tok), err);
    if (s) {
        mr_grammar_vocab_destroy(v);
        return s;
    }
    *out = v;
    return MR_OK;
}

void mr_grammar_vocab_destroy(mr_grammar_vocab *v) {
    if (!v)
        return;
    mr_free(v->all.nodes);
    mr_free(v->odd.nodes);
    mr_free(v->plain);
    mr_free(v->twins);
    mr_free(v);
}

size_t mr_grammar_vocab_mask_words(const mr_grammar_vocab *v) {
    return ((size_t)v->n_vocab + 63) / 64;
}
