/* engine/tensor/tensor.h - tensors, and the nodes of a graph that compute them. Plain data.
 * A graph is built once for a row bucket and used for every step. The number of rows, positions, KV slots and block
 * tables are therefore inputs, never parameters (invariant I6).
 * Threads: plain data, the owner serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TENSOR_TENSOR_H
#define MR_ENGINE_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/tensor/type.h"

typedef struct mr_buffer mr_buffer; /* memory of one backend, see backends/backend.h */
typedef struct mr_backend mr_backend;

enum {
    MR_MAX_INPUTS = 7, /* of one node */
    MR_KV_BLOCK = 16,  /* token positions of one KV block */
    MR_PANEL = 16,     /* output rows of one weight panel */
    MR_NO_TENSOR = -1,
};

typedef enum mr_storage {
    MR_STORAGE_WEIGHT,   /* a matrix in the backend's own layout (mr_backend_ops.weight_load) */
    MR_STORAGE_FILE,     /* in the layout of the file: vectors, the embedding table, matrices of a mapped model */
    MR_STORAGE_CONSTANT, /* computed at build time and copied in once: RoPE angles */
    MR_STORAGE_STATE,    /* keys, values and block tables, kept from step to step */
    MR_STORAGE_INPUT,    /* written before each step */
    MR_STORAGE_WORK,     /* memory that the plan reuses inside the step */
    MR_STORAGE_OUTPUT,   /* like WORK, but kept until the end of the step */
} mr_storage;

/* How many rows (ne[1]) of a tensor a step uses. The bucket is the upper bound. */
typedef enum mr_row_count {
    MR_ROWS_FIXED,  /* all of ne[1] */
    MR_ROWS_STEP,   /* the rows of the step */
    MR_ROWS_OUT,    /* the rows whose logits are computed */
    MR_ROWS_TOP,    /* those of MR_ROWS_OUT, from the first one on, of which only the first tokens are wanted */
    MR_ROWS_HIDDEN, /* the rows whose activations in front of the output matrix are returned */
    /* The slots of experts for the rows of the step: row r has slots r * used .. r * used + used - 1, in routing
     * order. */
    MR_ROWS_SLOTS,
    MR_ROWS_KINDS,
} mr_row_count;

typedef struct mr_tensor {
    char name[64];
    mr_type type;
    mr_storage storage;
    mr_row_count row_count;
    int32_t ne[2];     /* elements: ne[0] is innermost and contiguous, ne[1] counts rows */
    size_t row_bytes;  /* bytes from one row to the next */
    size_t bytes;      /* size of the whole tensor in its buffer */
    mr_buffer *buffer; /* borrowed; NULL until placed */
    size_t offset;     /* in buffer */
    /* Borrowed: the backend whose buffer holds the tensor, or will hold it. NULL: the last backend of the graph. */
    mr_backend *home;
} mr_tensor;

/* The operations of a graph. Each comment lists the inputs in the order of mr_node.in, then the output.
 * Shapes are [columns, rows] with columns innermost. R: rows of the step. O: rows that TAKE_ROWS copies. T: rows of
 * MR_ROWS_TOP. d: width of the model. H: query heads. G: KV heads. D: elements of a head of queries and keys, V: of
 * values. E: experts. U: experts that each row uses. S = R*U: slots of experts. F: neurons of a sparse feed-forward
 * part. "or none": the input may be MR_NO_TENSOR. A8: 8-bit activations (type.h). "Rule" names a rule of
 * engine/NUMERICS.md. */
typedef enum mr_op {
    /* Embedding of each token. in: table [d, vocabulary] in FILE storage, ids [1, R] i32; out [d, R] f32. */
    MR_OP_EMBED,
    /* Cosines and sines of the positions (rule R). in: angles [n_rot/2, MR_ROPE_ROWS] f32 CONSTANT, positions [1, R]
     * i32; out [n_rot, R] f32: in each row the cosines, then the sines. */
    MR_OP_ROPE_TABLE,
    /* in: x [n, R] f32, weight [m, 1] f32; n - n_kept is a multiple of m. Each group of m
     * elements has a norm of its own, and the last n_kept elements are copied; out [n, R] f32, A8 or BF16. */
    MR_OP_RMS_NORM,
    /* Converts activations. in: x [n, R] f32; out [n, R] A8 or BF16. */
    MR_OP_QUANTIZE,
    /* w a + bias + add. in: w [k, n] in WEIGHT or FILE storage, a [k, R] of mr_type_activation(w), bias [n, 1] f32 or
     * none, add [n, R] f32 or none; out [n, R] f32. */
    MR_OP_MATMUL,
    /* Rotates the first n_rot elements of each head. in: x [H*D, R] f32, table [n_rot, R] f32; out [H*D, R] f32, may be
     * x. */
    MR_OP_ROPE,
    /* Stores keys and values. in: k [G*D, R] f32, v [G*V, R] f32 (with G = 1, v may be wider: its first V columns
     * count), slots [1, R] i32, key STATE, value STATE, RoPE table [n_rot, R] f32 or none; with a table, k is rotated
     * before it is stored. No output. */
    MR_OP_KV_WRITE,
    /* in: q [H*D, R] f32, key STATE, value STATE, row sequence [1, R], row position [1, R], block tables [max blocks,
     * slots] i32 STATE, sinks [H, 1] f32 or none; out [H*V, R] f32. Row sequence and row position must be written
     * before the program is submitted, because the backend splits the work by them. */
    MR_OP_ATTENTION,
    /* A gated linear unit (rule G). in: gate [n, R] f32, up [n, R] f32; out [n, R] f32, A8 or BF16. */
    MR_OP_GLU,
    /* GLU of gate a and up a. in: gate [k, n] WEIGHT, up [k, n] WEIGHT, a [k, R] f32, A8 or BF16; out [n, R] f32, A8 or
     * BF16. */
    MR_OP_GATE_UP,
    /* in: a [n, R] f32, b [n, R] f32; out [n, R] f32. */
    MR_OP_ADD,
    /* a + sigmoid(gate) * b. in: a [n, R] f32, b [n, R] f32, gate [1, R] f32; out [n, R] f32. */
    MR_OP_ADD_GATED,
    /* x * factor. in: x [n, R] f32; out [n, R] f32. */
    MR_OP_SCALE,
    /* factor * tanh(x / factor) (rule C). in: x [n, R] f32; out [n, R] f32. */
    MR_OP_SOFT_CAP,
    /* Copies the rows with these indices. in: x [n, R] f32, rows [1, O] i32; out [n, O] f32. */
    MR_OP_TAKE_ROWS,
    /* The first tokens of each row and the sum of all weights, the mr_top of engine/base/top.h. in: logits [n, O] f32;
     * out [sizeof(mr_top) / 4, T] i32, for the first T rows. Every device computes the same, with any numerics. */
    MR_OP_TOP,
    /* Selects the experts of each row (rule X). in: logits [E, R] f32, bias of the choice [E, 1] f32 or none; out
     * [2U, R] i32: the U experts in routing order, then the bits of their f32 weights. */
    MR_OP_ROUTE,
    /* Lists the slots of each expert. in: routes [2U, R] i32, places [all experts, 1] i32 STATE or none; out [E + 1 +
     * 2S, 1] i32, laid out as in mr_expert_rows. With places, the matrices of E experts follow, and expert e is number
     * places[e] of them; where places[e] is -1, its slots are left out. */
    MR_OP_EXPERT_ROWS,
    /* For each slot w a + bias, with the matrix and the bias of the slot's expert. in: w [k, n*E] in WEIGHT or FILE
     * storage: E matrices one behind the other (in WEIGHT storage, each begins at a multiple of the weight_bytes of one
     * matrix), a of mr_type_activation(w): [k, R], or [k, S] with a row for each slot, expert rows, bias [n, E] f32 or
     * none; out [n, S] f32. Rows of slots that the lists leave out are not written. */
    MR_OP_EXPERT_MATMUL,
    /* For each head, its matrix times the first k of its elements, then its other t elements, copied. in: w [k, n*H] in
     * WEIGHT or FILE storage: H matrices, laid out as those of experts, x [H*(k+t), R] f32; out [H*(n+t), R] f32. */
    MR_OP_HEAD_MATMUL,
    /* add + the weighted sum of the slots of each row (rule X), and what a shared expert adds (X2). in: y [n, S] f32,
     * routes [2U, R] i32, add [n, R] f32, shared [n, R] f32 or none, others [n, S] f32 and places [all experts, 1] i32
     * STATE, or neither; out [n, R] f32, may be add. With places, the slots of expert e are in y if places[e] is not
     * below 0, else in others. */
    MR_OP_EXPERT_SUM,
    /* Writes entries of block tables: the table's row slots[i] gets blocks[i] at index indices[i]. in: slots, indices,
     * blocks [1, R] i32, block tables [max blocks, slots] i32 STATE. No output. */
    MR_OP_TABLE_WRITE,
    /* Copies KV blocks in all layers of a store, in the order of the list: block from[i] to block to[i]. in: from, to
     * [1, R] i32, store STATE with a row for each block, parts [n, 1] i32 CONSTANT. The store consists of n parts, one
     * behind the other; in part p each block has parts[p] bytes. No output. */
    MR_OP_KV_COPY,
    /* max(x, 0) (rule S). in: x [n, R] f32; out [n, R] f32, may be x. */
    MR_OP_RELU,
    /* Lists the active ones of F neurons, or of n that begin at a multiple of 256 (rule S); the list counts from the
     * first of these. in: scores [F, R] f32; out [n, 1] i32, laid out as in mr_active. */
    MR_OP_ACTIVE,
    /* The unit of gate a and up a for the active neurons of each row, and +0 for the others (rule S). in: gate [k, F]
     * FILE, up [k, F] FILE or none, a of mr_type_activation(gate) [k, R], active; out [F, R] f32. */
    MR_OP_SPARSE_GATE_UP,
    /* The sum over neurons n of h[n] times row n of w, plus add (rule S). in: w [d, F] FILE, h [F, R] f32, add [d, R]
     * f32 or none, start [d, R] f32 or none: the sum over the neurons before these, without its last addition; out
     * [d, R] f32. */
    MR_OP_AXPY,
    MR_OP_COUNT,
} mr_op;

typedef enum mr_rope_pairs {
    MR_ROPE_INTERLEAVED, /* rotates element 2i together with 2i + 1 (llama) */
    MR_ROPE_HALVES,      /* rotates element i together with i + n_rot / 2 (NeoX, qwen) */
} mr_rope_pairs;

/* Rows of the constant of ROPE_TABLE (rule R). STEP: the first step is 1; each other step is the factor from the angle
 * of a pair to the angle of the next pair. */
typedef enum mr_rope_row { MR_ROPE_STEP, MR_ROPE_FACTOR, MR_ROPE_SLOW, MR_ROPE_KEEP, MR_ROPE_ROWS } mr_rope_row;

/* Gated linear units (Shazeer, 2020), by what stands in front of the product with up. */
typedef enum mr_glu_kind {
    MR_GLU_SILU,    /* SwiGLU */
    MR_GLU_GELU,    /* GEGLU, by the form with tanh */
    MR_GLU_SIGMOID, /* GLU */
    MR_GLU_GPT_OSS, /* SwiGLU of gpt-oss: gate * sigmoid(1.702 gate) * (up + 1) */
    MR_GLU_KINDS,
} mr_glu_kind;
/* Zeros: SwiGLU without a limit. */
typedef struct mr_glu {
    mr_glu_kind kind;
    float limit; /* of gate from above, of up from both sides; 0: none */
} mr_glu;

/* What a router makes of logits: scores, by which experts are chosen and weighed. */
typedef enum mr_route_score {
    MR_ROUTE_LOGIT,   /* the logits; the weights are the softmax over the chosen */
    MR_ROUTE_SOFTMAX, /* the softmax over all experts */
    MR_ROUTE_SIGMOID,
    MR_ROUTE_SCORES,
} mr_route_score;
/* Zeros: the softmax over the chosen, without groups and scale. */
typedef struct mr_routing {
    mr_route_score score;
    bool is_normalised;    /* weights are divided by their sum; those of LOGIT always have the sum 1 */
    float scale;           /* of all weights; 0: none */
    int32_t n_groups;      /* of experts that stand side by side; 0 or 1: none */
    int32_t n_groups_used; /* experts of the best so many groups can be chosen */
    int32_t n_group_best;  /* 1 or 2: a group is as good as its best expert, or as its two best together */
} mr_routing;

/* Attention whose scores grow with the position p of their row: times 1 + growth * ln(1 + floor(p / length)) (Meta,
 * "Llama 4", 2025). */
typedef struct mr_temperature {
    float growth;
    int32_t length; /* positions before this one have factor 1; 0: all have */
} mr_temperature;

/* What a neuron of a sparse feed-forward part gives. */
typedef enum mr_relu_unit {
    MR_RELU_ALONE, /* relu(gate); no up */
    MR_RELU_GATE,  /* relu(gate) * up */
    MR_RELU_BOTH,  /* relu(gate) * relu(up) */
    MR_RELU_UNITS,
} mr_relu_unit;

typedef union mr_op_params {
    struct {
        float eps;
        int32_t n_kept; /* the last columns, which are copied */
    } norm;
    struct {
        int32_t head_dim, n_rot;
        mr_rope_pairs pairs;
        float magnitude; /* factor of all cosines and sines (YaRN); for ROPE_TABLE */
        int32_t first;   /* of the elements of a head that rotate */
    } rope;
    struct {
        int32_t n_heads, n_kv_heads, k_dim, v_dim;
        float scale;                /* ATTENTION: factor of q . k */
        float soft_cap;             /* ATTENTION; 0: none */
        mr_temperature temperature; /* ATTENTION */
        int32_t window;             /* ATTENTION: positions that a row attends to, its own included; 0: all */
        int32_t rope_first;         /* this, n_rot and pairs: for KV_WRITE with a RoPE table */
        int32_t n_rot;
        mr_rope_pairs pairs;
    } attention; /* also KV_WRITE */
    mr_glu glu;  /* also GATE_UP */
    struct {
        float factor;
    } scale; /* also SOFT_CAP */
    struct {
        int32_t n;
    } heads; /* for HEAD_MATMUL */
    struct {
        int32_t n, n_used;  /* E and U */
        mr_routing routing; /* for ROUTE */
    } experts;              /* for all ops of experts */
    struct {
        float threshold;   /* for ACTIVE: a neuron with a lower score is not active */
        mr_relu_unit unit; /* for SPARSE_GATE_UP */
        int32_t first, n;  /* for ACTIVE: the neurons; n = 0: all */
    } sparse;
} mr_op_params;

typedef struct mr_node {
    mr_op op;
    int32_t in[MR_MAX_INPUTS]; /* tensor ids; MR_NO_TENSOR where absent */
    int32_t out;               /* tensor id; MR_NO_TENSOR for an op that changes state */
    int32_t group;             /* nodes of one group do not depend on each other and may run at the same time */
    int32_t backend;           /* index of the backend that runs the node, in the graph's list */
    mr_op_params params;
} mr_node;

/* The result of EXPERT_ROWS: the slots of each expert. */
typedef struct mr_expert_rows {
    int32_t *first; /* [E + 1]: expert e has slots[first[e]] .. slots[first[e + 1] - 1], in ascending order */
    int32_t *slots; /* [S] */
    int32_t *rows;  /* [S]: rows[i] is the row of slots[i] */
} mr_expert_rows;
/* Returns the parts of the tensor at data. n_slots is the largest number of slots of a step. */
static inline mr_expert_rows mr_expert_rows_at(void *data, int32_t n_experts, int32_t n_slots) {
    int32_t *first = (int32_t *)data;
    return (mr_expert_rows){first, first + n_experts + 1, first + n_experts + 1 + n_slots};
}

enum {
    MR_PARTITION = 256,                     /* neurons of a partition (rule S) */
    MR_PARTITION_WORDS = MR_PARTITION / 32, /* of a set of neurons */
};
/* The result of ACTIVE for the rows of a step. Partition p has the neurons 256 p to 256 p + 255. */
typedef struct mr_active {
    int32_t *counts;  /* [partitions]: how many neurons of the partition are active in any row */
    int32_t *neurons; /* [partitions][256]: their numbers, in ascending order */
    /* [rows][partitions][8]: bit i of word j: neuron 256 p + 32 j + i is active in the row */
    uint32_t *sets;
} mr_active;
static inline int32_t mr_count_partitions(int32_t n_neurons) {
    return (int32_t)(((int64_t)n_neurons + MR_PARTITION - 1) / MR_PARTITION);
}
/* Integers that the lists of so many neurons and rows take. */
static inline int64_t mr_active_ints(int32_t n_neurons, int32_t n_rows) {
    return (int64_t)mr_count_partitions(n_neurons) * (1 + MR_PARTITION + (int64_t)n_rows * MR_PARTITION_WORDS);
}
/* The neurons of a node with ACTIVE, out of n_scores. */
typedef struct mr_neurons {
    int32_t first, n;
} mr_neurons;
static inline mr_neurons mr_neurons_of(const mr_node *n, int32_t n_scores) {
    int32_t first = n->params.sparse.first, count = n->params.sparse.n;
    return count ? (mr_neurons){first, count} : (mr_neurons){0, n_scores};
}
/* Returns the parts of the tensor at data. */
static inline mr_active mr_active_at(void *data, int32_t n_neurons) {
    int32_t *counts = (int32_t *)data, n_parts = mr_count_partitions(n_neurons);
    int32_t *neurons = counts + n_parts;
    return (mr_active){counts, neurons, (uint32_t *)(neurons + (size_t)n_parts * MR_PARTITION)};
}

/* Describes a tensor [columns, rows]. Rows are padded to 64 bytes, except in WEIGHT and FILE storage and where columns
 * is 1. Returns false when a size overflows or does not fit the type. */
bool mr_tensor_init(mr_tensor *t, const char *name, mr_type type, int64_t columns, int64_t rows, mr_storage storage,
                    mr_row_count row_count);
const char *mr_op_name(mr_op op);

#endif
