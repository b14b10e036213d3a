/* Measurements that are stored in a file are read back unchanged, or not at all. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/tiny_model.h"
#include "worker/lobby/kept_facts.h"

enum { KEY = 77, MAX_BYTES = 16384 };

static char folder[64];

static mr_measured sample(void) {
    mr_measured m = {.n_kinds = 2, .position_s = {1e-9, 3e-9}, .sample_s = 0.25, .core_share = 0.5};
    for (int32_t k = 0; k < 2; k++)
        m.layer[k] = (mr_step_times){.n = 3, .rows = {1, 2, 5 + k}, .seconds = {0.5, 0.1 + k, 1e-7}};
    m.output = (mr_step_times){.n = 1, .rows = {8}, .seconds = {3}};
    m.device = (mr_measured_device){.is_known = true,
                                    .name = "a device",
                                    .memory_bytes = UINT64_C(80) << 30,
                                    .layer = {m.layer[1], m.layer[0]},
                                    .output = m.layer[0],
                                    .position_s = {2e-9, 4e-9},
                                    .crossing = m.layer[1],
                                    .layer_bytes = {100, 200},
                                    .token_bytes = {3, 4},
                                    .stage_bytes = 5,
                                    .head_bytes = 6,
                                    .tail_bytes = 7};
    return m;
}

static void expect_same(const mr_measured *a, const mr_measured *b) {
    assert_int_equal(a->n_kinds, b->n_kinds);
    assert_true(a->sample_s == b->sample_s && a->core_share == b->core_share);
    assert_memory_equal(a->position_s, b->position_s, sizeof a->position_s);
    assert_memory_equal(a->layer, b->layer, sizeof a->layer);
    assert_memory_equal(&a->output, &b->output, sizeof a->output);
    assert_int_equal(a->device.is_known, b->device.is_known);
    assert_string_equal(a->device.name, b->device.name);
    assert_memory_equal(&a->device.memory_bytes, &b->device.memory_bytes,
                        sizeof a->device - offsetof(mr_measured_device, memory_bytes));
}

/* The one file of the folder. */
static void file_path(char out[512]) {
    struct dirent *e;
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    while ((e = readdir(d)))
        if (e->d_name[0] != '.') {
            snprintf(out, 512, "%s/%s", folder, e->d_name);
            n++;
        }
    closedir(d);
    assert_int_equal(n, 1);
}

static void save(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static void test_comes_back(void **state) {
    (void)state;
    mr_measured m = sample(), back;
    assert_false(mr_kept_facts_read(folder, KEY, &back));
    mr_kept_facts_write(folder, KEY, &m);
    assert_true(mr_kept_facts_read(folder, KEY, &back));
    expect_same(&back, &m);
    assert_false(mr_kept_facts_read(folder, KEY + 1, &back));
    m.layer[1].seconds[2] = 5;
    m.device = (mr_measured_device){0};
    mr_kept_facts_write(folder, KEY, &m);
    assert_true(mr_kept_facts_read(folder, KEY, &back));
    expect_same(&back, &m);
    char path[512];
    file_path(path); /* the folder holds one file only */
    m.n_kinds = MR_MAX_LAYER_KINDS;
    for (int32_t k = 0; k < MR_MAX_LAYER_KINDS; k++) {
        m.layer[k].n = MR_STEP_TIMES_MAX;
        for (int32_t i = 0; i < MR_STEP_TIMES_MAX; i++)
            m.layer[k].rows[i] = 1000 + i;
    }
    m.output = m.layer[0];
    m.device = sample().device;
    memcpy(m.device.layer, m.layer, sizeof m.device.layer);
    mr_kept_facts_write(folder, KEY, &m);
    assert_true(mr_kept_facts_read(folder, KEY, &back));
    expect_same(&back, &m);
    unlink(path);
}

static void test_broken_files(void **state) {
    (void)state;
    static uint8_t data[MAX_BYTES];
    const mr_measured m = sample();
    mr_measured back;
    char path[512];
    mr_kept_facts_write(folder, KEY, &m);
    file_path(path);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    assert_true(n > 100 && n < sizeof data);
    for (size_t i = 0; i < n; i++) {
        data[i] ^= 0x10;
        save(path, data, n);
        assert_false(mr_kept_facts_read(folder, KEY, &back));
        data[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < n; cut += 9) {
        save(path, data, cut);
        assert_false(mr_kept_facts_read(folder, KEY, &back));
    }
    save(path, data, sizeof data);
    assert_false(mr_kept_facts_read(folder, KEY, &back));
    mr_kept_facts_write(folder, KEY, &m); /* a new file replaces the bad one */
    assert_true(mr_kept_facts_read(folder, KEY, &back));
    const mr_measured nothing = {0}; /* empty facts are not kept */
    mr_kept_facts_write(folder, KEY, &nothing);
    assert_false(mr_kept_facts_read(folder, KEY, &back));
    unlink(path);
    mr_kept_facts_write("/proc/nowhere", KEY, &m);
    assert_false(mr_kept_facts_read("/proc/nowhere", KEY, &back));
}

static void test_holds(void **state) {
    (void)state;
    const mr_measured m = {.sample_s = 0.1};
    assert_true(mr_kept_facts_hold(&m, 0.1));
    assert_true(mr_kept_facts_hold(&m, 0.124));
    assert_false(mr_kept_facts_hold(&m, 0.126));
    assert_true(mr_kept_facts_hold(&m, 0.081));
    assert_false(mr_kept_facts_hold(&m, 0.079));
    assert_false(mr_kept_facts_hold(&m, 0));
}

static void test_key(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_F16);
    tiny_model *m = tiny_model_create(&d);
    d.n_layers++;
    tiny_model *other = tiny_model_create(&d);
    mr_measure_config c = {.gguf = m->gguf, .info = &m->info, .kv_type = MR_TYPE_F16, .max_rows = 64};
    uint64_t keys[8] = {mr_kept_facts_key(&c, 2, 3), mr_kept_facts_key(&c, 3, 2), mr_kept_facts_key(&c, 2, 2)};
    assert_int_equal(mr_kept_facts_key(&c, 2, 3), keys[0]);
    c.max_rows = 32;
    keys[3] = mr_kept_facts_key(&c, 2, 3);
    c.map_weights = true;
    keys[4] = mr_kept_facts_key(&c, 2, 3);
    c.kv_type = MR_TYPE_F32;
    keys[5] = mr_kept_facts_key(&c, 2, 3);
    c.gguf = other->gguf;
    keys[6] = mr_kept_facts_key(&c, 2, 3);
    for (int i = 0; i < 7; i++)
        for (int k = 0; k < i; k++)
            assert_true(keys[i] != keys[k]);
    tiny_model_destroy(other);
    tiny_model_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comes_back),
        cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_holds),
        cmocka_unit_test(test_key),
    };
    strcpy(folder, "/tmp/millrace-test-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
