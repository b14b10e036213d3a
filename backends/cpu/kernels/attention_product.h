/* backends/cpu/kernels/attention_product.h - the inner loop of rule T: a few queries times a few vectors of 16 lanes.
 * For query j and lane i:
 *     c[j][i] = c[j][i] * factor[j], then for k = 0, 1, …: c[j][i] = fma(a[j][k], b[k][i], c[j][i])
 * For scores, a is q, k runs over head elements, and lanes are positions. For values, a is the weights, k runs over
 * positions, and lanes are head elements. Lanes and queries never mix, so the bits do not depend on how many queries
 * and vectors are computed together.
 * Include after vec_avx512.h or the like. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_PRODUCT_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>

enum { MAX_VECTORS = 4, MAX_SEGMENTS = 4, MAX_RUNS = 4, LINE = 64 };

/* k is cut into segments: the KV blocks of a tile are not contiguous. */
typedef struct product {
    const float *a[MAX_QUERIES];
    const void *b[MAX_SEGMENTS][MAX_VECTORS]; /* 16 f16 or f32 of the segment's first k */
    int32_t n[MAX_SEGMENTS];                  /* k of each segment */
    int32_t n_segments;
    int32_t b_stride; /* elements from one k to the next */
    float *c;         /* [query][c_stride] */
    int32_t c_stride;
    bool is_first;                   /* c starts at +0 */
    const float *factor;             /* [query]: c is multiplied by it first; NULL: no factor */
    const char *ahead[MAX_SEGMENTS]; /* cache lines to prefetch during the segment; NULL: none */
} product;

/* Memory that will be read next. Products prefetch it, because the hardware cannot predict the next KV block. */
typedef struct ahead {
    const char *run[MAX_RUNS]; /* of run_bytes each */
    int32_t n_runs, run_bytes;
    int32_t run_idx, offset; /* prefetched so far */
} ahead;

typedef void product_fn(const product *p, int32_t first_vector);

#if defined(__clang__)
#define MR_UNROLL _Pragma("unroll")
#else
#define MR_UNROLL _Pragma("GCC unroll 8")
#endif

/* Where b lies: in the store as f32 or f16, or converted in the stage (attention_vec.h). */
typedef enum source { SOURCE_F32, SOURCE_F16, SOURCE_STAGE, SOURCES } source;

/* Cache lines to prefetch at each k: as many as are read. The stage is read from the first-level cache, by every
 * product of a block; one line is then more than enough. */
MR_ALWAYS_INLINE int32_t lines_per_k(const source from, const int nv) {
    return from == SOURCE_F32 ? nv : from == SOURCE_F16 && nv > 1 ? nv / 2 : 1;
}

/* Adds the products of one segment to the sums, and advances a by the segment. */
MR_ALWAYS_INLINE void product_segment(const float *a[MAX_QUERIES], const void *const *b_first, v16 acc[][MAX_VECTORS],
                                      int64_t n, int64_t stride, const char *lines, const int nq, const int nv,
                                      const source from) {
    const char *b[MAX_VECTORS];
    MR_UNROLL
    for (int i = 0; i < nv; i++)
        b[i] = b_first[i];
    stride *= from == SOURCE_F16 ? 2 : 4;
    for (int64_t k = 0; k < n; k++) {
        if (lines) {
            MR_UNROLL
            for (int i = 0; i < lines_per_k(from, nv); i++)
                __builtin_prefetch(lines + i * LINE, 0, 2);
            lines += lines_per_k(from, nv) * LINE;
        }
        v16 bv[MAX_VECTORS];
        MR_UNROLL
        for (int i = 0; i < nv; i++) {
            bv[i] = from == SOURCE_F16 ? v16_load_f16((const uint16_t *)b[i]) : v16_load((const float *)b[i]);
            b[i] += stride;
        }
        MR_UNROLL
        for (int j = 0; j < nq; j++) {
            v16 av = v16_set1(a[j][k]);
            MR_UNROLL
            for (int i = 0; i < nv; i++)
                acc[j][i] = v16_fma(av, bv[i], acc[j][i]);
        }
    }
    MR_UNROLL
    for (int j = 0; j < nq; j++)
        a[j] += n;
}

MR_ALWAYS_INLINE v16 product_start(const product *p, const float *c, int32_t j) {
    v16 x = p->is_first ? v16_set1(0.0f) : v16_load(c);
    return p->factor ? v16_mul(x, v16_set1(p->factor[j])) : x;
}

MR_ALWAYS_INLINE void product_body(const product *p, int32_t first_vector, const int nq, const int nv,
                                   const source from) {
    v16 acc[MAX_QUERIES][MAX_VECTORS];
    const float *a[MAX_QUERIES];
    float *c = p->c + first_vector * 16;
    const int64_t c_stride = p->c_stride;
    MR_UNROLL
    for (int j = 0; j < nq; j++) {
        a[j] = p->a[j];
        MR_UNROLL
        for (int i = 0; i < nv; i++)
            acc[j][i] = product_start(p, c + j * c_stride + 16 * i, j);
    }
    for (int32_t s = 0; s < p->n_segments; s++)
        product_segment(a, p->b[s] + first_vector, acc, p->n[s], p->b_stride, p->ahead[s], nq, nv, from);
    MR_UNROLL
    for (int j = 0; j < nq; j++) {
        MR_UNROLL
        for (int i = 0; i < nv; i++)
            v16_store(c + j * c_stride + 16 * i, acc[j][i]);
    }
}

/* One function for each number of queries, number of vectors and source. Only shapes whose sums fit into the registers
 * are in PRODUCT_SHAPES. */
#define PRODUCT(nq, nv)                                                                                                \
    static void product_f32_##nq##x##nv(const product *p, int32_t first_vector) {                                      \
        product_body(p, first_vector, nq, nv, SOURCE_F32);                                                             \
    }                                                                                                                  \
    static void product_f16_##nq##x##nv(const product *p, int32_t first_vector) {                                      \
        product_body(p, first_vector, nq, nv, SOURCE_F16);                                                             \
    }                                                                                                                  \
    static void product_stage_##nq##x##nv(const product *p, int32_t first_vector) {                                    \
        product_body(p, first_vector, nq, nv, SOURCE_STAGE);                                                           \
    }
PRODUCT_SHAPES
#undef PRODUCT

#define PRODUCT(nq, nv)                                                                                                \
    [SOURCE_F32][nq][nv] = product_f32_##nq##x##nv, [SOURCE_F16][nq][nv] = product_f16_##nq##x##nv,                    \
    [SOURCE_STAGE][nq][nv] = product_stage_##nq##x##nv,
static product_fn *const PRODUCTS[SOURCES][MAX_QUERIES + 1][MAX_VECTORS + 1] = {PRODUCT_SHAPES};
#undef PRODUCT

/* The next n cache lines to prefetch; NULL: none. */
MR_ALWAYS_INLINE const char *ahead_lines(ahead *w, int32_t n) {
    if (w->run_idx >= w->n_runs)
        return NULL;
    const char *lines = w->run[w->run_idx] + w->offset;
    w->offset += n * LINE;
    if (w->offset >= w->run_bytes)
        w->offset = 0, w->run_idx++;
    return lines;
}

/* Lets the segments of p prefetch the next memory of w. */
static void ahead_take(ahead *w, product *p, int32_t n_lines) {
    for (int32_t s = 0; s < p->n_segments; s++)
        p->ahead[s] = ahead_lines(w, p->n[s] * n_lines);
}

/* Computes vectors 0 .. n_vectors - 1 for n_queries, with the widest functions that there are. */
static void product_run(product *p, int32_t n_queries, int32_t n_vectors, source from, ahead *w) {
    for (int32_t i = 0, width; i < n_vectors; i += width) {
        width = n_vectors - i;
        while (!PRODUCTS[from][n_queries][width])
            width--;
        ahead_take(w, p, lines_per_k(from, width));
        PRODUCTS[from][n_queries][width](p, i);
    }
}

#endif
