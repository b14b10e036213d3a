/* Small random models of each architecture against the logits that their makers' code computes: tests/golden/arch has
 * the files, make_arch_reference.py makes them. A file of an architecture that this version does not run is refused. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test_golden_run.h"

enum { SKIPPED = 77 };
#define FOLDER MILLRACE_SOURCE_DIR "/tests/golden/arch"

/* What exact arithmetic leaves, with keys and values in f32. */
static const double LIMIT = 1e-9;
/* What f16 leaves: the limit of test_golden_vectors, whose models have heads of 64. */
static const double F16_LIMIT = 3e-7;

static const struct {
    const char *name;
    double limit; /* 0: LIMIT */
} CASES[] = {{"deepseek2", 0},
             {"deepseek2-heads34", 0},
             {"deepseek2-lite", 0},
             {"dots1", 0},
             {"ernie4_5-moe", 0},
             {"glm-dsa", 0},
             {"glm4moe", 0},
             {"gemma3", 0},
             {"gemma3-27b", 0},
             {"gpt-oss", 0},
             {"gpt-oss-mxfp4", 2e-4 /* A8 activations */},
             {"granite", 0},
             {"granite-nope", 0},
             {"hunyuan-moe", 0},
             {"kimi-k2", 0},
             {"llama-biases", 0},
             {"llama-heads8", 0},
             {"minimax-m2", 0},
             {"mistral-large3", 0},
             {"mistral3", 0},
             {"olmo2", 0},
             {"phi3", 0},
             {"phi3-heads40", 0},
             {"phi3-longrope", 0},
             {"phi3-longrope-short", 0},
             {"phi3-window", 0},
             {"qwen2moe", 0},
             {"qwen3-heads24", 0},
             {"qwen3moe", 0},
             {"smollm3", 0}};
enum { N_CASES = sizeof CASES / sizeof *CASES };

static bool check_case(const char *name, mr_type kv_type, const int32_t *ids, int32_t n, double limit) {
    char path[1024];
    golden_logits got = {0};
    mr_err err = {0};
    snprintf(path, sizeof path, FOLDER "/%s.gguf", name);
    if (golden_run(path, kv_type, ids, n, n, &got, &err) != MR_OK) {
        printf("%-12s FAILED: %s\n", name, err.text);
        return false;
    }
    size_t n_values = (size_t)n * (size_t)got.n_vocab;
    snprintf(path, sizeof path, FOLDER "/%s.ref.f32", name);
    float *want = golden_read_floats(path, n_values);
    double error = want ? golden_nmse(got.values, want, n_values) : -1;
    bool ok = want && error <= limit;
    printf("%-12s KV %s: %.3e, limit %.3e%s\n", name, mr_type_name(kv_type), error, limit, ok ? "" : "  FAILED");
    free(want);
    free(got.values);
    return ok;
}

/* Embeddings are no logits: test_embeddings has them. */
static bool is_of_logits(const char *file) {
    return strstr(file, "embedding") == NULL;
}

static bool check_refused(const char *file, const int32_t *ids, int32_t n) {
    char path[1024];
    golden_logits got = {0};
    mr_err err = {0};
    snprintf(path, sizeof path, FOLDER "/%s", file);
    bool ok = golden_run(path, MR_TYPE_F32, ids, n, n, &got, &err) == MR_E_UNSUPPORTED;
    printf("%s: %s%s\n", file, ok ? "refused: " : "FAILED: it is not refused: ", err.text);
    free(got.values);
    return ok;
}

static bool has_case(const char *file) {
    for (int i = 0; i < N_CASES; i++) {
        size_t n = strlen(CASES[i].name);
        if (strncmp(file, CASES[i].name, n) == 0 && strcmp(file + n, ".gguf") == 0)
            return true;
    }
    return false;
}

int main(void) {
    DIR *dir = opendir(FOLDER);
    if (!dir) {
        printf("skipped: there is no folder " FOLDER "\n");
        return SKIPPED;
    }
    int32_t n = 0, *ids = golden_read_ids(FOLDER "/ids.txt", &n);
    bool ok = ids && n > 0;
    for (int i = 0; i < N_CASES && ids; i++) {
        ok = check_case(CASES[i].name, MR_TYPE_F32, ids, n, CASES[i].limit > 0 ? CASES[i].limit : LIMIT) && ok;
        if (strstr(CASES[i].name, "-heads"))
            ok = check_case(CASES[i].name, MR_TYPE_F16, ids, n, F16_LIMIT) && ok;
    }
    for (struct dirent *e; ids && (e = readdir(dir));)
        if (strstr(e->d_name, ".gguf") && is_of_logits(e->d_name) && !has_case(e->d_name))
            ok = check_refused(e->d_name, ids, n) && ok;
    closedir(dir);
    free(ids);
    printf("%s\n", ok ? "passed" : "FAILED");
    return ok ? 0 : 1;
}
