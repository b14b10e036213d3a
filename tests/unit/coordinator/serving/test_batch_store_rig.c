// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/coordinator/serving/test_batch_store_rig.h"

#include "engine/base/clock.h"

char folder[] = "/tmp/millrace-store-XXXXXX";
mr_batch_store *store;

int store_setup(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

int store_teardown(void **state) {
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

void store_start(int delay_us, bool works) {
    mr_err err;
    fake_api_start(delay_us, NEVER_BUSY);
    expect_ok(mr_batch_store_create(folder, &store, &err), &err);
    if (works)
        store_work();
}

void store_work(void) {
    mr_err err;
    expect_ok(mr_batch_store_start(store, NULL, 4, &err), &err);
}

void store_stop(void) {
    mr_batch_store_stop(store);
    mr_batch_store_destroy(store);
    fake_api_stop();
}

json_t *ask(const char *method, const char *path, const char *body, int status) {
    mr_batch_answer a;
    mr_batch_store_answer(store, method, path, mr_str_from(body), &a);
    if (a.status != status)
        fail_msg("%s %s: %d, %s", method, path, a.status, a.body.data ? a.body.data : "");
    json_t *object = json_loadb(a.body.data, a.body.len, 0, NULL);
    assert_non_null(object);
    mr_text_buf_deinit(&a.body);
    return object;
}

void ask_wrong(const char *method, const char *path, const char *body, int status, const char *words) {
    json_t *object = ask(method, path, body, status);
    const char *text = json_string_value(json_object_get(json_object_get(object, "error"), "message"));
    if (!text || !strstr(text, words))
        fail_msg("%s", text);
    json_decref(object);
}

mr_text_buf content_of(const char *file_id) {
    char path[100];
    mr_batch_answer a;
    snprintf(path, sizeof path, "/v1/files/%s/content", file_id);
    mr_batch_store_answer(store, "GET", path, (mr_str){0}, &a);
    assert_int_equal(a.status, 200);
    return a.body;
}

const char *text_at(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

void upload(const char *content, char id[BATCH_ID_BYTES]) {
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

void create_for(const char *endpoint, const char *input, char id[BATCH_ID_BYTES]) {
    char body[300];
    snprintf(body, sizeof body,
             "{\"input_file_id\": \"%s\", \"endpoint\": \"%s\", \"completion_window\": \"24h\", "
             "\"metadata\": {\"a\": \"b\"}}",
             input, endpoint);
    json_t *batch = ask("POST", "/v1/batches", body, 200);
    assert_string_equal(text_at(batch, "object"), "batch");
    assert_string_equal(text_at(batch, "status"), "validating");
    assert_true(json_is_null(json_object_get(batch, "output_file_id")));
    assert_true(json_is_null(json_object_get(batch, "error_file_id")));
    snprintf(id, BATCH_ID_BYTES, "%s", text_at(batch, "id"));
    json_decref(batch);
}

void create(const char *input, char id[BATCH_ID_BYTES]) {
    create_for("/v1/completions", input, id);
}

json_t *get_batch(const char *id) {
    char path[100];
    snprintf(path, sizeof path, "/v1/batches/%s", id);
    return ask("GET", path, "", 200);
}

json_t *wait_for(const char *id, const char *status) {
    int64_t until = mr_clock_now_ns() + 60 * MR_NS_PER_S;
    for (;;) {
        json_t *batch = get_batch(id);
        if (strcmp(text_at(batch, "status"), status) == 0)
            return batch;
        if (mr_clock_now_ns() > until)
            fail_msg("%s is %s for ever, not %s", id, text_at(batch, "status"), status);
        json_decref(batch);
        usleep(1000);
    }
}

void wait_for_count(const char *id, const char *key, int n) {
    int64_t until = mr_clock_now_ns() + 60 * MR_NS_PER_S;
    for (int now = -1; now < n; usleep(1000)) {
        json_t *batch = get_batch(id);
        now = count(batch, key);
        json_decref(batch);
        if (mr_clock_now_ns() > until)
            fail_msg("%s has %d %s for ever, not %d", id, now, key, n);
    }
}

int count(const json_t *batch, const char *key) {
    return (int)json_integer_value(json_object_get(json_object_get(batch, "request_counts"), key));
}

void path_in_folder(const char *name, const char *ending, char out[200]) {
    snprintf(out, 200, "%s/%s%s", folder, name, ending);
}

void write_in_folder(const char *name, const char *text) {
    char path[200];
    path_in_folder(name, "", path);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

bool is_in_folder(const char *name) {
    char path[200];
    path_in_folder(name, "", path);
    return access(path, F_OK) == 0;
}
