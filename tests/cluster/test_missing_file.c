/* A job in which some ranks have no model file. The lobbies run in threads. Ranks without the file get their layers
 * from the other ranks and compute the same ids. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/lobby/facts.h"
#include "coordinator/lobby/roll_call.h"
#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "engine/gguf/gguf_digest.h"
#include "proto/channel_local.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/test.h"
#include "worker/lobby/lobby.h"

enum { N_RANKS = 4, N_STAGES = 3, MAX_REQUESTS = 1024, PATIENCE_S = 240, N_PROMPT = 3, MAX_TOKENS = 4 };

typedef struct rank {
    mr_lobby_config config;
    mr_thread *thread;
    mr_status status;
    mr_err err;
} rank;

typedef struct rig {
    mr_local_hub *hub;
    mr_channel *channel; /* endpoint N_RANKS, the channel of the coordinator */
    mr_roll_call *roll;
    rank ranks[N_RANKS];
    int32_t n_without;
    mr_err err;
    uint64_t fetched_bytes[N_STAGES]; /* bytes that each rank fetched for the last job */
} rig;

static job_model model;
static const char *copy_path; /* unless NULL: the last rank's file, which goes when that has said hello */
static char folder[] = "/tmp/millrace-missing-XXXXXX";

static void run_lobby(void *ctx) {
    rank *k = ctx;
    bool abandoned;
    k->status = mr_lobby_run(&k->config, &abandoned, &k->err);
    mr_channel_destroy(k->config.channel);
}

/* has: bits of the ranks that have the file. Each rank has a cache of its own, but those of one_cache, which share
 * one. */
static void rig_start(rig *r, unsigned has, bool one_cache) {
    static char caches[N_RANKS][128];
    *r = (rig){0};
    alarm(PATIENCE_S);
    expect_ok(mr_local_hub_create(N_RANKS + 1, MAX_REQUESTS, &r->hub, &r->err), &r->err);
    expect_ok(mr_local_channel_open(r->hub, N_RANKS, &r->channel, &r->err), &r->err);
    expect_ok(mr_roll_call_create(r->channel, N_RANKS, &r->roll, &r->err), &r->err);
    for (int32_t i = 0; i < N_RANKS; i++) {
        rank *k = &r->ranks[i];
        snprintf(caches[i], sizeof caches[i], "%s/cache%d", folder, one_cache ? N_RANKS : (int)i);
        k->config = (mr_lobby_config){.model_path = has >> i & 1 ? model.path : "/nowhere/model.gguf",
                                      .cache_dir = caches[i],
                                      .coordinator = N_RANKS,
                                      .n_threads = 1};
        if (copy_path && i == N_RANKS - 1)
            k->config.model_path = copy_path;
        expect_ok(mr_local_channel_open(r->hub, i, &k->config.channel, &r->err), &r->err);
        expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &k->config.backend, &r->err), &r->err);
        expect_ok(mr_thread_create("rank", 0, run_lobby, k, &k->thread, &r->err), &r->err);
    }
    expect_ok(mr_roll_call_wait(r->roll, mr_clock_now_ns() + PATIENCE_S * MR_NS_PER_S, NULL, NULL, &r->err), &r->err);
    expect_ok(mr_roll_call_check(r->roll, &r->err), &r->err);
    assert_int_equal(copy_path ? unlink(copy_path) : 0, 0);
    expect_ok(mr_roll_call_share_file(r->roll, &r->n_without, &r->err), &r->err);
}

static void rig_stop(rig *r) {
    mr_roll_call_dismiss(r->roll, false, mr_clock_now_ns() + PATIENCE_S * MR_NS_PER_S);
    for (int32_t i = 0; i < N_RANKS; i++) {
        mr_thread_join(r->ranks[i].thread);
        expect_ok(r->ranks[i].status, &r->ranks[i].err);
        mr_backend_destroy(r->ranks[i].config.backend);
    }
    mr_roll_call_destroy(r->roll);
    mr_channel_destroy(r->channel);
    mr_local_hub_destroy(r->hub);
    alarm(0);
}

static void drop_caches(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s/cache*", folder);
    assert_int_equal(system(command), 0);
}

static void run_sequence(mr_job *job, listener *l, mr_err *err) {
    int32_t prompt[N_PROMPT];
    int64_t sequence;
    job_prompt(3, N_PROMPT, model.tiny->info.vocab_size, prompt);
    mr_sequence_desc desc = job_sequence(3, l);
    desc.prompt_ids = prompt;
    desc.n_prompt = N_PROMPT;
    desc.max_tokens = MAX_TOKENS;
    expect_ok(mr_job_submit(job, &desc, &sequence, err), err);
    expect_ok(mr_job_run(job, err), err);
    assert_int_equal(l->n_ids, MAX_TOKENS);
}

static void plan_stages(int32_t first_cut, mr_plan *out) {
    mr_err err;
    const int32_t cut[] = {first_cut, 4};
    expect_ok(mr_plan_cut(model.tiny->gguf, &model.tiny->info, cut, 2, out, &err), &err);
}

static mr_status start_plan(rig *r, uint32_t epoch, const mr_plan *plan, bool map_weights, mr_job **out) {
    for (int32_t i = 0; i < N_STAGES; i++)
        expect_ok(mr_roll_call_start(r->roll, i, epoch, &r->err), &r->err);
    const mr_job_config config = {.info = &model.tiny->info,
                                  .epoch.plan = plan,
                                  .channel = r->channel,
                                  .epoch.number = epoch,
                                  .max_rows = 64,
                                  .max_out_rows = 64,
                                  .max_sequences = 4,
                                  .max_context = 64,
                                  .epoch.n_kv_blocks = 16,
                                  .kv_type = MR_TYPE_F16,
                                  .map_weights = map_weights};
    return mr_job_create(&config, out, &r->err);
}

/* Two layers, or first_cut, at the head. */
static mr_status start_job(rig *r, uint32_t epoch, int32_t first_cut, bool map_weights, mr_job **out) {
    mr_plan plan;
    plan_stages(first_cut, &plan);
    return start_plan(r, epoch, &plan, map_weights, out);
}

/* The ids of a run in one process that has the file. */
static const int32_t *ids_alone(void) {
    static listener alone;
    job_rig whole;
    mr_err err;
    if (alone.n_ids > 0)
        return alone.ids;
    expect_ok(job_rig_start(&whole, &(job_rig_config){.model = &model, .n_stages = 1}, &err), &err);
    run_sequence(whole.job, &alone, &err);
    job_rig_stop(&whole);
    return alone.ids;
}

/* Runs a job, whose ids are those of one process. */
static void expect_same_ids(rig *r, uint32_t epoch, int32_t first_cut, bool map_weights) {
    listener heard = {0};
    mr_job *job = NULL;
    expect_ok(start_job(r, epoch, first_cut, map_weights, &job), &r->err);
    run_sequence(job, &heard, &r->err);
    for (int32_t i = 0; i < N_STAGES; i++)
        r->fetched_bytes[i] = mr_job_stage_report(job, i)->fetched_bytes;
    mr_job_destroy(job);
    assert_memory_equal(heard.ids, ids_alone(), sizeof heard.ids);
}

/* Two of three stages get their layers and nothing else, from rank 0 or also from a rank that holds no stage; a second
 * start moves nothing. */
static void test_layers_come_from_others(void **state) {
    (void)state;
    size_t whole = mr_gguf_file_bytes(model.tiny->gguf);
    const unsigned has[] = {1u << 0, 1u << 0 | 1u << 3};
    for (int i = 0; i < 2; i++) {
        rig r;
        rig_start(&r, has[i], false);
        assert_int_equal(r.n_without, 3 - i);
        expect_same_ids(&r, 1, 2, false);
        assert_int_equal(r.fetched_bytes[0], 0);
        assert_true(r.fetched_bytes[1] > whole / 4 && r.fetched_bytes[1] < whole / 4 * 3);
        assert_true(r.fetched_bytes[2] > whole / 4 && r.fetched_bytes[2] < whole / 4 * 3);
        rig_stop(&r);
        rig_start(&r, has[i], false);
        expect_same_ids(&r, 1, 2, i > 0);
        assert_true(r.fetched_bytes[1] == 0 && r.fetched_bytes[2] == 0);
        rig_stop(&r);
        drop_caches();
    }
}

/* Another plan in the same lobby: ranks keep their blocks and fetch only the missing ones. */
static void test_another_plan(void **state) {
    (void)state;
    rig r;
    rig_start(&r, 1u << 0, false);
    expect_same_ids(&r, 1, 3, false);
    uint64_t first = r.fetched_bytes[1];
    expect_same_ids(&r, 2, 1, false);
    assert_true(r.fetched_bytes[1] > first);
    rig_stop(&r);
    drop_caches();
}

/* Ranks of one host, with one cache. */
static void test_shared_cache(void **state) {
    (void)state;
    rig r;
    rig_start(&r, 1u << 0, true);
    expect_same_ids(&r, 1, 2, false);
    rig_stop(&r);
    rig_start(&r, 1u << 0, true);
    expect_same_ids(&r, 1, 2, true);
    assert_true(r.fetched_bytes[1] == 0 && r.fetched_bytes[2] == 0);
    rig_stop(&r);
    drop_caches();
}

static void test_all_have_it(void **state) {
    (void)state;
    rig r;
    rig_start(&r, (1u << N_RANKS) - 1, false);
    assert_int_equal(r.n_without, 0);
    expect_same_ids(&r, 1, 2, false);
    rig_stop(&r);
    char path[128];
    snprintf(path, sizeof path, "%s/cache0", folder);
    assert_int_equal(access(path, F_OK), -1); /* no rank created a cache */
}

/* Ranks without the file are measured with its header alone. */
static void test_measured(void **state) {
    (void)state;
    rig r;
    mr_facts facts = {0};
    const mr_facts_wish wish = {.kv_type = MR_TYPE_F16, .max_rows = 1};
    char path[160];
    struct stat st;
    rig_start(&r, 1u << 0, false);
    expect_ok(mr_facts_init(&facts, model.tiny->gguf, &model.tiny->info, N_RANKS, &r.err), &r.err);
    expect_ok(mr_facts_measure(&facts, r.roll, &wish, &r.err), &r.err);
    for (int32_t i = 0; i < N_RANKS; i++)
        assert_true(facts.ranks[i].layer[0].n > 0 && facts.ranks[i].layer[0].seconds[0] > 0);
    snprintf(path, sizeof path, "%s/cache3/%016llx-%zu.gguf", folder,
             (unsigned long long)mr_gguf_digest(model.tiny->gguf), mr_gguf_file_bytes(model.tiny->gguf));
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_blocks * 512 <= 2 * MR_FILE_BLOCK_BYTES);
    mr_facts_deinit(&facts);
    expect_same_ids(&r, 1, 2, false);
    rig_stop(&r);
    drop_caches();
}

/* With experts, a rank without the file fetches the router, so that its times are those of a run. */
static void test_experts_measured(void **state) {
    (void)state;
    const job_model whole = model;
    tiny_desc desc = tiny_default("llama", MR_TYPE_F16);
    const mr_facts_wish wish = {.kv_type = MR_TYPE_F16, .max_rows = 1};
    mr_facts facts = {0};
    mr_gguf *cached = NULL;
    char path[160];
    rig r;
    desc.n_layers = 6;
    desc.d_model = 256;
    desc.n_ff = 1024;
    desc.n_experts = 8;
    desc.n_experts_used = 2;
    job_model_init(&model, tiny_model_write(&desc));
    rig_start(&r, 1u << 0, false);
    expect_ok(mr_facts_init(&facts, model.tiny->gguf, &model.tiny->info, N_RANKS, &r.err), &r.err);
    expect_ok(mr_facts_measure(&facts, r.roll, &wish, &r.err), &r.err);
    snprintf(path, sizeof path, "%s/cache3/%016llx-%zu.gguf", folder,
             (unsigned long long)mr_gguf_digest(model.tiny->gguf), mr_gguf_file_bytes(model.tiny->gguf));
    expect_ok(mr_gguf_open(path, &cached, &r.err), &r.err);
    int n = 0;
    for (int32_t i = 0; i < mr_gguf_n_tensors(cached); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(cached, i), *want = mr_gguf_tensor_at(model.tiny->gguf, i);
        if (!strstr(t->name, "ffn_gate_inp") && !strstr(t->name, "ffn_norm"))
            continue;
        assert_memory_equal(mr_gguf_file_data(cached) + t->offset, mr_gguf_file_data(model.tiny->gguf) + want->offset,
                            t->bytes);
        n++;
    }
    assert_int_equal(n, 2 * desc.n_layers);
    mr_gguf_close(cached);
    mr_facts_deinit(&facts);
    rig_stop(&r);
    job_model_deinit(&model);
    model = whole;
    drop_caches();
}

/* Stages that sleep need the header alone. */
static void test_synthetic(void **state) {
    (void)state;
    rig r;
    listener heard = {0};
    mr_plan plan;
    mr_job *job = NULL;
    rig_start(&r, 1u << 0, false);
    plan_stages(2, &plan);
    plan.synthetic = true;
    expect_ok(start_plan(&r, 1, &plan, false, &job), &r.err);
    run_sequence(job, &heard, &r.err);
    for (int32_t i = 1; i < N_STAGES; i++)
        assert_true(mr_job_stage_report(job, i)->fetched_bytes <=
                    mr_gguf_part_at(model.tiny->gguf, 0)->header_bytes + MR_FILE_BLOCK_BYTES);
    mr_job_destroy(job);
    rig_stop(&r);
    drop_caches();
}

/* A rank that reported the file and then cannot open it tells this to the ranks that ask for blocks. The other rank
 * gives all blocks. */
static void test_file_is_gone(void **state) {
    (void)state;
    rig r;
    char path[128], command[256];
    snprintf(path, sizeof path, "%s/copy.gguf", folder);
    snprintf(command, sizeof command, "cp %s %s", model.path, path);
    assert_int_equal(system(command), 0);
    copy_path = path;
    rig_start(&r, 1u << 0 | 1u << 3, false);
    copy_path = NULL;
    expect_same_ids(&r, 1, 2, false);
    assert_true(r.fetched_bytes[1] > 0 && r.fetched_bytes[2] > 0);
    rig_stop(&r);
    drop_caches();
}

/* If there is no place for the cache, the stage reports an error. */
static void test_no_cache(void **state) {
    (void)state;
    char path[128];
    rig r;
    mr_job *job = NULL;
    snprintf(path, sizeof path, "%s/cache1", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    rig_start(&r, 1u << 0, false);
    mr_facts facts = {0};
    const mr_facts_wish wish = {.kv_type = MR_TYPE_F16, .max_rows = 1};
    expect_ok(mr_facts_init(&facts, model.tiny->gguf, &model.tiny->info, N_RANKS, &r.err), &r.err);
    expect_fails(mr_facts_measure(&facts, r.roll, &wish, &r.err), MR_E_IO, &r.err, path);
    mr_facts_deinit(&facts);
    rig_stop(&r);
    rig_start(&r, 1u << 0, false);
    assert_int_equal(start_job(&r, 1, 2, false, &job), MR_E_IO);
    if (!strstr(r.err.text, "stage 1") || !strstr(r.err.text, path))
        fail_msg("%s", r.err.text);
    rig_stop(&r);
    drop_caches();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_come_from_others),
        cmocka_unit_test(test_another_plan),
        cmocka_unit_test(test_shared_cache),
        cmocka_unit_test(test_all_have_it),
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_no_cache),
        cmocka_unit_test(test_experts_measured),
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_file_is_gone),
    };
    tiny_desc desc = tiny_default("llama", MR_TYPE_F16);
    char command[128];
    desc.n_layers = 6;
    desc.d_model = 256;
    desc.n_ff = 1024; /* layers of two blocks */
    if (!mkdtemp(folder))
        return 1;
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return failed + (system(command) != 0);
}
