/* tests/support/tiny_model.h - small models with random weights, made in memory: whole GGUF files of any architecture
 * and type that this version runs, and their matrices' blocks.
 * Owns:    a tiny_model owns its file, its tables and its text; everything lives until destroy.
 * Threads: caller serialises.
 * Errors:  none: it is for tests, and ends the process when the model cannot be made. The file is made without
 *          mr_alloc; opening it is not, so a sweep over failing allocations opens first. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_TINY_MODEL_H
#define MR_TESTS_SUPPORT_TINY_MODEL_H

#include "engine/gguf/gguf.h"
#include "engine/gguf/model_info.h"
#include "tests/support/gguf_writer.h"

/* What one tensor of the model is to be instead. */
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
    int32_t head_dim;                  /* 0: d_model / n_heads */
    int32_t n_experts, n_experts_used; /* 0: none; else as wide as n_ff each */
    int32_t vocab_size, context_length;
    bool tied_output, rope_factors;
    bool biases;               /* llama: q, k, v and o have one; qwen2 has those of q, k, v in any case */
    const char *const *tokens; /* [vocab_size], of a vocabulary whose other keys the caller adds; NULL: t0, t1 ... */
    uint64_t seed;
    tiny_edit edit;
} tiny_desc;

/* A model of two layers of width 64 (256 for the K-quants), four heads and two KV heads; fields may be changed. */
tiny_desc tiny_default(const char *arch, mr_type type);

/* n values of the type, n a multiple of its block, uniform in about [-amplitude, amplitude]; quantised types get random
 * quants with scales to suit. Freed by the caller. */
void *tiny_random(mr_type type, int64_t n, float amplitude, uint64_t seed);

/* The file of a model, to which keys and tensors may still be added. */
gguf_writer *tiny_model_write(const tiny_desc *desc);

typedef struct tiny_model {
    uint8_t *bytes; /* of the file; NULL when it was opened by its path */
    mr_gguf *gguf;
    mr_model_info info;
} tiny_model;

/* Takes the writer over. */
tiny_model *tiny_model_open(gguf_writer *w);
tiny_model *tiny_model_open_path(const char *path);
/* Write and open. */
tiny_model *tiny_model_create(const tiny_desc *desc);
void tiny_model_destroy(tiny_model *m);

#endif
