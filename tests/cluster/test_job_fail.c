/* Stages that cannot load their layers, and models whose logits are not finite. The error of the job names the stage
 * and the reason, and sequences that are not affected go on. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#include <unistd.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/test.h"

static job_model model;

/* Starts two stages that open path, and expects that stage fails with status and texts; bounded in time, nothing
 * left. */
static void expect_failure(const char *path, mr_status want, const char *stage, const char *cause) {
    job_rig rig;
    mr_err err;
    int n_threads = job_count_threads();
    int64_t start = mr_clock_now_ns();
    mr_status status = job_rig_start(&rig, &(job_rig_config){.model = &model, .stage_path = path, .n_stages = 2}, &err);
    assert_null(rig.job);
    job_rig_stop(&rig);
    if (status != want || err.status != want || !strstr(err.text, stage) || !strstr(err.text, cause))
        fail_msg("%s: \"%s\"; expected %s of %s: \"%s\"", mr_status_name(status), err.text, mr_status_name(want), stage,
                 cause);
    assert_true(mr_clock_now_ns() - start < 30 * MR_NS_PER_S); /* no wait without an end; ThreadSanitizer is slow */
    job_expect_threads(n_threads);
    assert_int_equal(mr_mem_get_stats().live_bytes, 0);
}

static void test_files_that_cannot_be_opened(void **state) {
    (void)state;
    char path[64];
    mr_gguf *g;
    mr_err err;
    size_t n = mr_gguf_file_bytes(model.tiny->gguf);
    job_save_bytes(path, mr_gguf_file_data(model.tiny->gguf), n * 2 / 3);
    assert_int_equal(mr_gguf_open(path, &g, &err), MR_E_FORMAT);
    /* Repeated, because the stages fail while the coordinator opens its links to them. */
    for (int i = 0; i < 8; i++)
        expect_failure(path, MR_E_FORMAT, "stage ", err.text);
    unlink(path);
    for (int i = 0; i < 8; i++)
        expect_failure(path, MR_E_NOT_FOUND, "stage ", path);
}

/* The file opens everywhere, and only the stage that holds the tensor finds it wanting. */
static void test_tensors_that_a_stage_refuses(void **state) {
    (void)state;
    const struct {
        tiny_edit edit;
        mr_status want;
        const char *stage;
    } cases[] = {
        {{"blk.3.ffn_up.weight", TINY_TYPE, MR_TYPE_Q8_1, 0, 0}, MR_E_UNSUPPORTED, "stage 1 (layers "},
        {{"blk.0.attn_q.weight", TINY_TYPE, MR_TYPE_I16, 0, 0}, MR_E_UNSUPPORTED, "stage 0 (layers "},
        {{"blk.0.attn_k.weight", TINY_LEAVE_OUT, 0, 0, 0}, MR_E_FORMAT, "stage 0 (layers "},
        {{"blk.3.ffn_down.weight", TINY_SHAPE, 0, 160, 32}, MR_E_FORMAT, "stage 1 (layers "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tiny_desc desc = job_model_desc();
        desc.edit = cases[i].edit;
        char path[64];
        size_t n;
        gguf_writer *w = tiny_model_write(&desc);
        const uint8_t *bytes = gguf_writer_bytes(w, &n);
        job_save_bytes(path, bytes, n);
        gguf_writer_destroy(w);
        expect_failure(path, cases[i].want, cases[i].stage, cases[i].edit.name);
        unlink(path);
    }
}

static void test_memory_budget(void **state) {
    (void)state;
    job_rig rig;
    listener l = {0};
    mr_err err;
    int32_t id = 1;
    int64_t sequence;
    mr_mem_set_budget(1);
    expect_failure(NULL, MR_E_NO_MEMORY, "stage ", "");
    mr_mem_set_budget(0);
    expect_ok(job_rig_start(&rig, &(job_rig_config){.model = &model, .n_stages = 2}, &err), &err);
    mr_sequence_desc desc = job_sequence(0, &l);
    desc.prompt_ids = &id;
    desc.n_prompt = 1;
    desc.max_tokens = 3;
    expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
    expect_ok(mr_job_run(rig.job, &err), &err);
    assert_int_equal(l.n_ids, 3);
    job_rig_stop(&rig);
}

/* --- Numbers that are none --------------------------------------------------------------------------------------- */

enum { POISON = 7, N_SEQUENCES = 12 };

/* A copy of the model in which rows [first, first + n) of a tensor are not numbers. */
static void make_poisoned(job_model *out, const char *tensor, int64_t first, int64_t n) {
    tiny_desc desc = job_model_desc();
    desc.type = MR_TYPE_F16;
    out->tiny = tiny_model_create(&desc);
    const mr_gguf_tensor *t = mr_gguf_find_tensor(out->tiny->gguf, tensor);
    assert_non_null(t);
    if (t->type == MR_TYPE_F32)
        for (int64_t i = first * t->ne[0]; i < (first + n) * t->ne[0]; i++)
            memcpy(out->tiny->bytes + t->offset + i * 4, "\x00\x00\xc0\x7f", 4);
    else
        for (int64_t i = first * t->ne[0]; i < (first + n) * t->ne[0]; i++)
            memcpy(out->tiny->bytes + t->offset + i * 2, "\x00\x7e", 2);
    job_save_bytes(out->path, out->tiny->bytes, mr_gguf_file_bytes(out->tiny->gguf));
}

static bool is_poisoned(int32_t number) {
    return number % 3 == 0;
}

static void submit(job_rig *rig, int32_t number, listener *l) {
    int32_t ids[20], n = 3 + number;
    int64_t sequence;
    mr_err err;
    *l = (listener){0};
    mr_sequence_desc desc = job_sequence(number, l);
    job_prompt(number, n, POISON, ids);
    if (is_poisoned(number))
        ids[number % n] = POISON;
    desc.prompt_ids = ids;
    desc.n_prompt = n;
    desc.max_tokens = 6;
    expect_ok(mr_job_submit(rig->job, &desc, &sequence, &err), &err);
}

static void run(job_rig *rig) {
    mr_err err;
    expect_ok(mr_job_run(rig->job, &err), &err);
    assert_int_equal(mr_ledger_n_free(rig->job->epoch.ledger), rig->job->epoch.config.n_kv_blocks);
}

/* The embedding of one id is not a number. The sequences with that id end. The other sequences generate the same ids as
 * alone, also in KV blocks that held such values before. */
static void test_some_sequences_fail(void **state) {
    (void)state;
    static listener clean[N_SEQUENCES], mixed[N_SEQUENCES];
    job_model poisoned;
    job_rig rig;
    mr_err err;
    make_poisoned(&poisoned, "token_embd.weight", POISON, 1);
    for (int32_t n_stages = 1; n_stages <= 2; n_stages++) {
        job_rig_config config = {.model = &poisoned, .n_stages = n_stages, .max_sequences = 3, .n_kv_blocks = 4};
        expect_ok(job_rig_start(&rig, &config, &err), &err);
        for (int32_t i = 0; i < N_SEQUENCES; i++)
            if (!is_poisoned(i))
                submit(&rig, i, &clean[i]);
        run(&rig);
        job_rig_stop(&rig);
        expect_ok(job_rig_start(&rig, &config, &err), &err);
        for (int32_t i = 0; i < N_SEQUENCES; i++)
            submit(&rig, i, &mixed[i]);
        run(&rig);
        job_rig_stop(&rig);
        for (int32_t i = 0; i < N_SEQUENCES; i++) {
            if (is_poisoned(i)) {
                assert_int_equal(mixed[i].finish, MR_FINISH_ERROR);
                assert_int_equal(mixed[i].status, MR_E_NUMERICS);
                assert_int_equal(mixed[i].n_ids, 0);
                expect_says(mixed[i].text, "not numbers");
                continue;
            }
            assert_int_equal(clean[i].finish, MR_FINISH_LENGTH);
            assert_int_equal(mixed[i].finish, MR_FINISH_LENGTH);
            assert_int_equal(mixed[i].n_ids, 6);
            assert_memory_equal(mixed[i].ids, clean[i].ids, sizeof clean[i].ids);
        }
    }
    job_model_deinit(&poisoned);
}

/* A norm of no numbers: every sequence fails, and the job does not. */
static void test_all_sequences_fail(void **state) {
    (void)state;
    listener l[N_SEQUENCES];
    job_model poisoned;
    job_rig rig;
    mr_err err;
    make_poisoned(&poisoned, "output_norm.weight", 0, 1);
    expect_ok(job_rig_start(&rig, &(job_rig_config){.model = &poisoned, .n_stages = 3}, &err), &err);
    for (int turn = 0; turn < 2; turn++) {
        for (int32_t i = 0; i < N_SEQUENCES; i++)
            submit(&rig, i, &l[i]);
        run(&rig);
        for (int32_t i = 0; i < N_SEQUENCES; i++) {
            assert_int_equal(l[i].finish, MR_FINISH_ERROR);
            assert_int_equal(l[i].status, MR_E_NUMERICS);
        }
    }
    job_rig_stop(&rig);
    job_model_deinit(&poisoned);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_that_cannot_be_opened),
        cmocka_unit_test(test_tensors_that_a_stage_refuses),
        cmocka_unit_test(test_memory_budget),
        cmocka_unit_test(test_some_sequences_fail),
        cmocka_unit_test(test_all_sequences_fail),
    };
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
