/* Broken model files, by intent or by accident. Each gets its own status and text, and no byte outside the file is
 * read. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "engine/gguf/model_info.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test.h"

/* Opens a copy that ends exactly where the file does, so that a sanitizer sees every byte beyond. */
static mr_status open_copy(const uint8_t *data, size_t size, mr_gguf **out_g, mr_err *err, uint8_t **out_copy) {
    uint8_t *copy = malloc(size ? size : 1);
    assert_non_null(copy);
    if (size)
        memcpy(copy, data, size);
    *out_copy = copy;
    return mr_gguf_open_memory(copy, size, out_g, err);
}

static void expect_bytes(const uint8_t *data, size_t size, mr_status want, const char *text) {
    mr_gguf *g = NULL;
    mr_err err = {0};
    uint8_t *copy;
    mr_status status = open_copy(data, size, &g, &err, &copy);
    if (status != want || (want && !strstr(err.text, text)))
        fail_msg("%s: '%s', expected '%s'", mr_status_name(status), err.text, text);
    if (want)
        assert_null(g);
    mr_gguf_close(g);
    free(copy);
}

/* Takes the writer. */
static void expect(gguf_writer *w, mr_status want, const char *text) {
    size_t size;
    const uint8_t *data = gguf_writer_bytes(w, &size);
    expect_bytes(data, size, want, text);
    gguf_writer_destroy(w);
}

static void test_header(void **state) {
    (void)state;
    static const struct {
        uint32_t version;
        mr_status want;
        const char *text;
    } versions[] = {
        {0, MR_E_UNSUPPORTED, "GGUF version 0 is not supported"},
        {1, MR_E_UNSUPPORTED, "GGUF version 1 is not supported; hint: convert the model anew"},
        {4, MR_E_UNSUPPORTED, "GGUF version 4 is not supported; hint: versions 2 and 3"},
        {0x03000000, MR_E_UNSUPPORTED, "a big-endian GGUF file (version 3)"},
        {2, MR_OK, ""},
        {3, MR_OK, ""},
    };
    static const struct {
        uint64_t tensors, keys;
        const char *text;
    } counts[] = {
        {0, 1, "the header says 1 keys, too many for a file of 24 bytes; hint: the file seems truncated"},
        {1, 0, "the header says 1 tensors, too many for a file of 24 bytes"},
        {0, UINT64_MAX, "the header says 18446744073709551615 keys; the limit is 65536"},
        {UINT64_MAX, 0, "the header says 18446744073709551615 tensors; the limit is 262144"},
        {0, MR_GGUF_MAX_KEYS + 1, "the header says 65537 keys; the limit is 65536"},
    };
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        gguf_writer *w = gguf_writer_create();
        gguf_writer_version(w, versions[i].version);
        expect(w, versions[i].want, versions[i].text);
    }
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        gguf_writer *w = gguf_writer_create();
        gguf_writer_counts(w, counts[i].tensors, counts[i].keys);
        expect(w, MR_E_FORMAT, counts[i].text);
    }
}

static void test_values(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        const char *value;
        size_t bytes;
        mr_status want;
        const char *text;
    } cases[] = {
        {13, "\0\0\0\0", 4, MR_E_FORMAT, "key 'k': unknown value type 13"},
        {0xffffffff, "\0\0\0\0", 4, MR_E_FORMAT, "key 'k': unknown value type 4294967295"},
        {MR_GGUF_BOOL, "\2", 1, MR_E_FORMAT, "key 'k': a bool of value 2; 0 and 1 are allowed"},
        {MR_GGUF_BOOL, "\xff", 1, MR_E_FORMAT, "key 'k': a bool of value 255"},
        {MR_GGUF_U64, "\0\0\0\0", 4, MR_E_FORMAT, "key 'k': 8 bytes are needed at byte 37, but the file has 41 bytes"},
        {MR_GGUF_STRING, "\5\0\0\0\0\0\0\0abcd", 12, MR_E_FORMAT, "key 'k': 5 bytes are needed at byte 45"},
        {MR_GGUF_STRING, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, MR_E_FORMAT, "18446744073709551615 bytes are needed"},
        {MR_GGUF_STRING, "\xf8\xff\xff\xff\xff\xff\xff\xff", 8, MR_E_FORMAT, "18446744073709551608 bytes are needed"},
        {MR_GGUF_ARRAY, "\4\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0", 16, MR_E_FORMAT, "key 'k': 8 bytes are needed at byte 49"},
        {MR_GGUF_ARRAY, "\4\0\0\0\0\0\0\0\0\0\0\x40\1\0\0\0", 16, MR_E_FORMAT,
         "key 'k': 18446744073709551615 bytes are"},
        {MR_GGUF_ARRAY, "\15\0\0\0\0\0\0\0\0\0\0\0", 12, MR_E_FORMAT, "key 'k': unknown value type 13"},
        {MR_GGUF_ARRAY, "\11\0\0\0\1\0\0\0\0\0\0\0", 12, MR_E_UNSUPPORTED, "key 'k': an array of arrays"},
        {MR_GGUF_ARRAY, "\7\0\0\0\2\0\0\0\0\0\0\0\1\3", 14, MR_E_FORMAT, "key 'k': a bool of value 3"},
        {MR_GGUF_ARRAY, "\10\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0a", 21, MR_E_FORMAT,
         "key 'k': an array of 2 strings at byte 49; the file has 58 bytes"},
        {MR_GGUF_ARRAY, "\10\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0a", 21, MR_E_FORMAT, "key 'k': 2 bytes are needed"},
        {MR_GGUF_ARRAY, "\10\0\0\0\1\0\0\1\0\0\0\0\2\0\0\0\0\0\0\0a", 21, MR_E_FORMAT, "an array of 16777217 strings"},
        {MR_GGUF_ARRAY, "\10\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12, MR_E_FORMAT,
         "an array of 18446744073709551615"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer *w = gguf_writer_create();
        gguf_writer_raw(w, "k", cases[i].type, cases[i].value, cases[i].bytes);
        expect(w, cases[i].want, cases[i].text);
    }
}

static void test_names(void **state) {
    (void)state;
    static char longest[MR_GGUF_MAX_KEY_BYTES + 2];
    memset(longest, 'k', sizeof longest - 1);
    gguf_writer *w = gguf_writer_create();
    gguf_writer_u32(w, "", 1);
    gguf_writer_u32(w, "second", 1);
    expect(w, MR_E_FORMAT, "key 1 of 2: a name of 0 bytes; 1 to 65535 are allowed");

    w = gguf_writer_create();
    gguf_writer_u32(w, longest, 1);
    expect(w, MR_E_FORMAT, "key 1 of 1: a name of 65536 bytes; 1 to 65535 are allowed");
    w = gguf_writer_create();
    gguf_writer_u32(w, longest + 1, 1);
    expect(w, MR_OK, "");

    static const char *const names[] = {"a\nb", "a\x1b", "a\xc3\xa4", "a\x7f"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        w = gguf_writer_create();
        gguf_writer_u32(w, names[i], 1);
        expect(w, MR_E_FORMAT, "at position 1, not ASCII text");
        w = gguf_writer_create();
        gguf_writer_vector(w, names[i], MR_TYPE_F32, 1, NULL);
        expect(w, MR_E_FORMAT, "tensor 1 of 1: the name has byte 0x");
    }
    w = gguf_writer_create();
    gguf_writer_u32(w, "one", 1);
    gguf_writer_u32(w, "two", 1);
    gguf_writer_u32(w, "one", 2);
    expect(w, MR_E_FORMAT, "key 'one' occurs twice");

    longest[256] = 0;
    w = gguf_writer_create();
    gguf_writer_vector(w, longest, MR_TYPE_F32, 1, NULL);
    expect(w, MR_E_FORMAT, "tensor 1 of 1: a name of 256 bytes; 1 to 255 are allowed");
    w = gguf_writer_create();
    gguf_writer_vector(w, longest + 1, MR_TYPE_F32, 1, NULL);
    expect(w, MR_OK, "");
    w = gguf_writer_create();
    gguf_writer_vector(w, "same", MR_TYPE_F32, 1, NULL);
    gguf_writer_vector(w, "other", MR_TYPE_F32, 1, NULL);
    gguf_writer_vector(w, "same", MR_TYPE_F32, 1, NULL);
    expect(w, MR_E_FORMAT, "tensor 'same' occurs twice");
}

static void test_layout_keys(void **state) {
    (void)state;
    static const uint32_t bad[] = {0, 1, 4, 12, 33, 1u << 21, 0x80000000u};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[100];
        gguf_writer *w = gguf_writer_create();
        gguf_writer_u32(w, "general.alignment", bad[i]);
        snprintf(text, sizeof text, "key 'general.alignment': %u is no power of two from 8 to 1048576", bad[i]);
        expect(w, MR_E_FORMAT, text);
    }
    gguf_writer *w = gguf_writer_create();
    gguf_writer_str(w, "general.alignment", "32");
    expect(w, MR_E_FORMAT, "key 'general.alignment': the value is of type string, not an integer");
    w = gguf_writer_create();
    gguf_writer_raw(w, "split.count", MR_GGUF_U16, "\3\0", 2);
    gguf_writer_raw(w, "split.no", MR_GGUF_U16, "\1\0", 2);
    expect(w, MR_E_FORMAT, "the file is part 2 of a model in 3 parts, but its name does not say so; hint: the names");
    w = gguf_writer_create();
    gguf_writer_raw(w, "split.count", MR_GGUF_U16, "\1\0", 2);
    expect(w, MR_OK, "");
    w = gguf_writer_create();
    gguf_writer_i32(w, "split.count", -3);
    expect(w, MR_E_FORMAT, "key 'split.count': -3 is below the least value 0");
}

static void test_tensor_table(void **state) {
    (void)state;
    const uint64_t i63 = (uint64_t)1 << 63, i62 = (uint64_t)1 << 62;
    const struct {
        gguf_raw_tensor t;
        mr_status want;
        const char *text;
    } cases[] = {
        {{"t", 1, {8}, MR_TYPE_F32, 0}, MR_OK, ""},
        {{"t", 1, {8}, MR_TYPE_F32, 32}, MR_OK, ""},
        {{"t", 4, {2, 2, 2, 2}, MR_TYPE_F32, 0}, MR_OK, ""},
        {{"t", 0, {0}, MR_TYPE_F32, 0}, MR_E_FORMAT, "tensor 't': 0 dimensions; 1 to 4 are allowed"},
        {{"t", 5, {1, 1, 1, 1, 1}, MR_TYPE_F32, 0}, MR_E_FORMAT, "tensor 't': 5 dimensions; 1 to 4 are allowed"},
        {{"t", 0xffffffff, {1}, MR_TYPE_F32, 0}, MR_E_FORMAT, "tensor 't': 4294967295 dimensions"},
        {{"t", 2, {8, 0}, MR_TYPE_F32, 0}, MR_E_FORMAT, "tensor 't': dimension 2 is 0"},
        {{"t", 1, {i63}, MR_TYPE_F32, 0}, MR_E_FORMAT, "tensor 't': dimension 1 is -9223372036854775808"},
        {{"t", 2, {i62, 2}, MR_TYPE_F32, 0},
         MR_E_FORMAT,
         "tensor 't': too many elements: 4611686018427387904 x 2 x 1 x 1"},
        {{"t", 4, {1 << 20, 1 << 20, 1 << 20, 1 << 20}, MR_TYPE_F32, 0}, MR_E_FORMAT, "tensor 't': too many elements"},
        {{"t", 1, {i62}, MR_TYPE_F64, 0}, MR_E_FORMAT, "elements of type F64 are too many bytes"},
        {{"t", 1, {i62}, MR_TYPE_F16, 0}, MR_E_FORMAT, "tensor 't': data ends at byte 922337203685477"},
        {{"t", 1, {8}, 4, 0}, MR_E_UNSUPPORTED, "tensor 't': tensor type 4 is not known; hint: it was withdrawn"},
        {{"t", 1, {8}, 40, 0}, MR_E_UNSUPPORTED, "tensor 't': tensor type NVFP4 is not supported; hint: quantize"},
        {{"t", 1, {8}, 41, 0}, MR_E_UNSUPPORTED, "tensor 't': tensor type Q1_0 is not supported; hint: quantize"},
        {{"t", 1, {8}, 43, 0}, MR_E_UNSUPPORTED, "tensor 't': tensor type 43 is not known; hint: quantize"},
        {{"t", 1, {32}, MR_TYPE_A8, 0}, MR_E_UNSUPPORTED, "tensor 't': tensor type 64 is not known"},
        {{"t", 1, {8}, 0xffffffff, 0}, MR_E_UNSUPPORTED, "tensor 't': tensor type 4294967295 is not known"},
        {{"t", 2, {16, 2}, MR_TYPE_Q8_0, 0},
         MR_E_FORMAT,
         "tensor 't': rows of 16 elements; type Q8_0 has blocks of 32"},
        {{"t", 1, {8}, MR_TYPE_F32, 16}, MR_E_FORMAT, "tensor 't': data offset 16 is no multiple of the alignment 32"},
        {{"t", 1, {8}, MR_TYPE_F32, 64},
         MR_E_FORMAT,
         "tensor 't': data ends at byte 160, but the file has 128 bytes; hint: the file seems truncated, download it "
         "again"},
        {{"t", 1, {17}, MR_TYPE_F32, 0}, MR_E_FORMAT, "tensor 't': data ends at byte 132, but the file has 128 bytes"},
        {{"t", 1, {8}, MR_TYPE_F32, 0xffffffffffffffe0},
         MR_E_FORMAT,
         "tensor 't': data of 32 bytes lies beyond the large"},
        {{"t", 1, {8}, MR_TYPE_F32, 0xffffffffffffffa0},
         MR_E_FORMAT,
         "tensor 't': data of 32 bytes lies beyond the large"},
    };
    uint8_t data[64] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer *w = gguf_writer_create();
        gguf_writer_raw_tensor(w, &cases[i].t);
        gguf_writer_raw_data(w, data, cases[i].t.n_dims == 5 ? 0 : sizeof data);
        /* With one dimension the table ends at byte 57, and the data is bytes 64 to 128. */
        expect(w, cases[i].want, cases[i].text);
    }
}

static void test_tensors_must_not_overlap(void **state) {
    (void)state;
    static const struct {
        uint64_t offset_a, ne_a, offset_b, ne_b;
        const char *text;
    } cases[] = {
        {0, 8, 32, 8, NULL},
        {32, 8, 0, 8, NULL},
        {0, 9, 32, 8, "tensor 'b': data starts at byte 128, inside that of 'a', which ends at byte 132"},
        {32, 8, 0, 9, "tensor 'a': data starts at byte 128, inside that of 'b', which ends at byte 132"},
        {0, 24, 32, 8, "tensor 'b': data starts at byte 128, inside that of 'a', which ends at byte 192"},
        {0, 8, 0, 8, "inside that of"},
    };
    uint8_t data[96] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer *w = gguf_writer_create();
        gguf_writer_raw_tensor(w, &(gguf_raw_tensor){"a", 1, {cases[i].ne_a}, MR_TYPE_F32, cases[i].offset_a});
        gguf_writer_raw_tensor(w, &(gguf_raw_tensor){"b", 1, {cases[i].ne_b}, MR_TYPE_F32, cases[i].offset_b});
        gguf_writer_raw_data(w, data, sizeof data);
        expect(w, cases[i].text ? MR_E_FORMAT : MR_OK, cases[i].text ? cases[i].text : "");
    }
}

static void make_path(char *path, size_t size) {
    const char *dir = getenv("TMPDIR");
    snprintf(path, size, "%s/millrace-test-%ld.gguf", dir ? dir : "/tmp", (long)getpid());
}

/* A small whole model with one key of every kind. */
static gguf_writer *small_model(void) {
    const gguf_model_shape shape = {.type = MR_TYPE_F16,
                                    .n_layers = 1,
                                    .d_model = 4,
                                    .n_ff = 2,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .vocab_size = 3,
                                    .context_length = 16};
    gguf_writer *w = gguf_writer_create();
    gguf_writer_model_keys(w, &shape);
    gguf_writer_f32s(w, "tokenizer.ggml.scores", (const float[]){0, -1, -2}, 3);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", (const int32_t[]){2, 3, 1}, 3);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", true);
    gguf_writer_model_tensors(w, &shape);
    return w;
}

static void test_truncation_at_every_byte(void **state) {
    (void)state;
    size_t size;
    gguf_writer *w = small_model();
    const uint8_t *data = gguf_writer_bytes(w, &size);
    expect_bytes(data, size, MR_OK, "");
    for (size_t n = 0; n < size; n++) {
        mr_gguf *g = NULL;
        mr_err err = {0};
        uint8_t *copy;
        mr_status status = open_copy(data, n, &g, &err, &copy);
        if (status != MR_E_FORMAT || g || !err.text[0])
            fail_msg("%zu of %zu bytes: %s", n, size, mr_status_name(status));
        free(copy);
    }
    gguf_writer_destroy(w);
}

static void test_every_byte_changed(void **state) {
    (void)state;
    static const uint8_t flips[] = {0x01, 0x80, 0xff, 0x20, 0x0f};
    size_t size, n_opened = 0;
    gguf_writer *w = small_model();
    const uint8_t *data = gguf_writer_bytes(w, &size);
    uint8_t *copy = malloc(size);
    assert_non_null(copy);
    memcpy(copy, data, size);
    for (size_t i = 0; i < size; i++)
        for (size_t k = 0; k < sizeof flips; k++) {
            mr_gguf *g = NULL;
            copy[i] ^= flips[k];
            if (mr_gguf_open_memory(copy, size, &g, NULL) == MR_OK)
                n_opened++;
            mr_gguf_close(g);
            assert_int_equal(mr_fuzz_gguf(copy, size), 0);
            copy[i] ^= flips[k];
        }
    print_message("%zu of %zu changed files still open\n", n_opened, size * sizeof flips);
    free(copy);
    gguf_writer_destroy(w);
}

/* Opens from memory, or from path where that is given. */
static mr_status open_failing_at(int64_t n, const uint8_t *data, size_t size, const char *path) {
    mr_gguf *g = NULL;
    mr_err err = {0};
    mr_model_info info;
    mr_mem_fail_at(n);
    mr_status status = path ? mr_gguf_open(path, &g, &err) : mr_gguf_open_memory(data, size, &g, &err);
    if (status)
        assert_null(g);
    else
        status = mr_model_info_read(g, &info, &err);
    mr_mem_fail_at(-1);
    if (status)
        expect_says(err.text, "memory");
    mr_gguf_close(g);
    return status;
}

static void test_every_allocation_fails(void **state) {
    (void)state;
    /* A file that is large enough for several chunks of tables, names and string starts. */
    const gguf_model_shape shape = {.type = MR_TYPE_F16,
                                    .n_layers = 200,
                                    .d_model = 4,
                                    .n_ff = 2,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .vocab_size = 30000,
                                    .context_length = 16};
    char path[256];
    size_t size;
    gguf_writer *w = gguf_writer_create();
    gguf_writer_model_keys(w, &shape);
    gguf_writer_model_tensors(w, &shape);
    const uint8_t *data = gguf_writer_bytes(w, &size);
    make_path(path, sizeof path);
    assert_true(gguf_writer_save(w, path));
    for (int from_path = 0; from_path < 2; from_path++) {
        mr_status status = MR_E_NO_MEMORY;
        int64_t n = 0;
        for (; status != MR_OK && n < 100; n++) {
            status = open_failing_at(n, data, size, from_path ? path : NULL);
            assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        }
        assert_int_equal(status, MR_OK);
        assert_true(n >= 6);
    }
    unlink(path);
    gguf_writer_destroy(w);
}

/* A file with holes, so that it takes no room. */
static void test_header_larger_than_its_limit(void **state) {
    (void)state;
    char path[256];
    size_t size;
    mr_gguf *g = NULL;
    mr_err err = {0};
    gguf_writer *w = gguf_writer_create();
    gguf_writer_raw(w, "k", MR_GGUF_STRING, "\0\0\0\100\0\0\0\0", 8);
    const uint8_t *data = gguf_writer_bytes(w, &size);
    make_path(path, sizeof path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
    gguf_writer_destroy(w);
    if (truncate(path, 3L << 30) != 0) {
        print_message("skipped: no file of 3 GiB can be made\n");
    } else {
        expect_fails(mr_gguf_open(path, &g, &err), MR_E_UNSUPPORTED, &err,
                     "key 'k': the header is larger than the limit of 1073741824 bytes");
    }
    unlink(path);
}

/* A file of 100 bytes that promises much takes little memory: counts are checked before anything is allocated for. */
static void test_memory_follows_the_size_of_the_file(void **state) {
    (void)state;
    gguf_writer *w = gguf_writer_create();
    gguf_writer_raw(w, "k", MR_GGUF_ARRAY, "\10\0\0\0\0\0\0\1\0\0\0\0", 12);
    expect(w, MR_E_FORMAT, "an array of 16777216 strings at byte 49; the file has 49 bytes");

    /* 2 MB of keys and tensors, the most that fit. The tables stay below the limit of 16 bytes for each byte of the
     * file. */
    w = gguf_writer_create();
    for (unsigned i = 0; i < MR_GGUF_MAX_KEYS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%05x", i);
        gguf_writer_raw(w, name, MR_GGUF_U8, "", 1);
    }
    for (unsigned i = 0; i < 30000; i++) {
        char name[16];
        snprintf(name, sizeof name, "%x", i);
        gguf_writer_vector(w, name, MR_TYPE_I8, 1, NULL);
    }
    size_t size;
    const uint8_t *data = gguf_writer_bytes(w, &size);
    mr_gguf *g = NULL;
    mr_err err = {0};
    expect_ok(mr_gguf_open_memory(data, size, &g, &err), &err);
    assert_int_equal(mr_gguf_n_keys(g), MR_GGUF_MAX_KEYS);
    assert_true(mr_gguf_has_key(g, "0abcd"));
    assert_non_null(mr_gguf_find_tensor(g, "752f"));
    assert_null(mr_gguf_find_tensor(g, "7530"));
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_layout_keys),
        cmocka_unit_test(test_tensor_table),
        cmocka_unit_test(test_tensors_must_not_overlap),
        cmocka_unit_test(test_truncation_at_every_byte),
        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_every_allocation_fails),
        cmocka_unit_test(test_header_larger_than_its_limit),
        cmocka_unit_test(test_memory_follows_the_size_of_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
