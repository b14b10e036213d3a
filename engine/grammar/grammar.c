/* engine/grammar/grammar.c - compiles the text of a grammar into its automaton, and packs grammars for the wire. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/grammar_internal.h"
#include "engine/grammar/nfa.h"
#include "engine/grammar/readings.h"

/* A packed grammar is these bytes and then the text. The version in them also covers the syntax of the text. */
static const uint8_t pack_magic[4] = {'M', 'R', 'G', 1};

#define MAX_WORK (UINT64_C(32) << 20)

static mr_status compile(mr_str text, dfa *out, mr_err *err) {
    gbnf g = {0};
    nfa n = {0};
    dfa_work work = {MAX_WORK};
    mr_status s = gbnf_read(text, &g, err);
    if (s == MR_OK)
        s = nfa_build(&g, &n, err);
    if (s == MR_OK)
        s = dfa_build(&n, g.root, &work, out, err);
    if (s == MR_OK)
        s = dfa_check(&g, &work, out, err);
    nfa_deinit(&n);
    gbnf_deinit(&g);
    return s;
}

/* Checks that a state can be created for the grammar: the start of a text must not have too many readings. */
static mr_status check_start(const dfa *d, mr_err *err) {
    text_reader r;
    readings start;
    mr_status s = MR_OK;
    if (!text_reader_init(&r, d))
        s = mr_err_set(err, MR_E_NO_MEMORY, "no memory to check a grammar");
    else if (!readings_start(&r, d->start, READINGS_BOTTOM, 0, &start))
        s = mr_err_set(err, MR_E_TOO_LONG, "%s", r.problem);
    text_reader_deinit(&r);
    return s;
}

mr_status mr_grammar_parse(mr_str gbnf_text, mr_grammar **out, mr_err *err) {
    mr_grammar *g = mr_alloc(sizeof *g);
    mr_status s =
        g ? compile(gbnf_text, &g->automaton, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a grammar");
    if (s == MR_OK)
        s = check_start(&g->automaton, err);
    if (s == MR_OK) {
        g->source_bytes = gbnf_text.len;
        g->source = mr_alloc(gbnf_text.len);
        if (g->source)
            memcpy(g->source, gbnf_text.data, gbnf_text.len);
        else
            s = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a grammar of %zu bytes", gbnf_text.len);
    }
    if (s) {
        mr_grammar_destroy(g);
        return s;
    }
    *out = g;
    return MR_OK;
}

void mr_grammar_destroy(mr_grammar *g) {
    if (!g)
        return;
    dfa_deinit(&g->automaton);
    mr_free(g->source);
    mr_free(g);
}

mr_str mr_grammar_source(const mr_grammar *g) {
    return (mr_str){g->source, g->source_bytes};
}

mr_status mr_grammar_pack(const mr_grammar *g, uint8_t **out_bytes, size_t *out_n, mr_err *err) {
    uint8_t *bytes = mr_alloc(sizeof pack_magic + g->source_bytes);
    if (!bytes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to pack a grammar of %zu bytes", g->source_bytes);
    memcpy(bytes, pack_magic, sizeof pack_magic);
    memcpy(bytes + sizeof pack_magic, g->source, g->source_bytes);
    *out_bytes = bytes;
    *out_n = sizeof pack_magic + g->source_bytes;
    return MR_OK;
}

mr_status mr_grammar_unpack(const uint8_t *bytes, size_t n, mr_grammar **out, mr_err *err) {
    if (n < sizeof pack_magic || memcmp(bytes, pack_magic, sizeof pack_magic) != 0)
        return mr_err_set(err, MR_E_FORMAT, "%zu bytes that are no packed grammar of this version", n);
    return mr_grammar_parse((mr_str){(const char *)bytes + sizeof pack_magic, n - sizeof pack_magic}, out, err);
}
