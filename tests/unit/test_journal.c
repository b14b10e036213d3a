/* tests/unit/test_journal.c - the journal grows without moving its entries, and an append that fails changes
 * nothing. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/job/journal.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

enum { N = 300, N_PROMPT = 3, MAX_IDS = 7 };

static mr_status append(mr_journal *j, int32_t number, int64_t *out_sequence, mr_err *err) {
    int32_t ids[N_PROMPT] = {number, number + 1, number + 2}; /* gone after this call: the journal copies them */
    mr_sequence_desc desc = {
        .prompt_ids = ids, .n_prompt = N_PROMPT, .max_tokens = 4, .sampling.seed = (uint64_t)number};
    return mr_journal_append(j, &desc, MAX_IDS, out_sequence, err);
}

static void check_entry(const mr_entry *e, int32_t number) {
    assert_int_equal(e->sequence, number);
    assert_int_equal(e->desc.sampling.seed, number);
    assert_null(e->desc.prompt_ids);
    assert_int_equal(e->n_prompt, N_PROMPT);
    assert_int_equal(e->n_ids, N_PROMPT);
    assert_int_equal(e->max_ids, MAX_IDS);
    assert_int_equal(e->state, MR_ENTRY_WAITING);
    assert_int_equal(e->slot, -1);
    for (int32_t i = 0; i < N_PROMPT; i++)
        assert_int_equal(e->ids[i], number + i);
}

/* Entries and their ids stay where they are while the journal grows; ids grow up to the limit without memory. */
static void test_growth(void **state) {
    (void)state;
    static mr_entry *entries[N];
    mr_journal *j;
    mr_err err;
    expect_ok(mr_journal_create(&j, &err), &err);
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
            entries[i]->ids[entries[i]->n_ids++] = i;
    }
    assert_int_equal(mr_mem_thread_allocs(), before);
    mr_journal_destroy(j);
}

/* An append that fails leaves the journal as it was. */
static void test_failing_allocations(void **state) {
    (void)state;
    mr_journal *j = NULL;
    mr_err err;
    mr_mem_fail_at(0);
    assert_int_equal(mr_journal_create(&j, &err), MR_E_NO_MEMORY);
    mr_mem_fail_at(-1);
    expect_ok(mr_journal_create(&j, &err), &err);
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
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
