/* tests/support/grammar_walk.c - runs grammars of JSON schemas, regular expressions and choices for a test in Python.
 * Each line of standard input is a request, and each line of standard output is its answer:
 *   {"schema": any, "strict": bool, "texts": [...], "generate": n, "seed": n}, or instead of schema "regex": "..." or
 *   "choice": [...]. A schema that is a string is the text of a schema.
 *   {"error": "..."} or {"gbnf": "...", "texts": [true if it is a whole text, ...], "generated": [...]}
 * "generate" asks for n texts of random allowed tokens; tokens that close a bracket or a string are drawn more often.
 * Usage: grammar_walk [VOCABULARY.gguf]; without a vocabulary, each byte is a token. */
// SPDX-License-Identifier: Apache-2.0
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/schema/schema.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/grammar/grammar.h"
#include "engine/vocab/vocab.h"
#include "tests/unit/engine/text/test_text_vocabs.h"

enum { MAX_TOKENS_OF_TEXT = 3000 };

static void stop(const char *what) {
    fprintf(stderr, "grammar_walk: %s\n", what);
    exit(1);
}

typedef struct walker {
    mr_tokenizer *tok;
    mr_grammar_vocab *v;
    mr_grammar_state *s;
    uint64_t *bits;
    int32_t *allowed;
    int32_t n;
    uint64_t seed, counter;
} walker;

static uint32_t below(walker *w, uint32_t n) {
    return (uint32_t)(mr_rng_u64(w->seed, 7, w->counter++) % n);
}

/* A random allowed token, or -1. */
static int32_t choose(walker *w, bool *out_end) {
    int32_t n = 0, n_closing = 0;
    *out_end = false;
    for (int32_t id = 0; id < w->n; id++) {
        if (!(w->bits[id / 64] >> (id % 64) & 1))
            continue;
        if (mr_tokenizer_is_end(w->tok, id))
            *out_end = true;
        else
            w->allowed[n++] = id;
    }
    if (n == 0)
        return -1;
    if (*out_end && below(w, 2) == 0)
        return -1;
    *out_end = false;
    if (below(w, 3) > 0) {
        for (int32_t i = 0; i < n; i++) {
            mr_str piece;
            if (mr_tokenizer_piece(w->tok, w->allowed[i], &piece) && strchr("\"}]", piece.data[0])) {
                int32_t swap = w->allowed[n_closing];
                w->allowed[n_closing++] = w->allowed[i];
                w->allowed[i] = swap;
            }
        }
    }
    return w->allowed[below(w, (uint32_t)(n_closing ? n_closing : n))];
}

/* A generated text; NULL if the text did not end. */
static json_t *generate(walker *w) {
    mr_text_buf text = {0};
    mr_err err = {0};
    json_t *out = NULL;
    mr_grammar_state_reset(w->s);
    for (int i = 0; i < MAX_TOKENS_OF_TEXT; i++) {
        bool end;
        mr_str piece = {NULL, 0};
        if (mr_grammar_state_mask(w->s, w->bits, &err))
            stop(err.text);
        int32_t id = choose(w, &end);
        if (id < 0) {
            out = end || mr_grammar_state_is_complete(w->s) ? json_stringn(text.data ? text.data : "", text.len) : NULL;
            if (!out)
                stop("nothing is allowed, or the text is no UTF-8");
            break;
        }
        mr_tokenizer_piece(w->tok, id, &piece);
        if (mr_grammar_state_accept(w->s, id, &err))
            stop(err.text);
        if (!mr_text_buf_append(&text, piece.data, piece.len))
            stop("no memory");
    }
    mr_text_buf_deinit(&text);
    return out;
}

static mr_str text_of(const json_t *value) {
    return (mr_str){json_string_value(value), json_string_length(value)};
}

static mr_status compile(const json_t *request, mr_grammar **out, mr_err *err) {
    const json_t *regex = json_object_get(request, "regex"), *choice = json_object_get(request, "choice"), *text;
    mr_str texts[64];
    size_t i;
    if (regex)
        return mr_grammar_from_regex(text_of(regex), out, err);
    json_array_foreach(choice, i, text) texts[i % 64] = text_of(text);
    if (choice)
        return mr_grammar_from_choice(texts, json_array_size(choice), out, err);
    const json_t *given = json_object_get(request, "schema");
    char *schema = json_is_string(given) ? mr_strdup(json_string_value(given)) : json_dumps(given, JSON_ENCODE_ANY);
    bool strict = json_is_true(json_object_get(request, "strict"));
    mr_status status = mr_grammar_from_schema(mr_str_from(schema), strict, out, err);
    free(schema);
    return status;
}

static json_t *answer(walker *w, const json_t *request) {
    mr_grammar *g = NULL;
    mr_err err = {0};
    mr_status status = compile(request, &g, &err);
    if (status)
        return json_pack("{s:s}", "error", err.text);
    if (mr_grammar_state_create(g, w->v, &w->s, &err))
        stop(err.text);
    json_t *verdicts = json_array(), *generated = json_array(), *text;
    size_t i;
    json_array_foreach(json_object_get(request, "texts"), i, text) {
        mr_grammar_state_reset(w->s);
        bool ok =
            mr_grammar_state_accept_bytes(w->s, text_of(text), &err) == MR_OK && mr_grammar_state_is_complete(w->s);
        json_array_append_new(verdicts, json_boolean(ok));
    }
    w->seed = (uint64_t)json_integer_value(json_object_get(request, "seed"));
    w->counter = 0;
    for (json_int_t k = 0; k < json_integer_value(json_object_get(request, "generate")); k++) {
        text = generate(w);
        json_array_append_new(generated, text ? text : json_null());
    }
    mr_str source = mr_grammar_source(g);
    json_t *out =
        json_pack("{s:s%,s:o,s:o}", "gbnf", source.data, source.len, "texts", verdicts, "generated", generated);
    mr_grammar_state_destroy(w->s);
    mr_grammar_destroy(g);
    return out;
}

int main(int argc, char **argv) {
    static small_vocab bytes;
    static char line[1 << 20];
    walker w = {0};
    mr_gguf *file = NULL;
    mr_err err = {0};
    small_spm(&bytes);
    if (argc > 1 ? mr_gguf_open(argv[1], &file, &err) || mr_vocab_load(file, &w.tok, &err)
                 : mr_tokenizer_create(&bytes.desc, &w.tok, &err))
        stop(err.text);
    w.n = mr_tokenizer_n_tokens(w.tok);
    if (mr_grammar_vocab_create(w.tok, w.n, &w.v, &err))
        stop(err.text);
    w.bits = mr_alloc_array(mr_grammar_vocab_mask_words(w.v), sizeof *w.bits);
    w.allowed = mr_alloc_array((size_t)w.n, sizeof *w.allowed);
    while (fgets(line, sizeof line, stdin)) {
        json_t *request = json_loads(line, JSON_ALLOW_NUL, NULL);
        if (!request)
            stop("a request that is no JSON");
        json_t *reply = answer(&w, request);
        json_dumpf(reply, stdout, JSON_COMPACT);
        printf("\n");
        fflush(stdout);
        json_decref(reply);
        json_decref(request);
    }
    mr_free(w.bits);
    mr_free(w.allowed);
    mr_grammar_vocab_destroy(w.v);
    mr_tokenizer_destroy(w.tok);
    mr_gguf_close(file);
    return 0;
}
