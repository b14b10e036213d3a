/* Batch files: the parsing of lines, the order of requests, and the results after interruptions.
 * tests/support/fake_api.c answers the calls. */
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "coordinator/serving/batch/batch_run.h"
#include "engine/base/mem.h"
#include "tests/support/fake_api.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

enum { NEVER_BUSY = 1 << 30 };

/* In memory where that is possible: syncs of a busy disk take seconds. */
static char folder[2][40] = {"/dev/shm/millrace-batch-XXXXXX", "/tmp/millrace-batch-XXXXXX"};
static int chosen;
static char in_path[64], out_path[64];

static int setup(void **state) {
    (void)state;
    chosen = mkdtemp(folder[0]) ? 0 : 1;
    if (chosen == 1 && !mkdtemp(folder[1]))
        return -1;
    snprintf(in_path, sizeof in_path, "%s/in.jsonl", folder[chosen]);
    snprintf(out_path, sizeof out_path, "%s/out.jsonl", folder[chosen]);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(in_path);
    unlink(out_path);
    return rmdir(folder[chosen]);
}

static void write_file(const char *path, const char *text, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static mr_text_buf read_file(const char *path) {
    mr_text_buf b = {0};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    for (size_t n = 1; n;) {
        assert_true(mr_text_buf_reserve(&b, 1 << 16));
        n = fread(b.data + b.len, 1, 1 << 16, f);
        b.len += n;
        b.data[b.len] = 0;
    }
    fclose(f);
    return b;
}

static void open_input(const char *text, mr_batch_input *in) {
    mr_err err = {0};
    write_file(in_path, text, strlen(text));
    expect_ok(mr_batch_input_open(in_path, in, &err), &err);
}

static void test_members(void **state) {
    (void)state;
    mr_str v;
    mr_str s = mr_str_from(" { \"a\" : {\"b\": [1, \"}\\\"\"]} , \"b\":12 ,\"c\" : \"x\\\\\",\"d\":[] }");
    assert_true(batch_json_member(s, "a", &v) && mr_str_is(v, "{\"b\": [1, \"}\\\"\"]}"));
    assert_true(batch_json_member(s, "b", &v) && mr_str_is(v, "12"));
    assert_true(batch_json_member(s, "c", &v) && mr_str_is(v, "\"x\\\\\""));
    assert_true(batch_json_member(s, "d", &v) && mr_str_is(v, "[]"));
    assert_false(batch_json_member(s, "e", &v));
    for (size_t n = 0; n < s.len; n++) { /* the parser does not read behind the end */
        char *copy = mr_alloc(n);
        memcpy(copy, s.data, n);
        (void)batch_json_member((mr_str){copy, n}, "e", &v);
        mr_free(copy);
    }
    assert_false(batch_json_member(mr_str_from("{\"a\" 1}"), "a", &v));
    assert_false(batch_json_member(mr_str_from("{\"a\":}"), "a", &v));
    assert_false(batch_json_member(mr_str_from("[1]"), "a", &v));
}

static void test_lines(void **state) {
    (void)state;
    static const struct {
        const char *text;
        batch_line_kind kind;
    } LINES[] = {
        {"{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"x\"}}\r",
         BATCH_REQUEST},
        {"  ", BATCH_REQUEST},
        {"\"a JSON \\u0070rompt\"", BATCH_NOT_JSON},
        {"garbage", BATCH_NOT_JSON},
        {" \t{\"custom_id\": \"\\u0061\", \"body\": {}}", BATCH_DUPLICATE},
        {"{\"custom_id\": 5}", BATCH_NO_ID},
        {"{\"custom_id\": \"\"}", BATCH_NO_ID},
        {"{\"id\": 5}", BATCH_NO_ID},
        {"{broken", BATCH_NOT_JSON},
        {"{\"custom_id\": \"line-4\"}", BATCH_REQUEST},
        {"{\"custom_id\": \"a\\u0000\"}", BATCH_REQUEST},
    };
    enum { N = sizeof LINES / sizeof LINES[0] };
    mr_text_buf text = {0}, id = {0};
    assert_true(mr_text_buf_append(&text, "\xef\xbb\xbf", 3)); /* a byte order mark is no part of the first line */
    for (int i = 0; i < N; i++)
        assert_true(mr_text_buf_append(&text, LINES[i].text, strlen(LINES[i].text)) &&
                    mr_text_buf_append(&text, "\n", i + 1 < N));
    mr_batch_input in;
    open_input(text.data, &in);
    assert_int_equal(in.n, N - 1); /* a blank line is no request */
    for (uint32_t i = 0; i < in.n; i++) {
        assert_int_equal(in.lines[i].number, i ? i + 2 : 1);
        assert_int_equal(in.lines[i].kind, LINES[in.lines[i].number - 1].kind);
        assert_ptr_equal(batch_input_find(&in, in.lines[i].number), &in.lines[i]);
    }
    assert_null(batch_input_find(&in, 2));
    assert_null(batch_input_find(&in, N + 1));
    assert_int_equal(in.lines[0].n_bytes, strlen(LINES[0].text) - 1);
    assert_true(batch_line_put_id(&in, &in.lines[0], &id) && batch_line_put_id(&in, &in.lines[2], &id) &&
                batch_line_put_id(&in, &in.lines[3], &id) && batch_line_put_id(&in, &in.lines[5], &id) &&
                batch_line_put_id(&in, &in.lines[N - 2], &id));
    assert_string_equal(id.data, "\"a\"null\"a\"null\"a\\u0000\"");
    mr_batch_input_close(&in);
    mr_text_buf_deinit(&id);
    mr_text_buf_deinit(&text);
}

static void test_lines_of_prompts(void **state) {
    (void)state;
    static const struct {
        const char *text;
        batch_line_kind kind;
        const char *id;
    } LINES[] = {
        {"a plain one", BATCH_PLAIN_PROMPT, "\"line-2\""},
        {"\"a JSON \\u0070rompt\"", BATCH_JSON_PROMPT, "\"line-3\""},
        {"  {\"custom_id\": \"a\", \"body\": {}}", BATCH_STRAY, "null"},
        {"{x: 1} means", BATCH_PLAIN_PROMPT, "\"line-5\""},
    };
    enum { N = sizeof LINES / sizeof LINES[0] };
    mr_text_buf text = {0};
    for (int i = 0; i < N; i++)
        assert_true(mr_text_buf_append(&text, "\n", 1) &&
                    mr_text_buf_append(&text, LINES[i].text, strlen(LINES[i].text)));
    mr_batch_input in;
    open_input(text.data, &in);
    assert_int_equal(in.n, N);
    for (uint32_t i = 0; i < in.n; i++) {
        mr_text_buf id = {0};
        assert_int_equal(in.lines[i].kind, LINES[i].kind);
        assert_true(batch_line_put_id(&in, &in.lines[i], &id));
        assert_string_equal(id.data, LINES[i].id);
        mr_text_buf_deinit(&id);
    }
    mr_batch_input_close(&in);
    mr_text_buf_deinit(&text);
}

static void test_order(void **state) {
    (void)state;
    mr_batch_input in;
    uint32_t *order, n;
    open_input(
        "{\"custom_id\":\"1\",\"body\":{\"max_tokens\":3,\"messages\":[\"b\"]}}\n{\"x\n"
        "{\"custom_id\":\"3\",\"body\":{\"messages\":[\"a\"]}}\n{\"custom_id\":\"4\",\"body\":{\"messages\":[\"b\"]}}\n"
        "{\"custom_id\":\"5\",\"body\":{\"messages\":[\"a\"]}}\n",
        &in);
    in.lines[3].is_done = true;
    assert_int_equal(batch_input_order(&in, &order, &n, NULL), MR_OK);
    static const uint32_t WANT[] = {1, 2, 4, 0};
    assert_int_equal(n, 4);
    assert_memory_equal(order, WANT, sizeof WANT);
    mr_free(order);
    mr_batch_input_close(&in);
}

/* Requests of several kinds, some of them bad. */
static mr_text_buf make_input(int n) {
    mr_text_buf b = {0};
    for (int i = 0; i < n; i++) {
        char line[300];
        if (i % 10 == 3)
            snprintf(line, sizeof line,
                     "{\"custom_id\": \"line-%d\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": "
                     "\"number %d\"}}\n",
                     i + 1, i);
        else if (i % 50 == 7)
            snprintf(line, sizeof line,
                     "{\"custom_id\": \"r%d\", \"method\": \"GET\", \"url\": \"/v1/completions\", \"body\": {}}\n", i);
        else if (i % 50 == 8)
            snprintf(line, sizeof line, "{\"custom_id\": \"r%d\", oops\n", i);
        else
            snprintf(line, sizeof line,
                     "{\"custom_id\": \"r%d\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": "
                     "{\"stream\": true, "
                     "\"messages\": [{\"role\": \"user\", \"content\": \"%s %d\"}]}}\n",
                     i, i % 50 == 9 ? "refuse" : "tell", i % 13);
        assert_true(mr_text_buf_append(&b, line, strlen(line)));
    }
    return b;
}

static bool never(void *ctx) {
    (void)ctx;
    return false;
}

static mr_status work(bool (*stops)(void *), void *ctx, mr_batch_counts *counts, mr_err *err) {
    mr_batch_input in = {0};
    mr_batch_results results = {.fd = -1};
    mr_status status = mr_batch_input_open(in_path, &in, err);
    if (status == MR_OK)
        status = mr_batch_results_open(out_path, &in, &results, err);
    mr_batch_config config = {
        .input = &in, .results = &results, .max_live = 32, .max_tokens = 5, .stops = stops, .ctx = ctx};
    if (status == MR_OK)
        status = mr_batch_run(&config, counts, err);
    mr_batch_results_close(&results);
    mr_batch_input_close(&in);
    return status;
}

static void work_to_the_end(int n_lines) {
    mr_batch_counts counts;
    mr_err err = {0};
    expect_ok(work(never, NULL, &counts, &err), &err);
    assert_int_equal(counts.n_lines, n_lines);
    assert_int_equal(counts.n_done, n_lines);
    assert_int_equal(counts.n_live, 0);
}

static int compare_lines(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The results, sorted; the file is given back cut into lines. */
static char **sorted_results(mr_text_buf *file, int n) {
    char **lines = mr_alloc_array((size_t)n, sizeof *lines);
    int at = 0;
    assert_non_null(lines);
    *file = read_file(out_path);
    assert_true(file->len > 0 && file->data[file->len - 1] == '\n');
    for (char *next = file->data; *next; at++) {
        assert_true(at < n);
        lines[at] = next;
        next = strchr(next, '\n');
        *next++ = 0;
    }
    assert_int_equal(at, n);
    qsort(lines, (size_t)n, sizeof *lines, compare_lines);
    return lines;
}

static void check_result(const json_t *result, int number) {
    char want[40];
    snprintf(want, sizeof want, number % 10 == 3 ? "line-%d" : "r%d", number % 10 == 3 ? number + 1 : number);
    const json_t *response = json_object_get(result, "response"), *error = json_object_get(result, "error");
    assert_string_equal(json_string_value(json_object_get(result, "custom_id")), want);
    if (number % 50 == 7 || number % 50 == 8) {
        assert_true(json_is_null(response));
        assert_int_equal(json_integer_value(json_object_get(error, "line")), number + 1);
        assert_string_equal(json_string_value(json_object_get(error, "code")),
                            number % 50 == 7 ? "invalid_method" : "invalid_json_line");
        return;
    }
    const json_t *echo = json_object_get(json_object_get(response, "body"), "echo");
    assert_true(json_is_null(error));
    assert_int_equal(json_integer_value(json_object_get(response, "status_code")), number % 50 == 9 ? 400 : 200);
    assert_true(json_is_integer(json_object_get(echo, "seed")));
    assert_null(json_object_get(echo, "stream"));
    assert_int_equal(json_object_get(echo, "prompt") != NULL, number % 10 == 3);
}

static void check_results(int n) {
    mr_text_buf file;
    char **lines = sorted_results(&file, n);
    bool *seen = mr_alloc_array((size_t)n, sizeof *seen);
    assert_non_null(seen);
    for (int i = 0; i < n; i++) {
        int number = 0;
        json_t *result = json_loads(lines[i], 0, NULL);
        assert_non_null(result);
        assert_int_equal(sscanf(lines[i], "{\"id\": \"batch_req_%d_", &number), 1);
        assert_true(number >= 1 && number <= n && !seen[number - 1]);
        seen[number - 1] = true;
        check_result(result, number - 1);
        json_decref(result);
    }
    mr_free(seen);
    mr_free(lines);
    mr_text_buf_deinit(&file);
}

static void test_run(void **state) {
    (void)state;
    enum { N = 500 };
    mr_text_buf text = make_input(N);
    write_file(in_path, text.data, text.len);
    unlink(out_path);
    fake_api_start(0, 50);
    work_to_the_end(N);
    assert_true(fake_api_max_live() <= 32 && fake_api_max_live() > 1);
    check_results(N);
    int n_calls = fake_api_n_calls();
    work_to_the_end(N); /* no request is left */
    assert_int_equal(fake_api_n_calls(), n_calls);
    fake_api_stop();
    mr_text_buf_deinit(&text);
}

static void test_run_of_prompts(void **state) {
    (void)state;
    static const char PROMPTS[] = "one\n\n\"t\\u0077o\"\n{three}\n{\"custom_id\": \"four\"}\n";
    mr_text_buf file;
    write_file(in_path, PROMPTS, sizeof PROMPTS - 1);
    unlink(out_path);
    fake_api_start(0, NEVER_BUSY);
    work_to_the_end(4);
    fake_api_stop();
    char **lines = sorted_results(&file, 4); /* sorted by the number in the id */
    static const char *const WANT[] = {"\"prompt\":\"one\"", "\"prompt\":\"two\"", "\"prompt\":\"{three}\"",
                                       "line 5 is a request, but the file begins with a prompt"};
    for (int i = 0; i < 4; i++)
        if (!strstr(lines[i], WANT[i]))
            fail_msg("%s is not in: %s", WANT[i], lines[i]);
    mr_free(lines);
    mr_text_buf_deinit(&file);
}

/* The file of results cut anywhere: the rest comes again, and all results are the same. */
static void test_torn_results(void **state) {
    (void)state;
    enum { N = 60 };
    mr_text_buf text = make_input(N), whole, file;
    write_file(in_path, text.data, text.len);
    unlink(out_path);
    fake_api_start(0, NEVER_BUSY);
    work_to_the_end(N);
    char **want = sorted_results(&whole, N);
    mr_text_buf all = read_file(out_path);
    for (size_t cut = 0; cut <= all.len; cut += cut < 300 ? 3 : 197) {
        write_file(out_path, all.data, cut);
        if (cut % 5 == 0) { /* a write that did not reach the disk leaves zeros */
            FILE *f = fopen(out_path, "ab");
            assert_non_null(f);
            assert_int_equal(fwrite("\0\0\0\n\0", 1, cut ? 5 : 0, f), cut ? 5 : 0);
            fclose(f);
        }
        work_to_the_end(N);
        char **got = sorted_results(&file, N);
        for (int i = 0; i < N; i++)
            assert_string_equal(got[i], want[i]);
        mr_free(got);
        mr_text_buf_deinit(&file);
    }
    fake_api_stop();
    mr_free(want);
    mr_text_buf_deinit(&whole);
    mr_text_buf_deinit(&all);
    mr_text_buf_deinit(&text);
}

static void expect_refused(const char *words) {
    mr_batch_counts counts;
    mr_err err = {0};
    mr_text_buf before = read_file(out_path);
    assert_int_not_equal(work(never, NULL, &counts, &err), MR_OK);
    mr_text_buf after = read_file(out_path);
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.data, after.data, after.len);
    expect_says(err.text, words);
    mr_text_buf_deinit(&before);
    mr_text_buf_deinit(&after);
}

static void test_foreign_results(void **state) {
    (void)state;
    mr_text_buf text = make_input(20);
    write_file(in_path, text.data, text.len);
    unlink(out_path);
    fake_api_start(0, NEVER_BUSY);
    work_to_the_end(20);
    mr_text_buf results = read_file(out_path);
    size_t first = strcspn(results.data, "\n") + 1;
    assert_true(mr_text_buf_append(&results, results.data, first));
    write_file(out_path, results.data, results.len);
    expect_refused("before");
    text.data[5] = 'X';
    write_file(in_path, text.data, text.len);
    write_file(out_path, results.data, results.len - first);
    expect_refused("another input");
    text.data[5] = 's';
    write_file(in_path, text.data, text.len);
    results.data[first + first / 2] ^= 1;
    write_file(out_path, results.data, results.len - first);
    expect_refused("line 2: its checksum does not fit");
    results.data[first + first / 2] ^= 1;
    write_file(out_path, "my notes\n", 9);
    expect_refused("no result");
    write_file(out_path, "my notes", 8);
    expect_refused("no result");
    write_file(out_path,
               "\0\0\0\x18"
               "ftypmp42",
               12); /* a film */
    expect_refused("no result");
    write_file(out_path, "\0\0\0", 3); /* as after a crash */
    work_to_the_end(20);
    unlink(out_path);
    mr_batch_input in;
    mr_batch_results held;
    mr_err err;
    expect_ok(mr_batch_input_open(in_path, &in, &err), &err);
    expect_ok(mr_batch_results_open(out_path, &in, &held, &err), &err);
    expect_refused("another program");
    mr_batch_results_close(&held);
    mr_batch_input_close(&in);
    fake_api_stop();
    mr_text_buf_deinit(&results);
    mr_text_buf_deinit(&text);
}

/* A disk that is full for a while: what was written in part is not written again. */
static void test_full_disk(void **state) {
    (void)state;
    enum { N = 300 };
    mr_text_buf text = make_input(N);
    mr_batch_input in;
    mr_batch_results results;
    mr_err err;
    write_file(in_path, text.data, text.len);
    unlink(out_path);
    expect_ok(mr_batch_input_open(in_path, &in, &err), &err);
    expect_ok(mr_batch_results_open(out_path, &in, &results, &err), &err);
    struct rlimit before, full;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    full = before;
    full.rlim_cur = 5000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
    for (uint32_t i = 0; i < in.n; i++)
        expect_ok(batch_results_add(&results, &in, &in.lines[i], 200, mr_str_from("{}"), &err), &err);
    mr_status failed = batch_results_sync(&results, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(failed, MR_E_IO);
    expect_ok(batch_results_sync(&results, &err), &err);
    mr_batch_results_close(&results);
    mr_batch_input_close(&in);
    expect_ok(mr_batch_input_open(in_path, &in, &err), &err);
    expect_ok(mr_batch_results_open(out_path, &in, &results, &err), &err);
    assert_int_equal(results.n_found, N);
    assert_int_equal(results.n_cut_bytes, 0);
    mr_batch_results_close(&results);
    mr_batch_input_close(&in);
    mr_text_buf_deinit(&text);
}

static bool after_some(void *ctx) {
    return (*(int *)ctx)-- <= 0;
}

static void test_stop(void **state) {
    (void)state;
    enum { N = 300 };
    mr_text_buf text = make_input(N);
    write_file(in_path, text.data, text.len);
    unlink(out_path);
    fake_api_start(200, 99);
    int n_stops = 0;
    for (mr_status status = MR_E_CANCELLED; status != MR_OK; n_stops++) {
        mr_batch_counts counts;
        mr_err err = {0};
        int turns = 8;
        assert_true(n_stops < 200);
        status = work(after_some, &turns, &counts, &err);
        assert_true(status == MR_OK || status == MR_E_CANCELLED);
    }
    assert_true(n_stops > 2);
    check_results(N);
    /* If the service fails, finished results stay, and the other requests get no result. */
    static const char FAILS[] = "tell me\nfail now\n";
    write_file(in_path, FAILS, sizeof FAILS - 1);
    unlink(out_path);
    mr_batch_counts counts;
    mr_err err = {0};
    assert_int_equal(work(never, NULL, &counts, &err), MR_E_UNAVAILABLE);
    mr_text_buf left = read_file(out_path);
    assert_null(strstr(left.data, "fail"));
    mr_text_buf_deinit(&left);
    fake_api_stop();
    mr_text_buf_deinit(&text);
}

static bool count_looks(void *ctx) {
    int *n_looks = ctx;
    (*n_looks)++;
    return true;
}

/* A batch whose lines are all wrong is read to its end before it is refused: a stop does not wait for that. */
static void test_stop_while_lines_are_checked(void **state) {
    (void)state;
    static const char LINE[] = "{\"custom_id\": \"%d\", \"url\": \"/v1/embeddings\", \"body\": {}}\n";
    enum { N = 5000 };
    mr_text_buf text = {0};
    mr_batch_input in;
    batch_request refused;
    uint32_t line;
    int n_looks = 0;
    mr_err err = {0};
    for (int i = 0; i < N; i++) {
        char one[sizeof LINE + 10];
        int n = snprintf(one, sizeof one, LINE, i);
        assert_true(mr_text_buf_append(&text, one, (size_t)n));
    }
    open_input(text.data, &in);
    mr_batch_config config = {.input = &in, .url = "/v1/completions"};
    expect_ok(batch_request_refuse_all(&config, &refused, &line, &err), &err);
    assert_string_equal(refused.code, "mismatched_url");
    assert_int_equal(line, 1);
    config.stops = count_looks;
    config.ctx = &n_looks;
    expect_ok(batch_request_refuse_all(&config, &refused, &line, &err), &err);
    assert_null(refused.code);
    assert_int_equal(n_looks, 1);
    mr_batch_input_close(&in);
    mr_text_buf_deinit(&text);
}

/* Must hold: 10,000 lines, killed ten times at random moments. */
static void test_kills(void **state) {
    (void)state;
    int n = 10000 / share_get(), n_killed = 0;
    mr_text_buf text = make_input(n);
    write_file(in_path, text.data, text.len);
    unlink(out_path);
    unsigned seed = (unsigned)getpid();
    printf("seed %u\n", seed);
    srand(seed);
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            mr_batch_counts counts;
            mr_err err;
            fake_api_start(60, 999);
            _exit(work(never, NULL, &counts, &err) != MR_OK);
        }
        usleep((useconds_t)(5000 + rand() % 60000));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        n_killed += WIFSIGNALED(status);
    }
    assert_true(n_killed > 0);
    fake_api_start(0, NEVER_BUSY);
    work_to_the_end(n);
    fake_api_stop();
    check_results(n);
    mr_text_buf_deinit(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kills), /* first, because the test forks and needs a process of one thread */
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_lines_of_prompts),
        cmocka_unit_test(test_run_of_prompts),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_run),
        cmocka_unit_test(test_torn_results),
        cmocka_unit_test(test_foreign_results),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stop_while_lines_are_checked),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
