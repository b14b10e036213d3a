/* The balanced cut against all possible cuts, and cuts from the user that are refused. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/planning/plan.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"
#include "tests/support/tiny_model.h"

enum { MAX_LAYERS = 9 };

/* A model whose layers have random sizes: each has one matrix of its own beside the usual ones. Half of the models have
 * experts. */
static tiny_model *make_model(int32_t n_layers, uint64_t seed) {
    tiny_desc desc = tiny_default("llama", MR_TYPE_F32);
    desc.n_layers = n_layers;
    desc.vocab_size = 8 + (int32_t)(mr_rng_u64(seed, 1, 0) % 3 * 300);
    desc.n_experts = seed % 2 ? 5 : 0;
    desc.n_experts_used = seed % 2 ? 2 : 0;
    gguf_writer *w = tiny_model_write(&desc);
    for (int32_t i = 0; i < n_layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%d.ballast.weight", i);
        gguf_writer_matrix(w, name, MR_TYPE_F32, 64, 1 + (int64_t)(mr_rng_u64(seed, 0, (uint64_t)i) % 1500), NULL);
    }
    return tiny_model_open(w);
}

/* The bytes that a decode step of layers [first, last) reads: of experts, two of five. Matrices are F32 in width 64. */
static size_t cost(const tiny_model *m, int32_t first, int32_t last) {
    size_t bytes = last == m->info.n_layers ? mr_model_output_bytes(m->gguf) : 0;
    size_t unread = m->info.n_experts ? 3 * (size_t)mr_model_layer(&m->info, 0)->n_ff * 64 * sizeof(float) * 3 : 0;
    for (int32_t i = first; i < last; i++)
        bytes += mr_model_layer_bytes(m->gguf, &m->info, i) - unread;
    return bytes;
}

/* The smallest largest stage of all cuts: every set of n_stages - 1 places out of the layers, as bits. */
static size_t brute_force(const tiny_model *m, int32_t n_stages) {
    size_t best = SIZE_MAX;
    int32_t n = m->info.n_layers;
    for (uint32_t cuts = 0; cuts < 1u << (n - 1); cuts++) {
        if (__builtin_popcount(cuts) != n_stages - 1)
            continue;
        size_t worst = 0;
        for (int32_t first = 0, last = 1; last <= n; last++) {
            if (last < n && !(cuts >> (last - 1) & 1))
                continue;
            size_t c = cost(m, first, last);
            worst = c > worst ? c : worst;
            first = last;
        }
        best = worst < best ? worst : best;
    }
    return best;
}

static void check_ranges(const tiny_model *m, const mr_plan *p, int32_t n_stages) {
    assert_int_equal(p->n_stages, n_stages);
    assert_int_equal(p->stages[0].first, 0);
    assert_int_equal(p->stages[n_stages - 1].last, m->info.n_layers);
    for (int32_t i = 0; i < n_stages; i++) {
        const mr_plan_stage *s = &p->stages[i];
        assert_true(s->last > s->first);
        if (i > 0)
            assert_int_equal(s->first, p->stages[i - 1].last);
        size_t bytes = mr_model_shared_bytes(m->gguf);
        for (int32_t l = s->first; l < s->last; l++)
            bytes += mr_model_layer_bytes(m->gguf, &m->info, l);
        bytes += s->last == m->info.n_layers ? mr_model_output_bytes(m->gguf) : 0;
        assert_int_equal(s->weight_bytes, bytes + (i == 0 ? mr_model_embedding_bytes(m->gguf) : 0));
    }
}

static void test_balance_is_optimal(void **state) {
    (void)state;
    static mr_plan p;
    mr_err err;
    for (int32_t n_layers = 1; n_layers <= MAX_LAYERS; n_layers++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            tiny_model *m = make_model(n_layers, seed);
            for (int32_t n_stages = 1; n_stages <= n_layers; n_stages++) {
                size_t worst = 0;
                expect_ok(mr_plan_balance(m->gguf, &m->info, n_stages, &p, &err), &err);
                check_ranges(m, &p, n_stages);
                for (int32_t i = 0; i < n_stages; i++) {
                    size_t c = cost(m, p.stages[i].first, p.stages[i].last);
                    worst = c > worst ? c : worst;
                }
                assert_int_equal(worst, brute_force(m, n_stages));
            }
            tiny_model_destroy(m);
        }
}

static void refuse_balance(const tiny_model *m, int32_t n_stages, const char *text) {
    static mr_plan p;
    mr_err err;
    assert_int_equal(mr_plan_balance(m->gguf, &m->info, n_stages, &p, &err), MR_E_INVALID);
    expect_says(err.text, text);
}

static void refuse_cut(const tiny_model *m, const int32_t *first_layers, int32_t n, const char *text) {
    static mr_plan p;
    mr_err err;
    assert_int_equal(mr_plan_cut(m->gguf, &m->info, first_layers, n, &p, &err), MR_E_INVALID);
    expect_says(err.text, text);
}

static void test_errors_name_the_value(void **state) {
    (void)state;
    tiny_model *m = make_model(5, 1);
    refuse_balance(m, 0, "0 stages for a model of 5 layers; hint: 1 to 5");
    refuse_balance(m, -1, "-1 stages");
    refuse_balance(m, 6, "6 stages for a model of 5 layers");
    refuse_balance(m, 100000, "100000 stages");
    refuse_cut(m, (int32_t[]){0}, 1, "the cut at layer 0");
    refuse_cut(m, (int32_t[]){-2}, 1, "the cut at layer -2");
    refuse_cut(m, (int32_t[]){5}, 1, "the cut at layer 5 is not possible; hint: ascending layers from 1 to 4");
    refuse_cut(m, (int32_t[]){2, 2}, 2, "the cut at layer 2");
    refuse_cut(m, (int32_t[]){3, 1}, 2, "the cut at layer 1");
    refuse_cut(m, (int32_t[]){1, 4, 9}, 3, "the cut at layer 9");
    refuse_cut(m, NULL, -1, "-1 places");
    refuse_cut(m, NULL, MR_MAX_STAGES, "1024 places");
    tiny_model_destroy(m);
}

static void test_cut(void **state) {
    (void)state;
    static mr_plan p;
    mr_err err;
    tiny_model *m = make_model(5, 2);
    expect_ok(mr_plan_cut(m->gguf, &m->info, NULL, 0, &p, &err), &err);
    check_ranges(m, &p, 1);
    expect_ok(mr_plan_cut(m->gguf, &m->info, (int32_t[]){1, 3}, 2, &p, &err), &err);
    check_ranges(m, &p, 3);
    assert_int_equal(p.stages[1].first, 1);
    assert_int_equal(p.stages[1].last, 3);
    expect_ok(mr_plan_cut(m->gguf, &m->info, (int32_t[]){1, 2, 3, 4}, 4, &p, &err), &err);
    check_ranges(m, &p, 5);
    tiny_model_destroy(m);
}

static void test_no_memory(void **state) {
    (void)state;
    static mr_plan p;
    mr_err err;
    tiny_model *m = make_model(3, 3);
    mr_mem_fail_at(0);
    assert_int_equal(mr_plan_balance(m->gguf, &m->info, 2, &p, &err), MR_E_NO_MEMORY);
    mr_mem_fail_at(-1);
    tiny_model_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_balance_is_optimal),
        cmocka_unit_test(test_errors_name_the_value),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
