/* engine/graph/graph.h - builds the graph of a stage, shares it out over backends, finds what may run at once, plans
 * its memory, runs it.
 * Life: create, add tensors and nodes, mr_graph_finish (fusion, splits, groups, memory plan; work_bytes is known now
 * and nothing is allocated yet), mr_graph_place (work memory given by the caller), then run again and again.
 *
 * Example, y = W x for up to 8 rows on one backend:
 *
 *     mr_graph_create(8, 8, &g, err);
 *     int32_t x = mr_graph_input(g, "x", MR_TYPE_F32, columns, MR_ROWS_STEP);
 *     int32_t y = mr_graph_matmul(g, mr_graph_use(g, &w), x, MR_NO_TENSOR, MR_NO_TENSOR);
 *     mr_graph_output(g, y);
 *     mr_graph_finish(g, &backends, &stats, err);    // then a buffer of stats.work_bytes[0] bytes
 *     mr_graph_place(g, &buffer, err);
 *     mr_graph_set_rows(g, x, rows, row_bytes, 3, err);
 *     mr_graph_run(g, &(mr_run){.n_rows = {[MR_ROWS_STEP] = 3}}, err);
 *     mr_graph_get_rows(g, y, 0, 3, result, result_row_bytes, err);
 *
 * Splits. A node runs where its matrix or state lives; where that leaves a choice, on the first backend of the list
 * that supports it; a node with neither goes where its neighbours are, so that no needless border arises. A split is a
 * run of nodes on one backend, as long as the dependencies allow. A tensor is copied where a split reads what another
 * memory holds: once for each memory, as soon as it is made, while other splits run. From device to device it goes
 * through the host.
 *
 * Owns:    its arrays and its programs. Borrows: backends, buffers of placed tensors and the work buffers; all outlive
 *          it.
 * Threads: bound to the thread that runs it.
 * Errors:  adding never fails at once: the first error stays, makes later additions no-ops, and comes out of
 *          mr_graph_finish. This keeps error checks out of engine/model/arch_*.c. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAPH_GRAPH_H
#define MR_ENGINE_GRAPH_GRAPH_H

#include "backends/backend.h"
#include "engine/base/status.h"
#include "engine/tensor/tensor.h"

typedef struct mr_graph mr_graph;

/* rows: upper bounds of MR_ROWS_STEP (and MR_ROWS_HIDDEN) and MR_ROWS_OUT tensors. */
MR_MUST_USE mr_status mr_graph_create(int32_t max_rows, int32_t max_out_rows, mr_graph **out, mr_err *err);
void mr_graph_destroy(mr_graph *g);

/* --- Tensors: ids ------------------------------------------------------------------------------------------------ */
/* A copy of a tensor that lives outside (weights, constants, state); placed or not. */
int32_t mr_graph_use(mr_graph *g, const mr_tensor *t);
/* Says that tensor id (of mr_graph_use) can be read in a further memory, too: a copy that the caller keeps there. */
void mr_graph_use_also(mr_graph *g, int32_t id, const mr_tensor *t);
/* Where the rows of a matrix lie in the file, for as long as the graph lives: so that a faster device can take it for a
 * run, where mr_backends.rates say that this pays. */
void mr_graph_matrix_source(mr_graph *g, int32_t id, const uint8_t *rows);
/* [columns, rows of the kind] written by the caller before each run. */
int32_t mr_graph_input(mr_graph *g, const char *name, mr_type type, int32_t columns, mr_row_count rows);
/* Marks a tensor as a result: it stays readable until the next run. */
void mr_graph_output(mr_graph *g, int32_t tensor);

/* --- Nodes: shapes as in engine/tensor/tensor.h; each returns the id of its result ------------------------------- */
int32_t mr_graph_embed(mr_graph *g, int32_t table, int32_t ids);
int32_t mr_graph_rope_table(mr_graph *g, int32_t angles, int32_t positions, float magnitude);
int32_t mr_graph_rms_norm(mr_graph *g, int32_t x, int32_t weight, float eps);
/* w x + bias + add; quantises x once for all products that want it. bias and add may be MR_NO_TENSOR. */
int32_t mr_graph_matmul(mr_graph *g, int32_t w, int32_t x, int32_t bias, int32_t add);
typedef struct mr_rope_desc {
    int32_t head_dim, n_rot;
    mr_rope_pairs pairs;
} mr_rope_desc;
int32_t mr_graph_rope(mr_graph *g, int32_t x, int32_t table, const mr_rope_desc *desc);
typedef struct mr_attention_desc {
    int32_t n_heads, n_kv_heads, head_dim;
    float scale;
    float soft_cap;                                    /* of scores; 0: none */
    int32_t window;                                    /* positions that a row sees, its own included; 0: all */
    int32_t k_state, v_state;                          /* of the layer */
    int32_t slots, row_seq, row_position, block_table; /* inputs */
    int32_t sinks;                                     /* [n_heads, 1] f32 of the layer, or MR_NO_TENSOR */
} mr_attention_desc;
/* Writes k and v into the store, then attends with q. */
int32_t mr_graph_attention(mr_graph *g, int32_t q, int32_t k, int32_t v, const mr_attention_desc *desc);
int32_t mr_graph_silu_mul(mr_graph *g, int32_t gate, int32_t up);
int32_t mr_graph_add(mr_graph *g, int32_t a, int32_t b);
/* A feed-forward part of experts, of which each row takes the n_used that the router likes best. */
typedef struct mr_experts_desc {
    int32_t n, n_used; /* n_used: the same in all layers of a graph */
    int32_t router;    /* [d, n] */
    int32_t gate, up;  /* [d, f * n]: n matrices one behind the other */
    int32_t down;      /* [f, d * n] */
} mr_experts_desc;
/* add + the weighted sum of down(silu(gate x) * up x) over the experts of each row. */
int32_t mr_graph_experts(mr_graph *g, int32_t x, int32_t add, const mr_experts_desc *desc);
/* The rows of x that the input rows [1, O] names. */
int32_t mr_graph_take_rows(mr_graph *g, int32_t x, int32_t rows);

/* --- Finish, place, run ------------------------------------------------------------------------------------------ */
typedef struct mr_graph_stats {
    int32_t n_nodes, n_groups, n_splits, n_copies;
    /* Inputs, intermediates and outputs: the size of the work buffer of each backend; 0 for one that needs none. */
    size_t work_bytes[MR_MAX_BACKENDS];
    size_t unshared_bytes; /* what they would take without reuse, all together */
} mr_graph_stats;

/* Fuses, chooses a backend for each node, splits, groups, plans memory. MR_E_UNSUPPORTED names what no backend runs. */
MR_MUST_USE mr_status mr_graph_finish(mr_graph *g, const mr_backends *backends, mr_graph_stats *out, mr_err *err);
/* Puts work tensors into work[i] of backend i, of work_bytes[i] bytes (NULL for 0), and prepares the programs. */
MR_MUST_USE mr_status mr_graph_place(mr_graph *g, mr_buffer *const *work, mr_err *err);
/* Runs all splits and waits for them. After an error nothing is under way any more. */
MR_MUST_USE mr_status mr_graph_run(mr_graph *g, const mr_run *run, mr_err *err);

/* Writes or reads the first n_rows rows of an input or output; rows on the host have row_bytes from one to the next.
 * src stays as it is until the next run is over. */
MR_MUST_USE mr_status mr_graph_set_rows(mr_graph *g, int32_t tensor, const void *src, size_t row_bytes, int32_t n_rows,
                                        mr_err *err);
MR_MUST_USE mr_status mr_graph_get_rows(mr_graph *g, int32_t tensor, int32_t first_row, int32_t n_rows, void *dst,
                                        size_t row_bytes, mr_err *err);

const mr_tensor *mr_graph_tensor(const mr_graph *g, int32_t tensor);
const mr_node *mr_graph_nodes(const mr_graph *g, int32_t *out_n);

#endif
