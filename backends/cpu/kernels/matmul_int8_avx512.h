/* backends/cpu/kernels/matmul_int8_avx512.h - rule M for quantised weights with VNNI, for every panel format.
 *
 * A tile is 2 panels (32 output rows) by up to 7 activation rows: 14 integer sums and 14 float sums, all in registers.
 * For every 32 k each of them takes 8 dpbusd, one conversion, one product of scales and one fma (two fma with a minimum).
 * Where these share the ports of dpbusd (Intel), 8/11 of the VNNI peak is therefore the limit; 8/12 with a minimum, 8/14
 * with two scales.
 *
 * Loops, from the outside: groups of 16 panels - blocks of up to 98 rows - chunks of 512 k - pairs of panels - tiles. Sums
 * wait in memory between chunks, so each walks K in order. For a chunk the activations are laid out once for all pairs
 * (their bytes, scales, and what an offset of the weights adds), and the weights of a pair are decoded once for all tiles.
 * With few rows a tile decodes in registers, and a pair of panels is read from end to end. All the while the weights that
 * come next are asked for, evenly over the tiles: only the first tile of a chunk reads them from memory.
 *
 * Each kernel includes this file once for each of its formats; everything is resolved at compile time. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_AVX512_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_AVX512_H

#include <stdbool.h>

#include "backends/cpu/kernels/matmul_avx512.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* gcc cannot unroll checked loops, and warns */
#define INT8_UNROLL
#elif defined(__clang__)
#define INT8_UNROLL _Pragma("unroll")
#else
#define INT8_UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    TILE_PANELS = 2,
    TILE_ROWS = 7,
    DIRECT_ROWS = 4,   /* up to so many, weights are decoded in registers */
    ROW_BLOCK = 98,    /* a multiple of TILE_ROWS */
    GROUP_PAIRS = 8,   /* of panels */
    CHUNK = 512,       /* k */
    SUBS = CHUNK / 32, /* sub-blocks of 32 k in a chunk */
    HALVES = CHUNK / 16,
    LINE = 64,
};

/* How one format is decoded. Functions get the block and a sub-block of 32 k in it. */
typedef struct int8_format {
    int block_k, block_bytes; /* of a panel: 32 or 256 k */
    int n_scales;             /* for 32 k: 1, or 2 (one for each 16) */
    int n_mins;               /* 0, 1 or 2 likewise */
    int log_offset;           /* the bytes are values plus 1 << log_offset; 0: plus nothing */
    int bytes_at;             /* where the bytes of a block lie that need no decoding; 0: they need it */
    __m512i (*group)(const uint8_t *block, int sub, int g); /* 16 rows of k 4g .. 4g + 3 */
    __m512 (*scale)(const uint8_t *block, int sub, int half);
    __m512 (*min)(const uint8_t *block, int sub, int half); /* what is multiplied by the sum of activations */
} int8_format;

/* A chunk of one activation row. */
typedef struct int8_row {
    _Alignas(64) int8_t q[CHUNK];
    float d[SUBS];
    float d_sum[HALVES];   /* d times the sum of each 32, or 16 */
    int32_t start[HALVES]; /* -offset times the sum of each 32, or 16 */
} int8_row;

/* A chunk of two panels. */
typedef struct int8_weights {
    _Alignas(64) float scale[TILE_PANELS][HALVES][MR_PANEL];
    float min[TILE_PANELS][HALVES][MR_PANEL];
    uint8_t bytes[TILE_PANELS][SUBS][8][MR_PANEL * 4];
} int8_weights;

typedef __m512 int8_acc[TILE_PANELS];

typedef struct int8_job {
    const mr_matmul_args *args;
    size_t panel_bytes;
    int32_t panel_last;      /* of the call */
    int32_t panel, n_panels; /* of the group */
    int32_t row, n_rows;     /* of the block */
    int32_t row_last;
    bool direct;
} int8_job;

typedef struct int8_scratch {
    int8_weights weights;
    int8_row rows[ROW_BLOCK];
    int8_acc acc[GROUP_PAIRS][ROW_BLOCK];
} int8_scratch;

/* A chunk of a pair of panels and some rows. */
typedef struct int8_tile {
    const uint8_t *w[TILE_PANELS]; /* at the chunk's first k */
    const int8_weights *weights;
    const int8_row *rows;
    int8_acc *acc;
    int32_t n_subs;
    const uint8_t *ahead[TILE_PANELS]; /* what will be read next */
    int32_t ahead_lines;               /* of each, for every 32 k */
} int8_tile;

ALWAYS_INLINE int32_t share_of(int32_t n, int32_t parts) {
    return (n + parts - 1) / parts;
}
ALWAYS_INLINE int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* --- What formats are decoded with: one value for each of 16 rows ------------------------------------------------------ */

ALWAYS_INLINE __m512 load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
ALWAYS_INLINE __m512 load_u8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}
ALWAYS_INLINE __m512 load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}
ALWAYS_INLINE __m512 negate(__m512 x) {
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}

/* --- Activations ----------------------------------------------------------------------------------------------------- */

/* The sums of each 16 of 256 activations, as 16 integers. */
ALWAYS_INLINE __m512i sums_of_16(const int8_t *q) {
    __m512i t[4];
    for (int i = 0; i < 4; i++)
        t[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(q + i * 64));
    /* 128-bit lane l of t[i] holds four parts of sum 4i + l: a transposition of 4 by 4 adds them. */
    __m512i t01 = _mm512_add_epi32(_mm512_unpacklo_epi32(t[0], t[1]), _mm512_unpackhi_epi32(t[0], t[1]));
    __m512i t23 = _mm512_add_epi32(_mm512_unpacklo_epi32(t[2], t[3]), _mm512_unpackhi_epi32(t[2], t[3]));
    __m512i sums = _mm512_add_epi32(_mm512_unpacklo_epi64(t01, t23), _mm512_unpackhi_epi64(t01, t23));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums);
}

/* What a sum of activations starts with, so that the offset of the weights drops out. */
ALWAYS_INLINE __m512i start_of(const int8_format f, __m512i sum) {
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, (unsigned)f.log_offset));
}

/* Of 16 halves; those of d are in the lower half of the register. */
ALWAYS_INLINE void lay_out_halves(const int8_format f, int8_row *out, int half, __m256 d) {
    __m512i sum = sums_of_16(out->q + half * 16);
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    if (f.log_offset)
        _mm512_storeu_si512(out->start + half, start_of(f, sum));
    if (f.n_mins == 2) {
        __m512 d2 = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(d));
        _mm512_storeu_ps(out->d_sum + half, _mm512_mul_ps(d2, _mm512_cvtepi32_ps(sum)));
    }
}

ALWAYS_INLINE void lay_out_row(const int8_format f, const mr_matmul_args *args, int32_t row, int32_t k, int32_t n_subs,
                               int8_row *out) {
    a8_row a = a8_row_at(matmul_a_row(args, row), args->k);
    __mmask16 mask = (__mmask16)((1u << n_subs) - 1);
    for (int32_t i = 0; i < n_subs; i += 2) {
        __mmask64 bytes = i + 1 < n_subs ? ~(__mmask64)0 : 0xffffffffu;
        _mm512_store_si512(out->q + i * 32, _mm512_maskz_loadu_epi8(bytes, a.q + k + i * 32));
    }
    __m512 d = _mm512_maskz_loadu_ps(mask, a.d + k / 32);
    __m512i sum = _mm512_maskz_loadu_epi32(mask, a.sum + k / 32);
    _mm512_store_ps(out->d, d);
    if (f.n_mins == 1)
        _mm512_store_ps(out->d_sum, _mm512_mul_ps(d, _mm512_cvtepi32_ps(sum)));
    if (f.n_scales == 1) {
        if (f.log_offset)
            _mm512_store_si512(out->start, start_of(f, sum));
        return;
    }
    for (int32_t i = n_subs; i < (n_subs + 7) / 8 * 8; i++) /* sums go by 256 k */
        _mm256_store_si256((void *)(out->q + i * 32), _mm256_setzero_si256());
    lay_out_halves(f, out, 0, _mm512_castps512_ps256(d));
    if (n_subs > 8)
        lay_out_halves(f, out, 16, _mm512_extractf32x8_ps(d, 1));
}

/* --- Weights --------------------------------------------------------------------------------------------------------- */

/* The block that holds sub-block j of a chunk, and which of the block's it is. */
ALWAYS_INLINE const uint8_t *block_of(const int8_format f, const uint8_t *w, int32_t j) {
    return w + (size_t)(j / (f.block_k / 32)) * (size_t)f.block_bytes;
}
ALWAYS_INLINE int sub_of(const int8_format f, int32_t j) {
    return j % (f.block_k / 32);
}

/* Scales and minima always; bytes unless they are read from the panel. */
ALWAYS_INLINE void decode(const int8_format f, const int8_tile *t, bool with_bytes, int8_weights *out) {
    for (int p = 0; p < TILE_PANELS; p++)
        for (int32_t j = 0; j < t->n_subs; j++) {
            const uint8_t *block = block_of(f, t->w[p], j);
            INT8_UNROLL
            for (int h = 0; h < f.n_scales; h++)
                _mm512_store_ps(out->scale[p][j * f.n_scales + h], f.scale(block, sub_of(f, j), h));
            INT8_UNROLL
            for (int h = 0; h < f.n_mins; h++)
                _mm512_store_ps(out->min[p][j * f.n_mins + h], f.min(block, sub_of(f, j), h));
            INT8_UNROLL
            for (int g = 0; with_bytes && g < 8; g++)
                _mm512_store_si512(out->bytes[p][j][g], f.group(block, sub_of(f, j), g));
        }
}

ALWAYS_INLINE __m512i group_of(const int8_format f, const int8_tile *t, bool direct, int p, int32_t j, int g) {
    if (f.bytes_at)
        return _mm512_loadu_si512(block_of(f, t->w[p], j) + f.bytes_at + g * LINE);
    if (direct)
        return f.group(block_of(f, t->w[p], j), sub_of(f, j), g);
    return _mm512_load_si512(t->weights->bytes[p][j][g]);
}

/* --- Tiles ----------------------------------------------------------------------------------------------------------- */

/* acc = fma(minimum, d times the sum of the activations, acc) */
ALWAYS_INLINE void add_minima(const int8_tile *t, int n_rows, int32_t at, __m512 acc[TILE_PANELS][TILE_ROWS]) {
    __m512 min[TILE_PANELS] = {_mm512_load_ps(t->weights->min[0][at]), _mm512_load_ps(t->weights->min[1][at])};
    INT8_UNROLL
    for (int r = 0; r < n_rows; r++) {
        __m512 d_sum = _mm512_set1_ps(t->rows[r].d_sum[at]);
        INT8_UNROLL
        for (int p = 0; p < TILE_PANELS; p++)
            acc[p][r] = _mm512_fmadd_ps(min[p], d_sum, acc[p][r]);
    }
}

/* The k of one scale: half h of sub-block j, or all of it. */
ALWAYS_INLINE void add_products(const int8_format f, const int8_tile *t, bool direct, int n_rows, int32_t j, int h,
                                __m512 acc[TILE_PANELS][TILE_ROWS]) {
    const int32_t at = j * f.n_scales + h;
    __m512i sum[TILE_PANELS][TILE_ROWS];
    INT8_UNROLL
    for (int r = 0; r < n_rows; r++)
        sum[0][r] = sum[1][r] = f.log_offset ? _mm512_set1_epi32(t->rows[r].start[at]) : _mm512_setzero_si512();
    INT8_UNROLL
    for (int i = 0; i < 8 / f.n_scales; i++) {
        const int g = h * 4 + i;
        __m512i w0 = group_of(f, t, direct, 0, j, g), w1 = group_of(f, t, direct, 1, j, g);
        INT8_UNROLL
        for (int r = 0; r < n_rows; r++) {
            __m512i x = broadcast_group(t->rows[r].q + j * 32 + g * 4);
            sum[0][r] = _mm512_dpbusd_epi32(sum[0][r], w0, x);
            sum[1][r] = _mm512_dpbusd_epi32(sum[1][r], w1, x);
        }
    }
    __m512 scale[TILE_PANELS] = {_mm512_load_ps(t->weights->scale[0][at]), _mm512_load_ps(t->weights->scale[1][at])};
    INT8_UNROLL
    for (int r = 0; r < n_rows; r++) {
        __m512 d = _mm512_set1_ps(t->rows[r].d[j]);
        INT8_UNROLL
        for (int p = 0; p < TILE_PANELS; p++)
            acc[p][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[p][r]), _mm512_mul_ps(scale[p], d), acc[p][r]);
    }
    if (f.n_mins == 2)
        add_minima(t, n_rows, at, acc);
}

/* n_rows sums of two panels go on over the chunk. direct and n_rows are constants. */
ALWAYS_INLINE void run_tile(const int8_format f, const int8_tile *t, bool direct, int n_rows) {
    __m512 acc[TILE_PANELS][TILE_ROWS];
    const uint8_t *ahead[TILE_PANELS] = {t->ahead[0], t->ahead[1]};
    INT8_UNROLL
    for (int r = 0; r < n_rows; r++) {
        acc[0][r] = t->acc[r][0];
        acc[1][r] = t->acc[r][1];
    }
    for (int32_t j = 0; j < t->n_subs; j++) {
        for (int32_t i = 0; i < t->ahead_lines; i++, ahead[0] += LINE, ahead[1] += LINE) {
            _mm_prefetch((const char *)ahead[0], _MM_HINT_T1);
            _mm_prefetch((const char *)ahead[1], _MM_HINT_T1);
        }
        INT8_UNROLL
        for (int h = 0; h < f.n_scales; h++)
            add_products(f, t, direct, n_rows, j, h, acc);
        if (f.n_mins == 1)
            add_minima(t, n_rows, j, acc);
    }
    INT8_UNROLL
    for (int r = 0; r < n_rows; r++) {
        t->acc[r][0] = acc[0][r];
        t->acc[r][1] = acc[1][r];
    }
}

ALWAYS_INLINE void run_tile_of(const int8_format f, const int8_tile *t, bool direct, int32_t n_rows) {
    if (!direct && n_rows == 7)
        run_tile(f, t, false, 7);
    else if (!direct && n_rows == 6)
        run_tile(f, t, false, 6);
    else if (!direct && n_rows == 5)
        run_tile(f, t, false, 5);
    else if (n_rows == 4)
        run_tile(f, t, direct, 4);
    else if (n_rows == 3)
        run_tile(f, t, direct, 3);
    else if (n_rows == 2)
        run_tile(f, t, direct, 2);
    else
        run_tile(f, t, direct, 1);
}

/* --- Loops ----------------------------------------------------------------------------------------------------------- */

/* Panel `panel` at k; of a panel that is missing at the end, the one before it: its sums are not stored. */
ALWAYS_INLINE const uint8_t *weights_at(const int8_format f, const int8_job *job, int32_t panel, int32_t k) {
    panel = least(panel, job->panel_last - 1);
    return job->args->w + job->panel_bytes * (size_t)panel + (size_t)(k / f.block_k) * (size_t)f.block_bytes;
}

/* All rows of the block times a chunk of one pair, in tiles of nearly the same height. lines: to ask for of each panel. */
ALWAYS_INLINE void run_pair(const int8_format f, const int8_job *job, int8_tile *t, bool direct, int32_t lines) {
    int32_t n_tiles = share_of(job->n_rows, TILE_ROWS);
    for (int32_t left = job->n_rows; left > 0; n_tiles--) {
        int32_t n_rows = share_of(left, n_tiles);
        t->ahead_lines = share_of(share_of(lines, t->n_subs), n_tiles);
        run_tile_of(f, t, direct, n_rows);
        lines -= least(lines, t->ahead_lines * t->n_subs);
        for (int p = 0; p < TILE_PANELS; p++)
            t->ahead[p] += t->ahead_lines * t->n_subs * LINE;
        t->rows += n_rows;
        t->acc += n_rows;
        left -= n_rows;
    }
}

/* Where panel p of the pair that is read after this one begins: the next pair at k, else the first at the next chunk,
 * else the first of the next group; NULL after the last. */
ALWAYS_INLINE const uint8_t *next_weights(const int8_format f, const int8_job *job, int32_t pair, int32_t k, int p) {
    int32_t n_pairs = share_of(job->n_panels, TILE_PANELS), next_k = k + CHUNK;
    if (pair + 1 < n_pairs)
        return weights_at(f, job, job->panel + (pair + 1) * TILE_PANELS + p, k);
    if (next_k < job->args->k)
        return weights_at(f, job, job->panel + p, next_k);
    if (job->panel + job->n_panels < job->panel_last)
        return weights_at(f, job, job->panel + job->n_panels + p, 0);
    return NULL;
}

ALWAYS_INLINE void run_block(const int8_format f, const int8_job *job, bool direct, int8_scratch *s) {
    const int32_t k_end = job->args->k, n_pairs = share_of(job->n_panels, TILE_PANELS);
    for (int32_t pair = 0; pair < n_pairs; pair++)
        memset(s->acc[pair], 0, sizeof s->acc[0][0] * (size_t)job->n_rows);
    for (int32_t k = 0; k < k_end; k += CHUNK) {
        const int32_t n_subs = least(CHUNK, k_end - k) / 32;
        for (int32_t r = 0; r < job->n_rows; r++)
            lay_out_row(f, job->args, job->row + r, k, n_subs, &s->rows[r]);
        for (int32_t pair = 0; pair < n_pairs; pair++) {
            int8_tile t = {.weights = &s->weights, .rows = s->rows, .acc = s->acc[pair], .n_subs = n_subs};
            for (int p = 0; p < TILE_PANELS; p++) {
                t.w[p] = weights_at(f, job, job->panel + pair * TILE_PANELS + p, k);
                t.ahead[p] = next_weights(f, job, pair, k, p);
            }
            decode(f, &t, !direct && !f.bytes_at, &s->weights);
            run_pair(f, job, &t, direct, t.ahead[0] ? share_of(n_subs * f.block_bytes * 32 / f.block_k, LINE) : 0);
        }
    }
    for (int32_t r = 0; r < job->n_rows; r++)
        for (int32_t p = 0; p < job->n_panels; p++)
            store_panel(job->args, job->row + r, job->panel + p, s->acc[p / TILE_PANELS][r][p % TILE_PANELS]);
}

ALWAYS_INLINE void int8_matmul(const int8_format f, const mr_matmul_args *args, int32_t panel_first, int32_t panel_last,
                               int32_t row_first, int32_t row_last) {
    int8_scratch s;
    const bool direct = row_last - row_first <= DIRECT_ROWS;
    const int32_t group = TILE_PANELS * (direct ? 1 : GROUP_PAIRS);
    int8_job job = {
        .args = args, .panel_bytes = (size_t)(args->k / f.block_k) * (size_t)f.block_bytes, .panel_last = panel_last};
    for (job.panel = panel_first; job.panel < panel_last; job.panel += job.n_panels) {
        job.n_panels = least(group, panel_last - job.panel);
        int32_t n_blocks = share_of(row_last - row_first, ROW_BLOCK);
        for (job.row = row_first; job.row < row_last; job.row += job.n_rows, n_blocks--) {
            int32_t rows = share_of(row_last - job.row, n_blocks);
            job.n_rows = least(share_of(rows, TILE_ROWS) * TILE_ROWS, row_last - job.row);
            if (direct)
                run_block(f, &job, true, &s);
            else
                run_block(f, &job, false, &s);
        }
    }
}

#endif
