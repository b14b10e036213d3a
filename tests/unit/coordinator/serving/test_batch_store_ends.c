/* What is there when a batch has ended: answers in the output file, failures in the error file, however the batch ended
 * and whatever came between. tests/support/fake_api.c answers the calls. */
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "coordinator/serving/batch/batch_store_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "tests/unit/coordinator/serving/test_batch_store_rig.h"

/* For /v1/completions. The fake API refuses a prompt that contains "refuse". */
#define LINE(id, prompt)                                                                                               \
    "{\"custom_id\": \"" id "\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"" prompt \
    "\"}}\n"
#define CHAT(id) "{\"custom_id\": \"" id "\", \"url\": \"/v1/chat/completions\", \"body\": {\"messages\": []}}\n"

/* The object of a batch as it stands on the disk. */
static json_t *stored_batch(const char *id) {
    json_t *stored = NULL;
    mr_err err;
    expect_ok(batch_object_load(folder, id, &stored, &err), &err);
    return stored;
}

/* What the lines of the two files are. */
typedef struct tally {
    int n_answers, n_failures, n_cancelled;
    int n_statuses; /* failures with an answer of another status than 200 */
} tally;

/* Reads one of the two files, whose field may be null: each line is one JSON object, and stands in the right file. */
static void tally_file(const json_t *batch, const char *key, tally *t) {
    const char *id = text_at(batch, key);
    bool is_output = strcmp(key, "output_file_id") == 0;
    char path[100];
    if (!id) {
        assert_true(json_is_null(json_object_get(batch, key)));
        return;
    }
    mr_text_buf content = content_of(id), again = content_of(id);
    assert_true(content.len > 0 && content.len == again.len && memcmp(content.data, again.data, again.len) == 0);
    snprintf(path, sizeof path, "/v1/files/%s", id);
    json_t *file = ask("GET", path, "", 200);
    assert_string_equal(text_at(file, "purpose"), "batch_output");
    assert_int_equal(json_integer_value(json_object_get(file, "bytes")), content.len);
    expect_says(text_at(file, "filename"), text_at(batch, "id"));
    expect_says(text_at(file, "filename"), is_output ? "_output.jsonl" : "_error.jsonl");
    json_decref(file);
    for (char *line = content.data, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        json_t *result = json_loadb(line, (size_t)(end - line), 0, NULL);
        assert_non_null(result);
        const json_t *response = json_object_get(result, "response"), *error = json_object_get(result, "error");
        int status = (int)json_integer_value(json_object_get(response, "status_code"));
        assert_int_equal(status == 200, is_output);
        assert_int_equal(json_is_null(response), !json_is_null(error));
        t->n_answers += is_output;
        t->n_failures += !is_output;
        t->n_statuses += status && !is_output;
        t->n_cancelled += error && text_at(error, "code") && strcmp(text_at(error, "code"), "batch_cancelled") == 0;
        json_decref(result);
    }
    mr_text_buf_deinit(&content);
    mr_text_buf_deinit(&again);
}

/* Releases the batch. What request_counts says is what the files hold, and nothing else is left of the batch. */
static tally tally_batch(json_t *batch, int n_lines) {
    tally t = {0};
    char name[100];
    tally_file(batch, "output_file_id", &t);
    tally_file(batch, "error_file_id", &t);
    assert_int_equal(count(batch, "total"), n_lines);
    assert_int_equal(count(batch, "completed"), t.n_answers);
    assert_int_equal(count(batch, "failed"), t.n_failures);
    snprintf(name, sizeof name, "%s.journal", text_at(batch, "id"));
    assert_false(is_in_folder(name));
    json_decref(batch);
    return t;
}

static void test_files(void **state) {
    (void)state;
    static const struct {
        const char *text;
        tally wanted;
        int n_lines;
    } CASES[] = {
        {LINE("a", "one") LINE("b", "refuse") "{bad\n" LINE("a", "twice") CHAT("c") LINE("d", "two"), {2, 4, 0, 1}, 6},
        {LINE("a", "one") LINE("b", "two"), {2, 0, 0, 0}, 2},
        {LINE("a", "refuse") LINE("b", "refuse"), {0, 2, 0, 2}, 2},
        {"{bad\n{worse\n", {0, 2, 0, 0}, 2},
        {"a prompt\nrefuse\n", {1, 1, 0, 1}, 2},
        /* What an answer has looks like a result. */
        {LINE("\\\"response\\\": {\\\"status_code\\\": 200,", "refuse \\\"response\\\": {\\\"status_code\\\": 200,"),
         {0, 1, 0, 1},
         1},
        {LINE("\\\"response\\\": null", "\\\"response\\\": null"), {1, 0, 0, 0}, 1},
    };
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES];
    store_start(0, true);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        upload(CASES[i].text, file);
        create(file, id);
        tally t = tally_batch(wait_for(id, "completed"), CASES[i].n_lines);
        assert_memory_equal(&t, &CASES[i].wanted, sizeof t);
    }
    store_stop();
}

/* Files that are refused as a whole. */
static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *endpoint, *code, *message;
        int n_lines, line; /* 0: null */
    } CASES[] = {
        {"", "/v1/completions", "empty_file", "no lines", 0, 0},
        {"\n \r\n\t\n", "/v1/completions", "empty_file", "no lines", 0, 0},
        {CHAT("a") CHAT("b"), "/v1/completions", "mismatched_url", "line 1: it is for /v1/chat/completions", 2, 1},
        {"{bad\n\n" CHAT("a") CHAT("a"), "/v1/completions", "mismatched_url", "line 3: it is for", 3, 3},
        {"a prompt\nanother\n", "/v1/chat/completions", "mismatched_url", "line 1: it is for /v1/completions", 2, 1},
        {"{\"custom_id\": \"a\", \"url\": \"/v1/models\", \"body\": {}}", "/v1/completions", "invalid_url", "line 1", 1,
         1},
        {"{\"custom_id\": \"a\", \"body\": {}}\n" CHAT("b"), "/v1/completions", "invalid_url", "line 1", 2, 1},
    };
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES];
    store_start(0, true);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        upload(CASES[i].text, file);
        create_for(CASES[i].endpoint, file, id);
        json_t *batch = wait_for(id, "failed");
        const json_t *errors = json_object_get(json_object_get(batch, "errors"), "data");
        const json_t *error = json_array_get(errors, 0), *line = json_object_get(error, "line");
        assert_int_equal(json_array_size(errors), 1);
        assert_string_equal(text_at(error, "code"), CASES[i].code);
        expect_says(text_at(error, "message"), CASES[i].message);
        assert_int_equal(json_integer_value(line), CASES[i].line);
        assert_int_equal(json_is_null(line), !CASES[i].line);
        assert_int_equal(text_at(error, "param") != NULL, CASES[i].line > 0);
        assert_true(json_is_null(json_object_get(batch, "output_file_id")));
        assert_true(json_is_null(json_object_get(batch, "error_file_id")));
        assert_int_equal(count(batch, "total"), CASES[i].n_lines);
        json_decref(batch);
    }
    assert_int_equal(fake_api_n_calls(), 0);
    store_stop();
}

/* A file that is no text: clients read what is wrong and what to do, and no path. */
static void test_no_text(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES];
    store_start(0, true);
    upload("\xff\xfe"
           "a",
           file);
    create(file, id);
    json_t *batch = wait_for(id, "failed");
    const json_t *error = json_array_get(json_object_get(json_object_get(batch, "errors"), "data"), 0);
    expect_says(text_at(error, "message"), "the input file is text in UTF-16; hint: save it as UTF-8");
    json_decref(batch);
    store_stop();
}

/* n lines: each third one is refused, and each tenth one is no request. */
static mr_text_buf many_lines(int n) {
    mr_text_buf b = {0};
    for (int i = 0; i < n; i++) {
        char line[200];
        if (i % 10 == 9)
            snprintf(line, sizeof line, "{bad %d\n", i);
        else
            snprintf(line, sizeof line,
                     "{\"custom_id\": \"r%d\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"%s\"}}\n", i,
                     i % 3 ? "tell" : "refuse");
        assert_true(mr_text_buf_append(&b, line, strlen(line)));
    }
    return b;
}

/* A batch that is cancelled: lines without an answer are failures. restarts: the server ends before the batch does. */
static void cancel_one(bool restarts) {
    enum { N = 3000 };
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], path[100];
    mr_text_buf lines = many_lines(N);
    store_start(3000, true);
    upload(lines.data, file);
    create(file, id);
    wait_for_count(id, "failed", N / 10 + 3); /* some that the API refused, too */
    wait_for_count(id, "completed", 5);
    snprintf(path, sizeof path, "/v1/batches/%s/cancel", id);
    if (restarts) { /* the next server, which has no worker yet, is told to cancel; it ends, and another one works */
        store_stop();
        store_start(0, false);
    }
    json_t *batch = ask("POST", path, "", 200);
    assert_string_equal(text_at(batch, "status"), "cancelling");
    assert_null(text_at(batch, "output_file_id"));
    json_decref(batch);
    if (restarts) {
        store_stop();
        store_start(0, true);
    }
    tally t = tally_batch(wait_for(id, "cancelled"), N);
    assert_int_equal(t.n_answers + t.n_failures, N);
    assert_true(t.n_answers >= 5 && t.n_cancelled > 0 && t.n_statuses > 0);
    assert_int_equal(t.n_failures, N / 10 + t.n_statuses + t.n_cancelled);
    if (restarts)
        assert_int_equal(fake_api_n_calls(), 0);
    store_stop();
    mr_text_buf_deinit(&lines);
}

static void test_cancelled(void **state) {
    (void)state;
    cancel_one(false);
}

static void test_cancelled_and_restarted(void **state) {
    (void)state;
    cancel_one(true);
}

/* A batch that waits is cancelled at once: it has no files. */
static void test_cancelled_before_start(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], path[100];
    store_start(0, false);
    upload(LINE("a", "one"), file);
    create(file, id);
    snprintf(path, sizeof path, "/v1/batches/%s/cancel", id);
    tally t = tally_batch(ask("POST", path, "", 200), 0);
    assert_int_equal(t.n_answers + t.n_failures, 0);
    store_stop();
}

/* The input is deleted while no server runs: what is there is split. */
static void test_input_is_gone(void **state) {
    (void)state;
    enum { N = 300 };
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], path[200];
    mr_text_buf lines = many_lines(N);
    store_start(3000, true);
    upload(lines.data, file);
    create(file, id);
    wait_for_count(id, "completed", 3);
    store_stop();
    path_in_folder(file, "", path);
    assert_int_equal(unlink(path), 0);
    store_start(0, true);
    json_t *batch = wait_for(id, "failed");
    const json_t *error = json_array_get(json_object_get(json_object_get(batch, "errors"), "data"), 0);
    assert_string_equal(text_at(error, "message"), "the input file is not there any more");
    tally t = tally_batch(batch, N);
    assert_true(t.n_answers >= 3 && t.n_failures >= N / 10);
    store_stop();
    mr_text_buf_deinit(&lines);
}

/* Another program changes a file of the folder: the batch fails, and its error names no path. */
static void test_changed_journal(void **state) {
    (void)state;
    enum { N = 1000 };
    static const char *const WORDS[] = {"the journal of the batch was removed while the batch ran",
                                        "the journal of the batch was changed by another program",
                                        "the journal of the batch, line 1: its checksum does not fit"};
    mr_text_buf lines = many_lines(N);
    for (int i = 0; i < 3; i++) {
        char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], journal[200];
        store_start(3000, true);
        upload(lines.data, file);
        create(file, id);
        wait_for_count(id, "completed", 3);
        path_in_folder(id, ".journal", journal);
        if (i == 0) {
            assert_int_equal(unlink(journal), 0);
        } else { /* a byte of the first result, whose size stays: its checksum tells */
            FILE *f = fopen(journal, "r+");
            assert_true(f && fseek(f, 90, SEEK_SET) == 0 && fputc('\1', f) == 1 && fclose(f) == 0);
        }
        if (i == 2) {
            store_stop();
            store_start(0, true);
        }
        json_t *batch = wait_for(id, "failed");
        const json_t *error = json_array_get(json_object_get(json_object_get(batch, "errors"), "data"), 0);
        expect_says(text_at(error, "message"), WORDS[i]);
        assert_null(strstr(text_at(error, "message"), folder));
        assert_null(strstr(text_at(error, "message"), "hint"));
        tally t = tally_batch(batch, N);
        assert_int_equal(t.n_answers > 0, i > 0);
        store_stop();
    }
    mr_text_buf_deinit(&lines);
}

/* Stored files are cut: neither a batch nor a client takes a part for the whole. */
static void test_changed_files(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], path[200];
    store_start(0, false);
    upload(LINE("a", "one") LINE("b", "two"), file);
    create(file, id);
    path_in_folder(file, "", path);
    assert_int_equal(truncate(path, (off_t)strlen(LINE("a", "one"))), 0);
    store_work();
    json_t *batch = wait_for(id, "failed");
    const json_t *error = json_array_get(json_object_get(json_object_get(batch, "errors"), "data"), 0);
    expect_says(text_at(error, "message"), "was changed by another program");
    assert_int_equal(fake_api_n_calls(), 0);
    json_decref(batch);
    snprintf(path, sizeof path, "/v1/files/%s/content", file);
    ask_wrong("GET", path, "", 500, "was changed by another program");
    store_stop();
}

/* A file of the first batch cannot be opened, its journal or its input: the second batch runs, and the first one when
 * its file can be opened. */
static void test_a_batch_that_waits_for_the_disk(void **state) {
    (void)state;
    for (int of_input = 0; of_input < 2; of_input++) {
        char file[2][BATCH_ID_BYTES], first[BATCH_ID_BYTES], second[BATCH_ID_BYTES], path[200], aside[200];
        store_start(0, false);
        for (int i = 0; i < 2; i++)
            upload(LINE("a", "one"), file[i]);
        create(file[0], first);
        path_in_folder(of_input ? file[0] : first, of_input ? "" : ".journal", path);
        path_in_folder("aside", "", aside);
        assert_true(!of_input || rename(path, aside) == 0);
        assert_int_equal(symlink(path, path), 0);
        create(file[1], second);
        store_work();
        json_decref(wait_for(second, "completed"));
        json_decref(wait_for(first, "in_progress"));
        assert_int_equal(of_input ? rename(aside, path) : unlink(path), 0);
        json_decref(wait_for(first, "completed"));
        store_stop();
    }
}

/* While the two files are written, clients still see the counts and no files. A pipe holds the first file up; then its
 * sync fails, as on a bad disk, and the files are written again. */
static void test_counts_while_files_are_written(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], path[200], rest[4096];
    store_start(0, false);
    upload(LINE("a", "one") LINE("b", "refuse") LINE("c", "two"), file);
    create(file, id);
    json_t *stored = stored_batch(id);
    path_in_folder(text_at(stored, "output_file_id"), ".new", path);
    json_decref(stored);
    assert_int_equal(mkfifo(path, 0600), 0);
    store_work();
    int fd = open(path, O_RDONLY | O_CLOEXEC); /* waits for the writer */
    assert_true(fd >= 0);
    json_t *batch = get_batch(id), *list = ask("GET", "/v1/batches", "", 200), *other;
    assert_string_equal(text_at(batch, "status"), "in_progress");
    assert_int_equal(count(batch, "total"), 3);
    assert_int_equal(count(batch, "completed"), 2);
    assert_int_equal(count(batch, "failed"), 1);
    assert_null(text_at(batch, "output_file_id"));
    assert_null(text_at(batch, "error_file_id"));
    size_t i, n_equal = 0;
    json_array_foreach(json_object_get(list, "data"), i, other) n_equal += json_equal(batch, other) != 0;
    assert_int_equal(n_equal, 1);
    json_decref(batch);
    json_decref(list);
    while (read(fd, rest, sizeof rest) > 0)
        continue;
    close(fd);
    tally t = tally_batch(wait_for(id, "completed"), 3);
    assert_int_equal(t.n_answers, 2);
    assert_int_equal(fake_api_n_calls(), 3);
    store_stop();
}

/* All failures came before the restart: lines that are no requests are the first ones that get a result. */
static void test_failures_before_restart(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES];
    mr_text_buf lines = {0};
    for (int i = 0; i < 300; i++) {
        const char *line =
            i % 100 ? "{\"custom_id\": \"r%d\", \"url\": \"/v1/completions\", \"body\": {}}\n" : "{bad %d\n";
        char text[100];
        snprintf(text, sizeof text, line, i);
        assert_true(mr_text_buf_append(&lines, text, strlen(text)));
    }
    store_start(3000, true);
    upload(lines.data, file);
    create(file, id);
    wait_for_count(id, "failed", 3);
    store_stop();
    store_start(0, true);
    tally t = tally_batch(wait_for(id, "completed"), 300);
    assert_int_equal(t.n_answers, 297);
    store_stop();
    mr_text_buf_deinit(&lines);
}

/* A disk that is full for a while when a file is written: the batch is not failed, and goes on. */
static void test_full_disk(void **state) {
    (void)state;
    static const struct {
        const char *key, *ending;
    } FULL[] = {{"output_file_id", ".new"},
                {"error_file_id", ".new"},
                {"output_file_id", ".json.new"},
                {"error_file_id", ".json.new"},
                {"id", ".json.new"}};
    for (size_t i = 0; i < sizeof FULL / sizeof *FULL; i++) {
        char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], path[200];
        store_start(0, false);
        upload(LINE("a", "one") LINE("b", "refuse"), file);
        create(file, id);
        json_t *stored = stored_batch(id);
        path_in_folder(text_at(stored, FULL[i].key), FULL[i].ending, path);
        json_decref(stored);
        assert_int_equal(symlink("/dev/full", path), 0); /* the failed attempt removes it */
        store_work();
        tally t = tally_batch(wait_for(id, "completed"), 2);
        assert_int_equal(t.n_answers, 1);
        assert_int_equal(t.n_failures, 1);
        assert_int_not_equal(access(path, F_OK), 0);
        assert_int_equal(fake_api_n_calls(), 2); /* no request is answered twice */
        store_stop();
    }
}

/* Waits until the journal has this size and no run has it open. */
static void wait_for_journal(const char *path, off_t size) {
    int64_t until = mr_clock_now_ns() + 60 * MR_NS_PER_S;
    for (bool is_left = false; !is_left; usleep(1000)) {
        struct stat st;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        is_left = fd >= 0 && fstat(fd, &st) == 0 && st.st_size == size && flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (fd >= 0)
            close(fd);
        if (mr_clock_now_ns() > until)
            fail_msg("%s is never left with %lld bytes", path, (long long)size);
    }
}

/* A disk that is full for a while when results are written. */
static void test_full_disk_while_running(void **state) {
    (void)state;
    enum { N = 200, N_BYTES = 4000 };
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], journal[200];
    struct rlimit before, full;
    mr_text_buf lines = many_lines(N);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    full = before;
    full.rlim_cur = N_BYTES;
    store_start(0, false);
    upload(lines.data, file);
    create(file, id);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
    store_work();
    path_in_folder(id, ".journal", journal);
    wait_for_journal(journal, N_BYTES);
    json_decref(wait_for(id, "in_progress"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    tally t = tally_batch(wait_for(id, "completed"), N);
    assert_int_equal(t.n_answers + t.n_failures, N);
    assert_int_equal(t.n_failures, N / 10 + t.n_statuses);
    store_stop();
    mr_text_buf_deinit(&lines);
}

/* A batch that an earlier version has begun: its results stand at output_file_id, and error_file_id is null. */
static void test_earlier_version(void **state) {
    (void)state;
    enum { N = 300 };
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], journal[200], output[200];
    mr_text_buf lines = many_lines(N);
    mr_err err;
    store_start(3000, true);
    upload(lines.data, file);
    create(file, id);
    wait_for_count(id, "completed", 20);
    store_stop();
    json_t *stored = stored_batch(id);
    path_in_folder(id, ".journal", journal);
    path_in_folder(text_at(stored, "output_file_id"), "", output);
    assert_int_equal(rename(journal, output), 0);
    assert_int_equal(json_object_set_new(stored, "error_file_id", json_null()), 0);
    expect_ok(batch_object_save(folder, stored, &err), &err);
    json_decref(stored);
    store_start(0, true);
    tally t = tally_batch(wait_for(id, "completed"), N);
    assert_int_equal(t.n_answers + t.n_failures, N);
    assert_int_equal(t.n_failures, N / 10 + t.n_statuses);
    assert_true(fake_api_n_calls() <= N - N / 10 - 20); /* the results are used */
    store_stop();
    mr_text_buf_deinit(&lines);
}

/* An earlier version has begun a batch that has no answers, but an object of the file that was to have them: clients do
 * not see a file without a content. */
static void test_empty_file_of_earlier_version(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], name[100];
    json_t *object;
    mr_err err;
    store_start(0, false);
    upload("{bad\n", file);
    create(file, id);
    json_t *stored = stored_batch(id);
    const char *output = text_at(stored, "output_file_id");
    write_in_folder(output, "");
    object = batch_file_object(output, mr_str_from("results.jsonl"), mr_str_from("batch_output"), 0);
    expect_ok(batch_object_save(folder, object, &err), &err);
    json_decref(object);
    snprintf(name, sizeof name, "%s.json", output);
    assert_true(is_in_folder(name));
    assert_int_equal(json_object_set_new(stored, "error_file_id", json_null()), 0);
    expect_ok(batch_object_save(folder, stored, &err), &err);
    store_work();
    tally t = tally_batch(wait_for(id, "completed"), 1);
    assert_int_equal(t.n_failures, 1);
    assert_false(is_in_folder(name));
    assert_false(is_in_folder(output));
    json_decref(stored);
    store_stop();
}

/* Each allocation of a split fails once: an error, and the next split has the same files. */
static void test_no_memory(void **state) {
    (void)state;
    char file[BATCH_ID_BYTES], id[BATCH_ID_BYTES], path[200];
    mr_err err;
    mr_text_buf lines = many_lines(2000);
    store_start(3000, true);
    upload(lines.data, file);
    create(file, id);
    wait_for_count(id, "completed", 3);
    store_stop();
    json_t *stored = stored_batch(id);
    mr_status status = MR_E_NO_MEMORY;
    int64_t at = 0;
    for (; status != MR_OK; at++) {
        uint32_t n_answers, n_failures;
        mr_mem_fail_at(at);
        status = batch_split(folder, stored, &n_answers, &n_failures, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        path_in_folder(text_at(stored, "output_file_id"), ".new", path);
        assert_int_not_equal(access(path, F_OK), 0);
        if (status == MR_OK)
            assert_true(n_answers >= 3 && n_failures >= 200);
    }
    assert_true(at > 1);
    json_decref(stored);
    mr_text_buf_deinit(&lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_text),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_cancelled_and_restarted),
        cmocka_unit_test(test_cancelled_before_start),
        cmocka_unit_test(test_input_is_gone),
        cmocka_unit_test(test_changed_journal),
        cmocka_unit_test(test_changed_files),
        cmocka_unit_test(test_a_batch_that_waits_for_the_disk),
        cmocka_unit_test(test_counts_while_files_are_written),
        cmocka_unit_test(test_failures_before_restart),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_full_disk_while_running),
        cmocka_unit_test(test_earlier_version),
        cmocka_unit_test(test_empty_file_of_earlier_version),
        cmocka_unit_test(test_no_memory), /* last: it leaves a batch that has not ended */
    };
    return cmocka_run_group_tests(tests, store_setup, store_teardown);
}
