/* OpenAI's Files and Batches over a folder: uploads, finished batches, cancelled batches, batches that are
 * unfinished at a restart, a folder that is away, and invalid requests. tests/support/fake_api.c answers the calls. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "tests/support/test_log.h"
#include "tests/unit/coordinator/serving/test_batch_store_rig.h"

static void check_output(const json_t *batch, int n_lines) {
    char path[100];
    int n = 0;
    mr_text_buf content = content_of(text_at(batch, "output_file_id"));
    for (size_t i = 0; i < content.len; i++)
        n += content.data[i] == '\n';
    assert_int_equal(n, n_lines);
    snprintf(path, sizeof path, "/v1/files/%s", text_at(batch, "output_file_id"));
    json_t *file = ask("GET", path, "", 200);
    assert_string_equal(text_at(file, "purpose"), "batch_output");
    assert_int_equal(json_integer_value(json_object_get(file, "bytes")), content.len);
    json_decref(file);
    mr_text_buf_deinit(&content);
}

static void test_batch(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], batch_id[BATCH_ID_BYTES];
    store_start(0, true);
    upload("{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"one\"}}\n"
           "{\"custom_id\": \"b\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"two\"}}\n"
           "{bad\n"
           "{\"custom_id\": \"c\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {}}\n",
           file); /* the last line has another endpoint than the batch */
    create(file, batch_id);
    json_t *batch = wait_for(batch_id, "completed");
    assert_int_equal(count(batch, "total"), 4);
    assert_int_equal(count(batch, "completed"), 2);
    assert_int_equal(count(batch, "failed"), 2);
    assert_string_equal(text_at(json_object_get(batch, "metadata"), "a"), "b");
    check_output(batch, 2);
    json_decref(batch);
    json_t *list = ask("GET", "/v1/files", "", 200);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 3); /* input, answers, failures */
    json_decref(list);
    list = ask("GET", "/v1/batches", "", 200);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 1);
    assert_string_equal(text_at(list, "last_id"), batch_id);
    json_decref(list);
    char path[100];
    snprintf(path, sizeof path, "/v1/files/%s", file);
    json_decref(ask("DELETE", path, "", 200));
    ask_wrong("GET", path, "", 404, "no such file");
    ask_wrong("DELETE", path, "", 404, "no such file");
    store_stop();
}

static void test_cancel(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], ids[2][BATCH_ID_BYTES], path[100];
    mr_text_buf lines = {0};
    for (int i = 0; i < 2000; i++)
        assert_true(mr_text_buf_append(&lines, "a prompt\n", 9));
    store_start(2000, true);
    upload(lines.data, file);
    create(file, ids[0]);
    create(file, ids[1]);
    json_decref(wait_for(ids[0], "in_progress"));
    for (int i = 1; i >= 0; i--) { /* one batch that waits, one that runs */
        snprintf(path, sizeof path, "/v1/batches/%s/cancel", ids[i]);
        json_t *batch = ask("POST", path, "", 200);
        assert_string_equal(text_at(batch, "status"), i ? "cancelled" : "cancelling");
        json_decref(batch);
    }
    for (int i = 0; i < 2; i++) {
        json_t *batch = wait_for(ids[i], "cancelled");
        assert_true(count(batch, "completed") < 2000);
        json_decref(batch);
    }
    store_stop();
    mr_text_buf_deinit(&lines);
}

static void test_restart(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES];
    mr_text_buf lines = {0};
    for (int i = 0; i < 300; i++)
        assert_true(mr_text_buf_append(&lines, "a prompt\n", 9));
    store_start(3000, true);
    upload(lines.data, file);
    create(file, id);
    json_decref(wait_for(id, "in_progress"));
    store_stop();
    store_start(0, false);
    json_decref(wait_for(id, "in_progress")); /* store_start(0, false) runs no worker */
    mr_err err;
    mr_batch_store *other = NULL;
    expect_fails(mr_batch_store_create(folder, &other, &err), MR_E_IO, &err, "another server");
    store_work();
    json_t *batch = wait_for(id, "completed");
    assert_int_equal(count(batch, "completed"), 300);
    check_output(batch, 300);
    json_decref(batch);
    store_stop();
    mr_text_buf_deinit(&lines);
}

/* Objects that somebody has written into the folder: no field becomes a path before it is checked. */
static void test_malformed_objects(void **state) {
    (void)state;
    static const char ID[] = "batch_0123456789abcdefghijklmn", FILE_ID[] = "file-0123456789abcdefghijklmn";
    static const struct {
        const char *id, *input, *output, *status, *endpoint, *wrong;
    } CASES[] = {
        {ID, "../../etc/passwd", FILE_ID, "in_progress", "\"/v1/completions\"", "input_file_id"},
        {ID, FILE_ID, "../escaped", "in_progress", "\"/v1/completions\"", "output_file_id"},
        {ID, FILE_ID, "", "in_progress", "\"/v1/completions\"", "output_file_id"},
        {ID, FILE_ID, FILE_ID, "in_progress\", \"error_file_id\": \"../escaped", "\"/v1/completions\"",
         "error_file_id"},
        {ID, FILE_ID, FILE_ID, "done", "\"/v1/completions\"", "status"},
        {ID, FILE_ID, FILE_ID, "in_progress", "7", "endpoint"},
        {"batch_other", FILE_ID, FILE_ID, "in_progress", "\"/v1/completions\"", "id"},
    };
    char name[100], path[100], text[500];
    snprintf(name, sizeof name, "%s.json", ID);
    snprintf(path, sizeof path, "/v1/batches/%s", ID);
    write_in_folder("file-000000000000000000000000", "kept: a malformed object may name it");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        snprintf(text, sizeof text,
                 "{\"id\": \"%s\", \"input_file_id\": \"%s\", \"output_file_id\": \"%s\", \"status\": \"%s\", "
                 "\"endpoint\": %s}",
                 CASES[i].id, CASES[i].input, CASES[i].output, CASES[i].status, CASES[i].endpoint);
        write_in_folder(name, text);
        snprintf(text, sizeof text, "%s is malformed: %s", "in the folder of batches", CASES[i].wrong);
        store_start(0, true);
        ask_wrong("GET", path, "", 500, text);
        store_stop();
    }
    write_in_folder(name, "{\"id\": ");
    store_start(0, true);
    ask_wrong("GET", path, "", 500, "malformed: id");
    store_stop();
    assert_false(is_in_folder("../escaped"));
    assert_true(is_in_folder("file-000000000000000000000000"));
    snprintf(text, sizeof text, "%s/%s", folder, name);
    assert_int_equal(unlink(text), 0);
}

/* What a server leaves that is killed while it writes. */
static void test_half_made(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES];
    store_start(0, true);
    upload("one\n", file);
    create(file, id);
    json_t *batch = wait_for(id, "completed");
    store_stop();
    write_in_folder("file-000000000000000000000000", "no object");
    write_in_folder("file-000000000000000000000000.new", "half");
    write_in_folder("batch_000000000000000000000000.json.new", "{");
    write_in_folder("batch_000000000000000000000000.journal", "of a batch that is gone");
    write_in_folder("notes.txt", "of somebody else");
    char object[100]; /* of the results, which is written after the results */
    snprintf(object, sizeof object, "%s/%s.json", folder, text_at(batch, "output_file_id"));
    assert_int_equal(unlink(object), 0);
    store_start(0, true);
    assert_false(is_in_folder("file-000000000000000000000000"));
    assert_false(is_in_folder("file-000000000000000000000000.new"));
    assert_false(is_in_folder("batch_000000000000000000000000.json.new"));
    assert_false(is_in_folder("batch_000000000000000000000000.journal"));
    assert_true(is_in_folder("notes.txt") && is_in_folder(file) && is_in_folder(text_at(batch, "output_file_id")));
    json_decref(batch);
    store_stop();
}

static void test_wrong_requests(void **state) {
    (void)state;
    store_start(0, true);
    ask_wrong("POST", "/v1/files", "", 400, "multipart");
    ask_wrong("POST", "/v1/files", "--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc\r\n--x--\r\n", 400,
              "purpose");
    ask_wrong("POST", "/v1/files", "--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc", 400, "multipart");
    json_t *bare = ask("POST", "/v1/files",
                       "--x\r\nContent-Disposition: form-data; name=file; filename=a.jsonl\r\n\r\nabc\r\n--x\r\n"
                       "Content-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n--x--\r\n",
                       200); /* header fields without quotes, as some clients write them */
    assert_string_equal(text_at(bare, "filename"), "a.jsonl");
    json_decref(bare);
    ask_wrong("GET", "/v1/files/../x", "", 404, "no such file");
    ask_wrong("GET", "/v1/files/file-00000000000000000000000/", "", 404, "no such file");
    ask_wrong("GET", "/v1/files/file-012345678901234567890123", "", 404, "no such file");
    ask_wrong("GET", "/v1/files/file-012345678901234567890123/content", "", 404, "no such file");
    ask_wrong("PUT", "/v1/files/file-012345678901234567890123", "", 404, "nothing");
    ask_wrong("POST", "/v1/batches", "[1]", 400, "an array, where a JSON object is expected");
    ask_wrong("POST", "/v1/batches", "\xFF\xFE{", 400, "UTF-16; hint: send UTF-8");
    ask_wrong("POST", "/v1/batches", "\xEF\xBB\xBF{}", 400, "endpoint is none of"); /* a byte order mark is skipped */
    ask_wrong("POST", "/v1/batches", "{\"endpoint\": \"/v1/models\"}", 400, "endpoint");
    ask_wrong("POST", "/v1/batches",
              "{\"endpoint\": \"/v1/completions\", \"input_file_id\": \"file-012345678901234567890123\"}", 400,
              "names no file");
    ask_wrong("GET", "/v1/batches/batch_012345678901234567890123", "", 404, "no such batch");
    ask_wrong("POST", "/v1/batches/file-012345678901234567890123/cancel", "", 404, "no such batch");
    ask_wrong("GET", "/v1/filesystem", "", 404, "nothing");
    store_stop();
}

/* The folder cannot be listed for a while, as where a network's disk is away: the thread of batches lives on. */
static void test_a_folder_that_is_away(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], away[100];
    test_log log;
    store_start(0, false);
    upload("a prompt\n", file);
    create(file, id);
    snprintf(away, sizeof away, "%s-away", folder);
    assert_int_equal(rename(folder, away), 0);
    test_log_begin(&log);
    store_work();
    int64_t until = mr_clock_now_ns() + 60 * MR_NS_PER_S;
    while (lseek(log.fd, 0, SEEK_END) == 0 && mr_clock_now_ns() < until)
        usleep(1000);
    assert_int_equal(rename(away, folder), 0);
    json_decref(wait_for(id, "completed"));
    test_log_end(&log);
    expect_says(log.text, "it is tried again");
    store_stop();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_malformed_objects),
        cmocka_unit_test(test_half_made),
        cmocka_unit_test(test_wrong_requests),
        cmocka_unit_test(test_a_folder_that_is_away),
    };
    return cmocka_run_group_tests(tests, store_setup, store_teardown);
}
