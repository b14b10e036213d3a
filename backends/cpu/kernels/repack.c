/* backends/cpu/kernels/repack.c - rearranges rows of the file into panels of 16 rows (layouts: kernels.h,
 * matmul_panels.h). No number changes: scales and values keep their bits, or are stored as the same numbers in another
 * form. Rows may lie at any address. Four values of one row move as one 32-bit word. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/matmul_panels.h"

enum { COLUMNS = 16 }; /* columns of floats that are moved for one row before the next row's */

typedef const uint8_t *row_ptrs[MR_PANEL]; /* NULL: past the end of the matrix */

static uint32_t load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static void store32(uint8_t *p, uint32_t v) {
    memcpy(p, &v, 4);
}
static uint16_t load16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

/* --- Floats ------------------------------------------------------------------------------------------------------ */

/* Moves elements of so many bytes, COLUMNS columns at a time: in the panel, these columns lie in few cache lines. */
static inline __attribute__((always_inline)) void repack_elems(uint8_t *dst, const row_ptrs rows, size_t n,
                                                               size_t bytes) {
    for (size_t first = 0; first < n; first += COLUMNS) {
        size_t last = n - first < COLUMNS ? n : first + COLUMNS;
        for (size_t r = 0; r < MR_PANEL; r++)
            if (rows[r])
                for (size_t i = first; i < last; i++)
                    memcpy(dst + (i * MR_PANEL + r) * bytes, rows[r] + i * bytes, bytes);
    }
}

static void repack_f32(uint8_t *dst, const row_ptrs rows, int32_t k) {
    repack_elems(dst, rows, (size_t)k, 4);
}

/* Moves two columns of two rows at a time. */
static void repack_f16(uint8_t *dst, const row_ptrs rows, int32_t k) {
    size_t pairs = (size_t)k / 2 * 2;
    for (size_t first = 0; first < pairs; first += COLUMNS) {
        size_t last = pairs - first < COLUMNS ? pairs : first + COLUMNS;
        for (size_t r = 0; r < MR_PANEL && rows[r]; r += 2)
            for (size_t i = first; i < last; i += 2) {
                uint32_t a = load32(rows[r] + 2 * i), b = rows[r + 1] ? load32(rows[r + 1] + 2 * i) : 0;
                store32(dst + (i * MR_PANEL + r) * 2, (a & 0xffffu) | b << 16);
                store32(dst + ((i + 1) * MR_PANEL + r) * 2, a >> 16 | (b & 0xffff0000u));
            }
    }
    for (size_t r = 0; r < MR_PANEL && k % 2; r++)
        if (rows[r])
            memcpy(dst + (pairs * MR_PANEL + r) * 2, rows[r] + 2 * pairs, 2);
}

/* Moves pairs of columns as one element. */
static void repack_bf16(uint8_t *dst, const row_ptrs rows, int32_t k) {
    size_t n = (size_t)k / 2;
    repack_elems(dst, rows, n, 4);
    for (size_t r = 0; r < MR_PANEL && k % 2; r++)
        if (rows[r])
            store32(dst + (n * MR_PANEL + r) * 4, load16(rows[r] + n * 4));
}

/* --- Blocks: each function moves one block of one row into lane r of the panel's block (or blocks) at dst -------- */

static void block_q8_0(uint8_t *dst, int r, const uint8_t *src) {
    mr_panel_q8_0 *p = (mr_panel_q8_0 *)(void *)dst;
    p->d[r] = load16(src);
    for (int g = 0; g < 8; g++)
        store32(p->q[g][r], load32(src + offsetof(mr_block_q8_0, q) + 4 * g) ^ 0x80808080u);
}

static void block_q4_0(uint8_t *dst, int r, const uint8_t *src) {
    mr_panel_q4_0 *p = (mr_panel_q4_0 *)(void *)dst;
    p->d[r] = load16(src);
    for (int g = 0; g < 4; g++)
        store32(p->q[g][r], load32(src + offsetof(mr_block_q4_0, q) + 4 * g));
}

static void block_mxfp4(uint8_t *dst, int r, const uint8_t *src) {
    mr_panel_mxfp4 *p = (mr_panel_mxfp4 *)(void *)dst;
    p->e[r] = src[0];
    for (int g = 0; g < 4; g++)
        store32(p->q[g][r], load32(src + offsetof(mr_block_mxfp4, q) + 4 * g));
}

static void put_bytes(uint8_t groups[8][MR_PANEL][4], int r, const int8_t q[32]) {
    for (int g = 0; g < 8; g++)
        store32(groups[g][r], load32((const uint8_t *)q + 4 * g) ^ 0x80808080u); /* + 128 */
}

/* Values 0..15 */
static void put_nibbles(uint8_t groups[4][MR_PANEL][4], int r, const int8_t q[32]) {
    const uint8_t *bytes = (const uint8_t *)q;
    for (int g = 0; g < 4; g++)
        store32(groups[g][r], load32(bytes + 4 * g) | load32(bytes + 16 + 4 * g) << 4);
}

static void block_q5_0(uint8_t *dst, int r, const uint8_t *src) {
    mr_panel_q8_0 *p = (mr_panel_q8_0 *)(void *)dst;
    mr_quants u;
    mr_unpack(MR_TYPE_Q5_0, src, &u);
    p->d[r] = load16(src);
    put_bytes(p->q, r, u.q);
}

/* Values -1..2 */
static void block_tq(mr_type type, mr_panel_q4_0 *p, int r, const uint8_t *src, size_t d_at) {
    mr_quants u;
    mr_unpack(type, src, &u);
    for (int j = 0; j < 8; j++, p++) {
        p->d[r] = load16(src + d_at);
        for (int i = 0; i < 32; i++)
            u.q[32 * j + i] = (int8_t)(u.q[32 * j + i] + 8);
        put_nibbles(p->q, r, u.q + 32 * j);
    }
}
static void block_tq1_0(uint8_t *dst, int r, const uint8_t *src) {
    block_tq(MR_TYPE_TQ1_0, (mr_panel_q4_0 *)(void *)dst, r, src, offsetof(mr_block_tq1_0, d));
}
static void block_tq2_0(uint8_t *dst, int r, const uint8_t *src) {
    block_tq(MR_TYPE_TQ2_0, (mr_panel_q4_0 *)(void *)dst, r, src, offsetof(mr_block_tq2_0, d));
}

/* Moves sub-blocks 2 * pair and 2 * pair + 1 of Q4_K or Q5_K from 32 bytes of the file. */
static void put_pair_k4(mr_panel_q4_k *p, int pair, int r, const uint8_t bytes[32]) {
    for (int g = 0; g < 4; g++) {
        uint32_t lo = load32(bytes + g * 4), hi = load32(bytes + g * 4 + 16);
        store32(p->q[2 * pair][g][r], (lo & 0x0f0f0f0fu) | (hi & 0x0f0f0f0fu) << 4);
        store32(p->q[2 * pair + 1][g][r], (lo >> 4 & 0x0f0f0f0fu) | (hi & 0xf0f0f0f0u));
    }
}

/* d, dmin and scales stand at the same place in Q4_K and Q5_K. */
static void put_scales_k4(mr_panel_q4_k *p, int r, const uint8_t *src) {
    p->d[r] = load16(src);
    p->dmin[r] = load16(src + 2);
    for (int j = 0; j < 8; j++)
        mr_q4_k_scale(src + 4, j, &p->scale[j].sc[r], &p->scale[j].m[r]);
}

static void block_q4_k(uint8_t *dst, int r, const uint8_t *src) {
    mr_panel_q4_k *p = (mr_panel_q4_k *)(void *)dst;
    put_scales_k4(p, r, src);
    for (int pair = 0; pair < 4; pair++)
        put_pair_k4(p, pair, r, src + offsetof(mr_block_q4_k, q) + 32 * pair);
}

/* One of three steps of a transposition: bit j of byte i of word g becomes bit g of byte i of word j. A step exchanges
 * bits that are n apart between words that are n apart. */
static void swap_bits(uint32_t words[8], int n, uint32_t mask) {
    for (int g = 0; g < 8; g++)
        if (!(g & n)) {
            uint32_t t = (words[g] >> n ^ words[g + n]) & mask;
            words[g + n] ^= t;
            words[g] ^= t << n;
        }
}

static void block_q5_k(uint8_t *dst, int r, const uint8_t *src) {
    mr_panel_q5_k *p = (mr_panel_q5_k *)(void *)dst;
    put_scales_k4(&p->low, r, src);
    for (int pair = 0; pair < 4; pair++)
        put_pair_k4(&p->low, pair, r, src + offsetof(mr_block_q5_k, q) + 32 * pair);
    const uint8_t *high = src + offsetof(mr_block_q5_k, high);
    uint32_t bits[8];
    memcpy(bits, high, sizeof bits);
    swap_bits(bits, 4, 0x0f0f0f0fu);
    swap_bits(bits, 2, 0x33333333u);
    swap_bits(bits, 1, 0x55555555u);
    for (int j = 0; j < 8; j++)
        store32(p->high[j][r], bits[j]);
}

/* Unpacks half of a Q6_K block: four parts of 32 values. v[p][l]: values 4 l .. 4 l + 3 of part p, one in each byte. */
static void q6_k_values(const mr_block_q6_k *b, int half, uint32_t v[4][8]) {
    for (int l = 0; l < 8; l++) {
        uint32_t low0 = load32(b->ql + half * 64 + 4 * l), low1 = load32(b->ql + half * 64 + 32 + 4 * l);
        uint32_t high = load32(b->qh + half * 32 + 4 * l);
        v[0][l] = (low0 & 0x0f0f0f0fu) | (high << 4 & 0x30303030u);
        v[1][l] = (low1 & 0x0f0f0f0fu) | (high << 2 & 0x30303030u);
        v[2][l] = (low0 >> 4 & 0x0f0f0f0fu) | (high & 0x30303030u);
        v[3][l] = (low1 >> 4 & 0x0f0f0f0fu) | (high >> 2 & 0x30303030u);
    }
}

/* Packs four groups of 6-bit values into three groups of bytes (matmul_panels.h). */
static void put_6_bits(uint8_t groups[3][MR_PANEL][4], int r, const uint32_t v[4]) {
    store32(groups[0][r], v[0] | (v[3] & 0x30303030u) << 2);
    store32(groups[1][r], v[1] | (v[3] & 0x0c0c0c0cu) << 4);
    store32(groups[2][r], v[2] | (v[3] & 0x03030303u) << 6);
}

static void block_q6_k(uint8_t *dst, int r, const uint8_t *src) {
    mr_panel_q6_k *p = (mr_panel_q6_k *)(void *)dst;
    const mr_block_q6_k *b = (const mr_block_q6_k *)src;
    p->d[r] = b->d;
    for (int half = 0; half < 2; half++) {
        uint32_t v[4][8];
        q6_k_values(b, half, v);
        for (int j = 0; j < 8; j++) {
            p->sc[8 * half + j][r] = b->sc[8 * half + j];
            put_6_bits(p->q[8 * half + j], r, &v[j / 2][j % 2 * 4]);
        }
    }
}

/* Values -4..3 */
static void block_q3_k(uint8_t *dst, int r, const uint8_t *src) {
    mr_panel_q6_k *p = (mr_panel_q6_k *)(void *)dst;
    const mr_block_q3_k *b = (const mr_block_q3_k *)src;
    mr_quants u;
    mr_unpack(MR_TYPE_Q3_K, src, &u);
    p->d[r] = b->d;
    for (int j = 0; j < 16; j++) {
        uint8_t plus_32[16];
        uint32_t v[4];
        for (int i = 0; i < 16; i++)
            plus_32[i] = (uint8_t)(u.q[16 * j + i] + 32);
        memcpy(v, plus_32, sizeof v);
        p->sc[j][r] = mr_q3_k_scale(b->scales, j);
        put_6_bits(p->q[j], r, v);
    }
}

static void block_iq4_xs(uint8_t *dst, int r, const uint8_t *src) {
    mr_panel_iq4_xs *p = (mr_panel_iq4_xs *)(void *)dst;
    const mr_block_iq4_xs *b = (const mr_block_iq4_xs *)src;
    p->d[r] = b->d;
    for (int j = 0; j < 8; j++) {
        p->sc[j][r] = mr_iq4_xs_scale(b, j);
        for (int g = 0; g < 4; g++)
            store32(p->q[j][g][r], load32(b->q + 16 * j + 4 * g));
    }
}

static void put_x8(mr_type type, mr_panel_x8 *p, int r, const uint8_t *src) {
    mr_quants u;
    mr_unpack(type, src, &u);
    for (int j = 0; j < mr_type_get(type)->block_elems / 32; j++, p++) {
        p->scale[0][r] = u.scale[2 * j];
        p->scale[1][r] = u.scale[2 * j + 1];
        put_bytes(p->q, r, u.q + 32 * j);
    }
}

static void put_x8m(mr_type type, mr_panel_x8m *p, int r, const uint8_t *src) {
    mr_quants u;
    mr_unpack(type, src, &u);
    for (int j = 0; j < mr_type_get(type)->block_elems / 32; j++, p++) {
        for (int h = 0; h < 2; h++) {
            p->scale[h][r] = u.scale[2 * j + h];
            p->min[h][r] = u.min[2 * j + h];
        }
        put_bytes(p->q, r, u.q + 32 * j);
    }
}

/* --- Panels ------------------------------------------------------------------------------------------------------ */

typedef struct panel_info {
    int32_t k;    /* of one block */
    size_t bytes; /* of one block */
} panel_info;

static const panel_info PANELS[MR_PANEL_COUNT] = {
    [MR_PANEL_F32] = {1, MR_PANEL * 4},
    [MR_PANEL_F16] = {1, MR_PANEL * 2},
    [MR_PANEL_BF16] = {2, MR_PANEL * 4},
    [MR_PANEL_Q8_0] = {32, sizeof(mr_panel_q8_0)},
    [MR_PANEL_Q4_0] = {32, sizeof(mr_panel_q4_0)},
    [MR_PANEL_IQ4_NL] = {32, sizeof(mr_panel_q4_0)},
    [MR_PANEL_MXFP4] = {32, sizeof(mr_panel_mxfp4)},
    [MR_PANEL_Q4_K] = {MR_QK_BLOCK, sizeof(mr_panel_q4_k)},
    [MR_PANEL_Q5_K] = {MR_QK_BLOCK, sizeof(mr_panel_q5_k)},
    [MR_PANEL_Q6_K] = {MR_QK_BLOCK, sizeof(mr_panel_q6_k)},
    [MR_PANEL_IQ4_XS] = {MR_QK_BLOCK, sizeof(mr_panel_iq4_xs)},
    [MR_PANEL_X8] = {32, sizeof(mr_panel_x8)},
    [MR_PANEL_X8M] = {32, sizeof(mr_panel_x8m)},
};

mr_panel_type mr_panel_of(mr_type type) {
    static const mr_panel_type OF[MR_TYPE_FILE_COUNT] = {
        [MR_TYPE_F32] = MR_PANEL_F32,     [MR_TYPE_F16] = MR_PANEL_F16,    [MR_TYPE_BF16] = MR_PANEL_BF16,
        [MR_TYPE_Q8_0] = MR_PANEL_Q8_0,   [MR_TYPE_Q5_0] = MR_PANEL_Q8_0,  [MR_TYPE_Q4_0] = MR_PANEL_Q4_0,
        [MR_TYPE_TQ1_0] = MR_PANEL_Q4_0,  [MR_TYPE_TQ2_0] = MR_PANEL_Q4_0, [MR_TYPE_IQ4_NL] = MR_PANEL_IQ4_NL,
        [MR_TYPE_MXFP4] = MR_PANEL_MXFP4, [MR_TYPE_Q4_K] = MR_PANEL_Q4_K,  [MR_TYPE_Q5_K] = MR_PANEL_Q5_K,
        [MR_TYPE_Q6_K] = MR_PANEL_Q6_K,   [MR_TYPE_Q3_K] = MR_PANEL_Q6_K,  [MR_TYPE_IQ4_XS] = MR_PANEL_IQ4_XS,
        [MR_TYPE_IQ1_S] = MR_PANEL_X8,    [MR_TYPE_IQ1_M] = MR_PANEL_X8,   [MR_TYPE_IQ2_XXS] = MR_PANEL_X8,
        [MR_TYPE_IQ2_XS] = MR_PANEL_X8,   [MR_TYPE_IQ2_S] = MR_PANEL_X8,   [MR_TYPE_IQ3_XXS] = MR_PANEL_X8,
        [MR_TYPE_IQ3_S] = MR_PANEL_X8,    [MR_TYPE_Q4_1] = MR_PANEL_X8M,   [MR_TYPE_Q5_1] = MR_PANEL_X8M,
        [MR_TYPE_Q2_K] = MR_PANEL_X8M,
    };
    return (unsigned)type < MR_TYPE_FILE_COUNT ? OF[type] : MR_PANEL_NONE;
}

size_t mr_panel_type_bytes(mr_panel_type panel, int32_t k) {
    const panel_info *info = &PANELS[panel];
    if (panel == MR_PANEL_BF16) /* one column has no room for the zero that follows an odd k */
        return k < 2 ? 0 : ((size_t)k + 1) / 2 * info->bytes;
    return k <= 0 || panel == MR_PANEL_NONE || k % info->k ? 0 : (size_t)(k / info->k) * info->bytes;
}

size_t mr_panel_bytes(mr_type type, int32_t k) {
    mr_panel_type panel = mr_panel_of(type);
    return panel == MR_PANEL_NONE || k % mr_type_get(type)->block_elems ? 0 : mr_panel_type_bytes(panel, k);
}

/* How to move the blocks of a row: they lie src_step apart in the file and dst_step apart in the panel. */
typedef struct block_walk {
    uint8_t *dst;
    size_t n_blocks, dst_step, src_step;
} block_walk;

static inline __attribute__((always_inline)) void walk(const block_walk *w, const row_ptrs rows,
                                                       void (*block)(uint8_t *dst, int r, const uint8_t *src)) {
    for (size_t b = 0; b < w->n_blocks; b++)
        for (int r = 0; r < MR_PANEL; r++)
            if (rows[r])
                block(w->dst + b * w->dst_step, r, rows[r] + b * w->src_step);
}

/* The common types: each has a loop of its own, because its values are only moved. */
static bool repack_fast(mr_type type, const block_walk *w, const row_ptrs rows) {
    switch (type) {
    case MR_TYPE_Q8_0:
        walk(w, rows, block_q8_0);
        return true;
    case MR_TYPE_Q4_0:
    case MR_TYPE_IQ4_NL:
        walk(w, rows, block_q4_0);
        return true;
    case MR_TYPE_Q4_K:
        walk(w, rows, block_q4_k);
        return true;
    case MR_TYPE_Q5_K:
        walk(w, rows, block_q5_k);
        return true;
    case MR_TYPE_Q6_K:
        walk(w, rows, block_q6_k);
        return true;
    default:
        return false;
    }
}

static void repack_other(mr_type type, const block_walk *w, const row_ptrs rows) {
    for (size_t b = 0; b < w->n_blocks; b++)
        for (int r = 0; r < MR_PANEL; r++) {
            if (!rows[r])
                continue;
            uint8_t *dst = w->dst + b * w->dst_step;
            const uint8_t *src = rows[r] + b * w->src_step;
            if (type == MR_TYPE_Q5_0)
                block_q5_0(dst, r, src);
            else if (type == MR_TYPE_MXFP4)
                block_mxfp4(dst, r, src);
            else if (type == MR_TYPE_TQ1_0)
                block_tq1_0(dst, r, src);
            else if (type == MR_TYPE_TQ2_0)
                block_tq2_0(dst, r, src);
            else if (type == MR_TYPE_Q3_K)
                block_q3_k(dst, r, src);
            else if (type == MR_TYPE_IQ4_XS)
                block_iq4_xs(dst, r, src);
            else if (mr_panel_of(type) == MR_PANEL_X8M)
                put_x8m(type, (mr_panel_x8m *)(void *)dst, r, src);
            else
                put_x8(type, (mr_panel_x8 *)(void *)dst, r, src);
        }
}

static void repack_panel(mr_type type, int32_t k, uint8_t *dst, const row_ptrs rows) {
    if (type == MR_TYPE_F32) {
        repack_f32(dst, rows, k);
        return;
    }
    if (type == MR_TYPE_F16) {
        repack_f16(dst, rows, k);
        return;
    }
    if (type == MR_TYPE_BF16) {
        repack_bf16(dst, rows, k);
        return;
    }
    const mr_type_info *info = mr_type_get(type);
    size_t n_blocks = (size_t)(k / info->block_elems);
    block_walk w = {dst, n_blocks, mr_panel_bytes(type, k) / n_blocks, (size_t)info->block_bytes};
    if (!repack_fast(type, &w, rows))
        repack_other(type, &w, rows);
}

void mr_repack(const mr_repack_args *args, int32_t panel_first, int32_t panel_last) {
    size_t panel_bytes = mr_panel_bytes(args->type, args->k);
    for (int32_t p = panel_first; p < panel_last; p++) {
        row_ptrs rows;
        for (int r = 0; r < MR_PANEL; r++) {
            int64_t row = (int64_t)p * MR_PANEL + r;
            rows[r] = row < args->n ? args->src + (size_t)row * args->src_row_bytes : NULL;
        }
        uint8_t *dst = args->dst + (size_t)p * panel_bytes;
        if (!rows[MR_PANEL - 1])
            memset(dst, 0, panel_bytes); /* absent rows are zero, because their scales are */
        repack_panel(args->type, args->k, dst, rows);
    }
}
