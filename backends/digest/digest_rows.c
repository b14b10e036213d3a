/* backends/digest/digest_rows.c - the ops whose rows are independent, without a matrix: rules N, Q, G, C, R, X. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "backends/digest/digest_case.h"
#include "engine/base/fmath.h"
#include "engine/base/top.h"

static const mr_type TYPES[] = {MR_TYPE_F32, MR_TYPE_A8, MR_TYPE_BF16}; /* of activations */

/* Multiplies every third row from row `from` on: beyond both ends of the range of exp, or below the smallest scale of
 * rule Q. */
static void scale_rows(trial *t, int32_t tensor, int32_t from, float factor) {
    for (int32_t r = from; r < t->n_rows; r += 3)
        for (int32_t i = 0; i < t->tensors[tensor].ne[0]; i++)
            case_float_row(t, tensor, r)[i] *= factor;
}

/* --- Norms, activations, units ------------------------------------------------------------------------------------ */

static void run_norms(trial *t) {
    static const struct {
        int32_t n, n_groups, n_kept;
        mr_type out;
    } CASES[] = {
        {1, 1, 0, MR_TYPE_F32},   {7, 3, 0, MR_TYPE_F32},    {16, 1, 0, MR_TYPE_F32},  {33, 2, 5, MR_TYPE_F32},
        {2048, 2, 0, MR_TYPE_A8}, {96, 1, 0, MR_TYPE_A8},    {97, 1, 0, MR_TYPE_BF16}, {64, 3, 32, MR_TYPE_A8},
        {100, 1, 0, MR_TYPE_F32}, {2048, 1, 0, MR_TYPE_F32},
    };
    case_part(t, MR_OP_RMS_NORM, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < CASE_COUNT(CASES); i++) {
        int32_t columns = CASES[i].n * CASES[i].n_groups + CASES[i].n_kept;
        mr_node n = case_begin(t, MR_OP_RMS_NORM, 1 + i % 5);
        n.params.norm.eps = 1e-5f;
        n.params.norm.n_kept = CASES[i].n_kept;
        n.in[0] = case_floats(t, 1 + i, columns);
        n.in[1] = case_vectors(t, 5000, CASES[i].n, 1);
        scale_rows(t, n.in[0], 1, 0x1p-120f);
        scale_rows(t, n.in[0], 2, 0x1p50f);
        n.out = case_result(t, CASES[i].out, columns);
        case_run(t, &n);
    }
}

/* A row with an infinity: rule Q gives no scale to its block. */
static void run_quantize(trial *t) {
    case_part(t, MR_OP_QUANTIZE, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < 4; i++) {
        mr_node n = case_begin(t, MR_OP_QUANTIZE, 1 + 16 * i);
        n.in[0] = case_floats(t, i, i % 2 ? 512 : 96);
        scale_rows(t, n.in[0], 1, 0x1p-119f);
        scale_rows(t, n.in[0], 2, 0x1p-120f);
        case_float_row(t, n.in[0], 0)[40] = -INFINITY;
        for (int type = 1; type < CASE_COUNT(TYPES); type++) {
            n.out = case_result(t, TYPES[type], t->tensors[n.in[0]].ne[0]);
            case_run(t, &n);
        }
    }
}

/* Every kind of unit, with a limit and without, and every type of result. */
static void run_units(trial *t) {
    case_part(t, MR_OP_GLU, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < 6 * MR_GLU_KINDS; i++) {
        mr_type type = TYPES[i % 3];
        int32_t columns = type == MR_TYPE_A8 ? 96 : i < 8 ? 100 + i : 1 + 15 * i % 34;
        mr_node n = case_begin(t, MR_OP_GLU, 1 + i % 6);
        n.in[0] = case_floats(t, 1 + i, columns);
        n.in[1] = case_floats(t, 5000, columns);
        scale_rows(t, n.in[0], 1, 55.0f);
        n.params.glu = (mr_glu){(mr_glu_kind)(i / 3 % MR_GLU_KINDS), i >= 3 * MR_GLU_KINDS ? 0.75f : 0.0f};
        n.out = case_result(t, type, columns);
        case_run(t, &n);
    }
}

/* --- Elements ---------------------------------------------------------------------------------------------------- */

/* Widths around a vector register. The sum is made in place. */
static void run_elements(trial *t, mr_op op) {
    static const int32_t WIDTHS[] = {1, 16, 33, 100, 513};
    case_part(t, (int32_t)op, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < CASE_COUNT(WIDTHS); i++) {
        mr_node n = case_begin(t, op, 1 + 4 * i);
        n.in[0] = case_floats(t, 9 + i, WIDTHS[i]);
        scale_rows(t, n.in[0], 1, 55.0f);
        case_float_row(t, n.in[0], 0)[0] = op == MR_OP_SOFT_CAP ? -INFINITY : 0x1p-126f;
        if (op == MR_OP_ADD || op == MR_OP_ADD_GATED)
            n.in[1] = case_floats(t, 77, WIDTHS[i]);
        if (op == MR_OP_ADD_GATED)
            n.in[2] = case_floats(t, 3, 1);
        if (op == MR_OP_SCALE || op == MR_OP_SOFT_CAP)
            n.params.scale.factor = op == MR_OP_SCALE ? -0.3f : 30.0f;
        n.out = op == MR_OP_ADD ? n.in[0] : case_result(t, MR_TYPE_F32, WIDTHS[i]);
        case_run(t, &n);
    }
}

static void run_take_rows(trial *t) {
    static const int32_t ROWS[] = {7, 0, 12, 12};
    case_part(t, MR_OP_TAKE_ROWS, MR_DIGEST_NO_TYPE);
    mr_node n = case_begin(t, MR_OP_TAKE_ROWS, 13);
    n.in[0] = case_floats(t, 5, 100);
    n.in[1] = case_tensor(t, MR_TYPE_I32, 1, 13, MR_STORAGE_INPUT, MR_ROWS_OUT);
    n.out = case_tensor(t, MR_TYPE_F32, 100, 13, MR_STORAGE_OUTPUT, MR_ROWS_OUT);
    for (int32_t i = 0; i < 13; i++)
        ((int32_t *)case_row(t, n.in[1], 0))[i] = ROWS[i % CASE_COUNT(ROWS)];
    case_run(t, &n);
}

/* More tokens than are taken, many equal ones among them; the infinities; rows without a number and of -inf alone. */
static void run_top(trial *t) {
    static const int32_t WIDTHS[] = {40, 1024, 5000};
    case_part(t, MR_OP_TOP, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < CASE_COUNT(WIDTHS); i++) {
        mr_node n = case_begin(t, MR_OP_TOP, 6);
        n.in[0] = case_floats(t, 11 + i, WIDTHS[i]);
        n.out = case_result(t, MR_TYPE_I32, MR_TOP_COLUMNS);
        scale_rows(t, n.in[0], 0, 12.0f);
        for (int32_t k = 0; k < WIDTHS[i]; k++) {
            case_float_row(t, n.in[0], 1)[k] = k % 7 ? -1.0f : 0.25f;
            case_float_row(t, n.in[0], 2)[k] *= 0x1p-126f;
            case_float_row(t, n.in[0], 5)[k] = -INFINITY;
        }
        case_float_row(t, n.in[0], 3)[33] = INFINITY;
        case_float_row(t, n.in[0], 4)[WIDTHS[i] - 1] = NAN;
        t->tensors[n.in[0]].row_count = MR_ROWS_OUT;
        t->tensors[n.out].row_count = MR_ROWS_TOP;
        case_run(t, &n);
    }
}

/* --- RoPE --------------------------------------------------------------------------------------------------------- */

/* Angles of a model with base 10000, with frequency factors and a ramp between the rows slow and keep. */
static void run_tables(trial *t) {
    static const int32_t HALVES[] = {8, 32, 40, 9, 100}, POSITIONS[] = {0, 1, 4500, 131071, 1000000};
    case_part(t, MR_OP_ROPE_TABLE, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < CASE_COUNT(HALVES); i++) {
        int32_t half = HALVES[i];
        float step = (float)mr_pow(10000.0, -1.0 / (double)half);
        mr_node n = case_begin(t, MR_OP_ROPE_TABLE, CASE_COUNT(POSITIONS));
        int32_t angles = case_tensor(t, MR_TYPE_F32, half, MR_ROPE_ROWS, MR_STORAGE_CONSTANT, MR_ROWS_FIXED);
        for (int32_t k = 0; k < half; k++) {
            float keep = (float)k / (float)half;
            case_float_row(t, angles, MR_ROPE_STEP)[k] = k == 0 ? 1.0f : step;
            case_float_row(t, angles, MR_ROPE_FACTOR)[k] = 1.0f + (float)k * 0.125f;
            case_float_row(t, angles, MR_ROPE_KEEP)[k] = keep;
            case_float_row(t, angles, MR_ROPE_SLOW)[k] = 0.25f * (1.0f - keep);
        }
        n.in[0] = angles;
        n.in[1] = case_ints(t, POSITIONS);
        n.params.rope.magnitude = 1.125f;
        n.out = case_result(t, MR_TYPE_F32, 2 * half);
        case_run(t, &n);
    }
}

/* Three heads; the even cases in place. Cosines and sines are any numbers. */
static void run_rope(trial *t) {
    static const struct {
        int32_t head_dim, n_rot, first;
    } CASES[] = {{16, 16, 0}, {64, 64, 0}, {80, 80, 0}, {96, 18, 0}, {96, 18, 78}, {256, 200, 0}};
    case_part(t, MR_OP_ROPE, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < 2 * CASE_COUNT(CASES); i++) {
        mr_node n = case_begin(t, MR_OP_ROPE, 1 + i % 4);
        n.params.rope.head_dim = CASES[i / 2].head_dim;
        n.params.rope.n_rot = CASES[i / 2].n_rot;
        n.params.rope.first = CASES[i / 2].first;
        n.params.rope.pairs = i % 2 ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED;
        n.in[0] = case_floats(t, i, 3 * CASES[i / 2].head_dim);
        n.in[1] = case_floats(t, 900, CASES[i / 2].n_rot);
        n.out = i % 4 == 0 ? n.in[0] : case_result(t, MR_TYPE_F32, t->tensors[n.in[0]].ne[0]);
        case_run(t, &n);
    }
}

/* --- Experts ----------------------------------------------------------------------------------------------------- */

enum { EXPERTS = 24, USED = 5, ROUTED_ROWS = 9, PLACES = EXPERTS / 3 };

/* Adds the numbers of experts, then their weights, in which all NaNs count as the same. */
static void add_routes(trial *t, int32_t routes) {
    for (int32_t r = 0; r < t->n_rows; r++) {
        const uint8_t *row = t->result + (size_t)r * t->tensors[routes].row_bytes;
        for (int32_t u = 0; u < USED; u++)
            case_add_word(t, ((const uint32_t *)(const void *)row)[u]);
        case_add_floats(t, (const float *)(const void *)row + USED, USED);
    }
}

/* Every kind of scores. A row with equal logits, one with zeros of both signs, and one with a NaN and infinities. */
static void run_routes(trial *t) {
    case_part(t, MR_OP_ROUTE, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < 4 * MR_ROUTE_SCORES; i++) {
        mr_node n = case_begin(t, MR_OP_ROUTE, ROUTED_ROWS);
        n.in[0] = case_floats(t, i, EXPERTS);
        for (int32_t e = 0; e < EXPERTS; e++) {
            case_float_row(t, n.in[0], 1)[e] = (float)(e % 4);
            case_float_row(t, n.in[0], 2)[e] = e % 2 ? 0.0f : -0.0f;
        }
        case_float_row(t, n.in[0], 3)[7] = NAN;
        case_float_row(t, n.in[0], 4)[9] = -INFINITY;
        if (i % 4 == 1)
            n.in[1] = case_vectors(t, 40, EXPERTS, 1);
        n.params.experts.n = EXPERTS;
        n.params.experts.n_used = USED;
        n.params.experts.routing = (mr_routing){.score = (mr_route_score)(i / 4),
                                                .is_normalised = i % 2,
                                                .scale = i % 4 == 3 ? 2.5f : 0.0f,
                                                .n_groups = i % 4 > 1 ? 6 : 0,
                                                .n_groups_used = 3,
                                                .n_group_best = 1 + i % 2};
        n.out = case_tensor(t, MR_TYPE_I32, 2 * USED, case_bucket(t), MR_STORAGE_OUTPUT, MR_ROWS_STEP);
        if (case_execute(t, &n) && case_get(t, n.out, ROUTED_ROWS))
            add_routes(t, n.out);
    }
}

/* Routes that no router made: of row r the experts r, 2r + 1, …; weights from the pool. */
static int32_t routes_of(trial *t) {
    int32_t id = case_tensor(t, MR_TYPE_I32, 2 * USED, case_bucket(t), MR_STORAGE_INPUT, MR_ROWS_STEP);
    for (int32_t r = 0; r < t->n_rows; r++) {
        int32_t *row = case_row(t, id, r);
        for (int32_t u = 0; u < USED; u++)
            row[u] = (r * (u + 1) + u) % EXPERTS;
        memcpy(row + USED, t->pool + 17 * r, USED * sizeof *row);
    }
    return id;
}

/* Every third expert has a place, the last one the first place. */
static int32_t places_of(trial *t) {
    int32_t id = case_tensor(t, MR_TYPE_I32, EXPERTS, 1, MR_STORAGE_STATE, MR_ROWS_FIXED), *places = case_row(t, id, 0);
    for (int32_t e = 0; e < EXPERTS; e++)
        places[e] = e % 3 == 2 ? PLACES - 1 - e / 3 : -1;
    return id;
}

/* One row and several, of all experts and of those with a place. */
static void run_expert_rows(trial *t) {
    case_part(t, MR_OP_EXPERT_ROWS, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < 4; i++) {
        mr_node n = case_begin(t, MR_OP_EXPERT_ROWS, i % 2 ? ROUTED_ROWS : 1);
        int32_t most = USED * case_bucket(t), n_lists = i < 2 ? EXPERTS : PLACES;
        t->n_slots = USED * t->n_rows;
        n.in[0] = routes_of(t);
        if (i >= 2)
            n.in[1] = places_of(t);
        n.params.experts.n = n_lists;
        n.params.experts.n_used = USED;
        n.out = case_tensor(t, MR_TYPE_I32, n_lists + 1 + 2 * most, 1, MR_STORAGE_OUTPUT, MR_ROWS_FIXED);
        if (!case_execute(t, &n) || !case_get(t, n.out, 1))
            continue;
        mr_expert_rows l = mr_expert_rows_at(t->result, n_lists, most);
        for (int32_t k = 0; k <= n_lists; k++)
            case_add_word(t, (uint32_t)l.first[k]);
        for (int32_t k = 0; k < l.first[n_lists] && k < t->n_slots; k++)
            case_add_word(t, (uint64_t)(uint32_t)l.slots[k] << 32 | (uint32_t)l.rows[k]);
    }
}

/* Slots [columns, all slots] with numbers from `at` of the pool on. */
static int32_t slots_of(trial *t, int32_t columns, int32_t at) {
    int32_t id = case_tensor(t, MR_TYPE_F32, columns, USED * case_bucket(t), MR_STORAGE_INPUT, MR_ROWS_SLOTS);
    for (int32_t s = 0; s < t->n_slots; s++)
        memcpy(case_row(t, id, s), t->pool + 211 * s + at, (size_t)columns * sizeof(float));
    return id;
}

/* With and without a shared expert, and with slots that others have computed; the first in place. */
static void run_expert_sums(trial *t) {
    case_part(t, MR_OP_EXPERT_SUM, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < 6; i++) {
        mr_node n = case_begin(t, MR_OP_EXPERT_SUM, i == 0 ? 1 : ROUTED_ROWS);
        int32_t columns = i % 2 ? 257 : 33;
        t->n_slots = USED * t->n_rows;
        n.in[0] = slots_of(t, columns, 0);
        n.in[1] = routes_of(t);
        n.in[2] = case_floats(t, 6, columns);
        n.params.experts.n = EXPERTS;
        n.params.experts.n_used = USED;
        if (i > 1)
            n.in[3] = case_floats(t, 70, columns);
        if (i > 3) {
            n.in[4] = slots_of(t, columns, 100);
            n.in[5] = places_of(t);
        }
        n.out = i == 0 ? n.in[2] : case_result(t, MR_TYPE_F32, columns);
        case_run(t, &n);
    }
}

void digest_rows(trial *t) {
    case_forget(t);
    run_norms(t);
    run_quantize(t);
    run_units(t);
    run_elements(t, MR_OP_ADD);
    run_elements(t, MR_OP_ADD_GATED);
    run_elements(t, MR_OP_SCALE);
    run_elements(t, MR_OP_SOFT_CAP);
    run_elements(t, MR_OP_RELU);
    run_take_rows(t);
    run_top(t);
    run_tables(t);
    run_rope(t);
    run_routes(t);
    run_expert_rows(t);
    run_expert_sums(t);
}
