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
    int32_t part;       /* index into mr_weights.parts */
    /* The last backend reads the tensor in the mapped file: the embedding table, and all matrices if
     * mr_weights_desc.map is set. */
    bool is_mapped;
    weight_place at[MR_MAX_BACKENDS];
} weight;

/* A tensor in a buffer, to compare buffers by. Without a pointer: the file may be mapped elsewhere next time. All bytes
 * are set, so that memcmp compares two of them. */
typedef struct weight_mark {
    uint64_t file_offset, file_bytes; /* its rows in the file */
    uint64_t offset, bytes;           /* its place in the buffer */
    int32_t type, storage, op, n_matrices;
    int32_t ne[2];
} weight_mark;

/* The weights of a part on one backend. A store keeps them beyond the life of a stage. */
typedef struct weight_buffer {
    struct weight_buffer *next; /* in a store */
    mr_backend *home;
    mr_buffer *buffer;   /* NULL: not created yet */
    int32_t part;        /* the layer of the model, or a PART_... */
    size_t bytes;        /* of the buffer */
    uint64_t file_bytes; /* of the model file */
    int32_t n_tensors;
    weight_mark tensors[];
} weight_buffer;

/* What is loaded and kept together: a layer, or what stands outside of layers. */
enum { PART_CONSTANTS = -3, PART_EMBEDDING = -2, PART_OUTPUT = -1, PARTS_OUTSIDE_LAYERS = 3 };
typedef struct weight_part {
    size_t bytes[MR_MAX_BACKENDS];
    weight_buffer *at[MR_MAX_BACKENDS]; /* from the start of mr_weights_load on; NULL: without bytes */
    bool is_kept[MR_MAX_BACKENDS];      /* the buffer came from the store, with its tensors */
    int32_t n_on[MR_MAX_BACKENDS];      /* tensors in each buffer */
    int32_t n_tensors, n_loaded;        /* tensors with a place on any backend */
} weight_part;

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
    mr_fence fence;                /* of the backend: experts are loaded, and places[0] has been copied */
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
    mr_weight_store *store;        /* borrowed; NULL: nothing is kept */
    bool has_taken;                /* what the store has for it */
    size_t bytes[MR_MAX_BACKENDS]; /* of the buffers of all parts */
    weight_part *parts;            /* [PARTS_OUTSIDE_LAYERS + layers of the range]; part PART_CONSTANTS is parts[0] */
    mr_buffer *mapped;             /* the mapping of the file, if the last backend can read it */
};

/* Looks up and checks all tensors of the stage, and makes the constants. */
MR_MUST_USE mr_status weights_find(mr_weights *ws, mr_err *err);

enum { WEIGHTS_OUTSIDE_LAYERS = 3 + MR_MODEL_MAX_ROPES };

/* Calls visit for every tensor of the stage, in the order of the buffers. */
typedef mr_status weight_visitor(mr_weights *ws, weight *w, void *ctx, mr_err *err);
MR_MUST_USE mr_status weights_visit(mr_weights *ws, weight_visitor *visit, void *ctx, mr_err *err);

/* Whether backend b can hold matrices of the tensor, and run the op that reads them. */
bool weights_fit(const mr_weights *ws, const weight *w, int32_t b);
/* The place of a tensor of so many bytes in the buffer of a part on backend b. */
MR_MUST_USE mr_status weights_take(mr_weights *ws, int32_t part, int32_t b, size_t bytes, size_t *out_offset,
                                   mr_err *err);

/* --- Buffers of parts: weights_parts.c --- */
/* Creates the buffers that mr_weights_take_kept has not taken. What is left in the store is freed first. */
MR_MUST_USE mr_status parts_create(mr_weights *ws, mr_err *err);
/* Gives the buffers of loaded parts to the store, and frees the others. */
void parts_destroy(mr_weights *ws);
/* After a load on a device has failed: no buffer that was to be loaded has its tensors for certain. */
void parts_forget_loads(mr_weights *ws);
/* The part whose buffer on backend b has the tensors of this part: for backends that keep the address of the source,
 * the one of the constants. */
int32_t part_on(const mr_weights *ws, int32_t part, int32_t b);
mr_buffer *part_buffer(const mr_weights *ws, int32_t part, int32_t b);
/* Whether the tensor has to be loaded on backend b. */
bool part_wants_load(const mr_weights *ws, const weight *w, int32_t b);

/* --- weight_store.c --- */
void weight_buffer_destroy(weight_buffer *b);
/* Removes the buffer that has the same contents as `like`. NULL: there is none. s may be NULL. */
mr_buffer *weight_store_take(mr_weight_store *s, const weight_buffer *like);
void weight_store_give(mr_weight_store *s, weight_buffer *b);

/* --- Loading: weights_load.c --- */
/* Whom a load tells how far it is. */
typedef struct load_telling {
    mr_load_progress *progress; /* may be NULL */
    void *ctx;
    size_t done_bytes, total_bytes;
} load_telling;

/* Tells of further bytes of something that is not loaded as a whole yet. MR_E_CANCELLED: the load is to end. */
MR_MUST_USE mr_status load_tell(const load_telling *t, size_t more_bytes, mr_err *err);

/* --- Experts of a device: weights_experts.c --- */
/* Chooses where the experts lie that devices hold beside the last backend. */
MR_MUST_USE mr_status held_place(mr_weights *ws, mr_err *err);
/* Bytes of experts in buffers that came from the store: these experts are loaded again. */
size_t held_again_bytes(const mr_weights *ws);
/* Loads the first experts of each layer's order, and tells after each of them. NULL: in ascending order. After an error
 * no backend reads the file any more. */
MR_MUST_USE mr_status held_load(mr_weights *ws, const int32_t *order, load_telling *t, mr_err *err);
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
