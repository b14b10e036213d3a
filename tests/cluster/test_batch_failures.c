/* An error of the job must not become the result of a line, neither in the file of `millrace batch` nor in a batch
 * of a server, whose unfinished lines run again at the next start. Error texts for clients contain nothing of ranks,
 * hosts and files. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "coordinator/serving/batch/batch_files.h"
#include "coordinator/serving/batch/batch_run.h"
#include "coordinator/serving/batch/batch_store.h"
#include "engine/base/clock.h"
#include "tests/cluster/test_service_support.h"
#include "tests/support/channel_fault.h"
#include "tests/support/test.h"

enum { N_STAGES = 2, N_VOCAB = 90, N_LINES = 24, MAX_LIVE = 4, DONE_BEFORE = 5 };

/* How a job fails, and at which endpoint the failure begins. */
typedef struct cause {
    int32_t endpoint;
    mr_status fault, status; /* fault: error of the channel; status: expected error of the job */
    const char *text;
} cause;

static const cause causes[] = {
    {1, MR_OK, MR_E_PROTOCOL, NULL}, /* a frame with one wrong byte */
    {0, MR_E_IO, MR_E_IO, "node7: /models/secret.gguf cannot be read: Input/output error"},
    {1, MR_E_DEVICE, MR_E_DEVICE, "node7: the device does not answer"},
    {N_STAGES, MR_E_PEER_LOST, MR_E_PEER_LOST, "rank 1 on node7 is gone"},
    {1, MR_E_NO_MEMORY, MR_E_NO_MEMORY, "node7: no memory for 5 bytes"},
    {0, MR_E_TOO_LONG, MR_E_TOO_LONG, "node7: a message that does not fit"},
    {0, MR_E_INVALID, MR_E_INTERNAL, "node7: a request that is not posted"},
    {1, MR_E_NOT_FOUND, MR_E_NOT_FOUND, "node7: /models/secret.gguf does not exist"},
};
enum { N_CAUSES = sizeof causes / sizeof causes[0] };

static char folder[] = "/tmp/millrace-failures-XXXXXX";
static char in_path[64], out_path[64];
static job_model model;
static mr_tokenizer *tok;

/* A service with an API, on stages that sleep, with a fault that is off at first. Before a fault they sleep for so long
 * that all lines together take a second: the fault is to come in their midst. */
typedef struct server {
    service_rig rig;
    channel_fault fault;
    mr_api *api;
} server;

static void server_start(server *s, const cause *c) {
    mr_err err;
    s->fault.endpoint = c ? c->endpoint : -1;
    s->fault.status = c ? c->fault : MR_OK;
    s->fault.text = c ? c->text : NULL;
    atomic_store(&s->fault.is_on, false);
    job_rig_config config = {.model = &model,
                             .n_stages = N_STAGES,
                             .max_sequences = MAX_LIVE + 1,
                             .max_context = 512,
                             .n_kv_blocks = 256,
                             .synthetic = true,
                             .synthetic_ns = c ? 2 * MR_NS_PER_MS : MR_NS_PER_MS / 5,
                             .wrap = channel_fault_wrap,
                             .wrap_ctx = &s->fault};
    service_rig_start(&s->rig, &config, tok, 0);
    const mr_api_config described = {.service = s->rig.service,
                                     .tokenizer = tok,
                                     .model = "tiny",
                                     .fingerprint = "none",
                                     .sampling = mr_sampling_params_default(),
                                     .max_context = 512,
                                     .n_vocab = N_VOCAB,
                                     .n_embd = 64};
    expect_ok(mr_api_create(&described, &s->api, &err), &err);
}

/* After the end of the run, where it fails, or else with it. */
static void server_stop(server *s) {
    mr_api_destroy(s->api);
    service_rig_stop(&s->rig);
}

static void join_failed(server *s, const cause *c) {
    mr_thread_join(s->rig.thread);
    s->rig.thread = NULL;
    if (s->rig.status != c->status || (c->text && !strstr(s->rig.err.text, c->text)))
        fail_msg("%s: %s", mr_status_name(s->rig.status), s->rig.err.text);
}

static void do_nothing(void *ctx) {
    (void)ctx;
}

/* The request of another client, whose answer is under way when the job fails. */
static mr_api_call *ask(const server *s) {
    static const char BODY[] = "{\"prompt\": \"abcd\", \"max_tokens\": 400, \"ignore_eos\": true}";
    mr_api_call *call = mr_api_call_begin(s->api, API_COMPLETIONS, mr_str_from(BODY), do_nothing, NULL);
    assert_non_null(call);
    return call;
}

static void check_answer(mr_api_call *call) {
    static const char *const SECRETS[] = {"stage", "rank", "node", "secret", "layers"};
    mr_text_buf text = {0};
    while (mr_api_call_next(call, &text) == API_MORE)
        ;
    assert_int_equal(mr_api_call_status(call), 503);
    expect_says(text.data, "unavailable_error");
    for (size_t i = 0; i < sizeof SECRETS / sizeof SECRETS[0]; i++)
        if (strstr(text.data, SECRETS[i]))
            fail_msg("%s", text.data);
    mr_text_buf_deinit(&text);
    mr_api_call_end(call);
}

static mr_text_buf make_lines(void) {
    mr_text_buf lines = {0};
    char line[200];
    for (int i = 0; i < N_LINES; i++) {
        int n = snprintf(line, sizeof line,
                         "{\"custom_id\": \"line %d\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
                         "{\"prompt\": \"ab%c\", \"max_tokens\": %d, \"ignore_eos\": true}}\n",
                         i, 'a' + i, 20 + i);
        assert_true(mr_text_buf_append(&lines, line, (size_t)n));
    }
    return lines;
}

/* --- A file of results ------------------------------------------------------------------------------------------- */

static bool has_failed(const mr_service_stats *s) {
    return s->state == MR_SERVICE_FAILED;
}

/* Whether the store has given back all that the failure ended. */
static bool is_closed(const mr_service_stats *s) {
    return s->n_open == 0;
}

static void wait_until(mr_service *service, bool (*is_so)(const mr_service_stats *)) {
    int64_t until = mr_clock_now_ns() + 60 * MR_NS_PER_S;
    mr_service_stats stats;
    do {
        mr_service_get_stats(service, &stats);
        assert_true(mr_clock_now_ns() < until);
        usleep(1000);
    } while (!is_so(&stats));
}

/* Waits that fail are noticed by an endpoint that waits. One that always has its next message does not, so no line
 * begins until the job has failed. */
static void fail_soon(void *ctx, const mr_batch_counts *counts) {
    server *s = ctx;
    if (counts->n_done < DONE_BEFORE)
        return;
    atomic_store(&s->fault.is_on, true);
    if (s->fault.status != MR_OK)
        wait_until(s->rig.service, has_failed);
}

static mr_status run_batch(server *s, bool fails, uint32_t *out_found, mr_batch_counts *out_counts) {
    mr_batch_input in = {0};
    mr_batch_results results = {.fd = -1};
    mr_err err;
    expect_ok(mr_batch_input_open(in_path, &in, &err), &err);
    expect_ok(mr_batch_results_open(out_path, &in, &results, &err), &err);
    assert_int_equal(results.n_failed, 0);
    *out_found = results.n_found;
    const mr_batch_config config = {.api = s->api,
                                    .input = &in,
                                    .results = &results,
                                    .max_live = MAX_LIVE,
                                    .max_tokens = -1,
                                    .progress = fails ? fail_soon : NULL,
                                    .ctx = s};
    mr_status status = mr_batch_run(&config, out_counts, &err);
    mr_batch_results_close(&results);
    mr_batch_input_close(&in);
    return status;
}

static void test_file(void **state) {
    (void)state;
    for (int i = 0; i < N_CAUSES; i++) {
        server s;
        uint32_t n_found;
        mr_batch_counts counts;
        unlink(out_path);
        server_start(&s, &causes[i]);
        mr_api_call *call = ask(&s);
        assert_int_equal(run_batch(&s, true, &n_found, &counts), MR_E_UNAVAILABLE);
        assert_in_range(counts.n_done, DONE_BEFORE, N_LINES - 1);
        assert_int_equal(counts.n_failed, 0);
        join_failed(&s, &causes[i]);
        check_answer(call);
        check_answer(ask(&s)); /* a request after the failure gets the same answer */
        server_stop(&s);
        server_start(&s, NULL);
        assert_int_equal(run_batch(&s, false, &n_found, &counts), MR_OK);
        assert_in_range(n_found, DONE_BEFORE, N_LINES - 1);
        assert_int_equal(counts.n_done, N_LINES);
        assert_int_equal(counts.n_failed, 0);
        server_stop(&s);
    }
}

/* --- A server's batch -------------------------------------------------------------------------------------------- */

static json_t *answer_of(mr_batch_store *store, const char *method, const char *path, const char *body) {
    mr_batch_answer a;
    mr_batch_store_answer(store, method, path, mr_str_from(body), &a);
    assert_int_equal(a.status, 200);
    json_t *object = json_loadb(a.body.data, a.body.len, 0, NULL);
    assert_non_null(object);
    mr_text_buf_deinit(&a.body);
    return object;
}

static void create_batch(mr_batch_store *store, const char *lines, char path[100]) {
    mr_text_buf body = {0};
    char text[300];
    static const char FIRST[] = "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--x\r\n"
                                "Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n";
    static const char LAST[] = "\r\n--x--\r\n";
    assert_true(mr_text_buf_append(&body, FIRST, sizeof FIRST - 1) && mr_text_buf_append(&body, lines, strlen(lines)) &&
                mr_text_buf_append(&body, LAST, sizeof LAST - 1));
    json_t *file = answer_of(store, "POST", "/v1/files", body.data);
    snprintf(text, sizeof text,
             "{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/completions\", \"completion_window\": \"24h\"}",
             json_string_value(json_object_get(file, "id")));
    json_t *batch = answer_of(store, "POST", "/v1/batches", text);
    snprintf(path, 100, "/v1/batches/%s", json_string_value(json_object_get(batch, "id")));
    json_decref(batch);
    json_decref(file);
    mr_text_buf_deinit(&body);
}

/* Its status, and how many of its lines have results. */
static const char *look_at(mr_batch_store *store, const char *path, int *out_completed, int *out_failed) {
    static char status[32];
    json_t *batch = answer_of(store, "GET", path, ""), *counts = json_object_get(batch, "request_counts");
    snprintf(status, sizeof status, "%s", json_string_value(json_object_get(batch, "status")));
    *out_completed = (int)json_integer_value(json_object_get(counts, "completed"));
    *out_failed = (int)json_integer_value(json_object_get(counts, "failed"));
    json_decref(batch);
    return status;
}

/* Until so many lines have results, or the batch has a status. */
static void wait_for(mr_batch_store *store, const char *path, int n, const char *status) {
    int64_t until = mr_clock_now_ns() + 60 * MR_NS_PER_S;
    int completed, failed;
    while (strcmp(look_at(store, path, &completed, &failed), status) != 0 && completed < n) {
        assert_true(mr_clock_now_ns() < until);
        usleep(1000);
    }
    assert_int_equal(failed, 0);
}

static void test_store(void **state) {
    (void)state;
    mr_text_buf lines = make_lines();
    for (int i = 0; i < N_CAUSES; i++) {
        server s;
        mr_batch_store *store;
        char path[100];
        int completed, failed;
        mr_err err;
        server_start(&s, &causes[i]);
        expect_ok(mr_batch_store_create(folder, &store, &err), &err);
        create_batch(store, lines.data, path);
        expect_ok(mr_batch_store_start(store, s.api, 1, &err), &err); /* one line at a time: its stages wait often */
        wait_for(store, path, 1, "completed");
        atomic_store(&s.fault.is_on, true);
        join_failed(&s, &causes[i]);
        wait_until(s.rig.service, is_closed);
        assert_string_equal(look_at(store, path, &completed, &failed), "in_progress");
        assert_int_equal(failed, 0);
        mr_batch_store_stop(store);
        mr_batch_store_destroy(store);
        server_stop(&s);
        server_start(&s, NULL);
        expect_ok(mr_batch_store_create(folder, &store, &err), &err);
        expect_ok(mr_batch_store_start(store, s.api, MAX_LIVE, &err), &err);
        wait_for(store, path, N_LINES + 1, "completed");
        (void)look_at(store, path, &completed, &failed);
        assert_int_equal(completed, N_LINES);
        mr_batch_store_stop(store);
        mr_batch_store_destroy(store);
        server_stop(&s);
    }
    mr_text_buf_deinit(&lines);
}

static int setup(void **state) {
    (void)state;
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    tok = service_tokenizer(N_VOCAB);
    if (!mkdtemp(folder))
        return -1;
    snprintf(in_path, sizeof in_path, "%s/in.jsonl", folder);
    snprintf(out_path, sizeof out_path, "%s/out.jsonl", folder);
    mr_text_buf lines = make_lines();
    FILE *f = fopen(in_path, "wb");
    bool ok = f && fwrite(lines.data, 1, lines.len, f) == lines.len;
    ok = f && fclose(f) == 0 && ok;
    mr_text_buf_deinit(&lines);
    return ok ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    job_model_deinit(&model);
    mr_tokenizer_destroy(tok);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_store),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
