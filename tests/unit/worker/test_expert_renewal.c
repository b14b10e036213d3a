// SPDX-License-Identifier: Apache-2.0
/* Which experts are exchanged: by counts that the test makes up, without a stage. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"
#include "worker/stage/expert_renewal.h"

enum { EXPERTS = 32, HELD = 8, LAYERS = 3, USED = 4, EXPERT_BYTES = 1000 };

/* A stage of which only the counts exist. */
typedef struct bench {
    mr_expert_renewal *renewal;
    int32_t held[LAYERS][HELD];
    uint64_t counts[LAYERS][EXPERTS];
    mr_use_counts uses[LAYERS];
    const mr_use_counts *of_layers[LAYERS];
    uint64_t n_device_uses, n_uses, n_rows; /* counted by the test */
    size_t most_bytes, all_bytes;           /* of one step, and of all */
} bench;

static const mr_expert_rules USUAL = {.rows = 32,
                                      .half_life_rows = MR_EXPERT_HALF_LIFE_ROWS,
                                      .bytes_per_step = 4 * EXPERT_BYTES,
                                      .deviations = MR_EXPERT_DEVIATIONS};

static bool is_held(const bench *b, int32_t layer, int32_t expert) {
    bool found = false;
    for (int32_t k = 0; k < HELD; k++)
        found = found || b->held[layer][k] == expert;
    return found;
}

/* Layer l is layer 2 l + 1 of the stage; its device begins with experts 0 to HELD - 1. */
static void open_bench(bench *b, mr_expert_rules rules) {
    mr_renewed_layer layers[LAYERS];
    mr_err err = {0};
    *b = (bench){0};
    for (int32_t l = 0; l < LAYERS; l++) {
        for (int32_t k = 0; k < HELD; k++)
            b->held[l][k] = k;
        layers[l] = (mr_renewed_layer){2 * l + 1, EXPERTS, b->held[l], HELD, EXPERT_BYTES};
        b->uses[l] = (mr_use_counts){.layer = 2 * l + 1, .n = EXPERTS, .counts = b->counts[l]};
        b->of_layers[l] = &b->uses[l];
    }
    expect_ok(mr_expert_renewal_create(&rules, layers, LAYERS, &b->renewal, &err), &err);
}

static void use(bench *b, int32_t layer, int32_t expert) {
    b->counts[layer][expert]++;
    b->n_uses++;
    b->n_device_uses += is_held(b, layer, expert);
}

/* Makes the exchanges that are due after a step of so many rows. Returns how many there were. */
static int32_t end_step(bench *b, int32_t n_rows) {
    mr_expert_swap swap;
    int32_t n = 0;
    b->n_rows += (uint64_t)n_rows;
    for (int32_t l = 0; l < LAYERS; l++)
        b->uses[l].n_rows = b->n_rows;
    mr_expert_renewal_begin(b->renewal, b->of_layers);
    for (; mr_expert_renewal_next(b->renewal, &swap); n++) {
        int32_t l = (swap.layer - 1) / 2;
        assert_true(swap.layer % 2 == 1 && l < LAYERS && swap.place >= 0 && swap.place < HELD);
        assert_true(swap.expert >= 0 && swap.expert < EXPERTS && !is_held(b, l, swap.expert));
        b->held[l][swap.place] = swap.expert;
    }
    size_t bytes = (size_t)n * EXPERT_BYTES;
    b->most_bytes = bytes > b->most_bytes ? bytes : b->most_bytes;
    b->all_bytes += bytes;
    return n;
}

/* Each row draws its experts: one of `hot` in three of four draws, from `first` on; else any. n_hot 0: always any. */
static void draw_row(bench *b, int32_t first, int32_t n_hot) {
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t u = 0; u < USED; u++) {
            uint64_t r = mr_rng_u64(7, (uint32_t)l, b->n_rows * USED + (uint64_t)u) >> 20;
            bool is_hot = n_hot > 0 && r % 4 != 0;
            int32_t e = (int32_t)(r / 4 % (uint64_t)(is_hot ? n_hot : EXPERTS));
            use(b, l, is_hot ? (first + 5 * l + e) % EXPERTS : e);
        }
}

static int32_t run_rows(bench *b, int32_t n_rows, int32_t first, int32_t n_hot) {
    int32_t n = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        draw_row(b, first, n_hot);
        n += end_step(b, 1);
    }
    return n;
}

static void expect_hot_are_held(const bench *b, int32_t first, int32_t n_hot) {
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t e = 0; e < n_hot; e++)
            if (!is_held(b, l, (first + 5 * l + e) % EXPERTS))
                fail_msg("layer %d: hot expert %d is not held", l, (first + 5 * l + e) % EXPERTS);
}

static void expect_share(const bench *b) {
    const mr_expert_share share = mr_expert_renewal_share(b->renewal);
    assert_int_equal(share.n_uses, b->n_uses);
    assert_int_equal(share.n_device_uses, b->n_device_uses);
    assert_int_equal(share.n_swaps, b->all_bytes / EXPERT_BYTES);
}

/* Skewed use: the hot experts come to the device, stay there, and later ones replace them. */
static void test_hot_experts_are_found(void **state) {
    (void)state;
    bench b;
    open_bench(&b, USUAL);
    int32_t n = run_rows(&b, 512, 11, HELD);
    expect_hot_are_held(&b, 11, HELD);
    assert_true(n <= 2 * LAYERS * HELD); /* the counts of the first rows are few */
    expect_share(&b);
    const mr_expert_share before = mr_expert_renewal_share(b.renewal);
    assert_true(run_rows(&b, 2048, 11, HELD) <= LAYERS);
    expect_hot_are_held(&b, 11, HELD);
    const mr_expert_share after = mr_expert_renewal_share(b.renewal);
    assert_true(4 * (after.n_device_uses - before.n_device_uses) > 3 * (after.n_uses - before.n_uses));
    run_rows(&b, 4096, 20, HELD);
    expect_hot_are_held(&b, 20, HELD);
    expect_share(&b);
    mr_expert_renewal_destroy(b.renewal);
}

/* Even use: what looks hot is chance. */
static void test_even_use_changes_nothing(void **state) {
    (void)state;
    static const int32_t HALF_LIVES[] = {MR_EXPERT_HALF_LIFE_ROWS, 64};
    for (int i = 0; i < 3; i++) {
        bench b;
        mr_expert_rules rules = USUAL;
        rules.half_life_rows = HALF_LIVES[i > 0];
        rules.deviations = i < 2 ? MR_EXPERT_DEVIATIONS : 0;
        open_bench(&b, rules);
        int32_t n = run_rows(&b, 20000, 0, 0);
        print_message("%d exchanges in 20000 rows of even use, half-life %d rows, %d deviations\n", n,
                      rules.half_life_rows, rules.deviations);
        assert_true(i < 2 ? n <= 6 : n > 500); /* without certainty the same draws would move experts all the time */
        mr_expert_renewal_destroy(b.renewal);
    }
}

/* The bytes of a step: whole experts only, saved up where one is larger than the bytes of a step. */
static void test_bytes_per_step(void **state) {
    (void)state;
    static const struct {
        size_t per_step, most_of_step, most_of_all; /* of 64 steps */
    } CASES[] = {{EXPERT_BYTES / 4, EXPERT_BYTES, 16 * EXPERT_BYTES},
                 {EXPERT_BYTES, EXPERT_BYTES, 64 * EXPERT_BYTES},
                 {2 * EXPERT_BYTES + 1, 2 * EXPERT_BYTES, 128 * EXPERT_BYTES},
                 {100 * EXPERT_BYTES, LAYERS * HELD * EXPERT_BYTES, SIZE_MAX}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        bench b;
        mr_expert_rules rules = USUAL;
        rules.rows = 1;
        rules.bytes_per_step = CASES[i].per_step;
        open_bench(&b, rules);
        for (int32_t step = 0; step < 64; step++) {
            for (int32_t e = HELD; e < 2 * HELD; e++)
                for (int32_t l = 0; l < LAYERS; l++)
                    use(&b, l, e);
            (void)end_step(&b, 1);
        }
        assert_int_equal(b.most_bytes, CASES[i].most_of_step);
        assert_true(b.all_bytes >= CASES[i].most_of_step && b.all_bytes <= CASES[i].most_of_all);
        assert_true(CASES[i].per_step < EXPERT_BYTES || b.all_bytes == LAYERS * HELD * EXPERT_BYTES);
        expect_share(&b);
        mr_expert_renewal_destroy(b.renewal);
    }
}

/* No look before the rows of the rule. */
static void test_rows_between_looks(void **state) {
    (void)state;
    bench b;
    open_bench(&b, USUAL);
    for (int32_t i = 0; i < 31; i++) {
        for (int32_t l = 0; l < LAYERS; l++)
            use(&b, l, EXPERTS - 1);
        assert_int_equal(end_step(&b, 1), 0);
        assert_int_equal(mr_expert_renewal_share(b.renewal).n_uses, 0);
    }
    for (int32_t l = 0; l < LAYERS; l++)
        use(&b, l, EXPERTS - 1);
    assert_int_equal(end_step(&b, 1), LAYERS);
    mr_expert_renewal_destroy(b.renewal);
}

static void test_no_memory(void **state) {
    (void)state;
    const int32_t held = 0;
    const mr_renewed_layer layer = {0, EXPERTS, &held, 1, EXPERT_BYTES};
    mr_status status = MR_E_NO_MEMORY;
    for (int64_t n = 0; status != MR_OK; n++) {
        mr_err err = {0};
        mr_expert_renewal *r = NULL;
        mr_mem_fail_at(n);
        status = mr_expert_renewal_create(&USUAL, &layer, 1, &r, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        assert_true(n <= 4);
        mr_expert_renewal_destroy(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hot_experts_are_found),
        cmocka_unit_test(test_even_use_changes_nothing),
        cmocka_unit_test(test_bytes_per_step),
        cmocka_unit_test(test_rows_between_looks),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("expert_renewal", tests, NULL, NULL);
}
