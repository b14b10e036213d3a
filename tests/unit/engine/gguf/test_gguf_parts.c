/* A model in parts is read as one file would be, and parts that do not fit together are refused. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/gguf_digest.h"
#include "engine/gguf/part_files.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test.h"

enum {
    N_PARTS = 3,
    PART_ROWS = 70000, /* the data of each part is larger than a part's alignment, and no multiple of it */
};

static char folder[] = "/tmp/millrace-parts-XXXXXX";
static float values[PART_ROWS * 8];

static const char *part_path(int idx) {
    static char path[128];
    snprintf(path, sizeof path, "%s/m-%05d-of-%05d.gguf", folder, idx + 1, N_PARTS);
    return path;
}

/* What a test changes in a part. */
typedef struct part_keys {
    uint32_t idx, count, n_tensors;
    const char *tensor; /* NULL: t0, t1 or t2 */
} part_keys;

static void save_part(int idx, part_keys k) {
    char name[16];
    snprintf(name, sizeof name, "t%d", idx);
    gguf_writer *w = gguf_writer_create();
    if (idx == 0)
        gguf_writer_str(w, "general.architecture", "llama");
    gguf_writer_u32(w, "split.no", k.idx);
    gguf_writer_u32(w, "split.count", k.count);
    gguf_writer_i32(w, "split.tensors.count", (int32_t)k.n_tensors);
    values[0] = (float)idx;
    gguf_writer_matrix(w, k.tensor ? k.tensor : name, MR_TYPE_F32, 8, PART_ROWS, values);
    assert_true(gguf_writer_save(w, part_path(idx)));
    gguf_writer_destroy(w);
}

static void save_parts(void) {
    for (int i = 0; i < N_PARTS; i++)
        save_part(i, (part_keys){(uint32_t)i, N_PARTS, N_PARTS, NULL});
}

static void test_any_part_opens_all(void **state) {
    (void)state;
    save_parts();
    for (int named = 0; named < N_PARTS; named++) {
        mr_gguf *g = NULL;
        mr_err err;
        mr_str arch;
        struct stat st;
        uint64_t at = 0;
        expect_ok(mr_gguf_open(part_path(named), &g, &err), &err);
        expect_ok(mr_gguf_get_str(g, "general.architecture", &arch, &err), &err);
        assert_int_equal(mr_gguf_n_parts(g), N_PARTS);
        assert_int_equal(mr_gguf_n_tensors(g), N_PARTS);
        for (int i = 0; i < N_PARTS; i++) {
            char name[16];
            snprintf(name, sizeof name, "t%d", i);
            const mr_gguf_tensor *t = mr_gguf_find_tensor(g, name);
            const mr_gguf_part *p = mr_gguf_part_at(g, i);
            values[0] = (float)i;
            assert_non_null(t);
            assert_memory_equal(t->data, values, sizeof values);
            assert_ptr_equal(t->data, mr_gguf_file_data(g) + t->offset);
            assert_int_equal(stat(part_path(i), &st), 0);
            assert_int_equal(p->at, at);
            assert_int_equal(p->at % MR_GGUF_PART_ALIGN, 0);
            assert_int_equal(p->bytes, st.st_size);
            assert_int_equal(t->offset, p->at + p->header_bytes);
            at += ((uint64_t)st.st_size + MR_GGUF_PART_ALIGN - 1) / MR_GGUF_PART_ALIGN * MR_GGUF_PART_ALIGN;
        }
        mr_gguf_release_pages(g, mr_gguf_file_data(g), mr_gguf_file_bytes(g)); /* over the gaps too */
        mr_gguf_close(g);
    }
}

/* Reads the virtual file into one file, and opens that by the sizes of the parts, as a rank without the model does. */
static void test_one_file_holds_all_parts(void **state) {
    (void)state;
    char path[64];
    mr_part_files files;
    mr_gguf *g = NULL;
    mr_err err;
    mr_part_place places[N_PARTS] = {0};
    save_parts();
    expect_ok(mr_part_files_open(part_path(1), &files, &err), &err);
    uint8_t *data = malloc(files.bytes);
    assert_non_null(data);
    memset(data, 0xff, files.bytes);
    for (uint64_t at = 0, step = 300001; at < files.bytes; at += step)
        expect_ok(mr_part_files_read(&files, at, data + at, files.bytes - at < step ? files.bytes - at : step, &err),
                  &err);
    for (int i = 0; i < N_PARTS; i++) {
        places[i].bytes = files.parts[i].bytes;
        if (i > 0) /* the gap in front of the part */
            assert_int_equal(data[files.parts[i].at - 1], 0);
    }
    snprintf(path, sizeof path, "%s/cached", folder);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, files.bytes, f), files.bytes);
    fclose(f);
    expect_ok(mr_gguf_open_places("/nowhere/model.gguf", places, N_PARTS, path, &g, &err), &err);
    assert_int_equal(mr_gguf_n_tensors(g), N_PARTS);
    values[0] = 2;
    assert_memory_equal(mr_gguf_find_tensor(g, "t2")->data, values, sizeof values);
    mr_gguf_close(g);
    places[1].bytes++; /* the gap is one byte smaller */
    expect_ok(mr_gguf_open_places("/nowhere/model.gguf", places, N_PARTS, path, &g, &err), &err);
    mr_gguf_close(g);
    places[2].bytes++;
    assert_int_equal(mr_gguf_open_places("/nowhere/model.gguf", places, N_PARTS, path, &g, &err), MR_E_FORMAT);
    assert_non_null(strstr(err.text, "which are not those of its 3 parts"));
    mr_part_files_close(&files);
    free(data);
}

/* Part 1 is not here but in a cache, where the other parts are holes. Without the cache, its bytes cannot be read. */
static void test_some_parts_in_a_cache(void **state) {
    (void)state;
    char path[64], byte;
    mr_part_files files;
    mr_gguf *g = NULL;
    mr_err err;
    mr_part_place places[N_PARTS];
    save_parts();
    expect_ok(mr_part_files_open(part_path(0), &files, &err), &err);
    for (int i = 0; i < N_PARTS; i++)
        places[i] = (mr_part_place){files.parts[i].bytes, i != 1};
    uint8_t *data = calloc(1, files.bytes);
    assert_non_null(data);
    const mr_part_file *part = &files.parts[1];
    expect_ok(mr_part_files_read(&files, part->at, data + part->at, part->bytes, &err), &err);
    snprintf(path, sizeof path, "%s/cached", folder);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, files.bytes, f), files.bytes);
    fclose(f);
    uint64_t at = part->at;
    mr_part_files_close(&files);
    unlink(part_path(1));
    expect_ok(mr_gguf_open_places(part_path(2), places, N_PARTS, path, &g, &err), &err);
    for (int i = 0; i < N_PARTS; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        values[0] = (float)i;
        assert_memory_equal(mr_gguf_find_tensor(g, name)->data, values, sizeof values);
    }
    mr_gguf_close(g);
    expect_ok(mr_part_files_open_places(part_path(2), places, N_PARTS, NULL, &files, &err), &err);
    assert_true(mr_part_files_has(&files, 0) && mr_part_files_has(&files, at - 1) && !mr_part_files_has(&files, at));
    assert_int_equal(mr_part_files_read(&files, at, &byte, 1, &err), MR_E_NOT_FOUND);
    assert_non_null(strstr(err.text, strrchr(part_path(1), '/')));
    expect_ok(mr_part_files_read(&files, 0, &byte, 1, &err), &err);
    mr_part_files_close(&files);
    places[2].bytes--;
    assert_int_equal(mr_gguf_open_places(part_path(2), places, N_PARTS, path, &g, &err), MR_E_IO);
    assert_non_null(strstr(err.text, strrchr(part_path(2), '/')));
    free(data);
}

/* One part alone, and its digest, which is a piece of that of the model. */
static void test_one_part_alone(void **state) {
    (void)state;
    mr_gguf *g = NULL;
    mr_err err;
    uint64_t whole[N_PARTS], alone[N_PARTS];
    save_parts();
    expect_ok(mr_gguf_open(part_path(0), &g, &err), &err);
    mr_gguf_part_digests(g, whole);
    assert_int_equal(mr_gguf_digest(g), mr_gguf_join_digests(whole, N_PARTS));
    mr_gguf_close(g);
    for (int i = 0; i < N_PARTS; i++) {
        expect_ok(mr_gguf_open_part(part_path(0), i, &g, &err), &err);
        assert_int_equal(mr_gguf_n_parts(g), 1);
        assert_int_equal(mr_gguf_n_tensors(g), 1);
        mr_gguf_part_digests(g, &alone[i]);
        mr_gguf_close(g);
    }
    assert_memory_equal(alone, whole, sizeof whole);
    assert_true(whole[0] != whole[1] && whole[1] != whole[2]);
    save_part(1, (part_keys){2, N_PARTS, N_PARTS, NULL});
    assert_int_equal(mr_gguf_open_part(part_path(0), 1, &g, &err), MR_E_FORMAT);
    assert_non_null(strstr(err.text, strrchr(part_path(1), '/')));
    unlink(part_path(1));
    assert_int_equal(mr_gguf_open_part(part_path(0), 1, &g, &err), MR_E_NOT_FOUND);
    assert_true(mr_part_files_exists(part_path(0), 2) && !mr_part_files_exists(part_path(0), 1));
    save_parts();
}

/* The error names the part that is wrong, and what is wrong with it. */
static void expect_refusal(int named, int wrong, mr_status status, const char *words) {
    mr_gguf *g = NULL;
    mr_err err;
    assert_int_equal(mr_gguf_open(part_path(named), &g, &err), status);
    assert_non_null(strstr(err.text, strrchr(part_path(wrong), '/')));
    if (!strstr(err.text, words))
        fail_msg("'%s' is not in: %s", words, err.text);
    save_parts();
}

static void test_parts_that_do_not_fit(void **state) {
    (void)state;
    save_parts();
    unlink(part_path(1));
    expect_refusal(0, 1, MR_E_NOT_FOUND, "part 2 of the model's 3 is missing");
    save_part(1, (part_keys){2, N_PARTS, N_PARTS, NULL});
    expect_refusal(2, 1, MR_E_FORMAT, "by its name the file is part 2 of 3, by its keys part 3 of 3");
    save_part(2, (part_keys){2, 4, N_PARTS, NULL});
    expect_refusal(0, 2, MR_E_FORMAT, "by its keys part 3 of 4");
    save_part(2, (part_keys){2, N_PARTS, 40, NULL});
    expect_refusal(0, 2, MR_E_FORMAT, "says that the model has 40 tensors, but its 3 parts hold 3");
    save_part(2, (part_keys){2, N_PARTS, N_PARTS, "t0"});
    expect_refusal(1, 2, MR_E_FORMAT, "tensor 't0' occurs twice");
    assert_int_equal(truncate(part_path(1), 2000000), 0);
    expect_refusal(0, 1, MR_E_FORMAT, "the file seems truncated");
    assert_int_equal(truncate(part_path(2), 10), 0);
    expect_refusal(0, 2, MR_E_FORMAT, "");
    assert_int_equal(truncate(part_path(0), 0), 0);
    expect_refusal(2, 0, MR_E_FORMAT, "the file is empty");
}

static void test_a_part_by_another_name(void **state) {
    (void)state;
    char path[64];
    mr_gguf *g = NULL;
    mr_err err;
    save_parts();
    snprintf(path, sizeof path, "%s/renamed.gguf", folder);
    assert_int_equal(rename(part_path(1), path), 0);
    assert_int_equal(mr_gguf_open(path, &g, &err), MR_E_FORMAT);
    assert_non_null(strstr(err.text, "is part 2 of a model in 3 parts, but its name does not say so"));
    unlink(path);
}

static void test_names(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int32_t n, idx;
    } CASES[] = {{"m-00002-of-00005.gguf", 5, 1}, {"/x/-00001-of-00001.gguf", 1, 0}, {"m-00006-of-00005.gguf", 1, 0},
                 {"m-00000-of-00005.gguf", 1, 0}, {"m-00001-of-00513.gguf", 1, 0},   {"m-0001-of-00005.gguf", 1, 0},
                 {"m-00001-of-00005.bin", 1, 0},  {"m-0000a-of-00005.gguf", 1, 0},   {"", 1, 0}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        int32_t idx = -1;
        assert_int_equal(mr_part_files_count(CASES[i].path, &idx), CASES[i].n);
        assert_int_equal(idx, CASES[i].idx);
    }
    char *path = mr_part_files_path("/a/m-00002-of-00005.gguf", 3);
    assert_string_equal(path, "/a/m-00004-of-00005.gguf");
    mr_free(path);
}

static int make_folder(void **state) {
    (void)state;
    for (size_t i = 1; i < sizeof values / sizeof values[0]; i++)
        values[i] = (float)i;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_part_opens_all),
        cmocka_unit_test(test_one_file_holds_all_parts),
        cmocka_unit_test(test_some_parts_in_a_cache),
        cmocka_unit_test(test_one_part_alone),
        cmocka_unit_test(test_parts_that_do_not_fit),
        cmocka_unit_test(test_a_part_by_another_name),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
