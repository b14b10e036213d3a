// SPDX-License-Identifier: Apache-2.0
/* Files with a profile: what is written is read again, wrong files are refused by field, and the cache finds the file
 * of a model by its digest alone. */
#include "coordinator/session/profile_file.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t COUNTS[2][3] = {{UINT64_C(1) << 39, 7, 0}, {1, 2, 3}};
static const uint64_t N_ROWS = UINT64_C(1) << 40;
static const mr_profile_model MODEL = {.name = "a \"model\".gguf", .digest = 0x00fedcba98765432};

static mr_profile sample(bool is_neurons) {
    mr_profile p = {0};
    mr_err err = {0};
    for (int32_t l = 0; l < 2; l++) {
        const mr_profile_part part = {
            .layer = 3 + 4 * l, .is_neurons = is_neurons, .n = 3, .n_rows = N_ROWS, .n_counts = 3, .counts = COUNTS[l]};
        expect_ok(mr_profile_add(&p, &part, &err), &err);
    }
    return p;
}

static void test_round(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        char path[] = "/tmp/millrace-test-XXXXXX";
        close(mkstemp(path));
        mr_profile p = sample(kind == 1), q = {0};
        mr_profile_model model = {0};
        mr_err err = {0};
        expect_ok(mr_profile_write(path, &MODEL, &p, &err), &err);
        expect_ok(mr_profile_read(path, &model, &q, &err), &err);
        assert_string_equal(model.name, MODEL.name);
        assert_true(model.digest == MODEL.digest && q.n_rows == N_ROWS && q.is_neurons == (kind == 1));
        assert_int_equal(q.n_layers, 2);
        for (int32_t l = 0; l < 2; l++) {
            assert_true(q.layers[l].layer == 3 + 4 * l && q.layers[l].n == 3 && q.layers[l].n_known == 3);
            assert_memory_equal(q.layers[l].counts, COUNTS[l], sizeof COUNTS[l]);
        }
        mr_profile_deinit(&p);
        mr_profile_deinit(&q);
        unlink(path);
    }
}

#define HEAD "{\"version\":1,\"model\":\"m\",\"digest\":\"0x0123456789abcdef\",\"kind\":\"experts\",\"rows\":9,"
#define LAYERS "\"layers\":[{\"layer\":0,\"counts\":[1,9]},{\"layer\":2,\"counts\":[0]}]}"

static mr_status parse(const char *text, mr_profile *out, mr_err *err) {
    mr_profile_model model;
    return mr_profile_parse(text, strlen(text), "p.json", &model, out, err);
}

static void test_wrong_files(void **state) {
    (void)state;
    static const char *const CASES[][2] = {
        {"", "p.json is no profile: line 1"},
        {"[]", "p.json: the file should be an object"},
        {"{}", "version should be a whole number from 1 to 1"},
        {"{\"version\":2}", "version should be a whole number from 1 to 1"},
        {"{\"version\":1}", "model is missing"},
        {"{\"version\":1,\"model\":1}", "model should be a text"},
        {"{\"version\":1,\"model\":\"m\"}", "digest is missing"},
        {"{\"version\":1,\"model\":\"m\",\"digest\":\"0x12345\"}", "digest should be a text like"},
        {"{\"version\":1,\"model\":\"m\",\"digest\":\"0x0123456789abcdeg\"}", "digest should be a text like"},
        {"{\"version\":1,\"model\":\"m\",\"digest\":\"0x0123456789abcdef\",\"kind\":\"heads\"}", "kind should be"},
        {"{\"version\":1,\"model\":\"m\",\"digest\":\"0x0123456789abcdef\",\"kind\":\"neurons\",\"rows\":0}",
         "rows should be a whole number from 1 to 1099511627776"},
        {HEAD "\"layers\":{}}", "layers should be an array"},
        {HEAD "\"layers\":[]}", "layers has 0 elements"},
        {HEAD "\"layers\":[7]}", "layers[0]. should be an object"},
        {HEAD "\"layers\":[{\"layer\":-1}]}", "layers[0].layer should be a whole number from 0 to 4095"},
        {HEAD "\"layers\":[{\"layer\":4096}]}", "layers[0].layer should be"},
        {HEAD "\"layers\":[{\"layer\":0}]}", "layers[0].counts is missing"},
        {HEAD "\"layers\":[{\"layer\":0,\"counts\":[]}]}", "layers[0].counts has 0 elements"},
        {HEAD "\"layers\":[{\"layer\":0,\"counts\":[10]}]}", "layers[0].counts should be a whole number from 0 to 9"},
        {HEAD "\"layers\":[{\"layer\":0,\"counts\":[1.5]}]}", "layers[0].counts should be"},
        {HEAD "\"layers\":[{\"layer\":1,\"counts\":[1]},{\"layer\":1,\"counts\":[1]}]}",
         "layers[1].layer should be a whole number from 2"},
    };
    mr_profile p;
    mr_err err = {0};
    expect_ok(parse(HEAD LAYERS, &p, &err), &err);
    mr_profile_deinit(&p);
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        expect_fails(parse(CASES[i][0], &p, &err), MR_E_FORMAT, &err, CASES[i][1]);
    mr_profile_model model;
    expect_fails(mr_profile_read("/nowhere/p", &model, &p, &err), MR_E_NOT_FOUND, &err, "/nowhere/p");
}

static void test_no_memory(void **state) {
    (void)state;
    mr_err err = {0};
    mr_status status = MR_E_NO_MEMORY;
    for (int64_t n = 0; status != MR_OK; n++) {
        mr_profile p;
        mr_mem_fail_at(n);
        status = parse(HEAD LAYERS, &p, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        if (status == MR_OK)
            mr_profile_deinit(&p);
        assert_true(n < 100);
    }
}

static void test_cache(void **state) {
    (void)state;
    char folder[] = "/tmp/millrace-test-XXXXXX", *path = NULL, *other = NULL;
    mr_profile p = sample(false), q;
    mr_err err = {0};
    mr_model_info info = {.n_layers = 8, .n_experts = 3, .n_shapes = 2};
    info.shapes[1].has_experts = true;
    info.shape_of[3] = info.shape_of[7] = 1;
    assert_non_null(mkdtemp(folder));
    assert_false(mr_profile_find(folder, MODEL.digest, &info, &q));
    expect_ok(mr_profile_path(folder, MODEL.digest, &path, &err), &err);
    expect_ok(mr_profile_path(folder, MODEL.digest + 1, &other, &err), &err);
    assert_string_not_equal(path, other);
    expect_ok(mr_profile_write(path, &MODEL, &p, &err), &err);
    assert_true(mr_profile_find(folder, MODEL.digest, &info, &q));
    assert_memory_equal(q.layers[1].counts, COUNTS[1], sizeof COUNTS[1]);
    mr_profile_deinit(&q);
    info.n_experts = 4;
    assert_false(mr_profile_find(folder, MODEL.digest, &info, &q));
    info.n_experts = 3;
    /* The model file has changed: another digest. Nor is a file under the wrong name used. */
    assert_false(mr_profile_find(folder, MODEL.digest + 1, &info, &q));
    assert_int_equal(rename(path, other), 0);
    assert_false(mr_profile_find(folder, MODEL.digest + 1, &info, &q));
    assert_false(mr_profile_find(folder, MODEL.digest, &info, &q));
    unlink(other);
    rmdir(folder);
    mr_free(path);
    mr_free(other);
    mr_profile_deinit(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round), cmocka_unit_test(test_wrong_files),
                                       cmocka_unit_test(test_no_memory), cmocka_unit_test(test_cache)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
