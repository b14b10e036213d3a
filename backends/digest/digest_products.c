/* backends/digest/digest_products.c - everything that reads a matrix, for each type of weights: rules M, H, E, and what
 * rule X says of the products of experts. Matrices hold random bits; activations are made on the host, so a wrong
 * QUANTIZE does not show up here. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "backends/digest/digest_case.h"
#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/tensor/f16.h"
#include "engine/tensor/quant.h"

enum {
    MAX_K = 512,          /* most columns of a matrix: two blocks */
    SMALL_K = 160,        /* five small blocks */
    FILE_ROWS = 54,       /* of the matrix that all others are cut from */
    FILE_ROW_BYTES = 420, /* of MAX_K elements of Q6_K, the longest */
    N = 41,               /* rows of a matrix: a pair of panels, and a third panel that is not full */
    N_UNIT = 32,          /* of gate and up: a block of A8 */
    N_SMALL = 17,         /* of an expert, of a head: one panel and one row */
    MATRICES = 3,         /* of so many rows: of experts, of heads */
    USED = 2,             /* experts of each row */
    HEAD_TAIL = 7,        /* elements of a head that are copied */
    MAX_ROWS = 57,
    A8_ROW_BYTES = MAX_K + MAX_K / 4,
};

typedef struct products {
    trial *t;
    mr_type type; /* of the matrices */
    int32_t k;
    uint8_t file[FILE_ROWS * FILE_ROW_BYTES];
    size_t file_row_bytes;
    uint8_t a8[2][MAX_ROWS][A8_ROW_BYTES]; /* rows of the two numbers of elements that there are */
} products;

/* --- Inputs ------------------------------------------------------------------------------------------------------ */

/* An odd number of elements or of small blocks, so that unrolled loops have a remainder. */
static int32_t columns_of(mr_type type) {
    int32_t block = mr_type_get(type)->block_elems;
    return block == 1 ? 97 : block == MR_Q8_0_BLOCK ? SMALL_K : MAX_K;
}

/* Fills a block with random bits. Its scales (or its value) are finite and sometimes subnormal. */
static void fill_block(const products *p, uint64_t idx, uint8_t *block, size_t block_bytes) {
    uint32_t stream = 1 + (uint32_t)p->type;
    for (size_t i = 0; i < block_bytes; i += 16) {
        mr_philox bits = mr_philox4x32((mr_philox){{(uint32_t)idx, (uint32_t)i, stream}}, CASE_SEED, 0);
        for (size_t b = i; b < i + 16 && b < block_bytes; b++)
            block[b] = (uint8_t)(bits.word[b / 4 % 4] >> 8 * (b % 4));
    }
    float value = p->t->pool[(idx * 37 + stream * 331) % CASE_POOL];
    if (p->type == MR_TYPE_F32)
        mr_store_le_f32(block, value);
    else
        mr_block_set_scale(p->type, block, mr_f32_to_f16(value * 0.02f), mr_f32_to_f16(value * 0.03f));
}

static void fill_file(products *p, mr_type type) {
    const mr_type_info *info = mr_type_get(type);
    size_t block_bytes = (size_t)info->block_bytes;
    p->type = type;
    p->k = columns_of(type);
    size_t n_blocks = (size_t)(p->k / info->block_elems);
    p->file_row_bytes = n_blocks * block_bytes;
    MR_ASSERT(p->file_row_bytes <= FILE_ROW_BYTES);
    for (size_t i = 0; i < FILE_ROWS * n_blocks; i++)
        fill_block(p, i, p->file + i * block_bytes, block_bytes);
}

static const uint8_t *file_row(const products *p, int32_t row) {
    return p->file + (size_t)row * p->file_row_bytes;
}

/* Rows of A8 that rule Q could have made: any q, and a scale that is zero or normal, in some rows the smallest. The
 * last row has a NaN. */
static void fill_a8(const products *p, size_t k, uint8_t rows[MAX_ROWS][A8_ROW_BYTES]) {
    for (size_t r = 0; r < MAX_ROWS; r++)
        for (size_t b = 0; b < k / 32; b++) {
            int8_t *q = (int8_t *)rows[r] + 32 * b;
            int32_t sum = 0;
            float d = fabsf(p->t->pool[r * 61 + b]) * (r % 7 == 3 ? 0x1p-122f : 0x1p-6f);
            d = d < 0x1p-126f ? 0.0f : d;
            d = r == MAX_ROWS - 1 && b == 1 ? NAN : d;
            for (uint64_t i = 0, bits = 0; i < 32 && d > 0.0f; i++, bits >>= 8) {
                bits = i % 8 == 0 ? mr_rng_u64(CASE_SEED, 99, r * k + 32 * b + i) : bits;
                q[i] = (int8_t)((int)(bits & 255) % 255 - 127);
                sum += q[i];
            }
            memset(q, 0, d > 0.0f ? 0 : 32);
            memcpy(rows[r] + k + 4 * b, &d, sizeof d);
            memcpy(rows[r] + k + k / 8 + 4 * b, &sum, sizeof sum);
        }
}

/* Adds activations of the type that belongs to the matrices: rows first, first + 1, … of all that there are. */
static int32_t activations(products *p, int32_t n_rows, int32_t bucket, int32_t first, mr_row_count count) {
    trial *t = p->t;
    mr_type type = mr_type_activation(p->type);
    int32_t id = case_tensor(t, type, p->k, bucket, MR_STORAGE_INPUT, count);
    for (int32_t r = 0; r < n_rows; r++) {
        const float *x = t->pool + (first + r) * 131;
        uint16_t *half = case_row(t, id, r);
        if (type == MR_TYPE_F32)
            memcpy(half, x, (size_t)p->k * sizeof *x);
        else if (type == MR_TYPE_A8)
            memcpy(half, p->a8[p->k == MAX_K][(first + r) % MAX_ROWS], (size_t)p->k * 5 / 4);
        else
            for (int32_t i = 0; i < p->k + p->k % 2; i++) { /* an odd last element is followed by zero */
                uint16_t bits = (uint16_t)(mr_f32_bits(x[i]) >> 16);
                half[i] = i < p->k && (bits & 0x7f80) ? bits : 0;
            }
    }
    return id;
}

static int32_t rows_of(products *p, int32_t first) {
    return activations(p, p->t->n_rows, case_bucket(p->t), first, MR_ROWS_STEP);
}

/* n rows of the file as a matrix in file layout. */
static int32_t file_matrix(products *p, int32_t n) {
    int32_t id = case_tensor(p->t, p->type, p->k, n, MR_STORAGE_FILE, MR_ROWS_FIXED);
    memcpy(case_row(p->t, id, 0), p->file, (size_t)n * p->file_row_bytes);
    return id;
}

/* --- Ops --------------------------------------------------------------------------------------------------------- */

/* A product of rows first, first + 1, …, with an epilogue of four, on the result in place. w: MR_NO_TENSOR: a matrix in
 * file layout. */
static void run_matmul(products *p, int32_t w, int32_t first, int32_t n_rows, int epilogue) {
    trial *t = p->t;
    mr_node n = case_begin(t, MR_OP_MATMUL, n_rows);
    n.in[0] = w == MR_NO_TENSOR ? file_matrix(p, N) : w;
    n.in[1] = rows_of(p, first);
    if (epilogue & 1)
        n.in[2] = case_vectors(t, 77, N, 1);
    n.out = epilogue & 2 ? case_floats(t, epilogue, N) : case_result(t, MR_TYPE_F32, N);
    if (epilogue & 2)
        n.in[3] = n.out;
    case_run(t, &n);
}

static void run_matmuls(products *p) {
    static const int32_t ROWS[] = {1, 2, 5, 16, 33, MAX_ROWS};
    int32_t first = 0;
    case_forget(p->t);
    case_part(p->t, MR_OP_MATMUL, (int32_t)p->type);
    int32_t w = case_keep_matrices(p->t, p->type, p->k, N, 1, p->file);
    for (int i = 0; i < CASE_COUNT(ROWS) && w != MR_NO_TENSOR; i++) {
        run_matmul(p, w, first, ROWS[i], i);
        first = (first + ROWS[i]) % MAX_ROWS;
    }
    /* Of some types only: the CPU looks for free memory whenever it prepares such a program, which takes long. */
    if (p->type == MR_TYPE_F16 || p->type == MR_TYPE_Q8_0 || p->type == MR_TYPE_Q4_K)
        run_matmul(p, MR_NO_TENSOR, 5, 5, 0);
}

/* With every type of results; the kind of unit follows from the type of weights. */
static void run_gate_ups(products *p) {
    static const mr_type OUT[] = {MR_TYPE_A8, MR_TYPE_BF16, MR_TYPE_F32};
    trial *t = p->t;
    case_forget(t);
    case_part(t, MR_OP_GATE_UP, (int32_t)p->type);
    int32_t gate = case_keep_matrices(t, p->type, p->k, N_UNIT, 1, p->file);
    int32_t up = case_keep_matrices(t, p->type, p->k, N_UNIT, 1, file_row(p, 7));
    for (int i = 0; i < CASE_COUNT(OUT) && up != MR_NO_TENSOR; i++) {
        mr_node n = case_begin(t, MR_OP_GATE_UP, 1 + 4 * i);
        n.params.glu = (mr_glu){(mr_glu_kind)((int)p->type % MR_GLU_KINDS), i == 1 ? 2.5f : 0.0f};
        n.in[0] = gate;
        n.in[1] = up;
        n.in[2] = rows_of(p, 3 * i);
        n.out = case_result(t, OUT[i], N_UNIT);
        case_run(t, &n);
    }
}

/* Lists of slots, as EXPERT_ROWS makes them: expert e has the slots s with (s + s / USED) % MATRICES == e. The last
 * expert has none: the first one has its slots. */
static int32_t expert_lists(trial *t, int32_t most_slots) {
    int32_t id = case_tensor(t, MR_TYPE_I32, MATRICES + 1 + 2 * most_slots, 1, MR_STORAGE_INPUT, MR_ROWS_FIXED);
    int32_t n = 0;
    mr_expert_rows l = mr_expert_rows_at(case_row(t, id, 0), MATRICES, most_slots);
    for (int32_t e = 0; e < MATRICES; e++) {
        l.first[e] = n;
        for (int32_t s = 0; s < t->n_slots; s++)
            if ((s + s / USED) % MATRICES % (MATRICES - 1) == e) {
                l.slots[n] = s;
                l.rows[n++] = s / USED;
            }
    }
    l.first[MATRICES] = n;
    return id;
}

/* From the rows of the step, and from a row for each slot. */
static void run_experts(products *p, int32_t w) {
    trial *t = p->t;
    case_part(t, MR_OP_EXPERT_MATMUL, (int32_t)p->type);
    for (int i = 0; i < 3 && w != MR_NO_TENSOR; i++) {
        mr_node n = case_begin(t, MR_OP_EXPERT_MATMUL, i == 0 ? 1 : 9);
        int32_t most = USED * case_bucket(t);
        t->n_slots = USED * t->n_rows;
        n.params.experts.n = MATRICES;
        n.params.experts.n_used = USED;
        n.in[0] = w;
        n.in[1] = i == 2 ? activations(p, t->n_slots, most, i, MR_ROWS_SLOTS) : rows_of(p, i);
        n.in[2] = expert_lists(t, most);
        if (i > 0)
            n.in[3] = case_vectors(t, 5, N_SMALL, MATRICES);
        n.out = case_tensor(t, MR_TYPE_F32, N_SMALL, most, MR_STORAGE_OUTPUT, MR_ROWS_SLOTS);
        if (case_execute(t, &n))
            case_add_rows(t, n.out, t->n_slots);
    }
}

static void run_heads(products *p, int32_t w) {
    static const int32_t ROWS[] = {1, 5, 33};
    trial *t = p->t;
    case_part(t, MR_OP_HEAD_MATMUL, (int32_t)p->type);
    for (int i = 0; i < CASE_COUNT(ROWS) && w != MR_NO_TENSOR; i++) {
        mr_node n = case_begin(t, MR_OP_HEAD_MATMUL, ROWS[i]);
        n.in[0] = w;
        n.in[1] = case_floats(t, i, MATRICES * (p->k + HEAD_TAIL));
        n.params.heads.n = MATRICES;
        n.out = case_result(t, MR_TYPE_F32, MATRICES * (N_SMALL + HEAD_TAIL));
        case_run(t, &n);
    }
}

static void run_embed(products *p) {
    static const int32_t IDS[] = {N - 1, 0, 7, 7, 19};
    case_part(p->t, MR_OP_EMBED, (int32_t)p->type);
    mr_node n = case_begin(p->t, MR_OP_EMBED, CASE_COUNT(IDS));
    n.in[0] = file_matrix(p, N);
    n.in[1] = case_ints(p->t, IDS);
    n.out = case_result(p->t, MR_TYPE_F32, p->k);
    case_run(p->t, &n);
}

void digest_products(trial *t) {
    products *p = mr_alloc(sizeof *p);
    if (!p) {
        t->status = mr_err_set(t->err, MR_E_NO_MEMORY, "no memory for the digest of products");
        return;
    }
    p->t = t;
    fill_a8(p, SMALL_K, p->a8[0]);
    fill_a8(p, MAX_K, p->a8[1]);
    for (int type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        const mr_type_info *info = mr_type_get(type);
        if (!info || !info->is_weight)
            continue;
        fill_file(p, (mr_type)type);
        run_matmuls(p);
        run_gate_ups(p);
        case_forget(t);
        int32_t w = case_keep_matrices(t, p->type, p->k, N_SMALL, MATRICES, file_row(p, 3));
        run_experts(p, w);
        run_heads(p, w);
        run_embed(p);
    }
    mr_free(p);
}
