/* The trained ReLU model of sparse/: its logits are to the bit those of rule S said plainly. With a threshold at which
 * every neuron is active they are those of the dense form, which looks at no scores. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "test_golden_run.h"
#include "tests/golden/plain_sparse.h"
#include "tests/support/test.h"

enum { N_POSITIONS = 48 };

static int32_t *ids;
static char model_path[1024], everything_path[] = "/tmp/millrace-sparse-XXXXXX";

typedef enum how { BY_ENGINE, BY_DENSE_FORM, BY_ACTIVE_FORM } how;

static golden_logits run(const char *path, how h) {
    golden_logits out = {0};
    mr_backend *be = NULL;
    mr_err err = {0};
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 2}, &be, &err), &err);
    if (h != BY_ENGINE)
        plain_sparse_begin(be, h == BY_DENSE_FORM ? PLAIN_DENSE : PLAIN_ACTIVE);
    expect_ok(golden_run_on(be, path, MR_TYPE_F16, ids, N_POSITIONS, N_POSITIONS, &out, &err), &err);
    mr_backend_destroy(be);
    return out;
}

/* Whether two ways to run two files give the same bits. */
static bool same(const char *a_path, how a_how, const char *b_path, how b_how) {
    golden_logits a = run(a_path, a_how), b = run(b_path, b_how);
    assert_int_equal(a.n_vocab, b.n_vocab);
    size_t bytes = (size_t)N_POSITIONS * (size_t)a.n_vocab * sizeof *a.values;
    for (int32_t i = 0; i < N_POSITIONS * a.n_vocab; i++)
        assert_true(isfinite(a.values[i]));
    bool is_same = memcmp(a.values, b.values, bytes) == 0;
    free(a.values);
    free(b.values);
    return is_same;
}

static void test_everything_active(void **state) {
    (void)state;
    assert_true(same(everything_path, BY_ENGINE, everything_path, BY_DENSE_FORM));
    assert_true(same(everything_path, BY_ENGINE, model_path, BY_DENSE_FORM));
    assert_true(plain_sparse_share() == 1.0);
}

static void test_real_threshold(void **state) {
    (void)state;
    assert_true(same(model_path, BY_ENGINE, model_path, BY_ACTIVE_FORM));
    print_message("%.1f %% of the neurons are active\n", 100 * plain_sparse_share());
    assert_true(plain_sparse_share() > 0.01 && plain_sparse_share() < 0.3);
    assert_false(same(model_path, BY_ENGINE, everything_path, BY_ENGINE));
}

/* A copy of the model whose threshold is -infinity. */
static void write_everything(void) {
    static const char key[] = "powerinfer.sparse_threshold";
    static uint8_t data[8 << 20];
    const float threshold = -INFINITY;
    FILE *f = fopen(model_path, "rb");
    assert_non_null(f);
    size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    assert_true(n < sizeof data);
    uint8_t *at = memmem(data, n, key, sizeof key - 1);
    assert_non_null(at);
    memcpy(at + sizeof key - 1 + sizeof(uint32_t), &threshold, sizeof threshold); /* behind the type of the value */
    int fd = mkstemp(everything_path);
    assert_true(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    close(fd);
}

static int begin(void **state) {
    (void)state;
    const char *root = getenv("MILLRACE_SOURCE_DIR");
    char ids_path[1024];
    int32_t n = 0;
    root = root ? root : MILLRACE_SOURCE_DIR;
    snprintf(model_path, sizeof model_path, "%s/tests/golden/sparse/relu.gguf", root);
    snprintf(ids_path, sizeof ids_path, "%s/tests/golden/demo.ids.txt", root);
    ids = golden_read_ids(ids_path, &n);
    assert_non_null(ids);
    assert_int_equal(n, N_POSITIONS);
    write_everything();
    return 0;
}

static int end(void **state) {
    (void)state;
    free(ids);
    return unlink(everything_path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everything_active), cmocka_unit_test(test_real_threshold)};
    return cmocka_run_group_tests_name("golden_sparse", tests, begin, end);
}
