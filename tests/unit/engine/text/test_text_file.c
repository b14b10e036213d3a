/* Text as editors and shells of several systems write it: byte order marks, UTF-16, NUL bytes, line ends. */
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/text/text_file.h"
#include "tests/support/test.h"

enum { LIMIT = 200000 };
#define MARK "\xEF\xBB\xBF"
#define BYTES(text) ((mr_str){text, sizeof(text) - 1})

static char path[] = "/tmp/millrace-test-XXXXXX";

static void put_file(mr_str bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes.data, 1, bytes.len, f), bytes.len);
    assert_int_equal(fclose(f), 0);
}

/* The bytes are read as this text, from a file and by the check alone. */
static void expect_text(mr_str bytes, mr_str wanted) {
    mr_text_buf out = {0};
    mr_str text = {0};
    mr_err err;
    assert_true(mr_text_buf_append(&out, "in front ", 9));
    put_file(bytes);
    expect_ok(mr_text_file_read(path, LIMIT, &out, &err), &err);
    assert_int_equal(out.len, 9 + wanted.len);
    assert_memory_equal(out.data, "in front ", 9);
    assert_memory_equal(out.data + 9, wanted.data, wanted.len + 1); /* with the terminating zero */
    expect_ok(mr_text_check(bytes, "name", &text, &err), &err);
    assert_true(mr_str_equal(text, wanted));
    mr_text_buf_deinit(&out);
}

static void expect_refused(mr_str bytes, const char *words) {
    mr_text_buf out = {0};
    mr_str text = {0};
    mr_err err;
    assert_true(mr_text_buf_append(&out, "in front", 8));
    put_file(bytes);
    expect_fails(mr_text_file_read(path, LIMIT, &out, &err), MR_E_FORMAT, &err, words);
    expect_says(err.text, path);
    assert_string_equal(out.data, "in front");
    expect_fails(mr_text_check(bytes, "the name", &text, &err), MR_E_FORMAT, &err, words);
    expect_says(err.text, "the name");
    mr_text_buf_deinit(&out);
}

static void test_utf8(void **state) {
    (void)state;
    expect_text(BYTES(""), BYTES(""));
    expect_text(BYTES("a"), BYTES("a"));
    expect_text(BYTES("The river\r\nis öld 😶\r\n"), BYTES("The river\r\nis öld 😶\r\n"));
    expect_text(BYTES(MARK "The river"), BYTES("The river"));
    expect_text(BYTES(MARK), BYTES(""));
    expect_text(BYTES(MARK MARK "a"), BYTES(MARK "a")); /* the second one is a character of the text */
    expect_text(BYTES("a" MARK), BYTES("a" MARK));
    expect_text(BYTES("\xEF\xBF\xBD"), BYTES("\xEF\xBF\xBD"));
}

/* Writes the characters of Latin-1 in units of 2 or 4 bytes. */
static mr_str in_units(const char *text, size_t unit_bytes, bool is_big, bool has_mark, char out[1024]) {
    size_t n = 0;
    for (size_t i = has_mark ? 0 : 1; i <= strlen(text); i++) {
        uint32_t unit = i == 0 ? 0xFEFF : (uint8_t)text[i - 1];
        for (size_t k = 0; k < unit_bytes; k++)
            out[n++] = (char)(unit >> 8 * (is_big ? unit_bytes - 1 - k : k));
    }
    return (mr_str){out, n};
}

static void test_other_encodings(void **state) {
    static const char LONG[] =
        "The river runs through the valley, past the mill and \xFC\xFC over the weir, and then it "
        "is gone.\r\n";
    static const char *const TEXTS[] = {"a", "ab", "abc", "abcd", "root ::= \"a\" \xE9\n", LONG};
    char bytes[1024];
    (void)state;
    for (size_t i = 0; i < sizeof TEXTS / sizeof TEXTS[0]; i++)
        for (unsigned how = 0; how < 4; how++) {
            expect_refused(in_units(TEXTS[i], 2, how & 1, how & 2, bytes), "is text in UTF-16; hint: save it as UTF-8");
            expect_refused(in_units(TEXTS[i], 4, how & 1, how & 2, bytes), "is text in UTF-32; hint: save it as UTF-8");
        }
    assert_null(mr_text_other_encoding(BYTES("")));
    assert_null(mr_text_other_encoding(BYTES("\xFF")));
    assert_null(mr_text_other_encoding(BYTES(MARK "a")));
    assert_null(mr_text_other_encoding(BYTES("a\0b")));
}

static void test_bytes_of_no_text(void **state) {
    (void)state;
    expect_refused(BYTES("one\r\ntwo\nth\0ree"), "line 3: there is a NUL byte");
    expect_refused(BYTES("\0"), "line 1: there is a NUL byte");
    expect_refused(BYTES(MARK "one\ncaf\xE9"), "line 2: byte 0xE9 is not UTF-8; hint: save it as UTF-8");
    expect_refused(BYTES("\xC3"), "line 1: byte 0xC3 is not UTF-8");             /* cut in the middle of a character */
    expect_refused(BYTES("\xED\xA0\x80"), "line 1: byte 0xED is not UTF-8");     /* half a surrogate pair */
    expect_refused(BYTES("\xC0\xAF"), "line 1: byte 0xC0 is not UTF-8");         /* overlong */
    expect_refused(BYTES("\x1F\x8B\x08\0\0"), "line 1: byte 0x8B is not UTF-8"); /* gzip */
}

/* The bytes of the mark count towards the limit. */
static void test_size(void **state) {
    static char bytes[LIMIT + 1];
    mr_text_buf out = {0};
    mr_err err;
    (void)state;
    memset(bytes, 'x', sizeof bytes);
    put_file((mr_str){bytes, LIMIT});
    expect_ok(mr_text_file_read(path, LIMIT, &out, &err), &err);
    assert_int_equal(out.len, LIMIT);
    put_file((mr_str){bytes, LIMIT + 1});
    expect_fails(mr_text_file_read(path, LIMIT, &out, &err), MR_E_TOO_LONG, &err, "has more than 200000 bytes");
    expect_says(err.text, path);
    assert_int_equal(out.len, LIMIT);
    mr_text_buf_deinit(&out);
}

static void test_no_file(void **state) {
    mr_text_buf out = {0};
    mr_err err;
    (void)state;
    expect_fails(mr_text_file_read("/nowhere/p", LIMIT, &out, &err), MR_E_NOT_FOUND, &err,
                 "/nowhere/p cannot be read: No such file");
    expect_fails(mr_text_file_read("/tmp", LIMIT, &out, &err), MR_E_IO, &err, "/tmp cannot be read: it is a folder");
    mr_text_buf_deinit(&out);
}

/* A pipe, as of <(...) in a shell, and standard input. */
static void test_pipes(void **state) {
    int ends[2], before = dup(STDIN_FILENO);
    mr_text_buf out = {0};
    mr_err err;
    char name[32];
    (void)state;
    for (int is_stdin = 0; is_stdin < 2; is_stdin++) {
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(write(ends[1], MARK "text", 7), 7);
        assert_int_equal(close(ends[1]), 0);
        snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
        if (is_stdin)
            assert_int_equal(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
        expect_ok(mr_text_file_read(is_stdin ? "-" : name, LIMIT, &out, &err), &err);
        assert_string_equal(out.data, "text");
        mr_text_buf_clear(&out);
        assert_int_equal(close(ends[0]), 0);
    }
    put_file(BYTES("a\n\0"));
    int fd = open(path, O_RDONLY);
    assert_int_equal(dup2(fd, STDIN_FILENO), STDIN_FILENO);
    expect_fails(mr_text_file_read("-", LIMIT, &out, &err), MR_E_FORMAT, &err, "standard input, line 2: there is");
    assert_int_equal(dup2(before, STDIN_FILENO), STDIN_FILENO);
    close(fd);
    close(before);
    mr_text_buf_deinit(&out);
}

static void test_allocations(void **state) {
    static char bytes[LIMIT];
    mr_text_buf out = {0};
    mr_err err;
    int64_t n = 0;
    (void)state;
    memset(bytes, 'x', sizeof bytes);
    put_file((mr_str){bytes, sizeof bytes});
    for (;; n++) {
        mr_mem_fail_at(n);
        mr_status status = mr_text_file_read(path, LIMIT, &out, &err);
        mr_mem_fail_at(-1);
        if (status == MR_OK)
            break;
        expect_fails(status, MR_E_NO_MEMORY, &err, path);
        assert_int_equal(out.len, 0);
    }
    assert_true(n > 0);
    assert_int_equal(out.len, sizeof bytes);
    mr_text_buf_deinit(&out);
}

static int make_path(void **state) {
    (void)state;
    return close(mkstemp(path));
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_other_encodings),
        cmocka_unit_test(test_bytes_of_no_text),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_pipes),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
