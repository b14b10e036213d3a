/* engine/graph/graph_internal.h - the arrays behind a graph, shared by the passes of this folder.
 * A memory is numbered by the backend whose work buffers lie in it. A device has a memory of its own. All backends that
 * are host_addressable share the host's memory, which has the number of the last backend. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAPH_GRAPH_INTERNAL_H
#define MR_ENGINE_GRAPH_GRAPH_INTERNAL_H

#include "engine/graph/graph.h"

enum { GRAPH_BEFORE_ALL = -1 }; /* instead of a split's number: before the first split */

/* Nodes [first, last). They run on one backend as one program. */
typedef struct graph_split {
    int32_t backend, first, last;
    int32_t last_group;
    int32_t first_copy,
        last_copy; /* copies [first_copy, last_copy): this split is the first that reads their results */
    mr_program *program;
} graph_split;

/* Further facts about a tensor. */
typedef struct graph_link {
    int32_t also;          /* next tensor of a linked list of tensors with the same values in other memories */
    const uint8_t *source; /* of a matrix: its rows in the file, or NULL */
} graph_link;

/* A copy between the host's memory and the memory of a device, in one direction or the other. */
typedef struct graph_copy {
    int32_t src, dst;
    const uint8_t *source; /* not NULL: dst is a matrix that every run loads from here, and src is MR_NO_TENSOR */
    int32_t after;         /* the split that computes src, or GRAPH_BEFORE_ALL */
    int32_t before;        /* the first split that reads dst */
    bool to_host;
    bool is_late; /* starts right before split `before`, instead of right after split `after` */
} graph_copy;

typedef struct graph_times graph_times; /* sums of measured times: debug.c */
typedef struct graph_works graph_works; /* when backends computed: works.c */

/* Groups in which a tensor is alive, inclusive; first < 0: the tensor is not used. */
typedef struct graph_range {
    int32_t first, last;
} graph_range;

struct mr_graph {
    int32_t max_rows[MR_ROWS_KINDS]; /* MR_ROWS_SLOTS: 0 without experts */
    int32_t n_experts_used;          /* of each row; 0 without experts */
    mr_tensor *tensors;
    graph_link *links; /* parallel to tensors */
    int32_t n_tensors, cap_tensors;
    int32_t n_built; /* number of tensors before copies were added */
    mr_node *nodes;
    int32_t n_nodes, cap_nodes;
    mr_backends backends;
    int32_t memory[MR_MAX_BACKENDS];  /* number of the memory of each backend */
    bool is_host[MR_MAX_BACKENDS];    /* host_addressable */
    bool has_record[MR_MAX_BACKENDS]; /* the record lies in the memory with this number, at offset 0 */
    bool runs_on[MR_MAX_BACKENDS];    /* has splits */
    graph_split *splits;              /* in the order in which they run */
    int32_t n_splits, cap_splits;
    graph_copy *copies; /* sorted by before */
    int32_t n_copies, cap_copies;
    int32_t *issue; /* indices of the copies that are not late, sorted by after */
    int32_t n_issue;
    mr_graph_stats stats;
    mr_buffer *work[MR_MAX_BACKENDS];   /* borrowed; NULL until placed */
    size_t scratch_at[MR_MAX_BACKENDS]; /* where the scratch memory of programs begins in work */
    mr_graph_flight *flight;            /* of mr_graph_run */
    unsigned debug;                     /* value of mr_graph_debug_wanted at mr_graph_finish */
    graph_range *ranges;                /* [n_tensors]; NULL unless the plan is to be printed */
    graph_times *times;                 /* NULL: times are not measured */
    graph_works *works;                 /* NULL: nobody wants to know when backends compute */
    mr_err err;                         /* the first error of the functions that add tensors and nodes */
};

/* Adds a tensor or node. Returns MR_NO_TENSOR or NULL after an error, also after an earlier one. */
int32_t graph_add_tensor(mr_graph *g, const mr_tensor *t);
mr_node *graph_add_node(mr_graph *g, mr_op op, int32_t out);
/* Keeps the first error, and returns MR_NO_TENSOR. From then on nothing can be added, and mr_graph_finish returns the
 * error. */
int32_t graph_fail(mr_graph *g, mr_status status, const char *text);
int32_t graph_new_tensor(mr_graph *g, const char *name, mr_type type, int64_t columns, mr_row_count rows,
                         mr_storage storage);
/* Adds a tensor for the result of op: [columns, rows] f32. */
int32_t graph_result(mr_graph *g, mr_op op, int32_t columns, mr_row_count rows);
/* The tensor with this id, if it has the type and so many columns (0: any number). Else NULL, and an error is noted. */
const mr_tensor *graph_want(mr_graph *g, int32_t id, mr_type type, int32_t columns, const char *what);
/* Like graph_want for tensor b, which must also have as many rows as tensor a in every step. */
const mr_tensor *graph_want_beside(mr_graph *g, int32_t b, int32_t a, mr_type type, int32_t columns, const char *what);
/* x as the activations of the type: x itself, the result of an earlier QUANTIZE node of x, or that of a new node. */
int32_t graph_activations(mr_graph *g, int32_t x, mr_type type);
/* Makes room for one more element; a full array doubles its capacity. False: no memory. */
bool graph_grow(void **array, int32_t n, int32_t *cap, size_t size);

/* A FILE tensor may also be a vector. A vector has the same bytes as a matrix of one row, so it passes as a matrix. */
static inline bool graph_is_matrix(const mr_tensor *t) {
    return t->storage == MR_STORAGE_WEIGHT || t->storage == MR_STORAGE_FILE;
}

/* The nodes of a split, as a program. */
static inline mr_program_desc graph_program(const mr_graph *g, const graph_split *s) {
    return (mr_program_desc){.tensors = g->tensors, .nodes = g->nodes + s->first, .n_nodes = s->last - s->first};
}

/* The passes of mr_graph_finish, in this order. graph_assign calls graph_offload.
 * Merges nodes: fuse.c. */
void graph_fuse(mr_graph *g);
/* Whether backend b (an index) runs the node: it supports the node, and can read the node's matrices and state. */
bool graph_can_run(const mr_graph *g, int32_t b, const mr_node *node);
/* Chooses a backend for each node. */
mr_status graph_assign(mr_graph *g, mr_err *err);
/* Moves products to devices that are faster even if the matrix has to be copied for every run. */
void graph_offload(mr_graph *g);
/* The backend that the rates send product n to if it would run on backend `from`; `from`: it stays there. Other nodes
 * stay. */
int32_t graph_offload_to(const mr_graph *g, const mr_node *n, int32_t from);
/* Sorts nodes into splits. */
mr_status graph_sort_nodes(mr_graph *g, mr_err *err);
/* Calls graph_sort_nodes, and gives work tensors their home. Where a node cannot reach a tensor, adds a copy of the
 * tensor and lets the node read the copy. */
mr_status graph_split_nodes(mr_graph *g, mr_err *err);
/* Numbers the nodes of each split by the longest dependency chain in front of them, and sorts the nodes by number. */
mr_status graph_group(mr_graph *g, mr_err *err);
/* Gives work tensors their offsets in the memory of their home, and the programs of a backend the scratch memory behind
 * them. Fills work_bytes, unshared_bytes and record_bytes. */
mr_status graph_plan_memory(mr_graph *g, mr_graph_stats *stats, mr_err *err);

/* Queues the copy of rows to the host's memory: io.c. */
mr_status graph_read(mr_graph *g, const mr_graph_read *r, mr_fence *out, mr_err *err);

/* Print what MILLRACE_GRAPH_DEBUG asks for: after mr_graph_place, and before the graph is freed. */
mr_status graph_debug_place(mr_graph *g, mr_err *err);
void graph_debug_destroy(mr_graph *g);
/* Calls that measure times, on the host: before the first group of a split; after each group; after a wait of so many
 * ns for a device; after a run of so many ns. */
void graph_times_start(graph_times *t, int32_t group);
void graph_times_group(graph_times *t);
void graph_times_waited(graph_times *t, int64_t ns);
void graph_times_ran(graph_times *t, int64_t ns);

/* Calls that note when backends compute, each without effect if g->works is NULL: before the first split of a run;
 * before and after a split is given to a device; after the host has computed a split since start_ns; at the end of the
 * run, when all of its work is done. */
void graph_works_begin(mr_graph *g);
MR_MUST_USE mr_status graph_works_before(mr_graph *g, int32_t b, mr_err *err);
MR_MUST_USE mr_status graph_works_after(mr_graph *g, int32_t b, mr_err *err);
void graph_works_computed(mr_graph *g, int64_t start_ns);
void graph_works_end(mr_graph *g);

/* Whether the tensor lives in a work buffer. Copies do, and so do matrices that are loaded for one run. */
static inline bool graph_is_work(const mr_graph *g, int32_t tensor) {
    mr_storage s = g->tensors[tensor].storage;
    return s == MR_STORAGE_WORK || s == MR_STORAGE_INPUT || s == MR_STORAGE_OUTPUT || tensor >= g->n_built;
}

/* Whether the tensor is an input of the record, in one of the memories that hold it. */
static inline bool graph_in_record(const mr_graph *g, int32_t tensor) {
    return g->tensors[tensor].storage == MR_STORAGE_INPUT && g->tensors[tensor].type == MR_TYPE_I32;
}

/* Index of the backend whose buffer holds the tensor. */
static inline int32_t graph_home(const mr_graph *g, int32_t tensor) {
    int32_t b = 0;
    while (b < g->backends.n - 1 && g->backends.at[b] != g->tensors[tensor].home)
        b++;
    return b;
}

/* The tensor with the values of id that backend b can read in place, or MR_NO_TENSOR. A WEIGHT tensor has the layout of
 * its home, which no other backend reads. */
static inline int32_t graph_reach(const mr_graph *g, int32_t b, int32_t id) {
    for (; id != MR_NO_TENSOR; id = g->links[id].also) {
        int32_t home = graph_home(g, id);
        if (g->tensors[id].storage == MR_STORAGE_WEIGHT ? home == b : g->memory[home] == g->memory[b])
            return id;
    }
    return MR_NO_TENSOR;
}

#endif
