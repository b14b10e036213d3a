/* Tests of the attention kernels (rules T and T8): every instruction set gives the bits of the scalar kernel, for any
 * batching of the rows, and the scalar kernel is close to a computation in doubles. Data that a row must not read is
 * poisoned. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "engine/base/fmath.h"
#include "engine/base/thread.h"
#include "tests/support/rng.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

static rng numbers = {.state = 1};

static void swap_i32(int32_t *a, int32_t *b) {
    int32_t t = *a;
    *a = *b;
    *b = t;
}

/* --- A scene: sequences with their keys and values in a store, and rows that look at them ---------------------------
 */

enum { MAX_ROWS = 128, MAX_SEQS = 16, STRIDE = 96, N_KV_HEADS = 3, OUT_PAD = 16 };
static const uint32_t GUARD_BITS = 0x7fabcdefu;
static const int32_t NOWHERE = 0x00ffffff; /* a block id outside of every store */

typedef struct scene {
    mr_attention_args args;
    int32_t n_rows, n_seqs, n_blocks;
    int32_t length[MAX_SEQS]; /* number of positions of each sequence */
    int32_t row_seq[MAX_ROWS], row_position[MAX_ROWS];
    int32_t table[MAX_SEQS * STRIDE];
    float *q, *out, *want, *k, *v; /* k, v: [sequence][position][kv head][head_dim], before they are stored */
    void *k_store, *v_store;
    size_t store_bytes;
} scene;

static void *xalloc(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
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

static void scene_shuffle_rows(scene *s) {
    for (int32_t i = s->n_rows - 1; i > 0; i--) {
        int32_t j = rng_below(&numbers, i + 1);
        swap_i32(&s->row_seq[i], &s->row_seq[j]);
        swap_i32(&s->row_position[i], &s->row_position[j]);
    }
}

/* Gives the blocks random ids. The entries of the table behind the last block are NOWHERE. */
static void scene_make_table(scene *s) {
    int32_t ids[MAX_SEQS * STRIDE], used = 0;
    s->n_blocks = 3;
    for (int32_t i = 0; i < s->n_seqs; i++)
        s->n_blocks += (s->length[i] + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    for (int32_t i = 0; i < s->n_blocks; i++)
        ids[i] = i;
    for (int32_t i = s->n_blocks - 1; i > 0; i--)
        swap_i32(&ids[i], &ids[rng_below(&numbers, i + 1)]);
    for (int32_t i = 0; i < s->n_seqs; i++)
        for (int32_t b = 0; b < STRIDE; b++)
            s->table[i * STRIDE + b] = b * MR_KV_BLOCK < s->length[i] ? ids[used++] : NOWHERE;
}

static float *scene_key(scene *s, int32_t seq, int32_t position) {
    return s->k + ((int64_t)seq * STRIDE * MR_KV_BLOCK + position) * N_KV_HEADS * s->args.k_dim;
}

static float *scene_value(scene *s, int32_t seq, int32_t position) {
    return s->v + ((int64_t)seq * STRIDE * MR_KV_BLOCK + position) * N_KV_HEADS * s->args.v_dim;
}

/* Poisons the store (all bits set is a NaN in both types), then writes every position of every sequence. */
static void scene_fill_store(scene *s) {
    memset(s->k_store, 0xff, s->store_bytes);
    memset(s->v_store, 0xff, s->store_bytes);
    for (int32_t seq = 0; seq < s->n_seqs; seq++)
        for (int32_t p = 0; p < s->length[seq]; p++) {
            int32_t slot = s->table[seq * STRIDE + p / MR_KV_BLOCK] * MR_KV_BLOCK + p % MR_KV_BLOCK;
            mr_kv_write_args w = {.k = scene_key(s, seq, p),
                                  .v = scene_value(s, seq, p),
                                  .slots = &slot,
                                  .k_store = s->k_store,
                                  .v_store = s->v_store,
                                  .k_block_bytes = s->args.k_block_bytes,
                                  .v_block_bytes = s->args.v_block_bytes,
                                  .kv_type = s->args.kv_type,
                                  .n_kv_heads = N_KV_HEADS,
                                  .k_dim = s->args.k_dim,
                                  .v_dim = s->args.v_dim};
            mr_kernels_get(MR_ISA_SCALAR)->kv_write(&w, 0, 1);
        }
}

static size_t out_floats(const scene *s) {
    return (size_t)s->n_rows * s->args.out_row_bytes / 4 + OUT_PAD;
}

/* Called after the sequences are added: allocates memory, makes the block table, and draws random keys, values and
 * queries. Does not write the store. */
static void scene_build_kv(scene *s, mr_type type, int32_t k_dim, int32_t v_dim, int32_t group) {
    int32_t n_heads = group * N_KV_HEADS, q_row = n_heads * k_dim + 5, out_row = n_heads * v_dim + OUT_PAD;
    int64_t n_kv = (int64_t)s->n_seqs * STRIDE * MR_KV_BLOCK * N_KV_HEADS * (k_dim > v_dim ? k_dim : v_dim);
    scene_make_table(s);
    size_t k_block_bytes = N_KV_HEADS * mr_kv_head_bytes(type, k_dim) + 64;
    size_t v_block_bytes = N_KV_HEADS * mr_kv_head_bytes(type, v_dim) + 64;
    s->store_bytes = (size_t)s->n_blocks * (k_block_bytes > v_block_bytes ? k_block_bytes : v_block_bytes);
    s->k_store = xalloc(s->store_bytes);
    s->v_store = xalloc(s->store_bytes);
    s->k = xalloc((size_t)n_kv * 4);
    s->v = xalloc((size_t)n_kv * 4);
    s->q = xalloc((size_t)(s->n_rows * q_row) * 4);
    s->args = (mr_attention_args){.q = s->q,
                                  .q_row_bytes = (size_t)q_row * 4,
                                  .k_store = s->k_store,
                                  .v_store = s->v_store,
                                  .k_block_bytes = k_block_bytes,
                                  .v_block_bytes = v_block_bytes,
                                  .kv_type = type,
                                  .row_seq = s->row_seq,
                                  .row_position = s->row_position,
                                  .block_table = s->table,
                                  .table_stride = STRIDE,
                                  .n_heads = n_heads,
                                  .n_kv_heads = N_KV_HEADS,
                                  .k_dim = k_dim,
                                  .v_dim = v_dim,
                                  .scale = 1.0f / sqrtf((float)k_dim),
                                  .out_row_bytes = (size_t)out_row * 4};
    s->out = xalloc(out_floats(s) * 4);
    s->want = xalloc(out_floats(s) * 4);
    for (int64_t i = 0; i < n_kv; i++)
        s->k[i] = rng_unit(&numbers) * 2.0f, s->v[i] = rng_unit(&numbers);
    for (int32_t i = 0; i < s->n_rows * q_row; i++)
        s->q[i] = rng_unit(&numbers) * 4.0f;
}

static void scene_build(scene *s, mr_type type, int32_t head_dim, int32_t group) {
    scene_build_kv(s, type, head_dim, head_dim, group);
}

static void scene_deinit(scene *s) {
    void *all[] = {s->q, s->out, s->want, s->k, s->v, s->k_store, s->v_store};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void poison_out(scene *s, float *out) {
    for (size_t i = 0; i < out_floats(s); i++)
        out[i] = mr_bits_f32(GUARD_BITS);
    s->args.out = out + OUT_PAD;
}

/* Compares every float of out, also the guards before, between and after the rows. */
static void assert_same_out(const scene *s) {
    for (size_t i = 0; i < out_floats(s); i++) {
        float a = s->out[i], b = s->want[i];
        bool is_guard = mr_f32_bits(b) == GUARD_BITS;
        if (mr_f32_bits(a) != mr_f32_bits(b) && (is_guard || a == a || b == b))
            fail_msg("float %zu: %.9g, scalar has %.9g", i, (double)a, (double)b);
    }
}

/* Query heads [first, last). */
static void run(const scene *s, mr_isa isa, int32_t row_first, int32_t row_last, int32_t first, int32_t last) {
    mr_attention_part part = {.row_first = row_first, .row_last = row_last, .head_first = first, .head_last = last};
    mr_kernels_get(isa)->attention(&s->args, &part);
}

static void run_scalar(scene *s) {
    poison_out(s, s->want);
    run(s, MR_ISA_SCALAR, 0, s->n_rows, 0, s->args.n_heads);
}

/* The number of rows from r on that may form one chain: rows of one sequence at rising positions, at most `most`. */
static int32_t chain_rows(const scene *s, int32_t r, int32_t most) {
    int32_t n = 1;
    while (n < most && r + n < s->n_rows && s->row_seq[r + n] == s->row_seq[r] &&
           s->row_position[r + n] >= s->row_position[r + n - 1])
        n++;
    return n;
}

/* Runs the rows as chains of some of the KV heads, or of a part of one, one partition in each call. */
static void run_chains(scene *s, mr_isa isa) {
    static mr_attention_chain chain;
    int32_t group = s->args.n_heads / N_KV_HEADS, most = mr_attention_most(s->args.k_dim, s->args.v_dim);
    for (int32_t r = 0, n; r < s->n_rows; r += n) {
        n = chain_rows(s, r, 1 + (group < most ? rng_below(&numbers, most / group) : 0));
        memset(&chain, 0xff, sizeof chain);
        chain.first = mr_attention_first(&s->args, r) / MR_ATTENTION_PARTITION;
        chain.last = s->row_position[r + n - 1] / MR_ATTENTION_PARTITION + 1;
        chain.next = chain.first;
        for (int32_t h = 0, heads; h < s->args.n_heads; h += heads) {
            heads = h % group == 0 ? group * (1 + rng_below(&numbers, N_KV_HEADS - h / group)) : group - h % group;
            heads = heads * n > most ? group - h % group : heads;
            if (heads <= group && (heads * n > most || rng_below(&numbers, 3) == 0))
                heads = 1 + rng_below(&numbers, heads * n > most ? most / n : heads);
            for (int32_t p = chain.first; p < chain.last; p++) {
                mr_attention_part part = {r, r + n, h, h + heads, &chain, p};
                assert_int_equal(chain.next, p);
                mr_kernels_get(isa)->attention(&s->args, &part);
            }
            assert_int_equal(chain.next, chain.first);
        }
    }
}

/* Runs all rows together, each row alone, random splits, and the heads apart. The result must always have the bits
 * of want. */
static void check_splits(scene *s, mr_isa isa) {
    for (int how = 0; how < 5; how++) {
        poison_out(s, s->out);
        int32_t group = s->args.n_heads / N_KV_HEADS, all = s->args.n_heads,
                middle = how == 1 ? group : (group + 1) / 2;
        for (int32_t r = 0, n; r < s->n_rows; r += n) {
            n = how == 0 ? s->n_rows : how == 1 ? 1 : 1 + rng_below(&numbers, how == 2 ? 4 : 40);
            n = n < s->n_rows - r ? n : s->n_rows - r;
            if (how % 2) {
                run(s, isa, r, r + n, group, all);
                if (middle < group)
                    run(s, isa, r, r + n, middle, group);
                run(s, isa, r, r + n, 0, middle);
            } else
                run(s, isa, r, r + n, 0, all);
        }
        assert_same_out(s);
    }
}

static void check_chains(scene *s, mr_isa isa) {
    poison_out(s, s->out);
    run_chains(s, isa);
    assert_same_out(s);
}

static void check_all(scene *s) {
    scene_fill_store(s);
    run_scalar(s);
    if (rng_below(&numbers, 4) == 0)
        check_chains(s, MR_ISA_SCALAR);
    for (int isa = MR_ISA_SCALAR + 1; isa <= (int)mr_isa_detect(); isa++) {
        if (mr_kernels_get((mr_isa)isa)->attention == mr_kernels_get((mr_isa)(isa - 1))->attention)
            continue; /* this instruction set has no kernel of its own */
        check_splits(s, (mr_isa)isa);
        check_chains(s, (mr_isa)isa);
    }
}

/* --- Tests ----------------------------------------------------------------------------------------------------------
 */

enum { N_TYPES = 3 };
static const mr_type TYPES[N_TYPES] = {MR_TYPE_F16, MR_TYPE_F32, MR_TYPE_Q8_0};

/* Sets a window around the sizes of block, tile and partition, a soft cap and sinks, or some of these. */
static void set_options(scene *s, float sinks[]) {
    static const int32_t WINDOWS[] = {0, 1, 2, 16, 17, 63, 64, 65, 130, 511, 512, 513, 700, 100000};
    s->args.window = WINDOWS[rng_below(&numbers, sizeof WINDOWS / sizeof WINDOWS[0])];
    s->args.soft_cap = rng_below(&numbers, 2) ? 1.0f + 4.0f * (rng_unit(&numbers) + 1.0f) : 0.0f;
    s->args.sinks = rng_below(&numbers, 2) ? sinks : NULL;
    if (rng_below(&numbers, 2))
        s->args.temperature =
            (mr_temperature){.growth = rng_unit(&numbers) + 1.0f, .length = 1 + (int32_t)rng_below(&numbers, 100)};
    for (int32_t h = 0; h < s->args.n_heads; h++)
        sinks[h] = rng_unit(&numbers) * 8.0f;
}

/* Checks one row for each context around the sizes of block, tile and partition, and a few chunks. */
static void check_shape(mr_type type, int32_t k_dim, int32_t v_dim, int32_t group) {
    static const int32_t CONTEXTS[] = {1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1100};
    static int count;
    if (share_skips(&count))
        return;
    scene s = {0};
    for (size_t i = 0; i < sizeof CONTEXTS / sizeof CONTEXTS[0]; i++)
        scene_add(&s, CONTEXTS[i], 1);
    scene_add(&s, 1, 21);
    scene_add(&s, 60, 9);
    scene_add(&s, 509, 7);
    if (rng_below(&numbers, 3) == 0)
        scene_shuffle_rows(&s);
    scene_build_kv(&s, type, k_dim, v_dim, group);
    float sinks[30 * N_KV_HEADS];
    if (rng_below(&numbers, 3) > 0)
        set_options(&s, sinks);
    check_all(&s);
    scene_deinit(&s);
}

static void test_every_shape_equals_scalar(void **state) {
    (void)state;
    static const int32_t DIMS[] = {16, 32, 64, 80, 96, 112, 128, 256}, GROUPS[] = {1, 2, 3, 4, 5, 7, 8, 20};
    for (int t = 0; t < N_TYPES; t++)
        for (int d = 0; d < 8; d++)
            for (int g = 0; g < 8 && mr_kv_head_bytes(TYPES[t], DIMS[d]) > 0; g++)
                if (!share_is_small() || g == (t + d) % 8) /* a shape takes ten seconds with a sanitizer */
                    check_shape(TYPES[t], DIMS[d], DIMS[d], GROUPS[g]);
}

/* Values that are narrower or wider than keys, and more query heads than a call takes at a time. */
static void test_other_values_than_keys_equal_scalar(void **state) {
    (void)state;
    static const int32_t DIMS[][3] = {{576, 512, 16}, {576, 512, 30}, {96, 64, 3}, {64, 128, 2}, {192, 128, 1}};
    for (int t = 0; t < N_TYPES; t++)
        for (size_t i = 0; i < sizeof DIMS / sizeof *DIMS; i++)
            check_shape(TYPES[t], DIMS[i][0], DIMS[i][1], DIMS[i][2]);
}

/* Heads of any even size. */
static void test_even_sizes_equal_scalar(void **state) {
    (void)state;
    static const int32_t DIMS[][3] = {{8, 8, 2},   {24, 24, 1},   {40, 40, 4}, {72, 72, 7},   {88, 88, 20}, {2, 2, 3},
                                      {10, 14, 8}, {24, 130, 16}, {50, 16, 5}, {80, 262, 30}, {66, 4, 1}};
    for (int t = 0; t < N_TYPES; t++)
        for (size_t i = 0; i < sizeof DIMS / sizeof *DIMS; i++)
            if (mr_kv_head_bytes(TYPES[t], DIMS[i][0]) > 0 && mr_kv_head_bytes(TYPES[t], DIMS[i][1]) > 0)
                check_shape(TYPES[t], DIMS[i][0], DIMS[i][1], DIMS[i][2]);
}

static void test_chunks_of_a_prompt_equal_scalar(void **state) {
    (void)state;
    int count = 0;
    for (int t = 0; t < N_TYPES; t++)
        for (int32_t group = 1; group <= 4; group *= 2) {
            if (share_skips(&count))
                continue;
            scene s = {0};
            scene_add(&s, 480, 70);
            scene_add(&s, 1, 50);
            scene_build(&s, TYPES[t], 64, group);
            check_all(&s);
            for (int i = 0; i < 2; i++) {
                float sinks[4 * N_KV_HEADS];
                set_options(&s, sinks);
                check_all(&s);
            }
            scene_deinit(&s);
        }
}

/* Rows far apart in one run: between their windows lie tiles that no row sees. */
static void test_windows_far_apart_equal_scalar(void **state) {
    (void)state;
    for (int i = share_first(12); i < 12; i += share_get()) {
        scene s = {0};
        float sinks[5 * N_KV_HEADS];
        scene_add(&s, 1500, 1);
        for (int32_t r = 1; r < 6; r++) {
            s.row_seq[s.n_rows] = 0;
            s.row_position[s.n_rows] = r * 250 + rng_below(&numbers, 200);
            swap_i32(&s.row_position[s.n_rows], &s.row_position[s.n_rows - 1]);
            s.n_rows++;
        }
        scene_build(&s, TYPES[i % N_TYPES], 64, 5);
        set_options(&s, sinks);
        s.args.window = 1 + rng_below(&numbers, 100);
        check_all(&s);
        scene_deinit(&s);
    }
}

/* If a row sees no infinity or NaN, values that other rows of its chunk see do not change its result, whether they
 * stand before or behind. */
static void test_other_positions_do_not_leak(void **state) {
    (void)state;
    static const float BAD[] = {INFINITY, -INFINITY, NAN};
    for (int i = share_first(24); i < 24; i += share_get()) {
        scene s = {0};
        scene_add(&s, 50, 30);
        scene_build(&s, TYPES[i % N_TYPES], 32, 1 + i % 4);
        bool has_window = i >= 12;
        s.args.window = has_window ? 20 : 0; /* the first row sees positions from 30 on */
        for (int32_t p = has_window ? 9 : 60; p < (has_window ? 40 : 79); p += 7) {
            (i % 3 ? scene_value(&s, 0, p) : scene_key(&s, 0, p))[3] = BAD[i % 3];
            (i % 3 ? scene_value(&s, 0, p) : scene_key(&s, 0, p))[32 + 3] = BAD[i % 3];
        }
        check_all(&s);
        for (int32_t r = 0; r < s.n_rows; r++)
            for (int32_t e = 0;
                 e < s.args.n_heads * 32 && (has_window ? s.row_position[r] > 57 : s.row_position[r] < 60); e++)
                assert_true(isfinite(s.want[OUT_PAD + (size_t)r * s.args.out_row_bytes / 4 + (size_t)e]));
        scene_deinit(&s);
    }
}

/* Scores that are NaN (with any payload), infinite, huge, denormal or all equal. */
static void test_special_scores_equal_scalar(void **state) {
    (void)state;
    const float specials[] = {
        NAN,    INFINITY, -INFINITY, mr_bits_f32(0x7fffffffu), mr_bits_f32(0xff800001u), 1e30f, -1e30f,
        1e-40f, 0.0f,     -0.0f};
    const int n_specials = sizeof specials / sizeof specials[0];
    for (int i = share_first(n_specials * N_TYPES * 2); i < n_specials * N_TYPES * 2; i += share_get()) {
        scene s = {0};
        scene_add(&s, 1, 3);
        scene_add(&s, 130, 4);
        scene_add(&s, 1030, 2);
        float sinks[2 * N_KV_HEADS];
        scene_build(&s, TYPES[i / n_specials % N_TYPES], 32, 2);
        if (i >= n_specials * N_TYPES)
            set_options(&s, sinks);
        float x = specials[i % n_specials];
        int32_t n_q = s.n_rows * (int32_t)(s.args.q_row_bytes / 4);
        for (int32_t e = 0; e < n_q; e++) {
            if (x == 0.0f || rng_below(&numbers, 97) == 0)
                s.q[e] = x;
        }
        for (int n = 0; n < 20; n++)
            scene_key(&s, 2, rng_below(&numbers, 1031))[rng_below(&numbers, 64)] = x;
        check_all(&s);
        bool is_nan = x != x || (s.args.kv_type == MR_TYPE_Q8_0 && !isfinite(x)); /* of the whole head */
        for (int32_t e = 0; e < 64; e++)
            s.q[e] = is_nan && e == 5 ? x : rng_unit(&numbers);
        check_all(&s);
        for (int32_t e = 0; e < 32 && is_nan; e++) /* the sink has no value that could hide the NaN */
            assert_true(isnan(s.want[OUT_PAD + e]));
        scene_deinit(&s);
    }
}

/* Weights that vanish, appear and vanish again, because the maximum rises and falls over tiles and partitions. */
static void test_moving_maximum_equals_scalar(void **state) {
    (void)state;
    for (int i = share_first(12); i < 12; i += share_get()) {
        scene s = {0};
        scene_add(&s, 700 + i * 64, 6);
        scene_build(&s, TYPES[i % N_TYPES], 32, 3);
        for (int32_t p = 0; p < s.length[0]; p++)
            for (int32_t e = 0; e < 2 * 32; e++)
                scene_key(&s, 0, p)[e] *= (float)((p * 7 / (10 + i * 40)) % 5) * 12.0f;
        check_all(&s);
        scene_deinit(&s);
    }
}

/* Softmax of q k, then the weighted sum, in doubles, from the values before they are stored. */
static double exact(scene *s, int32_t row, int32_t head, int32_t d) {
    int32_t dim = s->args.k_dim, seq = s->row_seq[row], kv = head / (s->args.n_heads / N_KV_HEADS) * dim;
    const float *q = s->q + (size_t)row * s->args.q_row_bytes / 4 + (size_t)(head * dim);
    int32_t first = s->args.window ? s->row_position[row] + 1 - s->args.window : 0;
    double sum = s->args.sinks ? exp((double)s->args.sinks[head]) : 0, out = 0, cap = (double)s->args.soft_cap;
    for (int32_t p = first < 0 ? 0 : first; p <= s->row_position[row]; p++) {
        double score = 0;
        for (int32_t e = 0; e < dim; e++)
            score += (double)q[e] * (double)scene_key(s, seq, p)[kv + e];
        score *= (double)s->args.scale;
        if (s->args.temperature.length > 0)
            score *= 1 + (double)s->args.temperature.growth *
                             log(1 + floor((double)s->row_position[row] / s->args.temperature.length));
        double w = exp(cap != 0 ? cap * tanh(score / cap) : score);
        sum += w;
        out += w * (double)scene_value(s, seq, p)[kv + d];
    }
    return out / sum;
}

static double worst_error(scene *s) {
    double worst = 0;
    for (int32_t r = 0; r < s->n_rows; r++)
        for (int32_t head = 0; head < s->args.n_heads; head++)
            for (int32_t d = head; d < 64; d += 9) {
                double got = (double)s->args.out[(size_t)r * s->args.out_row_bytes / 4 + (size_t)(head * 64 + d)];
                double error = fabs(got - exact(s, r, head, d));
                worst = error > worst ? error : worst;
            }
    return worst;
}

/* Makes keys and values that every type stores as they are: in q8_0, each 32 elements have a power of two as scale. */
static void make_storable(float *x, int64_t n) {
    float step = 0;
    for (int64_t i = 0; i < n; i++) {
        step = i % 32 == 0 ? 1.0f / (float)(64 << rng_below(&numbers, 3)) : step;
        x[i] = i % 32 == 0 ? 127.0f * step : (float)(rng_below(&numbers, 255) - 127) * step;
    }
}

static void test_scalar_is_close_to_double(void **state) {
    (void)state;
    static const float SINKS[2 * N_KV_HEADS] = {1, -2, 3, 0, 5, 9}, CAPS[] = {0, 0, 2.5f, 30};
    static const int32_t WINDOWS[] = {0, 3, 0, 600};
    int count = 0;
    for (int t = 0; t < N_TYPES; t++)
        for (int i = 0; i < 4; i++) {
            if (share_skips(&count))
                continue;
            double limit = TYPES[t] == MR_TYPE_Q8_0 ? 1e-3 : 3e-6;
            scene s = {0};
            scene_add(&s, 1, 4);
            scene_add(&s, 64, 3);
            scene_add(&s, 1100, 1);
            scene_build(&s, TYPES[t], 64, 2);
            make_storable(s.k, (int64_t)s.n_seqs * STRIDE * MR_KV_BLOCK * N_KV_HEADS * 64);
            make_storable(s.v, (int64_t)s.n_seqs * STRIDE * MR_KV_BLOCK * N_KV_HEADS * 64);
            s.args.window = WINDOWS[i];
            s.args.soft_cap = CAPS[i];
            s.args.temperature = (mr_temperature){0.1f, i % 2 ? 0 : 16};
            s.args.sinks = i % 2 ? SINKS : NULL;
            scene_fill_store(&s);
            run_scalar(&s);
            double error = worst_error(&s);
            if (error > limit)
                fail_msg("%s, options %d: an error of %g, allowed are %g", mr_type_name(TYPES[t]), i, error, limit);
            scene_deinit(&s);
        }
}

/* Rule T8: one position has nearly all weight, and each of the others less than half a step of it. Only those of its
 * own tile are lost. All values are 1, so the result is the share of the weights that are kept. */
static void test_small_weights_of_other_tiles_are_kept(void **state) {
    (void)state;
    enum { DIM = 32, N = 1500 };
    scene s = {0};
    scene_add(&s, N, 1);
    scene_build(&s, MR_TYPE_Q8_0, DIM, 1);
    for (int32_t p = 0; p < N; p++)
        for (int32_t e = 0; e < N_KV_HEADS * DIM; e++)
            scene_key(&s, 0, p)[e] = p == 0 ? 2.0f : 0.0f, scene_value(&s, 0, p)[e] = 1.0f;
    for (int32_t e = 0; e < N_KV_HEADS * DIM; e++)
        s.q[e] = 1.0f; /* scores 11.3 and 0: the others have 2 percent of the weight */
    check_all(&s);
    for (int32_t e = 0; e < N_KV_HEADS * DIM; e++)
        assert_true(fabsf(s.want[OUT_PAD + e] - 1.0f) < 2e-3f);
    scene_deinit(&s);
}

static int set_mode(void **state) {
    (void)state;
    mr_thread_set_denormals_flushed();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_shape_equals_scalar),
        cmocka_unit_test(test_chunks_of_a_prompt_equal_scalar),
        cmocka_unit_test(test_other_positions_do_not_leak),
        cmocka_unit_test(test_special_scores_equal_scalar),
        cmocka_unit_test(test_moving_maximum_equals_scalar),
        cmocka_unit_test(test_scalar_is_close_to_double),
        cmocka_unit_test(test_small_weights_of_other_tiles_are_kept),
        cmocka_unit_test(test_windows_far_apart_equal_scalar),
        cmocka_unit_test(test_other_values_than_keys_equal_scalar),
        cmocka_unit_test(test_even_sizes_equal_scalar),
    };
    return cmocka_run_group_tests(tests, set_mode, NULL);
}
