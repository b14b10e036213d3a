/* backends/cpu/kernels/repack.c - rearranges rows of the file into panels of 16 rows (layouts: kernels.h,
 * matmul_panels.h). No number changes: scales and values keep their bits, or are stored as the same numbers in another
 * form. Rows may lie at any address.
 *
 * Loading a model is as fast as this file. So the common types move four rows at a time: 4 x 4 words of 32 bits are
 * transposed in registers that every machine has. The other types are unpacked row by row. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/matmul_panels.h"

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else /* gcc has that function from version 12 on */
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (__typeof__(a)){__VA_ARGS__})
#endif

enum { LANES = 4 }; /* rows that move together */

typedef const uint8_t *row_ptrs[MR_PANEL];
/* One word of each of LANES rows. */
typedef uint32_t words __attribute__((vector_size(16)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));

static inline uint32_t load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static inline void store32(uint8_t *p, uint32_t v) {
    memcpy(p, &v, 4);
}
static inline uint16_t load16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}

static inline words load_four(const uint8_t *p) {
    words v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* w[i]: word i of the rows, from `offset` on. n: a multiple of 4. */
static inline __attribute__((always_inline)) void load_words(const uint8_t *const *src, size_t offset, int n,
                                                             words *w) {
    for (int i = 0; i < n; i += 4, offset += sizeof *w) {
        words a = load_four(src[0] + offset), b = load_four(src[1] + offset);
        words c = load_four(src[2] + offset), d = load_four(src[3] + offset);
        words ab_low = SHUFFLE(a, b, 0, 4, 1, 5), ab_high = SHUFFLE(a, b, 2, 6, 3, 7);
        words cd_low = SHUFFLE(c, d, 0, 4, 1, 5), cd_high = SHUFFLE(c, d, 2, 6, 3, 7);
        w[i] = SHUFFLE(ab_low, cd_low, 0, 1, 4, 5);
        w[i + 1] = SHUFFLE(ab_low, cd_low, 2, 3, 6, 7);
        w[i + 2] = SHUFFLE(ab_high, cd_high, 0, 1, 4, 5);
        w[i + 3] = SHUFFLE(ab_high, cd_high, 2, 3, 6, 7);
    }
}

/* Stores a word of rows r .. r + 3. */
static inline void store_words(uint8_t group[MR_PANEL][4], int r, words v) {
    memcpy(group[r], &v, sizeof v);
}

/* Bytes i of the rows side by side, as word i. */
static inline words sort_bytes(words v) {
    for (int i = 0; i < 2; i++) {
        bytes16 low = (bytes16)v, high = (bytes16)SHUFFLE(v, v, 2, 3, 2, 3);
        v = (words)SHUFFLE(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    }
    return v;
}

/* --- Floats ------------------------------------------------------------------------------------------------------ */

/* Moves elements of four bytes. */
static void repack_elems(uint8_t *dst, const row_ptrs rows, size_t n) {
    uint8_t(*groups)[MR_PANEL][4] = (uint8_t(*)[MR_PANEL][4])(void *)dst;
    size_t first = 0;
    for (; first + LANES <= n; first += LANES)
        for (int r = 0; r < MR_PANEL; r += LANES) {
            words w[LANES];
            load_words(rows + r, 4 * first, LANES, w);
            for (size_t i = 0; i < LANES; i++)
                store_words(groups[first + i], r, w[i]);
        }
    for (; first < n; first++)
        for (int r = 0; r < MR_PANEL; r++)
            memcpy(groups[first][r], rows[r] + 4 * first, 4);
}

static void repack_f32(uint8_t *dst, const row_ptrs rows, int32_t k) {
    repack_elems(dst, rows, (size_t)k);
}

/* Eight elements of 16 bits of a row. */
typedef uint16_t halves __attribute__((vector_size(16)));

/* Takes elements 0 to 3 of a and b in turn, or elements 4 to 7. */
#define MIX_LOW(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define MIX_HIGH(a, b) SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)

/* Moves columns [column, column + 8) of rows r .. r + 7. Each of three steps mixes rows that are four apart. */
static inline void move_8x8(uint8_t *dst, const row_ptrs rows, int r, size_t column) {
    halves a[8], b[8];
    for (int i = 0; i < 8; i++)
        memcpy(&a[i], rows[r + i] + 2 * column, sizeof a[i]);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 4; i++) {
            b[2 * i] = MIX_LOW(a[i], a[i + 4]);
            b[2 * i + 1] = MIX_HIGH(a[i], a[i + 4]);
        }
        memcpy(a, b, sizeof a);
    }
    for (size_t i = 0; i < 8; i++)
        memcpy(dst + ((column + i) * MR_PANEL + (size_t)r) * 2, &a[i], sizeof a[i]);
}

/* next: the rows of the next panel, which are prefetched. */
static void repack_f16(uint8_t *dst, const row_ptrs rows, const row_ptrs next, int32_t k) {
    enum { COLUMNS = 32 }; /* a cache line of a row */
    size_t whole = (size_t)k / 8 * 8;
    for (size_t first = 0; first < whole; first += COLUMNS) {
        size_t last = whole - first < COLUMNS ? whole : first + COLUMNS;
        for (int r = 0; r < MR_PANEL; r++)
            __builtin_prefetch(next[r] + 2 * first);
        for (size_t column = first; column < last; column += 8)
            for (int r = 0; r < MR_PANEL; r += 8)
                move_8x8(dst, rows, r, column);
    }
    for (size_t column = whole; column < (size_t)k; column++)
        for (size_t r = 0; r < MR_PANEL; r++)
            memcpy(dst + (column * MR_PANEL + r) * 2, rows[r] + 2 * column, 2);
}

/* Moves pairs of columns as one element. */
static void repack_bf16(uint8_t *dst, const row_ptrs rows, int32_t k) {
    size_t n = (size_t)k / 2;
    repack_elems(dst, rows, n);
    for (size_t r = 0; r < MR_PANEL && k % 2; r++)
        store32(dst + (n * MR_PANEL + r) * 4, load16(rows[r] + n * 4));
}

/* --- Blocks of four rows: each function moves a block of rows r .. r + 3 into the panel's block at dst ------------ */

static inline void put_scales(uint16_t scale[MR_PANEL], int r, const uint8_t *const *src, size_t offset) {
    for (int i = 0; i < LANES; i++)
        scale[r + i] = load16(src[i] + offset);
}

static void block_q8_0(uint8_t *dst, int r, const uint8_t *const *src) {
    mr_panel_q8_0 *p = (mr_panel_q8_0 *)(void *)dst;
    words w[8];
    put_scales(p->d, r, src, 0);
    load_words(src, offsetof(mr_block_q8_0, q), 8, w);
    for (int g = 0; g < 8; g++)
        store_words(p->q[g], r, w[g] ^ 0x80808080u);
}

static void block_q4_0(uint8_t *dst, int r, const uint8_t *const *src) {
    mr_panel_q4_0 *p = (mr_panel_q4_0 *)(void *)dst;
    words w[4];
    put_scales(p->d, r, src, 0);
    load_words(src, offsetof(mr_block_q4_0, q), 4, w);
    for (int g = 0; g < 4; g++)
        store_words(p->q[g], r, w[g]);
}

static void block_mxfp4(uint8_t *dst, int r, const uint8_t *const *src) {
    mr_panel_mxfp4 *p = (mr_panel_mxfp4 *)(void *)dst;
    words w[4];
    for (int i = 0; i < LANES; i++)
        p->e[r + i] = src[i][0];
    load_words(src, offsetof(mr_block_mxfp4, q), 4, w);
    for (int g = 0; g < 4; g++)
        store_words(p->q[g], r, w[g]);
}

/* Moves sub-blocks 2 * pair and 2 * pair + 1 of Q4_K or Q5_K from 32 bytes of the file. */
static inline void put_pair_k4(mr_panel_q4_k *p, int pair, int r, const uint8_t *const *src, size_t offset) {
    words w[8];
    load_words(src, offset, 8, w);
    for (int g = 0; g < 4; g++) {
        words low = w[g], high = w[g + 4];
        store_words(p->q[2 * pair][g], r, (low & 0x0f0f0f0fu) | (high & 0x0f0f0f0fu) << 4);
        store_words(p->q[2 * pair + 1][g], r, (low >> 4 & 0x0f0f0f0fu) | (high & 0xf0f0f0f0u));
    }
}

/* d, dmin and scales stand at the same place in Q4_K and Q5_K. mr_q4_k_scale says which bits belong together. */
static inline void put_scales_k4(mr_panel_q4_k *p, int r, const uint8_t *const *src) {
    words w[4];
    put_scales(p->d, r, src, 0);
    put_scales(p->dmin, r, src, 2);
    load_words(src, 0, 4, w);
    words sc[2] = {w[1] & 0x3f3f3f3fu, (w[3] & 0x0f0f0f0fu) | (w[1] >> 2 & 0x30303030u)};
    words m[2] = {w[2] & 0x3f3f3f3fu, (w[3] >> 4 & 0x0f0f0f0fu) | (w[2] >> 2 & 0x30303030u)};
    for (int half = 0; half < 2; half++) {
        words scales = sort_bytes(sc[half]), mins = sort_bytes(m[half]);
        for (int j = 0; j < 4; j++) {
            store32(&p->scale[4 * half + j].sc[r], scales[j]);
            store32(&p->scale[4 * half + j].m[r], mins[j]);
        }
    }
}

static void block_q4_k(uint8_t *dst, int r, const uint8_t *const *src) {
    mr_panel_q4_k *p = (mr_panel_q4_k *)(void *)dst;
    put_scales_k4(p, r, src);
    for (int pair = 0; pair < 4; pair++)
        put_pair_k4(p, pair, r, src, offsetof(mr_block_q4_k, q) + 32 * (size_t)pair);
}

/* One of three steps of a transposition: bit j of byte i of word g becomes bit g of byte i of word j. A step exchanges
 * bits that are n apart between words that are n apart. */
static inline void swap_bits(words w[8], int n, uint32_t mask) {
    for (int g = 0; g < 8; g++)
        if (!(g & n)) {
            words t = (w[g] >> n ^ w[g + n]) & mask;
            w[g + n] ^= t;
            w[g] ^= t << n;
        }
}

static void block_q5_k(uint8_t *dst, int r, const uint8_t *const *src) {
    mr_panel_q5_k *p = (mr_panel_q5_k *)(void *)dst;
    put_scales_k4(&p->low, r, src);
    for (int pair = 0; pair < 4; pair++)
        put_pair_k4(&p->low, pair, r, src, offsetof(mr_block_q5_k, q) + 32 * (size_t)pair);
    words bits[8];
    load_words(src, offsetof(mr_block_q5_k, high), 8, bits);
    swap_bits(bits, 4, 0x0f0f0f0fu);
    swap_bits(bits, 2, 0x33333333u);
    swap_bits(bits, 1, 0x55555555u);
    for (int j = 0; j < 8; j++)
        store_words(p->high[j], r, bits[j]);
}

/* Packs four groups of 6-bit values into three groups of bytes (matmul_panels.h). */
static inline void put_6_bits(uint8_t groups[3][MR_PANEL][4], int r, const words v[4]) {
    store_words(groups[0], r, v[0] | (v[3] & 0x30303030u) << 2);
    store_words(groups[1], r, v[1] | (v[3] & 0x0c0c0c0cu) << 4);
    store_words(groups[2], r, v[2] | (v[3] & 0x03030303u) << 6);
}

/* Moves half of a block: four parts of 32 values. v[p][l]: values 4 l .. 4 l + 3 of part p, one in each byte. */
static inline void put_half_q6_k(mr_panel_q6_k *p, int half, int r, const uint8_t *const *src) {
    words low[16], high[8], v[4][8];
    load_words(src, offsetof(mr_block_q6_k, ql) + 64 * (size_t)half, 16, low);
    load_words(src, offsetof(mr_block_q6_k, qh) + 32 * (size_t)half, 8, high);
    for (int l = 0; l < 8; l++) {
        v[0][l] = (low[l] & 0x0f0f0f0fu) | (high[l] << 4 & 0x30303030u);
        v[1][l] = (low[8 + l] & 0x0f0f0f0fu) | (high[l] << 2 & 0x30303030u);
        v[2][l] = (low[l] >> 4 & 0x0f0f0f0fu) | (high[l] & 0x30303030u);
        v[3][l] = (low[8 + l] >> 4 & 0x0f0f0f0fu) | (high[l] >> 2 & 0x30303030u);
    }
    for (int j = 0; j < 8; j++)
        put_6_bits(p->q[8 * half + j], r, &v[j / 2][j % 2 * 4]);
}

static void block_q6_k(uint8_t *dst, int r, const uint8_t *const *src) {
    mr_panel_q6_k *p = (mr_panel_q6_k *)(void *)dst;
    words w[4];
    put_scales(p->d, r, src, offsetof(mr_block_q6_k, d));
    load_words(src, offsetof(mr_block_q6_k, sc), 4, w);
    for (int i = 0; i < 4; i++) {
        words scales = sort_bytes(w[i]);
        for (int j = 0; j < 4; j++)
            store32((uint8_t *)&p->sc[4 * i + j][r], scales[j]);
    }
    put_half_q6_k(p, 0, r, src);
    put_half_q6_k(p, 1, r, src);
}

static void block_iq4_xs(uint8_t *dst, int r, const uint8_t *const *src) {
    mr_panel_iq4_xs *p = (mr_panel_iq4_xs *)(void *)dst;
    put_scales(p->d, r, src, offsetof(mr_block_iq4_xs, d));
    for (int j = 0; j < 8; j++) {
        words w[4];
        for (int i = 0; i < LANES; i++)
            p->sc[j][r + i] = mr_iq4_xs_scale((const mr_block_iq4_xs *)src[i], j);
        load_words(src, offsetof(mr_block_iq4_xs, q) + 16 * (size_t)j, 4, w);
        for (int g = 0; g < 4; g++)
            store_words(p->q[j][g], r, w[g]);
    }
}

/* --- Blocks of one row: each function moves one block into lane r of the panel's block (or blocks) at dst --------- */

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

/* Packs four words of 6-bit values into three words of bytes, as put_6_bits does. */
static void pack_6_bits(const uint8_t v[16], uint8_t packed[3][4]) {
    for (int i = 0; i < 4; i++) {
        uint32_t top = v[12 + i];
        packed[0][i] = (uint8_t)(v[i] | (top & 0x30u) << 2);
        packed[1][i] = (uint8_t)(v[4 + i] | (top & 0x0cu) << 4);
        packed[2][i] = (uint8_t)(v[8 + i] | (top & 0x03u) << 6);
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
        uint8_t plus_32[16], packed[3][4];
        for (int i = 0; i < 16; i++)
            plus_32[i] = (uint8_t)(u.q[16 * j + i] + 32);
        pack_6_bits(plus_32, packed);
        p->sc[j][r] = mr_q3_k_scale(b->scales, j);
        for (int g = 0; g < 3; g++)
            memcpy(p->q[j][g][r], packed[g], 4);
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

/* How to move the blocks of a row: they lie src_step apart in the file and dst_step apart in the panel. next: the rows
 * of the next panel. */
typedef struct block_walk {
    uint8_t *dst;
    size_t n_blocks, dst_step, src_step;
    const uint8_t *const *next;
} block_walk;

static inline __attribute__((always_inline)) void walk(const block_walk *w, const row_ptrs rows,
                                                       void (*block)(uint8_t *dst, int r, const uint8_t *const *src)) {
    for (size_t b = 0; b < w->n_blocks; b++)
        for (int r = 0; r < MR_PANEL; r += LANES) {
            const uint8_t *src[LANES];
            for (int i = 0; i < LANES; i++)
                src[i] = rows[r + i] + b * w->src_step;
            for (int i = 0; i < LANES; i++) /* processors do not notice 16 rows side by side as streams */
                for (size_t at = 0; at < w->src_step; at += 64)
                    __builtin_prefetch(w->next[r + i] + b * w->src_step + at);
            block(w->dst + b * w->dst_step, r, src);
        }
}

/* The types that move four rows at a time. */
static bool repack_fast(mr_type type, const block_walk *w, const row_ptrs rows) {
    if (type == MR_TYPE_Q8_0)
        walk(w, rows, block_q8_0);
    else if (type == MR_TYPE_Q4_0 || type == MR_TYPE_IQ4_NL)
        walk(w, rows, block_q4_0);
    else if (type == MR_TYPE_MXFP4)
        walk(w, rows, block_mxfp4);
    else if (type == MR_TYPE_Q4_K)
        walk(w, rows, block_q4_k);
    else if (type == MR_TYPE_Q5_K)
        walk(w, rows, block_q5_k);
    else if (type == MR_TYPE_Q6_K)
        walk(w, rows, block_q6_k);
    else if (type == MR_TYPE_IQ4_XS)
        walk(w, rows, block_iq4_xs);
    else
        return false;
    return true;
}

static void repack_other(mr_type type, const block_walk *w, const row_ptrs rows) {
    for (size_t b = 0; b < w->n_blocks; b++)
        for (int r = 0; r < MR_PANEL; r++) {
            uint8_t *dst = w->dst + b * w->dst_step;
            const uint8_t *src = rows[r] + b * w->src_step;
            if (type == MR_TYPE_Q5_0)
                block_q5_0(dst, r, src);
            else if (type == MR_TYPE_TQ1_0)
                block_tq1_0(dst, r, src);
            else if (type == MR_TYPE_TQ2_0)
                block_tq2_0(dst, r, src);
            else if (type == MR_TYPE_Q3_K)
                block_q3_k(dst, r, src);
            else if (mr_panel_of(type) == MR_PANEL_X8M)
                put_x8m(type, (mr_panel_x8m *)(void *)dst, r, src);
            else
                put_x8(type, (mr_panel_x8 *)(void *)dst, r, src);
        }
}

static void repack_panel(mr_type type, int32_t k, uint8_t *dst, const row_ptrs rows, const row_ptrs next) {
    if (type == MR_TYPE_F32) {
        repack_f32(dst, rows, k);
        return;
    }
    if (type == MR_TYPE_F16) {
        repack_f16(dst, rows, next, k);
        return;
    }
    if (type == MR_TYPE_BF16) {
        repack_bf16(dst, rows, k);
        return;
    }
    const mr_type_info *info = mr_type_get(type);
    size_t n_blocks = (size_t)(k / info->block_elems);
    block_walk w = {dst, n_blocks, mr_panel_bytes(type, k) / n_blocks, (size_t)info->block_bytes, next};
    if (!repack_fast(type, &w, rows))
        repack_other(type, &w, rows);
}

/* The rows of a panel. Behind the last row of the matrix, the row stands again; its results are not used. */
static void find_rows(const mr_repack_args *args, int32_t panel, row_ptrs out) {
    for (int r = 0; r < MR_PANEL; r++) {
        int64_t row = (int64_t)panel * MR_PANEL + r;
        row = row < args->n ? row : args->n - 1;
        row = args->rows ? args->rows[row] : row;
        out[r] = args->src + (size_t)row * args->src_row_bytes;
    }
}

void mr_repack(const mr_repack_args *args, int32_t panel_first, int32_t panel_last) {
    size_t panel_bytes = mr_panel_bytes(args->type, args->k);
    row_ptrs rows, next;
    find_rows(args, panel_first, rows);
    for (int32_t p = panel_first; p < panel_last; p++) {
        find_rows(args, p + 1, next);
        repack_panel(args->type, args->k, args->dst + (size_t)p * panel_bytes, rows, next);
        memcpy(rows, next, sizeof rows);
    }
}
