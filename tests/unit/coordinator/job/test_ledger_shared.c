/* Sequences with common prefixes over one ledger. Every block that a sequence gets holds the content that the
 * sequence expects, and all counts add up. The test stores for each block the content that the steps would have
 * written. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/job/ledger.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"

enum { BLOCK = 4, N_BLOCKS = 14, N_SLOTS = 5, MAX_BLOCKS = 6, MAX_IDS = MAX_BLOCKS * BLOCK };

typedef struct seq {
    bool is_live;
    int32_t ids[MAX_IDS], n_ids, n_prompt;
    int32_t n_issued, n_published;
    mr_prefix_key keys[MAX_BLOCKS], begin;
} seq;

/* A row of a block holds the hash of all ids up to it: what its keys and values depend on. */
typedef struct world {
    mr_ledger *ledger;
    seq seqs[N_SLOTS];
    uint64_t rows[N_BLOCKS][BLOCK];
    int32_t n_whole_hits, n_copies, n_waits, n_refused, n_again;
} world;

static uint64_t row_value(const seq *s, int32_t position) {
    uint64_t h = 1469598103934665603u;
    for (int32_t i = 0; i <= position; i++)
        h = (h ^ (uint64_t)s->ids[i]) * 1099511628211u;
    return h;
}

static void expect_rows(const world *w, const seq *s, int32_t slot, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        uint32_t block = mr_ledger_table(w->ledger, slot)[i / BLOCK];
        if (w->rows[block][i % BLOCK] != row_value(s, i))
            fail_msg("position %d of slot %d is in block %u, which holds something else", i, slot, block);
    }
}

static void name(seq *s) {
    const mr_prefix_base base = {0};
    mr_prefix_key key;
    mr_prefix_key_init(&base, &key);
    for (int32_t i = 0; i < s->n_ids / BLOCK; i++) {
        mr_prefix_key_extend(&key, s->ids + i * BLOCK, BLOCK, &s->keys[i]);
        key = s->keys[i];
    }
    int32_t idx = (s->n_prompt - 1) / BLOCK;
    mr_prefix_key_init(&base, &key);
    mr_prefix_key_extend(idx ? &s->keys[idx - 1] : &key, s->ids + idx * BLOCK, (s->n_prompt - 1) % BLOCK, &s->begin);
}

/* Prompts are beginnings of three texts, some with a tail of their own. */
static void join(world *w, int32_t slot, uint64_t r) {
    seq *s = &w->seqs[slot];
    *s = (seq){.n_prompt = 1 + (int32_t)(r % (MAX_IDS - 6))};
    s->n_ids = s->n_prompt;
    for (int32_t i = 0; i < s->n_prompt; i++)
        s->ids[i] = (int32_t)(mr_rng_u64(5, r >> 8 & 1, (uint64_t)i) % 1000);
    if ((r >> 16 & 3) == 0)
        s->ids[s->n_prompt / 2] = (int32_t)(r >> 20 & 3);
    name(s);
    int32_t begin_rows = (s->n_prompt - 1) % BLOCK, idx = (s->n_prompt - 1) / BLOCK, spare = (int32_t)(r >> 30 & 1);
    mr_ledger_hits hits = mr_ledger_look_up(w->ledger, &(mr_prefix_keys){.behind = s->keys}, (s->n_ids - 1) / BLOCK,
                                            begin_rows ? &s->begin : NULL);
    if (hits.promised) {
        w->n_waits++;
        return;
    }
    int32_t n = idx + 1, before = mr_ledger_n_free(w->ledger);
    bool fits = n - hits.n_whole + hits.n_unshared + spare <= before;
    assert_int_equal(mr_ledger_begin(w->ledger, slot, &hits, n, spare), fits);
    if (!fits) {
        assert_int_equal(mr_ledger_n_free(w->ledger), before);
        w->n_refused++;
        return;
    }
    s->is_live = true;
    s->n_issued = hits.n_whole * BLOCK + (hits.copy_of != MR_NO_BLOCK ? begin_rows : 0);
    s->n_published = hits.n_whole;
    w->n_whole_hits += hits.n_whole;
    for (int32_t i = hits.n_whole; i < s->n_ids / BLOCK; i++)
        mr_ledger_promise(w->ledger, slot, i, MR_PREFIX_WHOLE, &s->keys[i]);
    if (begin_rows && idx >= hits.n_whole)
        mr_ledger_promise(w->ledger, slot, idx, MR_PREFIX_BEGIN, &s->begin);
}

/* One step with some rows of one sequence. */
static void issue(world *w, int32_t slot, uint64_t r) {
    seq *s = &w->seqs[slot];
    uint32_t from, to;
    if (s->n_issued == s->n_ids && s->n_ids < MAX_IDS) {
        if (!mr_ledger_grow(w->ledger, slot, s->n_ids / BLOCK + 1)) {
            w->n_refused++;
            return;
        }
        s->ids[s->n_ids++] = (int32_t)(r >> 8 & 1);
        name(s);
    }
    if (mr_ledger_take_copy(w->ledger, slot, &from, &to)) {
        memcpy(w->rows[to], w->rows[from], sizeof w->rows[to]);
        w->n_copies++;
    }
    assert_false(mr_ledger_take_copy(w->ledger, slot, &from, &to));
    expect_rows(w, s, slot, s->n_issued);
    int32_t end = s->n_issued + 1 + (int32_t)(r % 7);
    end = end < s->n_ids ? end : s->n_ids;
    for (int32_t i = s->n_issued; i < end; i++)
        w->rows[mr_ledger_table(w->ledger, slot)[i / BLOCK]][i % BLOCK] = row_value(s, i);
    s->n_issued = end;
    if (end >= s->n_prompt - 1)
        mr_ledger_publish(w->ledger, slot, (s->n_prompt - 1) / BLOCK, MR_PREFIX_BEGIN);
    for (; s->n_published < end / BLOCK; s->n_published++) {
        if (s->n_published >= s->n_prompt / BLOCK)
            mr_ledger_promise(w->ledger, slot, s->n_published, MR_PREFIX_WHOLE, &s->keys[s->n_published]);
        mr_ledger_publish(w->ledger, slot, s->n_published, MR_PREFIX_WHOLE);
    }
}

/* What whole blocks held at some time. */
typedef struct copy {
    uint8_t bits[(N_BLOCKS + 7) / 8];
    uint32_t versions[N_BLOCKS];
    uint64_t rows[N_BLOCKS][BLOCK];
    int32_t n_changed;
} copy;

/* A block that was whole holds the same as long as its version stays. Then takes a new copy. */
static void check_copy(const world *w, copy *c) {
    const uint32_t *versions = mr_ledger_versions(w->ledger);
    for (int32_t i = 0; i < N_BLOCKS; i++) {
        if (!(c->bits[i / 8] >> i % 8 & 1))
            continue;
        if (versions[i] == c->versions[i])
            assert_memory_equal(w->rows[i], c->rows[i], sizeof w->rows[i]);
        c->n_changed += memcmp(w->rows[i], c->rows[i], sizeof w->rows[i]) != 0;
    }
    memset(c->bits, 0, sizeof c->bits);
    (void)mr_ledger_mark_whole(w->ledger, c->bits);
    memcpy(c->versions, versions, sizeof c->versions);
    memcpy(c->rows, w->rows, sizeof c->rows);
}

/* Another epoch: some blocks go on, and the others hold nothing of use. */
static void begin_again(world *w, bool keeps) {
    uint8_t kept[(N_BLOCKS + 7) / 8] = {0};
    int32_t n_marked = mr_ledger_mark_ready(w->ledger, kept);
    mr_ledger_release_all(w->ledger);
    mr_ledger_forget(w->ledger, keeps ? kept : NULL);
    assert_int_equal(mr_ledger_n_cached(w->ledger), keeps ? n_marked : 0);
    assert_int_equal(mr_ledger_n_free(w->ledger), N_BLOCKS);
    for (int32_t i = 0; i < N_BLOCKS; i++)
        if (!keeps || !(kept[i / 8] >> i % 8 & 1))
            memset(w->rows[i], 0, sizeof w->rows[i]);
    for (int32_t i = 0; i < N_SLOTS; i++)
        w->seqs[i].is_live = false;
    w->n_again += n_marked > 0 && keeps;
}

static void test_every_block_holds_what_is_expected(void **state) {
    (void)state;
    static world w;
    copy c = {.n_changed = 0};
    mr_err err;
    w = (world){0};
    expect_ok(mr_ledger_create(N_BLOCKS, N_SLOTS, MAX_BLOCKS, &w.ledger, &err), &err);
    for (uint64_t i = 0; i < 60000; i++) {
        uint64_t r = mr_rng_u64(11, 2, i), allocs = mr_mem_thread_allocs();
        int32_t slot = (int32_t)(r >> 50) % N_SLOTS;
        if (i % 37 == 0)
            check_copy(&w, &c);
        if ((r >> 30 & 255) == 0) {
            begin_again(&w, r & 1);
            memset(c.bits, 0, sizeof c.bits);
        } else if (!w.seqs[slot].is_live) {
            join(&w, slot, r);
        } else if ((r >> 40 & 15) == 0) {
            mr_ledger_release(w.ledger, slot);
            w.seqs[slot].is_live = false;
        } else {
            issue(&w, slot, r);
        }
        assert_int_equal(mr_mem_thread_allocs(), allocs);
        expect_ok(mr_ledger_check(w.ledger, &err), &err);
    }
    for (int32_t i = 0; i < N_SLOTS; i++)
        mr_ledger_release(w.ledger, i);
    assert_int_equal(mr_ledger_n_free(w.ledger), N_BLOCKS);
    expect_ok(mr_ledger_check(w.ledger, &err), &err);
    print_message("%d whole hits, %d copies, %d waits, %d refusals, %d times with blocks of before\n", w.n_whole_hits,
                  w.n_copies, w.n_waits, w.n_refused, w.n_again);
    assert_true(w.n_whole_hits > 100 && w.n_copies > 100 && w.n_waits > 100 && w.n_refused > 100 && w.n_again > 20);
    assert_true(c.n_changed > 100);
    mr_ledger_destroy(w.ledger);
}

/* The blocks of a sequence that ended are there for the next, until others need them: the deepest first. */
static void test_eviction(void **state) {
    (void)state;
    mr_ledger *l;
    mr_err err;
    seq a = {.n_prompt = 4 * BLOCK, .n_ids = 4 * BLOCK};
    /* The keys of a prompt of two blocks, and of two more blocks behind the prompt. */
    const mr_prefix_keys keys_of_a = {.prompt = a.keys, .n_prompt = 2, .behind = a.keys + 2};
    const mr_ledger_hits none = {.copy_of = MR_NO_BLOCK};
    name(&a);
    expect_ok(mr_ledger_create(6, 2, 6, &l, &err), &err);
    assert_true(mr_ledger_begin(l, 0, &none, 4, 0));
    for (int32_t i = 0; i < 4; i++) {
        mr_ledger_promise(l, 0, i, MR_PREFIX_WHOLE, &a.keys[i]);
        if (i < 3)
            mr_ledger_publish(l, 0, i, MR_PREFIX_WHOLE);
    }
    assert_true(mr_ledger_look_up(l, &keys_of_a, 4, NULL).promised);
    mr_ledger_release(l, 0);
    assert_int_equal(mr_ledger_n_cached(l), 3); /* the block that was only promised is lost */
    assert_int_equal(mr_ledger_n_free(l), 6);
    mr_ledger_hits hits = mr_ledger_look_up(l, &keys_of_a, 4, NULL);
    assert_int_equal(hits.n_whole, 3);
    assert_int_equal(hits.n_unshared, 3);
    assert_false(hits.promised);
    assert_true(mr_ledger_grow(l, 1, 4));
    assert_int_equal(mr_ledger_look_up(l, &keys_of_a, 4, NULL).n_whole, 2);
    assert_true(mr_ledger_grow(l, 1, 5));
    assert_int_equal(mr_ledger_look_up(l, &keys_of_a, 4, NULL).n_whole, 1);
    assert_true(mr_ledger_grow(l, 1, 6));
    assert_int_equal(mr_ledger_look_up(l, &keys_of_a, 4, NULL).n_whole, 0);
    assert_false(mr_ledger_grow(l, 0, 1));
    mr_ledger_destroy(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_block_holds_what_is_expected),
        cmocka_unit_test(test_eviction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
