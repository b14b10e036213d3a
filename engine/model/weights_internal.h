/* engine/model/weights_internal.h - the weights of a stage, as weights*.c and stage_graph.c share them. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_MODEL_WEIGHTS_INTERNAL_H
#define MR_ENGINE_MODEL_WEIGHTS_INTERNAL_H

#include "engine/model/arch.h"
#include "engine/model/model.h"

/* Where a tensor lies in the weight buffer of a backend. */
typedef struct weight_place {
    bool is_used;
    size_t offset, bytes;
} weight_place;

/* A tensor and its source in the file. name[0] == 0 when the file has no such tensor. */
typedef struct weight {
    mr_tensor tensor;
    const mr_gguf_tensor *source; /* NULL for a constant made at load */
    const uint8_t *data;          /* in the file: the rows of this tensor, which may be some of the source's */
    size_t data_bytes;
    float *values;      /* of a constant, owned; else NULL */
    int32_t n_matrices; /* of equal shape, one behind the other: 1, or the number of experts or heads */
    mr_op op;           /* reads the rows of a matrix or table; MR_OP_COUNT: a vector or constant */
    int32_t home;       /* index of the backend that holds the tensor's layer, or its experts */
    /* The last backend reads the tensor in the mapped file: the embedding table, and all matrices if
     * mr_weights_desc.map is set. */
    bool is_mapped;
    weight_place at[MR_MAX_BACKENDS];
} weight;

/* The tensors of a layer of which a device may hold the rows of some experts. */
enum { HELD_TENSORS = 6 };
extern const layer_slot HELD_SLOTS[HELD_TENSORS]; /* gate, up and down, then their biases */
/* The experts of a layer that a device computes, while the last backend has the matrices of all experts. */
typedef struct held_experts {
    int32_t n; /* 0: none */
    int32_t backend;
    weight_place at[HELD_TENSORS]; /* of n experts each, in the buffer of the backend */
    size_t places_offset[2];       /* of the lists that EXPERT_ROWS reads: in that buffer, in the last backend's */
    int32_t *experts;              /* [n]: the expert in each place, or -1 */
    int32_t *places[2];            /* [experts of the model]: what the two lists hold */
    mr_fence fence;                /* of the backend: places[0] has been copied */
} held_experts;

struct mr_weights {
    const mr_gguf *gguf;
    const mr_model_info *info;
    const mr_arch *arch;
    mr_backends backends;
    mr_backend *backend; /* the last one */
    mr_layer_range range;
    int32_t max_context;
    bool can_map, map;                      /* the last backend reads the mapped file; its matrices stay there */
    weight token_embd, output_norm, output; /* empty if this stage does not have the tensor */
    weight rope_angles[MR_MODEL_MAX_ROPES]; /* constants made at load */
    weight (*layers)[LAYER_SLOTS];          /* [last - first] */
    held_experts *held;                     /* [last - first] */
    const int32_t *expert_order;            /* borrowed, until the weights are loaded; or NULL */
    float rope_magnitude[MR_MODEL_MAX_ROPES];
    size_t bytes[MR_MAX_BACKENDS];       /* sizes of the buffers */
    mr_buffer *buffers[MR_MAX_BACKENDS]; /* one for each backend: matrices, vectors, constants */
    mr_buffer *mapped;                   /* the mapping of the file, if the last backend can read it */
};

/* Looks up and checks all tensors of the stage, and makes the constants. */
MR_MUST_USE mr_status weights_find(mr_weights *ws, mr_err *err);

enum { WEIGHTS_OUTSIDE_LAYERS = 3 + MR_MODEL_MAX_ROPES };

/* Calls visit for every tensor of the stage, in the order of the buffers. */
typedef mr_status weight_visitor(mr_weights *ws, weight *w, void *ctx, mr_err *err);
MR_MUST_USE mr_status weights_visit(mr_weights *ws, weight_visitor *visit, void *ctx, mr_err *err);

/* Whether backend b can hold matrices of the tensor, and run the op that reads them. */
bool weights_fit(const mr_weights *ws, const weight *w, int32_t b);
/* The part of an allocation that a tensor of so many bytes takes on backend b. */
MR_MUST_USE mr_status weights_take(mr_weights *ws, int32_t b, size_t bytes, size_t *out_offset, mr_err *err);

/* --- Experts of a device: weights_experts.c --- */
/* Chooses where the experts lie that devices hold beside the last backend. */
MR_MUST_USE mr_status held_place(mr_weights *ws, mr_err *err);
/* Loads the first experts of each layer's order. NULL: in ascending order. */
MR_MUST_USE mr_status held_load(mr_weights *ws, const int32_t *order, mr_err *err);
void held_destroy(mr_weights *ws);
/* Number i of HELD_SLOTS with its place on the device; a tensor without a name where the file has none. */
mr_tensor held_tensor(const mr_weights *ws, int32_t layer, int i);
/* The list of places on the device (side 0) or on the last backend (side 1). */
mr_tensor held_places(const mr_weights *ws, int32_t layer, int side);

/* Returns the tensor with its place on backend b. */
mr_tensor weight_instance(const mr_weights *ws, const weight *w, int32_t b);

static inline bool weight_exists(const weight *w) {
    return w->tensor.name[0] != 0;
}
/* False for vectors and constants; true even for a matrix of one row. */
static inline bool weight_is_matrix(const weight *w) {
    return w->op != MR_OP_COUNT;
}
static inline bool weights_is_head(const mr_weights *w) {
    return w->range.first == 0;
}
static inline bool weights_is_tail(const mr_weights *w) {
    return w->range.last == w->info->n_layers;
}

#endif
