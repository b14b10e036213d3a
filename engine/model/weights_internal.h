/* engine/model/weights_internal.h - the tensors of a stage, for weights.c and stage_graph.c. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_MODEL_WEIGHTS_INTERNAL_H
#define MR_ENGINE_MODEL_WEIGHTS_INTERNAL_H

#include "engine/model/model.h"

/* Where a backend has a tensor, in the buffer of its weights. */
typedef struct weight_place {
    bool is_used;
    size_t offset, bytes;
} weight_place;

/* A tensor and where it comes from; name[0] == 0 when the file has none. */
typedef struct weight {
    mr_tensor tensor;
    const mr_gguf_tensor *source; /* NULL for a constant made at load */
    int32_t n_matrices;           /* of equal shape, one behind the other: 1, or those of experts */
    bool is_matrix; /* products and the embedding read its rows: no vector or constant, even where it has one row */
    bool is_of_experts;
    bool is_mapped; /* read in the mapped file: the embedding table, and matrices where that was asked for */
    weight_place at[MR_MAX_BACKENDS];
} weight;

struct mr_weights {
    const mr_gguf *gguf;
    const mr_model_info *info;
    const mr_arch *arch;
    mr_backends backends;
    mr_backend *backend; /* the last one: holds the embedding table, and what no other takes */
    mr_layer_range range;
    mr_storage matrices;                    /* WEIGHT, or FILE where they stay in the mapped file */
    weight token_embd, output_norm, output; /* where this stage has them */
    weight rope_angles;                     /* constant */
    weight (*layers)[MR_LAYER_SLOTS];       /* [last - first] */
    float *rope_values;                     /* of rope_angles */
    float rope_magnitude;
    size_t bytes[MR_MAX_BACKENDS];       /* of buffers */
    mr_buffer *buffers[MR_MAX_BACKENDS]; /* matrices, vectors, constants of each backend */
    mr_buffer *mapped;    /* the file; the embedding table alone where the backend cannot read it there */
    size_t mapped_offset; /* of mapped in the file */
};

/* The tensor as backend b has it. */
mr_tensor weight_instance(const mr_weights *ws, const weight *w, int32_t b);

static inline bool weight_exists(const weight *w) {
    return w->tensor.name[0] != 0;
}
static inline bool weights_is_head(const mr_weights *w) {
    return w->range.first == 0;
}
static inline bool weights_is_tail(const mr_weights *w) {
    return w->range.last == w->info->n_layers;
}

#endif
