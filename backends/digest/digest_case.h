/* backends/digest/digest_case.h - a node on the backend under test: its tensors, its run, and its result, which goes
 * into a part of the digest. A case of a part is
 *
 *     mr_node n = case_begin(t, MR_OP_ADD, n_rows);
 *     n.in[0] = case_floats(t, 0, 100);
 *     n.in[1] = case_floats(t, 7, 100);
 *     n.out = case_result(t, MR_TYPE_F32, 100);
 *     case_run(t, &n);
 *
 * Tensors have the rows of MR_ROWS_STEP, case_bucket of them, unless said otherwise.
 * Errors:  the trial keeps the first one. Then case_run does nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_DIGEST_DIGEST_CASE_H
#define MR_BACKENDS_DIGEST_DIGEST_CASE_H

#include "backends/digest/digest.h"

#define CASE_COUNT(array) ((int32_t)(sizeof(array) / sizeof(array)[0]))

enum {
    CASE_SEED = 1,
    CASE_POOL = 16384,           /* random floats; most inputs are views of them */
    CASE_IMAGE_BYTES = 3 << 19,  /* of the tensors of a case */
    CASE_KEPT_BYTES = 5 << 19,   /* of the tensors that several cases read: matrices, keys and values */
    CASE_RESULT_BYTES = 1 << 20, /* of the result of a case, or of state */
    CASE_TENSORS = 16,
};

typedef struct trial {
    mr_backend *be;
    const mr_backend *beside; /* as in mr_digest_compute */
    mr_digest *digest;
    mr_digest_part *part; /* of the digest */
    size_t alignment;
    mr_buffer *buffer; /* CASE_IMAGE_BYTES, then CASE_KEPT_BYTES */
    uint8_t *image;    /* what the first bytes of the buffer become before a run */
    uint8_t *result;
    size_t image_used, kept_used;
    size_t input_bytes;              /* of the image: results come last */
    mr_tensor tensors[CASE_TENSORS]; /* those that are kept, then those of the case */
    int32_t n_tensors, n_kept;
    int32_t n_rows, n_slots; /* of the case; slots of experts: set by the case */
    float pool[CASE_POOL];
    mr_err *err;
    mr_status status;
} trial;

/* The results from now on belong to this part, which may have some already. */
void case_part(trial *t, int32_t op, int32_t type);
/* Forgets the tensors that were kept. */
void case_forget(trial *t);
/* Forgets the tensors of the last case. Returns a node without tensors. */
mr_node case_begin(trial *t, mr_op op, int32_t n_rows);

/* The rows of the step that its tensors have room for. */
int32_t case_bucket(const trial *t);
/* Adds a tensor. */
int32_t case_tensor(trial *t, mr_type type, int32_t columns, int32_t rows, mr_storage storage, mr_row_count count);
/* [columns, rows of the step] f32: views of the pool from `at` on. */
int32_t case_floats(trial *t, int32_t at, int32_t columns);
/* [columns, rows] f32 of the model. */
int32_t case_vectors(trial *t, int32_t at, int32_t columns, int32_t rows);
/* [1, rows of the step] i32. */
int32_t case_ints(trial *t, const int32_t *data);
int32_t case_result(trial *t, mr_type type, int32_t columns);
/* The bytes of a row in the image. */
void *case_row(trial *t, int32_t tensor, int32_t row);
static inline float *case_float_row(trial *t, int32_t tensor, int32_t row) {
    return (float *)case_row(t, tensor, row);
}

/* Adds a tensor that is kept: n_matrices matrices [k, n] in the layout of the backend; file has their rows. Returns
 * MR_NO_TENSOR if the backend has no layout for them. */
int32_t case_keep_matrices(trial *t, mr_type type, int32_t k, int32_t n, int32_t n_matrices, const uint8_t *file);
/* Adds a tensor that is kept: state, of which each byte is 0xff. */
int32_t case_keep_state(trial *t, mr_type type, int32_t columns, int32_t rows);

/* Runs the node, if both backends support it, and adds the rows of its result. */
void case_run(trial *t, const mr_node *n);
/* The steps of case_run, for results that are not as long as the step. Each returns whether it did its work: runs the
 * node; gets the first rows of a tensor as t->result; gets and adds them. */
bool case_execute(trial *t, const mr_node *n);
bool case_get(trial *t, int32_t tensor, int32_t n_rows);
bool case_add_rows(trial *t, int32_t tensor, int32_t n_rows);

/* Adds to the part. */
void case_add_word(trial *t, uint64_t word);
void case_add_floats(trial *t, const float *x, int32_t n);

/* The families of cases, each in a file of its own. */
void digest_products(trial *t);
void digest_rows(trial *t);
void digest_attention(trial *t);
void digest_sparse(trial *t);
void digest_state(trial *t);

#endif
