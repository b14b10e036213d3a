/* The places where the regular expressions cut a text. The cost grows linearly with the text. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/text/pretokenize.h"
#include "tests/support/test.h"

/* One name for each set of patterns. */
static const char *const NAMES[] = {"gpt-2",        "llama-bpe", "qwen2",   "qwen35",      "seed-coder",
                                    "gpt-4o",       "tekken",    "kimi-k2", "deepseek-v3", "deepseek-coder",
                                    "deepseek-llm", "starcoder", "falcon"};

static pretokenizer *create(const char *name, pretok_jit jit) {
    mr_err err;
    pretokenizer *p = NULL;
    expect_ok(pretokenizer_create(mr_str_from(name), jit, &p, &err), &err);
    return p;
}

/* want: the words with '|' between them. Both ways of matching must cut there. */
static void expect_words(const char *name, const char *text, const char *want) {
    const pretok_jit ways[] = {PRETOK_JIT_IF_POSSIBLE, PRETOK_JIT_NEVER};
    for (int way = 0; way < 2; way++) {
        pretokenizer *p = create(name, ways[way]);
        pretok_work w = {0};
        mr_err err;
        char got[256] = "";
        expect_ok(pretokenizer_split(p, &w, mr_str_from(text), &err), &err);
        for (size_t i = 0, from = 0; i < w.n; from = w.ends[i++])
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s", i ? "|" : "", (int)(w.ends[i] - from),
                     text + from);
        assert_string_equal(got, want);
        pretok_work_deinit(&w);
        pretokenizer_destroy(p);
    }
}

static void test_gpt2(void **state) {
    (void)state;
    expect_words("gpt-2", "", "");
    expect_words("gpt-2", "Hello world", "Hello| world");
    expect_words("gpt-2", "I'm he'LL  x", "I|'m| he|'|LL| | x");
    expect_words("gpt-2", "a1 23!? \n", "a|1| 23|!?| \n");
    expect_words("gpt-2", "a \u00A0\u3000b", "a| \u00A0|\u3000|b"); /* white space other than the space */
    expect_words("gpt-2", "\u180E\u200B", "\u180E\u200B");          /* no white space in Unicode */
}

static void test_llama_bpe(void **state) {
    (void)state;
    expect_words("llama-bpe", "I'm he'LL", "I|'m| he|'LL");
    expect_words("llama-bpe", "12345 6", "123|45| |6");
    expect_words("llama-bpe", "(foo)!\n\n x\r\n  y", "(foo|)!\n\n| x|\r\n| | y");
    expect_words("llama-bpe", "a   \n  b", "a|   \n| | b");
    expect_words("llama3", "a\u0130", "a\u0130");
}

static void test_qwen2(void **state) {
    (void)state;
    expect_words("qwen2", "12 x3", "1|2| x|3");
    expect_words("deepseek-r1-qwen", "it'S\u00BD", "it|'S|\u00BD");
}

static void test_deepseek_llm(void **state) {
    (void)state;
    expect_words("deepseek-llm", "ab 12\r\n  cd!  ", "ab| |1|2|\r|\n| | cd|!|  ");
    expect_words("deepseek-llm", "\u6211\u60F3x\u3002", "\u6211\u60F3|x|\u3002");
    expect_words("deepseek-llm", "\u0531\u0561", "\u0531|\u0561"); /* the rule has no Armenian small letters */
}

static void test_qwen35(void **state) {
    (void)state;
    expect_words("qwen35", "e\u0301tat 12", "e\u0301tat| |1|2"); /* a mark belongs to its word */
    expect_words("qwen2", "e\u0301tat", "e|\u0301tat");
}

static void test_gpt_4o(void **state) {
    (void)state;
    expect_words("gpt-4o", "camelCase'S HTTPServer", "camel|Case'S| HTTPServer");
    expect_words("llama4", "12345 ok!//\n", "123|45| ok|!//\n");
    expect_words("minimax-m2", "e\u0301t", "e\u0301t");
}

static void test_tekken(void **state) {
    (void)state;
    expect_words("tekken", "it's camelCase 12", "it|'s| camel|Case| |1|2");
}

static void test_kimi_k2(void **state) {
    (void)state;
    expect_words("kimi-k2", "a\u4E2D\u6587bC \u4E2D 1234", "a|\u4E2D\u6587|b|C| |\u4E2D| |123|4");
    expect_words("kimi-k2", "\u3007\u2F00\u3042 !\u2F00", "\u3007\u2F00|\u3042| !\u2F00"); /* Han that is no letter */
}

static void test_deepseek_v3(void **state) {
    (void)state;
    expect_words("deepseek-v3", "#include 1234", "#include| |123|4");
    expect_words("joyai-llm", "a\u4E2D\u3042b\u0301!\n", "a|\u4E2D\u3042|b\u0301|!\n");
    expect_words("deepseek-coder", "ab 12\n (c)", "ab| |1|2|\n| (|c|)");
}

static void test_digits(void **state) {
    (void)state;
    expect_words("starcoder", "a  12 b", "a|  |1|2| b"); /* the last space stays with the run */
    expect_words("gpt-2", "a  12 b", "a| | 12| b");
    expect_words("seed-coder", "!\n1", "!|\n|1");
    expect_words("falcon", "I'm 1234+\u0661", "I|'|m| |123|4|+|\u0661");
}

static void test_names(void **state) {
    (void)state;
    mr_err err;
    pretokenizer *p = NULL;
    assert_int_equal(pretokenizer_create(mr_str_from("bar\n\"baz"), PRETOK_JIT_NEVER, &p, &err), MR_E_UNSUPPORTED);
    assert_string_equal(err.text, "unknown pre-tokenizer \"bar?\"baz\"; known are gpt-2, llama-bpe, glm4, chatglm-bpe, "
                                  "qwen2, hunyuan, kimi-k2, qwen35, seed-coder, gpt-4o, tekken, deepseek-v3, "
                                  "deepseek-coder, deepseek-llm, starcoder, falcon and some of the same kinds");
    assert_null(p);
    p = create("", PRETOK_JIT_NEVER);
    assert_false(pretokenizer_ignores_merges(p) || pretokenizer_adds_bos(p));
    pretokenizer_destroy(p);
    p = create("llama-v3", PRETOK_JIT_NEVER);
    assert_true(pretokenizer_ignores_merges(p) && pretokenizer_adds_bos(p) && !pretokenizer_ids_are_ranks(p));
    pretokenizer_destroy(p);
    p = create("kimi-k2", PRETOK_JIT_NEVER);
    assert_true(pretokenizer_ignores_merges(p) && !pretokenizer_adds_bos(p) && pretokenizer_ids_are_ranks(p));
    pretokenizer_destroy(p);
}

/* Repeats unit over n bytes and ends with tail. */
static void fill(char *text, size_t n, const char *unit, const char *tail) {
    size_t len = strlen(unit), n_tail = strlen(tail);
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % len];
    memcpy(text + n - n_tail, tail, n_tail);
}

/* The interpreter counts its steps, and fails where a pattern takes more than in proportion; the compiled patterns have
 * a stack that must not depend on the text. */
static void test_long_texts(void **state) {
    (void)state;
    enum { N = 120000 };
    static const char *const units[][2] = {
        {"a", ""},
        {" ", ""},
        {" ", "x"},
        {"\n", ""},
        {" ", "\n x"},
        {"\r\n ", "."},
        {"7", ""},
        {"'", ""},
        {"!", "a"},
        {"\t ", "\u3000"},
        {"\u6211\u60F3", ""},
        {" a", ""},
        {"!\n", ""},
        {"\u3000 ", ""},
        {"'S", ""},
        {"\u0301\u0300", ""},
        {"A", ""},
        {"A", "a"},
        {"aA", ""},
        {"A\u6211", ""},
        {"\x01", ""},
        {"\u3042\u6211", "A"},
    };
    char *text = mr_alloc(N);
    for (size_t k = 0; k < sizeof NAMES / sizeof *NAMES; k++)
        for (int way = 0; way < 2; way++) {
            pretokenizer *p = create(NAMES[k], way ? PRETOK_JIT_NEVER : PRETOK_JIT_IF_POSSIBLE);
            pretok_work w = {0};
            for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
                mr_err err;
                fill(text, N, units[u][0], units[u][1]);
                int64_t start = mr_clock_now_ns();
                mr_status s = pretokenizer_split(p, &w, (mr_str){text, N}, &err);
                int64_t took = mr_clock_now_ns() - start;
                if (s || w.n == 0 || w.ends[w.n - 1] != N)
                    fail_msg("%s on '%s': %s", NAMES[k], units[u][0], s ? err.text : "words are missing");
                /* A quadratic algorithm would take minutes. Sanitizers make the linear one ten times slower. */
                if (took > 20 * MR_NS_PER_S)
                    fail_msg("%s on '%s' took %.1f s", NAMES[k], units[u][0], (double)took / 1e9);
            }
            pretok_work_deinit(&w);
            pretokenizer_destroy(p);
        }
    mr_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),         cmocka_unit_test(test_llama_bpe), cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_deepseek_llm), cmocka_unit_test(test_qwen35),    cmocka_unit_test(test_gpt_4o),
        cmocka_unit_test(test_tekken),       cmocka_unit_test(test_kimi_k2),   cmocka_unit_test(test_deepseek_v3),
        cmocka_unit_test(test_digits),       cmocka_unit_test(test_names),     cmocka_unit_test(test_long_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
