/* The input file of a batch: files that are no batch, and files that other programs change while the batch runs. */
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/serving/batch/batch_input.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

enum { N_LINES = 40000 }; /* more than a page, and more than a piece that is compared */

static char folder[] = "/tmp/millrace-batch-input-XXXXXX";
static char path[64], other[64];

static void write_lines(const char *to, const char *mode, int first, int n) {
    FILE *f = fopen(to, mode);
    assert_non_null(f);
    for (int i = first; i < first + n; i++)
        assert_true(fprintf(f, "prompt %d\n", i) > 0);
    assert_int_equal(fclose(f), 0);
}

static void open_lines(mr_batch_input *in, int n) {
    mr_err err = {0};
    unlink(path);
    write_lines(path, "wb", 0, n);
    expect_ok(mr_batch_input_open(path, in, &err), &err);
    assert_int_equal(in->n, n);
}

/* The file is another one, and the input is what it was. */
static void expect_changed(mr_batch_input *in, const char *words) {
    mr_err err = {0};
    char last[32];
    expect_fails(mr_batch_input_check(in, path, &err), MR_E_FORMAT, &err, words);
    expect_says(err.text, path);
    snprintf(last, sizeof last, "prompt %u", in->n - 1);
    assert_true(mr_str_is(batch_line_text(in, &in->lines[in->n - 1]), last));
    mr_batch_input_close(in);
}

static void test_changed(void **state) {
    (void)state;
    mr_batch_input in;
    open_lines(&in, N_LINES);
    assert_int_equal(truncate(path, 100), 0); /* of a mapping, the rest would be gone: SIGBUS */
    expect_changed(&in, "was changed while the batch ran");
    open_lines(&in, N_LINES);
    assert_int_equal(truncate(path, 0), 0);
    expect_changed(&in, "was changed while the batch ran");
    open_lines(&in, N_LINES);
    write_lines(path, "wb", 1, N_LINES); /* in place */
    expect_changed(&in, "was changed while the batch ran");
    open_lines(&in, N_LINES);
    int fd = open(path, O_WRONLY); /* the last byte but one, and the size stays */
    assert_int_equal(pwrite(fd, "x", 1, (off_t)in.n_bytes - 2), 1);
    assert_int_equal(close(fd), 0);
    expect_changed(&in, "was changed while the batch ran");
    open_lines(&in, N_LINES);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_changed(&in, "was changed while the batch ran");
    assert_int_equal(rmdir(path), 0);
}

static void test_grown(void **state) {
    (void)state;
    static const int N[] = {0, 1, N_LINES};
    mr_batch_input in;
    mr_err err = {0};
    for (size_t i = 0; i < sizeof N / sizeof N[0]; i++) {
        open_lines(&in, N[i]);
        write_lines(path, "ab", N[i], 1);
        expect_fails(mr_batch_input_check(&in, path, &err), MR_E_FORMAT, &err,
                     "while the batch ran; hint: the same command answers the new requests");
        expect_says(err.text, "has grown from");
        mr_batch_input_close(&in);
        expect_ok(mr_batch_input_open(path, &in, &err), &err);
        assert_int_equal(in.n, N[i] + 1);
        mr_batch_input_close(&in);
    }
    /* The first half of a line has a result: the same command would find a result of another line. */
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fputs("one\nhello wor", f) >= 0);
    assert_int_equal(fflush(f), 0);
    expect_ok(mr_batch_input_open(path, &in, &err), &err);
    assert_true(fputs("ld\n", f) >= 0);
    assert_int_equal(fclose(f), 0);
    expect_fails(mr_batch_input_check(&in, path, &err), MR_E_FORMAT, &err,
                 "the last line was not whole at the start; hint: run it again with another output file");
    mr_batch_input_close(&in);
}

static void test_same_bytes(void **state) {
    (void)state;
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    mr_batch_input in;
    mr_err err = {0};
    open_lines(&in, N_LINES);
    expect_ok(mr_batch_input_check(&in, path, &err), &err);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    expect_ok(mr_batch_input_check(&in, path, &err), &err);
    write_lines(other, "wb", 0, N_LINES); /* as editors save */
    assert_int_equal(rename(other, path), 0);
    expect_ok(mr_batch_input_check(&in, path, &err), &err);
    mr_mem_fail_at(0);
    expect_fails(mr_batch_input_check(&in, path, &err), MR_E_NO_MEMORY, &err, path);
    mr_mem_fail_at(-1);
    assert_int_equal(unlink(path), 0); /* it is not needed any more */
    expect_ok(mr_batch_input_check(&in, path, &err), &err);
    mr_batch_input_close(&in);
}

static void test_no_batch(void **state) {
    (void)state;
    mr_batch_input in = {0};
    mr_err err = {0};
    unlink(path);
    expect_fails(mr_batch_input_open(path, &in, &err), MR_E_NOT_FOUND, &err, "cannot be opened: No such file");
    expect_says(err.text, path);
    write_lines(path, "wb", 0, 1);
    assert_int_equal(truncate(path, (off_t)BATCH_MAX_INPUT_BYTES + 1), 0); /* a hole takes no place */
    expect_fails(mr_batch_input_open(path, &in, &err), MR_E_TOO_LONG, &err,
                 "has 4.0 GiB, a batch at most 4 GiB; hint: split");
    expect_says(err.text, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_fails(mr_batch_input_open(path, &in, &err), MR_E_FORMAT, &err, "is no regular file");
    assert_int_equal(unlink(path), 0);
    assert_null(in.data);
}

static void put_file(mr_str bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes.data, 1, bytes.len, f), bytes.len);
    assert_int_equal(fclose(f), 0);
}

#define BYTES(text)                                                                                                    \
    { text, sizeof text - 1 }

/* Files that are no batch are refused as a whole, and the error names the file. */
static void test_files_of_no_lines(void **state) {
    (void)state;
    static const struct {
        mr_str bytes;
        const char *words;
    } CASES[] = {
        {BYTES("\xff\xfe\"\0a\0\"\0\n\0"), "is text in UTF-16; hint: save it as UTF-8"},
        {BYTES("{\0\"\0c\0\"\0\n\0"), "is text in UTF-16"},
        {BYTES("\n\nPK\3\4\0\0\n"), "line 3: there is a NUL byte"},
        {BYTES("\x1f\x8b\x08\n"), "line 1: byte 0x8B is not UTF-8"},
        {BYTES("[\n{\"custom_id\": \"a\"},\n"), "line 1: the file is a JSON array"},
        {BYTES("\r\n [ {\"custom_id\": \"a\"},\n"), "line 2: the file is a JSON array"},
        {BYTES("[\"one\", \"two\"]"),
         "line 1: the file is a JSON array, and a batch has one request or prompt on each"},
        {BYTES("{\r\n  \"custom_id\": \"a\",\r\n"), "line 1: a JSON object goes on over the next lines"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        mr_batch_input in = {0};
        mr_err err = {0};
        put_file(CASES[i].bytes);
        expect_fails(mr_batch_input_open(path, &in, &err), MR_E_FORMAT, &err, CASES[i].words);
        expect_says(err.text, path);
        assert_null(in.lines);
    }
    mr_batch_input in;
    mr_err err = {0};
    put_file(mr_str_from("[INST] a prompt that begins so [/INST]\r\n[\r\n"));
    expect_ok(mr_batch_input_open(path, &in, &err), &err);
    assert_int_equal(in.n, 2);
    mr_batch_input_close(&in);
    put_file(mr_str_from("\xef\xbb\xbf"));
    expect_ok(mr_batch_input_open(path, &in, &err), &err);
    assert_int_equal(in.n, 0);
    mr_batch_input_close(&in);
}

static void test_allocations(void **state) {
    (void)state;
    int64_t n = 0;
    unlink(path);
    write_lines(path, "wb", 0, N_LINES);
    for (;; n++) {
        mr_batch_input in = {0};
        mr_err err = {0};
        mr_mem_fail_at(n);
        mr_status status = mr_batch_input_open(path, &in, &err);
        mr_mem_fail_at(-1);
        if (status == MR_OK) {
            mr_batch_input_close(&in);
            break;
        }
        expect_fails(status, MR_E_NO_MEMORY, &err, path);
        assert_null(in.data);
    }
    assert_true(n > 3);
}

static int setup(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/in.jsonl", folder);
    snprintf(other, sizeof other, "%s/other.jsonl", folder);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(path);
    unlink(other);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changed),           cmocka_unit_test(test_grown),
        cmocka_unit_test(test_same_bytes),        cmocka_unit_test(test_no_batch),
        cmocka_unit_test(test_files_of_no_lines), cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
