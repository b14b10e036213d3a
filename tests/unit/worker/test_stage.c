/* Invariant I1 on small models: the logits of a row have the same bits for any cut, chunking, other rows in the
 * step, order of KV blocks, number of threads, instruction set and layout of the weights. Combinations are pairwise:
 * every value of a factor meets every value of every other factor. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "engine/base/rng.h"
#include "tests/support/isa_env.h"
#include "tests/support/share.h"
#include "tests/support/test.h"
#include "tests/unit/worker/test_stage_chain.h"

enum { SEED = 5, MAX_COMBINATIONS = 64 };

/* --- Combinations ------------------------------------------------------------------------------------------------ */

enum { F_STAGES, F_CHUNK, F_THREADS, F_ISA, F_TOGETHER, F_SHUFFLED, F_MAPPED, N_FACTORS };
static const int32_t CHUNKS[] = {1, 3, 7, CHAIN_MAX_ROWS};
static const int LEVELS[N_FACTORS] = {4, 4, 3, MR_ISA_COUNT, 2, 2, 2};

typedef struct combination {
    int level[N_FACTORS];
} combination;

static combination combinations[MAX_COMBINATIONS];
static int n_combinations;

/* Pairs of levels that the combination has and that none before it had. */
static int new_pairs(const combination *c) {
    int n = 0;
    for (int a = 0; a < N_FACTORS; a++)
        for (int b = a + 1; b < N_FACTORS; b++) {
            bool met = false;
            for (int i = 0; i < n_combinations && !met; i++)
                met = combinations[i].level[a] == c->level[a] && combinations[i].level[b] == c->level[b];
            n += !met;
        }
    return n;
}

/* Greedy: of some random combinations the one with the most new pairs, until there are none. */
static void choose_combinations(void) {
    uint64_t counter = 0;
    for (n_combinations = 0; n_combinations < MAX_COMBINATIONS; n_combinations++) {
        combination best = {0};
        int most = 0;
        for (int attempt = 0; attempt < 500; attempt++) {
            combination c;
            for (int f = 0; f < N_FACTORS; f++)
                c.level[f] = (int)((mr_rng_u64(SEED, 2, counter++) >> 40) % (uint64_t)LEVELS[f]);
            int n = new_pairs(&c);
            if (n > most) {
                most = n;
                best = c;
            }
        }
        if (most == 0)
            return;
        combinations[n_combinations] = best;
    }
}

/* --- Two sequences ----------------------------------------------------------------------------------------------- */

static const int32_t LENGTHS[CHAIN_SEQUENCES] = {70, 21};
enum { MAX_LENGTH = 70 };

/* Logits of every position of both sequences. */
typedef struct result {
    int32_t n_vocab;
    float *logits; /* [CHAIN_SEQUENCES][MAX_LENGTH][n_vocab] */
} result;

static result result_make(const tiny_model *m) {
    result r = {.n_vocab = m->info.vocab_size};
    r.logits = calloc((size_t)CHAIN_SEQUENCES * MAX_LENGTH * (size_t)r.n_vocab, sizeof *r.logits);
    assert_non_null(r.logits);
    return r;
}

static float *result_at(const result *r, int32_t sequence, int32_t position) {
    return r->logits + ((size_t)sequence * MAX_LENGTH + (size_t)position) * (size_t)r->n_vocab;
}

static int32_t id_at(const result *r, int32_t sequence, int32_t position) {
    return (int32_t)((mr_rng_u64(SEED, 10 + (uint64_t)sequence, (uint64_t)position) >> 40) % (uint64_t)r->n_vocab);
}

/* Appends the next rows of one sequence to a step. */
static int32_t take_rows(const result *r, int32_t sequence, int32_t *position, int32_t n, chain_row *rows) {
    int32_t left = LENGTHS[sequence] - *position;
    n = n < left ? n : left;
    for (int32_t i = 0; i < n; i++, ++*position)
        rows[i] = (chain_row){.sequence = sequence,
                              .position = *position,
                              .id = id_at(r, sequence, *position),
                              .logits = result_at(r, sequence, *position)};
    return n;
}

/* Runs one sequence to its end and then the other, or both in the same steps: the second starts late, takes other
 * numbers of rows, and stands first in every other step. */
static void run_all(chain *p, result *r, int32_t chunk, bool together) {
    int32_t position[CHAIN_SEQUENCES] = {0};
    for (int step = 0; position[0] < LENGTHS[0] || position[1] < LENGTHS[1]; step++) {
        chain_row rows[2 * CHAIN_MAX_ROWS];
        int32_t n = 0, half = chunk < CHAIN_MAX_ROWS / 2 ? chunk : CHAIN_MAX_ROWS / 2;
        if (!together) {
            int32_t s = position[0] < LENGTHS[0] ? 0 : 1;
            n = take_rows(r, s, &position[s], chunk, rows);
        } else if (step % 2) {
            n = take_rows(r, 1, &position[1], half > 2 ? half - 2 : half, rows);
            n += take_rows(r, 0, &position[0], half, rows + n);
        } else {
            n = take_rows(r, 0, &position[0], half, rows);
            n += step > 0 ? take_rows(r, 1, &position[1], half, rows + n) : 0;
        }
        if (n > 0)
            chain_step(p, rows, n);
    }
}

static void expect_sane(const result *r) {
    float low = INFINITY, high = -INFINITY;
    for (int32_t s = 0; s < CHAIN_SEQUENCES; s++)
        for (int32_t i = 0; i < LENGTHS[s] * r->n_vocab; i++) {
            float v = result_at(r, s, 0)[i];
            assert_true(isfinite(v));
            low = v < low ? v : low;
            high = v > high ? v : high;
        }
    assert_true(high - low > 0.5f && high - low < 1000.0f);
}

static void expect_same(const result *got, const result *want, const char *what) {
    for (int32_t s = 0; s < CHAIN_SEQUENCES; s++)
        for (int32_t i = 0; i < LENGTHS[s]; i++)
            if (memcmp(result_at(got, s, i), result_at(want, s, i), (size_t)got->n_vocab * sizeof(float)) != 0)
                fail_msg("%s: the logits of sequence %d, position %d differ", what, s, i);
}

/* --- The test ---------------------------------------------------------------------------------------------------- */

/* False when this machine lacks the instruction set. */
static bool check_combination(const tiny_model *m, const combination *c, mr_type kv_type, const result *want) {
    const int *v = c->level;
    chain_config config = {
        .n_stages = v[F_STAGES] + 1,
        .n_threads = v[F_THREADS] + 1,
        .isa = mr_isa_name((mr_isa)v[F_ISA]),
        .kv_type = kv_type,
        .shuffled = v[F_SHUFFLED] != 0,
        .map_weights = v[F_MAPPED] != 0,
    };
    char what[160];
    if (!chain_has_isa(config.isa))
        return false;
    result got = result_make(m);
    chain *p = chain_create(m, &config);
    run_all(p, &got, CHUNKS[v[F_CHUNK]], v[F_TOGETHER] != 0);
    snprintf(what, sizeof what, "%s, KV %s, %d stages, chunk %d, %d threads, %s, %s, blocks %s%s", m->info.arch,
             mr_type_name(kv_type), config.n_stages, CHUNKS[v[F_CHUNK]], config.n_threads, config.isa,
             v[F_TOGETHER] ? "together" : "alone", config.shuffled ? "shuffled" : "in order",
             config.map_weights ? ", weights in the file" : "");
    expect_same(&got, want, what);
    chain_destroy(p);
    free(got.logits);
    return true;
}

/* The reference: one stage, one thread, scalar, as few steps as can be. */
static result make_reference(const tiny_model *m, mr_type kv_type) {
    chain_config config = {.n_stages = 1, .n_threads = 1, .isa = "scalar", .kv_type = kv_type};
    result r = result_make(m);
    chain *p = chain_create(m, &config);
    run_all(p, &r, CHAIN_MAX_ROWS, false);
    chain_destroy(p);
    expect_sane(&r);
    return r;
}

/* Every model runs a third of its own of all combinations. A long run has all. */
static bool is_chosen(int i, uint64_t seed) {
    return ((uint64_t)i + seed) % 3 == 0 || share_is_long();
}

/* Takes the model over. */
static void check_opened(tiny_model *m, uint64_t seed, mr_type type) {
    static const mr_type kv_types[] = {MR_TYPE_F16, MR_TYPE_F32};
    result want[2];
    int n_run = 0, n_skipped = 0, n_chosen = 0;
    for (int k = 0; k < 2; k++) {
        want[k] = make_reference(m, kv_types[k]);
        for (int i = 0; i < n_combinations; i++) {
            if (!is_chosen(i, seed) || share_skips(&n_chosen))
                continue;
            if (check_combination(m, &combinations[i], kv_types[k], &want[k]))
                n_run++;
            else
                n_skipped++;
        }
    }
    /* The results differ between the two types, so the KV store does use its type. */
    assert_memory_not_equal(result_at(&want[0], 0, 20), result_at(&want[1], 0, 20), 64);
    print_message("%s %s: %d combinations; %d more need instructions that this machine lacks\n", m->info.arch,
                  mr_type_name(type), n_run, n_skipped);
    free(want[0].logits);
    free(want[1].logits);
    tiny_model_destroy(m);
}

/* Takes the file over. */
static void check_file(gguf_writer *w, const tiny_desc *d) {
    check_opened(tiny_model_open(w), d->seed, d->type);
}

static void check_model(const tiny_desc *d) {
    check_file(tiny_model_write(d), d);
}

static tiny_desc model_of(const char *arch, mr_type type) {
    tiny_desc d = tiny_default(arch, type);
    d.n_layers = 4;
    d.seed = 40 + (uint64_t)type;
    return d;
}

static void test_llama(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_F16, MR_TYPE_Q8_0, MR_TYPE_Q4_K, MR_TYPE_Q6_K};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        tiny_desc d = model_of("llama", types[t]);
        d.tied_output = t % 2 == 1;
        d.biases = t == 2;
        d.rope_factors = t == 1;
        if (t == 0) { /* widths whose matrices are split into several tasks */
            d.d_model = 256;
            d.n_ff = 512;
        }
        check_model(&d);
    }
}

static void test_qwen2(void **state) {
    (void)state;
    tiny_desc d = model_of("qwen2", MR_TYPE_Q8_0);
    d.n_kv_heads = 1;
    check_model(&d);
    d = model_of("qwen2", MR_TYPE_Q4_K);
    d.tied_output = true;
    d.vector_type = MR_TYPE_F16;
    check_model(&d);
}

/* Heads that are wider together than the model, and as many KV heads as heads. */
static void test_qwen3(void **state) {
    (void)state;
    tiny_desc d = model_of("qwen3", MR_TYPE_F16);
    d.head_dim = 48;
    d.n_kv_heads = 4;
    check_model(&d);
    d = model_of("qwen3", MR_TYPE_Q6_K);
    d.head_dim = 128;
    check_model(&d);
}

/* Norms behind the parts of a layer; a window in most layers. */
static void test_olmo2(void **state) {
    (void)state;
    tiny_desc d = model_of("olmo2", MR_TYPE_Q8_0);
    check_model(&d);
    d = model_of("olmo2", MR_TYPE_F16);
    gguf_writer *w = tiny_model_write(&d);
    gguf_writer_u32(w, "olmo2.attention.sliding_window", 11);
    check_file(w, &d);
}

/* The matrices of the file hold several each. */
static void test_phi3(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_Q8_0, MR_TYPE_Q4_K};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        tiny_desc d = model_of("phi3", types[t]);
        if (t == 0)
            d.n_ff = 40; /* up begins at row 40, in the middle of a panel */
        if (t == 1) {
            d.head_dim = 48;
            d.n_kv_heads = 1;
        }
        check_model(&d);
    }
}

/* A layer without RoPE among others. */
static void test_smollm3(void **state) {
    (void)state;
    tiny_desc d = model_of("smollm3", MR_TYPE_Q8_0);
    d.tied_output = true;
    check_model(&d);
}

static void test_qwen3moe(void **state) {
    (void)state;
    tiny_desc d = model_of("qwen3moe", MR_TYPE_Q8_0);
    d.n_experts = 8;
    d.n_experts_used = 3;
    d.n_ff = 96;
    check_model(&d);
}

/* Experts by sigmoid and bias, in groups, with a shared one, behind a layer without. */
static void test_dots1(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F16, MR_TYPE_Q8_0};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        tiny_desc d = model_of("dots1", types[t]);
        d.n_experts = 8;
        d.n_experts_used = 3;
        d.n_ff = 96;
        d.n_ff_shared = 64;
        d.n_dense = 1;
        gguf_writer *w = tiny_model_write(&d);
        gguf_writer_u32(w, "dots1.expert_gating_func", 2);
        gguf_writer_bool(w, "dots1.expert_weights_norm", true);
        gguf_writer_f32(w, "dots1.expert_weights_scale", 2.5f);
        gguf_writer_u32(w, "dots1.expert_group_count", 4);
        gguf_writer_u32(w, "dots1.expert_group_used_count", 2);
        check_file(w, &d);
    }
}

/* Sparse feed-forward parts. Rows of a step have other active neurons, so that the union of a step depends on its rows;
 * a step of many rows takes the dense form. More neurons than a partition has. */
static void test_sparse(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        mr_type type;
        int32_t n_ff;
        float threshold;
    } cases[] = {
        {"llama", MR_TYPE_F16, 300, 0.6f},     {"llama", MR_TYPE_Q8_0, 96, 0.0f},  {"bamboo", MR_TYPE_Q4_0, 545, 1.0f},
        {"bamboo", MR_TYPE_F32, 256, -100.0f}, {"llama", MR_TYPE_Q4_K, 520, 0.6f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tiny_desc d = model_of(cases[i].arch, cases[i].type);
        d.n_ff = cases[i].n_ff;
        d.n_predictor = cases[i].type == MR_TYPE_Q4_K ? 256 : 32;
        d.threshold = cases[i].threshold;
        check_model(&d);
    }
}

/* Architectures of which there are files with references. */
static void test_reference_models(void **state) {
    (void)state;
    static const char *const names[] = {"gemma3", "gpt-oss", "gpt-oss-mxfp4", "granite", "hunyuan-moe", "qwen2moe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1024];
        snprintf(path, sizeof path, MILLRACE_SOURCE_DIR "/tests/golden/arch/%s.gguf", names[i]);
        FILE *f = fopen(path, "rb");
        if (!f) {
            print_message("skipped: there is no %s\n", path);
            continue;
        }
        fclose(f);
        check_opened(tiny_model_open_path(path), i, MR_TYPE_F32);
    }
}

/* Layers that differ in their KV heads, widths and windows. */
static void test_layers_that_differ(void **state) {
    (void)state;
    static const uint32_t kv_heads[] = {4, 1, 1, 2}, ffs[] = {96, 160, 64, 96};
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_Q8_0};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        tiny_desc d = model_of("llama", types[t]);
        d.n_kv_heads_of = kv_heads;
        d.n_ff_of = ffs;
        gguf_writer *w = tiny_model_write(&d);
        gguf_writer_u32(w, "llama.attention.sliding_window", 9);
        gguf_writer_u32(w, "llama.attention.sliding_window_pattern", 3);
        gguf_writer_f32(w, "llama.rope.freq_base_swa", 500);
        check_file(w, &d);
    }
}

/* Experts: rows take other company, whole steps leave some experts without rows. */
static void test_experts(void **state) {
    (void)state;
    static const struct {
        mr_type type;
        int32_t n, n_used, width, n_ff;
    } cases[] = {
        {MR_TYPE_F32, 6, 2, 256, 264}, /* several tasks; the last panel of each matrix is half full */
        {MR_TYPE_F16, 5, 5, 64, 40},    {MR_TYPE_Q8_0, 8, 3, 64, 96},
        {MR_TYPE_Q4_K, 4, 1, 256, 256}, {MR_TYPE_Q8_0, 1, 1, 64, 32}, /* a router with one row */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tiny_desc d = model_of("llama", cases[i].type);
        d.n_experts = cases[i].n;
        d.n_experts_used = cases[i].n_used;
        d.d_model = cases[i].width;
        d.n_ff = cases[i].n_ff;
        check_model(&d);
    }
}

/* Positions beyond the tiles of 64 and the partitions of 512 that attention is cut into. */
static void run_long(const tiny_model *m, const chain_config *config, int32_t n, int32_t chunk, float *logits) {
    chain *c = chain_create(m, config);
    for (int32_t position = 0; position < n;) {
        chain_row rows[CHAIN_MAX_ROWS];
        int32_t n_rows = 0;
        for (; n_rows < chunk && position < n; n_rows++, position++)
            rows[n_rows] = (chain_row){.position = position,
                                       .id = position * 31 % m->info.vocab_size,
                                       .logits = logits + (size_t)position * (size_t)m->info.vocab_size};
        chain_step(c, rows, n_rows);
    }
    chain_destroy(c);
}

static void test_a_long_context(void **state) {
    (void)state;
    enum { LENGTH = 1100 };
    tiny_desc d = tiny_default("llama", MR_TYPE_F16);
    d.context_length = LENGTH;
    tiny_model *m = tiny_model_create(&d);
    size_t n = (size_t)LENGTH * (size_t)d.vocab_size;
    float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    assert_true(want && got);
    chain_config one = {.n_stages = 1, .n_threads = 1, .isa = "scalar", .kv_type = MR_TYPE_F16};
    chain_config two = {.n_stages = 2, .n_threads = 2, .kv_type = MR_TYPE_F16, .shuffled = true};
    run_long(m, &one, LENGTH, CHAIN_MAX_ROWS, want);
    for (int32_t chunk = 5; chunk <= 85; chunk += 40) {
        run_long(m, &two, LENGTH, chunk, got);
        for (size_t i = 0; i < n; i++)
            if (memcmp(&got[i], &want[i], sizeof want[i]) != 0)
                fail_msg("chunk %d: position %zu differs", chunk, i / (size_t)d.vocab_size);
    }
    free(want);
    free(got);
    tiny_model_destroy(m);
}

static int setup(void **state) {
    (void)state;
    choose_combinations();
    printf("seed %d, %d combinations for each model and KV type\n", SEED, n_combinations);
    return 0;
}

/* A chain with instructions of its own leaves those of the others alone: a whole run of the tests can be capped. */
static void test_a_cap_is_put_back(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_F32);
    tiny_model *m = tiny_model_create(&d);
    char *saved = isa_env_set("scalar");
    const char *best = mr_isa_name(MR_ISA_COUNT - 1);
    chain_config capped = {.n_stages = 1, .n_threads = 1, .kv_type = MR_TYPE_F16}, free_choice = capped;
    free_choice.isa = chain_has_isa(best) ? best : "scalar";
    chain *one = chain_create(m, &free_choice), *other = chain_create(m, &capped);
    isa_env_restore(saved);
    expect_says(chain_device(one), free_choice.isa);
    expect_says(chain_device(other), "scalar");
    chain_destroy(one);
    chain_destroy(other);
    tiny_model_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),          cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen3),          cmocka_unit_test(test_experts),
        cmocka_unit_test(test_sparse),         cmocka_unit_test(test_layers_that_differ),
        cmocka_unit_test(test_olmo2),          cmocka_unit_test(test_phi3),
        cmocka_unit_test(test_smollm3),        cmocka_unit_test(test_qwen3moe),
        cmocka_unit_test(test_dots1),          cmocka_unit_test(test_reference_models),
        cmocka_unit_test(test_a_long_context), cmocka_unit_test(test_a_cap_is_put_back),
    };
    return cmocka_run_group_tests_name("stage", tests, setup, NULL);
}
