/* The ops of sparse feed-forward parts: every byte of the CPU's, for all types of matrices, numbers of neurons around a
 * partition, rows around those of a block, none to all neurons active, weights and factors that are no numbers. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "backends/cuda/kernels/cuda_sparse.h"
#include "engine/tensor/f16.h"
#include "tests/cuda_emulation/node_case.h"
#include "tests/support/test.h"

static rng numbers = {.state = 31};

enum { NONE_ACTIVE, FEW, HALF, ALL, SHARES };

typedef struct part {
    mr_type type;
    int32_t k, n; /* columns and neurons */
    int share;
    values weights;
} part;

/* --- RELU and ACTIVE ---------------------------------------------------------------------------------------------- */

static void test_relu(void **state) {
    (void)state;
    static const int32_t COLUMNS[] = {1, 31, 256, 257, 1000};
    for (int i = 0; i < 5; i++)
        for (fill how = PLAIN; how < FILLS; how++) {
            node_case c;
            node_case_begin(&c, MR_OP_RELU, (node_rows){.bucket = 5, .real = 4});
            c.node.in[0] = node_case_floats(&c, &numbers, COLUMNS[i], 0, how);
            c.node.out = node_case_rows(&c, MR_TYPE_F32, COLUMNS[i]);
            node_case_check(&c);
        }
}

/* Adds the result of ACTIVE. */
static int32_t active_tensor(node_case *c, int32_t n_neurons) {
    return node_case_tensor(c, MR_TYPE_I32, (int32_t)mr_active_ints(n_neurons, c->rows.bucket), 1, MR_STORAGE_WORK,
                            MR_ROWS_FIXED);
}

static void check_active(int32_t n_scores, int32_t first, int32_t n, int32_t rows, float threshold, fill how) {
    node_case c;
    node_case_begin(&c, MR_OP_ACTIVE, (node_rows){.bucket = rows + 1, .real = rows});
    c.node.in[0] = node_case_floats(&c, &numbers, n_scores, 0, how);
    c.node.params.sparse.threshold = threshold;
    c.node.params.sparse.first = first;
    c.node.params.sparse.n = n;
    c.node.out = active_tensor(&c, n ? n : n_scores);
    node_case_check(&c);
}

static void test_active(void **state) {
    (void)state;
    static const int32_t NEURONS[] = {1, 31, 33, 255, 256, 257, 700}, ROWS[] = {1, 2, 7, 64};
    static const float THRESHOLDS[] = {0.0f, -INFINITY, INFINITY, 3.5f};
    for (int i = 0; i < 28; i++)
        check_active(NEURONS[i % 7], 0, 0, ROWS[i % 4], THRESHOLDS[i / 7], (fill)(i % FILLS));
    check_active(700, 256, 444, 3, 0.5f, PLAIN);
    check_active(700, 512, 188, 3, 0.5f, NANS);
    check_active(700, 0, 512, 5, 0.5f, PLAIN);
}

/* --- SPARSE_GATE_UP ----------------------------------------------------------------------------------------------- */

/* Adds a matrix in the layout of the file. */
static int32_t file_matrix(node_case *c, const part *p, mr_type type) {
    int32_t id = node_case_tensor(c, type, p->k, p->n, MR_STORAGE_FILE, MR_ROWS_FIXED);
    for (int32_t i = 0; i < p->n; i++)
        random_weights(&numbers, p->weights, type, p->k, node_case_row(c, id, i));
    return id;
}

static bool is_active(int share) {
    switch (share) {
    case NONE_ACTIVE:
        return false;
    case FEW:
        return rng_below(&numbers, 16) == 0;
    case HALF:
        return rng_below(&numbers, 2) == 0;
    default:
        return true;
    }
}

/* The lists of some sets of neurons. The last row's set is empty. */
static int32_t active_lists(node_case *c, const part *p) {
    int32_t id = active_tensor(c, p->n), n_parts = mr_count_partitions(p->n);
    mr_active a = mr_active_at(node_case_row(c, id, 0), p->n);
    memset(a.counts, 0, (size_t)n_parts * sizeof *a.counts);
    memset(a.sets, 0, (size_t)(c->rows.bucket * n_parts * MR_PARTITION_WORDS) * sizeof *a.sets);
    for (int32_t i = 0; i < p->n; i++) {
        bool any = false;
        for (int32_t r = 0; r < c->rows.real; r++)
            if (is_active(p->share) && (c->rows.real == 1 || r < c->rows.real - 1)) {
                a.sets[r * n_parts * MR_PARTITION_WORDS + i / 32] |= 1u << i % 32;
                any = true;
            }
        int32_t of = i / MR_PARTITION;
        if (any)
            a.neurons[of * MR_PARTITION + a.counts[of]++] = i;
    }
    return id;
}

static void check_units(const part *p, mr_type up, mr_relu_unit unit, int32_t rows) {
    node_case c;
    node_case_begin(&c, MR_OP_SPARSE_GATE_UP, (node_rows){.bucket = rows + rows % 3, .real = rows});
    c.node.in[0] = file_matrix(&c, p, p->type);
    if (unit != MR_RELU_ALONE)
        c.node.in[1] = file_matrix(&c, p, up);
    c.node.in[2] = node_case_activations(&c, &numbers, p->type, p->k, MR_ROWS_STEP);
    c.node.in[3] = active_lists(&c, p);
    c.node.params.sparse.unit = unit;
    c.node.out = node_case_rows(&c, MR_TYPE_F32, p->n);
    node_case_check(&c);
}

static void test_units(void **state) {
    (void)state;
    static const part PARTS[] = {
        {MR_TYPE_F16, 256, 257, FEW, VALUES_PLAIN},         {MR_TYPE_F16, 299, 40, HALF, VALUES_SPECIAL},
        {MR_TYPE_F16, 70, 256, ALL, VALUES_PLAIN},          {MR_TYPE_F16, 2, 1, ALL, VALUES_PLAIN},
        {MR_TYPE_F16, 600, 300, NONE_ACTIVE, VALUES_PLAIN}, {MR_TYPE_F32, 129, 300, FEW, VALUES_PLAIN},
        {MR_TYPE_F32, 64, 255, ALL, VALUES_SPECIAL},        {MR_TYPE_BF16, 333, 260, FEW, VALUES_PLAIN},
        {MR_TYPE_BF16, 64, 17, ALL, VALUES_SPECIAL},        {MR_TYPE_Q8_0, 32, 257, FEW, VALUES_PLAIN},
        {MR_TYPE_Q8_0, 1056, 37, HALF, VALUES_SPECIAL},     {MR_TYPE_Q4_0, 2080, 33, HALF, VALUES_PLAIN},
        {MR_TYPE_Q4_0, 288, 513, FEW, VALUES_SPECIAL},      {MR_TYPE_IQ4_NL, 1024, 20, ALL, VALUES_PLAIN},
        {MR_TYPE_MXFP4, 992, 21, ALL, VALUES_PLAIN},        {MR_TYPE_IQ4_XS, 1280, 30, HALF, VALUES_PLAIN},
        {MR_TYPE_Q4_K, 1280, 31, HALF, VALUES_PLAIN},       {MR_TYPE_Q4_K, 256, 300, FEW, VALUES_SPECIAL},
        {MR_TYPE_Q5_K, 1280, 31, HALF, VALUES_PLAIN},       {MR_TYPE_Q6_K, 1280, 31, HALF, VALUES_PLAIN},
        {MR_TYPE_Q6_K, 256, 300, FEW, VALUES_SPECIAL},
    };
    static const int32_t ROWS[] = {1, 2, 8, 9, 33, 64};
    for (int i = 0; i < (int)(sizeof PARTS / sizeof *PARTS); i++)
        for (int r = i % 2; r < 6; r += 2)
            check_units(&PARTS[i], PARTS[i].type, (mr_relu_unit)((i + r / 2) % MR_RELU_UNITS), ROWS[r]);
}

/* Gate and up of two types. */
static void test_units_of_two_types(void **state) {
    (void)state;
    static const mr_type TYPES[][2] = {{MR_TYPE_F16, MR_TYPE_F32},
                                       {MR_TYPE_F32, MR_TYPE_F16},
                                       {MR_TYPE_Q4_0, MR_TYPE_Q6_K},
                                       {MR_TYPE_Q5_K, MR_TYPE_MXFP4}};
    for (int i = 0; i < 4; i++)
        for (int32_t rows = 1; rows < 12; rows += 5) {
            const part p = {TYPES[i][0], 256, 270, HALF, VALUES_PLAIN};
            check_units(&p, TYPES[i][1], MR_RELU_BOTH, rows);
        }
}

/* --- AXPY --------------------------------------------------------------------------------------------------------- */

/* Sets the units that are not active to zeros of both signs, all units of the last row, and some in partition 1. */
static void drop_units(const node_case *c, int32_t h, const part *p) {
    for (int32_t r = 0; r < c->rows.real; r++) {
        float *units = node_case_row(c, h, r);
        for (int32_t i = 0; i < p->n; i++)
            if (!is_active(p->share) || (r > 0 && r == c->rows.real - 1) || (r % 3 == 1 && i / MR_PARTITION == 1))
                units[i] = i % 2 ? -0.0f : 0.0f;
    }
}

static void check_axpy(const part *p, fill how, int32_t rows, bool has_start, bool has_add) {
    node_case c;
    node_case_begin(&c, MR_OP_AXPY, (node_rows){.bucket = rows == 1 ? 1 : rows + 1, .real = rows});
    c.node.in[0] = file_matrix(&c, p, p->type);
    c.node.in[1] = node_case_floats(&c, &numbers, p->n, 0, how);
    drop_units(&c, c.node.in[1], p);
    if (has_add)
        c.node.in[2] = node_case_floats(&c, &numbers, p->k, 0, PLAIN);
    if (has_start)
        c.node.in[3] = node_case_floats(&c, &numbers, p->k, 0, how == PLAIN ? ZERO : PLAIN);
    c.node.out = node_case_rows(&c, MR_TYPE_F32, p->k);
    node_case_check(&c);
}

static void test_axpy(void **state) {
    (void)state;
    static const part PARTS[] = {
        {MR_TYPE_F16, 257, 600, FEW, VALUES_PLAIN},          {MR_TYPE_F16, 512, 257, HALF, VALUES_SPECIAL},
        {MR_TYPE_F16, 514, 256, ALL, VALUES_PLAIN},          {MR_TYPE_F16, 1, 1, ALL, VALUES_PLAIN},
        {MR_TYPE_F16, 96, 800, NONE_ACTIVE, VALUES_SPECIAL}, {MR_TYPE_F32, 100, 300, FEW, VALUES_SPECIAL},
        {MR_TYPE_BF16, 33, 520, HALF, VALUES_PLAIN},         {MR_TYPE_Q4_0, 544, 600, FEW, VALUES_PLAIN},
        {MR_TYPE_Q4_0, 1056, 100, HALF, VALUES_SPECIAL},     {MR_TYPE_Q8_0, 96, 300, HALF, VALUES_PLAIN},
        {MR_TYPE_IQ4_NL, 96, 300, FEW, VALUES_PLAIN},        {MR_TYPE_MXFP4, 64, 300, FEW, VALUES_PLAIN},
        {MR_TYPE_IQ4_XS, 512, 40, HALF, VALUES_PLAIN},       {MR_TYPE_Q4_K, 512, 270, FEW, VALUES_PLAIN},
        {MR_TYPE_Q5_K, 256, 40, HALF, VALUES_PLAIN},         {MR_TYPE_Q6_K, 768, 300, FEW, VALUES_SPECIAL},
    };
    static const int32_t ROWS[] = {1, 2, 5, 64};
    static const fill HOW[] = {PLAIN, ANY_BITS, DENORMAL, TINY, LARGE, NANS};
    for (int i = 0; i < (int)(sizeof PARTS / sizeof *PARTS); i++)
        for (int r = 0; r < 4; r++)
            check_axpy(&PARTS[i], HOW[(i + r) % 6], ROWS[r], (i + r) % 2, (i / 2 + r) % 2);
}

/* A negative sum that is flushed to -0 stays -0 unless a later partition has a summand. */
static void test_negative_zero(void **state) {
    (void)state;
    for (int32_t rows = 1; rows < 80; rows += 39) /* 40 and more: a block takes all partitions */
        for (int last = 0; last < 2; last++) {
            const part p = {MR_TYPE_F32, 64, 700, NONE_ACTIVE, VALUES_PLAIN};
            node_case c;
            node_case_begin(&c, MR_OP_AXPY, (node_rows){.bucket = rows, .real = rows});
            c.node.in[0] = file_matrix(&c, &p, p.type);
            c.node.in[1] = node_case_floats(&c, &numbers, p.n, 0, ZERO);
            for (int32_t r = 0; r < rows; r++) {
                float *h = node_case_row(&c, c.node.in[1], r);
                for (int32_t d = 0; d < p.k; d++) {
                    ((float *)node_case_row(&c, c.node.in[0], 0))[d] = 0x1p-126f;
                    ((float *)node_case_row(&c, c.node.in[0], 256))[d] = -0x1.8p-126f;
                    ((float *)node_case_row(&c, c.node.in[0], 512))[d] = 0.0f;
                }
                h[0] = h[256] = 1.0f;
                h[512] = last ? 1.0f : 0.0f;
            }
            c.node.out = node_case_rows(&c, MR_TYPE_F32, p.k);
            node_case_check(&c);
        }
}

/* --- What is not supported ---------------------------------------------------------------------------------------- */

static void test_not_supported(void **state) {
    (void)state;
    static const mr_type TYPES[] = {MR_TYPE_Q5_1, MR_TYPE_Q3_K, MR_TYPE_IQ2_XS};
    for (int i = 0; i < 4; i++) {
        node_case c;
        node_case_begin(&c, MR_OP_AXPY, (node_rows){.bucket = 2, .real = 2});
        c.node.in[0] = node_case_tensor(&c, i < 3 ? TYPES[i] : MR_TYPE_F16, 256, 40,
                                        i < 3 ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT, MR_ROWS_FIXED);
        c.node.in[1] = node_case_floats(&c, &numbers, 40, 0, PLAIN);
        c.node.out = node_case_rows(&c, MR_TYPE_F32, 256);
        assert_false(node_case_is_supported(&c));
        node_case_end(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relu),          cmocka_unit_test(test_active),
        cmocka_unit_test(test_units),         cmocka_unit_test(test_units_of_two_types),
        cmocka_unit_test(test_axpy),          cmocka_unit_test(test_negative_zero),
        cmocka_unit_test(test_not_supported),
    };
    return cmocka_run_group_tests(tests, NULL, node_case_teardown);
}
