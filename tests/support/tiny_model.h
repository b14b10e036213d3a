/* tests/support/tiny_model.h - small models with random weights, made in memory: complete GGUF files of any
 * architecture and type that Millrace runs, and blocks of random weights.
 * Owns:    a tiny_model owns its file, its tables and its text until destroy.
 * Threads: caller serialises.
 * Errors:  none. The process ends if the model cannot be made. Writing the file does not use mr_alloc, but opening the
 *          file does, so a sweep over failing allocations opens the model first. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_TINY_MODEL_H
#define MR_TESTS_SUPPORT_TINY_MODEL_H

#include "engine/gguf/gguf.h"
#include "engine/gguf/model_info.h"
#include "tests/support/gguf_writer.h"

/* A change to one tensor of the model, for models that must be refused. */
typedef enum tiny_edit_kind { TINY_LEAVE_OUT, TINY_SHAPE, TINY_TYPE } tiny_edit_kind;
typedef struct tiny_edit {
    const char *name; /* NULL: no edit */
    tiny_edit_kind kind;
    mr_type type;          /* TINY_TYPE */
    int64_t columns, rows; /* TINY_SHAPE */
} tiny_edit;

typedef struct tiny_desc {
    const char *arch;    /* NULL: llama */
    mr_type type;        /* of the matrices and the embedding */
    mr_type vector_type; /* F32 or F16, of norms and biases */
    int32_t n_layers, d_model, n_ff, n_heads, n_kv_heads;
    const uint32_t *n_ff_of, *n_kv_heads_of; /* [n_layers] of layers that differ; NULL: all are alike */
    int32_t head_dim;                        /* 0: d_model / n_heads */
    int32_t n_experts, n_experts_used;       /* 0: none; else each expert has width n_ff */
    int32_t n_dense;                         /* with experts: so many first layers have none */
    int32_t n_ff_shared;                     /* with experts: width of a shared one, beside a bias of the choice */
    int32_t vocab_size, context_length;
    int32_t n_predictor; /* a sparse model with predictors of this width; 0: none */
    float threshold;     /* of a sparse model */
    bool tied_output, rope_factors;
    bool biases;               /* llama: biases of q, k, v and o; qwen2 always has biases of q, k, v */
    const char *const *tokens; /* [vocab_size]; the caller adds the other keys of the vocabulary; NULL: t0, t1 ... */
    uint64_t seed;
    tiny_edit edit;
} tiny_desc;

/* A model of two layers of width 64 (256 for the K-quants), four heads and two KV heads; fields may be changed. */
tiny_desc tiny_default(const char *arch, mr_type type);

/* n values of the type, uniform in about [-amplitude, amplitude]. n is a multiple of the block size. Quantised types
 * get random quants with matching scales. The caller frees the result. */
void *tiny_random(mr_type type, int64_t n, float amplitude, uint64_t seed);

/* Writes the file of a model. The caller may add keys and tensors to the writer. */
gguf_writer *tiny_model_write(const tiny_desc *desc);

typedef struct tiny_model {
    uint8_t *bytes; /* of the file; NULL if the model was opened from a path */
    mr_gguf *gguf;
    mr_model_info info;
} tiny_model;

/* Opens the writer's file. Takes ownership of the writer. */
tiny_model *tiny_model_open(gguf_writer *w);
tiny_model *tiny_model_open_path(const char *path);
/* Write and open. */
tiny_model *tiny_model_create(const tiny_desc *desc);
void tiny_model_destroy(tiny_model *m);

#endif
