/* backends/cpu/self_test.c - runs every kernel on fixed inputs and adds the bits of the results to one digest. Sizes
 * are chosen so that full tiles and tails both run. A change of inputs or sizes changes the digest. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/self_test.h"

#include <math.h>
#include <string.h>

#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "engine/base/numerics.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/tensor/f16.h"
#include "engine/tensor/quant.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

enum {
    SEED = 1,
    POOL = 16384,           /* random floats; most inputs are views of them */
    OUT = 8192,             /* most floats of one result */
    MAX_K = 512,            /* most columns of a matrix */
    N = 41,                 /* rows of a matrix: a pair of panels, and a third panel that is not full */
    N_ROWS = 57,            /* activation rows */
    ROW_A8_BYTES = 640,     /* of MAX_K elements; a multiple of 64 */
    ROW_FILE_BYTES = 420,   /* of MAX_K elements of Q6_K, the longest */
    PANEL_BYTES = 12288,    /* of a panel of MAX_K elements of Q2_K, the longest */
    KV_BLOCKS = 79,         /* a prime, so that a factor scatters the blocks: make_block_table */
    KV_FLOATS = 256,        /* most KV heads times head elements */
    LONG_BLOCKS = 67,       /* most blocks of the first sequence */
    SHORT_POSITIONS = 131,  /* positions of the second sequence */
    N_QUERY_ROWS = 11,      /* five of the first sequence, six of the second */
    MAX_QUERY_FLOATS = 512, /* of one row */
    MAX_POSITIONS = LONG_BLOCKS * MR_KV_BLOCK,
};

/* Inputs, results and the digest so far. */
typedef struct trial {
    const mr_kernels *kernels;
    uint64_t digest;
    _Alignas(64) float pool[POOL];
    _Alignas(64) float x[N_ROWS][MAX_K];
    _Alignas(64) uint8_t a8[N_ROWS][ROW_A8_BYTES];
    _Alignas(64) uint8_t panels[(N + MR_PANEL - 1) / MR_PANEL * PANEL_BYTES];
    _Alignas(64) uint8_t k_store[KV_BLOCKS * KV_FLOATS * MR_KV_BLOCK * sizeof(float)];
    _Alignas(64) uint8_t v_store[KV_BLOCKS * KV_FLOATS * MR_KV_BLOCK * sizeof(float)];
    _Alignas(64) float out[OUT];
    mr_attention_chain chain;
    uint8_t file[N * ROW_FILE_BYTES];
    int32_t slots[MAX_POSITIONS];
    int32_t block_table[2][LONG_BLOCKS];
} trial;

/* --- The digest -------------------------------------------------------------------------------------------------- */

/* Adds a word to the digest. For a given word the new digest is a bijection of the old one; for a given digest it is a
 * bijection of the word. So a single word that differs always changes the final digest. */
static void add_word(trial *t, uint64_t word) {
    t->digest = (t->digest ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    t->digest ^= t->digest >> 32;
}

static void add_floats(trial *t, const float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        add_word(t, x[i] == x[i] ? mr_f32_bits(x[i]) : 0x7fc00000u);
}

static void add_bytes(trial *t, const uint8_t *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8)
        add_word(t, mr_load_le64(p));
    for (; n > 0; n--, p++)
        add_word(t, *p);
}

/* --- Inputs ------------------------------------------------------------------------------------------------------ */

/* Most values are in [-2, 2). Some are zeros of both signs, denormals, and numbers whose products are denormal. */
static float pool_value(uint64_t bits) {
    float x = (float)(int32_t)(bits >> 32) * 0x1p-30f;
    switch (bits % 64) {
    case 0:
        return x < 0 ? -0.0f : 0.0f;
    case 1:
        return mr_bits_f32((uint32_t)(bits >> 32) & 0x807fffffu);
    case 2:
        return x * 0x1p-20f; /* a subnormal half */
    case 3:
        return x * 0x1p-70f;
    default:
        return x;
    }
}

static void fill_inputs(trial *t) {
    for (uint64_t i = 0; i < POOL; i++)
        t->pool[i] = pool_value(mr_rng_u64(SEED, 0, i));
    for (int32_t r = 0; r < N_ROWS; r++) {
        memcpy(t->x[r], t->pool + 131 * r, sizeof t->x[r]);
        for (int32_t i = 0; i < MAX_K && r % 7 == 3; i++) /* scales just above and below the smallest of rule Q */
            t->x[r][i] *= r % 2 ? 0x1p-119f : 0x1p-120f;
    }
}

/* --- Rule F1 ----------------------------------------------------------------------------------------------------- */

static void test_functions(trial *t) {
    for (int32_t i = 0; i < 256; i++)
        t->out[i] = mr_expf((float)(i - 128) * 0.75f + t->pool[i]);
    for (int32_t i = 0; i < 64; i++)
        t->out[256 + i] = (float)mr_log(1.0 + 1000.0 * (double)i);
    for (int32_t i = 0; i < 128; i++)
        t->out[320 + i] = mr_tanhf(t->pool[i] * 4.0f);
    add_floats(t, t->out, 256 + 64 + 128);
}

/* --- Rules M, E, Q ----------------------------------------------------------------------------------------------- */

/* An odd number of elements or of small blocks, so that unrolled loops have a remainder. */
static int32_t columns_of(mr_type type) {
    int32_t block = mr_type_get(type)->block_elems;
    return block == 1 ? 97 : block == MR_Q8_0_BLOCK ? 5 * block : MAX_K;
}

/* Fills a block with random bits. Its scales (or its value) are finite and sometimes subnormal. */
static void fill_block(mr_type type, uint64_t idx, uint8_t *block, size_t block_bytes) {
    for (size_t i = 0; i < block_bytes; i++)
        block[i] = (uint8_t)mr_rng_u64(SEED, 1 + type, idx * block_bytes + i);
    uint64_t bits = mr_rng_u64(SEED, 1000 + type, idx);
    float value = pool_value(bits);
    if (type == MR_TYPE_F32)
        mr_store_le_f32(block, value);
    else
        mr_block_set_scale(type, block, mr_f32_to_f16(value * 0.02f), mr_f32_to_f16(value * 0.03f));
}

/* Makes a matrix of N rows in file layout. Adds values of its first rows to the digest, then repacks it into panels. */
static void make_weights(trial *t, mr_type type, int32_t k) {
    const mr_type_info *info = mr_type_get(type);
    size_t block_bytes = (size_t)info->block_bytes, n_blocks = (size_t)(k / info->block_elems);
    size_t row_bytes = n_blocks * block_bytes;
    MR_ASSERT(row_bytes <= ROW_FILE_BYTES && mr_panel_bytes(type, k) <= PANEL_BYTES);
    for (size_t i = 0; i < N * n_blocks; i++)
        fill_block(type, i, t->file + i * block_bytes, block_bytes);
    for (size_t row = 0; row < 3; row++) {
        mr_dequantize(type, t->file + row * row_bytes, t->out, k);
        add_floats(t, t->out, k);
    }
    mr_repack_args args = {.type = type, .k = k, .n = N, .src = t->file, .src_row_bytes = row_bytes, .dst = t->panels};
    mr_repack(&args, 0, (N + MR_PANEL - 1) / MR_PANEL);
}

static void add_a8_row(trial *t, const uint8_t *a8, int32_t n) {
    add_bytes(t, a8, (size_t)n);
    add_floats(t, (const float *)(const void *)(a8 + n), n / 32);
    add_bytes(t, a8 + n + n / 8, (size_t)n / 8);
}

static void make_activations(trial *t, mr_type type, int32_t k) {
    for (int32_t r = 0; r < N_ROWS; r++)
        if (type == MR_TYPE_A8) {
            t->kernels->quantize(t->x[r], t->a8[r], k);
            add_a8_row(t, t->a8[r], k);
        } else if (type == MR_TYPE_BF16) {
            t->kernels->round_bf16(t->x[r], (uint16_t *)(void *)t->a8[r], k);
            add_bytes(t, t->a8[r], 2 * (size_t)k);
        }
}

/* Products of 1, 2, 5, 16 and 33 rows, with every epilogue. */
static void test_matmul(trial *t, mr_type type) {
    static const int32_t ENDS[] = {0, 1, 3, 8, 24, N_ROWS};
    int32_t k = columns_of(type);
    bool as_float = mr_type_activation(type) == MR_TYPE_F32;
    make_weights(t, type, k);
    make_activations(t, mr_type_activation(type), k);
    for (int i = 0; i + 1 < COUNT(ENDS); i++) {
        int32_t n_values = (ENDS[i + 1] - ENDS[i]) * N;
        memcpy(t->out + ENDS[i] * N, t->pool + i, (size_t)n_values * sizeof(float));
        mr_matmul_args args = {.w = t->panels, .k = k, .n = N, .y = t->out, .y_row_bytes = N * sizeof(float)};
        args.a = as_float ? (const uint8_t *)t->x : t->a8[0];
        args.a_row_bytes = as_float ? sizeof t->x[0] : sizeof t->a8[0];
        args.bias = i % 2 ? t->pool + 77 : NULL;
        args.add = i / 2 % 2 ? t->out : NULL;
        args.add_row_bytes = args.y_row_bytes;
        t->kernels->matmul[mr_panel_of(type)](&args, 0, (N + MR_PANEL - 1) / MR_PANEL, ENDS[i], ENDS[i + 1]);
        add_floats(t, t->out + ENDS[i] * N, n_values);
    }
}

static void test_quantize_infinity(trial *t) {
    memcpy(t->out, t->x[0], sizeof t->x[0]);
    t->out[40] = -INFINITY;
    t->kernels->quantize(t->out, t->a8[0], 96);
    add_a8_row(t, t->a8[0], 96);
}

/* --- Rules N, G, C, R --------------------------------------------------------------------------------------------- */

static void test_rows(trial *t) {
    static const int32_t SIZES[] = {1, 7, 16, 33, 100, 2048};
    const float *x = t->pool + 1, *w = t->pool + 5000; /* x need not be aligned */
    float *gate = t->out + OUT / 2;
    for (int32_t i = 0; i < SIZES[COUNT(SIZES) - 1]; i++)
        gate[i] = x[i] * 55.0f; /* beyond both ends of the range of exp */
    for (int i = 0; i < COUNT(SIZES); i++) {
        int32_t n = SIZES[i], small = n < MAX_K ? n : MAX_K;
        t->kernels->rms_norm(x, w, t->out, 2 * n, n, 1e-5f);
        add_floats(t, t->out, 2 * n);
        t->kernels->rms_norm(t->x[3], w, t->out, small, small, 1e-5f);
        add_floats(t, t->out, small);
        t->kernels->glu(gate, w, t->out, n, (mr_glu){.kind = MR_GLU_SILU});
        add_floats(t, t->out, n);
        t->kernels->soft_cap(gate, t->out, n, 30.0f);
        add_floats(t, t->out, n);
    }
    for (int i = 1; i < 2 * MR_GLU_KINDS; i++) {
        t->kernels->glu(i % 2 ? x : gate, w, t->out, 100, (mr_glu){(mr_glu_kind)(i / 2), i % 2 ? 0.75f : 0.0f});
        add_floats(t, t->out, 100);
    }
}

/* Angles of a model with base 10000, with frequency factors and a ramp between the rows slow and keep. */
static void make_rope_table(trial *t, int32_t half, int32_t position, float *out) {
    float rows[MR_ROPE_ROWS][128], step = (float)mr_pow(10000.0, -1.0 / (double)half);
    const float *angles[MR_ROPE_ROWS];
    for (int r = 0; r < MR_ROPE_ROWS; r++)
        angles[r] = rows[r];
    for (int32_t i = 0; i < half; i++) {
        rows[MR_ROPE_STEP][i] = i == 0 ? 1.0f : step;
        rows[MR_ROPE_FACTOR][i] = 1.0f + (float)i * 0.125f;
        rows[MR_ROPE_KEEP][i] = (float)i / (float)half;
        rows[MR_ROPE_SLOW][i] = 0.25f * (1.0f - rows[MR_ROPE_KEEP][i]);
    }
    t->kernels->rope_table(angles, half, position, 1.125f, out);
    add_floats(t, out, 2 * half);
}

static void test_rope(trial *t) {
    static const struct {
        int32_t head_dim, n_rot, position;
    } CASES[] = {{16, 16, 0}, {64, 64, 1}, {80, 80, 4500}, {96, 18, 131071}, {256, 200, 1000000}};
    for (int i = 0; i < 2 * COUNT(CASES); i++) {
        int32_t dim = CASES[i / 2].head_dim, n_rot = CASES[i / 2].n_rot, n = 3 * dim;
        float *table = t->out + OUT / 2;
        make_rope_table(t, n_rot / 2, CASES[i / 2].position, table);
        memcpy(t->out, t->pool + i, (size_t)n * sizeof(float));
        t->kernels->rope(t->out, 3, dim, n_rot, i % 2 ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED, table);
        add_floats(t, t->out, n);
    }
}

/* --- Rules K and T ----------------------------------------------------------------------------------------------- */

typedef struct attention_case {
    int32_t head_dim, group, n_kv_heads;
    int32_t n_positions; /* of the first sequence: two or three partitions */
    int32_t window;
    float soft_cap;
    bool has_sinks;
    mr_temperature temperature;
} attention_case;

static void make_block_table(trial *t) {
    for (int32_t seq = 0; seq < 2; seq++)
        for (int32_t i = 0; i < LONG_BLOCKS; i++)
            t->block_table[seq][i] = (seq * LONG_BLOCKS + i) * 7 % KV_BLOCKS;
}

/* Writes keys and values of positions 0 .. n - 1. They are views of the pool, a few floats apart. */
static void write_kv(trial *t, mr_kv_write_args *args, int32_t seq, int32_t n) {
    for (int32_t p = 0; p < n; p++)
        t->slots[p] = t->block_table[seq][p / MR_KV_BLOCK] * MR_KV_BLOCK + p % MR_KV_BLOCK;
    args->k = t->pool + seq;
    args->v = t->pool + 100 + seq;
    args->k_row_bytes = 13 * sizeof(float);
    args->v_row_bytes = 11 * sizeof(float);
    args->slots = t->slots;
    t->kernels->kv_write(args, 0, n);
}

/* Fills the store. Positions that are not written stay NaN; no kernel may read them. */
static void fill_store(trial *t, const attention_case *c, mr_type type) {
    size_t block_bytes = (size_t)c->n_kv_heads * mr_kv_head_bytes(type, c->head_dim), bytes = KV_BLOCKS * block_bytes;
    mr_kv_write_args args = {.k_store = t->k_store, .v_store = t->v_store, .kv_type = type};
    args.k_block_bytes = args.v_block_bytes = block_bytes;
    args.n_kv_heads = c->n_kv_heads;
    args.k_dim = args.v_dim = c->head_dim;
    memset(t->k_store, 0xff, bytes);
    memset(t->v_store, 0xff, bytes);
    write_kv(t, &args, 0, c->n_positions);
    write_kv(t, &args, 1, SHORT_POSITIONS);
    add_bytes(t, t->k_store, bytes);
    add_bytes(t, t->v_store, bytes);
}

/* Computes one row of the first sequence as a chain, partition by partition. */
static void attend_in_parts(trial *t, const mr_attention_args *args, int32_t row) {
    mr_attention_part part = {.row_first = row, .row_last = row + 1, .head_last = args->n_heads, .chain = &t->chain};
    t->chain.first = mr_attention_first(args, row) / MR_ATTENTION_PARTITION;
    t->chain.next = t->chain.first;
    t->chain.last = args->row_position[row] / MR_ATTENTION_PARTITION + 1;
    for (part.partition = t->chain.first; part.partition < t->chain.last; part.partition++)
        t->kernels->attention(args, &part);
}

/* Attention of a single row, of two rows of a chunk, and of a prefill with positions around the borders of tiles. */
static void test_attention(trial *t, const attention_case *c, mr_type type) {
    static const int32_t SEQ[N_QUERY_ROWS] = {0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}, ENDS[] = {0, 1, 3, N_QUERY_ROWS};
    int32_t last = c->n_positions - 1, n = c->n_kv_heads * c->group * c->head_dim;
    int32_t position[N_QUERY_ROWS] = {last - 4, last - 3, last - 2, last - 1,           last, 0, 62,
                                      63,       64,       65,       SHORT_POSITIONS - 1};
    fill_store(t, c, type);
    mr_attention_args args = {.q = t->pool + 3,
                              .q_row_bytes = 1021 * sizeof(float),
                              .k_store = t->k_store,
                              .v_store = t->v_store,
                              .k_block_bytes = (size_t)c->n_kv_heads * mr_kv_head_bytes(type, c->head_dim),
                              .v_block_bytes = (size_t)c->n_kv_heads * mr_kv_head_bytes(type, c->head_dim),
                              .kv_type = type,
                              .row_seq = SEQ,
                              .row_position = position,
                              .block_table = t->block_table[0],
                              .table_stride = LONG_BLOCKS,
                              .n_heads = c->n_kv_heads * c->group,
                              .n_kv_heads = c->n_kv_heads,
                              .k_dim = c->head_dim,
                              .v_dim = c->head_dim,
                              .scale = 0.125f,
                              .soft_cap = c->soft_cap,
                              .temperature = c->temperature,
                              .window = c->window,
                              .sinks = c->has_sinks ? t->pool + 200 : NULL,
                              .out = t->out,
                              .out_row_bytes = MAX_QUERY_FLOATS * sizeof(float)};
    for (int i = 0; i + 1 < COUNT(ENDS); i++) {
        mr_attention_part part = {.row_first = ENDS[i], .row_last = ENDS[i + 1], .head_last = args.n_heads};
        t->kernels->attention(&args, &part);
    }
    attend_in_parts(t, &args, 1);
    for (int32_t r = 0; r < N_QUERY_ROWS; r++)
        add_floats(t, t->out + r * MAX_QUERY_FLOATS, n);
}

static void test_attentions(trial *t) {
    static const attention_case CASES[] = {
        {80, 3, 2, MAX_POSITIONS - 7, 0, 0, false, {0, 0}},
        {256, 1, 1, 530, 0, 0, false, {0, 0}},
        {16, 8, 2, 514, 0, 0, false, {0, 0}},
        {32, 5, 1, 577, 0, 0, false, {0, 0}},
        {48, 7, 1, 600, 0, 0, false, {0, 0}},
        {128, 4, 1, 513, 0, 0, false, {0, 0}},
        {64, 4, 2, 1030, 70, 2.5f, false, {0, 0}},
        {32, 6, 2, 600, 550, 0, true, {0, 0}},
        {96, 2, 2, 1000, 0, 30.0f, true, {0, 0}},
        {.head_dim = 32, .group = 3, .n_kv_heads = 1, .n_positions = 600, .temperature = {0.1f, 63}},
    };
    make_block_table(t);
    for (int i = 0; i < COUNT(CASES); i++) {
        test_attention(t, &CASES[i], MR_TYPE_F16);
        test_attention(t, &CASES[i], MR_TYPE_F32);
        if (CASES[i].head_dim % 32 == 0)
            test_attention(t, &CASES[i], MR_TYPE_Q8_0);
    }
}

/* --- All of it --------------------------------------------------------------------------------------------------- */

mr_status mr_kernels_digest(const mr_kernels *kernels, uint64_t *out_digest, mr_err *err) {
    trial *t = mr_pages_alloc(sizeof *t);
    if (!t)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the self-test: %zu bytes", sizeof *t);
    mr_thread_set_denormals_flushed();
    t->kernels = kernels;
    t->digest = MR_NUMERICS_VERSION;
    fill_inputs(t);
    test_functions(t);
    for (int type = 0; type < MR_TYPE_FILE_COUNT; type++)
        if (mr_panel_of((mr_type)type) != MR_PANEL_NONE)
            test_matmul(t, (mr_type)type);
    test_quantize_infinity(t);
    test_rows(t);
    test_rope(t);
    test_attentions(t);
    *out_digest = t->digest;
    mr_pages_free(t, sizeof *t);
    return MR_OK;
}

mr_status mr_cpu_self_test(uint64_t *out_digest, mr_err *err) {
    return mr_kernels_digest(mr_kernels_get(mr_isa_detect()), out_digest, err);
}
