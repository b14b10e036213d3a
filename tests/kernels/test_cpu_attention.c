/* Tests of attention on the CPU backend: for rows of many kinds and any number of threads, the tasks give the bits of
 * one call of the kernel. Also tests the KV write that rotates keys. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/kernels.h"
#include "engine/base/fmath.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

enum { MAX_ROWS = 96, SEQS = 4, STRIDE = 256, DIM = 32, MAX_HEADS = 16, N_NODES = 3, N_TENSORS = 6 + N_NODES };
enum { Q, K, V, SEQ, POSITION, TABLE, OUT };

static rng numbers = {.state = 1};

/* Attention of the same rows in three nodes: one node alone, then two nodes at once. */
typedef struct scene {
    mr_backend *be;
    mr_buffer *buffer;
    mr_program *program;
    mr_tensor tensors[N_TENSORS];
    mr_node nodes[N_NODES];
    int32_t n_rows;
    int32_t row_seq[MAX_ROWS], row_position[MAX_ROWS];
} scene;

typedef struct shape {
    int32_t n_heads, n_kv_heads, window;
    mr_type type;
} shape;

static void set(scene *s, int tensor, const void *src, size_t bytes) {
    mr_fence fence;
    const mr_tensor *t = &s->tensors[tensor];
    assert_int_equal(s->be->ops->set(s->be, t->buffer, t->offset, src, bytes, &fence, NULL), MR_OK);
}

static void place(scene *s, const shape *h) {
    const struct {
        mr_type type;
        int32_t columns, rows;
        mr_row_count count;
    } specs[N_TENSORS] = {
        [Q] = {MR_TYPE_F32, h->n_heads * DIM, MAX_ROWS, MR_ROWS_STEP},
        [K] = {h->type, h->n_kv_heads * DIM * MR_KV_BLOCK, STRIDE, MR_ROWS_FIXED},
        [V] = {h->type, h->n_kv_heads * DIM * MR_KV_BLOCK, STRIDE, MR_ROWS_FIXED},
        [SEQ] = {MR_TYPE_I32, 1, MAX_ROWS, MR_ROWS_STEP},
        [POSITION] = {MR_TYPE_I32, 1, MAX_ROWS, MR_ROWS_STEP},
        [TABLE] = {MR_TYPE_I32, STRIDE, SEQS, MR_ROWS_FIXED},
        [OUT] = {MR_TYPE_F32, h->n_heads * DIM, MAX_ROWS, MR_ROWS_STEP},
        [OUT + 1] = {MR_TYPE_F32, h->n_heads * DIM, MAX_ROWS, MR_ROWS_STEP},
        [OUT + 2] = {MR_TYPE_F32, h->n_heads * DIM, MAX_ROWS, MR_ROWS_STEP},
    };
    size_t bytes = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        assert_true(mr_tensor_init(&s->tensors[i], "t", specs[i].type, specs[i].columns, specs[i].rows, MR_STORAGE_WORK,
                                   specs[i].count));
        s->tensors[i].offset = bytes;
        bytes += mr_round_up(s->tensors[i].bytes, 64);
    }
    assert_int_equal(s->be->ops->buffer_create(s->be, bytes, &s->buffer, NULL), MR_OK);
    for (int i = 0; i < N_TENSORS; i++)
        s->tensors[i].buffer = s->buffer;
}

/* Fills the scene with data that depends on the seed only, not on the number of threads. */
static void fill(scene *s) {
    int32_t table[SEQS][STRIDE];
    for (int32_t i = 0; i < SEQS * STRIDE; i++)
        table[i / STRIDE][i % STRIDE] = (i % STRIDE * 7 + i / STRIDE * 31) % STRIDE;
    set(s, TABLE, table, sizeof table);
    for (int t = Q; t <= V; t++) {
        size_t bytes = s->tensors[t].bytes;
        uint8_t *p = malloc(bytes);
        assert_non_null(p);
        for (size_t i = 0; i < bytes / 4; i++) { /* keeps the exponent below that of infinity */
            uint32_t bits = t == Q ? mr_f32_bits((float)rng_below(&numbers, 2001) * 1e-3f - 1.0f)
                                   : rng_next(&numbers) & 0x3fff3fffu;
            memcpy(p + i * 4, &bits, 4);
        }
        set(s, t, p, bytes);
        free(p);
    }
}

static void scene_init(scene *s, const shape *h, int32_t n_threads) {
    assert_int_equal(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = n_threads}, &s->be, NULL), MR_OK);
    place(s, h);
    fill(s);
    for (int i = 0; i < N_NODES; i++) {
        s->nodes[i] = (mr_node){
            .op = MR_OP_ATTENTION, .in = {Q, K, V, SEQ, POSITION, TABLE, MR_NO_TENSOR}, .out = OUT + i, .group = i > 0};
        s->nodes[i].params.attention.n_heads = h->n_heads;
        s->nodes[i].params.attention.n_kv_heads = h->n_kv_heads;
        s->nodes[i].params.attention.k_dim = s->nodes[i].params.attention.v_dim = DIM;
        s->nodes[i].params.attention.scale = 0.25f;
        s->nodes[i].params.attention.window = h->window;
    }
    mr_program_desc desc = {.tensors = s->tensors, .nodes = s->nodes, .n_nodes = N_NODES};
    assert_int_equal(s->be->ops->program_create(s->be, &desc, &s->program, NULL), MR_OK);
}

static void scene_deinit(scene *s) {
    s->be->ops->program_destroy(s->be, s->program);
    s->be->ops->buffer_destroy(s->be, s->buffer);
    mr_backend_destroy(s->be);
}

/* Makes decoding rows, chunks of a prompt, or both, with contexts of up to eight partitions. */
static void make_rows(scene *s) {
    s->n_rows = 0;
    int32_t n_runs = 1 + rng_below(&numbers, 6);
    for (int32_t i = 0; i < n_runs; i++) {
        int32_t n = rng_below(&numbers, 3) ? 1 : 1 + rng_below(&numbers, MAX_ROWS / 6);
        int32_t position = rng_below(&numbers, rng_below(&numbers, 2) ? STRIDE * MR_KV_BLOCK - n : 600),
                seq = rng_below(&numbers, SEQS);
        for (int32_t r = 0; r < n; r++, s->n_rows++) {
            s->row_seq[s->n_rows] = seq;
            s->row_position[s->n_rows] = position + r;
        }
    }
    set(s, SEQ, s->row_seq, sizeof s->row_seq);
    set(s, POSITION, s->row_position, sizeof s->row_position);
}

/* Computes all rows by one call of the kernel. */
static void run_kernel(const scene *s, const shape *h, const uint8_t *memory, float *out) {
    const mr_tensor *t = s->tensors;
    mr_attention_args args = {.q = (const float *)(const void *)(memory + t[Q].offset),
                              .q_row_bytes = t[Q].row_bytes,
                              .k_store = memory + t[K].offset,
                              .v_store = memory + t[V].offset,
                              .k_block_bytes = t[K].row_bytes,
                              .v_block_bytes = t[V].row_bytes,
                              .kv_type = h->type,
                              .row_seq = s->row_seq,
                              .row_position = s->row_position,
                              .block_table = (const int32_t *)(const void *)(memory + t[TABLE].offset),
                              .table_stride = STRIDE,
                              .n_heads = h->n_heads,
                              .n_kv_heads = h->n_kv_heads,
                              .k_dim = DIM,
                              .v_dim = DIM,
                              .scale = 0.25f,
                              .window = h->window,
                              .out = out,
                              .out_row_bytes = t[OUT].row_bytes};
    mr_attention_part part = {.row_last = s->n_rows, .head_last = h->n_heads};
    mr_kernels_get(mr_isa_detect())->attention(&args, &part);
}

static void check_run(scene *s, const shape *h) {
    static _Alignas(64) float want[MAX_ROWS * MAX_HEADS * DIM], got[MAX_ROWS * MAX_HEADS * DIM];
    size_t all = s->tensors[OUT + N_NODES - 1].offset + s->tensors[OUT].bytes;
    size_t bytes = (size_t)s->n_rows * s->tensors[OUT].row_bytes;
    uint8_t *memory = aligned_alloc(64, mr_round_up(all, 64));
    mr_fence fence;
    assert_non_null(memory);
    assert_int_equal(s->be->ops->get(s->be, s->buffer, 0, memory, all, &fence, NULL), MR_OK);
    run_kernel(s, h, memory, want);
    mr_run run = {.n_rows = {[MR_ROWS_STEP] = s->n_rows}};
    uint64_t allocs = mr_mem_get_stats().n_allocs;
    assert_int_equal(s->be->ops->submit(s->be, s->program, &run, &fence, NULL), MR_OK);
    assert_int_equal(mr_mem_get_stats().n_allocs, allocs);
    for (int i = 0; i < N_NODES; i++) {
        assert_int_equal(s->be->ops->get(s->be, s->buffer, s->tensors[OUT + i].offset, got, bytes, &fence, NULL),
                         MR_OK);
        for (size_t e = 0; e < bytes / 4; e++)
            if (mr_f32_bits(got[e]) != mr_f32_bits(want[e]) && (got[e] == got[e] || want[e] == want[e]))
                fail_msg("node %d, float %zu of %d rows: %.9g, wanted %.9g", i, e, s->n_rows, (double)got[e],
                         (double)want[e]);
    }
    free(memory);
}

static void test_any_cut_gives_the_same_bits(void **state) {
    (void)state;
    static const shape SHAPES[] = {{8, 2, 0, MR_TYPE_F16}, {4, 4, 1300, MR_TYPE_F32}, {16, 1, 0, MR_TYPE_Q8_0}};
    static const int32_t THREADS[] = {1, 2, 3, 8, 24};
    mr_thread_set_denormals_flushed();
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++)
        for (size_t n = 0; n < sizeof THREADS / sizeof THREADS[0]; n++) {
            scene s = {0};
            scene_init(&s, &SHAPES[i], THREADS[n]);
            for (int run = 0; run < 6; run++) {
                make_rows(&s);
                check_run(&s, &SHAPES[i]);
            }
            scene_deinit(&s);
        }
}

/* --- Keys that turn while they are written ----------------------------------------------------------------------- */

enum { T_K, T_V, T_SLOTS, T_K_STORE, T_V_STORE, T_TABLE, T_TURNED, T_COUNT, KV_ROWS = 40 };

static void run_nodes(mr_backend *be, mr_tensor *tensors, mr_node *nodes, int32_t n) {
    mr_program *program = NULL;
    mr_fence fence;
    mr_run run = {.n_rows = {[MR_ROWS_STEP] = KV_ROWS}};
    mr_program_desc desc = {.tensors = tensors, .nodes = nodes, .n_nodes = n};
    assert_int_equal(be->ops->program_create(be, &desc, &program, NULL), MR_OK);
    assert_int_equal(be->ops->submit(be, program, &run, &fence, NULL), MR_OK);
    be->ops->program_destroy(be, program);
}

/* A single node stores the same bytes as a RoPE node and a write node, and leaves k unchanged. */
static void check_turned_write(mr_type type, mr_rope_pairs pairs, int32_t n_rot, int32_t n_threads) {
    enum { HEADS = 3, WIDTH = HEADS * DIM, BLOCKS = 4 };
    mr_tensor t[T_COUNT];
    mr_backend *be = NULL;
    mr_buffer *buffer = NULL;
    size_t bytes = 0;
    mr_fence fence;
    static uint8_t first[1 << 18], second[1 << 18];
    assert_int_equal(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = n_threads}, &be, NULL), MR_OK);
    for (int i = 0; i < T_COUNT; i++) {
        bool is_store = i == T_K_STORE || i == T_V_STORE;
        int32_t columns = is_store ? WIDTH * MR_KV_BLOCK : i == T_SLOTS ? 1 : i == T_TABLE ? n_rot : WIDTH;
        assert_true(mr_tensor_init(&t[i], "t",
                                   is_store       ? type
                                   : i == T_SLOTS ? MR_TYPE_I32
                                                  : MR_TYPE_F32,
                                   columns, is_store ? BLOCKS : KV_ROWS, MR_STORAGE_WORK,
                                   is_store ? MR_ROWS_FIXED : MR_ROWS_STEP));
        t[i].offset = bytes;
        bytes += mr_round_up(t[i].bytes, 64);
    }
    assert_true(bytes <= sizeof first);
    assert_int_equal(be->ops->buffer_create(be, bytes, &buffer, NULL), MR_OK);
    for (size_t i = 0; i < bytes / 4; i++)
        ((float *)(void *)first)[i] = (float)rng_below(&numbers, 2001) * 1e-3f - 1.0f;
    for (int32_t r = 0; r < KV_ROWS; r++)
        ((int32_t *)(void *)(first + t[T_SLOTS].offset))[r] = (r * 5 + 3) % (BLOCKS * MR_KV_BLOCK);
    for (int i = 0; i < T_COUNT; i++)
        t[i].buffer = buffer;
    mr_node write = {
        .op = MR_OP_KV_WRITE,
        .in = {T_K, T_V, T_SLOTS, T_K_STORE, T_V_STORE, T_TABLE, MR_NO_TENSOR},
        .out = MR_NO_TENSOR,
        .params.attention = {.n_kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM, .n_rot = n_rot, .pairs = pairs}};
    assert_int_equal(be->ops->set(be, buffer, 0, first, bytes, &fence, NULL), MR_OK);
    run_nodes(be, t, &write, 1);
    assert_int_equal(be->ops->get(be, buffer, 0, second, bytes, &fence, NULL), MR_OK);
    assert_memory_equal(first + t[T_K].offset, second + t[T_K].offset, t[T_K].bytes);

    mr_node apart[2] = {{.op = MR_OP_ROPE, .out = T_TURNED, .params.rope = {DIM, n_rot, pairs, 0, 0}}, write};
    const int32_t in[MR_MAX_INPUTS] = {T_K, T_TABLE, -1, -1, -1, -1, -1};
    memcpy(apart[0].in, in, sizeof in);
    apart[1].group = 1;
    apart[1].in[0] = T_TURNED;
    apart[1].in[5] = MR_NO_TENSOR;
    assert_int_equal(be->ops->set(be, buffer, 0, first, bytes, &fence, NULL), MR_OK);
    run_nodes(be, t, apart, 2);
    assert_int_equal(be->ops->get(be, buffer, 0, first, bytes, &fence, NULL), MR_OK);
    assert_memory_equal(first, second, t[T_TURNED].offset);
    be->ops->buffer_destroy(be, buffer);
    mr_backend_destroy(be);
}

static void test_keys_turn_while_they_are_written(void **state) {
    (void)state;
    static const mr_type TYPES[] = {MR_TYPE_F16, MR_TYPE_F32, MR_TYPE_Q8_0};
    for (int i = 0; i < 12; i++)
        check_turned_write(TYPES[i % 3], i % 2 ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED, i < 6 ? DIM : 18, 1 + i % 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_cut_gives_the_same_bits),
        cmocka_unit_test(test_keys_turn_while_they_are_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
