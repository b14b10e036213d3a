// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/grammar/grammar_internal.h"

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

/* Counts the nodes and twins of sorted entries. */
static void count_nodes(const entry *entries, size_t n, size_t *out_nodes, size_t *out_twins) {
    *out_nodes = *out_twins = 0;
    for (size_t i = 0; i < n; i++) {
        size_t shared = i ? shared_bytes(entries[i - 1].bytes, entries[i].bytes) : 0;
        *out_nodes += entries[i].bytes.len - shared;
        *out_twins += shared == entries[i].bytes.len;
    }
}

static void build_tree(mr_grammar_vocab *v, const entry *entries, size_t n) {
    uint32_t open[MR_GRAMMAR_MAX_TOKEN_BYTES]; /* the nodes from the root to the last one */
    size_t n_open = 0;
    for (size_t i = 0; i < n; i++) {
        mr_str bytes = entries[i].bytes;
        size_t shared = i ? shared_bytes(entries[i - 1].bytes, bytes) : 0;
        if (shared == bytes.len) { /* sorted: equal to the one before */
            v->twins[v->n_twins++] = (vocab_twin){v->nodes[open[n_open - 1]].token, entries[i].id};
            continue;
        }
        while (n_open > shared)
            v->nodes[open[--n_open]].skip = v->n_nodes;
        for (; n_open < bytes.len; n_open++) {
            open[n_open] = v->n_nodes;
            v->nodes[v->n_nodes++] =
                (vocab_node){.token = -1, .byte = (uint8_t)bytes.data[n_open], .depth = (uint16_t)(n_open + 1)};
        }
        v->nodes[v->n_nodes - 1].token = entries[i].id;
    }
    while (n_open)
        v->nodes[open[--n_open]].skip = v->n_nodes;
}

mr_status mr_grammar_vocab_create(const mr_tokenizer *tok, int32_t n_vocab, mr_grammar_vocab **out, mr_err *err) {
    int32_t n_tokens = mr_tokenizer_n_tokens(tok);
    size_t n = 0, n_nodes, n_twins;
    if (n_vocab <= 0 || n_vocab > MR_VOCAB_MAX_TOKENS)
        return mr_err_set(err, MR_E_INVALID, "a vocabulary of %d tokens", n_vocab);
    mr_status s = MR_OK;
    mr_grammar_vocab *v = mr_alloc(sizeof *v);
    entry *entries = mr_alloc_array((size_t)n_tokens, sizeof *entries);
    if (!v || !entries)
        goto no_memory;
    *v = (mr_grammar_vocab){.tok = tok, .n_vocab = n_vocab};
    for (int32_t id = 0; id < n_tokens; id++) {
        entries[n].id = id;
        n += grammar_vocab_bytes(v, id, &entries[n].bytes);
    }
    if (n)
        qsort(entries, n, sizeof *entries, compare_entries);
    count_nodes(entries, n, &n_nodes, &n_twins);
    v->nodes = mr_alloc_array(n_nodes, sizeof *v->nodes);
    v->twins = mr_alloc_array(n_twins, sizeof *v->twins);
    if (!v->nodes || !v->twins || n_nodes > UINT32_MAX)
        goto no_memory;
    build_tree(v, entries, n);
    *out = v;
    v = NULL;
    goto out;
no_memory:
    s = mr_err_set(err, MR_E_NO_MEMORY, "no memory for the tree of %d tokens", n_tokens);
out:
    mr_free(entries);
    mr_grammar_vocab_destroy(v);
    return s;
}

void mr_grammar_vocab_destroy(mr_grammar_vocab *v) {
    if (!v)
        return;
    mr_free(v->nodes);
    mr_free(v->twins);
    mr_free(v);
}

size_t mr_grammar_vocab_mask_words(const mr_grammar_vocab *v) {
    return ((size_t)v->n_vocab + 63) / 64;
}
