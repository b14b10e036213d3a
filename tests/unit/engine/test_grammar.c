/* GBNF grammars and their token masks. After every prefix of valid texts, every token of a vocabulary is compared
 * with a reference that parses the grammar in another way. Invalid grammars are refused. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/grammar/grammar.h"
#include "engine/vocab/vocab.h"
#include "tests/support/gbnf_reference.h"
#include "tests/support/share.h"
#include "tests/support/test.h"
#include "tests/unit/engine/text/test_text_vocabs.h"

#define JSON_GRAMMAR                                                                                                   \
    "root ::= object\n"                                                                                                \
    "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"                              \
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"                      \
    "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"                                                       \
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt/] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" "  \
    "ws\n"                                                                                                             \
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"             \
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"

typedef struct sample {
    const char *grammar;
    const char *texts[6]; /* valid texts */
} sample;

static const sample samples[] = {
    {"root ::= \"ab\"", {"ab"}},
    {"root ::= \"a\" | \"ab\" | \"abc\" | \"\"", {"", "a", "ab", "abc"}},
    {"root ::= [a-c]+ \"x\"?", {"abcx", "c"}},
    {"root ::= (\"ab\" | \"a\")* \"b\"",
     {"abab"
      "b",
      "aab", "b"}},
    {"root ::= \"a\"{3} \"b\"{2,} \"c\"{0,2} \"d\"{,1}", {"aaabb", "aaabbbbccd"}},
    {"root ::= (\"a\"? \"b\"?)* \"c\"", {"c", "abbac"}},
    {"root ::= item (\", \" item)*\nitem ::= [^,\\n]+", {"x, yz, \xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x99", "a"}},
    {"root ::= [\xC3\xA4-\xC3\xBC\\u20AC-\\u30FF\\U0001F000-\\U0010FFFF]+ \"\\U0001F999\"",
     {"\xC3\xA4\xF0\x9F\xA6\x99", "\xE2\x82\xAC\xE3\x83\xBF\xF4\x8F\xBF\xBF\xF0\x9F\xA6\x99"}},
    {"root ::= .{1,3}", {"\n\xED\x9F\xBF\xEE\x80\x80", "a"}},
    {"root ::= [^a-z]{2}", {"A\xC2\x80", "\xF0\x90\x80\x80\xE0\xA0\x80"}},
    {"root ::= \"a\" root \"b\" | \"\"", {"", "aaaabbbb"}},
    {"root ::= \"a\" root | \"b\"", {"aaaaaaaaab"}},
    {"root ::= expr\nexpr ::= term ((\"+\" | \"-\") term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
     {"1+(22-(3+4))-5", "7"}},
    /* A grammar with two derivations of every prefix, and rules that match the empty text. */
    {"root ::= (x | y)* e z\nx ::= \"a\" e \"b\"\ny ::= \"a\" e \"c\" | \"ab\"\ne ::= \"\" | e2\ne2 ::= \"\"\nz ::= "
     "\"\"",
     {"abacab", ""}},
    {"root ::= p q\np ::= \"(\" p \")\" | \"\" # comment\nq ::= (\n \"x\" |\n \"(\" p \")\" )?\n\n",
     {"(())x", "()(())", ""}},
    {"root ::= a | b\na ::= \"k\" v \"1\"\nb ::= \"k\" v \"2\"\nv ::= \"[\" v \"]\" | \"<\" v \">\" | \"\"",
     {"k[<>]1", "k<<[]>>2"}},
    /* A rule of up to three characters that may end before characters that the rule also accepts. */
    {"root ::= item \"bab\"\nitem ::= [^\"\\\\\\x7F\\x00-\\x1F]{0,3}", {"abab", "bab", "abbbab"}},
    {"root ::= \"\\\"\" [^\"\\\\\\x00-\\x1F]{2,20} \"\\\"\"", {"\"She saw further.\"", "\"ab\""}},
    {JSON_GRAMMAR,
     {"{\"a\": [1, -2.5e3, \"x\\n\\u00e9\", null, {\"b\":{}}], \"\xC3\xA9\":true}", "{}", "{\n  \"k\": [[], [[]]]}"}},
};
enum { N_SAMPLES = sizeof samples / sizeof *samples };

static mr_str str(const char *s) {
    return mr_str_from(s);
}

static mr_grammar *parse(const char *text) {
    mr_grammar *g = NULL;
    mr_err err = {0};
    mr_status s = mr_grammar_parse(str(text), &g, &err);
    if (s)
        fail_msg("%s: %s\n%s", mr_status_name(s), err.text, text);
    return g;
}

typedef struct vocab {
    mr_tokenizer *tok;
    mr_grammar_vocab *v;
    int32_t n;
} vocab;

static vocab make_vocab(mr_tokenizer *tok) {
    mr_err err = {0};
    vocab v = {.tok = tok, .n = mr_tokenizer_n_tokens(tok) + 3};
    expect_ok(mr_grammar_vocab_create(v.tok, v.n, &v.v, &err), &err);
    assert_int_equal(mr_grammar_vocab_mask_words(v.v), (v.n + 63) / 64);
    return v;
}

static vocab small_vocab_of(void (*fill)(small_vocab *)) {
    static small_vocab small;
    fill(&small);
    return make_vocab(small_create(&small));
}

static void free_vocab(vocab *v) {
    mr_grammar_vocab_destroy(v->v);
    mr_tokenizer_destroy(v->tok);
}

static bool bit(const uint64_t *bits, int32_t id) {
    return bits[id / 64] >> (id % 64) & 1;
}

/* Whether the mask must allow a token behind n bytes of text. */
static bool expected_bit(gbnf_reference *ref, const vocab *v, const char *text, size_t n, int32_t id) {
    char buf[GBNF_REFERENCE_MAX_TEXT];
    bool matches, begins;
    mr_str piece;
    memcpy(buf, text, n);
    if (id < mr_tokenizer_n_tokens(v->tok) && mr_tokenizer_is_end(v->tok, id)) {
        gbnf_reference_read(ref, buf, n, &matches, &begins);
        return matches;
    }
    if (!mr_tokenizer_piece(v->tok, id, &piece) || piece.len == 0 || mr_tokenizer_is_control(v->tok, id) ||
        mr_tokenizer_type(v->tok, id) == MR_TOKEN_UNKNOWN || n + piece.len > sizeof buf)
        return false;
    memcpy(buf + n, piece.data, piece.len);
    gbnf_reference_read(ref, buf, n + piece.len, &matches, &begins);
    return begins;
}

/* The masks behind each prefix of a text, for one of `share` tokens, and all that the text may go on with; and the
 * state goes on with every token that the text has there. */
static void check_text(const mr_grammar *g, const vocab *v, gbnf_reference *ref, const char *text, size_t share) {
    mr_err err = {0};
    mr_grammar_state *s = NULL;
    size_t len = strlen(text), n_words = mr_grammar_vocab_mask_words(v->v);
    uint64_t *bits = mr_alloc_array(n_words, sizeof *bits);
    expect_ok(mr_grammar_state_create(g, v->v, &s, &err), &err);
    for (size_t at = 0; at <= len; at++) {
        uint64_t n_allocs = mr_mem_thread_allocs();
        memset(bits, 0xA5, n_words * sizeof *bits);
        expect_ok(mr_grammar_state_mask(s, bits, &err), &err);
        assert_int_equal(mr_mem_thread_allocs(), n_allocs);
        for (int32_t id = 0; id < v->n; id++) {
            mr_str piece = {NULL, 0};
            bool starts = mr_tokenizer_piece(v->tok, id, &piece) && piece.len && piece.len <= len - at &&
                          memcmp(piece.data, text + at, piece.len) == 0;
            if (!starts && ((size_t)id + at) % (share * (size_t)share_get()))
                continue;
            bool want = expected_bit(ref, v, text, at, id);
            if (bit(bits, id) != want)
                fail_msg("\"%.*s\" then token %d \"%.*s\": want %d\n%s", (int)at, text, id, (int)piece.len, piece.data,
                         want, mr_grammar_source(g).data);
            /* Every end of a token is the start of another token, so the test covers every split of the text. */
            mr_status status = mr_grammar_state_accept(s, id, &err);
            assert_int_equal(status, want ? MR_OK : MR_E_INVALID);
            if (want) {
                mr_grammar_state_reset(s);
                expect_ok(mr_grammar_state_accept_bytes(s, (mr_str){text, at}, &err), &err);
            }
        }
        assert_false(bit(bits, v->n - 1));
        if (at < len)
            expect_ok(mr_grammar_state_accept_bytes(s, (mr_str){text + at, 1}, &err), &err);
    }
    if (!mr_grammar_state_is_complete(s))
        fail_msg("\"%s\" is not complete\n%s", text, mr_grammar_source(g).data);
    mr_grammar_state_destroy(s);
    mr_free(bits);
}

static void check_samples(const vocab *v, size_t share) {
    for (size_t i = 0; i < N_SAMPLES; i++) {
        mr_grammar *g = parse(samples[i].grammar);
        gbnf_reference *ref = gbnf_reference_create(samples[i].grammar);
        for (size_t k = 0; k < 6 && samples[i].texts[k]; k++)
            check_text(g, v, ref, samples[i].texts[k], share);
        gbnf_reference_destroy(ref);
        mr_grammar_destroy(g);
    }
}

static void test_masks_spm(void **state) {
    (void)state;
    vocab v = small_vocab_of(small_spm);
    check_samples(&v, 7);
    free_vocab(&v);
}

static void test_masks_bpe(void **state) {
    (void)state;
    vocab v = small_vocab_of(small_bpe);
    check_samples(&v, 7);
    free_vocab(&v);
}

static bool real_vocab(const char *name, vocab *out) {
    char path[4096];
    const char *dir = getenv("MILLRACE_TEST_VECTORS");
    mr_gguf *file = NULL;
    mr_tokenizer *tok = NULL;
    mr_err err = {0};
    snprintf(path, sizeof path, "%s/tokenizers/ggml-vocab-%s.gguf", dir ? dir : "", name);
    if (!dir || mr_gguf_open(path, &file, &err))
        return false;
    expect_ok(mr_vocab_load(file, &tok, &err), &err);
    mr_gguf_close(file);
    *out = make_vocab(tok);
    return true;
}

static void test_masks_real(void **state) {
    (void)state;
    static const char *const names[] = {"llama-spm", "gpt-2", "qwen2", "llama-bpe", "deepseek-llm", "phi-3"};
    for (size_t i = 0; i < sizeof names / sizeof *names && (i < 2 || !share_is_small()); i++) {
        vocab v;
        if (!real_vocab(names[i], &v))
            skip();
        /* At each position of all texts: some of all tokens, and every token that is a prefix of the rest of the
         * text. */
        check_samples(&v, 4001);
        free_vocab(&v);
    }
}

/* Random grammars: some rules are called and some copied, most can be empty, end early, or be read in several ways. */
typedef struct author {
    char text[8192];
    uint64_t seed, counter;
} author;

static uint32_t dice(author *a, uint32_t n) {
    return (uint32_t)(mr_rng_u64(a->seed, 1, a->counter++) % n);
}

static void say(author *a, const char *text) {
    assert_true(strlen(a->text) + strlen(text) < sizeof a->text);
    strcat(a->text, text);
}

static void say_part(author *a, int rule, int depth) {
    static const char *const parts[] = {"\"a\"",       "\"b\"",
                                        "\"ab\"",      "\"ba\"",
                                        "[ab]",        "[^a\"\\\\\\x00-\\x1F\\x7F]",
                                        "\"\\u00e9\"", "[\\u00e9-\\u20ac]",
                                        ".",           "\"\\\"\"",
                                        "\"\""};
    static const char *const signs[] = {"", "", "", "", "?", "*", "+", "{0,2}", "{2}", "{1,}"};
    char name[16];
    uint32_t what = dice(a, 8);
    if (what == 0 && depth < 3) {
        say(a, "(");
        for (uint32_t n = 1 + dice(a, 2); n; n--) {
            say_part(a, rule, depth + 1);
            say(a, n > 1 ? " | " : "");
        }
        say(a, ")");
    } else if (what <= 2 && rule < 3) {
        snprintf(name, sizeof name, "r%u", (unsigned)rule + 1 + dice(a, 3 - (uint32_t)rule));
        say(a, name);
    } else if (what == 3) {
        /* A rule reference behind a byte may name any rule, because it is not left-recursive. */
        snprintf(name, sizeof name, "(\"b\" r%u)", dice(a, 4));
        say(a, name);
    } else {
        say(a, parts[dice(a, sizeof parts / sizeof *parts)]);
    }
    say(a, signs[dice(a, sizeof signs / sizeof *signs)]);
    say(a, " ");
}

static void write_grammar(author *a) {
    strcpy(a->text, "root ::= r0\n");
    for (int rule = 0; rule < 4; rule++) {
        char head[64];
        /* The first alternative ends every recursion. The long alternative keeps the rule from being inlined. */
        snprintf(head, sizeof head, "r%d ::= \"%c\"%s", rule, 'a' + rule % 2, dice(a, 2) ? " | \"c\"{50}" : "");
        say(a, head);
        for (uint32_t n = 1 + dice(a, 2); n; n--) {
            say(a, " | ");
            for (uint32_t k = 1 + dice(a, 3); k; k--)
                say_part(a, rule, 0);
        }
        say(a, "\n");
    }
}

/* Follows the masks of a grammar at random, and compares them. Returns the number of masks. */
static int check_walk(author *a, const mr_grammar *g, const vocab *v, gbnf_reference *ref) {
    char text[256];
    size_t n = 0;
    uint64_t bits[8];
    mr_grammar_state *s = NULL;
    mr_err err = {0};
    expect_ok(mr_grammar_state_create(g, v->v, &s, &err), &err);
    int n_masks = 0;
    for (int step = 0; step < 8 && !mr_grammar_state_is_finished(s); step++) {
        int32_t taken = -1;
        uint32_t n_allowed = 0;
        /* Some of these grammars have more derivations than the limit. */
        mr_status status = mr_grammar_state_mask(s, bits, &err);
        if (status == MR_E_TOO_LONG)
            break;
        expect_ok(status, &err);
        n_masks++;
        for (int32_t id = 0; id < v->n; id++) {
            mr_str piece;
            if (bit(bits, id) != expected_bit(ref, v, text, n, id))
                fail_msg("seed %llu: \"%.*s\" then token %d: the mask says %d\n%s", (unsigned long long)a->seed, (int)n,
                         text, id, bit(bits, id), a->text);
            bool end = id < v->n - 3 && mr_tokenizer_is_end(v->tok, id);
            if (bit(bits, id) && !end && dice(a, ++n_allowed) == 0 && mr_tokenizer_piece(v->tok, id, &piece))
                taken = id;
        }
        if (taken < 0)
            break;
        mr_str piece;
        assert_true(mr_tokenizer_piece(v->tok, taken, &piece));
        memcpy(text + n, piece.data, piece.len);
        n += piece.len;
        status = mr_grammar_state_accept(s, taken, &err);
        if (status == MR_E_TOO_LONG)
            break;
        expect_ok(status, &err);
    }
    mr_grammar_state_destroy(s);
    return n_masks;
}

static void test_random_grammars(void **state) {
    (void)state;
    vocab v = small_vocab_of(small_spm);
    int n_masks = 0, n_grammars = 0;
    for (uint64_t seed = 1 + (uint64_t)share_first(40); seed <= 40; seed += (uint64_t)share_get()) {
        author a = {.seed = seed};
        write_grammar(&a);
        mr_grammar *g = parse(a.text);
        gbnf_reference *ref = gbnf_reference_create(a.text);
        for (int walks = 0; walks < 2; walks++)
            n_masks += check_walk(&a, g, &v, ref);
        n_grammars++;
        gbnf_reference_destroy(ref);
        mr_grammar_destroy(g);
    }
    assert_true(n_masks > n_grammars * 5);
    free_vocab(&v);
}

static void test_ends(void **state) {
    (void)state;
    vocab v = small_vocab_of(small_spm);
    mr_grammar *g = parse("root ::= \"a\" \"b\"?");
    mr_grammar_state *s = NULL;
    mr_err err = {0};
    uint64_t bits[8];
    int32_t eos = mr_tokenizer_eos_id(v.tok);
    expect_ok(mr_grammar_state_create(g, v.v, &s, &err), &err);
    assert_int_equal(mr_grammar_state_accept(s, eos, &err), MR_E_INVALID);
    assert_false(mr_grammar_state_is_complete(s));
    expect_ok(mr_grammar_state_accept(s, SPM_A, &err), &err);
    assert_true(mr_grammar_state_is_complete(s) && !mr_grammar_state_is_finished(s));
    expect_ok(mr_grammar_state_accept(s, SPM_B, &err), &err);
    assert_true(mr_grammar_state_is_finished(s));
    assert_int_equal(mr_grammar_state_accept(s, SPM_B, &err), MR_E_INVALID);
    expect_ok(mr_grammar_state_accept(s, eos, &err), &err);
    expect_ok(mr_grammar_state_accept(s, eos, &err), &err);
    assert_int_equal(mr_grammar_state_accept(s, SPM_B, &err), MR_E_INVALID);
    mr_grammar_state_reset(s);
    expect_ok(mr_grammar_state_accept(s, SPM_AB, &err), &err);
    expect_ok(mr_grammar_state_accept(s, eos, &err), &err);
    mr_grammar_state_reset(s);
    expect_ok(mr_grammar_state_accept(s, SPM_A, &err), &err);
    expect_ok(mr_grammar_state_accept(s, eos, &err), &err);
    expect_ok(mr_grammar_state_mask(s, bits, &err), &err);
    assert_true(bit(bits, eos));
    assert_false(bit(bits, SPM_B));
    assert_int_equal(mr_grammar_state_accept(s, -1, &err), MR_E_INVALID);
    assert_int_equal(mr_grammar_state_accept(s, v.n, &err), MR_E_INVALID);
    mr_grammar_state_destroy(s);
    mr_grammar_destroy(g);
    free_vocab(&v);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        mr_status status;
        const char *says;
    } bad[] = {
        {"", MR_E_FORMAT, "no rule \"root\""},
        {"a ::= \"x\"", MR_E_FORMAT, "no rule \"root\""},
        {"root ::= a", MR_E_FORMAT, "\"a\" is not defined"},
        {"root ::= \"a\"\nroot ::= \"b\"", MR_E_FORMAT, "line 2"},
        {"root = \"a\"", MR_E_FORMAT, "::="},
        {"root ::= \"a", MR_E_FORMAT, "not closed"},
        {"root ::= [a", MR_E_FORMAT, "not closed"},
        {"root ::= [b-a]", MR_E_FORMAT, "backwards"},
        {"root ::= (\"a\"", MR_E_FORMAT, "not closed"},
        {"root ::= \"a\")", MR_E_FORMAT, "without"},
        {"root ::= *", MR_E_FORMAT, "before a repeat"},
        {"root ::= \"a\"{", MR_E_FORMAT, "number"},
        {"root ::= \"a\"{2,1}", MR_E_FORMAT, "below its minimum"},
        {"root ::= \"a\"{99999999999}", MR_E_TOO_LONG, "repeat"},
        {"root ::= \"\\q\"", MR_E_FORMAT, "escape"},
        {"root ::= \"\\uD800\"", MR_E_FORMAT, "escape"},
        {"root ::= \"\xFF\"", MR_E_FORMAT, "UTF-8"},
        {"root ::= a\na ::= b \"x\"\nb ::= a | \"y\"", MR_E_UNSUPPORTED, "left recursion"},
        {"root ::= e root \"x\" | \"y\"\ne ::= \"\" | \"z\" e", MR_E_UNSUPPORTED, "\"root\""},
        {"root ::= []", MR_E_INVALID, "no text"},
        {"root ::= \"a\" root", MR_E_INVALID, "no text"},
        {"root ::= [ab]* \"a\" [ab]{20}", MR_E_TOO_LONG, "large"},
        {"root ::= ((((\"ab\"{1000}){1000}){1000}){1000}){1000} x\nx ::= ((((\"b\"{1000}){1000}){1000}){1000}) \"c\" | "
         "\"\"",
         MR_OK, ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mr_grammar *g = NULL;
        mr_err err = {0};
        mr_status s = mr_grammar_parse(str(bad[i].text), &g, &err);
        if (s != bad[i].status || !strstr(err.text, bad[i].says))
            fail_msg("%s\n%s: %s", bad[i].text, mr_status_name(s), err.text);
        mr_grammar_destroy(g);
    }
}

static void test_pack(void **state) {
    (void)state;
    mr_grammar *g = parse(JSON_GRAMMAR), *copy = NULL;
    mr_err err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    expect_ok(mr_grammar_pack(g, &bytes, &n, &err), &err);
    expect_ok(mr_grammar_unpack(bytes, n, &copy, &err), &err);
    assert_true(mr_str_equal(mr_grammar_source(g), mr_grammar_source(copy)));
    assert_int_equal(mr_grammar_unpack(bytes, 3, &copy, &err), MR_E_FORMAT);
    bytes[3]++;
    assert_int_equal(mr_grammar_unpack(bytes, n, &copy, &err), MR_E_FORMAT);
    mr_free(bytes);
    mr_grammar_destroy(copy);
    mr_grammar_destroy(g);
}

/* Nesting has an end, and what was there before the token that went beyond it stays. */
static void test_deep(void **state) {
    (void)state;
    vocab v = small_vocab_of(small_spm);
    mr_grammar *g = parse("root ::= \"a\" root \"b\" | \"\"");
    mr_grammar_state *s = NULL;
    mr_err err = {0};
    int32_t depth = 0;
    expect_ok(mr_grammar_state_create(g, v.v, &s, &err), &err);
    while (mr_grammar_state_accept(s, SPM_A, &err) == MR_OK)
        depth++;
    assert_int_equal(err.status, MR_E_TOO_LONG);
    assert_int_equal(depth, MR_GRAMMAR_MAX_DEPTH);
    for (int32_t i = 0; i < depth; i++)
        expect_ok(mr_grammar_state_accept(s, SPM_B, &err), &err);
    assert_true(mr_grammar_state_is_finished(s));
    mr_grammar_state_destroy(s);
    mr_grammar_destroy(g);
    free_vocab(&v);
}

static void test_ambiguous(void **state) {
    (void)state;
    mr_err err = {0};
    mr_grammar *g = NULL;
    /* Each level doubles the number of derivations of the first byte. */
    char text[4096] = "root ::= r0 | \"\"\n";
    for (int i = 0; i < 12; i++)
        snprintf(text + strlen(text), 256,
                 "r%d ::= p%d \"b\"{300} | q%d \"a\"{300}\np%d ::= r%d \"c\"{300}\nq%d ::= r%d \"d\"{300}\n", i, i, i,
                 i, i + 1, i, i + 1);
    strcat(text, "r12 ::= \"a\"{1,300}\n");
    expect_fails(mr_grammar_parse(str(text), &g, &err), MR_E_TOO_LONG, &err, "too many readings");
    assert_null(g);
}

/* Ways to read a text may become too many on the way: that is one error, and the state stays as it was. */
static void test_ambiguous_later(void **state) {
    (void)state;
    vocab v = small_vocab_of(small_spm);
    mr_grammar *g =
        parse("root ::= \"b\" (p \"a\"{50} | q \"b\"{50} | \"\")\np ::= root \"x\"{50}\nq ::= root \"y\"{50}\n");
    mr_grammar_state *s = NULL;
    mr_err err = {0};
    expect_ok(mr_grammar_state_create(g, v.v, &s, &err), &err);
    int n = 0;
    while (mr_grammar_state_accept(s, SPM_B, &err) == MR_OK && n < 100)
        n++;
    assert_true(n >= 5 && n < 100);
    assert_int_equal(err.status, MR_E_TOO_LONG);
    assert_int_equal(mr_grammar_state_accept(s, SPM_B, &err), MR_E_TOO_LONG);
    expect_ok(mr_grammar_state_accept_bytes(s, str("xx"), &err), &err);
    mr_grammar_state_destroy(s);
    mr_grammar_destroy(g);
    free_vocab(&v);
}

static void test_no_memory(void **state) {
    (void)state;
    static small_vocab small;
    small_spm(&small);
    mr_tokenizer *tok = small_create(&small);
    for (int64_t fail_at = 0, done = 0; !done; fail_at++) {
        mr_grammar *g = NULL;
        mr_grammar_vocab *v = NULL;
        mr_grammar_state *s = NULL;
        mr_err err = {0};
        mr_mem_fail_at(fail_at);
        mr_status status = mr_grammar_parse(str(JSON_GRAMMAR), &g, &err);
        if (status == MR_OK)
            status = mr_grammar_vocab_create(tok, mr_tokenizer_n_tokens(tok), &v, &err);
        if (status == MR_OK)
            status = mr_grammar_state_create(g, v, &s, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        assert_int_equal(status == MR_OK, s != NULL);
        done = status == MR_OK;
        assert_true(fail_at > 10 || !done);
        mr_grammar_state_destroy(s);
        mr_grammar_vocab_destroy(v);
        mr_grammar_destroy(g);
    }
    mr_tokenizer_destroy(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_spm),  cmocka_unit_test(test_masks_bpe),
        cmocka_unit_test(test_masks_real), cmocka_unit_test(test_random_grammars),
        cmocka_unit_test(test_ends),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_pack),       cmocka_unit_test(test_deep),
        cmocka_unit_test(test_ambiguous),  cmocka_unit_test(test_ambiguous_later),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
