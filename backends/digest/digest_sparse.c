/* backends/digest/digest_sparse.c - the ops of sparse feed-forward parts: rule S. Their products follow rule M, whose
 * parts of the digest have all types of weights; here are a type with floats and one with blocks. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "backends/digest/digest_case.h"
#include "engine/tensor/f16.h"
#include "engine/tensor/quant.h"

enum { K = 96, NEURONS = 549 /* three partitions, the last one not full */ };

static void run_active(trial *t) {
    static const int32_t ROWS[] = {1, 3};
    case_part(t, MR_OP_ACTIVE, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < CASE_COUNT(ROWS); i++) {
        mr_node n = case_begin(t, MR_OP_ACTIVE, ROWS[i]);
        int32_t n_parts = mr_count_partitions(NEURONS);
        n.in[0] = case_floats(t, 11, NEURONS);
        case_float_row(t, n.in[0], 0)[3] = NAN;
        case_float_row(t, n.in[0], 0)[4] = 0.25f;
        n.params.sparse.threshold = 0.25f;
        n.out = case_tensor(t, MR_TYPE_I32, (int32_t)mr_active_ints(NEURONS, case_bucket(t)), 1, MR_STORAGE_OUTPUT,
                            MR_ROWS_FIXED);
        if (!case_execute(t, &n) || !case_get(t, n.out, 1))
            continue;
        mr_active a = mr_active_at(t->result, NEURONS);
        for (int32_t p = 0; p < n_parts; p++) {
            case_add_word(t, (uint32_t)a.counts[p]);
            for (int32_t k = 0; k < a.counts[p]; k++)
                case_add_word(t, (uint32_t)a.neurons[p * MR_PARTITION + k]);
        }
        for (int32_t w = 0; w < ROWS[i] * n_parts * MR_PARTITION_WORDS; w++)
            case_add_word(t, a.sets[w]);
    }
}

/* NEURONS rows in the layout of the file, made of the pool from `at` on. type: F16 or Q4_0. */
static int32_t file_matrix(trial *t, mr_type type, int32_t at) {
    int32_t id = case_tensor(t, type, K, NEURONS, MR_STORAGE_FILE, MR_ROWS_FIXED);
    for (int32_t r = 0; r < NEURONS; r++)
        for (int32_t i = 0; i < K; i += mr_type_get(type)->block_elems) {
            const float *x = t->pool + (at + r * 7 + i) % (CASE_POOL - 32);
            mr_block_q4_0 block = {.d = mr_f32_to_f16(x[0] * 0.02f)};
            if (type == MR_TYPE_F16) {
                ((uint16_t *)case_row(t, id, r))[i] = mr_f32_to_f16(x[0]);
                continue;
            }
            for (int k = 0; k < 16; k++)
                block.q[k] = (uint8_t)(mr_f32_bits(x[k]) >> 3);
            memcpy((uint8_t *)case_row(t, id, r) + (size_t)(i / 32) * sizeof block, &block, sizeof block);
        }
    return id;
}

/* Every neuron whose number plus the row is a multiple of `step` is active. */
static int32_t active_lists(trial *t, int32_t step) {
    int32_t id = case_tensor(t, MR_TYPE_I32, (int32_t)mr_active_ints(NEURONS, case_bucket(t)), 1, MR_STORAGE_INPUT,
                             MR_ROWS_FIXED);
    int32_t n_parts = mr_count_partitions(NEURONS);
    mr_active a = mr_active_at(case_row(t, id, 0), NEURONS);
    memset(a.counts, 0, (size_t)n_parts * sizeof *a.counts);
    memset(a.sets, 0, (size_t)(t->n_rows * n_parts * MR_PARTITION_WORDS) * sizeof *a.sets);
    for (int32_t neuron = 0; neuron < NEURONS; neuron++) {
        bool any = false;
        for (int32_t r = 0; r < t->n_rows; r++)
            if ((neuron + r) % step == 0) {
                a.sets[r * n_parts * MR_PARTITION_WORDS + neuron / 32] |= 1u << neuron % 32;
                any = true;
            }
        int32_t p = neuron / MR_PARTITION;
        if (any)
            a.neurons[p * MR_PARTITION + a.counts[p]++] = neuron;
    }
    return id;
}

/* As rule Q could have made them. */
static int32_t a8_rows(trial *t) {
    int32_t id = case_tensor(t, MR_TYPE_A8, K, case_bucket(t), MR_STORAGE_INPUT, MR_ROWS_STEP);
    for (int32_t r = 0; r < t->n_rows; r++)
        for (int32_t b = 0; b < K / 32; b++) {
            uint8_t *row = case_row(t, id, r);
            int32_t sum = 0;
            float d = fabsf(t->pool[r * 61 + b]) + 0.125f;
            for (int32_t i = 0; i < 32; i++) {
                int8_t q = (int8_t)((int32_t)(mr_f32_bits(t->pool[r * 97 + 32 * b + i]) >> 2 & 255u) % 255 - 127);
                row[32 * b + i] = (uint8_t)q;
                sum += q;
            }
            memcpy(row + K + 4 * b, &d, sizeof d);
            memcpy(row + K + K / 8 + 4 * b, &sum, sizeof sum);
        }
    return id;
}

/* Few and many active neurons; the last case, of one row, has all of them. */
static void run_gate_ups(trial *t) {
    static const struct {
        int32_t rows, step;
        mr_relu_unit unit;
    } CASES[] = {{1, 7, MR_RELU_ALONE}, {9, 11, MR_RELU_BOTH}, {5, 1, MR_RELU_GATE}, {1, 1, MR_RELU_GATE}};
    case_part(t, MR_OP_SPARSE_GATE_UP, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < 2 * CASE_COUNT(CASES); i++) {
        mr_type type = i % 2 ? MR_TYPE_Q4_0 : MR_TYPE_F16;
        /* Nothing rounds the bits of the last product with floats. */
        bool shows_gate = i == 2 * CASE_COUNT(CASES) - 2;
        mr_relu_unit unit = shows_gate ? MR_RELU_ALONE : CASES[i / 2].unit;
        mr_node n = case_begin(t, MR_OP_SPARSE_GATE_UP, CASES[i / 2].rows);
        n.in[0] = file_matrix(t, type, 3 * i);
        n.in[1] = unit == MR_RELU_ALONE ? MR_NO_TENSOR : file_matrix(t, type, 4000 + 3 * i);
        n.in[2] = type == MR_TYPE_F16 ? case_floats(t, 903 + i, K) : a8_rows(t);
        n.in[3] = active_lists(t, CASES[i / 2].step);
        n.params.sparse.unit = unit;
        n.out = case_result(t, MR_TYPE_F32, NEURONS);
        case_run(t, &n);
    }
}

/* Factors of which most are zero, with weights that are no numbers beside some of them. The first case has one
 * partition, and the last one no summand: so a wrong bit of the first or the last call of a kernel shows. */
static void run_axpys(trial *t) {
    case_part(t, MR_OP_AXPY, MR_DIGEST_NO_TYPE);
    for (int32_t i = 0; i < 4; i++) {
        mr_type type = i % 2 ? MR_TYPE_Q4_0 : MR_TYPE_F16;
        mr_node n = case_begin(t, MR_OP_AXPY, 1 + 2 * i);
        n.in[0] = file_matrix(t, type, 500 * i);
        n.in[1] = case_floats(t, 33 + i, NEURONS);
        for (int32_t r = 0; r < t->n_rows; r++)
            for (int32_t k = 0; k < NEURONS; k++)
                if ((k + r) % (5 + i) != 0 || (i == 0 && k >= MR_PARTITION))
                    case_float_row(t, n.in[1], r)[k] = 0.0f;
        if (type == MR_TYPE_F16)
            ((uint16_t *)case_row(t, n.in[0], 1 + t->n_rows))[i] = MR_F16_NAN;
        if (i == 2)
            n.in[2] = case_floats(t, 800, K);
        n.out = case_result(t, MR_TYPE_F32, K);
        case_run(t, &n);
    }
}

void digest_sparse(trial *t) {
    case_forget(t);
    run_active(t);
    run_gate_ups(t);
    run_axpys(t);
}
