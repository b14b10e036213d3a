/* engine/model/model.h - architectures: from a GGUF file to the graph of a layer range.
 * A stage holds layers [first, last). The head stage also embeds. The tail stage also has the output norm and the
 * output matrix. A stage calls mr_weights_create, mr_weights_load, and mr_stage_graph_build for each row bucket.
 * Owns:    mr_weights owns its buffers. Borrows: gguf, info and backends, which outlive it.
 * Threads: caller serialises.
 * Errors:  MR_E_UNSUPPORTED for an architecture, tensor or type that this version does not run, MR_E_FORMAT for a
 *          tensor of the wrong shape; both name the tensor. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_MODEL_MODEL_H
#define MR_ENGINE_MODEL_MODEL_H

#include "backends/backend.h"
#include "engine/base/status.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/model_info.h"
#include "engine/graph/graph.h"
#include "engine/kv/kv_store.h"
#include "engine/model/weight_store.h"

typedef struct mr_layer_range {
    int32_t first, last; /* [first, last) */
} mr_layer_range;

typedef struct mr_weights mr_weights;

typedef struct mr_weights_desc {
    const mr_gguf *gguf;
    const mr_model_info *info;
    mr_layer_range range;
    /* Matrices of the last backend stay in the mapped file, in the layout of the file, if this backend can read the
     * mapping. The kernel can drop pages of the mapping at any time, so such matrices take no memory of their own; but
     * every product converts the weights again. */
    bool map;
    int32_t max_context; /* positions of the longest sequence: mr_model_rope_factors */
    /* Which experts a device gets, if backends->device_experts says that it gets some: the first ones of each layer's
     * order. [layers of the range][experts of the model]: the number of every expert, first the one that is used most.
     * Borrowed until mr_weights_load returns; NULL: ascending. */
    const int32_t *expert_order;
    mr_weight_store *store; /* keeps loaded layers when the weights are destroyed; borrowed; NULL: they are freed */
} mr_weights_desc;

/* Looks up and checks the tensors of a range, chooses the backends that hold each tensor, and computes the bytes that
 * the tensors take. Loads nothing. */
MR_MUST_USE mr_status mr_weights_create(const mr_weights_desc *desc, const mr_backends *backends, mr_weights **out,
                                        mr_err *err);
void mr_weights_destroy(mr_weights *w);
/* Bytes in the layouts of all backends. Tensors that stay in the mapped file are not counted. */
size_t mr_weights_bytes(const mr_weights *w);
/* The same for backend b of mr_weights_create alone. */
size_t mr_weights_bytes_on(const mr_weights *w, int32_t b);
/* The largest matrix of this type in the file among the matrices of the last backend that products read, those of
 * experts and heads left out; NULL for none. */
const mr_gguf_tensor *mr_weights_largest(const mr_weights *w, mr_type type);
/* The memory of backend b in whole pages, if its buffers are in the host's memory: one buffer for each layer, for the
 * embedding, for the output, and for constants. */
size_t mr_weights_page_bytes(const mr_weights *w, int32_t b);
/* Layers and bytes that mr_weights_load has taken from the store. */
int32_t mr_weights_kept_layers(const mr_weights *w);
size_t mr_weights_kept_bytes(const mr_weights *w);
/* Called after each tensor, after each few MiB of a large one, and after each expert of a device. Bytes that are taken
 * from a store are left out of both numbers. Returns false to stop the load. */
typedef bool mr_load_progress(void *ctx, size_t done_bytes, size_t total_bytes);
/* Takes what the store has for these weights. mr_weights_load does so first; a caller with several of them takes for
 * all before it loads one. Call once. */
MR_MUST_USE mr_status mr_weights_take_kept(mr_weights *w, mr_err *err);
/* Loads the tensors that the store does not have. The file pages of a tensor are released once the tensor is repacked.
 * progress may be NULL. MR_E_CANCELLED: progress has returned false; the store gets what was loaded. */
MR_MUST_USE mr_status mr_weights_load(mr_weights *w, mr_load_progress *progress, void *ctx, mr_err *err);

/* How many experts of the layer, counted from the first of the range, the device holds beside the last backend; 0: the
 * layer is not shared. */
int32_t mr_weights_held_experts(const mr_weights *w, int32_t layer);
/* Which experts these are: the number of the one in each place, [mr_weights_held_experts]. Borrowed until the weights
 * are destroyed; mr_weights_exchange_expert changes it. */
const int32_t *mr_weights_held_list(const mr_weights *w, int32_t layer);
/* Bytes on the device of one expert of a shared layer. */
size_t mr_weights_held_bytes(const mr_weights *w, int32_t layer);
/* Loads an expert that the device does not hold over the one in a place of mr_weights_held_list. Call between two
 * steps, while no work that uses the experts is under way. This changes no bit of later steps, because the last backend
 * computes the experts that the device lacks. The loads stand in the device's queue when the call returns. It allocates
 * nothing. */
MR_MUST_USE mr_status mr_weights_exchange_expert(mr_weights *w, int32_t layer, int32_t place, int32_t expert,
                                                 mr_err *err);

/* What a layer with experts or with a sparse feed-forward part chooses for each row of a step. */
typedef struct mr_layer_choice {
    int32_t tensor;  /* an output: routes [2U, R] i32 of MR_OP_ROUTE, or the mr_active of MR_OP_ACTIVE */
    int32_t cold;    /* an output: the mr_active of the neurons behind the first n_hot; MR_NO_TENSOR: n_hot is n */
    int32_t n;       /* experts or neurons to choose from; 0: the layer chooses nothing */
    int32_t n_hot;   /* neurons of tensor */
    int32_t n_used;  /* experts of a row */
    bool is_neurons; /* false: experts */
} mr_layer_choice;

/* Sizes of a stage's graph. */
typedef struct mr_stage_shape {
    int32_t max_rows;     /* the row bucket */
    int32_t max_out_rows; /* rows whose logits are computed */
    /* [layers of the range] NULL, or gets what each layer chooses. The choices are then outputs of the graph. */
    mr_layer_choice *choices;
    bool only_shared_choices; /* of layers whose experts a device shares with the last backend; others choose nothing */
} mr_stage_shape;

/* Tensors that keep their contents from step to step. */
typedef struct mr_state_tensors {
    const mr_tensor *k, *v; /* KV cache, one tensor for each layer of the range */
    const int32_t *home;    /* [layers] index of the backend that holds the layer's keys and values */
    /* [max blocks of a sequence, sequence slots] i32, one for each backend that holds keys and values. */
    const mr_tensor *block_tables[MR_MAX_BACKENDS];
} mr_state_tensors;

/* Ids of the inputs and outputs of a stage's graph; MR_NO_TENSOR for one that this stage does not have. R rows of the
 * step, O rows with logits, H hidden rows, d width. */
typedef struct mr_stage_io {
    int32_t ids;         /* head: [1, R] i32 */
    int32_t x_in;        /* others: [d, R] f32 */
    int32_t positions;   /* [1, R] i32 */
    int32_t slots;       /* [1, R] i32 */
    int32_t row_seq;     /* [1, R] i32: each row's line of the block table */
    int32_t out_rows;    /* tail: [1, O] i32 */
    int32_t hidden_rows; /* tail: [1, H] i32 */
    int32_t x_out;       /* all but the tail: [d, R] f32 */
    int32_t logits;      /* tail: [vocabulary, O] f32 */
    int32_t top;         /* tail, where a device finds them: [an mr_top, T] i32, the first tokens of the first T of O */
    int32_t hidden;      /* tail: [d, H] f32, after the output norm */
} mr_stage_io;

/* Builds the graph. The caller finishes it. */
MR_MUST_USE mr_status mr_stage_graph_build(const mr_weights *w, const mr_state_tensors *state,
                                           const mr_stage_shape *shape, mr_graph **out, mr_stage_io *out_io,
                                           mr_err *err);

/* Computes the constant of rule R (engine/NUMERICS.md): [MR_ROPE_ROWS][row_floats], with n_rot / 2 values in each row.
 * The frequency base, the factors of the tensor of mr_model_rope_factors (NULL for none) and linear or YaRN scaling
 * (Peng et al., 2023) go into the constant. out_magnitude: a factor for all cosines and sines. */
void mr_rope_angles(const mr_model_rope *rope, const float *factors, size_t row_floats, float *out_angles,
                    float *out_magnitude);

#endif
