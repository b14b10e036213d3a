/* backends/cpu/kernels/attention_product.h - the inner loop of rule T: a few queries times a few vectors of 16 lanes.
 *     c[j][i] = c[j][i] * factor[j], then for k = 0, 1, …: c[j][i] = fma(a[j][k], b[k][i], c[j][i])
 * Scores: a is q, k runs over head elements, lanes are positions. Values: a is the weights, k runs over positions,
 * lanes are head elements. Lanes and queries never mix, so the bits do not depend on how many of them run together.
 * Include after vec_avx2.h or vec_avx512.h. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ATTENTION_PRODUCT_H
#define MR_BACKENDS_CPU_KERNELS_ATTENTION_PRODUCT_H

#include <stdbool.h>

enum { MAX_QUERIES = 6, MAX_VECTORS = 4, MAX_SEGMENTS = 4 };

/* k is cut into segments, because KV blocks lie anywhere. */
typedef struct product {
    const float *a[MAX_QUERIES];
    const void *b[MAX_SEGMENTS][MAX_VECTORS]; /* 16 f16 or f32 of the segment's first k */
    int32_t n[MAX_SEGMENTS];                  /* k of each segment */
    int32_t n_segments;
    int32_t b_stride; /* elements from one k to the next */
    float *c;         /* [query][c_stride] */
    int32_t c_stride;
    const float *factor; /* [query]; NULL: c starts at +0 */
} product;

typedef void product_fn(const product *p, int32_t first_vector);

#if defined(__clang__)
#define MR_UNROLL _Pragma("unroll")
#else
#define MR_UNROLL _Pragma("GCC unroll 8")
#endif

MR_INLINE v16 load_kv(const void *p, int64_t i, const bool is_half) {
    return is_half ? v16_load_f16((const uint16_t *)p + i) : v16_load((const float *)p + i);
}

MR_INLINE void product_body(const product *p, int32_t first_vector, const int nq, const int nv, const bool is_half) {
    v16 acc[MAX_QUERIES][MAX_VECTORS];
    const float *a[MAX_QUERIES];
    MR_UNROLL
    for (int j = 0; j < nq; j++) {
        const float *c = p->c + (int64_t)j * p->c_stride + first_vector * 16;
        a[j] = p->a[j];
        MR_UNROLL
        for (int i = 0; i < nv; i++)
            acc[j][i] = p->factor ? v16_mul(v16_load(c + 16 * i), v16_set1(p->factor[j])) : v16_set1(0.0f);
    }
    for (int32_t s = 0; s < p->n_segments; s++) {
        const void *b[MAX_VECTORS];
        MR_UNROLL
        for (int i = 0; i < nv; i++)
            b[i] = p->b[s][first_vector + i];
        const int64_t n = p->n[s], stride = p->b_stride;
        for (int64_t k = 0; k < n; k++) {
            v16 bv[MAX_VECTORS];
            MR_UNROLL
            for (int i = 0; i < nv; i++)
                bv[i] = load_kv(b[i], k * stride, is_half);
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
    MR_UNROLL
    for (int j = 0; j < nq; j++)
        MR_UNROLL
    for (int i = 0; i < nv; i++)
        v16_store(p->c + (int64_t)j * p->c_stride + (first_vector + i) * 16, acc[j][i]);
}

/* One function for each number of queries, vectors and type; only the widths that fit into the registers. */
#define PRODUCT(nq, nv)                                                                                                \
    static void product_f32_##nq##x##nv(const product *p, int32_t first_vector) {                                      \
        product_body(p, first_vector, nq, nv, false);                                                                  \
    }                                                                                                                  \
    static void product_f16_##nq##x##nv(const product *p, int32_t first_vector) {                                      \
        product_body(p, first_vector, nq, nv, true);                                                                   \
    }
PRODUCT_SHAPES
#undef PRODUCT

#define PRODUCT(nq, nv) [0][nq][nv] = product_f32_##nq##x##nv, [1][nq][nv] = product_f16_##nq##x##nv,
static product_fn *const PRODUCTS[2][MAX_QUERIES + 1][MAX_VECTORS + 1] = {PRODUCT_SHAPES};
#undef PRODUCT

/* Vectors 0 .. n_vectors - 1 for n_queries. */
static void product_run(const product *p, int32_t n_queries, int32_t n_vectors, bool is_half) {
    for (int32_t i = 0; i < n_vectors;) {
        int32_t width = n_vectors - i;
        while (!PRODUCTS[is_half][n_queries][width])
            width--;
        PRODUCTS[is_half][n_queries][width](p, i);
        i += width;
    }
}

#endif
