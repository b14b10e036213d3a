/* Tests of ATTENTION on the emulated GPU (rule T): the bits of mr_attention_scalar, for any cut of the work and any
 * order of threads. What a row must not read is poisoned. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "backends/cpu/kernels.h"
#include "backends/cuda/kernels/cuda_attention.h"
#include "engine/base/fmath.h"
#include "engine/base/thread.h"
#include "tests/cuda_emulation/emulator.h"
#include "tests/cuda_emulation/node_runner.h"
#include "tests/support/rng.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

static rng numbers = {.state = 1};
static int32_t n_whole, n_split; /* entries of all cases */

/* --- A scene: sequences with keys and values in a store, and rows that look at them ------------------------------ */

enum { MAX_ROWS = 80, MAX_SEQS = 16, STRIDE = 112, GUARD = 16 };
static const uint32_t GUARD_BITS = 0x7fabcdefu;
static const int32_t NOWHERE = 0x00ffffff; /* a block id outside of every store */
static const float SPECIALS[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 1e-40f, 0.0f, -0.0f};

typedef struct scene {
    mr_attention_args args;
    int32_t n_rows, n_seqs, n_blocks, bucket;
    int32_t length[MAX_SEQS];
    int32_t row_seq[MAX_ROWS], row_position[MAX_ROWS];
    int32_t table[MAX_SEQS * STRIDE];
    uint8_t *k_store, *v_store;
    float *q, *sinks, *out, *want;
    size_t out_floats, k_bytes, v_bytes;
} scene;

static void *xalloc(size_t bytes) {
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    assert_non_null(p);
    return p;
}

/* Adds a sequence with n_rows rows. The first row sees n_context positions. */
static void scene_add(scene *s, int32_t n_context, int32_t n_rows) {
    int32_t seq = s->n_seqs++;
    assert_true(seq < MAX_SEQS && s->n_rows + n_rows <= MAX_ROWS);
    s->length[seq] = n_context + n_rows - 1;
    assert_true(s->length[seq] <= STRIDE * MR_KV_BLOCK);
    for (int32_t i = 0; i < n_rows; i++) {
        s->row_seq[s->n_rows] = seq;
        s->row_position[s->n_rows++] = n_context - 1 + i;
    }
}

static void swap_i32(int32_t *a, int32_t *b) {
    int32_t t = *a;
    *a = *b;
    *b = t;
}

static void scene_shuffle_rows(scene *s) {
    for (int32_t i = s->n_rows - 1; i > 0; i--) {
        int32_t j = rng_below(&numbers, i + 1);
        swap_i32(&s->row_seq[i], &s->row_seq[j]);
        swap_i32(&s->row_position[i], &s->row_position[j]);
    }
}

static bool row_sees(const scene *s, int32_t row, int32_t position) {
    return position <= s->row_position[row] && position >= mr_attention_first(&s->args, row);
}

/* Gives the blocks random ids. A block that no row sees has the id NOWHERE. */
static void scene_make_table(scene *s) {
    int32_t ids[MAX_SEQS * STRIDE], used = 0;
    s->n_blocks = 3;
    for (int32_t i = 0; i < s->n_seqs; i++)
        s->n_blocks += (s->length[i] + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    for (int32_t i = 0; i < s->n_blocks; i++)
        ids[i] = i;
    for (int32_t i = s->n_blocks - 1; i > 0; i--)
        swap_i32(&ids[i], &ids[rng_below(&numbers, i + 1)]);
    for (int32_t i = 0; i < MAX_SEQS * STRIDE; i++)
        s->table[i] = NOWHERE;
    for (int32_t row = 0; row < s->n_rows; row++)
        for (int32_t p = mr_attention_first(&s->args, row); p <= s->row_position[row]; p++) {
            int32_t *id = &s->table[s->row_seq[row] * STRIDE + p / MR_KV_BLOCK];
            *id = *id == NOWHERE ? ids[used++] : *id;
        }
}

/* Writes random keys and values for the positions that a row sees. Some are special. */
static void scene_fill_store(scene *s, int n_specials) {
    static float kv[2 * MR_ATTENTION_DIM * 4];
    static const uint8_t POISON[] = {0xff, 0x7c};
    memset(s->k_store, POISON[rng_below(&numbers, 2)], s->k_bytes);
    memset(s->v_store, POISON[rng_below(&numbers, 2)], s->v_bytes);
    int32_t k_floats = s->args.n_kv_heads * s->args.k_dim, v_floats = s->args.n_kv_heads * s->args.v_dim;
    for (int32_t row = 0; row < s->n_rows; row++)
        for (int32_t p = mr_attention_first(&s->args, row); p <= s->row_position[row]; p++) {
            int32_t slot = s->table[s->row_seq[row] * STRIDE + p / MR_KV_BLOCK] * MR_KV_BLOCK + p % MR_KV_BLOCK;
            if (row > 0 && s->row_seq[row - 1] == s->row_seq[row] && row_sees(s, row - 1, p))
                continue;                                     /* it is written */
            float factor = p * 7 / 50 % 5 == 4 ? 6.0f : 1.0f; /* so that the maximum moves */
            for (int32_t i = 0; i < k_floats; i++)
                kv[i] = rng_unit(&numbers) * factor;
            for (int32_t i = 0; i < v_floats; i++)
                kv[k_floats + i] = rng_unit(&numbers);
            for (int32_t i = 0; i < n_specials && rng_below(&numbers, 60) == 0; i++)
                kv[rng_below(&numbers, k_floats + v_floats)] = SPECIALS[rng_below(&numbers, 8)];
            mr_kv_write_args w = {.k = kv,
                                  .v = kv + k_floats,
                                  .slots = &slot,
                                  .k_store = s->k_store,
                                  .v_store = s->v_store,
                                  .k_block_bytes = s->args.k_block_bytes,
                                  .v_block_bytes = s->args.v_block_bytes,
                                  .kv_type = s->args.kv_type,
                                  .n_kv_heads = s->args.n_kv_heads,
                                  .k_dim = s->args.k_dim,
                                  .v_dim = s->args.v_dim};
            mr_kernels_get(mr_isa_detect())->kv_write(&w, 0, 1);
        }
}

typedef struct head_shape {
    mr_type type;
    int32_t k_dim, v_dim, group, n_kv_heads;
} head_shape;

/* Called after the rows are added and the options are set. */
static void scene_build(scene *s, head_shape shape, int n_specials) {
    int32_t n_heads = shape.group * shape.n_kv_heads, q_row = n_heads * shape.k_dim + 16;
    int32_t out_row = n_heads * shape.v_dim + GUARD;
    mr_attention_args *a = &s->args;
    a->kv_type = shape.type;
    a->n_heads = n_heads;
    a->n_kv_heads = shape.n_kv_heads;
    a->k_dim = shape.k_dim;
    a->v_dim = shape.v_dim;
    a->scale = 1.0f / sqrtf((float)shape.k_dim);
    a->k_block_bytes = (size_t)shape.n_kv_heads * mr_kv_head_bytes(shape.type, shape.k_dim) + 64;
    a->v_block_bytes = (size_t)shape.n_kv_heads * mr_kv_head_bytes(shape.type, shape.v_dim) + 64;
    a->row_seq = s->row_seq;
    a->row_position = s->row_position;
    a->block_table = s->table;
    a->table_stride = STRIDE;
    s->bucket = s->n_rows + 2;
    scene_make_table(s);
    s->k_bytes = (size_t)s->n_blocks * a->k_block_bytes;
    s->v_bytes = (size_t)s->n_blocks * a->v_block_bytes;
    a->k_store = s->k_store = xalloc(s->k_bytes);
    a->v_store = s->v_store = xalloc(s->v_bytes);
    scene_fill_store(s, n_specials);
    a->q = s->q = xalloc((size_t)(s->n_rows * q_row) * sizeof *s->q);
    a->q_row_bytes = (size_t)q_row * sizeof *s->q;
    for (int32_t i = 0; i < s->n_rows * q_row; i++)
        s->q[i] = rng_unit(&numbers) * 4.0f;
    for (int32_t i = 0; i < n_specials; i++)
        s->q[rng_below(&numbers, s->n_rows * q_row)] = SPECIALS[rng_below(&numbers, 8)];
    s->out_floats = (size_t)s->bucket * (size_t)out_row + GUARD;
    s->out = xalloc(s->out_floats * sizeof *s->out);
    s->want = xalloc(s->out_floats * sizeof *s->want);
    a->out_row_bytes = (size_t)out_row * sizeof *s->out;
    s->sinks = xalloc((size_t)n_heads * sizeof *s->sinks);
    for (int32_t h = 0; h < n_heads; h++)
        s->sinks[h] = rng_unit(&numbers) * 8.0f;
    if (a->sinks)
        a->sinks = s->sinks;
}

static void scene_deinit(scene *s) {
    void *all[] = {s->q, s->out, s->want, s->sinks, s->k_store, s->v_store};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static float *poison_out(const scene *s, float *out) {
    for (size_t i = 0; i < s->out_floats; i++)
        out[i] = mr_bits_f32(GUARD_BITS);
    return out + GUARD;
}

/* Compares every float of out, also the guards before, between and behind the rows. */
static void assert_same_out(const scene *s, int32_t n_processors) {
    for (size_t i = 0; i < s->out_floats; i++) {
        float a = s->out[i], b = s->want[i];
        if (mr_f32_bits(a) != mr_f32_bits(b) && (mr_f32_bits(b) == GUARD_BITS || a == a || b == b))
            fail_msg("%s, keys %d, values %d, heads %d / %d, window %d, %d rows, %d processors: float %zu of %zu: "
                     "%.9g, scalar has %.9g",
                     mr_type_name(s->args.kv_type), s->args.k_dim, s->args.v_dim, s->args.n_heads, s->args.n_kv_heads,
                     s->args.window, s->n_rows, n_processors, i, s->out_floats, (double)a, (double)b);
    }
}

static void run_scalar(scene *s) {
    mr_attention_part part = {.row_last = s->n_rows, .head_last = s->args.n_heads};
    s->args.out = poison_out(s, s->want);
    mr_kernels_get(MR_ISA_SCALAR)->attention(&s->args, &part);
}

/* Runs the node so many times, as layers that share a work list. The last one counts. */
static void run_gpu(scene *s, int32_t n_processors, int32_t n_layers) {
    const mr_attention_args *a = &s->args;
    mr_node node = {.op = MR_OP_ATTENTION,
                    .params.attention = {.n_heads = a->n_heads,
                                         .n_kv_heads = a->n_kv_heads,
                                         .k_dim = a->k_dim,
                                         .v_dim = a->v_dim,
                                         .scale = a->scale,
                                         .soft_cap = a->soft_cap,
                                         .temperature = a->temperature,
                                         .window = a->window}};
    node_tensor q, k, v, seq, position, table, sinks, out;
    node_tensor_init(&q, MR_TYPE_F32, a->n_heads * a->k_dim, s->bucket, a->q_row_bytes, s->q);
    node_tensor_init(&k, a->kv_type, a->n_kv_heads * a->k_dim * MR_KV_BLOCK, s->n_blocks, a->k_block_bytes, s->k_store);
    node_tensor_init(&v, a->kv_type, a->n_kv_heads * a->v_dim * MR_KV_BLOCK, s->n_blocks, a->v_block_bytes, s->v_store);
    node_tensor_init(&seq, MR_TYPE_I32, 1, s->bucket, sizeof(int32_t), s->row_seq);
    node_tensor_init(&position, MR_TYPE_I32, 1, s->bucket, sizeof(int32_t), s->row_position);
    node_tensor_init(&table, MR_TYPE_I32, STRIDE, MAX_SEQS, STRIDE * sizeof(int32_t), s->table);
    node_tensor_init(&sinks, MR_TYPE_F32, a->n_heads, 1, (size_t)a->n_heads * sizeof(float), s->sinks);
    node_tensor_init(&out, MR_TYPE_F32, a->n_heads * a->v_dim, s->bucket, a->out_row_bytes, s->out + GUARD);
    const node_tensor *in[] = {&q, &k, &v, &seq, &position, &table, a->sinks ? &sinks : NULL};
    cuda_builder b = {.n_processors = n_processors};
    for (int32_t layer = 0; layer < n_layers; layer++) {
        poison_out(s, s->out);
        node_run(&b, &cuda_op_attention, &node, in, 7, &out, s->n_rows);
    }
    assert_int_equal(b.n_launches, 1 + n_layers);
    const cuda_attention_work *work = b.shared[0];
    n_whole += work->n_whole;
    n_split += work->n_split;
    node_builder_deinit(&b);
}

/* Few processors: no run is split. Many: long ones are. */
static void check(scene *s) {
    static const int32_t PROCESSORS[] = {1, 3, 132};
    int how = (int)rng_below(&numbers, 3);
    emulator_set_order((emulator_order)how, rng_next(&numbers));
    run_scalar(s);
    static int count;
    count++;
    for (int i = 0; i < 3; i += 2) {
        run_gpu(s, PROCESSORS[i], count % 8 == i / 2 ? 3 : 1);
        assert_same_out(s, PROCESSORS[i]);
    }
    scene_deinit(s);
}

/* --- Attention --------------------------------------------------------------------------------------------------- */

enum { N_TYPES = 3 };
static const mr_type TYPES[N_TYPES] = {MR_TYPE_F16, MR_TYPE_F32, MR_TYPE_Q8_0};

/* Sets a window around the sizes of block, tile and partition, a soft cap, sinks and a temperature, or some of these.
 */
static void set_options(scene *s) {
    static const int32_t WINDOWS[] = {0, 1, 2, 16, 17, 63, 64, 65, 130, 511, 512, 513, 700, 100000};
    static const float SINKS;
    s->args.window = WINDOWS[rng_below(&numbers, sizeof WINDOWS / sizeof WINDOWS[0])];
    s->args.soft_cap = rng_below(&numbers, 2) ? 1.0f + 4.0f * (rng_unit(&numbers) + 1.0f) : 0.0f;
    s->args.sinks = rng_below(&numbers, 2) ? &SINKS : NULL;
    if (rng_below(&numbers, 2))
        s->args.temperature =
            (mr_temperature){.growth = rng_unit(&numbers) + 1.0f, .length = 1 + rng_below(&numbers, 100)};
}

/* Some rows of sequences whose lengths stand around block, tile and partition. */
static void add_rows(scene *s, int32_t kind) {
    static const int32_t CONTEXTS[] = {1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1100};
    const int32_t n = (int32_t)(sizeof CONTEXTS / sizeof CONTEXTS[0]);
    switch (kind) {
    case 0: /* decode */
        for (int32_t i = 0; i < n; i++)
            scene_add(s, CONTEXTS[i], 1);
        break;
    case 1: /* a prompt beside two sequences */
        scene_add(s, CONTEXTS[rng_below(&numbers, n)], 1);
        scene_add(s, 500, 33);
        scene_add(s, CONTEXTS[rng_below(&numbers, n)], 1);
        break;
    case 2: /* one long sequence */
        scene_add(s, 1100 + rng_below(&numbers, 500), 1 + rng_below(&numbers, 5));
        break;
    default:
        scene_add(s, 1, 21);
        for (int32_t i = 0; i < 4; i++)
            scene_add(s, CONTEXTS[rng_below(&numbers, n)], 1 + rng_below(&numbers, 5));
        scene_shuffle_rows(s);
    }
}

static void check_shape(head_shape shape, int32_t kind, bool has_options, int n_specials) {
    scene s = {0};
    if (mr_kv_head_bytes(shape.type, shape.k_dim) == 0 || mr_kv_head_bytes(shape.type, shape.v_dim) == 0)
        return;
    add_rows(&s, kind);
    if (has_options)
        set_options(&s);
    scene_build(&s, shape, n_specials);
    check(&s);
}

/* Each version of the kernels meets every kind of rows. Sizes that share a version have every other kind, unless the
 * run is long. */
static void test_every_shape_equals_scalar(void **state) {
    (void)state;
    static const int32_t DIMS[] = {16, 32, 64, 80, 96, 112, 128, 256}, GROUPS[] = {1, 2, 3, 4, 5, 8, 9, 20, 33};
    int count = 0;
    for (int t = 0; t < N_TYPES; t++)
        for (int d = 0; d < 8; d++)
            for (int kind = 0; kind < 4; kind++)
                if ((share_is_long() || DIMS[d] == 256 || (kind + d + t) % 2 == 0) && !share_skips(&count)) {
                    int32_t group = GROUPS[(d + 3 * kind + 5 * t) % 9];
                    check_shape((head_shape){TYPES[t], DIMS[d], DIMS[d], group, group > 8 ? 1 : 2}, kind,
                                (d + kind + t) % 3 > 0, 0);
                }
}

/* Values that are narrower or wider than keys, and more heads than a unit takes. */
static void test_other_values_than_keys_equal_scalar(void **state) {
    (void)state;
    static const int32_t DIMS[][3] = {{576, 512, 17}, {576, 512, 40},  {96, 64, 3},   {64, 128, 2},   {192, 128, 1},
                                      {128, 192, 6},  {1024, 1024, 1}, {1008, 16, 6}, {16, 1008, 10}, {272, 256, 9}};
    int count = 0;
    for (int t = 0; t < N_TYPES; t++)
        for (size_t i = 0; i < sizeof DIMS / sizeof *DIMS; i++)
            if (!share_skips(&count))
                check_shape((head_shape){TYPES[t], DIMS[i][0], DIMS[i][1], DIMS[i][2], DIMS[i][2] > 9 ? 1 : 2},
                            i % 2 ? 2 : 3, i % 3 > 0, 0);
}

/* Heads of any even size: with queries and values that do not begin at multiples of 16 bytes. */
static void test_even_sizes_equal_scalar(void **state) {
    (void)state;
    static const int32_t DIMS[][3] = {{8, 8, 2},      {24, 24, 1},    {40, 40, 4}, {72, 72, 9},
                                      {88, 88, 17},   {2, 2, 3},      {10, 14, 5}, {130, 66, 3},
                                      {50, 1022, 12}, {1022, 514, 1}, {66, 4, 1},  {262, 80, 8}};
    int count = 0;
    for (int t = 0; t < N_TYPES - 1; t++) /* q8_0 holds multiples of 32 */
        for (size_t i = 0; i < sizeof DIMS / sizeof *DIMS; i++)
            if (!share_skips(&count))
                check_shape((head_shape){TYPES[t], DIMS[i][0], DIMS[i][1], DIMS[i][2], DIMS[i][2] > 9 ? 1 : 2},
                            (int32_t)i % 4, i % 3 > 0, i % 4 ? 0 : 9);
}

/* NaNs, infinities, large and denormal numbers among keys, values and queries. */
static void test_special_numbers_equal_scalar(void **state) {
    (void)state;
    int count = 0;
    for (int i = 0; i < 24; i++)
        if (!share_skips(&count))
            check_shape((head_shape){TYPES[i % N_TYPES], 32, i % 3 ? 32 : 48, 1 + i % 4, 2}, i / 2 % 4, i % 4 > 1,
                        1 + 4 * i);
}

/* More states than there is memory for: some of the runs are not split. */
static void test_few_slots_equal_scalar(void **state) {
    (void)state;
    scene s = {0};
    int32_t whole = n_whole, split = n_split;
    for (int i = 0; i < 6; i++)
        scene_add(&s, 1030 + i, 1);
    scene_build(&s, (head_shape){MR_TYPE_F16, 16, 512, 128, 1}, 0);
    run_scalar(&s);
    run_gpu(&s, 1000, 2);
    assert_same_out(&s, 1000);
    assert_true(n_whole > whole && n_split > split);
    scene_deinit(&s);
}

/* Reads of shared memory take no more turns than their bytes need. */
static void test_no_bank_conflicts(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        scene s = {0};
        add_rows(&s, 1);
        scene_build(&s, (head_shape){TYPES[t], 128, 128, 4, 1}, 0);
        emulator_reset_counts();
        emulator_count_traffic(true);
        check(&s);
        emulator_count_traffic(false);
        emulator_counts counts = emulator_get_counts();
        assert_true(counts.n_shared_turns > 0);
        assert_int_equal(counts.n_bank_conflicts, 0);
    }
}

static void test_cases_have_whole_and_split_runs(void **state) {
    (void)state;
    assert_true(share_is_small() || (n_whole > 100 && n_split > 100));
}

static int set_mode(void **state) {
    (void)state;
    mr_thread_set_denormals_flushed();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_shape_equals_scalar),
        cmocka_unit_test(test_other_values_than_keys_equal_scalar),
        cmocka_unit_test(test_even_sizes_equal_scalar),
        cmocka_unit_test(test_special_numbers_equal_scalar),
        cmocka_unit_test(test_few_slots_equal_scalar),
        cmocka_unit_test(test_no_bank_conflicts),
        cmocka_unit_test(test_cases_have_whole_and_split_runs),
    };
    return cmocka_run_group_tests(tests, set_mode, NULL);
}
