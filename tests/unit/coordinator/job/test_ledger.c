/* The ledger against a simple model of a ledger, over random calls and with failing allocations. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/job/ledger.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"

enum { N_BLOCKS = 23, N_SLOTS = 6, MAX_BLOCKS = 9 };

/* A plain model of the ledger, with which the ledger is compared. */
typedef struct model {
    int32_t n_held[N_SLOTS];
    uint32_t held[N_SLOTS][MAX_BLOCKS];
} model;

static int32_t held(const model *m) {
    int32_t n = 0;
    for (int32_t i = 0; i < N_SLOTS; i++)
        n += m->n_held[i];
    return n;
}

static void check(const mr_ledger *l, const model *m) {
    bool seen[N_BLOCKS] = {false};
    assert_int_equal(mr_ledger_n_free(l), N_BLOCKS - held(m));
    for (int32_t s = 0; s < N_SLOTS; s++) {
        assert_int_equal(mr_ledger_n_held(l, s), m->n_held[s]);
        for (int32_t i = 0; i < m->n_held[s]; i++) {
            uint32_t id = mr_ledger_table(l, s)[i];
            assert_int_equal(id, m->held[s][i]); /* the blocks of a table do not change */
            assert_true(id < N_BLOCKS);
            assert_false(seen[id]); /* no block has two owners */
            seen[id] = true;
        }
    }
}

static void grow(mr_ledger *l, model *m, int32_t slot, int32_t n) {
    bool want = n <= MAX_BLOCKS && n - m->n_held[slot] <= N_BLOCKS - held(m);
    assert_int_equal(mr_ledger_grow(l, slot, n), want);
    for (int32_t i = m->n_held[slot]; want && i < n; i++)
        m->held[slot][m->n_held[slot]++] = mr_ledger_table(l, slot)[i];
}

static void release(mr_ledger *l, model *m, int32_t slot) {
    mr_ledger_release(l, slot);
    m->n_held[slot] = 0;
}

/* Random calls: every answer and every table is the model's. */
static void test_against_a_model(void **state) {
    (void)state;
    mr_ledger *l;
    model m = {0};
    mr_err err;
    uint64_t before;
    expect_ok(mr_ledger_create(N_BLOCKS, N_SLOTS, MAX_BLOCKS, &l, &err), &err);
    before = mr_mem_thread_allocs();
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t r = mr_rng_u64(31, 0, i);
        int32_t slot = (int32_t)(r % N_SLOTS), n = (int32_t)(r >> 8 & 0xffff) % (MAX_BLOCKS + 2);
        if ((r >> 40 & 3) == 0)
            release(l, &m, slot);
        else
            grow(l, &m, slot, n);
        check(l, &m);
    }
    for (int32_t s = 0; s < N_SLOTS; s++)
        release(l, &m, s);
    check(l, &m);
    assert_int_equal(mr_mem_thread_allocs(), before);
    mr_ledger_destroy(l);
}

static void test_failing_allocations(void **state) {
    (void)state;
    mr_ledger *l = NULL;
    mr_err err;
    int n_failed = 0;
    for (;; n_failed++) {
        mr_mem_fail_at(n_failed);
        mr_status status = mr_ledger_create(N_BLOCKS, N_SLOTS, MAX_BLOCKS, &l, &err);
        mr_mem_fail_at(-1);
        if (status == MR_OK)
            break;
        assert_int_equal(status, MR_E_NO_MEMORY);
        assert_null(l);
        expect_says(err.text, "23 KV blocks");
    }
    assert_true(n_failed >= 4);
    mr_ledger_destroy(l);
    mr_ledger_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_model),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
