/* The same bits (I1) for small models of other layers than Llama's: whatever the cut, the chunks of the prompt, the
 * threads, the instruction set and the layout of weights. tests/golden/arch has the files; without them this test is
 * skipped. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/worker/test_stage_chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test_golden_run.h"
#include "tests/support/test.h"

#define FOLDER MILLRACE_SOURCE_DIR "/tests/golden/arch"
enum { MAX_IDS = 80 };

static int32_t *ids;
static int32_t n_ids;

/* The logits of all positions, [n_ids, vocabulary], prefilled in chunks. The caller frees them. */
static float *logits_of(const tiny_model *model, const chain_config *config, int32_t chunk) {
    size_t width = (size_t)model->info.vocab_size;
    float *logits = calloc((size_t)n_ids * width, sizeof *logits);
    assert_non_null(logits);
    chain *c = chain_create(model, config);
    for (int32_t first = 0, n; first < n_ids; first += n) {
        chain_row rows[CHAIN_MAX_ROWS];
        n = n_ids - first < chunk ? n_ids - first : chunk;
        for (int32_t i = 0; i < n; i++)
            rows[i] = (chain_row){0, first + i, ids[first + i], logits + (size_t)(first + i) * width};
        chain_step(c, rows, n);
    }
    chain_destroy(c);
    return logits;
}

static void check(const tiny_model *model, const char *name, mr_type kv_type) {
    static const char *const LEVELS[] = {"scalar", "avx2", "avxvnni", "avx512", "neon", "dotprod"};
    const chain_config whole = {.n_stages = 1, .n_threads = 1, .kv_type = kv_type, .max_context = MAX_IDS};
    size_t bytes = (size_t)n_ids * (size_t)model->info.vocab_size * sizeof(float);
    float *want = logits_of(model, &whole, CHAIN_MAX_ROWS);
    int32_t n_layers = model->info.n_layers, most = n_layers < CHAIN_MAX_STAGES ? n_layers : CHAIN_MAX_STAGES;
    for (int32_t i = 0; i < 4 + most + 6; i++) {
        chain_config config = whole;
        int32_t chunk = i == 0 ? 1 : i == 1 ? 3 : 24;
        config.n_threads = i % 3 + 1;
        config.shuffled = i % 2 == 1;
        config.map_weights = i % 4 == 3;
        config.n_stages = i < 4 ? 1 : i < 4 + most ? i - 3 : 2;
        config.isa = i < 4 + most ? NULL : LEVELS[i - 4 - most];
        if (config.isa && !chain_has_isa(config.isa))
            continue;
        float *got = logits_of(model, &config, chunk);
        if (memcmp(got, want, bytes) != 0)
            fail_msg("%s, keys in %s: chunks of %d, %d stages, %d threads, %s, mapped %d: other bits", name,
                     mr_type_name(kv_type), chunk, config.n_stages, config.n_threads, config.isa ? config.isa : "best",
                     config.map_weights);
        free(got);
    }
    free(want);
}

static void test_bits_do_not_depend_on_the_cut(void **state) {
    (void)state;
    static const char *const NAMES[] = {"deepseek2", "deepseek2-lite", "glm-dsa",  "gpt-oss",
                                        "glm4moe",   "phi3-longrope",  "mistral3", "mistral-large3"};
    static const mr_type KV_TYPES[] = {MR_TYPE_F16, MR_TYPE_F32, MR_TYPE_Q8_0};
    ids = golden_read_ids(FOLDER "/ids.txt", &n_ids);
    if (!ids)
        skip();
    assert_in_range(n_ids, 25, MAX_IDS);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char path[1024];
        snprintf(path, sizeof path, FOLDER "/%s.gguf", NAMES[i]);
        tiny_model *model = tiny_model_open_path(path);
        int32_t k_dim = mr_model_layer(&model->info, 0)->k_dim;
        for (int t = 0; t < (k_dim % 32 == 0 ? 3 : 2); t++)
            check(model, NAMES[i], KV_TYPES[t]);
        tiny_model_destroy(model);
    }
    free(ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits_do_not_depend_on_the_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
