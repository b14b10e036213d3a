/* tests/cuda_emulation/node_case.h - runs one node on the scalar CPU backend and by the kernels of its cuda_op, and
 * compares every byte of all tensors, and the bytes around them.
 *
 *     node_case c;
 *     node_case_begin(&c, MR_OP_SCALE, (node_rows){.bucket = 5, .real = 4});
 *     c.node.in[0] = node_case_rows(&c, MR_TYPE_F32, 100);
 *     fill_floats(node_case_row(&c, c.node.in[0], 0), …);
 *     c.node.out = node_case_rows(&c, MR_TYPE_F32, 100);
 *     node_case_check(&c);
 *
 * node_case_check runs the kernels with threads forward, reversed and in a drawn order, then frees the tensors. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_NODE_CASE_H
#define MR_TESTS_CUDA_EMULATION_NODE_CASE_H

#include "backends/cuda/cuda_internal.h"
#include "tests/kernels/test_matmul_reference.h"

enum { NODE_CASE_TENSORS = 8 };

typedef struct node_rows {
    int32_t bucket, real; /* rows that tensors have, and rows of the step */
    int32_t used;         /* experts of a row: slots are rows * used */
} node_rows;

typedef struct node_case {
    mr_node node;
    node_rows rows;
    mr_tensor tensors[NODE_CASE_TENSORS]; /* in buffers of the CPU backend */
    int32_t n_tensors;
    uint8_t *files[NODE_CASE_TENSORS]; /* of matrices: the rows as in a file; else NULL */
    int32_t n_matrices[NODE_CASE_TENSORS];
} node_case;

/* Kinds of numbers: small ones; zeros of both signs; denormal ones; around the smallest and the largest; halves, so
 * that rounding meets ties; some infinite; some NaNs of any bits; any bits. */
typedef enum fill { PLAIN, ZERO, DENORMAL, TINY, LARGE, TIES, INFINITE, NANS, ANY_BITS, FILLS } fill;
void fill_floats(rng *r, float *x, int32_t n, fill how);

void node_case_begin(node_case *c, mr_op op, node_rows rows);
/* Adds a tensor. Its bytes are random. */
int32_t node_case_tensor(node_case *c, mr_type type, int32_t columns, int32_t rows, mr_storage storage,
                         mr_row_count count);
/* Adds a tensor [columns, bucket] of the step. */
int32_t node_case_rows(node_case *c, mr_type type, int32_t columns);
/* The first byte of a row. */
void *node_case_row(const node_case *c, int32_t tensor, int32_t row);
/* Adds a tensor [columns, rows] f32 with these numbers: of the step, or of the model if rows is not 0. */
int32_t node_case_floats(node_case *c, rng *r, int32_t columns, int32_t rows, fill how);
/* Adds a tensor [1, bucket] i32 with numbers from 0 to limit - 1. */
int32_t node_case_ints(node_case *c, rng *r, int32_t limit);
/* Adds matrices [k, n] of random weights in WEIGHT storage, one behind the other. */
int32_t node_case_matrices(node_case *c, rng *r, mr_type type, int32_t k, int32_t n, int32_t n_matrices);
/* Adds random activations [k, bucket] for matrices of this type; [k, bucket * used] if count is MR_ROWS_SLOTS. */
int32_t node_case_activations(node_case *c, rng *r, mr_type type, int32_t k, mr_row_count count);
/* Whether the kernels support the node. */
bool node_case_is_supported(const node_case *c);
/* Runs, compares, and ends the case. The node must be supported. */
void node_case_check(node_case *c);
/* Ends the case without a run. */
void node_case_end(node_case *c);
/* The last function of a group of tests: destroys the CPU backend that the cases share. */
int node_case_teardown(void **state);

#endif
