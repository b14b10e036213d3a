/* Grammars of the last stage are shared while in use, kept for a while, then dropped. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/support/test.h"
#include "worker/stage/grammars.h"

enum { N_VOCAB = 1024, WORDS = N_VOCAB / 64, N_MANY = 50 };

static mr_gguf *gguf;
static mr_grammars *all;

static int setup(void **state) {
    (void)state;
    mr_err err;
    return mr_gguf_open(MILLRACE_SOURCE_DIR "/deploy/demo/millrace-demo.gguf", &gguf, &err) != MR_OK ||
           mr_grammars_create(gguf, N_VOCAB, &all, &err) != MR_OK;
}

static int teardown(void **state) {
    (void)state;
    mr_grammars_destroy(all);
    mr_gguf_close(gguf);
    return 0;
}

/* Packs "root ::= TEXT"; freed by the caller. */
static uint8_t *pack(const char *rule, size_t *n) {
    char gbnf[200];
    mr_grammar *g = NULL;
    uint8_t *bytes = NULL;
    mr_err err;
    snprintf(gbnf, sizeof gbnf, "root ::= %s", rule);
    if (mr_grammar_parse(mr_str_from(gbnf), &g, &err) != MR_OK || mr_grammar_pack(g, &bytes, n, &err) != MR_OK)
        fail_msg("%s", err.text);
    mr_grammar_destroy(g);
    return bytes;
}

static mr_grammar_use *open_rule(const char *rule) {
    size_t n;
    uint8_t *bytes = pack(rule, &n);
    mr_grammar_use *use = NULL;
    mr_err err;
    expect_ok(mr_grammars_open(all, bytes, n, &use, &err), &err);
    mr_free(bytes);
    return use;
}

static void mask(mr_grammar_use *use, uint64_t bits[WORDS]) {
    mr_err err;
    uint64_t before = mr_mem_thread_allocs();
    expect_ok(mr_grammar_state_mask(use->state, bits, &err), &err);
    assert_int_equal(mr_mem_thread_allocs(), before);
}

static void test_sharing(void **state) {
    (void)state;
    uint64_t fresh[WORDS], later[WORDS];
    mr_err err;
    mr_grammar_use *a = open_rule("\"ab\"+"), *b = open_rule("\"ab\"+"), *c = open_rule("\"ba\"+");
    assert_ptr_equal(a->entry, b->entry);
    assert_ptr_not_equal(a->entry, c->entry);
    assert_ptr_not_equal(a->state, b->state);
    mask(a, fresh);
    /* A state that has advanced is back at the start for the next sequence. The two states are independent. */
    expect_ok(mr_grammar_state_accept_bytes(a->state, mr_str_from("aba"), &err), &err);
    mask(a, later);
    assert_memory_not_equal(later, fresh, sizeof fresh);
    mask(b, later);
    assert_memory_equal(later, fresh, sizeof fresh);
    mr_grammar_state *kept = a->state;
    mr_grammars_close(all, a);
    a = open_rule("\"ab\"+");
    assert_ptr_equal(a->state, kept);
    mask(a, later);
    assert_memory_equal(later, fresh, sizeof fresh);
    mr_grammars_close(all, a);
    mr_grammars_close(all, b);
    mr_grammars_close(all, c);
    mr_grammars_close(all, NULL);
}

/* Many grammars, in use at once and one after the other: what is used stays. */
static void test_many(void **state) {
    (void)state;
    mr_grammar_use *first = open_rule("\"first\""), *uses[N_MANY];
    uint64_t before[WORDS], after[WORDS];
    char rule[32];
    mask(first, before);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < N_MANY; i++) {
            snprintf(rule, sizeof rule, "\"%d\" | \"x\"", i + turn);
            uses[i] = open_rule(rule);
            if (turn == 2)
                mr_grammars_close(all, uses[i]);
        }
        for (int i = 0; i < N_MANY && turn < 2; i++)
            mr_grammars_close(all, uses[i]);
    }
    mask(first, after);
    assert_memory_equal(before, after, sizeof before);
    mr_grammars_close(all, first);
}

static void test_malformed(void **state) {
    (void)state;
    static const uint8_t junk[] = {1, 2, 3};
    mr_grammar_use *use = NULL;
    mr_err err;
    assert_int_not_equal(mr_grammars_open(all, junk, sizeof junk, &use, &err), MR_OK);
    assert_null(use);
}

static uint64_t count_allocs_of_open(const char *rule) {
    uint64_t packing = mr_mem_thread_allocs();
    size_t n;
    mr_free(pack(rule, &n));
    uint64_t before = mr_mem_thread_allocs();
    packing = before - packing;
    mr_grammars_close(all, open_rule(rule));
    return mr_mem_thread_allocs() - before - packing;
}

/* A grammar that finds no memory gets that of grammars that were kept. What is in use stays. */
static void test_kept_ones_make_room(void **state) {
    (void)state;
    uint64_t before[WORDS], after[WORDS];
    size_t n;
    uint8_t *bytes = pack("\"makes room\"", &n);
    mr_grammar_use *used = open_rule("\"used\""), *use = NULL;
    mr_err err;
    mr_grammars_close(all, open_rule("\"used\""));
    mr_grammars_close(all, open_rule("\"kept\""));
    mask(used, before);
    assert_int_equal(count_allocs_of_open("\"kept\""), 0);
    mr_mem_fail_at(0);
    expect_ok(mr_grammars_open(all, bytes, n, &use, &err), &err);
    mr_mem_fail_at(-1);
    assert_true(count_allocs_of_open("\"kept\"") > 0);
    assert_true(count_allocs_of_open("\"used\"") > 0); /* the grammar is there, its kept state is not */
    mask(used, after);
    assert_memory_equal(before, after, sizeof before);
    mr_grammars_close(all, used);
    mr_grammars_close(all, use);
    mr_free(bytes);
}

static void test_failing_allocations(void **state) {
    (void)state;
    mr_grammars *shared = all;
    mr_err created;
    expect_ok(mr_grammars_create(gguf, N_VOCAB, &all, &created), &created); /* which keeps nothing */
    size_t n;
    uint8_t *bytes = pack("\"never seen before\"", &n);
    mr_status status = MR_E_NO_MEMORY;
    int n_failed = 0;
    for (; status != MR_OK; n_failed++) {
        mr_grammar_use *use = NULL;
        mr_err err;
        assert_true(n_failed < 2000);
        mr_mem_fail_at(n_failed);
        status = mr_grammars_open(all, bytes, n, &use, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK ? use != NULL : use == NULL && status == MR_E_NO_MEMORY);
        mr_grammars_close(all, use);
    }
    assert_true(n_failed > 3);
    mr_free(bytes);
    mr_grammars_destroy(all);
    all = shared;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_kept_ones_make_room),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
