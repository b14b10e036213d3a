/* Whole layers on devices: for the models of tests/golden/arch, with experts and latent attention among them, any cut
 * of the layers over devices and the CPU gives the CPU's bits, for all types of keys and values, with prompts in chunks
 * and with KV blocks that are copied. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/support/share.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/unit/worker/test_stage_chain.h"

#define FOLDER MILLRACE_SOURCE_DIR "/tests/golden/arch/"

enum { SEED = 7, SHARED = 20, LENGTH = 36, CONTEXT = 48, MAX_VOCAB = 288, MAX_DEVICES = 2 };

static const char *const MODELS[] = {
    "deepseek2", "deepseek2-lite", "kimi-k2",       "dots1",        "ernie4_5-moe", "gemma3",
    "glm4moe",   "gpt-oss",        "gpt-oss-mxfp4", "granite-nope", "minimax-m2",   "phi3",
    "qwen2moe",  "smollm3",        "phi3-longrope", "olmo2",        "phi3-heads40", "deepseek2-heads34",
};
enum { N_MODELS = sizeof MODELS / sizeof *MODELS };

typedef float logits[CHAIN_SEQUENCES][LENGTH][MAX_VOCAB];

static uint64_t draw(uint64_t a, uint64_t b, uint64_t n) {
    return (mr_rng_u64(SEED, a, b) >> 33) % n;
}

static tiny_model *open_model(const char *name) {
    char path[512];
    snprintf(path, sizeof path, FOLDER "%s.gguf", name);
    tiny_model *m = tiny_model_open_path(path);
    assert_true(m->info.vocab_size <= MAX_VOCAB);
    return m;
}

/* --- Two sequences with a common beginning ----------------------------------------------------------------------- */

static int32_t id_at(int32_t sequence, int32_t position) {
    return (int32_t)draw(position < SHARED ? 0 : 10 + (uint64_t)sequence, (uint64_t)position, 250);
}

static int32_t add_rows(chain_row *rows, int32_t n, int32_t sequence, int32_t first, int32_t last, logits out) {
    for (int32_t i = first; i < last; i++)
        rows[n++] = (chain_row){sequence, i, id_at(sequence, i), out[sequence][i]};
    return n;
}

/* The first sequence runs ahead. The second one copies its blocks, or computes the beginning itself. */
static void run_tokens(chain *p, bool copies, int32_t chunk, logits out) {
    chain_row rows[CHAIN_MAX_ROWS];
    chain_step(p, rows, add_rows(rows, 0, 0, 0, SHARED, out));
    if (copies) {
        chain_copy_block(p, 0, 1, 0);
        chain_copy_block(p, 0, 1, 1);
        memcpy(out[1], out[0], SHARED * sizeof out[0][0]);
    }
    for (int32_t i = copies ? SHARED : 0, ahead = SHARED; i < LENGTH || ahead < LENGTH; i += chunk) {
        int32_t n = 0;
        if (ahead < LENGTH)
            n = add_rows(rows, n, 0, ahead, ahead + 1, out);
        n = add_rows(rows, n, 1, i, i + chunk < LENGTH ? i + chunk : LENGTH, out);
        chain_step(p, rows, n);
        ahead++;
    }
}

typedef struct setting {
    mr_type kv_type;
    int32_t n_stages, chunk, n_devices;
    int32_t whole_layers[MAX_DEVICES];
    uint32_t ops[MAX_DEVICES];
    bool copies, map;
} setting;

static void run_setting(const tiny_model *m, const setting *s, logits out) {
    mr_err err = {0};
    chain_config config = {.n_stages = s->n_stages,
                           .n_threads = 2,
                           .kv_type = s->kv_type,
                           .max_context = CONTEXT,
                           .map_weights = s->map,
                           .shuffled = true};
    config.devices.n = s->n_devices;
    for (int32_t i = 0; i < s->n_devices; i++) {
        test_device_options o = {.ops = s->ops[i], .seed = SEED + (uint64_t)i, .max_delay_us = 20};
        expect_ok(test_device_create(&o, &config.devices.at[i], &err), &err);
        config.devices.whole_layers[i] = s->whole_layers[i];
    }
    chain *p = chain_create(m, &config);
    uint64_t n_allocs = mr_mem_get_stats().n_allocs;
    memset(out, 0, sizeof(logits));
    run_tokens(p, s->copies, s->chunk, out);
    assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
    for (int32_t i = 0; i < s->n_devices; i++) /* a device works if it has layers and their ops */
        assert_true(test_device_get_stats(config.devices.at[i]).n_submits > 0 || s->whole_layers[i] == 0 ||
                    s->ops[i] != TEST_DEVICE_ALL_OPS);
    chain_destroy(p);
    for (int32_t i = 0; i < s->n_devices; i++)
        mr_backend_destroy(config.devices.at[i]);
}

static void expect_same(const tiny_model *m, const char *name, const setting *s, const logits want) {
    static logits got;
    run_setting(m, s, got);
    for (int32_t q = 0; q < CHAIN_SEQUENCES; q++)
        for (int32_t i = 0; i < LENGTH; i++)
            if (memcmp(got[q][i], want[q][i], sizeof got[q][i]) != 0)
                fail_msg("%s, keys %s, %d stages, %d devices with %d (ops %x) and %d (ops %x) layers, chunk %d: "
                         "sequence %d, position %d differs",
                         name, mr_type_name(s->kv_type), s->n_stages, s->n_devices, s->whole_layers[0], s->ops[0],
                         s->whole_layers[1], s->ops[1], s->chunk, q, i);
}

static bool fits_q8_0(const mr_model_info *info) {
    for (int32_t l = 0; l < info->n_layers; l++)
        if (mr_model_layer(info, l)->k_dim % 32 != 0 || mr_model_layer(info, l)->v_dim % 32 != 0)
            return false;
    return true;
}

/* --- Any mix ----------------------------------------------------------------------------------------------------- */

/* A setting by chance: cut, chunks, devices that do all or lack some ops. */
static setting draw_setting(const tiny_model *m, mr_type kv_type, uint64_t nr) {
    setting s = {.kv_type = kv_type, .n_stages = 1 + (int32_t)(nr % 2), .copies = true, .map = nr % 3 == 2};
    int32_t left = m->info.n_layers / s.n_stages;
    s.chunk = (int32_t[]){1, 5, LENGTH}[draw(1, nr, 3)];
    s.n_devices = 1 + (int32_t)draw(2, nr, MAX_DEVICES);
    for (int32_t i = 0; i < s.n_devices; i++) {
        s.whole_layers[i] = nr % 4 == 0 && i == 0 ? left : (int32_t)draw(3 + (uint64_t)i, nr, (uint64_t)left + 1);
        left -= s.whole_layers[i];
        s.ops[i] = TEST_DEVICE_ALL_OPS;
        if (draw(6, nr, 3) == 0)
            s.ops[i] &= ~((uint32_t)(mr_rng_u64(SEED, 7, nr) >> 20) & (uint32_t)(mr_rng_u64(SEED, 8, nr) >> 20));
    }
    return s;
}

static void test_any_mix_of_layers(void **state) {
    (void)state;
    static const mr_type kv_types[] = {MR_TYPE_F16, MR_TYPE_Q8_0, MR_TYPE_F32};
    static int count;
    static logits want, copied;
    for (uint64_t i = 0; i < N_MODELS; i++) {
        if (share_skips(&count))
            continue;
        tiny_model *m = open_model(MODELS[i]);
        for (uint64_t k = 0; k < 3; k++) {
            mr_type kv_type = kv_types[k] == MR_TYPE_Q8_0 && !fits_q8_0(&m->info) ? MR_TYPE_F16 : kv_types[k];
            setting alone = {.kv_type = kv_type, .n_stages = 1, .chunk = 4};
            run_setting(m, &alone, want);
            alone.copies = true;
            run_setting(m, &alone, copied);
            assert_memory_equal(copied, want, sizeof want); /* a copied block is as good as a computed one */
            for (uint64_t nr = 0; nr < (CHAIN_SANITIZED ? 1 : 3); nr++) {
                setting s = draw_setting(m, kv_type, (i * 3 + k) * 3 + nr);
                expect_same(m, MODELS[i], &s, want);
            }
        }
        tiny_model_destroy(m);
    }
}

/* Two devices in a row and the CPU: each device runs one program, and only its last rows come back. */
static void test_only_rows_cross_the_border(void **state) {
    (void)state;
    static const char *const names[] = {"deepseek2", "gpt-oss", "gemma3", "qwen2moe"};
    static logits out;
    for (int i = 0; i < 4; i++) {
        tiny_model *m = open_model(names[i]);
        chain_config config = {.n_stages = 1, .n_threads = 1, .kv_type = MR_TYPE_F16, .max_context = CONTEXT};
        mr_err err = {0};
        for (int32_t d = 0; d < MAX_DEVICES; d++) {
            test_device_options o = {.ops = TEST_DEVICE_ALL_OPS, .seed = 1};
            expect_ok(test_device_create(&o, &config.devices.at[config.devices.n++], &err), &err);
            config.devices.whole_layers[d] = 1;
        }
        assert_true(m->info.n_layers > MAX_DEVICES);
        chain *p = chain_create(m, &config);
        chain_row rows[3];
        for (int32_t position = 0; position < 6; position += 3) {
            for (int32_t d = 0; d < MAX_DEVICES; d++)
                test_device_reset(config.devices.at[d], 0);
            chain_step(p, rows, add_rows(rows, 0, 0, position, position + 3, out));
        }
        size_t row_bytes = mr_round_up((size_t)m->info.d_model * sizeof(float), 64);
        for (int32_t d = 0; d < MAX_DEVICES; d++) {
            test_device_stats stats = test_device_get_stats(config.devices.at[d]);
            assert_int_equal(stats.n_submits, 1);
            assert_int_equal(stats.n_gets, 1);
            assert_int_equal(stats.get_bytes, 3 * row_bytes);
        }
        chain_destroy(p);
        for (int32_t d = 0; d < MAX_DEVICES; d++)
            mr_backend_destroy(config.devices.at[d]);
        tiny_model_destroy(m);
    }
}

/* --- Loading ----------------------------------------------------------------------------------------------------- */

/* Embedding and output matrix go to the device in several parts, the last of which ends within a panel. */
static void test_large_tensors_are_loaded_in_parts(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_Q8_0};
    enum { VOCAB = 80013, ROWS = 4 };
    float *out = calloc(2 * ROWS * VOCAB, sizeof *out);
    assert_non_null(out);
    for (int t = 0; t < 2; t++) {
        tiny_desc d = tiny_default("llama", types[t]);
        d.vocab_size = VOCAB;
        d.tied_output = t == 1;
        tiny_model *m = tiny_model_create(&d);
        for (int on_device = 0; on_device < 2; on_device++) {
            test_device_options o = {.ops = TEST_DEVICE_ALL_OPS, .seed = 3, .max_delay_us = 200};
            chain_config config = {.n_stages = 1, .n_threads = 2, .kv_type = MR_TYPE_F16, .max_context = CONTEXT};
            mr_err err = {0};
            if (on_device)
                expect_ok(test_device_create(&o, &config.devices.at[0], &err), &err);
            config.devices.n = on_device;
            config.devices.whole_layers[0] = 2;
            chain *p = chain_create(m, &config);
            chain_row rows[ROWS];
            for (int32_t r = 0; r < ROWS; r++)
                rows[r] = (chain_row){0, r, r == 3 ? VOCAB - 1 : r * 26000, out + (on_device * ROWS + r) * VOCAB};
            chain_step(p, rows, ROWS);
            chain_destroy(p);
            if (!on_device)
                continue;
            test_device_stats stats = test_device_get_stats(config.devices.at[0]);
            assert_true(stats.n_loads > 2 * 7 + 1); /* more than the matrices */
            mr_backend_destroy(config.devices.at[0]);
        }
        assert_memory_equal(out, out + ROWS * VOCAB, ROWS * VOCAB * sizeof *out);
        tiny_model_destroy(m);
    }
    free(out);
}

/* --- Memory ------------------------------------------------------------------------------------------------------ */

static mr_stage_config config_for(const tiny_model *m) {
    return (mr_stage_config){.gguf = m->gguf,
                             .info = &m->info,
                             .range = {0, m->info.n_layers},
                             .max_rows = 8,
                             .max_out_rows = 2,
                             .max_sequences = 3,
                             .max_context = CONTEXT,
                             .n_kv_blocks = 9,
                             .kv_type = MR_TYPE_F16};
}

/* The sizes of a stage tell its memories apart: those of each device are what its buffers take. */
static void test_sizes_of_each_memory(void **state) {
    (void)state;
    tiny_model *m = open_model("gpt-oss");
    mr_backend *cpu = NULL;
    assert_int_equal(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &cpu, NULL), MR_OK);
    const uint32_t ops[MAX_DEVICES] = {1u << MR_OP_MATMUL, TEST_DEVICE_ALL_OPS & ~(1u << MR_OP_GLU)};
    mr_stage_config c = config_for(m);
    mr_stage_sizes measured, made;
    mr_stage *s = NULL;
    mr_err err = {0};
    for (int32_t i = 0; i < MAX_DEVICES; i++) {
        test_device_options o = {.ops = ops[i], .seed = 1};
        expect_ok(test_device_create(&o, &c.devices.at[c.devices.n++], &err), &err);
        c.devices.whole_layers[i] = 1;
    }
    size_t before = mr_mem_get_stats().live_bytes;
    expect_ok(mr_stage_measure(&c, cpu, &measured, &err), &err);
    assert_int_equal(mr_mem_get_stats().live_bytes, before);
    expect_ok(mr_stage_create(&c, cpu, NULL, NULL, &s, &err), &err);
    made = mr_stage_get_sizes(s);
    assert_memory_equal(&made, &measured, sizeof made);
    for (int32_t i = 0; i < c.devices.n; i++) {
        const mr_stage_bytes *b = &made.devices[i];
        assert_int_equal(b->weights + b->kv + b->tables + b->work, test_device_get_stats(c.devices.at[i]).live_bytes);
        assert_true(b->weights > 0 && b->work > 0);
        assert_true((b->kv > 0) == (i == 1) && (b->tables > 0) == (i == 1));
    }
    assert_true(made.work_bytes > 0 && made.kv_bytes > 0); /* the layer whose attention the first device refuses */
    mr_stage_destroy(s);
    for (int32_t i = 0; i < c.devices.n; i++)
        mr_backend_destroy(c.devices.at[i]);
    mr_backend_destroy(cpu);
    tiny_model_destroy(m);
}

/* A device needs exactly what was measured: with a byte less there is one clear error, and nothing is left. */
static void test_a_device_needs_what_was_measured(void **state) {
    (void)state;
    tiny_model *m = open_model("deepseek2");
    mr_backend *cpu = NULL;
    assert_int_equal(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &cpu, NULL), MR_OK);
    size_t past = 0;
    for (int32_t n = 0; n <= m->info.n_layers; n++) {
        mr_stage_config c = config_for(m);
        mr_stage_sizes sizes;
        mr_err err = {0};
        c.devices = (mr_backends){.n = 1, .whole_layers = {n}};
        for (int missing = 2; missing >= 0; missing--) {
            test_device_options o = {.ops = TEST_DEVICE_ALL_OPS, .seed = 5, .memory_bytes = past - (size_t)missing % 2};
            mr_stage *s = NULL;
            o.memory_bytes = missing == 2 ? 0 : o.memory_bytes;
            expect_ok(test_device_create(&o, &c.devices.at[0], &err), &err);
            mr_status status = mr_stage_create(&c, cpu, NULL, NULL, &s, &err);
            size_t live = test_device_get_stats(c.devices.at[0]).live_bytes;
            if (n == 0) { /* a device without layers needs nothing */
                expect_ok(status, &err);
                assert_int_equal(live, 0);
            } else if (missing == 2) { /* without a limit */
                expect_ok(mr_stage_measure(&c, cpu, &sizes, &err), &err);
                const mr_stage_bytes *b = &sizes.devices[0];
                assert_int_equal(b->weights + b->kv + b->tables + b->work, live);
                assert_true(live > past);
                past = live;
            } else if (missing == 1) {
                expect_fails(status, MR_E_NO_MEMORY, &err, "test device");
                assert_int_equal(live, 0);
            } else {
                expect_ok(status, &err);
                assert_int_equal(live, past);
            }
            mr_stage_destroy(s);
            mr_backend_destroy(c.devices.at[0]);
        }
    }
    mr_backend_destroy(cpu);
    tiny_model_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_mix_of_layers),
        cmocka_unit_test(test_only_rows_cross_the_border),
        cmocka_unit_test(test_large_tensors_are_loaded_in_parts),
        cmocka_unit_test(test_sizes_of_each_memory),
        cmocka_unit_test(test_a_device_needs_what_was_measured),
    };
    return cmocka_run_group_tests_name("stage_placement", tests, NULL, NULL);
}
