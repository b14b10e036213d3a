/* OpenAI's Files and Batches over a folder: uploads, finished batches, cancelled batches, batches that are
 * unfinished at a restart, and invalid requests. tests/support/fake_api.c answers the calls. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "coordinator/serving/batch/batch_files.h"
#include "coordinator/serving/batch/batch_store.h"
#include "engine/base/clock.h"
#include "tests/support/fake_api.h"
#include "tests/support/test.h"

enum { NEVER_BUSY = 1 << 30 };

static char folder[] = "/tmp/millrace-store-XXXXXX";
static mr_batch_store *store;

static int setup(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state) {
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static void start(int delay_us, bool works) {
    mr_err err;
    fake_api_start(delay_us, NEVER_BUSY);
    expect_ok(mr_batch_store_create(folder, &store, &err), &err);
    if (works)
        expect_ok(mr_batch_store_start(store, NULL, 4, &err), &err);
}

static void stop(void) {
    mr_batch_store_stop(store);
    mr_batch_store_destroy(store);
    fake_api_stop();
}

/* The answer's object; its status is checked. */
static json_t *ask(const char *method, const char *path, const char *body, int status) {
    mr_batch_answer a;
    mr_batch_store_answer(store, method, path, mr_str_from(body), &a);
    if (a.status != status)
        fail_msg("%s %s: %d, %s", method, path, a.status, a.body.data ? a.body.data : "");
    json_t *object = json_loadb(a.body.data, a.body.len, 0, NULL);
    assert_non_null(object);
    mr_text_buf_deinit(&a.body);
    return object;
}

static void ask_wrong(const char *method, const char *path, const char *body, int status, const char *words) {
    json_t *object = ask(method, path, body, status);
    const char *text = json_string_value(json_object_get(json_object_get(object, "error"), "message"));
    if (!text || !strstr(text, words))
        fail_msg("%s", text);
    json_decref(object);
}

static const char *text_at(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static void upload(const char *content, char id[BATCH_ID_BYTES]) {
    mr_text_buf body = {0};
    static const char HEAD[] = "--xYz\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--xYz\r\n"
                               "Content-Disposition: form-data; name=\"file\"; filename=\"in \xc3\xbc.jsonl\"\r\n"
                               "Content-Type: application/octet-stream\r\n\r\n";
    static const char TAIL[] = "\r\n--xYz--\r\n";
    assert_true(mr_text_buf_append(&body, HEAD, sizeof HEAD - 1) &&
                mr_text_buf_append(&body, content, strlen(content)) &&
                mr_text_buf_append(&body, TAIL, sizeof TAIL - 1));
    json_t *file = ask("POST", "/v1/files", body.data, 200);
    assert_string_equal(text_at(file, "filename"), "in ü.jsonl");
    assert_int_equal(json_integer_value(json_object_get(file, "bytes")), strlen(content));
    snprintf(id, BATCH_ID_BYTES, "%s", text_at(file, "id"));
    json_decref(file);
    mr_text_buf_deinit(&body);
}

static void create(const char *input, char id[BATCH_ID_BYTES]) {
    char body[300];
    snprintf(body, sizeof body,
             "{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/completions\", \"completion_window\": \"24h\", "
             "\"metadata\": {\"a\": \"b\"}}",
             input);
    json_t *batch = ask("POST", "/v1/batches", body, 200);
    assert_string_equal(text_at(batch, "object"), "batch");
    assert_string_equal(text_at(batch, "status"), "validating");
    snprintf(id, BATCH_ID_BYTES, "%s", text_at(batch, "id"));
    json_decref(batch);
}

/* Until the batch has the status; the batch. */
static json_t *wait_for(const char *id, const char *status) {
    char path[100];
    int64_t until = mr_clock_now_ns() + 60 * MR_NS_PER_S;
    snprintf(path, sizeof path, "/v1/batches/%s", id);
    for (;;) {
        json_t *batch = ask("GET", path, "", 200);
        if (strcmp(text_at(batch, "status"), status) == 0)
            return batch;
        if (mr_clock_now_ns() > until)
            fail_msg("%s is %s for ever, not %s", id, text_at(batch, "status"), status);
        json_decref(batch);
        usleep(1000);
    }
}

static int count(const json_t *batch, const char *key) {
    return (int)json_integer_value(json_object_get(json_object_get(batch, "request_counts"), key));
}

static void check_output(const json_t *batch, int n_lines) {
    char path[100];
    mr_batch_answer a;
    int n = 0;
    snprintf(path, sizeof path, "/v1/files/%s/content", text_at(batch, "output_file_id"));
    mr_batch_store_answer(store, "GET", path, (mr_str){0}, &a);
    assert_int_equal(a.status, 200);
    for (size_t i = 0; i < a.body.len; i++)
        n += a.body.data[i] == '\n';
    assert_int_equal(n, n_lines);
    mr_text_buf_deinit(&a.body);
    *strrchr(path, '/') = 0;
    json_t *file = ask("GET", path, "", 200);
    assert_string_equal(text_at(file, "purpose"), "batch_output");
    json_decref(file);
}

static void test_batch(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], batch_id[BATCH_ID_BYTES];
    start(0, true);
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
    check_output(batch, 4);
    json_decref(batch);
    json_t *list = ask("GET", "/v1/files", "", 200);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 2);
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
    stop();
}

static void test_cancel(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], ids[2][BATCH_ID_BYTES], path[100];
    mr_text_buf lines = {0};
    for (int i = 0; i < 2000; i++)
        assert_true(mr_text_buf_append(&lines, "a prompt\n", 9));
    start(2000, true);
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
    stop();
    mr_text_buf_deinit(&lines);
}

static void test_restart(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES];
    mr_text_buf lines = {0};
    for (int i = 0; i < 300; i++)
        assert_true(mr_text_buf_append(&lines, "a prompt\n", 9));
    start(3000, true);
    upload(lines.data, file);
    create(file, id);
    json_decref(wait_for(id, "in_progress"));
    stop();
    start(0, false);
    json_decref(wait_for(id, "in_progress")); /* start(0, false) runs no worker */
    mr_err err;
    mr_batch_store *other = NULL;
    expect_fails(mr_batch_store_create(folder, &other, &err), MR_E_IO, &err, "another server");
    expect_ok(mr_batch_store_start(store, NULL, 4, &err), &err);
    json_t *batch = wait_for(id, "completed");
    assert_int_equal(count(batch, "completed"), 300);
    check_output(batch, 300);
    json_decref(batch);
    stop();
    mr_text_buf_deinit(&lines);
}

static void write_in_folder(const char *name, const char *text) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static bool is_in_folder(const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
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
        start(0, true);
        ask_wrong("GET", path, "", 400, text);
        stop();
    }
    write_in_folder(name, "{\"id\": ");
    start(0, true);
    ask_wrong("GET", path, "", 400, "malformed: id");
    stop();
    assert_false(is_in_folder("../escaped"));
    assert_true(is_in_folder("file-000000000000000000000000"));
    snprintf(text, sizeof text, "%s/%s", folder, name);
    assert_int_equal(unlink(text), 0);
}

/* What a server leaves that is killed while it writes. */
static void test_half_made(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES];
    start(0, true);
    upload("one\n", file);
    create(file, id);
    json_t *batch = wait_for(id, "completed");
    stop();
    write_in_folder("file-000000000000000000000000", "no object");
    write_in_folder("file-000000000000000000000000.new", "half");
    write_in_folder("batch_000000000000000000000000.json.new", "{");
    write_in_folder("notes.txt", "of somebody else");
    char object[100]; /* of the results, which is written after the results */
    snprintf(object, sizeof object, "%s/%s.json", folder, text_at(batch, "output_file_id"));
    assert_int_equal(unlink(object), 0);
    start(0, true);
    assert_false(is_in_folder("file-000000000000000000000000"));
    assert_false(is_in_folder("file-000000000000000000000000.new"));
    assert_false(is_in_folder("batch_000000000000000000000000.json.new"));
    assert_true(is_in_folder("notes.txt") && is_in_folder(file) && is_in_folder(text_at(batch, "output_file_id")));
    json_decref(batch);
    stop();
}

static void test_wrong_requests(void **state) {
    (void)state;
    start(0, true);
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
    ask_wrong("POST", "/v1/batches", "[1]", 400, "no JSON object");
    ask_wrong("POST", "/v1/batches", "{\"endpoint\": \"/v1/models\"}", 400, "endpoint");
    ask_wrong("POST", "/v1/batches",
              "{\"endpoint\": \"/v1/completions\", \"input_file_id\": \"file-012345678901234567890123\"}", 400,
              "names no file");
    ask_wrong("GET", "/v1/batches/batch_012345678901234567890123", "", 404, "no such batch");
    ask_wrong("POST", "/v1/batches/file-012345678901234567890123/cancel", "", 404, "no such batch");
    ask_wrong("GET", "/v1/filesystem", "", 404, "nothing");
    stop();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch),     cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_restart),   cmocka_unit_test(test_malformed_objects),
        cmocka_unit_test(test_half_made), cmocka_unit_test(test_wrong_requests),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
