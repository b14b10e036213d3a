/* Stages whose layers lie on devices, on the CPU, or on both, in any mix: ids and logits are those of the CPU to the
 * last bit, while sequences come and go and the steps of a stage stand one behind the other on its device. The
 * vocabulary is so large that a device finds first tokens (op TOP); every fourth sequence is sampled from them. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "proto/channel_local.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "worker/worker.h"

enum {
    N_SEQUENCES = 14,
    N_LOGITS = 45,
    N_LAYERS = 4,
    MOST_STAGES = 4,
    MOST_DEVICES = 2,
    N_MIXES = 12,
    VOCAB = 2500,
    PARTITIONS = 4
};

static job_model model;

typedef struct stage {
    mr_channel *channel;
    int32_t coordinator;
    mr_backend *cpu;
    mr_devices devices;
    bool lacks_op[MOST_DEVICES]; /* the device does not run every op */
    mr_thread *thread;
    mr_status status;
    mr_err err;
} stage;

typedef struct cluster {
    mr_local_hub *hub;
    mr_channel *channel;
    stage stages[MOST_STAGES];
    mr_plan plan;
    mr_job *job;
} cluster;

typedef struct all_logits {
    float rows[N_LOGITS][VOCAB];
    int32_t n_rows;
} all_logits;

typedef struct results {
    listener heard[N_SEQUENCES];
    all_logits logits;
} results;

static void take_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits) {
    all_logits *l = ctx;
    assert_int_equal(first_position, l->n_rows);
    assert_true(n_rows <= N_LOGITS - l->n_rows);
    memcpy(l->rows[l->n_rows], logits, (size_t)n_rows * sizeof l->rows[0]);
    l->n_rows += n_rows;
}

static uint32_t draw(uint64_t mix, int32_t stage_idx, int32_t what, uint32_t limit) {
    return (uint32_t)(mr_rng_u64(21 + mix, (uint32_t)stage_idx, (uint64_t)what) >> 33) % limit;
}

/* Mix 0: none. Mixes 1 to 3: every stage is wholly on one device. Others: parts of a stage, and devices without some
 * ops. */
static void add_devices(stage *s, uint64_t mix, int32_t idx, int32_t n_layers) {
    mr_err err;
    int32_t n = mix == 0 ? 0 : mix <= 3 ? 1 : (int32_t)draw(mix, idx, 0, MOST_DEVICES + 1);
    for (int32_t i = 0; i < n; i++) {
        test_device_options o = {.ops = TEST_DEVICE_ALL_OPS, .seed = mix, .max_delay_us = (int32_t)(20 * (mix % 3))};
        s->lacks_op[i] = mix > 3 && draw(mix, idx, 10 + i, 3) == 0;
        if (s->lacks_op[i])
            o.ops &= ~(1u << draw(mix, idx, 20 + i, MR_OP_COUNT));
        expect_ok(test_device_create(&o, &s->devices.list.at[i], &err), &err);
        int32_t layers = mix <= 3 ? n_layers : (int32_t)draw(mix, idx, 30 + i, (uint32_t)n_layers + 1);
        s->devices.list.whole_layers[i] = layers;
        s->devices.list.cold_partitions[i] = (int32_t)draw(mix, idx, 40 + i, PARTITIONS + 1); /* of a sparse model */
        n_layers -= layers;
        s->devices.list.n++;
    }
}

static void work(void *ctx) {
    stage *s = ctx;
    const mr_worker_config config = {.model_path = model.path,
                                     .channel = s->channel,
                                     .coordinator = s->coordinator,
                                     .epoch = 1,
                                     .backend = s->cpu,
                                     .devices = &s->devices};
    s->status = mr_worker_run(&config, &s->err);
    mr_channel_destroy(s->channel);
}

static void cluster_start(cluster *c, int32_t n_stages, uint64_t mix) {
    mr_err err;
    *c = (cluster){0};
    expect_ok(mr_plan_balance(model.tiny->gguf, &model.tiny->info, n_stages, &c->plan, &err), &err);
    expect_ok(mr_local_hub_create(n_stages + 1, MR_LOCAL_CLUSTER_REQUESTS, &c->hub, &err), &err);
    expect_ok(mr_local_channel_open(c->hub, n_stages, &c->channel, &err), &err);
    for (int32_t i = 0; i < n_stages; i++) {
        stage *s = &c->stages[i];
        s->coordinator = n_stages;
        expect_ok(mr_local_channel_open(c->hub, i, &s->channel, &err), &err);
        expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &s->cpu, &err), &err);
        add_devices(s, mix, i, c->plan.stages[i].last - c->plan.stages[i].first);
        expect_ok(mr_thread_create("stage", 0, work, s, &s->thread, &err), &err);
    }
    const mr_job_config job = {.info = &model.tiny->info,
                               .epoch.plan = &c->plan,
                               .channel = c->channel,
                               .epoch.number = 1,
                               .max_rows = mix % 2 ? 16 : 64,
                               .max_out_rows = mix % 2 ? 16 : 64,
                               .max_sequences = 5, /* slots change hands */
                               .max_context = 64,
                               .epoch.n_kv_blocks = 20,
                               .kv_type = MR_TYPE_F16};
    expect_ok(mr_job_create(&job, &c->job, &err), &err);
}

static void cluster_stop(cluster *c) {
    mr_job_destroy(c->job);
    mr_channel_destroy(c->channel);
    for (int32_t i = 0; i < MOST_STAGES && c->stages[i].thread; i++) {
        stage *s = &c->stages[i];
        mr_thread_join(s->thread);
        if (s->status != MR_OK && s->status != MR_E_PEER_LOST)
            fail_msg("stage %d: %s", i, s->err.text);
        for (int32_t d = 0; d < s->devices.list.n; d++) {
            int n_submits = test_device_get_stats(s->devices.list.at[d]).n_submits;
            assert_true(n_submits > 0 || s->devices.list.whole_layers[d] == 0 || s->lacks_op[d]);
            mr_backend_destroy(s->devices.list.at[d]);
        }
        mr_backend_destroy(s->cpu);
    }
    mr_local_hub_destroy(c->hub);
}

/* Some sequences are stopped by the coordinator, while a step with their next row is under way. */
static void submit(mr_job *job, results *r, int32_t i) {
    int32_t ids[N_LOGITS];
    int64_t number;
    mr_err err;
    mr_sequence_desc desc = job_sequence(i, &r->heard[i]);
    desc.prompt_ids = ids;
    desc.n_prompt = i % 3 == 0 ? N_LOGITS : 1 + i * 7 % 20;
    desc.max_tokens = 4 + i * 5 % 12;
    r->heard[i].stop_after = i % 2 ? 3 : 0;
    if (i == N_SEQUENCES - 1) {
        desc.n_prompt = N_LOGITS;
        desc.max_tokens = 0;
        desc.on_logits = take_logits;
        desc.ctx = &r->logits;
    }
    job_prompt(i % 4, desc.n_prompt, VOCAB, ids); /* prompts share prefixes, so KV blocks are shared and copied */
    expect_ok(mr_job_submit(job, &desc, &number, &err), &err);
}

static void run(int32_t n_stages, uint64_t mix, results *out) {
    static cluster c;
    mr_err err;
    memset(out, 0, sizeof *out);
    cluster_start(&c, n_stages, mix);
    for (int32_t i = 0; i < N_SEQUENCES; i++)
        submit(c.job, out, i);
    if (mr_job_run(c.job, &err) != MR_OK)
        fail_msg("mix %d: %s", (int)mix, err.text);
    cluster_stop(&c);
}

static void check_mixes(const tiny_desc *d) {
    static results want, got;
    job_model_init(&model, tiny_model_write(d));
    run(1, 0, &want);
    assert_int_equal(want.logits.n_rows, N_LOGITS);
    for (uint64_t mix = 1; mix <= N_MIXES; mix++) {
        run(1 + (int32_t)(mix % MOST_STAGES), mix, &got);
        for (int32_t i = 0; i < N_SEQUENCES - 1; i++) {
            assert_int_equal(got.heard[i].n_ids, want.heard[i].n_ids);
            if (memcmp(got.heard[i].ids, want.heard[i].ids, (size_t)want.heard[i].n_ids * sizeof(int32_t)) != 0)
                fail_msg("mix %d: the ids of sequence %d differ", (int)mix, (int)i);
        }
        assert_int_equal(got.logits.n_rows, N_LOGITS);
        assert_memory_equal(&got.logits, &want.logits, sizeof want.logits);
    }
    job_model_deinit(&model);
}

static void test_any_mix_has_the_bits_of_the_cpu(void **state) {
    (void)state;
    tiny_desc d = job_model_desc();
    d.vocab_size = VOCAB;
    check_mixes(&d);
}

/* Devices leave some or all neurons of their layers to the CPU. */
static void test_any_mix_of_a_sparse_model(void **state) {
    (void)state;
    tiny_desc d = job_model_desc();
    d.vocab_size = VOCAB;
    d.n_ff = 256 * PARTITIONS - 50;
    d.n_predictor = 32;
    d.threshold = 0.3f;
    check_mixes(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_mix_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_any_mix_of_a_sparse_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
