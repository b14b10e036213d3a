/* The journal grows without moving its entries, and a failed append changes nothing. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/job/journal.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

static const mr_prefix_key base;
enum { N = 300, N_PROMPT = 3, MAX_IDS = 7 };

static mr_status append(mr_journal *j, int32_t number, int64_t *out_sequence, mr_err *err) {
    /* Valid during this call only: the journal copies the ids. */
    int32_t ids[N_PROMPT] = {number, number + 1, number + 2};
    mr_sequence_desc desc = {
        .prompt_ids = ids, .n_prompt = N_PROMPT, .max_tokens = 4, .sampling.seed = (uint64_t)number};
    return mr_journal_append(j, &desc, MAX_IDS, out_sequence, err);
}

static void check_entry(const mr_entry *e, int32_t number) {
    assert_int_equal(e->sequence, number);
    assert_int_equal(e->desc.sampling.seed, number);
    assert_non_null(e->desc.kept);
    assert_int_equal(e->n_prompt, N_PROMPT);
    assert_int_equal(e->n_ids, N_PROMPT);
    assert_int_equal(e->max_ids, MAX_IDS);
    assert_int_equal(e->state, MR_ENTRY_WAITING);
    assert_int_equal(e->slot, -1);
    for (int32_t i = 0; i < N_PROMPT; i++)
        assert_int_equal(e->desc.prompt_ids[i], number + i);
}

/* Entries and their ids stay where they are while the journal grows; ids grow up to the limit without memory. */
static void test_growth(void **state) {
    (void)state;
    static mr_entry *entries[N];
    mr_journal *j;
    mr_err err;
    expect_ok(mr_journal_create(&base, &j, &err), &err);
    for (int32_t i = 0; i < N; i++) {
        int64_t sequence = -1;
        expect_ok(append(j, i, &sequence, &err), &err);
        assert_int_equal(sequence, i);
        entries[i] = mr_journal_entry(j, i);
    }
    assert_int_equal(mr_journal_count(j), N);
    uint64_t before = mr_mem_thread_allocs();
    for (int32_t i = 0; i < N; i++) {
        assert_ptr_equal(mr_journal_entry(j, i), entries[i]);
        check_entry(entries[i], i);
        while (entries[i]->n_ids < entries[i]->max_ids)
            mr_entry_add_id(entries[i], i);
    }
    assert_int_equal(mr_mem_thread_allocs(), before);
    mr_journal_destroy(j);
}

/* Ids come from the prompt and from behind it. */
static void check_ids(const mr_entry *e) {
    for (int32_t first = 0; first <= e->n_ids; first++)
        for (int32_t n = 0; first + n <= e->n_ids; n++) {
            int32_t ids[MAX_IDS + 1] = {0};
            mr_entry_copy_ids(e, first, n, ids);
            for (int32_t i = 0; i < n; i++)
                assert_int_equal(ids[i], 100 + first + i);
            assert_int_equal(ids[n], 0);
        }
}

/* Sequences of one description share what it names, which is there until the last of them is forgotten, whoever else
 * has let go of it before. */
static void test_sharing(void **state) {
    (void)state;
    const int32_t ids[] = {100, 101, 102}, late_ids[] = {7, 8};
    const float biases[] = {0.5F};
    const uint8_t grammar[] = {1, 2, 3};
    const mr_sequence_desc desc = {
        .prompt_ids = ids,
        .n_prompt = N_PROMPT,
        .sampling = {.bias_ids = ids, .biases = biases, .n_biases = 1, .late_ids = late_ids, .n_late_ids = 2},
        .grammar = grammar,
        .grammar_bytes = sizeof grammar};
    mr_sequence_desc kept;
    mr_journal *j;
    mr_err err;
    expect_ok(mr_journal_create(&base, &j, &err), &err);
    assert_true(mr_sequence_desc_keep(&desc, &base, &kept));
    for (int64_t i = 0; i < 2; i++) {
        int64_t sequence;
        expect_ok(mr_journal_append(j, &kept, MAX_IDS, &sequence, &err), &err);
        mr_entry *e = mr_journal_entry(j, sequence);
        assert_ptr_equal(e->desc.prompt_ids, kept.prompt_ids);
        assert_ptr_equal(e->desc.grammar, kept.grammar);
        for (int32_t id = 100 + N_PROMPT; id < 100 + MAX_IDS; id++)
            mr_entry_add_id(e, id);
    }
    mr_sequence_desc_drop(&kept);
    assert_null(kept.prompt_ids);
    mr_sequence_desc_drop(&kept);
    mr_journal_forget(j, mr_journal_entry(j, 0));
    const mr_entry *e = mr_journal_entry(j, 1);
    const mr_sampling_params *p = &e->desc.sampling;
    check_ids(e);
    assert_memory_equal(e->desc.grammar, grammar, sizeof grammar);
    assert_memory_equal(p->late_ids, late_ids, sizeof late_ids);
    assert_true(p->bias_ids[0] == 100 && p->biases[0] == 0.5F && !p->bad_words && !p->dry_breakers);
    mr_journal_destroy(j);
}

/* An append that fails leaves the journal as it was. */
static void test_failing_allocations(void **state) {
    (void)state;
    mr_journal *j = NULL;
    mr_err err;
    mr_mem_fail_at(0);
    assert_int_equal(mr_journal_create(&base, &j, &err), MR_E_NO_MEMORY);
    mr_mem_fail_at(-1);
    expect_ok(mr_journal_create(&base, &j, &err), &err);
    int32_t n_failures = 0;
    for (int32_t i = 0; i < 40; i++) {
        mr_status status = MR_E_NO_MEMORY;
        for (int nth = 0; status != MR_OK; nth++) {
            int64_t sequence = -7;
            mr_mem_fail_at(nth);
            status = append(j, i, &sequence, &err);
            mr_mem_fail_at(-1);
            if (status == MR_OK) {
                assert_int_equal(sequence, i);
                break;
            }
            n_failures++;
            assert_int_equal(status, MR_E_NO_MEMORY);
            assert_int_equal(sequence, -7);
            assert_int_equal(mr_journal_count(j), i);
            expect_says(err.text, "7 tokens");
        }
    }
    assert_true(n_failures >= 2 * 40);
    for (int32_t i = 0; i < 40; i++)
        check_entry(mr_journal_entry(j, i), i);
    mr_journal_destroy(j);
    mr_journal_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
