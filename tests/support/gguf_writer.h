/* tests/support/gguf_writer.h - makes GGUF files for tests, in memory or at a path: valid files, and files that are
 * broken on purpose.
 * Owns:    copies of all arguments. Borrowed out: the bytes of the file, until the next call.
 * Threads: caller serialises.
 * Errors:  none. The process ends if the system has no memory. The writer does not use mr_alloc, so sweeps over failing
 *          allocations do not reach the writer. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_GGUF_WRITER_H
#define MR_TESTS_SUPPORT_GGUF_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/type.h"

typedef struct gguf_writer gguf_writer;

/* Version 3, alignment 32. */
gguf_writer *gguf_writer_create(void);
void gguf_writer_destroy(gguf_writer *w);
/* The magic of PowerInfer's files. */
void gguf_writer_sparse(gguf_writer *w);
void gguf_writer_version(gguf_writer *w, uint32_t version);
/* Sets the alignment of tensors, and adds general.alignment. Call before the first tensor is added. */
void gguf_writer_alignment(gguf_writer *w, uint32_t alignment);

void gguf_writer_u32(gguf_writer *w, const char *key, uint32_t v);
void gguf_writer_i32(gguf_writer *w, const char *key, int32_t v);
void gguf_writer_u64(gguf_writer *w, const char *key, uint64_t v);
void gguf_writer_f32(gguf_writer *w, const char *key, float v);
void gguf_writer_bool(gguf_writer *w, const char *key, bool v);
void gguf_writer_str(gguf_writer *w, const char *key, const char *v);
void gguf_writer_u32s(gguf_writer *w, const char *key, const uint32_t *v, size_t n);
void gguf_writer_bools(gguf_writer *w, const char *key, const bool *v, size_t n);
void gguf_writer_i32s(gguf_writer *w, const char *key, const int32_t *v, size_t n);
void gguf_writer_f32s(gguf_writer *w, const char *key, const float *v, size_t n);
void gguf_writer_strs(gguf_writer *w, const char *key, const char *const *v, size_t n);
/* Any type number and any bytes as the value. */
void gguf_writer_raw(gguf_writer *w, const char *key, uint32_t type, const void *value, size_t bytes);

/* Adds a tensor. Its data follows the data of the previous tensor at the next aligned offset. data NULL: zeros. The
 * type must be known to mr_type_bytes. ne: [n_dims]. */
void gguf_writer_tensor(gguf_writer *w, const char *name, mr_type type, int n_dims, const int64_t *ne,
                        const void *data);
/* For one and two dimensions. */
void gguf_writer_vector(gguf_writer *w, const char *name, mr_type type, int64_t n, const void *data);
void gguf_writer_matrix(gguf_writer *w, const char *name, mr_type type, int64_t columns, int64_t rows,
                        const void *data);

/* An unchecked entry of the tensor table, without data. At most 8 dimensions. */
typedef struct gguf_raw_tensor {
    const char *name;
    uint32_t n_dims;
    uint64_t ne[8];
    uint32_t type;
    uint64_t offset;
} gguf_raw_tensor;
void gguf_writer_raw_tensor(gguf_writer *w, const gguf_raw_tensor *t);
/* Appends bytes to the data section. */
void gguf_writer_raw_data(gguf_writer *w, const void *data, size_t bytes);
/* Sets the counts in the header, which need not be true. */
void gguf_writer_counts(gguf_writer *w, uint64_t n_tensors, uint64_t n_keys);

/* The file so far. More keys and tensors can be added afterwards. */
const uint8_t *gguf_writer_bytes(gguf_writer *w, size_t *out_size);
/* Writes the file to path; false on failure. */
bool gguf_writer_save(gguf_writer *w, const char *path);

/* A small complete model that mr_model_info_read accepts. All tensors are zero. */
typedef struct gguf_model_shape {
    const char *arch; /* NULL: llama */
    mr_type type;     /* of the matrices; d_model and n_ff must be multiples of the block size */
    int32_t n_layers, d_model, n_ff, n_heads, n_kv_heads, vocab_size, context_length;
    const uint32_t *n_ff_of, *n_kv_heads_of; /* [n_layers]: the keys hold these arrays instead; or NULL */
    bool tied_output;
    const char *const *tokens; /* [vocab_size]; NULL: t0, t1 ... */
} gguf_model_shape;
void gguf_writer_model_keys(gguf_writer *w, const gguf_model_shape *m);
void gguf_writer_model_tensors(gguf_writer *w, const gguf_model_shape *m);

#endif
