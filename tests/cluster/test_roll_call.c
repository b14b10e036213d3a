/* tests/cluster/test_roll_call.c - the roll call against lobbies in threads, and against ranks that the test plays. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/lobby/roll_call.h"
#include "engine/base/clock.h"
#include "engine/base/numerics.h"
#include "engine/base/thread.h"
#include "proto/channel_local.h"
#include "proto/link.h"
#include "proto/messages.h"
#include "tests/cluster/test_job_support.h"
#include "tests/cluster/test_roll_call_hello.h"
#include "tests/support/test.h"
#include "worker/lobby/lobby.h"

enum { MAX_RANKS = 12, MAX_REQUESTS = 1024, PATIENCE_S = 30 };

static const mr_secret NO_SECRET = {.is_set = false}; /* what ranks have without a launch secret */

typedef struct rank {
    mr_channel *channel;
    /* The rank runs a lobby in a thread, ... */
    mr_lobby_config config;
    mr_thread *thread;
    mr_status status;
    mr_err err;
    /* ... or the test sends its messages. */
    mr_outbox *report;
    mr_inbox *control;
    bool abandoned;
} rank;

typedef struct rig {
    int32_t n;
    mr_local_hub *hub;
    mr_channel *channel; /* endpoint n, the channel of the coordinator */
    mr_roll_call *roll;
    rank ranks[MAX_RANKS];
    mr_err err;
} rig;

static int64_t in_ms(int64_t ms) {
    return mr_clock_now_ns() + ms * MR_NS_PER_MS;
}

static void rig_start(rig *r, int32_t n) {
    *r = (rig){.n = n};
    alarm(PATIENCE_S);
    expect_ok(mr_local_hub_create(n + 1, MAX_REQUESTS, &r->hub, &r->err), &r->err);
    expect_ok(mr_local_channel_open(r->hub, n, &r->channel, &r->err), &r->err);
    r->channel->secret = &NO_SECRET;
    for (int32_t i = 0; i < n; i++)
        expect_ok(mr_local_channel_open(r->hub, i, &r->ranks[i].channel, &r->err), &r->err);
    expect_ok(mr_roll_call_create(r->channel, n, &r->roll, &r->err), &r->err);
}

static void rig_stop(rig *r) {
    mr_roll_call_destroy(r->roll);
    mr_channel_destroy(r->channel);
    for (int32_t i = 0; i < r->n; i++) {
        rank *k = &r->ranks[i];
        mr_thread_join(k->thread);
        mr_backend_destroy(k->config.backend);
        mr_outbox_destroy(k->report);
        mr_inbox_destroy(k->control);
        if (!k->thread)
            mr_channel_destroy(k->channel);
    }
    mr_local_hub_destroy(r->hub);
    alarm(0);
}

/* --- Lobbies ----------------------------------------------------------------------------------------------------- */

static void run_lobby(void *ctx) {
    rank *k = ctx;
    k->status = mr_lobby_run(&k->config, &k->abandoned, &k->err);
    mr_channel_destroy(k->channel);
}

static void rank_run(rig *r, int32_t i, const char *model_path, const mr_err *problem) {
    rank *k = &r->ranks[i];
    k->config = (mr_lobby_config){
        .model_path = model_path, .channel = k->channel, .coordinator = r->n, .n_threads = 1, .problem = problem};
    if (!problem)
        expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &k->config.backend, &r->err), &r->err);
    expect_ok(mr_thread_create("rank", 0, run_lobby, k, &k->thread, &r->err), &r->err);
}

/* Tells all to end, and expects that they do. */
static void dismiss(rig *r) {
    mr_roll_call_dismiss(r->roll, false, in_ms(PATIENCE_S * 1000));
    for (int32_t i = 0; i < r->n; i++) {
        mr_thread_join(r->ranks[i].thread);
        r->ranks[i].thread = NULL;
        r->ranks[i].channel = NULL;
        expect_ok(r->ranks[i].status, &r->ranks[i].err);
    }
}

static void test_all_come_and_end(void **state) {
    const job_model *m = *state;
    rig r;
    rig_start(&r, 3);
    for (int32_t i = 0; i < r.n; i++)
        rank_run(&r, i, m->path, NULL);
    expect_ok(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r.err), &r.err);
    expect_ok(mr_roll_call_check(r.roll, &r.err), &r.err);
    for (int32_t i = 0; i < r.n; i++) {
        const mr_rank_info *info = mr_roll_call_info(r.roll, i);
        assert_true(info->here && info->host[0] && info->isa[0] && info->cores > 0 && info->memory_bytes > 0);
        assert_string_equal(info->version, MILLRACE_VERSION);
        assert_string_equal(info->model_path, m->path);
        assert_int_equal(info->numerics, MR_NUMERICS_VERSION);
        assert_int_equal(info->threads, 1);
        assert_int_equal(info->n_parts, 1);
        assert_int_equal(info->parts[0].bytes, mr_gguf_file_bytes(m->tiny->gguf));
        assert_int_equal(info->status, MR_OK);
    }
    for (int32_t i = 0; i < r.n; i++) { /* all ranks run on this host and read the same clock */
        int64_t ahead_ns = INT64_MAX;
        expect_ok(mr_roll_call_compare_clocks(r.roll, i, &ahead_ns, &r.err), &r.err);
        assert_true(ahead_ns > -10 * MR_NS_PER_S && ahead_ns < 10 * MR_NS_PER_S);
    }
    dismiss(&r);
    rig_stop(&r);
}

/* A real rank that cannot take part reports its problem. It can be told to end like the other ranks. */
static void test_problems(void **state) {
    const job_model *m = *state;
    rig r;
    mr_err problem = {0};
    (void)mr_err_set(&problem, MR_E_IO, "the model cannot be fetched");
    rig_start(&r, 3);
    rank_run(&r, 0, m->path, NULL);
    rank_run(&r, 1, NULL, &problem);
    rank_run(&r, 2, "/tmp", NULL);
    expect_ok(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r.err), &r.err);
    expect_fails(mr_roll_call_check(r.roll, &r.err), MR_E_IO, &r.err, "2 ranks cannot take part");
    expect_says(r.err.text, "endpoint 1: the model cannot be fetched");
    expect_says(mr_roll_call_info(r.roll, 2)->problem, "/tmp: this is a directory");
    dismiss(&r);
    rig_stop(&r);
}

/* --- Jobs -------------------------------------------------------------------------------------------------------- */

/* Two of three ranks take part in an epoch, in the order of the plan, and generate a few tokens. */
static void run_job(rig *r, const job_model *m, uint32_t epoch, const int32_t ranks[2], listener *l) {
    mr_plan plan;
    mr_job *job = NULL;
    int32_t prompt[5];
    int64_t sequence;
    expect_ok(mr_plan_balance(m->tiny->gguf, &m->tiny->info, 2, &plan, &r->err), &r->err);
    for (int32_t i = 0; i < 2; i++) {
        plan.stages[i].rank = ranks[i];
        expect_ok(mr_roll_call_start(r->roll, ranks[i], epoch, &r->err), &r->err);
    }
    mr_job_config config = {.info = &m->tiny->info,
                            .epoch.plan = &plan,
                            .channel = r->channel,
                            .epoch.number = epoch,
                            .max_rows = 64,
                            .max_out_rows = 64,
                            .max_sequences = 4,
                            .max_context = 64,
                            .epoch.n_kv_blocks = 16,
                            .kv_type = MR_TYPE_F16};
    expect_ok(mr_job_create(&config, &job, &r->err), &r->err);
    job_prompt(3, 5, m->tiny->info.vocab_size, prompt);
    mr_sequence_desc desc = job_sequence(3, l);
    desc.prompt_ids = prompt;
    desc.n_prompt = 5;
    desc.max_tokens = 7;
    expect_ok(mr_job_submit(job, &desc, &sequence, &r->err), &r->err);
    expect_ok(mr_job_run(job, &r->err), &r->err);
    assert_int_equal(l->finish, MR_FINISH_LENGTH);
    mr_job_destroy(job);
}

/* The first rank may be left out as well. */
static void test_takes_part_twice(void **state) {
    const job_model *m = *state;
    rig r;
    listener first = {0}, second = {0}, third = {0};
    rig_start(&r, 3);
    for (int32_t i = 0; i < r.n; i++)
        rank_run(&r, i, m->path, NULL);
    expect_ok(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r.err), &r.err);
    run_job(&r, m, 1, (int32_t[]){0, 1}, &first);
    run_job(&r, m, 2, (int32_t[]){2, 1}, &second);
    run_job(&r, m, 3, (int32_t[]){2, 0}, &third);
    assert_int_equal(first.n_ids, 7);
    assert_memory_equal(first.ids, second.ids, sizeof first.ids);
    assert_memory_equal(first.ids, third.ids, sizeof first.ids);
    dismiss(&r);
    rig_stop(&r);
}

/* --- Ranks that the test plays ----------------------------------------------------------------------------------- */

static void send_report(rig *r, int32_t i, const Millrace__Report *report) {
    rank *k = &r->ranks[i];
    uint8_t *payload = NULL;
    mr_frame frame = {0};
    size_t bytes = 0;
    if (!k->report)
        expect_ok(mr_outbox_create(k->channel, r->n, MR_LINK_REPORT, 0, 1, MR_MAX_HELLO_BYTES, &k->report, &r->err),
                  &r->err);
    expect_ok(mr_outbox_reserve(k->report, &payload, &r->err), &r->err);
    assert_non_null(payload);
    expect_ok(mr_msg_pack(&report->base, payload, MR_MAX_HELLO_BYTES, &bytes, &r->err), &r->err);
    frame.payload_bytes = bytes;
    expect_ok(mr_outbox_send(k->report, &frame, &r->err), &r->err);
}

static void say_hello(rig *r, int32_t i, void (*edit)(Millrace__Hello *)) {
    Millrace__Hello hello;
    Millrace__Report report = MILLRACE__REPORT__INIT;
    good_hello(&hello);
    if (edit)
        edit(&hello);
    report.body_case = MILLRACE__REPORT__BODY_HELLO;
    report.hello = &hello;
    send_report(r, i, &report);
}

static int32_t n_missed;
static char missed[256];

static bool note_missing(void *ctx, const char *ranks) {
    (void)ctx;
    n_missed++;
    snprintf(missed, sizeof missed, "%s", ranks);
    return true;
}

static bool give_up(void *ctx, const char *ranks) {
    (void)ctx;
    (void)ranks;
    return false;
}

static void test_one_is_missing(void **state) {
    (void)state;
    rig r;
    n_missed = 0;
    rig_start(&r, 3);
    say_hello(&r, 0, NULL);
    say_hello(&r, 2, NULL);
    expect_fails(mr_roll_call_wait(r.roll, in_ms(20), note_missing, NULL, &r.err), MR_E_TIMEOUT, &r.err,
                 "no word from endpoint 1;");
    assert_true(mr_roll_call_info(r.roll, 0)->here && !mr_roll_call_info(r.roll, 1)->here);
    assert_int_equal(mr_roll_call_wait(r.roll, in_ms(1200), note_missing, NULL, &r.err), MR_E_TIMEOUT);
    assert_true(n_missed >= 4); /* reported ten times a second */
    assert_string_equal(missed, "endpoint 1");
    assert_int_equal(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), give_up, NULL, &r.err), MR_E_CANCELLED);
    say_hello(&r, 1, NULL); /* a late hello is accepted */
    expect_ok(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r.err), &r.err);
    expect_ok(mr_roll_call_check(r.roll, &r.err), &r.err);
    rig_stop(&r);
}

static void test_many_are_missing(void **state) {
    (void)state;
    rig r;
    rig_start(&r, MAX_RANKS);
    say_hello(&r, 5, NULL);
    expect_fails(mr_roll_call_wait(r.roll, in_ms(10), NULL, NULL, &r.err), MR_E_TIMEOUT, &r.err,
                 "endpoint 4, endpoint 6");
    expect_says(r.err.text, "endpoint 8 and 3 more;");
    rig_stop(&r);
}

static void test_one_is_gone(void **state) {
    (void)state;
    rig r;
    rig_start(&r, 2);
    say_hello(&r, 0, NULL);
    mr_channel_destroy(r.ranks[1].channel);
    r.ranks[1].channel = NULL;
    expect_fails(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r.err), MR_E_PEER_LOST, &r.err,
                 "endpoint 1");
    mr_roll_call_dismiss(r.roll, false, in_ms(10)); /* the other rank does not answer */
    rig_stop(&r);
}

/* --- Refusals ---------------------------------------------------------------------------------------------------- */

static void other_version(Millrace__Hello *h) {
    h->version = (char *)(uintptr_t) "1.2.4";
    h->numerics = 2; /* the version is compared first */
    h->status = MR_E_IO;
}
static void other_numerics(Millrace__Hello *h) {
    h->numerics = 2;
    h->digest_bits[0] = 3;
}
static void a_problem(Millrace__Hello *h) {
    h->status = MR_E_FORMAT;
    h->text = (char *)(uintptr_t) "no GGUF file";
    h->n_parts = 0;
}
static void other_bits(Millrace__Hello *h) {
    h->digest_bits[0] = 0x1112;
}
static void other_bits_of_all(Millrace__Hello *h) {
    a_problem(h); /* the bits of the CPU are compared first */
    h->digest_bits[0] = h->digest_bits[1] = 0;
}
static void fewer_parts(Millrace__Hello *h) {
    h->n_digest_of = h->n_digest_bits = 1;
}
static void other_size(Millrace__Hello *h) {
    h->parts[0]->bytes = 1001;
    h->parts[0]->digest = 0;
}
static void no_file(Millrace__Hello *h) {
    h->n_parts = 0;
}
static void other_file(Millrace__Hello *h) {
    h->parts[0]->digest = 0x2223;
}

static void test_refusals(void **state) {
    (void)state;
    const struct {
        void (*edit)(Millrace__Hello *);
        mr_status status;
        const char *text;
    } cases[] = {
        {other_version, MR_E_UNSUPPORTED, "endpoint 1: it runs millrace 1.2.4, rank 0 runs 1.2.3"},
        {other_numerics, MR_E_UNSUPPORTED, "endpoint 1: it follows numerics 2, rank 0 numerics 1"},
        {a_problem, MR_E_FORMAT, "endpoint 1: no GGUF file"},
        {other_bits, MR_E_UNSUPPORTED,
         "endpoint 1: its CPU (avx2) computes other bits than that of rank 0 (avx2) in: matmul Q4_K; hint: another "
         "build, or a fault of its hardware"},
        {other_bits_of_all, MR_E_UNSUPPORTED, "in: matmul Q4_K, rope; hint"},
        {fewer_parts, MR_E_UNSUPPORTED, "endpoint 1: it says what its CPU computes in 1 parts, rank 0 in 2"},
        {other_size, MR_E_FORMAT,
         "endpoint 1: its model file /data/model.gguf has 1001 bytes, that of endpoint 0, /data/model.gguf, has 1000; "
         "hint: copy the same file to both, or remove the wrong one"},
        {other_file, MR_E_FORMAT,
         "endpoint 1: its model file /data/model.gguf is another one than that of endpoint 0, "
         "/data/model.gguf, with the same size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int n_bad = 1; n_bad <= 2; n_bad++) {
            rig r;
            rig_start(&r, 3);
            say_hello(&r, 0, NULL);
            say_hello(&r, 1, cases[i].edit);
            say_hello(&r, 2, n_bad == 2 ? cases[i].edit : NULL);
            expect_ok(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r.err), &r.err);
            assert_int_equal(mr_roll_call_check(r.roll, &r.err), cases[i].status);
            if (!strstr(r.err.text, cases[i].text) || !strstr(r.err.text, "2 ranks cannot") != (n_bad == 1))
                fail_msg("%s", r.err.text);
            rig_stop(&r);
        }
}

/* Rank 0 needs the file. The other ranks do not. */
static void test_no_file(void **state) {
    (void)state;
    for (int32_t i = 0; i < 2; i++) {
        rig r;
        rig_start(&r, 2);
        say_hello(&r, i, no_file);
        say_hello(&r, 1 - i, NULL);
        expect_ok(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r.err), &r.err);
        assert_int_equal(mr_roll_call_check(r.roll, &r.err), i == 0 ? MR_E_NOT_FOUND : MR_OK);
        if (i == 0 && !strstr(r.err.text, "endpoint 0: it has no model file /data/model.gguf; hint: rank 0 needs"))
            fail_msg("%s", r.err.text);
        rig_stop(&r);
    }
}

/* --- Models in parts --------------------------------------------------------------------------------------------- */

/* A rank with the parts of which a bit is set. */
static void has_parts(Millrace__Hello *h, unsigned bits) {
    static char path[] = "/data/m-00001-of-00003.gguf";
    h->model_path = path;
    h->n_parts = N_PARTS;
    for (int i = 0; i < N_PARTS; i++) {
        h->parts[i]->n_tensors = 50;
        if (!(bits >> i & 1))
            millrace__file_part__init(h->parts[i]);
    }
}
static void parts_0_1(Millrace__Hello *h) {
    has_parts(h, 1u << 0 | 1u << 1);
}
static void parts_1_2(Millrace__Hello *h) {
    has_parts(h, 1u << 1 | 1u << 2);
}
static void part_1(Millrace__Hello *h) {
    has_parts(h, 1u << 1);
}
static void other_part(Millrace__Hello *h) {
    parts_1_2(h);
    h->parts[1]->digest++;
}
static void part_of_another_model(Millrace__Hello *h) {
    parts_1_2(h);
    h->parts[2]->n_tensors = 40;
}

static void verified(Millrace__Hello *h) {
    static uint8_t roots[N_PARTS * MR_FILE_HASH_BYTES];
    has_parts(h, 7);
    roots[MR_FILE_HASH_BYTES] = 1;
    h->part_roots = (ProtobufCBinaryData){.len = sizeof roots, .data = roots};
}
static void other_bytes(Millrace__Hello *h) {
    verified(h);
    h->part_roots.data[MR_FILE_HASH_BYTES] ^= 1;
}

static void test_parts(void **state) {
    (void)state;
    const struct {
        void (*edits[2])(Millrace__Hello *);
        mr_status status;
        const char *text;
    } cases[] = {
        {{parts_0_1, parts_1_2}, MR_OK, ""},
        {{parts_0_1, part_1},
         MR_E_NOT_FOUND,
         "no rank has part 3 of the model's 3, /data/m-00001-of-00003.gguf; hint: "},
        {{parts_0_1, no_file}, MR_E_NOT_FOUND, "no rank has part 3"},
        {{parts_1_2, parts_0_1}, MR_E_NOT_FOUND, "endpoint 0: it has no model file"},
        {{parts_0_1, NULL}, MR_E_FORMAT, "endpoint 1: its model file /data/model.gguf is in 1 parts by its name"},
        {{parts_0_1, other_part},
         MR_E_FORMAT,
         "endpoint 1: part 2 of its model file /data/m-00001-of-00003.gguf is another"},
        {{parts_0_1, part_of_another_model},
         MR_E_FORMAT,
         "endpoint 1: part 3 of its model file /data/m-00001-of-00003.gguf says that the model has 40 tensors"},
        {{verified, verified}, MR_OK, ""},
        {{verified, no_file}, MR_OK, ""},
        {{verified, other_bytes}, MR_E_FORMAT, "endpoint 1: part 2 of its model file /data/m-00001-of-00003.gguf has "},
        {{verified, part_1}, MR_E_INVALID, "endpoint 1: it does not verify its model file, and endpoint 0 does; hint"},
        {{parts_0_1, verified}, MR_E_INVALID, "endpoint 1: it verifies its model file, and endpoint 0 does not; hint"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig r;
        rig_start(&r, 2);
        for (int32_t k = 0; k < 2; k++)
            say_hello(&r, k, cases[i].edits[k]);
        expect_ok(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r.err), &r.err);
        mr_status status = mr_roll_call_check(r.roll, &r.err);
        if (status != cases[i].status || (status != MR_OK && !strstr(r.err.text, cases[i].text)))
            fail_msg("case %zu: %s: %s", i, mr_status_name(status), status == MR_OK ? "" : r.err.text);
        rig_stop(&r);
    }
}

/* --- Strange hellos ---------------------------------------------------------------------------------------------- */

static void test_strange_texts(void **state) {
    (void)state;
    rig r;
    rig_start(&r, 3);
    say_hello(&r, 0, unknown_field);
    say_hello(&r, 1, long_texts);
    say_hello(&r, 2, ugly_texts);
    expect_ok(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r.err), &r.err);
    const mr_rank_info *info = mr_roll_call_info(r.roll, 0);
    assert_int_equal(info->parts[0].digest, 0x2222);
    info = mr_roll_call_info(r.roll, 1);
    assert_int_equal(strlen(info->version), sizeof info->version - 1);
    assert_int_equal(strlen(info->host), sizeof info->host - 1);
    assert_int_equal(strlen(info->isa), sizeof info->isa - 1);
    assert_int_equal(strlen(info->problem), sizeof info->problem - 1);
    assert_int_equal(strlen(info->model_path), sizeof info->model_path - 1);
    assert_string_equal(info->model_path + strlen(info->model_path) - 6, "a/file");
    info = mr_roll_call_info(r.roll, 2);
    assert_string_equal(info->host, "?[31mred??");
    assert_string_equal(info->model_path, "?");
    assert_string_equal(info->problem, "a?b");
    rig_stop(&r);
}

static void many_cores(Millrace__Hello *h) {
    h->cores = UINT32_MAX;
}
static void no_such_status(Millrace__Hello *h) {
    h->status = 999;
}

static void expect_refused(rig *r) {
    assert_int_equal(mr_roll_call_wait(r->roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r->err), MR_E_PROTOCOL);
    expect_says(r->err.text, "endpoint 1");
    rig_stop(r);
}

static void send_raw(rig *r, const void *bytes, size_t n) {
    mr_channel_request request;
    expect_ok(
        mr_channel_post_send(r->ranks[1].channel, r->n, mr_link_tag(MR_LINK_REPORT, 0), bytes, n, &request, &r->err),
        &r->err);
}

static void test_broken_hellos(void **state) {
    (void)state;
    static uint8_t bytes[2 * MR_MAX_HELLO_BYTES];
    void (*const edits[])(Millrace__Hello *) = {many_cores, no_such_status};
    const size_t lengths[] = {0, 1, 100, sizeof bytes};
    Millrace__Ready ready = MILLRACE__READY__INIT;
    Millrace__Report report = MILLRACE__REPORT__INIT;
    rig r;
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        rig_start(&r, 2);
        say_hello(&r, 1, edits[i]);
        expect_refused(&r);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        rig_start(&r, 2);
        send_raw(&r, bytes, lengths[i]);
        expect_refused(&r);
    }
    mr_frame frame = {.kind = MR_FRAME_REPORT, .payload_bytes = 3};
    memcpy(bytes + MR_FRAME_BYTES, "\xff\xff\xff", 3);
    mr_frame_seal(&frame, bytes);
    for (int i = 0; i < 2; i++) {
        rig_start(&r, 2);
        send_raw(&r, bytes, MR_FRAME_BYTES + 3);
        expect_refused(&r);
        bytes[MR_FRAME_BYTES] ^= 1; /* not what was sealed */
    }
    report.body_case = MILLRACE__REPORT__BODY_READY;
    report.ready = &ready;
    rig_start(&r, 2);
    send_report(&r, 1, &report);
    expect_refused(&r);
}

/* --- Orders to ranks that the test plays ------------------------------------------------------------------------- */

/* A rank that does not take its messages is not waited for beyond the deadline. */
static void test_orders_that_nobody_takes(void **state) {
    (void)state;
    rig r;
    rig_start(&r, 2);
    say_hello(&r, 0, NULL);
    say_hello(&r, 1, NULL);
    expect_ok(mr_roll_call_wait(r.roll, in_ms(PATIENCE_S * 1000), NULL, NULL, &r.err), &r.err);
    for (uint32_t epoch = 1; epoch <= MR_LOBBY_SLOTS; epoch++)
        expect_ok(mr_roll_call_start(r.roll, 0, epoch, &r.err), &r.err);
    expect_fails(mr_roll_call_start(r.roll, 0, 9, &r.err), MR_E_TIMEOUT, &r.err, "0 does not take its messages");
    int64_t start = mr_clock_now_ns();
    mr_roll_call_dismiss(r.roll, false, in_ms(30));
    assert_true(mr_clock_now_ns() < start + 20 * MR_NS_PER_S);
    rig_stop(&r);
}

int main(void) {
    static job_model model;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_all_come_and_end, &model),
        cmocka_unit_test_prestate(test_problems, &model),
        cmocka_unit_test_prestate(test_takes_part_twice, &model),
        cmocka_unit_test(test_one_is_missing),
        cmocka_unit_test(test_many_are_missing),
        cmocka_unit_test(test_one_is_gone),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_strange_texts),
        cmocka_unit_test(test_broken_hellos),
        cmocka_unit_test(test_orders_that_nobody_takes),
    };
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
