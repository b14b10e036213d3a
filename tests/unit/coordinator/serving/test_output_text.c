/* The text of a generation: stop texts that span tokens, and text that is held back. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/text/output_text.h"
#include "tests/support/test.h"

/* One token for each byte, and a few longer ones. */
enum { N_BYTES = 256, ABC = N_BYTES, NEWLINE_USER, N };

static mr_tokenizer *make_tokenizer(void) {
    static char names[N_BYTES][8];
    static mr_str tokens[N];
    static int32_t types[N];
    static float scores[N];
    for (int b = 0; b < N_BYTES; b++) {
        snprintf(names[b], sizeof names[b], "<0x%02X>", (unsigned)b);
        tokens[b] = mr_str_from(names[b]);
        types[b] = MR_TOKEN_BYTE;
    }
    tokens[ABC] = mr_str_from("abc");
    tokens[NEWLINE_USER] = mr_str_from("\nUser");
    types[ABC] = types[NEWLINE_USER] = MR_TOKEN_NORMAL;
    mr_vocab_desc d = mr_vocab_desc_empty();
    d.model = mr_str_from("llama");
    d.n_tokens = d.n_types = d.n_scores = N;
    d.tokens = tokens;
    d.types = types;
    d.scores = scores;
    mr_tokenizer *tok = NULL;
    mr_err err;
    expect_ok(mr_tokenizer_create(&d, &tok, &err), &err);
    return tok;
}

static mr_tokenizer *tok;

static void push(mr_output_text *t, int32_t id) {
    mr_err err;
    expect_ok(mr_output_text_push(t, id, &err), &err);
}

/* Pushes text byte by byte, until it is stopped. The text that may be shown never shrinks. */
static void push_bytes(mr_output_text *t, const char *text) {
    for (; *text && !t->stopped; text++) {
        size_t before = mr_output_text_ready(t);
        push(t, (unsigned char)*text);
        assert_true(mr_output_text_ready(t) >= before);
    }
}

static void check(const mr_output_text *t, const char *text, size_t ready, bool stopped) {
    assert_string_equal(t->text.data ? t->text.data : "", text);
    assert_int_equal(mr_output_text_ready(t), ready);
    assert_int_equal(t->stopped, stopped);
}

static mr_output_text begin(const char *const *stops, int32_t n) {
    mr_output_text t;
    mr_output_text_init(&t, tok, MR_DECODE_CONTINUES, stops, n);
    return t;
}

static void test_without_stops(void **state) {
    (void)state;
    mr_output_text t = begin(NULL, 0);
    push_bytes(&t, "one");
    push(&t, ABC);
    check(&t, "oneabc", 6, false);
    mr_output_text_deinit(&t);
}

static void test_stop_over_tokens(void **state) {
    (void)state;
    const char *const stops[] = {"\nUser:"};
    mr_output_text t = begin(stops, 1);
    push_bytes(&t, "yes");
    push(&t, NEWLINE_USER);
    check(&t, "yes\nUser", 3, false); /* "\nUser" may still become the stop text */
    push_bytes(&t, ":");
    check(&t, "yes", 3, true);
    push_bytes(&t, "more");
    check(&t, "yes", 3, true);
    mr_output_text_deinit(&t);
}

static void test_almost_a_stop(void **state) {
    (void)state;
    const char *const stops[] = {"aab"};
    mr_output_text t = begin(stops, 1);
    push_bytes(&t, "aa");
    check(&t, "aa", 0, false);
    push_bytes(&t, "a"); /* the first a can no longer begin the stop text */
    check(&t, "aaa", 1, false);
    push_bytes(&t, "c");
    check(&t, "aaac", 4, false);
    push_bytes(&t, "aaab");
    check(&t, "aaaca", 5, true);
    mr_output_text_deinit(&t);
}

static void test_stop_inside_a_token(void **state) {
    (void)state;
    const char *const stops[] = {"b"};
    mr_output_text t = begin(stops, 1);
    push_bytes(&t, "x");
    push(&t, ABC);
    check(&t, "xa", 2, true);
    mr_output_text_deinit(&t);
}

/* The end of the text does not depend on how tokens divide it. */
static void test_several_stops(void **state) {
    (void)state;
    const char *const stops[] = {"abc", "b", "zab"};
    mr_output_text t = begin(stops, 3), u = begin(stops, 3), v = begin(stops, 3);
    push(&t, ABC);
    check(&t, "a", 1, true); /* "b" is complete before "abc" */
    push_bytes(&u, "abc");
    check(&u, "a", 1, true);
    push_bytes(&v, "yzab");
    check(&v, "y", 1, true); /* "b" and "zab" end at the same byte: the longer stop text counts */
    mr_output_text_deinit(&t);
    mr_output_text_deinit(&u);
    mr_output_text_deinit(&v);
}

static void test_end_shows_what_was_held(void **state) {
    (void)state;
    const char *const stops[] = {"abcd"};
    mr_output_text t = begin(stops, 1);
    mr_err err;
    push_bytes(&t, "xabc");
    check(&t, "xabc", 1, false);
    expect_ok(mr_output_text_end(&t, &err), &err);
    check(&t, "xabc", 4, false);
    push_bytes(&t, "d"); /* tokens after the end are ignored */
    check(&t, "xabc", 4, false);
    mr_output_text_deinit(&t);
}

static void test_characters(void **state) {
    (void)state;
    const char *const stops[] = {"\xC3\xA9"}; /* e with acute */
    mr_output_text t = begin(stops, 1), u = begin(stops, 1);
    mr_err err;
    push_bytes(&t, "caf\xC3");
    check(&t, "caf", 3, false);
    push_bytes(&t, "\xA8."); /* e with grave */
    check(&t, "caf\xC3\xA8.", 6, false);
    push_bytes(&t, "\xC3\xA9");
    check(&t, "caf\xC3\xA8.", 6, true);
    push_bytes(&u, "x\xE2\x82");
    expect_ok(mr_output_text_end(&u, &err), &err);
    check(&u, "x\xEF\xBF\xBD", 4, false);
    mr_output_text_deinit(&t);
    mr_output_text_deinit(&u);
}

static void test_ids_without_text(void **state) {
    (void)state;
    mr_output_text t = begin(NULL, 0);
    push(&t, N);
    push(&t, N + 1000);
    push(&t, -1);
    check(&t, "", 0, false);
    mr_output_text_deinit(&t);
}

static int setup(void **state) {
    (void)state;
    tok = make_tokenizer();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    mr_tokenizer_destroy(tok);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_stops), cmocka_unit_test(test_stop_over_tokens),
        cmocka_unit_test(test_almost_a_stop), cmocka_unit_test(test_stop_inside_a_token),
        cmocka_unit_test(test_several_stops), cmocka_unit_test(test_end_shows_what_was_held),
        cmocka_unit_test(test_characters),    cmocka_unit_test(test_ids_without_text),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
