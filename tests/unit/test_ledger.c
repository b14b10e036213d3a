// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/ledger.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

enum { N_BLOCKS = 23, N_SLOTS = 6, MAX_BLOCKS = 9 };

/* What the ledger must be, said as plainly as possible. */
typedef struct model {
    int32_t n_held[N_SLOTS], n_reserved[N_SLOTS];
    uint32_t held[N_SLOTS][MAX_BLOCKS];
} model;

static int32_t promised_to_others(const model *m) {
    int32_t n = 0;
    for (int32_t i = 0; i < N_SLOTS; i++)
        n += m->n_reserved[i] - m->n_held[i];
    return n;
}

static int32_t held(const model *m) {
    int32_t n = 0;
    for (int32_t i = 0; i < N_SLOTS; i++)
        n += m->n_held[i];
    return n;
}

static void check(const mr_ledger *l, const model *m) {
    bool seen[N_BLOCKS] = {false};
    assert_int_equal(mr_ledger_n_free(l), N_BLOCKS - held(m));
    for (int32_t s = 0; s < N_SLOTS; s++)
        for (int32_t i = 0; i < m->n_held[s]; i++) {
            uint32_t id = mr_ledger_table(l, s)[i];
            assert_int_equal(id, m->held[s][i]); /* a table keeps what it has */
            assert_true(id < N_BLOCKS);
            assert_false(seen[id]); /* never two owners */
            seen[id] = true;
        }
}

static void reserve(mr_ledger *l, model *m, int32_t slot, int32_t n) {
    int32_t more = n - m->n_reserved[slot];
    int32_t spare = N_BLOCKS - held(m) - promised_to_others(m);
    bool want = n <= MAX_BLOCKS && more <= spare;
    assert_int_equal(mr_ledger_reserve(l, slot, n), want);
    if (want && more > 0)
        m->n_reserved[slot] = n;
}

static void grow(mr_ledger *l, model *m, int32_t slot, int32_t n) {
    assert_int_equal(mr_ledger_grow(l, slot, n), m->n_held[slot]);
    for (int32_t i = m->n_held[slot]; i < n; i++)
        m->held[slot][i] = mr_ledger_table(l, slot)[i];
    if (n > m->n_held[slot])
        m->n_held[slot] = n;
}

static void release(mr_ledger *l, model *m, int32_t slot) {
    mr_ledger_release(l, slot);
    m->n_held[slot] = m->n_reserved[slot] = 0;
}

/* Random calls: every answer and every table is the model's. */
static void test_against_a_model(void **state) {
    (void)state;
    mr_ledger *l;
    model m = {0};
    mr_err err;
    uint64_t before;
    assert_int_equal(mr_ledger_create(N_BLOCKS, N_SLOTS, MAX_BLOCKS, &l, &err), MR_OK);
    before = mr_mem_thread_allocs();
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t r = mr_rng_u64(31, 0, i);
        int32_t slot = (int32_t)(r % N_SLOTS), n = (int32_t)(r >> 8) % (MAX_BLOCKS + 2);
        n = n < 0 ? -n : n;
        switch (r >> 40 & 7) {
        case 0:
            release(l, &m, slot);
            break;
        case 1:
        case 2:
        case 3:
            reserve(l, &m, slot, n);
            break;
        default:
            if (n <= m.n_reserved[slot])
                grow(l, &m, slot, n);
        }
        check(l, &m);
    }
    for (int32_t s = 0; s < N_SLOTS; s++)
        release(l, &m, s);
    check(l, &m);
    assert_int_equal(mr_mem_thread_allocs(), before);
    mr_ledger_destroy(l);
}

/* What is promised is there, whatever the others do. */
static void test_promises(void **state) {
    (void)state;
    mr_ledger *l;
    mr_err err;
    assert_int_equal(mr_ledger_create(4, 3, 4, &l, &err), MR_OK);
    assert_true(mr_ledger_reserve(l, 0, 3));
    assert_false(mr_ledger_reserve(l, 1, 2));
    assert_true(mr_ledger_reserve(l, 1, 1));
    assert_false(mr_ledger_reserve(l, 2, 1));
    assert_true(mr_ledger_reserve(l, 2, 0));
    assert_int_equal(mr_ledger_n_free(l), 4);
    assert_int_equal(mr_ledger_grow(l, 1, 1), 0);
    assert_int_equal(mr_ledger_grow(l, 0, 3), 0);
    assert_int_equal(mr_ledger_grow(l, 0, 2), 3); /* never shrinks */
    assert_int_equal(mr_ledger_n_free(l), 0);
    mr_ledger_release(l, 0);
    assert_false(mr_ledger_reserve(l, 2, 5)); /* longer than a table */
    assert_false(mr_ledger_reserve(l, 2, 4));
    assert_true(mr_ledger_reserve(l, 2, 3));
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
        assert_non_null(strstr(err.text, "23 KV blocks"));
    }
    assert_true(n_failed >= 4);
    mr_ledger_destroy(l);
    mr_ledger_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_model),
        cmocka_unit_test(test_promises),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
