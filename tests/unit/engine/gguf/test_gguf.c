/* Values, arrays and tensors of valid model files, and how files are mapped. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/gguf/gguf.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test.h"

static mr_gguf *open_writer(gguf_writer *w) {
    size_t size;
    const uint8_t *data = gguf_writer_bytes(w, &size);
    mr_gguf *g = NULL;
    mr_err err = {0};
    expect_ok(mr_gguf_open_memory(data, size, &g, &err), &err);
    return g;
}

/* Every value type once, as single values and as arrays. */
static gguf_writer *all_types(void) {
    char text[131] = {0};
    memset(text, 't', sizeof text - 1);
    gguf_writer *w = gguf_writer_create();
    gguf_writer_raw(w, "v.u8", MR_GGUF_U8, "\xfe", 1);
    gguf_writer_raw(w, "v.i8", MR_GGUF_I8, "\xfe", 1);
    gguf_writer_raw(w, "v.u16", MR_GGUF_U16, "\xfe\xff", 2);
    gguf_writer_raw(w, "v.i16", MR_GGUF_I16, "\xfe\xff", 2);
    gguf_writer_u32(w, "v.u32", 0xfffffffe);
    gguf_writer_i32(w, "v.i32", -2);
    gguf_writer_u64(w, "v.u64", 0xfffffffffffffffe);
    gguf_writer_raw(w, "v.i64", MR_GGUF_I64, "\xfe\xff\xff\xff\xff\xff\xff\xff", 8);
    gguf_writer_f32(w, "v.f32", 1.5f);
    gguf_writer_raw(w, "v.f64", MR_GGUF_F64, "\0\0\0\0\0\0\xf8\xbf", 8);
    gguf_writer_raw(w, "v.zero", MR_GGUF_U8, "\0", 1);
    gguf_writer_bool(w, "v.bool", true);
    gguf_writer_str(w, "v.str", "a \"text\"\n\x1b");
    gguf_writer_str(w, "v.empty", "");
    gguf_writer_str(w, "v.long", text);
    gguf_writer_strs(w, "a.long", (const char *const[]){text}, 1);
    gguf_writer_u32s(w, "a.u32", (const uint32_t[]){1, 2, 0xffffffff}, 3);
    gguf_writer_i32s(w, "a.i32", (const int32_t[]){-1, 0, 1, 2, 3, 4, 5, 6}, 8);
    gguf_writer_f32s(w, "a.f32", (const float[]){0.5f, -2}, 2);
    gguf_writer_strs(w, "a.str", (const char *const[]){"", "one", "two"}, 3);
    gguf_writer_strs(w, "a.none", NULL, 0);
    gguf_writer_raw(w, "a.bool", MR_GGUF_ARRAY, "\7\0\0\0\2\0\0\0\0\0\0\0\0\1", 14);
    gguf_writer_raw(w, "a.u64", MR_GGUF_ARRAY, "\12\0\0\0\1\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 20);
    gguf_writer_raw(w, "a.i64", MR_GGUF_ARRAY, "\13\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x80", 20);
    gguf_writer_raw(w, "a.f64", MR_GGUF_ARRAY, "\14\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\xf8\xbf", 20);
    return w;
}

static void test_integers_come_from_any_integer_type(void **state) {
    (void)state;
    gguf_writer *w = all_types();
    mr_gguf *g = open_writer(w);
    mr_err err = {0};
    uint32_t u32 = 0;
    int32_t i32 = 0;
    uint64_t u64 = 0;
    int64_t i64 = 0;
    expect_ok(mr_gguf_get_u32(g, "v.u8", &u32, &err), &err);
    assert_int_equal(u32, 254);
    expect_ok(mr_gguf_get_i32(g, "v.i8", &i32, &err), &err);
    assert_int_equal(i32, -2);
    expect_ok(mr_gguf_get_i32(g, "v.u16", &i32, &err), &err);
    assert_int_equal(i32, 65534);
    expect_ok(mr_gguf_get_i64(g, "v.i16", &i64, &err), &err);
    assert_int_equal(i64, -2);
    expect_ok(mr_gguf_get_u64(g, "v.u32", &u64, &err), &err);
    assert_int_equal(u64, 0xfffffffe);
    expect_ok(mr_gguf_get_i64(g, "v.i64", &i64, &err), &err);
    assert_int_equal(i64, -2);
    expect_ok(mr_gguf_get_u64(g, "v.u64", &u64, &err), &err);
    assert_true(u64 == 0xfffffffffffffffe);

    u32 = 7;
    assert_int_equal(mr_gguf_get_u32(g, "v.i32", &u32, &err), MR_E_FORMAT);
    assert_string_equal(err.text, "key 'v.i32': -2 is below the least value 0");
    assert_int_equal(mr_gguf_get_i32(g, "v.u32", &i32, &err), MR_E_FORMAT);
    assert_string_equal(err.text, "key 'v.u32': 4294967294 is above the largest value 2147483647");
    assert_int_equal(mr_gguf_get_i64(g, "v.u64", &i64, &err), MR_E_FORMAT);
    assert_int_equal(mr_gguf_get_u64(g, "v.i64", &u64, &err), MR_E_FORMAT);
    assert_int_equal(mr_gguf_get_u32(g, "v.f32", &u32, &err), MR_E_FORMAT);
    assert_string_equal(err.text, "key 'v.f32': the value is of type f32, not an integer");
    assert_int_equal(mr_gguf_get_u32(g, "a.u32", &u32, &err), MR_E_FORMAT);
    assert_string_equal(err.text, "key 'a.u32': the value is of type array of u32, not an integer");
    assert_int_equal(mr_gguf_get_u32(g, "no.such", &u32, &err), MR_E_NOT_FOUND);
    assert_string_equal(err.text, "key 'no.such' is missing");
    assert_int_equal(u32, 7);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

static void test_other_values(void **state) {
    (void)state;
    gguf_writer *w = all_types();
    mr_gguf *g = open_writer(w);
    mr_err err = {0};
    float f = 0;
    bool b = false;
    mr_str s = {0};
    expect_ok(mr_gguf_get_f32(g, "v.f32", &f, &err), &err);
    assert_true(f == 1.5f);
    expect_ok(mr_gguf_get_f32(g, "v.f64", &f, &err), &err);
    assert_true(f == -1.5f);
    expect_ok(mr_gguf_get_f32(g, "v.i8", &f, &err), &err);
    assert_true(f == -2.0f);
    expect_ok(mr_gguf_get_f32(g, "v.u64", &f, &err), &err);
    assert_true(f == 0x1p64f);
    assert_int_equal(mr_gguf_get_f32(g, "v.str", &f, &err), MR_E_FORMAT);
    assert_int_equal(mr_gguf_get_f32(g, "a.f32", &f, &err), MR_E_FORMAT);
    assert_string_equal(err.text, "key 'a.f32': the value is of type array of f32, not a number");
    expect_ok(mr_gguf_get_bool(g, "v.zero", &b, &err), &err);
    assert_false(b);
    assert_int_equal(mr_gguf_get_bool(g, "v.u8", &b, &err), MR_E_FORMAT);
    assert_string_equal(err.text, "key 'v.u8': 254 is above the largest value 1");
    assert_int_equal(mr_gguf_get_bool(g, "a.bool", &b, &err), MR_E_FORMAT);
    expect_ok(mr_gguf_get_bool(g, "v.bool", &b, &err), &err);
    assert_true(b);
    assert_int_equal(mr_gguf_get_bool(g, "v.str", &b, &err), MR_E_FORMAT);
    assert_string_equal(err.text, "key 'v.str': the value is of type string, not a bool");
    expect_ok(mr_gguf_get_str(g, "v.str", &s, &err), &err);
    assert_true(mr_str_is(s, "a \"text\"\n\x1b"));
    assert_int_equal(mr_gguf_get_str(g, "v.empty", &s, NULL), MR_OK);
    assert_int_equal(s.len, 0);
    assert_int_equal(mr_gguf_get_str(g, "a.str", &s, NULL), MR_E_FORMAT);
    assert_true(mr_gguf_has_key(g, "a.str"));
    assert_false(mr_gguf_has_key(g, "a.st"));
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

static void test_arrays(void **state) {
    (void)state;
    gguf_writer *w = all_types();
    mr_gguf *g = open_writer(w);
    mr_err err = {0};
    mr_gguf_array a;
    expect_ok(mr_gguf_get_array(g, "a.u32", MR_GGUF_ELEMS_INTEGERS, &a, &err), &err);
    assert_int_equal(a.n, 3);
    assert_int_equal(mr_gguf_array_u32(&a, 2), 0xffffffff);
    assert_int_equal(mr_gguf_array_i32(&a, 2), INT32_MAX);
    expect_ok(mr_gguf_get_array(g, "a.i32", MR_GGUF_ELEMS_INTEGERS, &a, &err), &err);
    assert_int_equal(mr_gguf_array_i32(&a, 0), -1);
    assert_int_equal(mr_gguf_array_u32(&a, 0), 0);
    expect_ok(mr_gguf_get_array(g, "a.u64", MR_GGUF_ELEMS_INTEGERS, &a, &err), &err);
    assert_int_equal(mr_gguf_array_i32(&a, 0), INT32_MAX);
    assert_int_equal(mr_gguf_array_u32(&a, 0), UINT32_MAX);
    expect_ok(mr_gguf_get_array(g, "a.i64", MR_GGUF_ELEMS_INTEGERS, &a, &err), &err);
    assert_int_equal(mr_gguf_array_i32(&a, 0), INT32_MIN);
    expect_ok(mr_gguf_get_array(g, "a.f32", MR_GGUF_ELEMS_FLOATS, &a, &err), &err);
    assert_true(mr_gguf_array_f32(&a, 1) == -2.0f);
    expect_ok(mr_gguf_get_array(g, "a.f64", MR_GGUF_ELEMS_FLOATS, &a, &err), &err);
    assert_true(mr_gguf_array_f32(&a, 0) == -1.5f);
    expect_ok(mr_gguf_get_array(g, "a.i32", MR_GGUF_ELEMS_FLOATS, &a, &err), &err);
    assert_true(mr_gguf_array_f32(&a, 0) == -1.0f && mr_gguf_array_f32(&a, 7) == 6.0f);
    assert_int_equal(mr_gguf_get_array(g, "a.bool", MR_GGUF_ELEMS_FLOATS, &a, &err), MR_E_FORMAT);
    expect_ok(mr_gguf_get_array(g, "a.bool", MR_GGUF_ELEMS_BOOLS, &a, &err), &err);
    assert_int_equal(mr_gguf_array_i64(&a, 1), 1);
    expect_ok(mr_gguf_get_array(g, "a.str", MR_GGUF_ELEMS_STRINGS, &a, &err), &err);
    assert_int_equal(mr_gguf_array_str(&a, 0).len, 0);
    assert_true(mr_str_is(mr_gguf_array_str(&a, 2), "two"));
    expect_ok(mr_gguf_get_array(g, "a.none", MR_GGUF_ELEMS_ANY, &a, &err), &err);
    assert_int_equal(a.n, 0);

    assert_int_equal(mr_gguf_get_array(g, "a.str", MR_GGUF_ELEMS_INTEGERS, &a, &err), MR_E_FORMAT);
    assert_string_equal(err.text, "key 'a.str': the value is of type array of string, not an array of integers");
    assert_int_equal(mr_gguf_get_array(g, "v.u32", MR_GGUF_ELEMS_ANY, &a, &err), MR_E_FORMAT);
    assert_string_equal(err.text, "key 'v.u32': the value is of type u32, not an array");
    assert_int_equal(mr_gguf_get_array(g, "no", MR_GGUF_ELEMS_ANY, &a, &err), MR_E_NOT_FOUND);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

static void test_values_print_as_one_line(void **state) {
    (void)state;
    static const struct {
        const char *key, *text;
    } cases[] = {
        {"v.u8", "254"},
        {"v.i8", "-2"},
        {"v.u64", "18446744073709551614"},
        {"v.f32", "1.5"},
        {"v.f64", "-1.5"},
        {"v.bool", "true"},
        {"v.str", "\"a \\\"text\\\"\\n\\x1b\""},
        {"a.i32", "[-1, 0, 1, 2, 3, 4, ...] (8 items)"},
        {"a.str", "[\"\", \"one\", \"two\"]"},
        {"a.none", "[]"},
        {"v.long",
         "\"tttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt"
         "tttttttttttttttttttttt\"... (130 bytes)"},
        {"a.long", "[\"tttttttttttttttttttttttt\"... (130 bytes)]"},
        {"a.bool", "[false, true]"},
    };
    gguf_writer *w = all_types();
    mr_gguf *g = open_writer(w);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int32_t k = 0; k < mr_gguf_n_keys(g); k++)
            if (strcmp(mr_gguf_key_name(g, k), cases[i].key) == 0) {
                char text[200];
                mr_gguf_key_format(g, k, text, sizeof text);
                assert_string_equal(text, cases[i].text);
                mr_gguf_key_format(g, k, text, 1);
                assert_string_equal(text, "");
                mr_gguf_key_format(g, k, text, 3);
                assert_true(strlen(text) <= 2);
            }
    assert_string_equal(mr_gguf_type_name(mr_gguf_key_type(g, 0)), "u8");
    assert_string_equal(mr_gguf_type_name(13), "?");
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

static void add_tensors(gguf_writer *w) {
    float data[6] = {0, 1, 2, 3, 4, 5};
    gguf_writer_matrix(w, "b", MR_TYPE_F32, 3, 2, data);
    gguf_writer_matrix(w, "a", MR_TYPE_Q8_0, 64, 3, NULL);
    gguf_writer_tensor(w, "c.d", MR_TYPE_F16, 4, (const int64_t[]){1, 2, 3, 4}, NULL);
}

static void check_tensors(const mr_gguf *g, size_t alignment) {
    assert_int_equal(mr_gguf_n_tensors(g), 3);
    const mr_gguf_tensor *b = mr_gguf_tensor_at(g, 0), *a = mr_gguf_find_tensor(g, "a");
    assert_string_equal(b->name, "b");
    assert_ptr_equal(mr_gguf_find_tensor(g, "b"), b);
    assert_ptr_equal(a, mr_gguf_tensor_at(g, 1));
    assert_null(mr_gguf_find_tensor(g, "c"));
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->ne[0], 3);
    assert_int_equal(b->ne[1], 2);
    assert_int_equal(b->ne[3], 1);
    assert_int_equal(b->bytes, 24);
    assert_int_equal(b->offset, mr_gguf_part_at(g, 0)->header_bytes);
    assert_int_equal(b->offset % alignment, 0);
    assert_memory_equal(b->data + 20, &(float){5}, 4);
    assert_int_equal(a->type, MR_TYPE_Q8_0);
    assert_int_equal(a->bytes, 3 * 2 * 34);
    assert_int_equal(a->offset, b->offset + (24 + alignment - 1) / alignment * alignment);
    assert_int_equal(mr_gguf_find_tensor(g, "c.d")->ne[3], 4);
}

static void test_tensors(void **state) {
    (void)state;
    static const uint32_t alignments[] = {32, 8, 64, 4096};
    for (size_t i = 0; i < 2 * sizeof alignments / sizeof alignments[0]; i++) {
        gguf_writer *w = gguf_writer_create();
        gguf_writer_version(w, i % 2 ? 2 : 3);
        if (i >= 2)
            gguf_writer_alignment(w, alignments[i / 2]);
        add_tensors(w);
        mr_gguf *g = open_writer(w);
        assert_int_equal(mr_gguf_version(g), i % 2 ? 2 : 3);
        check_tensors(g, alignments[i / 2]);
        mr_gguf_close(g);
        gguf_writer_destroy(w);
    }
}

static void make_path(char *path, size_t size, const char *name) {
    const char *dir = getenv("TMPDIR");
    snprintf(path, size, "%s/millrace-test-%ld-%s", dir ? dir : "/tmp", (long)getpid(), name);
}

static void test_file_is_mapped(void **state) {
    (void)state;
    char path[256];
    mr_err err = {0};
    make_path(path, sizeof path, "ok.gguf");
    gguf_writer *w = gguf_writer_create();
    add_tensors(w);
    assert_true(gguf_writer_save(w, path));
    mr_gguf *g = NULL;
    expect_ok(mr_gguf_open(path, &g, &err), &err);
    unlink(path);
    check_tensors(g, 32);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

/* Kilobytes of the mapping around data that are in the memory of the process. */
static size_t resident_kb(const uint8_t *data) {
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long from, to, kb = 0;
    bool inside = false;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from <= (uintptr_t)data && to >= (uintptr_t)data + 1;
        else if (inside && sscanf(line, "Rss: %lu kB", &kb) == 1)
            break;
    }
    fclose(f);
    return kb;
}

static void test_pages_are_given_back(void **state) {
    (void)state;
    char path[256];
    mr_err err = {0};
    size_t n = 8 << 20;
    make_path(path, sizeof path, "pages.gguf");
    gguf_writer *w = gguf_writer_create();
    gguf_writer_vector(w, "big", MR_TYPE_I8, (int64_t)n, NULL);
    assert_true(gguf_writer_save(w, path));
    mr_gguf *g = NULL;
    expect_ok(mr_gguf_open(path, &g, &err), &err);
    unlink(path);
    const mr_gguf_tensor *t = mr_gguf_tensor_at(g, 0);
    mr_gguf_prefetch(g, t->data, t->bytes);
    unsigned sum = 0;
    for (size_t i = 0; i < n; i += 512)
        sum += t->data[i];
    assert_int_equal(sum, 0);
    size_t before = resident_kb(t->data);
    assert_true(before >= n / 1024);
    mr_gguf_release_pages(g, t->data, t->bytes);
    size_t after = resident_kb(t->data);
    assert_true(after <= 256);
    assert_int_equal(t->data[n - 1], 0); /* the page is read from the file again */

    /* Ranges that are not inside the file are ignored. */
    mr_gguf_release_pages(g, t->data, SIZE_MAX);
    mr_gguf_release_pages(g, t->data + t->bytes, 1);
    mr_gguf_release_pages(g, &n, sizeof n);
    mr_gguf_prefetch(g, mr_gguf_file_data(g), mr_gguf_file_bytes(g));
    mr_gguf_release_pages(g, t->data, 0);
    mr_gguf_close(g);
    g = open_writer(w);
    mr_gguf_release_pages(g, mr_gguf_file_data(g), mr_gguf_file_bytes(g));
    mr_gguf_prefetch(g, mr_gguf_file_data(g), mr_gguf_file_bytes(g));
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

static void expect_open(const char *path, mr_status want, const char *text) {
    mr_gguf *g = NULL;
    mr_err err = {0};
    assert_int_equal(mr_gguf_open(path, &g, &err), want);
    assert_null(g);
    expect_says(err.text, text);
    assert_null(strchr(err.text, '\n'));
    if (strlen(path) < 100)
        assert_memory_equal(err.text, path, strlen(path));
}

static void expect_content(const char *content, mr_status want, const char *text) {
    char path[256];
    make_path(path, sizeof path, "bad");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(content, 1, strlen(content), f);
    fclose(f);
    expect_open(path, want, text);
    unlink(path);
}

static void test_files_that_are_no_models(void **state) {
    (void)state;
    char path[1200], longer[1100];
    expect_content("", MR_E_FORMAT, ": the file is empty");
    expect_content("hello, world", MR_E_FORMAT, "no GGUF file: it starts with bytes 68 65 6c 6c");
    expect_content("GG", MR_E_FORMAT, "no GGUF file: it starts with bytes 47 47 00 00");
    expect_content("tjgg\1\1\1\1", MR_E_FORMAT, "old GGML format");
    expect_content("version https://git-lfs.github.com/spec/v1\n", MR_E_FORMAT, "git lfs pull");
    expect_content("<!DOCTYPE html>", MR_E_FORMAT, "web page");
    expect_content("PK\3\4....", MR_E_FORMAT, "PyTorch");
    expect_content("12345678{\"x\"", MR_E_FORMAT, "safetensors");
    expect_content("GGUF", MR_E_FORMAT,
                   "header: 4 bytes are needed at byte 4, but the file has 4 bytes; hint: the file "
                   "seems truncated");
    expect_open("/", MR_E_IO, "this is a directory; hint: give the path of a .gguf file");
    expect_open("/dev/null", MR_E_IO, "no regular file");
    make_path(path, sizeof path, "missing.gguf");
    expect_open(path, MR_E_NOT_FOUND, "cannot be opened: No such file or directory");
    make_path(path, sizeof path, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_open(path, MR_E_IO, "no regular file");
    unlink(path);
    /* The reason is shown even if the path is longer than an error text. */
    memset(longer, 'x', sizeof longer - 1);
    for (size_t i = 0; i + 1 < sizeof longer; i += 100)
        longer[i] = '/';
    longer[sizeof longer - 1] = 0;
    expect_open(longer, MR_E_NOT_FOUND, "xxx: the model file cannot be opened: No such file");
}

static void test_file_without_permission(void **state) {
    (void)state;
    if (geteuid() == 0) {
        print_message("skipped: root may read everything\n");
        return;
    }
    char path[256];
    make_path(path, sizeof path, "secret");
    gguf_writer *w = gguf_writer_create();
    assert_true(gguf_writer_save(w, path));
    chmod(path, 0);
    expect_open(path, MR_E_IO, "cannot be opened: Permission denied");
    unlink(path);
    gguf_writer_destroy(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers_come_from_any_integer_type),
        cmocka_unit_test(test_other_values),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_values_print_as_one_line),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_file_is_mapped),
        cmocka_unit_test(test_pages_are_given_back),
        cmocka_unit_test(test_files_that_are_no_models),
        cmocka_unit_test(test_file_without_permission),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
