/* The fused gate and up node gives the same bits as three separate nodes: types, both layouts of weights, pieces,
 * threads. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/tensor/quant.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"
#include "tests/unit/engine/graph/test_graph_support.h"

enum { MATRICES = 3, K = 256, OUT = 48, MAX_ROWS = 200 };

typedef struct shape {
    mr_type gate, up, down;
    int32_t width, rows;
    int n_threads;
    bool in_file;
    mr_glu glu;
} shape;

static rng numbers;

/* Rows in the layout of the file, of random blocks. */
static uint8_t *random_matrix(mr_type type, int32_t columns, int32_t rows) {
    const mr_type_info *info = mr_type_get(type);
    size_t n_blocks = (size_t)(columns / info->block_elems) * (size_t)rows, size = (size_t)info->block_bytes;
    uint8_t *data = malloc(n_blocks * size);
    assert_non_null(data);
    for (size_t i = 0; i < n_blocks; i++) {
        uint8_t *block = data + i * size;
        float value = rng_unit(&numbers);
        for (size_t b = 0; b < size; b++)
            block[b] = (uint8_t)rng_next(&numbers);
        if (type == MR_TYPE_F32)
            memcpy(block, &value, sizeof value);
        else
            mr_block_set_scale(type, block, (uint16_t)(0x2000 + rng_next(&numbers) % 0x400), 0x1c00);
    }
    return data;
}

typedef struct scene {
    mr_backend *be;
    mr_buffer *buffers[MATRICES + 1]; /* the last buffer is work memory */
    uint8_t *files[MATRICES];
    mr_graph *g;
    int32_t x, gate, y;
} scene;

static int32_t use_matrix(scene *s, int i, mr_type type, int32_t columns, int32_t rows, bool in_file) {
    mr_tensor t;
    mr_fence fence;
    size_t bytes = 0, row_bytes = 0;
    s->files[i] = random_matrix(type, columns, rows);
    assert_true(mr_type_bytes(type, columns, &row_bytes));
    assert_true(mr_tensor_init(&t, "matrix", type, columns, rows, in_file ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT,
                               MR_ROWS_FIXED));
    if (in_file) {
        t.row_bytes = row_bytes;
        t.bytes = row_bytes * (size_t)rows;
        assert_int_equal(s->be->ops->buffer_wrap(s->be, s->files[i], t.bytes, &t.buffer, NULL), MR_OK);
    } else {
        assert_int_equal(s->be->ops->weight_bytes(s->be, type, columns, rows, &bytes, NULL), MR_OK);
        assert_int_equal(s->be->ops->buffer_create(s->be, bytes, &t.buffer, NULL), MR_OK);
        assert_int_equal(s->be->ops->weight_load(s->be, &t, s->files[i], &fence, NULL), MR_OK);
    }
    s->buffers[i] = t.buffer;
    return mr_graph_use(s->g, &t);
}

/* down of the unit of gate x and up x; apart: the gate's floats are wanted, too. */
static scene scene_make(const shape *p, bool apart) {
    scene s = {0};
    mr_err err = {0};
    mr_graph_stats stats;
    numbers.state = 42;
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = p->n_threads}, &s.be, &err), &err);
    s.g = graph_make(p->rows, 1);
    s.x = mr_graph_input(s.g, "x", MR_TYPE_F32, K, MR_ROWS_STEP);
    s.gate = mr_graph_matmul(s.g, use_matrix(&s, 0, p->gate, K, p->width, p->in_file), s.x, NONE, NONE);
    int32_t up = mr_graph_matmul(s.g, use_matrix(&s, 1, p->up, K, p->width, p->in_file), s.x, NONE, NONE);
    int32_t h = mr_graph_glu(s.g, s.gate, up, p->glu);
    s.y = mr_graph_matmul(s.g, use_matrix(&s, 2, p->down, p->width, OUT, p->in_file), h, NONE, NONE);
    mr_graph_output(s.g, s.y);
    if (apart)
        mr_graph_output(s.g, s.gate);
    expect_ok(mr_graph_finish(s.g, &(mr_backends){.at = {s.be}, .n = 1}, &stats, &err), &err);
    assert_int_equal(count_nodes(s.g, MR_OP_GATE_UP), !apart);
    assert_int_equal(count_nodes(s.g, MR_OP_GLU), apart);
    expect_ok(s.be->ops->buffer_create(s.be, stats.work_bytes[0], &s.buffers[MATRICES], &err), &err);
    expect_ok(mr_graph_place(s.g, &s.buffers[MATRICES], &err), &err);
    return s;
}

static void scene_free(scene *s) {
    mr_graph_destroy(s->g);
    for (int i = 0; i <= MATRICES; i++)
        s->be->ops->buffer_destroy(s->be, s->buffers[i]);
    for (int i = 0; i < MATRICES; i++)
        free(s->files[i]);
    mr_backend_destroy(s->be);
}

static void run(const shape *p, bool apart, float (*out)[OUT]) {
    static float x[MAX_ROWS][K];
    scene s = scene_make(p, apart);
    for (int32_t r = 0; r < p->rows; r++)
        for (int32_t i = 0; i < K; i++)
            x[r][i] = rng_unit(&numbers);
    assert_int_equal(mr_graph_set_rows(s.g, s.x, x, sizeof x[0], p->rows, NULL), MR_OK);
    assert_int_equal(mr_graph_run(s.g, &(mr_run){.n_rows = {[MR_ROWS_STEP] = p->rows}}, NULL), MR_OK);
    assert_int_equal(mr_graph_get_rows(s.g, s.y, 0, p->rows, out, sizeof out[0], NULL), MR_OK);
    scene_free(&s);
}

static void test_one_pass_and_three_nodes_are_the_same(void **state) {
    (void)state;
    static const mr_type types[][3] = {
        {MR_TYPE_Q8_0, MR_TYPE_Q8_0, MR_TYPE_Q8_0},  {MR_TYPE_Q4_K, MR_TYPE_Q6_K, MR_TYPE_Q8_0},
        {MR_TYPE_F16, MR_TYPE_F32, MR_TYPE_F16},     {MR_TYPE_BF16, MR_TYPE_BF16, MR_TYPE_BF16},
        {MR_TYPE_Q4_0, MR_TYPE_IQ4_NL, MR_TYPE_F32}, {MR_TYPE_F32, MR_TYPE_F32, MR_TYPE_Q5_0},
    };
    /* For few rows, a piece ends at 2048 columns. For many rows, a piece ends at 256 columns and 84 rows. */
    static const int32_t widths[] = {32, 288, 2080}, rows[] = {1, 7, 84, MAX_ROWS};
    static float out[2][MAX_ROWS][OUT];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int i = 0; i < 12; i++) {
            shape p = {.gate = types[t][0], .up = types[t][1], .down = types[t][2]};
            p.width = widths[i % 3];
            p.rows = rows[i / 3];
            p.n_threads = 1 + (i + (int)t) % 3;
            p.in_file = i % 2;
            p.glu = (mr_glu){.kind = (mr_glu_kind)((i + (int)t) % MR_GLU_KINDS), .limit = i % 4 == 3 ? 0.5f : 0.0f};
            run(&p, false, out[0]);
            run(&p, true, out[1]);
            if (memcmp(out[0], out[1], sizeof out[0][0] * (size_t)p.rows) != 0)
                fail_msg("%s and %s, width %d, %d rows, %d threads, in the file: %d", mr_type_name(p.gate),
                         mr_type_name(p.up), p.width, p.rows, p.n_threads, p.in_file);
        }
}

/* A product with a bias, and products of different rows, stay apart. */
static void test_what_is_no_plain_gate_stays(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        fake_backend be = fake_backend_make();
        mr_graph *g = graph_make(4, 2);
        int32_t x = add_rows(g), bias = i == 0 ? add_vector(g, WIDTH) : NONE;
        int32_t gate = mr_graph_matmul(g, add_weight(g, MR_TYPE_Q8_0, WIDTH, WIDTH), x, bias, NONE);
        int32_t up =
            mr_graph_matmul(g, add_weight(g, MR_TYPE_Q8_0, WIDTH, WIDTH), i == 1 ? add_rows(g) : x, NONE, NONE);
        mr_graph_output(g, silu_mul(g, gate, up));
        finish_ok(g, &be);
        assert_int_equal(count_nodes(g, MR_OP_GATE_UP), i == 2);
        assert_int_equal(count_nodes(g, MR_OP_MATMUL), i == 2 ? 0 : 2);
        mr_graph_destroy(g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_pass_and_three_nodes_are_the_same),
        cmocka_unit_test(test_what_is_no_plain_gate_stays),
    };
    return cmocka_run_group_tests_name("gate_up", tests, NULL, NULL);
}
