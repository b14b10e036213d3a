/* The demo model against float32 logits of PyTorch, within the error of quantised activations and an f16 KV cache.
 * Both files are committed, so the test runs everywhere. */
// SPDX-License-Identifier: Apache-2.0
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "test_golden_run.h"

enum { MAX_PATH = 1024, N_POSITIONS = 48, N_VOCAB = 1024 };
static const double LIMIT = 2e-4; /* 3.5e-5 was measured when the model was made */

static bool check(const char *model, const int32_t *ids, const float *want, mr_type kv_type) {
    golden_logits got = {0};
    mr_err err = {0};
    if (golden_run(model, kv_type, ids, N_POSITIONS, N_POSITIONS, &got, &err) != MR_OK) {
        printf("FAILED: %s\n", err.text);
        return false;
    }
    double error = got.n_vocab == N_VOCAB ? golden_nmse(got.values, want, (size_t)N_POSITIONS * N_VOCAB) : -1;
    bool ok = error >= 0 && error <= LIMIT;
    printf("KV %s: %.3e, limit %.3e%s\n", mr_type_name(kv_type), error, LIMIT, ok ? "" : "  FAILED");
    free(got.values);
    return ok;
}

int main(void) {
    const char *root = getenv("MILLRACE_SOURCE_DIR");
    char model[MAX_PATH], ids_path[MAX_PATH], ref_path[MAX_PATH];
    int32_t n = 0;
    root = root ? root : MILLRACE_SOURCE_DIR;
    snprintf(model, sizeof model, "%s/deploy/demo/millrace-demo.gguf", root);
    snprintf(ids_path, sizeof ids_path, "%s/tests/golden/demo.ids.txt", root);
    snprintf(ref_path, sizeof ref_path, "%s/tests/golden/demo.ref.f32", root);
    int32_t *ids = golden_read_ids(ids_path, &n);
    float *want = golden_read_floats(ref_path, (size_t)N_POSITIONS * N_VOCAB);
    bool ok = ids && n == N_POSITIONS && want;
    if (!ok)
        printf("FAILED: '%s' or '%s' is missing or of another size\n", ids_path, ref_path);
    ok = ok && check(model, ids, want, MR_TYPE_F16) && check(model, ids, want, MR_TYPE_F32);
    free(ids);
    free(want);
    return ok ? 0 : 1;
}
