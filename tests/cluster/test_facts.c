/* Ranks in the lobby measure themselves and their links. The tests check the form of the measurements, and the
 * events that end measuring. No test depends on how fast the machine is. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/lobby/facts.h"
#include "coordinator/session/local_facts.h"
#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "proto/channel_local.h"
#include "proto/facts_message.h"
#include "proto/link.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/test.h"
#include "worker/lobby/kept_facts.h"
#include "worker/lobby/lobby.h"

enum { MAX_RANKS = 4, MAX_REQUESTS = 1024, PATIENCE_S = 120 };

typedef struct rank {
    mr_lobby_config config;
    mr_thread *thread;
    bool abandoned;
    mr_status status;
    mr_err err;
} rank;

typedef struct rig {
    int32_t n;
    mr_local_hub *hub;
    mr_channel *channel; /* endpoint n, the channel of the coordinator */
    mr_roll_call *roll;
    rank ranks[MAX_RANKS];
    mr_facts facts;
    mr_err err;
    char cache[64];
} rig;

static int64_t in_s(int64_t s) {
    return mr_clock_now_ns() + s * MR_NS_PER_S;
}

static void run_lobby(void *ctx) {
    rank *k = ctx;
    k->status = mr_lobby_run(&k->config, &k->abandoned, &k->err);
    mr_channel_destroy(k->config.channel);
}

/* n ranks, of which `without` has no backend. */
static void rig_start(rig *r, const job_model *m, int32_t n, int32_t without) {
    const mr_err problem = {.status = MR_E_DEVICE, .text = "no backend"};
    *r = (rig){.n = n};
    strcpy(r->cache, "/tmp/millrace-test-XXXXXX");
    assert_non_null(mkdtemp(r->cache));
    alarm(PATIENCE_S);
    expect_ok(mr_local_hub_create(n + 1, MAX_REQUESTS, &r->hub, &r->err), &r->err);
    expect_ok(mr_local_channel_open(r->hub, n, &r->channel, &r->err), &r->err);
    expect_ok(mr_roll_call_create(r->channel, n, &r->roll, &r->err), &r->err);
    for (int32_t i = 0; i < n; i++) {
        rank *k = &r->ranks[i];
        k->config = (mr_lobby_config){.model_path = m->path, .cache_dir = r->cache, .coordinator = n, .n_threads = 1};
        expect_ok(mr_local_channel_open(r->hub, i, &k->config.channel, &r->err), &r->err);
        if (i == without)
            k->config.problem = &problem;
        else
            expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &k->config.backend, &r->err), &r->err);
        expect_ok(mr_thread_create("rank", 0, run_lobby, k, &k->thread, &r->err), &r->err);
    }
    expect_ok(mr_roll_call_wait(r->roll, in_s(PATIENCE_S), NULL, NULL, &r->err), &r->err);
    expect_ok(mr_facts_init(&r->facts, m->tiny->gguf, &m->tiny->info, n, &r->err), &r->err);
}

static void remove_cache(const rig *r) {
    char path[512];
    struct dirent *e;
    DIR *d = opendir(r->cache);
    while (d && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", r->cache, e->d_name);
        unlink(path);
    }
    closedir(d);
    rmdir(r->cache);
}

static void rig_stop(rig *r) {
    mr_roll_call_dismiss(r->roll, false, in_s(PATIENCE_S));
    for (int32_t i = 0; i < r->n; i++) {
        mr_thread_join(r->ranks[i].thread);
        expect_ok(r->ranks[i].status, &r->ranks[i].err);
        mr_backend_destroy(r->ranks[i].config.backend);
    }
    mr_roll_call_destroy(r->roll);
    mr_channel_destroy(r->channel);
    mr_local_hub_destroy(r->hub);
    mr_facts_deinit(&r->facts);
    remove_cache(r);
    alarm(0);
}

static mr_facts_wish the_wish(void) {
    return (mr_facts_wish){.kv_type = MR_TYPE_F16, .max_rows = 8};
}

static void expect_curve(const mr_step_times *t, bool is_layer) {
    assert_true(t->n >= 1);
    for (int32_t i = 0; i < t->n; i++) {
        assert_int_equal(t->rows[i], 1 << i);
        assert_true(isfinite(t->seconds[i]) && t->seconds[i] >= 0);
        assert_true(!is_layer || t->seconds[i] > 0);
    }
}

static void expect_facts(const rig *r, const job_model *m) {
    const mr_cluster_facts *f = &r->facts.view;
    assert_int_equal(f->n_ranks, r->n);
    assert_int_equal(f->n_layers, m->tiny->info.n_layers);
    assert_int_equal(f->n_kinds, 1);
    assert_int_equal(f->row_bytes, 4 * m->tiny->info.d_model);
    for (int32_t i = 0; i < r->n; i++) {
        const mr_rank_facts *k = &f->ranks[i];
        assert_string_equal(k->host, mr_roll_call_info(r->roll, i)->host);
        assert_int_equal(k->threads, 1);
        assert_true(k->memory_bytes > 0);
        expect_curve(&k->layer[0], true);
        expect_curve(&k->output, false);
        assert_int_equal(k->layer[1].n, 0);
        assert_true(k->step_s > 0 && isfinite(k->step_s));
        for (int32_t to = 0; to < r->n; to++) {
            const mr_link_facts *l = &f->links[i * r->n + to];
            assert_true(isfinite(l->latency_s) && l->latency_s >= 0 && isfinite(l->bytes_per_second));
            assert_true(l->bytes_per_second > 0);
            assert_true(i == to || (l->latency_s > 0 && l->bytes_per_second < 1e15));
        }
    }
}

static bool count_progress(void *ctx, const char *what, int32_t n_done, int32_t n) {
    assert_true(what[0] && n_done >= 0 && n_done < n);
    ++*(int *)ctx;
    return true;
}

static void test_measures(void **state) {
    const job_model *m = *state;
    rig r;
    int n_progress = 0;
    mr_facts_wish wish = the_wish();
    wish.progress = count_progress;
    wish.ctx = &n_progress;
    rig_start(&r, m, 4, -1);
    expect_ok(mr_facts_measure(&r.facts, r.roll, &wish, &r.err), &r.err);
    expect_facts(&r, m);
    assert_true(n_progress > 0);
    uint64_t share = r.facts.ranks[0].memory_bytes;
    assert_true(share <= mr_roll_call_info(r.roll, 0)->memory_bytes / 4);
    wish.memory_limit = 1000;
    expect_ok(mr_facts_measure(&r.facts, r.roll, &wish, &r.err), &r.err);
    expect_facts(&r, m);
    assert_int_equal(r.facts.ranks[3].memory_bytes, 1000);
    rig_stop(&r);
}

/* The file that a rank of this rig keeps. */
static uint64_t key_of(const rig *r, const job_model *m) {
    const mr_facts_wish wish = the_wish();
    const mr_measure_config c = {
        .gguf = m->tiny->gguf, .info = &m->tiny->info, .kv_type = (mr_type)wish.kv_type, .max_rows = wish.max_rows};
    return mr_kept_facts_key(&c, 1, r->n);
}

/* Kept facts are used if a sample confirms them. They are measured again if it does not, or if the user wants this. */
static void test_keeps(void **state) {
    const job_model *m = *state;
    rig r;
    mr_measured kept;
    mr_facts_wish wish = the_wish();
    rig_start(&r, m, 2, -1);
    uint64_t key = key_of(&r, m);
    assert_false(mr_kept_facts_read(r.cache, key, &kept));
    expect_ok(mr_facts_measure(&r.facts, r.roll, &wish, &r.err), &r.err);
    assert_true(mr_kept_facts_read(r.cache, key, &kept));
    assert_true(memcmp(&kept.layer[0], &r.facts.ranks[0].layer[0], sizeof kept.layer[0]) == 0 ||
                memcmp(&kept.layer[0], &r.facts.ranks[1].layer[0], sizeof kept.layer[0]) == 0);
    kept.sample_s = 1000; /* facts as of a much slower machine */
    kept.layer[0].seconds[0] = 1000;
    mr_kept_facts_write(r.cache, key, &kept);
    expect_ok(mr_facts_measure(&r.facts, r.roll, &wish, &r.err), &r.err);
    assert_true(r.facts.ranks[0].layer[0].seconds[0] < 1000 && r.facts.ranks[1].layer[0].seconds[0] < 1000);
    assert_true(mr_kept_facts_read(r.cache, key, &kept));
    assert_true(kept.sample_s < 1000);
    kept.layer[0].seconds[0] = 1000;
    mr_kept_facts_write(r.cache, key, &kept);
    wish.anew = true;
    expect_ok(mr_facts_measure(&r.facts, r.roll, &wish, &r.err), &r.err);
    assert_true(r.facts.ranks[0].layer[0].seconds[0] < 1000);
    rig_stop(&r);
}

/* The answers of the other ranks are still received, so that the roll call can be used again. */
static void test_a_rank_cannot(void **state) {
    const job_model *m = *state;
    rig r;
    mr_facts_wish wish = the_wish();
    rig_start(&r, m, 3, 1);
    expect_fails(mr_facts_measure(&r.facts, r.roll, &wish, &r.err), MR_E_NOT_FOUND, &r.err,
                 "endpoint 1: there is nothing to measure with");
    assert_true(r.facts.all_answered);
    assert_int_equal(mr_facts_measure(&r.facts, r.roll, &wish, &r.err), MR_E_NOT_FOUND);
    rig_stop(&r);
}

static bool give_up_later(void *ctx, const char *what, int32_t n_done, int32_t n) {
    (void)what, (void)n_done, (void)n;
    return --*(int *)ctx > 0;
}

static void test_given_up(void **state) {
    const job_model *m = *state;
    for (int patience = 1; patience <= 4; patience++) {
        rig r;
        int left = patience;
        mr_facts_wish wish = the_wish();
        wish.progress = give_up_later;
        wish.ctx = &left;
        rig_start(&r, m, 2, -1);
        assert_int_equal(mr_facts_measure(&r.facts, r.roll, &wish, &r.err), MR_E_CANCELLED);
        assert_false(r.facts.all_answered);
        rig_stop(&r); /* stops although the ranks are still measuring */
    }
}

/* --- Ranks that measure again ------------------------------------------------------------------------------------ */

static void hear_until(rig *r, int32_t i, bool (*is_done)(const mr_rank_info *info)) {
    expect_ok(mr_roll_call_hear(r->roll, i, &r->err), &r->err);
    while (!is_done(mr_roll_call_info(r->roll, i))) {
        expect_ok(mr_channel_wait(r->channel, in_s(1), &r->err), &r->err);
        expect_ok(mr_roll_call_hear(r->roll, i, &r->err), &r->err);
    }
}

static bool has_measured(const mr_rank_info *info) {
    return info->again.is_new;
}

static bool has_loaded(const mr_rank_info *info) {
    return info->held.is_new;
}

static bool has_answered(const mr_rank_info *info) {
    return info->answered == 1;
}

static void measure_again(rig *r, int32_t i) {
    const mr_again_wish wish = {.kv_type = MR_TYPE_F16, .max_rows = 8};
    expect_ok(mr_roll_call_measure_again(r->roll, i, &wish, &r->err), &r->err);
    assert_true(mr_roll_call_info(r->roll, i)->again.is_due);
}

static void expect_measured(rig *r, int32_t i, mr_status status) {
    mr_rank_again again;
    hear_until(r, i, has_measured);
    assert_true(mr_roll_call_take_again(r->roll, i, &again));
    assert_false(again.is_due);
    assert_int_equal(again.status, status);
    assert_false(mr_roll_call_take_again(r->roll, i, &again));
    if (status != MR_OK)
        return;
    assert_int_equal(again.layer.n, 2);
    assert_int_equal(again.layer.rows[1], 4);
    assert_true(again.layer.seconds[0] > 0 && again.layer.seconds[1] > 0);
}

static mr_rank_held load(rig *r, const job_model *m) {
    const mr_plan_stage stage = {.first = 0, .last = m->tiny->info.n_layers};
    mr_rank_held held;
    expect_ok(mr_roll_call_prepare(r->roll, 0, &(mr_prepare_order){.n_stages = 1, .stages = &stage}, &r->err), &r->err);
    assert_true(mr_roll_call_info(r->roll, 0)->held.is_due);
    hear_until(r, 0, has_loaded);
    assert_true(mr_roll_call_take_held(r->roll, 0, &held) && held.status == MR_OK && held.bytes > 0);
    assert_false(held.is_due);
    return held;
}

/* The weights that a spare holds stay. */
static void test_measures_again(void **state) {
    const job_model *m = *state;
    rig r;
    rig_start(&r, m, 2, 1);
    measure_again(&r, 1);
    expect_measured(&r, 1, MR_E_NOT_FOUND);
    mr_rank_held held = load(&r, m);
    assert_true(held.loaded_bytes >= held.bytes);
    measure_again(&r, 0);
    expect_measured(&r, 0, MR_OK);
    held = load(&r, m);
    assert_true(held.loaded_bytes < held.bytes / 2); /* constants, which no store keeps */
    rig_stop(&r);
}

/* Whatever comes, the rank answers it at once, and the coordinator knows that the measurement may have ended. */
static void test_ends_measuring_again(void **state) {
    const job_model *m = *state;
    int64_t ahead_ns;
    rig r;
    rig_start(&r, m, 1, -1);
    measure_again(&r, 0);
    expect_ok(mr_roll_call_compare_clocks(r.roll, 0, &ahead_ns, &r.err), &r.err);
    assert_false(mr_roll_call_info(r.roll, 0)->again.is_due);
    measure_again(&r, 0);
    (void)load(&r, m);
    assert_false(mr_roll_call_info(r.roll, 0)->again.is_due);
    measure_again(&r, 0);
    expect_ok(mr_roll_call_ask(r.roll, 0, 1, &r.err), &r.err);
    hear_until(&r, 0, has_answered);
    measure_again(&r, 0);
    expect_measured(&r, 0, MR_OK);
    measure_again(&r, 0);
    rig_stop(&r);
}

/* --- In one process ---------------------------------------------------------------------------------------------- */

/* The same test for the stages of one process. */
static void test_in_one_process(void **state) {
    const job_model *m = *state;
    rig r = {.n = 2};
    mr_local_cluster_config config = {.model_path = m->path, .n_stages = 2, .threads_per_stage = 1};
    mr_facts_wish wish = the_wish();
    wish.memory_limit = 3000;
    strcpy(r.cache, "/tmp/millrace-test-XXXXXX");
    assert_non_null(mkdtemp(r.cache));
    expect_ok(mr_facts_init(&r.facts, m->tiny->gguf, &m->tiny->info, 2, &r.err), &r.err);
    expect_ok(local_facts_measure(&config, r.cache, &wish, &r.facts, &r.err), &r.err);
    for (int32_t i = 0; i < 2; i++) {
        expect_curve(&r.facts.ranks[i].layer[0], true);
        assert_int_equal(r.facts.ranks[i].memory_bytes, 1500);
    }
    assert_true(r.facts.links[1].latency_s > 0);
    config.model_path = "/nowhere/model.gguf";
    assert_int_not_equal(local_facts_measure(&config, r.cache, &wish, &r.facts, &r.err), MR_OK);
    mr_facts_deinit(&r.facts);
    remove_cache(&r);
}

/* --- A rank that the test plays ---------------------------------------------------------------------------------- */

typedef struct liar {
    mr_channel *channel;
    mr_thread *thread;
    int32_t n_kinds;
    bool knows_nothing;
} liar;

/* Sends a hello, and answers each measure message. */
static void run_liar(void *ctx) {
    liar *k = ctx;
    mr_outbox *report = NULL;
    mr_inbox *control = NULL;
    mr_err err;
    bool sent;
    Millrace__Hello hello = MILLRACE__HELLO__INIT;
    Millrace__Report message = MILLRACE__REPORT__INIT;
    mr_measured m = {.n_kinds = k->n_kinds, .output = {.n = 1, .rows = {1}, .seconds = {1}}};
    mr_facts_message facts;
    expect_ok(mr_outbox_create(k->channel, 1, MR_LINK_REPORT, 0, 2, MR_MAX_HELLO_BYTES, &report, &err), &err);
    expect_ok(mr_inbox_create(k->channel, 1, MR_LINK_CONTROL, 0, 2, MR_MAX_LOBBY_BYTES, &control, &err), &err);
    message.body_case = MILLRACE__REPORT__BODY_HELLO;
    message.hello = &hello;
    expect_ok(mr_outbox_send_message(report, &message.base, &sent, &err), &err);
    for (int32_t i = 0; i < k->n_kinds; i++)
        m.layer[i] = m.output;
    mr_facts_message_fill(&facts, k->knows_nothing ? NULL : &m);
    message.body_case = MILLRACE__REPORT__BODY_FACTS;
    message.facts = &facts.message;
    for (;;) {
        mr_frame frame;
        const uint8_t *payload = NULL;
        mr_status status = mr_inbox_peek(control, &frame, &payload, &err);
        if (status == MR_OK && !payload)
            status = mr_channel_wait(k->channel, MR_NEVER, &err);
        if (status == MR_OK && payload)
            status = mr_inbox_release(control, &err);
        if (status == MR_OK && payload)
            status = mr_outbox_send_message(report, &message.base, &sent, &err);
        if (status != MR_OK)
            break; /* the coordinator has left */
    }
    mr_inbox_destroy(control);
    mr_outbox_destroy(report);
    mr_channel_destroy(k->channel);
}

static void expect_refused(const job_model *m, liar k, const char *words) {
    mr_local_hub *hub = NULL;
    mr_channel *channel = NULL;
    mr_roll_call *roll = NULL;
    mr_facts facts;
    mr_err err;
    const mr_facts_wish wish = the_wish();
    alarm(PATIENCE_S);
    expect_ok(mr_local_hub_create(2, MAX_REQUESTS, &hub, &err), &err);
    expect_ok(mr_local_channel_open(hub, 0, &k.channel, &err), &err);
    expect_ok(mr_local_channel_open(hub, 1, &channel, &err), &err);
    expect_ok(mr_roll_call_create(channel, 1, &roll, &err), &err);
    expect_ok(mr_thread_create("liar", 0, run_liar, &k, &k.thread, &err), &err);
    expect_ok(mr_roll_call_wait(roll, in_s(PATIENCE_S), NULL, NULL, &err), &err);
    expect_ok(mr_facts_init(&facts, m->tiny->gguf, &m->tiny->info, 1, &err), &err);
    assert_int_equal(mr_facts_measure(&facts, roll, &wish, &err), MR_E_PROTOCOL);
    expect_says(err.text, words);
    mr_facts_deinit(&facts);
    mr_roll_call_destroy(roll);
    mr_channel_destroy(channel);
    mr_thread_join(k.thread);
    mr_local_hub_destroy(hub);
    alarm(0);
}

static void test_lies(void **state) {
    const job_model *m = *state;
    expect_refused(m, (liar){.n_kinds = 2}, "endpoint 0: it has measured 2 kinds of layers, the model has 1");
    expect_refused(m, (liar){.knows_nothing = true}, "endpoint 0: it was to measure its layers, and has not");
    expect_refused(m, (liar){.n_kinds = 1}, "where report"); /* the coordinator expects a pong at that point */
}

int main(void) {
    static job_model model;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_measures, &model),
        cmocka_unit_test_prestate(test_keeps, &model),
        cmocka_unit_test_prestate(test_a_rank_cannot, &model),
        cmocka_unit_test_prestate(test_given_up, &model),
        cmocka_unit_test_prestate(test_in_one_process, &model),
        cmocka_unit_test_prestate(test_lies, &model),
        cmocka_unit_test_prestate(test_measures_again, &model),
        cmocka_unit_test_prestate(test_ends_measuring_again, &model),
    };
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
