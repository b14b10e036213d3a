/* The file of results: long results, and what another program does to the file while a batch runs: the batch ends with
 * an error that names the file, and the next run has all results. tests/support/fake_api.c answers the calls. */
// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include "coordinator/serving/batch/batch_run.h"
#include "engine/base/mem.h"
#include "tests/unit/coordinator/serving/test_batch_store_rig.h"

enum { N_BAD = 20, N_LINES = 500 };

typedef enum meddling { REMOVES, REPLACES, CUTS_ALL, CUTS_SOME, EXTENDS, MOVES_FOLDER } meddling;

typedef struct meddler {
    meddling how;
    uint32_t n_done; /* after so many results */
    bool is_done;
} meddler;

static char out_folder[200], out_path[200], in_path[200], other_path[200];

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static int setup(void **state) {
    if (store_setup(state) != 0)
        return -1;
    path_in_folder("in", "", in_path);
    path_in_folder("other", "", other_path);
    path_in_folder("out", "", out_folder);
    path_in_folder("out/results", "", out_path);
    return mkdir(out_folder, 0777);
}

/* Results that are longer than the pieces in which a file is read. Each allocation fails once: the next try finds all
 * results. */
static void test_long_results(void **state) {
    (void)state;
    static const size_t N_BYTES[] = {(1 << 18) - 200, 1 << 18, 3 << 18, 10};
    mr_text_buf body = {0};
    mr_batch_input in;
    mr_batch_results results;
    mr_err err;
    write_file(in_path, "one\ntwo\nthree\nfour\n");
    expect_ok(mr_batch_input_open(in_path, &in, &err), &err);
    unlink(out_path);
    expect_ok(mr_batch_results_open(out_path, &in, &results, &err), &err);
    for (uint32_t i = 0; i < in.n; i++) {
        mr_text_buf_clear(&body);
        assert_true(mr_text_buf_append(&body, "\"", 1) && mr_text_buf_reserve(&body, N_BYTES[i]));
        memset(body.data + body.len, 'x', N_BYTES[i]);
        body.len += N_BYTES[i];
        assert_true(mr_text_buf_append(&body, "\"", 1));
        expect_ok(batch_results_add(&results, &in, &in.lines[i], i ? 200 : 500, (mr_str){body.data, body.len}, &err),
                  &err);
    }
    expect_ok(batch_results_sync(&results, &err), &err);
    mr_batch_results_close(&results);
    mr_status status = MR_E_NO_MEMORY;
    int64_t at = 0;
    for (; status != MR_OK; at++) {
        for (uint32_t i = 0; i < in.n; i++)
            in.lines[i].is_done = false;
        mr_mem_fail_at(at);
        status = mr_batch_results_open(out_path, &in, &results, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
    }
    assert_true(at > 2);
    assert_int_equal(results.n_found, 4);
    assert_int_equal(results.n_failed, 1);
    assert_int_equal(results.n_cut_bytes, 0);
    mr_batch_results_close(&results);
    mr_batch_input_close(&in);
    mr_text_buf_deinit(&body);
}

static void write_input(void) {
    mr_text_buf b = {0};
    for (int i = 0; i < N_LINES; i++) {
        char line[200];
        /* Lines that are no requests have their results at once, so the file is not empty. */
        snprintf(line, sizeof line,
                 i < N_BAD ? "{bad %d\n" : "{\"custom_id\": \"r%d\", \"url\": \"/v1/completions\", \"body\": {}}\n", i);
        assert_true(mr_text_buf_append(&b, line, strlen(line)));
    }
    write_file(in_path, b.data);
    mr_text_buf_deinit(&b);
}

static void meddle(void *ctx, const mr_batch_counts *counts) {
    meddler *m = ctx;
    struct stat st;
    if (m->is_done || counts->n_done < m->n_done)
        return;
    assert_int_equal(stat(out_path, &st), 0);
    if (!st.st_size)
        return;
    m->is_done = true;
    switch (m->how) {
    case REMOVES:
        assert_int_equal(unlink(out_path), 0);
        break;
    case REPLACES:
        write_file(other_path, "");
        assert_int_equal(rename(other_path, out_path), 0);
        break;
    case CUTS_ALL:
        assert_int_equal(truncate(out_path, 0), 0);
        break;
    case CUTS_SOME:
        assert_int_equal(truncate(out_path, st.st_size / 2), 0);
        break;
    case EXTENDS: {
        FILE *f = fopen(out_path, "a");
        assert_true(f && fputs("mine\n", f) >= 0 && fclose(f) == 0);
        break;
    }
    case MOVES_FOLDER:
        assert_int_equal(rename(out_folder, other_path), 0);
        break;
    }
}

/* m NULL: nobody meddles. */
static mr_status work(meddler *m, mr_batch_counts *counts, mr_err *err) {
    mr_batch_input in = {0};
    mr_batch_results results = {.fd = -1};
    mr_status status = mr_batch_input_open(in_path, &in, err);
    if (status == MR_OK)
        status = mr_batch_results_open(out_path, &in, &results, err);
    const mr_batch_config config = {
        .input = &in, .results = &results, .max_live = 8, .max_tokens = -1, .progress = m ? meddle : NULL, .ctx = m};
    if (status == MR_OK)
        status = mr_batch_run(&config, counts, err);
    mr_batch_results_close(&results);
    mr_batch_input_close(&in);
    return status;
}

static void test_changed_results(void **state) {
    (void)state;
    static const struct {
        meddling how;
        mr_status status;
        const char *words;
    } CASES[] = {{REMOVES, MR_E_NOT_FOUND, "was removed while the batch ran"},
                 {REPLACES, MR_E_NOT_FOUND, "was replaced by another file while the batch ran"},
                 {CUTS_ALL, MR_E_FORMAT, "was changed by another program while the batch ran: it has 0 bytes in place"},
                 {CUTS_SOME, MR_E_FORMAT, "was changed by another program while the batch ran: it has"},
                 {EXTENDS, MR_E_FORMAT, "was changed by another program while the batch ran: it has"},
                 {MOVES_FOLDER, MR_E_NOT_FOUND, "was removed while the batch ran"}};
    write_input();
    fake_api_start(0, NEVER_BUSY);
    for (int i = 0; i < 2 * (int)(sizeof CASES / sizeof *CASES); i++) {
        meddler m = {.how = CASES[i / 2].how, .n_done = i % 2 ? N_LINES : 1}; /* at the beginning; at the end */
        mr_batch_counts counts;
        mr_err err = {0};
        unlink(out_path);
        mr_status status = work(&m, &counts, &err);
        assert_true(m.is_done);
        assert_int_equal(status, CASES[i / 2].status);
        assert_int_equal(strncmp(err.text, out_path, strlen(out_path)), 0);
        expect_says(err.text, CASES[i / 2].words);
        if (m.how == MOVES_FOLDER)
            assert_int_equal(rename(other_path, out_folder), 0);
        if (m.how == EXTENDS) { /* results do not follow what is no result */
            expect_fails(work(NULL, &counts, &err), MR_E_FORMAT, &err, "no result of a batch");
            continue;
        }
        expect_ok(work(NULL, &counts, &err), &err);
        assert_int_equal(counts.n_done, N_LINES);
        assert_int_equal(counts.n_failed, N_BAD);
    }
    fake_api_stop();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_long_results), cmocka_unit_test(test_changed_results)};
    return cmocka_run_group_tests(tests, setup, store_teardown);
}
