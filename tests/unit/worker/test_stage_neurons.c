/* Stages whose device holds the first partitions of neurons of its layers, and the CPU the others: the bits of the CPU
 * alone for any border, cut, ops of the device, threads, and rows of the steps. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/unit/worker/test_stage_chain.h"

enum { SEED = 12, VOCAB = 90, LENGTH = 28, PARTITIONS = 5 /* of each layer, the last one not full */ };

#define BIT(op) (1u << (op))

typedef float logits[CHAIN_SEQUENCES][LENGTH][VOCAB];

static chain_row row_at(int32_t sequence, int32_t position, logits out) {
    uint64_t draw = mr_rng_u64(SEED, (uint64_t)sequence, (uint64_t)position) >> 40;
    return (chain_row){sequence, position, (int32_t)(draw % VOCAB), out[sequence][position]};
}

/* Steps of 1 to 2 * 17 rows, with both sequences in each. With several threads, matrices of the CPU stay in the
 * file. */
static void run_on(const tiny_model *m, const mr_backends *devices, int32_t n_stages, int32_t n_threads, logits out) {
    bool is_mapped = n_threads > 1;
    static const int32_t SIZES[] = {17, 1, 2, 1, 6, 1};
    const chain_config config = {.n_stages = n_stages,
                                 .n_threads = n_threads,
                                 .kv_type = MR_TYPE_F16,
                                 .map_weights = is_mapped,
                                 .devices = *devices};
    chain *p = chain_create(m, &config);
    for (int32_t at = 0, i = 0; at < LENGTH; at += SIZES[i++]) {
        chain_row rows[CHAIN_MAX_ROWS];
        int32_t n = 0;
        for (int32_t k = 0; k < SIZES[i]; k++)
            for (int32_t s = 0; s < CHAIN_SEQUENCES; s++)
                rows[n++] = row_at(s, at + k, out);
        if (SIZES[i] > 1) {
            chain_step(p, rows, n);
            continue;
        }
        for (int32_t s = 0; s < n; s++)
            chain_step(p, &rows[s], 1);
    }
    chain_destroy(p);
}

static tiny_model *make_sparse(const char *arch, mr_type type, float threshold, logits want) {
    tiny_desc d = tiny_default(arch, type);
    d.n_layers = 4;
    d.vocab_size = VOCAB;
    d.n_ff = 256 * PARTITIONS - 100;
    d.n_predictor = 32;
    d.threshold = threshold;
    tiny_model *m = tiny_model_create(&d);
    memset(want, 0, sizeof(logits));
    run_on(m, &(mr_backends){.n = 0}, 1, 1, want);
    return m;
}

/* The last n_cold partitions of the layers on the device lie on the CPU. Returns the bytes that the device holds. */
static size_t check_cold(const tiny_model *m, const logits want, uint32_t ops, int32_t n_cold, int32_t n_stages) {
    static logits got;
    const test_device_options o = {.ops = ops, .seed = (uint64_t)(10 * n_cold + n_stages), .max_delay_us = 40};
    mr_backends devices = {.n = 1, .cold_partitions = {n_cold}};
    mr_err err = {0};
    expect_ok(test_device_create(&o, &devices.at[0], &err), &err);
    devices.whole_layers[0] = n_cold % 2 ? m->info.n_layers : 1;
    memset(got, 0, sizeof got);
    run_on(m, &devices, n_stages, 1 + n_cold % 3, got);
    if (memcmp(got, want, sizeof got) != 0)
        fail_msg("%s, ops %x, %d cold partitions, %d stages: other logits", m->info.arch, ops, n_cold, n_stages);
    const mr_weights_desc desc = {.gguf = m->gguf, .info = &m->info, .range = {0, m->info.n_layers}, .max_context = 32};
    mr_backend *cpu = NULL;
    mr_weights *ws = NULL;
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &cpu, &err), &err);
    devices.whole_layers[0] = m->info.n_layers;
    devices.at[devices.n++] = cpu;
    expect_ok(mr_weights_create(&desc, &devices, &ws, &err), &err);
    size_t bytes = mr_weights_bytes_on(ws, 0);
    mr_weights_destroy(ws);
    mr_backend_destroy(cpu);
    mr_backend_destroy(devices.at[0]);
    return bytes;
}

/* Any border between the device's neurons and the CPU's: the same bits, with ever fewer bytes on the device. */
static void test_hot_and_cold_neurons(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        mr_type type;
        float threshold;
    } cases[] = {{"bamboo", MR_TYPE_F16, 0.5f}, {"llama", MR_TYPE_Q8_0, -100.0f}, {"llama", MR_TYPE_Q4_0, 0.8f}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static logits want;
        tiny_model *m = make_sparse(cases[i].arch, cases[i].type, cases[i].threshold, want);
        size_t before = SIZE_MAX;
        for (int32_t n_cold = 0; n_cold <= PARTITIONS + 1; n_cold++) {
            size_t bytes = check_cold(m, want, TEST_DEVICE_ALL_OPS, n_cold, 1 + n_cold % 4);
            assert_true(n_cold > PARTITIONS ? bytes == before : bytes < before);
            before = bytes;
        }
        check_cold(m, want, TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_ACTIVE), 2, 1);
        check_cold(m, want, TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_AXPY), 3, 1);
        check_cold(m, want, TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_SPARSE_GATE_UP), 1, 2);
        check_cold(m, want, TEST_DEVICE_ALL_OPS & ~BIT(MR_OP_ADD), 1, 1);
        tiny_model_destroy(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hot_and_cold_neurons)};
    return cmocka_run_group_tests_name("stage_neurons", tests, NULL, NULL);
}
