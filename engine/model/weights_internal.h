/* engine/model/weights_internal.h - the tensors of a stage, for weights.c and stage_graph.c. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_MODEL_WEIGHTS_INTERNAL_H
#define MR_ENGINE_MODEL_WEIGHTS_INTERNAL_H

#include "engine/model/model.h"

/* A tensor and where it comes from; name[0] == 0 when the file has none. */
typedef struct weight {
    mr_tensor tensor;
    const mr_gguf_tensor *source; /* NULL for a constant made at load */
    bool is_mapped; /* read in the mapped file: the embedding table, and matrices where that was asked for */
} weight;

struct mr_weights {
    const mr_gguf *gguf;
    const mr_model_info *info;
    const mr_arch *arch;
    mr_backend *backend;
    mr_layer_range range;
    mr_storage matrices;                    /* WEIGHT, or FILE where they stay in the mapped file */
    weight token_embd, output_norm, output; /* where this stage has them */
    weight rope_angles;                     /* constant */
    weight (*layers)[MR_LAYER_SLOTS];       /* [last - first] */
    float *rope_values;                     /* of rope_angles */
    float rope_magnitude;
    size_t bytes;         /* of buffer */
    mr_buffer *buffer;    /* matrices, vectors, constants */
    mr_buffer *mapped;    /* the file; the embedding table alone where the backend cannot read it there */
    size_t mapped_offset; /* of mapped in the file */
};

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
