/* tests/unit/worker/test_stage_chain.h - a model cut into stages by hand: runs steps through them one after the
 * other and gives the logits. Threads: caller serialises. Errors:  fail the test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_UNIT_WORKER_TEST_STAGE_CHAIN_H
#define MR_TESTS_UNIT_WORKER_TEST_STAGE_CHAIN_H

#include "tests/support/sanitizers.h"
#include "tests/support/tiny_model.h"
#include "worker/stage/stage.h"

/* Whether this is a run under a sanitizer, which is slower and needs memory itself. */
#define CHAIN_SANITIZED (MR_TEST_ASAN || MR_TEST_TSAN)

enum { CHAIN_MAX_STAGES = 8, CHAIN_MAX_ROWS = 96, CHAIN_SEQUENCES = 2 };

typedef struct chain_config {
    int32_t n_stages;  /* layers are divided evenly; the first stages get one more */
    int32_t n_threads; /* threads of each stage */
    const char *isa;   /* NULL: the best instruction set that MILLRACE_CPU_ISA allows */
    mr_type kv_type;
    int32_t max_context;         /* 0: the context of the model */
    bool counts_uses;            /* of mr_stage_config */
    bool map_weights;            /* matrices stay mapped from the file */
    mr_backends devices;         /* backends of every stage, before its CPU backend; the caller owns them */
    const int32_t *expert_order; /* mr_stage_config.expert_order, with one stage */
    mr_expert_rules renews;      /* mr_stage_config.renews; each stage renews its experts after each step */
    bool notes_works;            /* mr_stage_config.notes_works */
    bool shuffled;               /* KV blocks and sequence slots in a random order */
} chain_config;

typedef struct chain chain;
chain *chain_create(const tiny_model *model, const chain_config *config);
void chain_destroy(chain *p);
/* The result of describe() of the first stage's backend. */
const char *chain_device(const chain *p);
mr_stage *chain_stage(chain *p, int32_t idx);

typedef struct chain_row {
    int32_t sequence, position, id;
    float *logits; /* [vocabulary]; NULL: no logits wanted */
} chain_row;
/* Runs the rows as one step through all stages. */
void chain_step(chain *p, const chain_row *rows, int32_t n);

/* In front of the next step, every stage copies KV block idx of one sequence over that of another one. */
void chain_copy_block(chain *p, int32_t from_sequence, int32_t to_sequence, int32_t idx);

/* Whether this machine has the level. */
bool chain_has_isa(const char *isa);

#endif
