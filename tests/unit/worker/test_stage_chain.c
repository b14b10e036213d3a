// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/worker/test_stage_chain.h"
#include "tests/support/isa_env.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/rng.h"

struct chain {
    chain_config config;
    const tiny_model *model;
    int32_t n_stages;
    mr_backend *backends[CHAIN_MAX_STAGES];
    mr_stage *stages[CHAIN_MAX_STAGES];
    mr_device_info device;
    int32_t blocks_each; /* KV blocks of each sequence */
    int32_t *blocks;     /* [CHAIN_SEQUENCES * blocks_each] KV block ids */
    int32_t slots[CHAIN_SEQUENCES];
    float *x; /* [CHAIN_MAX_ROWS, d_model] between stages */
};

bool chain_has_isa(const char *isa) {
    mr_backend *be = NULL;
    mr_device_info device;
    char *saved = isa_env_set(isa);
    assert_int_equal(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &be, NULL), MR_OK);
    be->ops->describe(be, &device);
    mr_backend_destroy(be);
    isa_env_restore(saved);
    return strstr(device.name, isa) != NULL;
}

static void shuffle(int32_t *v, int32_t n, uint64_t seed) {
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = (int32_t)(mr_rng_u64(seed, 1, (uint64_t)i) >> 33) % (i + 1), t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}

/* Deals the KV blocks and slots out. There is one block more than needed, so that a shuffle moves all. */
static void deal_blocks(chain *p) {
    int32_t n = CHAIN_SEQUENCES * p->blocks_each + 1;
    p->blocks = calloc((size_t)n, sizeof *p->blocks);
    assert_non_null(p->blocks);
    for (int32_t i = 0; i < n; i++)
        p->blocks[i] = i;
    for (int32_t s = 0; s < CHAIN_SEQUENCES; s++)
        p->slots[s] = s;
    if (p->config.shuffled) {
        shuffle(p->blocks, n, 3);
        for (int32_t s = 0; s < CHAIN_SEQUENCES; s++)
            p->slots[s] = CHAIN_SEQUENCES - s; /* in falling order, and one slot stays unused */
    }
}

static void create_stage(chain *p, int32_t idx, int32_t first, int32_t last) {
    mr_err err = {0};
    const mr_stage_config config = {
        .gguf = p->model->gguf,
        .info = &p->model->info,
        .range = {first, last},
        .max_rows = CHAIN_MAX_ROWS,
        .max_out_rows = CHAIN_MAX_ROWS,
        .max_sequences = CHAIN_SEQUENCES + 1,
        .max_context = p->config.max_context,
        .n_kv_blocks = CHAIN_SEQUENCES * p->blocks_each + 1,
        .kv_type = p->config.kv_type,
        .map_weights = p->config.map_weights,
        .counts_uses = p->config.counts_uses,
        .devices = p->config.devices,
        .expert_order = p->config.expert_order,
        .renews = p->config.renews,
        .notes_works = p->config.notes_works,
    };
    mr_cpu_options options = {.n_threads = p->config.n_threads};
    if (mr_cpu_backend_create(&options, &p->backends[idx], &err) != MR_OK)
        fail_msg("backend: %s", err.text);
    if (mr_stage_create(&config, p->backends[idx], NULL, NULL, &p->stages[idx], &err) != MR_OK)
        fail_msg("stage %d, layers %d to %d: %s", idx, first, last, err.text);
    for (int32_t s = 0; s < CHAIN_SEQUENCES; s++) {
        const int32_t *blocks = p->blocks + s * p->blocks_each;
        /* The blocks are sent in two messages, as the coordinator may do. */
        assert_int_equal(mr_stage_set_blocks(p->stages[idx], p->slots[s], 0, blocks, 1, NULL), MR_OK);
        assert_int_equal(mr_stage_set_blocks(p->stages[idx], p->slots[s], 1, blocks + 1, p->blocks_each - 1, NULL),
                         MR_OK);
    }
}

chain *chain_create(const tiny_model *model, const chain_config *config) {
    chain *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->config = *config;
    p->model = model;
    p->n_stages = config->n_stages;
    if (p->config.max_context == 0)
        p->config.max_context = model->info.context_length;
    p->blocks_each = (p->config.max_context + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    p->x = calloc((size_t)CHAIN_MAX_ROWS * (size_t)model->info.d_model, sizeof *p->x);
    assert_non_null(p->x);
    if (config->isa && !chain_has_isa(config->isa))
        fail_msg("this machine has no %s", config->isa);
    char *saved = config->isa ? isa_env_set(config->isa) : NULL;
    deal_blocks(p);
    int32_t n_layers = model->info.n_layers, first = 0;
    assert_true(p->n_stages <= n_layers && p->n_stages <= CHAIN_MAX_STAGES);
    for (int32_t i = 0; i < p->n_stages; i++) {
        int32_t n = n_layers / p->n_stages + (i < n_layers % p->n_stages);
        create_stage(p, i, first, first + n);
        first += n;
    }
    if (config->isa)
        isa_env_restore(saved);
    p->backends[0]->ops->describe(p->backends[0], &p->device);
    return p;
}

void chain_destroy(chain *p) {
    if (!p)
        return;
    for (int32_t i = 0; i < p->n_stages; i++) {
        mr_stage_destroy(p->stages[i]);
        mr_backend_destroy(p->backends[i]);
    }
    free(p->blocks);
    free(p->x);
    free(p);
}

const char *chain_device(const chain *p) {
    return p->device.name;
}

mr_stage *chain_stage(chain *p, int32_t idx) {
    return p->stages[idx];
}

static void fill_rows(const chain *p, mr_step_rows *to, const chain_row *rows, int32_t n) {
    to->n_rows = n;
    to->n_out = 0;
    for (int32_t r = 0; r < n; r++) {
        int32_t position = rows[r].position, s = rows[r].sequence;
        int32_t block = p->blocks[s * p->blocks_each + position / MR_KV_BLOCK];
        to->ids[r] = rows[r].id;
        to->positions[r] = position;
        to->slots[r] = block * MR_KV_BLOCK + position % MR_KV_BLOCK;
        to->row_seq[r] = p->slots[s];
        if (rows[r].logits)
            to->out_rows[to->n_out++] = r;
    }
}

void chain_copy_block(chain *p, int32_t from_sequence, int32_t to_sequence, int32_t idx) {
    for (int32_t i = 0; i < p->n_stages; i++)
        mr_stage_copy_block(p->stages[i], p->blocks[from_sequence * p->blocks_each + idx],
                            p->blocks[to_sequence * p->blocks_each + idx]);
}

void chain_step(chain *p, const chain_row *rows, int32_t n) {
    mr_err err = {0};
    assert_true(n <= CHAIN_MAX_ROWS);
    for (int32_t i = 0; i < p->n_stages; i++) {
        mr_stage *stage = p->stages[i];
        fill_rows(p, mr_stage_rows(stage), rows, n);
        const mr_stage_step step = {.x_in = i == 0 ? NULL : p->x, .x_out = i + 1 < p->n_stages ? p->x : NULL};
        if (mr_stage_run(stage, &step, &err) != MR_OK)
            fail_msg("stage %d: %s", i, err.text);
    }
    size_t row_bytes = (size_t)p->model->info.vocab_size * sizeof(float);
    for (int32_t r = 0, out = 0; r < n; r++)
        if (rows[r].logits)
            memcpy(rows[r].logits, mr_stage_logits(p->stages[p->n_stages - 1], out++), row_bytes);
    for (int32_t i = 0; i < p->n_stages; i++)
        if (mr_stage_renew_experts(p->stages[i], &err) != MR_OK)
            fail_msg("stage %d: %s", i, err.text);
}
