// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/device_corners.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/rng.h"

enum { COLUMNS = 1024, ROWS = 12 };

typedef struct corner {
    const char *name;
    mr_op op;
    mr_type out;
    mr_op_params params;
} corner;

/* A row for each class: any bits, denormals, around the smallest normal number, ties of halves and of bfloat16, then
 * rows of rising exponents. */
static int32_t awkward_floats(rig *r, uint32_t stream) {
    static const uint32_t MASKS[] = {0xffffffff, 0x807fffff, 0x80ffffff, 0xbfffe000, 0xbfff8000};
    enum { CLASSES = sizeof MASKS / sizeof *MASKS };
    static uint32_t data[ROWS][COLUMNS];
    rng random = {.state = stream};
    for (uint32_t i = 0; i < ROWS; i++)
        for (int32_t j = 0; j < COLUMNS; j++) {
            uint32_t bits = rng_next(&random);
            data[i][j] = i < CLASSES ? bits & MASKS[i] : (bits & 0x807fffff) | (30 + 16 * i) << 23;
        }
    int32_t id = rig_tensor(r, MR_TYPE_F32, COLUMNS, ROWS, MR_STORAGE_INPUT);
    rig_set(r, id, data);
    return id;
}

/* Numbers whose products with factor lie around 2^-126: a product is flushed before or after it is rounded. */
static int32_t tiny_floats(rig *r, float factor) {
    static float data[ROWS][COLUMNS];
    float at = 0x1p-126f / factor;
    for (int32_t i = 0; i < ROWS * COLUMNS / 2; i++)
        at = nextafterf(at, 0);
    for (int32_t i = 0; i < ROWS * COLUMNS; i++, at = nextafterf(at, INFINITY))
        data[i / COLUMNS][i % COLUMNS] = at;
    int32_t id = rig_tensor(r, MR_TYPE_F32, COLUMNS, ROWS, MR_STORAGE_INPUT);
    rig_set(r, id, data);
    return id;
}

/* Returns the result. */
static int32_t build(rig *r, const corner *c) {
    rig_clear(r);
    mr_node *n = rig_node(r, c->op);
    n->params = c->params;
    n->in[0] = c->op == MR_OP_SCALE ? tiny_floats(r, c->params.scale.factor) : awkward_floats(r, 1);
    if (c->op == MR_OP_RMS_NORM)
        n->in[1] = rig_vector(r, COLUMNS, 2);
    else if (c->op == MR_OP_ADD || c->op == MR_OP_ADD_GATED || c->op == MR_OP_GLU)
        n->in[1] = awkward_floats(r, 2);
    if (c->op == MR_OP_ADD_GATED)
        n->in[2] = rig_floats(r, 1, ROWS, 3);
    return n->out = rig_tensor(r, c->out, COLUMNS, ROWS, MR_STORAGE_OUTPUT);
}

int32_t run_corners(rig *device, rig *cpu) {
    static const corner CORNERS[] = {
        {.name = "add", .op = MR_OP_ADD, .out = MR_TYPE_F32},
        {.name = "add_gated", .op = MR_OP_ADD_GATED, .out = MR_TYPE_F32},
        {"soft_cap", MR_OP_SOFT_CAP, MR_TYPE_F32, {.scale = {30}}},
        {"silu", MR_OP_GLU, MR_TYPE_F32, {.glu = {MR_GLU_SILU, 0}}},
        {"gelu", MR_OP_GLU, MR_TYPE_F32, {.glu = {MR_GLU_GELU, 0}}},
        {"sigmoid", MR_OP_GLU, MR_TYPE_F32, {.glu = {MR_GLU_SIGMOID, 0}}},
        {"gpt_oss", MR_OP_GLU, MR_TYPE_F32, {.glu = {MR_GLU_GPT_OSS, 7}}},
        {"rms_norm", MR_OP_RMS_NORM, MR_TYPE_F32, {.norm = {1e-6f, 0}}},
        {.name = "quantize A8", .op = MR_OP_QUANTIZE, .out = MR_TYPE_A8},
        {.name = "quantize BF16", .op = MR_OP_QUANTIZE, .out = MR_TYPE_BF16},
        {"product at 2^-126", MR_OP_SCALE, MR_TYPE_F32, {.scale = {0.7f}}},
        {"product at 2^-126", MR_OP_SCALE, MR_TYPE_F32, {.scale = {1.1f}}},
        {"product at 2^-126", MR_OP_SCALE, MR_TYPE_F32, {.scale = {1e-19f}}},
        {"product at 2^-126", MR_OP_SCALE, MR_TYPE_F32, {.scale = {-3e-20f}}},
    };
    int32_t n_differ = 0;
    for (size_t i = 0; i < sizeof CORNERS / sizeof *CORNERS; i++) {
        int32_t out = build(device, &CORNERS[i]);
        build(cpu, &CORNERS[i]);
        bool ran = rig_run(device, ROWS) && rig_run(cpu, ROWS);
        int32_t n = ran ? rig_count_different(device, cpu, out, ROWS) : 0;
        n_differ += n;
        printf("{\"test\": \"corner\", \"name\": \"%s\", \"different_rows\": %d, \"same\": %s}\n", CORNERS[i].name, n,
               !ran ? "null"
               : n  ? "false"
                    : "true");
    }
    return n_differ;
}
