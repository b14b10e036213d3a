/* Tests of KV_WRITE on the emulated GPU (rules K and R): the stores have the bytes that the scalar kernels write, and
 * other bytes stay as they are. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/cpu/kernels.h"
#include "engine/base/fmath.h"
#include "engine/base/thread.h"
#include "tests/cuda_emulation/emulator.h"
#include "tests/cuda_emulation/node_runner.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

static rng numbers = {.state = 3};

enum { ROWS = 5, REAL_ROWS = 4, BLOCKS = 4, MAX_HEADS = 3, MAX_ROW = MAX_HEADS * MR_ATTENTION_DIM, PAD = 7 };
enum { MAX_STORE = BLOCKS * (MAX_HEADS * MR_ATTENTION_DIM * MR_KV_BLOCK * 4 + 64) };

typedef struct write_case {
    mr_type type;
    int32_t k_dim, v_dim, n_heads;
    int32_t n_rot, first; /* n_rot is 0: keys are not rotated */
    mr_rope_pairs pairs;
    int fill; /* of k and v */
} write_case;

/* Random numbers; some of them zeros, denormal, tiny, large, infinite or NaN. */
static float draw(int fill) {
    static const float SPECIALS[] = {0.0f,  -0.0f,    1e-40f,   -1e-45f,  1.2e-38f,  6e-5f,
                                     3e-8f, 65519.0f, 65520.0f, INFINITY, -INFINITY, NAN};
    float x = rng_unit(&numbers);
    if (fill == 1 && rng_below(&numbers, 8) == 0)
        return SPECIALS[rng_below(&numbers, 12)];
    if (fill == 2) /* any bits */
        return mr_bits_f32(rng_next(&numbers));
    return fill == 3 ? rintf(x * 127.0f) + 0.5f : x; /* ties */
}

/* Whether a and b are the same element of a store; all NaNs are. */
static bool is_same(mr_type type, const uint8_t *a, const uint8_t *b) {
    if (type == MR_TYPE_F16) {
        uint16_t x, y;
        memcpy(&x, a, 2);
        memcpy(&y, b, 2);
        return x == y || ((x & 0x7fffu) > 0x7c00u && (y & 0x7fffu) > 0x7c00u);
    }
    float x, y;
    memcpy(&x, a, 4);
    memcpy(&y, b, 4);
    return memcmp(a, b, 4) == 0 || (x != x && y != y);
}

static void compare(const write_case *c, const char *what, const uint8_t *got, const uint8_t *want, size_t bytes) {
    size_t step = c->type == MR_TYPE_F32 ? 4 : c->type == MR_TYPE_F16 ? 2 : 1;
    for (size_t i = 0; i < bytes; i += step)
        if (memcmp(got + i, want + i, step) != 0 && (step == 1 || !is_same(c->type, got + i, want + i)))
            fail_msg("%s, %s %d and %d, %d heads, %d rotated from %d: byte %zu", mr_type_name(c->type), what, c->k_dim,
                     c->v_dim, c->n_heads, c->n_rot, c->first, i);
}

static void check_case(const write_case *c) {
    static float k[ROWS * (MAX_ROW + PAD)], v[ROWS * (MAX_ROW + PAD)], table[ROWS * MR_ATTENTION_DIM], turned[MAX_ROW];
    static uint8_t k_got[MAX_STORE], k_want[MAX_STORE], v_got[MAX_STORE], v_want[MAX_STORE];
    int32_t slots[ROWS] = {17, 0, 63, 32, 5}, k_row = c->n_heads * c->k_dim + PAD, v_row = c->n_heads * c->v_dim + PAD;
    size_t k_block = (size_t)c->n_heads * mr_kv_head_bytes(c->type, c->k_dim) + 64;
    size_t v_block = (size_t)c->n_heads * mr_kv_head_bytes(c->type, c->v_dim) + 64;
    for (int32_t i = 0; i < ROWS * (MAX_ROW + PAD); i++) {
        k[i] = draw(c->fill);
        v[i] = draw(c->fill);
    }
    for (int32_t i = 0; i < ROWS * MR_ATTENTION_DIM; i++)
        table[i] = rng_unit(&numbers);
    memset(k_got, 0xa5, sizeof k_got);
    memset(v_got, 0xa5, sizeof v_got);
    memset(k_want, 0xa5, sizeof k_want);
    memset(v_want, 0xa5, sizeof v_want);
    const mr_kernels *scalar = mr_kernels_get(MR_ISA_SCALAR);
    for (int32_t r = 0; r < REAL_ROWS; r++) {
        memcpy(turned, k + r * k_row, (size_t)(c->n_heads * c->k_dim) * sizeof *k);
        if (c->n_rot)
            scalar->rope(turned + c->first, c->n_heads, c->k_dim, c->n_rot, c->pairs, table + r * c->n_rot);
        mr_kv_write_args args = {turned,  v + r * v_row, 0,       0,          &slots[r], k_want,  v_want,
                                 k_block, v_block,       c->type, c->n_heads, c->k_dim,  c->v_dim};
        scalar->kv_write(&args, 0, 1);
    }
    mr_node node = {.op = MR_OP_KV_WRITE,
                    .params.attention = {.n_kv_heads = c->n_heads,
                                         .k_dim = c->k_dim,
                                         .v_dim = c->v_dim,
                                         .rope_first = c->first,
                                         .n_rot = c->n_rot,
                                         .pairs = c->pairs}};
    node_tensor in[6];
    const node_tensor *inputs[] = {&in[0], &in[1], &in[2], &in[3], &in[4], c->n_rot ? &in[5] : NULL};
    node_tensor_init(&in[0], MR_TYPE_F32, c->n_heads * c->k_dim, ROWS, (size_t)k_row * sizeof *k, k);
    node_tensor_init(&in[1], MR_TYPE_F32, c->n_heads * c->v_dim + (c->n_heads == 1 ? 3 : 0), ROWS,
                     (size_t)v_row * sizeof *v, v);
    node_tensor_init(&in[2], MR_TYPE_I32, 1, ROWS, sizeof *slots, slots);
    node_tensor_init(&in[3], c->type, c->n_heads * c->k_dim * MR_KV_BLOCK, BLOCKS, k_block, k_got);
    node_tensor_init(&in[4], c->type, c->n_heads * c->v_dim * MR_KV_BLOCK, BLOCKS, v_block, v_got);
    node_tensor_init(&in[5], MR_TYPE_F32, c->n_rot, ROWS, (size_t)c->n_rot * sizeof *table, table);
    cuda_builder b = {.n_processors = 1};
    node_run(&b, &cuda_op_kv_write, &node, inputs, 6, NULL, REAL_ROWS);
    compare(c, "keys", k_got, k_want, BLOCKS * k_block);
    compare(c, "values", v_got, v_want, BLOCKS * v_block);
}

static void test_stores_equal_scalar(void **state) {
    (void)state;
    static const int32_t DIMS[][2] = {{16, 16},   {32, 32},     {64, 128}, {80, 80}, {128, 96},
                                      {576, 512}, {1024, 1008}, {8, 10},   {88, 24}};
    static const mr_type TYPES[] = {MR_TYPE_F16, MR_TYPE_F32, MR_TYPE_Q8_0};
    for (int t = 0; t < 3; t++)
        for (int d = 0; d < 9; d++)
            for (int how = 0; how < 8; how++) {
                write_case c = {TYPES[t],
                                DIMS[d][0],
                                DIMS[d][1],
                                1 + (d + how) % MAX_HEADS,
                                0,
                                0,
                                how % 2 ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED,
                                (d + how / 2 + t) % 4};
                if (mr_kv_head_bytes(c.type, c.k_dim) == 0 || mr_kv_head_bytes(c.type, c.v_dim) == 0)
                    continue;
                c.n_rot = how < 2 ? 0 : how < 4 ? c.k_dim : c.k_dim / 2 - 2;
                c.first = how < 4 ? 0 : how < 6 ? c.k_dim - c.n_rot : 1;
                emulator_set_order((emulator_order)(how % 3), rng_next(&numbers));
                check_case(&c);
            }
}

static int set_mode(void **state) {
    (void)state;
    mr_thread_set_denormals_flushed();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stores_equal_scalar)};
    return cmocka_run_group_tests(tests, set_mode, NULL);
}
