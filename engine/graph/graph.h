/* engine/graph/graph.h - builds the graph of a stage, assigns its nodes to backends, finds nodes that may run at the
 * same time, plans the memory, and runs the graph.
 * Life: create the graph, add tensors and nodes, then call mr_graph_finish and mr_graph_place once, and mr_graph_run
 * for every step. mr_graph_finish fuses nodes, makes splits and groups, and plans the memory. After it the caller knows
 * how many bytes of work memory each backend needs. The caller allocates this work memory and passes it to
 * mr_graph_place.
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
 * Splits. A node with a matrix or state runs on a backend that can read this matrix or state in place. If several
 * backends can, the first one in the list that supports the node takes it. A product may still move to a faster device
 * (mr_graph_matrix_source). A node without matrix and state runs where its neighbours run, so that few tensors have to
 * be copied. A split is a series of nodes on one backend, as long as the dependencies allow. It ends early if this lets
 * two backends work on large nodes at the same time. If a split reads a tensor that lies in another memory, the graph
 * copies the tensor: once for each memory, as soon as the tensor is computed, while other splits run. A copy from
 * device to device goes through the host's memory.
 *
 * Inputs. An input that nodes of several memories read lies in each of them, and is written to each. All i32 inputs lie
 * side by side: they are the record. Its layout is the same in every memory, so that a step writes all of its i32
 * inputs by one set for each memory (mr_graph_set_record).
 *
 * Start and poll. mr_graph_run returns when the run is done. A caller that works meanwhile calls mr_graph_start, which
 * gives the backends all work that waits for nothing, and then mr_graph_poll until the run is done. The state of a run
 * is a flight, which the caller owns. If all splits are on one device (mr_graph_stats.needs_host is false), all work is
 * in the device's queue when mr_graph_start returns. Then the inputs of the next run may be set at once, and the next
 * run of this graph or of another graph may be started, with another flight: its work stands behind in the queue.
 *
 *     mr_graph_set_record(g, record, err);
 *     mr_graph_start(g, &run, &(mr_graph_read){y, 0, 3, result, result_row_bytes}, 1, flight, err);
 *     mr_graph_poll(flight, 0, &done, err);    // now and then, until done
 *
 * Owns:    its arrays and its programs. Borrows: the backends, the buffers of placed tensors and the work buffers. All
 *          of them outlive the graph.
 * Threads: bound to the thread that runs the graph.
 * Errors:  functions that add a tensor or node return MR_NO_TENSOR after an error. The graph keeps the first error,
 *          ignores all later additions, and mr_graph_finish returns the error. So engine/model/arch_*.c need no
 *          checks. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAPH_GRAPH_H
#define MR_ENGINE_GRAPH_GRAPH_H

#include "backends/backend.h"
#include "engine/base/status.h"
#include "engine/tensor/tensor.h"

typedef struct mr_graph mr_graph;

/* max_rows: upper bound of the rows of MR_ROWS_STEP and MR_ROWS_HIDDEN tensors. max_out_rows: that of MR_ROWS_OUT and,
 * up to MR_GRAPH_TOP_ROWS, of MR_ROWS_TOP. */
MR_MUST_USE mr_status mr_graph_create(int32_t max_rows, int32_t max_out_rows, mr_graph **out, mr_err *err);
void mr_graph_destroy(mr_graph *g);

/* --- Tensors: ids ------------------------------------------------------------------------------------------------ */
/* Adds a tensor that the caller owns: a weight, a constant or state. It need not be placed yet. t itself is copied. */
int32_t mr_graph_use(mr_graph *g, const mr_tensor *t);
/* Says that t holds the same values as tensor id (of mr_graph_use). Backends that cannot read id in place may read
 * t. */
void mr_graph_use_also(mr_graph *g, int32_t id, const mr_tensor *t);
/* rows: the rows of matrix id as they lie in the file; they outlive the graph. With them, a faster device can load the
 * matrix for the time of one run, if mr_backends.rates predict a gain. */
void mr_graph_matrix_source(mr_graph *g, int32_t id, const uint8_t *rows);
/* Adds a tensor [columns, rows of the kind] that the caller writes before each run. */
int32_t mr_graph_input(mr_graph *g, const char *name, mr_type type, int32_t columns, mr_row_count rows);
/* Marks a tensor as a result: it stays readable until the next run. */
void mr_graph_output(mr_graph *g, int32_t tensor);

/* --- Nodes: shapes as in engine/tensor/tensor.h; each returns the id of its result ------------------------------- */
int32_t mr_graph_embed(mr_graph *g, int32_t table, int32_t ids);
int32_t mr_graph_rope_table(mr_graph *g, int32_t angles, int32_t positions, float magnitude);
int32_t mr_graph_rms_norm(mr_graph *g, int32_t x, int32_t weight, float eps);
/* Norms the first columns of x, as many as the weight has, and copies the others. */
int32_t mr_graph_rms_norm_first(mr_graph *g, int32_t x, int32_t weight, float eps);
/* w x + bias + add; bias and add may be MR_NO_TENSOR. Products with the same type of activations share a quantised
 * x. */
int32_t mr_graph_matmul(mr_graph *g, int32_t w, int32_t x, int32_t bias, int32_t add);
/* Each of n_heads heads of x has k + t elements. The result has n + t for each: the head's matrix of w [k, n * n_heads]
 * times the first k, then the other t. */
int32_t mr_graph_head_matmul(mr_graph *g, int32_t w, int32_t x, int32_t n_heads);
typedef struct mr_rope_desc {
    int32_t head_dim, n_rot;
    mr_rope_pairs pairs;
    int32_t first; /* of the n_rot elements of a head that rotate */
} mr_rope_desc;
int32_t mr_graph_rope(mr_graph *g, int32_t x, int32_t table, const mr_rope_desc *desc);
typedef struct mr_attention_desc {
    int32_t n_heads, n_kv_heads;
    int32_t k_dim, v_dim; /* elements of a head of queries and keys, and of values */
    float scale;
    float soft_cap; /* of scores; 0: none */
    mr_temperature temperature;
    int32_t window;                                    /* positions that a row sees, its own included; 0: all */
    int32_t k_state, v_state;                          /* of the layer */
    int32_t slots, row_seq, row_position, block_table; /* inputs */
    int32_t sinks;                                     /* [n_heads, 1] f32 of the layer, or MR_NO_TENSOR */
} mr_attention_desc;
/* Writes k and v into the store, then attends with q. With one KV head, v may be wider: its first columns count. */
int32_t mr_graph_attention(mr_graph *g, int32_t q, int32_t k, int32_t v, const mr_attention_desc *desc);
/* A gated linear unit: rule G. */
int32_t mr_graph_glu(mr_graph *g, int32_t gate, int32_t up, mr_glu glu);
int32_t mr_graph_add(mr_graph *g, int32_t a, int32_t b);
/* a + sigmoid(gate) * b, gate [1, R]: a shared expert beside the others, and its gate. */
int32_t mr_graph_add_gated(mr_graph *g, int32_t a, int32_t b, int32_t gate);
/* x * factor, factor finite. */
int32_t mr_graph_scale(mr_graph *g, int32_t x, float factor);
/* cap * tanh(x / cap), cap finite and above zero. */
int32_t mr_graph_soft_cap(mr_graph *g, int32_t x, float cap);
/* Vectors that experts add; each may be MR_NO_TENSOR. */
typedef struct mr_expert_biases {
    int32_t router;   /* [n, 1] f32: added to the logits */
    int32_t choice;   /* [n, 1] f32: added to the scores by which experts are chosen, not to weights */
    int32_t gate, up; /* [f, n] f32 */
    int32_t down;     /* [d, n] f32 */
} mr_expert_biases;
/* Experts that a device computes, while the backend with the matrices of all experts computes the others. Which ones
 * the device has may change between two runs: the caller changes the matrices and the places. */
typedef struct mr_experts_held {
    int32_t n;                             /* the most at a time */
    int32_t gate, up, down;                /* of n experts, as in mr_experts_desc */
    int32_t gate_bias, up_bias, down_bias; /* [f, n], [f, n], [d, n] f32; MR_NO_TENSOR where mr_expert_biases has it */
    /* [all experts, 1] i32 STATE in the memories of the two, as EXPERT_ROWS reads them: each expert has a place in
     * exactly one. */
    int32_t device_places, host_places;
} mr_experts_held;
/* A feed-forward part with experts. Each row uses n_used experts, which the routing chooses by the router. */
typedef struct mr_experts_desc {
    int32_t n, n_used; /* n_used: the same in all layers of a graph */
    int32_t router;    /* [d, n] */
    int32_t gate, up;  /* [d, f * n]: n matrices, one after the other */
    int32_t down;      /* [f, d * n] */
    mr_routing routing;
    mr_glu glu;
    const mr_expert_biases *biases; /* borrowed for the call; NULL: none */
    int32_t shared;                 /* [d, R]: what a shared expert adds; or MR_NO_TENSOR */
    const mr_experts_held *held;    /* borrowed for the call; NULL: none */
} mr_experts_desc;
/* add + the weighted sum of down(unit of gate x and up x) over the experts of each row + shared. */
int32_t mr_graph_experts(mr_graph *g, int32_t x, int32_t add, const mr_experts_desc *desc);
/* max(x, 0). */
int32_t mr_graph_relu(mr_graph *g, int32_t x);
/* A feed-forward part of which each row computes the neurons that a predictor expects to be active (Liu et al., "Deja
 * Vu", 2023; Song et al., "PowerInfer", 2023). F neurons. */
typedef struct mr_neurons_desc {
    int32_t gate; /* [d, neurons] in FILE storage */
    int32_t up;   /* the same, or MR_NO_TENSOR */
    int32_t down; /* [d, neurons] in FILE storage: a row for each neuron */
} mr_neurons_desc;
typedef struct mr_sparse_desc {
    int32_t predict_in, predict_out; /* [d, r] and [r, F]: the scores are predict_out relu(predict_in x) */
    int32_t gate, up, down;          /* as in mr_neurons_desc: of all neurons, or of those before the cold ones */
    /* The last neurons, in matrices of their own, so that two backends can compute at the same time. The other ones are
     * a multiple of 256. Borrowed for the call; NULL: none. */
    const mr_neurons_desc *cold;
    float threshold; /* of scores; not a NaN */
    mr_relu_unit unit;
} mr_sparse_desc;
/* add + the sum of the active neurons' rows of down, each times its unit of gate h and up h. x: what the predictor
 * reads. add may be MR_NO_TENSOR. */
int32_t mr_graph_sparse(mr_graph *g, int32_t x, int32_t h, int32_t add, const mr_sparse_desc *desc);
/* The rows of x whose numbers are in the input tensor rows [1, O]. */
int32_t mr_graph_take_rows(mr_graph *g, int32_t x, int32_t rows);
/* The first tokens of the first rows of logits [n, O], as many rows as a run has of MR_ROWS_TOP. Devices need scratch
 * memory for each of them, so there is a limit. */
enum { MR_GRAPH_TOP_ROWS = 256 };
int32_t mr_graph_top(mr_graph *g, int32_t logits);

/* --- Finish, place, run ------------------------------------------------------------------------------------------ */
typedef struct mr_graph_stats {
    int32_t n_nodes, n_groups, n_splits, n_copies;
    /* Inputs, intermediates, outputs and scratch memory: the size of the work buffer of each backend; 0 for one that
     * needs none. */
    size_t work_bytes[MR_MAX_BACKENDS];
    size_t unshared_bytes; /* sum of all sizes: the work memory if no two tensors shared memory */
    size_t record_bytes;   /* of the record: 0 without i32 inputs */
    /* The host computes in a run, or waits for a device before it can go on. The inputs of such a graph may be set, and
     * the graph may be started, only when no run is under way in its work buffers. */
    bool needs_host;
} mr_graph_stats;

/* Fuses nodes, chooses a backend for each node, makes splits and groups, and plans the memory. MR_E_UNSUPPORTED: no
 * backend runs a node; the text names the node. */
MR_MUST_USE mr_status mr_graph_finish(mr_graph *g, const mr_backends *backends, mr_graph_stats *out, mr_err *err);
/* Places the work tensors and creates the programs. work[i]: a buffer of backend i with work_bytes[i] bytes, or NULL
 * for 0 bytes. */
MR_MUST_USE mr_status mr_graph_place(mr_graph *g, mr_buffer *const *work, mr_err *err);
/* Runs all splits and waits until they are done. run->progress is also called during waits for a device. After an
 * error, too, no work is left on any backend. */
MR_MUST_USE mr_status mr_graph_run(mr_graph *g, const mr_run *run, mr_err *err);

/* The state of a run. One flight serves any graph with at most max_copies copies, one run at a time. */
typedef struct mr_graph_flight mr_graph_flight;
MR_MUST_USE mr_status mr_graph_flight_create(int32_t max_copies, mr_graph_flight **out, mr_err *err);
/* Gives up a run that is under way: waits for the work that the backends have, and starts no more. Graphs and backends
 * outlive the flights of their runs. */
void mr_graph_flight_destroy(mr_graph_flight *f);

/* Rows [first_row, first_row + n_rows) of an output, which the run copies to dst. row_bytes: from one row to the next
 * in dst. If it is the row_bytes of the tensor, the copy is one get. */
typedef struct mr_graph_read {
    int32_t tensor, first_row, n_rows;
    void *dst;
    size_t row_bytes;
    /* Instead of dst: the rows go to this buffer of the tensor's device (mr_graph_device), from offset on. */
    mr_buffer *buffer;
    size_t offset;
} mr_graph_read;
enum { MR_GRAPH_MAX_READS = 4 }; /* of one run */
/* Starts a run. Work that waits for nothing is done or in the queue of its backend when this call returns. Backends of
 * the host compute inside of this call and of mr_graph_poll. After an error the run is over, and none of its work is
 * left on any backend. Other runs that are under way are not: the caller polls each of them until it is done or fails.
 * Allocates nothing. */
MR_MUST_USE mr_status mr_graph_start(mr_graph *g, const mr_run *run, const mr_graph_read *reads, int32_t n_reads,
                                     mr_graph_flight *f, mr_err *err);
/* Goes on with the run, and waits for devices until the deadline (0: not at all). *out_done: the run and its reads are
 * done, or the flight has no run. After an error the run is over, as in mr_graph_start. */
MR_MUST_USE mr_status mr_graph_poll(mr_graph_flight *f, int64_t deadline_ns, bool *out_done, mr_err *err);
/* Whether the inputs of the flight's run have been read, so that their memory may be used again: the run has begun, on
 * every device that it uses. True without a run. */
bool mr_graph_flight_has_begun(const mr_graph_flight *f);
/* How long the flight's last run took on the backend that took longest, in nanoseconds of that backend's clock. This is
 * the time from the end of the work that was in its queue before, with copies and reads. 0: the run failed, or
 * MR_KEPT_MARKS further marks were made before its end was seen. */
int64_t mr_graph_flight_ns(const mr_graph_flight *f);

/* When a backend computed in a run: between two copies or waits of its own. */
typedef struct mr_graph_work {
    bool is_host;
    int64_t start_ns, end_ns; /* by the clock of the process, to some 10 us for a device */
} mr_graph_work;
/* From now on the graph notes when its backends compute. Call after mr_graph_finish. */
MR_MUST_USE mr_status mr_graph_note_work(mr_graph *g, mr_err *err);
/* The work of the last run that has ended, [*out_n], in no order. Work of a device whose time was not kept is left out.
 * None without mr_graph_note_work. */
const mr_graph_work *mr_graph_works(const mr_graph *g, int32_t *out_n);

/* Writes the first n_rows rows of an input. row_bytes: bytes from one row to the next in src. The caller must not
 * change src until the run that is started next has ended. */
MR_MUST_USE mr_status mr_graph_set_rows(mr_graph *g, int32_t tensor, const void *src, size_t row_bytes, int32_t n_rows,
                                        mr_err *err);
/* Where the rows of an i32 input begin in the record, in bytes. Valid after mr_graph_finish. */
size_t mr_graph_record_offset(const mr_graph *g, int32_t input);
/* The same from a buffer of the tensor's device (mr_graph_device), from offset on. */
MR_MUST_USE mr_status mr_graph_copy_rows(mr_graph *g, int32_t tensor, const mr_buffer *src, size_t offset,
                                         size_t row_bytes, int32_t n_rows, mr_err *err);
/* Writes all i32 inputs, by one set for each memory that holds any of them. record: stats.record_bytes bytes, which the
 * caller must not change until the run that is started next has ended. Rows beyond those of the run may have any
 * values. */
MR_MUST_USE mr_status mr_graph_set_record(mr_graph *g, const void *record, mr_err *err);
/* Reads n_rows rows of an output, from first_row on, and waits for them. row_bytes: as in mr_graph_read. */
MR_MUST_USE mr_status mr_graph_get_rows(mr_graph *g, int32_t tensor, int32_t first_row, int32_t n_rows, void *dst,
                                        size_t row_bytes, mr_err *err);
/* The rows of an output from first_row on, where they lie, mr_graph_tensor()->row_bytes apart; NULL if the host cannot
 * read them in place. Borrowed until the next run in the graph's work buffers. */
const void *mr_graph_rows(const mr_graph *g, int32_t tensor, int32_t first_row);

/* Whether the tensor of a finished graph lies in memory that the host can read. */
bool mr_graph_is_on_host(const mr_graph *g, int32_t tensor);
/* An output as the host can read it: the output itself, or the copy that each run makes for the nodes of the host;
 * MR_NO_TENSOR: there is neither. Valid after mr_graph_finish. */
int32_t mr_graph_on_host(const mr_graph *g, int32_t output);
/* The backend with a memory of its own in which the tensor lies, and every copy of it if it is an input; NULL: some of
 * them lie elsewhere, or the backend has no mr_backend_link_ops. */
mr_backend *mr_graph_device(const mr_graph *g, int32_t tensor);
/* Both results are borrowed, and valid until the graph changes. Nodes of a finished graph are in the order of their
 * groups. */
const mr_tensor *mr_graph_tensor(const mr_graph *g, int32_t tensor);
const mr_node *mr_graph_nodes(const mr_graph *g, int32_t *out_n);

#endif
