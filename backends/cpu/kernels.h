/* backends/cpu/kernels.h - the kernels of the CPU backend: pure functions on buffers, sizes and a range.
 * Every kernel follows a rule of engine/NUMERICS.md. The scalar kernel is the specification; the kernels of all other
 * instruction sets compute the same bits.
 * Threads: pure. Callers give disjoint output ranges to different threads. Each calling thread has set the denormal
 * mode
 *          (rule A2). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_H
#define MR_BACKENDS_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/tensor.h"

/* The instruction sets (levels) of this architecture; a later one is better. AVX2 includes FMA and F16C.
 * AVXVNNI is AVX2 with AVX-VNNI. AVX512 is AVX-512 F, BW, VL, DQ and VNNI. Every AArch64 CPU has NEON. DOTPROD is NEON
 * with SDOT (from Armv8.2 on). */
#if defined(__aarch64__)
typedef enum mr_isa { MR_ISA_SCALAR, MR_ISA_NEON, MR_ISA_DOTPROD, MR_ISA_COUNT } mr_isa;
#else
typedef enum mr_isa { MR_ISA_SCALAR, MR_ISA_AVX2, MR_ISA_AVXVNNI, MR_ISA_AVX512, MR_ISA_COUNT } mr_isa;
#endif

static inline int32_t mr_min_i32(int32_t a, int32_t b) {
    return a < b ? a : b;
}
static inline int32_t mr_max_i32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* --- Weight panels -------------------------------------------------------------------------------------------------
 * A panel has 16 rows of the matrix (output rows) side by side; k, the column, ascends. The blocks of one panel are
 * contiguous. In the last panel, the last row stands in place of rows past the end of the matrix. A group is u8 [16
 * rows][4 k]. A group of nibbles has k g..g+3 in the low nibbles and k 16+g..16+g+3 in the high ones, g = 0, 4, 8, 12
 * of each 32 k.
 *   F32    for each k: f32 [16 rows]
 *   F16    for each k: f16 [16 rows]
 *   BF16   for each 2 k: bf16 [16 rows][2]; an odd last k is followed by a zero
 *   Q8_0   for each 32 k (544 bytes): f16 d[16 rows]; 8 groups of value + 128
 *   Q4_0   for each 32 k (288 bytes): f16 d[16]; 4 groups of nibbles, value + 8
 *   IQ4_NL the same, but the nibbles are indices into mr_iq4_values
 *   MXFP4  for each 32 k (272 bytes): u8 e[16]; 4 groups of nibbles, indices into mr_mxfp4_values
 *   Q4_K   for each 256 k (2368 bytes): f16 d[16]; f16 dmin[16]; for each of 8 sub-blocks u8 sc[16], u8 m[16];
 *          for each sub-block 4 groups of nibbles
 *   Q5_K   for each 256 k (2880 bytes): as Q4_K; then for each sub-block u8 high[16 rows][4]: bit g of byte i is bit 4
 *          of k 4g+i
 *   Q6_K   for each 256 k (3360 bytes): f16 d[16]; for each of 16 sub-blocks i8 sc[16]; for each sub-block 3 groups of
 *          value + 32 of k 4g..4g+3 in bits 0-5; bits 7-6 of groups 0, 1, 2: bits 5-4, 3-2, 1-0 of k 12..15
 *   IQ4_XS for each 256 k (2208 bytes): f16 d[16]; for each of 8 sub-blocks i8 sc[16]; for each sub-block 4 groups of
 *          nibbles, indices into mr_iq4_values
 *   X8     for each 32 k (640 bytes): f32 scale[16] of the first 16 k, f32 scale[16] of the others; 8 groups of
 *          value + 128
 *   X8M    for each 32 k (768 bytes): as X8, with f32 min[16] twice behind the scales: x = scale * value + min
 */
typedef enum mr_panel_type {
    MR_PANEL_NONE, /* not a type of weights */
    MR_PANEL_F32,
    MR_PANEL_F16,
    MR_PANEL_BF16,
    MR_PANEL_Q8_0,   /* Q8_0 Q5_0 */
    MR_PANEL_Q4_0,   /* Q4_0 TQ1_0 TQ2_0 */
    MR_PANEL_IQ4_NL, /* IQ4_NL */
    MR_PANEL_MXFP4,  /* MXFP4 */
    MR_PANEL_Q4_K,   /* Q4_K */
    MR_PANEL_Q5_K,   /* Q5_K */
    MR_PANEL_Q6_K,   /* Q6_K Q3_K */
    MR_PANEL_IQ4_XS, /* IQ4_XS */
    MR_PANEL_X8,     /* IQ1 IQ2 IQ3 */
    MR_PANEL_X8M,    /* Q4_1 Q5_1 Q2_K */
    MR_PANEL_COUNT,
} mr_panel_type;

/* The panel type that matrices of this type are repacked into; MR_PANEL_NONE for other types. */
mr_panel_type mr_panel_of(mr_type type);
/* Bytes of one panel of k columns. 0: k does not fit, as it is no multiple of the block, or as it is 1 for BF16. */
size_t mr_panel_type_bytes(mr_panel_type panel, int32_t k);
/* Bytes of one panel of a matrix of this type. 0: the type has no panels, or k is no multiple of its blocks. */
size_t mr_panel_bytes(mr_type type, int32_t k);

typedef struct mr_repack_args {
    mr_type type;
    int32_t k, n;       /* columns and rows of the matrix */
    const uint8_t *src; /* rows in file layout, from row 0 of the matrix */
    size_t src_row_bytes;
    uint8_t *dst; /* panel 0; 64-byte aligned */
    /* Numbers of the rows that the panels have, [n], in ascending order. NULL: rows 0 to n - 1. */
    const int32_t *rows;
} mr_repack_args;
/* Repacks rows of the matrix into panels [panel_first, panel_last). */
void mr_repack(const mr_repack_args *args, int32_t panel_first, int32_t panel_last);

/* --- Matrix product: rule M -------------------------------------------------------------------------------------- */
typedef struct mr_matmul_args {
    const uint8_t *w; /* panels, 64-byte aligned */
    int32_t k, n;     /* w: [n, k] */
    const uint8_t *a; /* rows of mr_type_activation's type, 64-byte aligned */
    size_t a_row_bytes;
    float *y; /* [rows][n] */
    size_t y_row_bytes;
    const float *bias; /* [n], or NULL */
    const float *add;  /* [rows][n], or NULL; may be y itself */
    size_t add_row_bytes;
    /* Lists of row numbers, for experts. Activation row r is row a_rows[r] of a. Its result is row y_rows[r] of y, and
     * of add. NULL: row r. All numbers in y_rows are different. */
    const int32_t *a_rows, *y_rows;
} mr_matmul_args;
/* Computes the output rows of panels [panel_first, panel_last) for activation rows [row_first, row_last). */
typedef void mr_matmul_fn(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                          int32_t row_last);

/* --- Rows -------------------------------------------------------------------------------------------------------- */
/* Rule Q: x[n] to one A8 row (planes q, d, sum); n a multiple of 32. */
typedef void mr_quantize_fn(const float *x, uint8_t *a8, int32_t n);
/* Rule M: bf16[n] = x[n] rounded; if n is odd, a zero follows. */
typedef void mr_round_bf16_fn(const float *x, uint16_t *bf16, int32_t n);
/* Rule N: y[n] = x[n] normed in groups of m, times w[m]. x and y may be the same. */
typedef void mr_rms_norm_fn(const float *x, const float *w, float *y, int32_t n, int32_t m, float eps);
/* Rule R: writes the table of one position to out: cos[half], sin[half]. angles[r]: row r of the constant, [half]. */
typedef void mr_rope_table_fn(const float *const angles[MR_ROPE_ROWS], int32_t half, int32_t position, float magnitude,
                              float *out);
/* Rule R: rotates the n_heads heads of head_dim elements of a row x in place. table: cos[n_rot/2], sin[n_rot/2]. */
typedef void mr_rope_fn(float *x, int32_t n_heads, int32_t head_dim, int32_t n_rot, mr_rope_pairs pairs,
                        const float *table);
/* Rule G: y[n] of gate[n] and up[n]; y may be gate or up. */
typedef void mr_glu_fn(const float *gate, const float *up, float *y, int32_t n, mr_glu glu);

/* Rule C: y[n] = x[n] held below the cap; x and y may be the same. */
typedef void mr_soft_cap_fn(const float *x, float *y, int32_t n, float cap);

/* Products of single rows of a matrix in the layout of the file, which a list names: rule M. */
typedef struct mr_listed_args {
    const uint8_t *w;
    size_t w_row_bytes;
    int32_t k;
    const int32_t *list; /* [n] rows of w */
    int32_t n;
    const float *a; /* [n_rows][k] */
    size_t a_row_bytes;
    float *y; /* [n_rows][n] */
    size_t y_row_bytes;
    int32_t n_rows; /* 1 to MR_LISTED_ROWS */
} mr_listed_args;
enum { MR_LISTED_ROWS = 4 };
typedef void mr_listed_fn(const mr_listed_args *args);

/* --- Sums of rows: rule S ----------------------------------------------------------------------------------------- */
typedef struct mr_axpy_args {
    const uint8_t *w; /* the matrix in the layout of the file */
    size_t w_row_bytes;
    mr_type type;
    const int32_t *neurons; /* [n] rows of w, in ascending order: neurons of one partition */
    const float *h;         /* [n] their factors, none of them zero */
    int32_t n;              /* 1 to MR_PARTITION */
    float *y;               /* of the whole width */
} mr_axpy_args;
enum { MR_AXPY_COLUMNS = 256 };
/* Adds the partial sum of a partition to columns [first, last) of y. first is a multiple of MR_AXPY_COLUMNS, last as
 * well or the width. */
typedef void mr_axpy_fn(const mr_axpy_args *args, int32_t first, int32_t last);

/* --- Keys, values, attention: rules K, T, T8 -------------------------------------------------------------------------
 * The store of one layer has for each block, one head after the other: keys in k_store and values in v_store.
 *   F16, F32  keys [k_dim][16], values [16][v_dim]
 *   Q8_0      i8 keys [k_dim / 4][16][4], then f16 scales [k_dim / 32][16];
 *             i8 values [16 / 4][v_dim][4], then f16 scales [v_dim / 32][16]
 * So integer products find the four k of a lane side by side: four head elements of a key, or one head element of the
 * values at four positions. A slot is block * 16 + position % 16. */
/* Bytes of the keys (or values) of one block and head, with dim elements for each position. 0: the type cannot hold
 * keys and values, or dim does not fit. */
static inline size_t mr_kv_head_bytes(mr_type type, int32_t dim) {
    size_t elements = (size_t)dim * MR_KV_BLOCK;
    switch (type) {
    case MR_TYPE_F32:
        return elements * 4;
    case MR_TYPE_F16:
        return elements * 2;
    case MR_TYPE_Q8_0:
        return dim % 32 == 0 ? elements + elements / 32 * 2 : 0;
    default:
        return 0;
    }
}

/* Where element i of the key or value in column t of a Q8_0 block lies. dim: elements of a head. */
static inline int32_t mr_kv_key_at(int32_t i, int32_t t) {
    return (i / 4 * MR_KV_BLOCK + t) * 4 + i % 4;
}
static inline int32_t mr_kv_value_at(int32_t i, int32_t t, int32_t dim) {
    return (t / 4 * dim + i) * 4 + t % 4;
}

/* Positions of a partition (rule T); most queries of a chain; most elements of all weighted sums, and of all queries,
 * of a chain. */
enum {
    MR_ATTENTION_PARTITION = 512,
    MR_ATTENTION_QUERIES = 48,
    MR_ATTENTION_SUMS = 6144,
    MR_ATTENTION_ELEMENTS = 7680,
    MR_ATTENTION_DIM = 1024, /* most elements of a head */
};
#define MR_ATTENTION_INT 16256.0f /* rule T8: the largest integer of queries and weights, 127 * 128 */

typedef struct mr_kv_write_args {
    const float *k, *v; /* [rows][n_kv_heads][k_dim] and [rows][n_kv_heads][v_dim] */
    size_t k_row_bytes, v_row_bytes;
    const int32_t *slots; /* [rows] */
    void *k_store, *v_store;
    size_t k_block_bytes, v_block_bytes; /* from one block to the next */
    mr_type kv_type;
    int32_t n_kv_heads, k_dim, v_dim;
} mr_kv_write_args;
typedef void mr_kv_write_fn(const mr_kv_write_args *args, int32_t row_first, int32_t row_last);

typedef struct mr_attention_args {
    const float *q; /* [rows][n_heads][k_dim] */
    size_t q_row_bytes;
    const void *k_store, *v_store;
    size_t k_block_bytes, v_block_bytes;
    mr_type kv_type;
    const int32_t *row_seq;      /* [rows]: line of the block table */
    const int32_t *row_position; /* [rows]: the last position that the row sees */
    const int32_t *block_table;  /* [sequences][table_stride]: KV blocks in position order */
    int32_t table_stride;
    /* n_heads is a multiple of n_kv_heads. k_dim and v_dim are even, at most MR_ATTENTION_DIM. */
    int32_t n_heads, n_kv_heads, k_dim, v_dim;
    float scale;
    float soft_cap; /* 0: none */
    mr_temperature temperature;
    int32_t window;     /* positions that a row sees, its own included; 0: all */
    const float *sinks; /* [n_heads], or NULL */
    float *out;         /* [rows][n_heads][v_dim] */
    size_t out_row_bytes;
} mr_attention_args;

/* Attention of some rows of one sequence, cut into partitions [first, last) of their positions (rule T). Each call of
 * the kernel computes one partition, on any thread, and merges it in ascending order. The rows times heads of a chain
 * are at most mr_attention_most queries. m and l hold the state of the merged partitions between calls; the weighted
 * sums o of rule T lie in out. */
typedef struct mr_attention_chain {
    _Alignas(64) _Atomic int32_t next; /* the partition that is merged next; after the last one, first again */
    int32_t first, last;
    float m[MR_ATTENTION_QUERIES], l[MR_ATTENTION_QUERIES * 16];
} mr_attention_chain;

/* What one call computes: rows [row_first, row_last) for query heads [head_first, head_last). These are some heads of
 * one KV head, or all heads of some KV heads. */
typedef struct mr_attention_part {
    int32_t row_first, row_last, head_first, head_last;
    mr_attention_chain *chain; /* NULL: the call computes all positions that the rows see */
    int32_t partition;         /* of the chain; the call waits until other threads have merged the ones before it */
} mr_attention_part;
/* Uses the stack only (< 64 KiB). */
typedef void mr_attention_fn(const mr_attention_args *args, const mr_attention_part *part);

/* The factor of the scores of a row: scale, times what the temperature gives at the row's position. */
float mr_attention_scale(const mr_attention_args *args, int32_t row);
/* The first position that a row sees. */
static inline int32_t mr_attention_first(const mr_attention_args *args, int32_t row) {
    int32_t n = args->row_position[row] + 1;
    return args->window && n > args->window ? n - args->window : 0;
}
/* Floats that the weighted sums of a query take. */
static inline int32_t mr_attention_o_width(int32_t v_dim) {
    return (v_dim + 15) / 16 * 16;
}
/* The most queries (rows times heads) of one chain. */
static inline int32_t mr_attention_most(int32_t k_dim, int32_t v_dim) {
    int32_t n = mr_min_i32(MR_ATTENTION_SUMS / mr_attention_o_width(v_dim), MR_ATTENTION_ELEMENTS / k_dim);
    return mr_min_i32(n, MR_ATTENTION_QUERIES);
}
/* Waits until all partitions before this one are merged. Threads must claim partitions in ascending order. */
void mr_attention_chain_wait(mr_attention_chain *chain, int32_t partition);
/* Call this after merging the partition: the next one may be merged. */
void mr_attention_chain_pass(mr_attention_chain *chain, int32_t partition);

/* The kernels of one instruction set. A kernel without a version for this instruction set is the version of a lower
 * one: AVX512 may use that of AVX2, DOTPROD that of NEON. */
typedef struct mr_kernels {
    mr_matmul_fn *matmul[MR_PANEL_COUNT]; /* NULL for MR_PANEL_NONE */
#define KERNEL(name, type, ...) type *name;
#define MATMUL(name, panel, ...)
#include "backends/cpu/cpu_kernels.def"
#undef KERNEL
#undef MATMUL
} mr_kernels;

/* The kernels of a level; never NULL. Do not call the kernels of a level that this CPU lacks. Some CPUs have AVX-512
 * but not AVX-VNNI. On these, the level AVXVNNI gives the kernels of AVX2. */
const mr_kernels *mr_kernels_get(mr_isa isa);
/* The best level of this CPU. */
mr_isa mr_isa_of_hardware(void);
/* Whether this CPU has all instructions of a level. */
bool mr_isa_is_here(mr_isa isa);
/* The best level of this CPU, capped by MILLRACE_CPU_ISA, the name of a level. */
mr_isa mr_isa_detect(void);
/* The value of MILLRACE_CPU_ISA, if it names no level and is therefore ignored. Else NULL. */
const char *mr_isa_env_error(void);
const char *mr_isa_name(mr_isa isa);
/* Whether the CPU has AVX-VNNI; x86 only. */
bool mr_has_avxvnni(void);

/* Prototypes of every kernel: mr_<name>_<isa>. */
#define PROTO_0(name, type, isa)
#define PROTO_1(name, type, isa) type mr_##name##_##isa;
#if defined(__aarch64__)
#define PROTO_2(name, type, isa) type mr_##name##_##isa, mr_##name##_dotprod;
#define KERNEL(name, type, has_avx2, has_avx512, has_neon)                                                             \
    PROTO_1(name, type, scalar) PROTO_##has_neon(name, type, neon)
#else
#define PROTO_2(name, type, isa) type mr_##name##_##isa, mr_##name##_avxvnni;
#define KERNEL(name, type, has_avx2, has_avx512, has_neon)                                                             \
    PROTO_1(name, type, scalar) PROTO_##has_avx2(name, type, avx2) PROTO_##has_avx512(name, type, avx512)
#endif
#define MATMUL(name, panel, has_avx2, has_avx512, has_neon) KERNEL(name, mr_matmul_fn, has_avx2, has_avx512, has_neon)
#include "backends/cpu/cpu_kernels.def"
#undef KERNEL
#undef MATMUL
#undef PROTO_0
#undef PROTO_1
#undef PROTO_2

#endif
