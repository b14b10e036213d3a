/* tests/fuzz/fuzz_gbnf.c - fuzzes grammars in GBNF. Follows each accepted grammar for some tokens. Mask and automaton
 * must agree on each token. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "tests/fuzz/fuzz.h"

/* A vocabulary of all bytes and a few pairs of bytes. */
static mr_tokenizer *make_tokenizer(void) {
    static char names[256][8];
    static mr_str tokens[264];
    static int32_t types[264];
    static float scores[264];
    static const char *const others[8] = {"</s>", "ab", "\"a", "\",", "a ", "\xC3\xA9", "{\"", "]]"};
    mr_vocab_desc desc = mr_vocab_desc_empty();
    for (int i = 0; i < 256; i++) {
        static const char digits[] = "0123456789ABCDEF";
        memcpy(names[i], "<0x00>", 6);
        names[i][3] = digits[i / 16];
        names[i][4] = digits[i % 16];
        tokens[i] = (mr_str){names[i], 6};
        types[i] = MR_TOKEN_BYTE;
    }
    for (int i = 0; i < 8; i++) {
        tokens[256 + i] = mr_str_from(others[i]);
        types[256 + i] = i ? MR_TOKEN_NORMAL : MR_TOKEN_CONTROL;
    }
    desc.model = mr_str_from("llama");
    desc.n_tokens = desc.n_scores = desc.n_types = 264;
    desc.tokens = tokens;
    desc.scores = scores;
    desc.types = types;
    desc.eos_id = 256;
    mr_tokenizer *tok = NULL;
    MR_ASSERT(mr_tokenizer_create(&desc, &tok, NULL) == MR_OK);
    return tok;
}

/* Follows tokens that the mask allows. The automaton must accept each allowed token and refuse a token that the mask
 * forbids. */
static void follow(const mr_grammar *g, const mr_grammar_vocab *v) {
    mr_grammar_state *s = NULL;
    mr_err err = {0};
    uint64_t bits[5];
    uint32_t turn = 1;
    if (mr_grammar_state_create(g, v, &s, &err)) {
        MR_ASSERT(err.status == MR_E_TOO_LONG && err.text[0]);
        return;
    }
    for (int step = 0; step < 40 && !mr_grammar_state_is_finished(s); step++) {
        if (mr_grammar_state_mask(s, bits, &err)) {
            MR_ASSERT(err.status == MR_E_TOO_LONG && err.text[0]);
            break;
        }
        int32_t taken = -1;
        for (int32_t i = 0; i < 264; i++, turn = turn * 1664525u + 1013904223u) {
            int32_t id = (int32_t)((turn >> 16) % 264);
            if (bits[id / 64] >> (id % 64) & 1)
                taken = id;
            else
                MR_ASSERT(mr_grammar_state_accept(s, id, &err) != MR_OK);
        }
        if (taken < 0)
            break;
        mr_status status = mr_grammar_state_accept(s, taken, &err);
        MR_ASSERT(status == MR_OK || status == MR_E_TOO_LONG);
        if (status)
            break;
    }
    mr_grammar_state_destroy(s);
}

int mr_fuzz_gbnf(const uint8_t *data, size_t size) {
    static mr_tokenizer *tok;
    static mr_grammar_vocab *v;
    mr_grammar *g = NULL, *again = NULL;
    mr_err err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    if (!tok) {
        tok = make_tokenizer();
        MR_ASSERT(mr_grammar_vocab_create(tok, 264, &v, &err) == MR_OK);
    }
    if (mr_grammar_unpack(data, size, &g, &err) == MR_OK) {
        mr_grammar_destroy(g);
        g = NULL;
    }
    if (mr_grammar_parse((mr_str){(const char *)data, size}, &g, &err)) {
        MR_ASSERT(err.status >= MR_E_INVALID && err.status <= MR_E_NO_MEMORY && err.text[0]);
        return 0;
    }
    MR_ASSERT(mr_grammar_pack(g, &bytes, &n, &err) == MR_OK && mr_grammar_unpack(bytes, n, &again, &err) == MR_OK);
    follow(again, v);
    mr_free(bytes);
    mr_grammar_destroy(again);
    mr_grammar_destroy(g);
    return 0;
}
