/* engine/tensor/type.h - the element types of GGUF files, and A8, the type of quantised activations.
 * Numbers and block sizes: GGUF specification (ggml/docs/gguf.md) and the block structures of ggml.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TENSOR_TYPE_H
#define MR_ENGINE_TENSOR_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers are those in GGUF files. 4, 5, 31 to 33 and 36 to 38 were withdrawn. */
typedef enum mr_type {
    MR_TYPE_F32 = 0,
    MR_TYPE_F16 = 1,
    MR_TYPE_Q4_0 = 2,
    MR_TYPE_Q4_1 = 3,
    MR_TYPE_Q5_0 = 6,
    MR_TYPE_Q5_1 = 7,
    MR_TYPE_Q8_0 = 8,
    MR_TYPE_Q8_1 = 9,
    MR_TYPE_Q2_K = 10,
    MR_TYPE_Q3_K = 11,
    MR_TYPE_Q4_K = 12,
    MR_TYPE_Q5_K = 13,
    MR_TYPE_Q6_K = 14,
    MR_TYPE_Q8_K = 15,
    MR_TYPE_IQ2_XXS = 16,
    MR_TYPE_IQ2_XS = 17,
    MR_TYPE_IQ3_XXS = 18,
    MR_TYPE_IQ1_S = 19,
    MR_TYPE_IQ4_NL = 20,
    MR_TYPE_IQ3_S = 21,
    MR_TYPE_IQ2_S = 22,
    MR_TYPE_IQ4_XS = 23,
    MR_TYPE_I8 = 24,
    MR_TYPE_I16 = 25,
    MR_TYPE_I32 = 26,
    MR_TYPE_I64 = 27,
    MR_TYPE_F64 = 28,
    MR_TYPE_IQ1_M = 29,
    MR_TYPE_BF16 = 30,
    MR_TYPE_TQ1_0 = 34,
    MR_TYPE_TQ2_0 = 35,
    MR_TYPE_MXFP4 = 39,
    MR_TYPE_FILE_COUNT = 40, /* all types in files are below this number */
    /* Activations as int8 in blocks of 32, never in a file. A row of K elements consists of three planes: int8 q[K],
     * float d[K / 32], int32 sum[K / 32]. x = d * q; sum is the sum of the block's q. */
    MR_TYPE_A8 = 64,
} mr_type;

typedef struct mr_type_info {
    const char *name;    /* as GGUF tools print the name */
    int32_t block_elems; /* elements of one block */
    int32_t block_bytes; /* bytes of one block */
    bool is_weight;      /* this version multiplies matrices of this type */
} mr_type_info;

/* Returns NULL for a number that is no type. */
const mr_type_info *mr_type_get(int32_t type);
/* Returns the name, for example "F16", or "?" for an unknown number. */
const char *mr_type_name(int32_t type);
/* Returns the type of the activations in a product with weights of this type: MR_TYPE_F32, MR_TYPE_BF16 or
 * MR_TYPE_A8. */
mr_type mr_type_activation(mr_type weight);
/* Writes the bytes of n elements. Returns false when n is negative or no multiple of the block, or the product
 * overflows. */
bool mr_type_bytes(int32_t type, int64_t n_elems, size_t *out);

#endif
