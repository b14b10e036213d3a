/* engine/graph/graph_internal.h - the arrays behind a graph, shared by the passes of this folder.
 * A memory is named by the index of the backend whose work buffer stands for it: a device's own, or the last backend's
 * for all that are host_addressable. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAPH_GRAPH_INTERNAL_H
#define MR_ENGINE_GRAPH_GRAPH_INTERNAL_H

#include "engine/graph/graph.h"

enum { GRAPH_BEFORE_ALL = -1 }; /* in the place of a split: before the first one */

/* Nodes [first, last) on one backend, one program. */
typedef struct graph_split {
    int32_t backend, first, last;
    int32_t last_group;
    int32_t first_copy, last_copy; /* copies [first_copy, last_copy) have to be there before this split */
    mr_program *program;
} graph_split;

/* What else is known of a tensor. */
typedef struct graph_link {
    int32_t also;          /* the same values in another memory: the next tensor of a chain, or MR_NO_TENSOR */
    const uint8_t *source; /* a matrix: its rows in the file, or NULL */
} graph_link;

/* One of the two tensors lies in the host's memory. */
typedef struct graph_copy {
    int32_t src, dst;
    const uint8_t *source; /* a matrix that is loaded from here for each run; src is MR_NO_TENSOR then */
    int32_t after;         /* the split that makes src, or GRAPH_BEFORE_ALL */
    int32_t before;        /* the first split that needs dst */
    bool to_host;
    bool is_late;   /* src comes from another device: issued when dst is needed, not when src is made */
    mr_fence fence; /* of the run under way; of src's backend when to_host, else of dst's */
} graph_copy;

typedef struct graph_times graph_times; /* what the runs took */

/* Groups in which a tensor is alive, inclusive; first < 0: in none. */
typedef struct graph_range {
    int32_t first, last;
} graph_range;

struct mr_graph {
    int32_t max_rows[MR_ROWS_KINDS]; /* MR_ROWS_SLOTS: 0 without experts */
    int32_t n_experts_used;          /* of each row; 0 without experts */
    mr_tensor *tensors;
    graph_link *links; /* parallel to tensors */
    int32_t n_tensors, cap_tensors;
    int32_t n_built; /* tensors before copies were added */
    mr_node *nodes;
    int32_t n_nodes, cap_nodes;
    mr_backends backends;
    int32_t memory[MR_MAX_BACKENDS]; /* of each backend */
    bool is_host[MR_MAX_BACKENDS];   /* host_addressable */
    graph_split *splits;             /* in the order of their runs */
    int32_t n_splits, cap_splits;
    graph_copy *copies; /* by before */
    int32_t n_copies, cap_copies;
    int32_t *issue; /* the copies that are not late, by after */
    int32_t n_issue;
    mr_graph_stats stats;
    unsigned debug;      /* mr_graph_debug_wanted at finish */
    graph_range *ranges; /* [n_tensors]; NULL unless the plan is to be printed */
    graph_times *times;  /* NULL: not wanted */
    mr_err err;          /* the first error of building */
};

/* A new tensor or node; MR_NO_TENSOR or NULL after an error. */
int32_t graph_add_tensor(mr_graph *g, const mr_tensor *t);
mr_node *graph_add_node(mr_graph *g, mr_op op, int32_t out);
/* Makes room for one more element of an array that doubles. */
bool graph_grow(void **array, int32_t n, int32_t *cap, size_t size);

/* Lets the producer of a row write A8 itself where only a QUANTIZE node reads it. */
void graph_fuse(mr_graph *g);
/* Whether backend b (its index) runs the node with what it can reach. */
bool graph_can_run(const mr_graph *g, int32_t b, const mr_node *node);
/* Chooses a backend for each node. */
mr_status graph_assign(mr_graph *g, mr_err *err);
/* Moves products to devices that are faster even with the copy of the matrix. */
void graph_offload(mr_graph *g);
/* Sorts nodes into splits, gives work tensors their home, and lets nodes read copies where they cannot reach a
 * tensor. */
mr_status graph_split_nodes(mr_graph *g, mr_err *err);
/* Numbers the nodes of each split by the longest chain before them in it, and sorts them by that number. */
mr_status graph_group(mr_graph *g, mr_err *err);
/* Gives work tensors their offsets in the memory of their home. Fills work_bytes and unshared_bytes. */
mr_status graph_plan_memory(mr_graph *g, mr_graph_stats *stats, mr_err *err);

/* What MILLRACE_GRAPH_DEBUG wants of a graph that is placed, and of one that has run for the last time. */
mr_status graph_debug_place(mr_graph *g, mr_err *err);
void graph_debug_destroy(mr_graph *g);
/* The host starts with a group, ends with one; waited for a device; has run all. */
void graph_times_start(graph_times *t, int32_t group);
void graph_times_group(graph_times *t);
void graph_times_waited(graph_times *t, int64_t ns);
void graph_times_ran(graph_times *t, int64_t ns);

/* Tensors that live in the work buffer: matrices that are there for a run, too. */
static inline bool graph_is_work(const mr_graph *g, int32_t tensor) {
    mr_storage s = g->tensors[tensor].storage;
    return s == MR_STORAGE_WORK || s == MR_STORAGE_INPUT || s == MR_STORAGE_OUTPUT || tensor >= g->n_built;
}

/* Index of the backend whose buffer holds the tensor. */
static inline int32_t graph_home(const mr_graph *g, int32_t tensor) {
    int32_t b = 0;
    while (b < g->backends.n - 1 && g->backends.at[b] != g->tensors[tensor].home)
        b++;
    return b;
}

/* The tensor of id's chain that backend b reads where it lies, or MR_NO_TENSOR. Nobody else reads a backend's
 * layout. */
static inline int32_t graph_reach(const mr_graph *g, int32_t b, int32_t id) {
    for (; id != MR_NO_TENSOR; id = g->links[id].also) {
        int32_t home = graph_home(g, id);
        if (g->tensors[id].storage == MR_STORAGE_WEIGHT ? home == b : g->memory[home] == g->memory[b])
            return id;
    }
    return MR_NO_TENSOR;
}

#endif
