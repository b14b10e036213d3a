/* worker/stage/stage.h - one stage of the pipeline: its weights, its KV blocks, and a graph for every row bucket.
 * Use: create loads the weights. Then for each step:
 *
 *     mr_step_rows *rows = mr_stage_rows(s);           // fill them
 *     mr_stage_start(s, &step, err);
 *     mr_stage_poll(s, deadline_ns, &ended, err);      // until ended
 *     const float *logits = mr_stage_logits(s, 0);     // read the results
 *
 * A device works on a step while the caller does something else, and on its queue a second step may stand behind the
 * first one (mr_stage_has_room). Steps end in the order of their starts. The CPU computes inside start and poll.
 * Owns:    weights, KV store, graphs, work memory. Borrows: gguf, info and backends, which outlive the stage.
 * Threads: bound to the step thread.
 * Errors:  create: those of loading. start and poll: those of the backends, such as MR_E_DEVICE; the step is over then.
 *          Another step that is under way goes on, and its memory must live until it ends or the stage is destroyed. A
 *          step allocates nothing, except with MILLRACE_GRAPH_REUSE=off (engine/graph/debug.h). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_STAGE_H
#define MR_WORKER_STAGE_STAGE_H

#include "backends/backend.h"
#include "engine/base/top.h"
#include "engine/gguf/model_info.h"
#include "engine/model/model.h"
#include "worker/stage/kept_kv.h"
#include "worker/stage/synthetic.h"

/* How a stage renews the experts that its device holds beside the host, by the counts of the running job. Results do
 * not depend on it. */
typedef struct mr_expert_rules {
    int32_t rows;           /* it looks for exchanges after so many rows; 0: never */
    int32_t half_life_rows; /* counts are halved after so many rows, at least 1 */
    size_t bytes_per_step;  /* loads so many bytes between two steps on average, but one expert at least */
    int32_t deviations;     /* of two counts whose difference may be chance: an exchange needs more than these */
} mr_expert_rules;
/* The usual rules. Decode of one sequence takes about a minute for a half-life. */
enum { MR_EXPERT_HALF_LIFE_ROWS = 1024, MR_EXPERT_BYTES_PER_STEP = 8 << 20, MR_EXPERT_DEVIATIONS = 4 };

static inline mr_expert_rules mr_expert_rules_usual(int32_t rows) {
    return (mr_expert_rules){rows, MR_EXPERT_HALF_LIFE_ROWS, MR_EXPERT_BYTES_PER_STEP, MR_EXPERT_DEVIATIONS};
}

typedef struct mr_stage_config {
    const mr_gguf *gguf;
    const mr_model_info *info;
    mr_layer_range range;
    int32_t max_rows;      /* rows of one step */
    int32_t max_out_rows;  /* rows of one step that want logits */
    int32_t max_sequences; /* sequence slots */
    int32_t max_context;   /* tokens of one sequence */
    int32_t n_kv_blocks;
    mr_type kv_type;
    bool map_weights; /* mr_weights_desc.map */
    /* Further backends, in order of preference, at most MR_MAX_BACKENDS - 1; devices.whole_layers says which layers
     * they hold. The stage prefers these devices to the backend argument of mr_stage_create. The backend argument runs
     * every node that no device runs; devices.rates[n] is the rate of the backend argument. */
    mr_backends devices;
    /* The experts of each layer of the range, those first that the device gets (mr_weights_desc.expert_order). Borrowed
     * for mr_stage_create; NULL: in ascending order. */
    const int32_t *expert_order;
    /* For mr_stage_works. It has no effect if each step runs on one backend alone. */
    bool notes_works;
    bool measures_products; /* devices.min_rows and rates come from a measurement at load (worker/stage/products.h) */
    mr_weight_store *store; /* as in mr_weights_desc */
    /* Gives the stage its KV store, if it is one of these layers and fits; one in the host's memory is copied to the
     * device that holds the layers. Gets the store of the stage when it ends, if there is one for all layers. Outlives
     * the stage. NULL: a store of its own. */
    mr_kept_kv *kept_kv;
    mr_expert_rules renews; /* counts the uses of experts that are shared, and nothing where none are */
    bool counts_uses;       /* for mr_stage_use_counts; the steps then run one after the other, also on a device */
    const mr_synthetic *synthetic; /* the stage sleeps instead of computing and loads nothing; copied. NULL: computes */
} mr_stage_config;

/* Bytes of the buffers in one device's memory. */
typedef struct mr_stage_bytes {
    size_t weights, kv, tables, work;
} mr_stage_bytes;

typedef struct mr_stage_sizes {
    size_t weight_bytes, kv_bytes, work_bytes; /* in the host's memory */
    /* Memory from mr_pages_alloc for all buffers on the host except the KV blocks; each buffer takes whole pages. */
    size_t page_bytes;
    mr_stage_bytes devices[MR_MAX_BACKENDS]; /* of config.devices.at[i]; zeros if it computes in the host's memory */
} mr_stage_sizes;

/* The most memory that a stage of this config can take, for any result of mr_products_measure. Loads nothing. */
MR_MUST_USE mr_status mr_stage_measure(const mr_stage_config *config, mr_backend *backend, mr_stage_sizes *out,
                                       mr_err *err);

typedef struct mr_stage mr_stage;

/* progress may be NULL. MR_E_CANCELLED: progress has returned false. */
MR_MUST_USE mr_status mr_stage_create(const mr_stage_config *config, mr_backend *backend, mr_load_progress *progress,
                                      void *progress_ctx, mr_stage **out, mr_err *err);
void mr_stage_destroy(mr_stage *s);
bool mr_stage_is_synthetic(const mr_stage *s);
mr_stage_sizes mr_stage_get_sizes(const mr_stage *s);
/* Layers of the stage that were not loaded, because the store of its config had them. */
int32_t mr_stage_kept_layers(const mr_stage *s);
/* Whether the KV store came from config.kept_kv. */
bool mr_stage_has_kept_kv(const mr_stage *s);
/* The KV store, borrowed; NULL: the layers have their KV blocks on several backends. */
mr_kv_store *mr_stage_kv_store(const mr_stage *s);
/* Bytes of weights that were loaded. */
size_t mr_stage_loaded_bytes(const mr_stage *s);

/* The rows of a step. The stage owns the arrays, the caller fills them. The caller keeps the values in range: ids below
 * the vocabulary size, slots below n_kv_blocks * MR_KV_BLOCK, positions below max_context and inside the blocks of the
 * block table. step.c checks values that come from a peer. */
typedef struct mr_step_rows {
    int32_t n_rows, n_out, n_hidden;
    int32_t *ids;       /* [max_rows], head only */
    int32_t *positions; /* [max_rows] */
    int32_t *slots;     /* [max_rows]: KV block * MR_KV_BLOCK + position % MR_KV_BLOCK */
    int32_t *row_seq;   /* [max_rows]: sequence slot */
    int32_t *out_rows;  /* [max_out_rows]: rows that want logits, tail only */
    bool *only_top;     /* [max_out_rows]: of this out row mr_stage_top is enough. True for mr_stage_max_top at most */
    int32_t *hidden_rows; /* [max_rows]: rows whose hidden row (behind the output norm) is wanted, tail only */
} mr_step_rows;
/* The rows of the next step to be started. They are those of an earlier step, or zeros at first. */
mr_step_rows *mr_stage_rows(mr_stage *s);
/* Of how many out rows of a step the stage can find the first tokens on a device; 0: of none. Their logits are not
 * copied then. */
int32_t mr_stage_max_top(const mr_stage *s);

/* Entries [first, first + n) of a sequence slot's block table, from the next start on. blocks is copied. */
MR_MUST_USE mr_status mr_stage_set_blocks(mr_stage *s, int32_t slot, int32_t first, const int32_t *blocks, int32_t n,
                                          mr_err *err);
/* Before the next step, KV block `from` is copied to block `to` in every layer. Copies happen in the order of the
 * calls, and there are at most max_sequences of them for a step. */
void mr_stage_copy_block(mr_stage *s, int32_t from, int32_t to);

/* The borrowed memory of a step, and a function to call meanwhile. */
typedef struct mr_stage_step {
    const float *x_in; /* [n_rows, d_model]; NULL on the head. Must not change until mr_stage_has_read */
    float *x_out;      /* [n_rows, d_model]: gets the rows for the next stage by the end of the step; NULL: nobody wants
                        * them */
    /* Instead of x_in and x_out: rows in buffers of mr_stage_in_device and mr_stage_out_device, from these offsets on.
     * The same holds for them. */
    const mr_buffer *in_buffer;
    mr_buffer *out_buffer;
    size_t in_offset, out_offset;
    void (*progress)(void *ctx); /* called between groups of nodes, and while the host waits; may be NULL */
    void *progress_ctx;
    const atomic_bool *stop; /* as in mr_run: the step then ends with MR_E_CANCELLED; NULL: it cannot be stopped */
} mr_stage_step;
enum { MR_STAGE_STEPS = 2 }; /* under way at most */

/* Whether a further step may be started. Without a step under way: always. */
bool mr_stage_has_room(const mr_stage *s);
/* Whether every step of this stage runs wholly on one device: mr_stage_start only fills the queue of the device. */
bool mr_stage_runs_on_device(const mr_stage *s);
/* The device in whose memory a step's rows from the stage before, or for the next stage, lie in every step; NULL: there
 * is none, or other libraries do not reach its memory (mr_backend_link_ops). */
mr_backend *mr_stage_in_device(const mr_stage *s);
mr_backend *mr_stage_out_device(const mr_stage *s);
/* Starts a step with the rows of mr_stage_rows. Call only if mr_stage_has_room. MR_E_CANCELLED: a synthetic stage was
 * told to end. */
MR_MUST_USE mr_status mr_stage_start(mr_stage *s, const mr_stage_step *step, mr_err *err);
/* Whether x_in of every started step has been read, so that its memory may be used again. */
bool mr_stage_has_read(const mr_stage *s);
/* Does what the steps under way need from the host, and waits for the end of the oldest one until the deadline, 0: not
 * at all. *out_ended: it has ended, and its results may be read until the next start. */
MR_MUST_USE mr_status mr_stage_poll(mr_stage *s, int64_t deadline_ns, bool *out_ended, mr_err *err);
/* Starts a step and waits for its end. */
MR_MUST_USE mr_status mr_stage_run(mr_stage *s, const mr_stage_step *step, mr_err *err);

/* Exchanges experts of the device by config.renews. Call after each step, when no step is under way. Without such
 * experts or rules it does nothing. */
MR_MUST_USE mr_status mr_stage_renew_experts(mr_stage *s, mr_err *err);
/* Experts of layers that a device and the host share. */
typedef struct mr_expert_share {
    uint64_t n_uses, n_device_uses; /* by rows; of experts that the device held */
    uint64_t n_swaps;               /* experts exchanged */
} mr_expert_share;
/* Since the start of the stage, up to its last look. Zeros without such layers or rules. */
mr_expert_share mr_stage_expert_share(const mr_stage *s);

/* How long the device worked for the step that ended last, by its own clock; 0: not known. */
int64_t mr_stage_device_ns(const mr_stage *s);
/* When the CPU and devices computed in the step that ended last, [*out_n] in no order. None without
 * config.notes_works. */
const mr_graph_work *mr_stage_works(const mr_stage *s, int32_t *out_n);
/* Results of the step that ended last; zeros if the stage is synthetic. Logits: [vocabulary], out_row: an index into
 * out_rows. Hidden: [d_model], behind the output norm, i: an index into hidden_rows. An out row with only_top has no
 * logits; mr_stage_top returns NULL for all other rows. */
const float *mr_stage_logits(const mr_stage *s, int32_t out_row);
const mr_top *mr_stage_top(const mr_stage *s, int32_t out_row);
const float *mr_stage_hidden(const mr_stage *s, int32_t i);

/* How many rows of all ended steps have used each expert or neuron of a layer. */
typedef struct mr_use_counts {
    int32_t layer;    /* of the model */
    bool is_neurons;  /* of a sparse feed-forward part; false: experts */
    int32_t n;        /* experts or neurons of the layer */
    uint64_t n_rows;  /* that the layer has computed */
    uint64_t *counts; /* [n] */
} mr_use_counts;
/* The layers with experts or with a sparse feed-forward part, [*out_n] in order. Without config.counts_uses, at most
 * those of config.renews. */
const mr_use_counts *mr_stage_use_counts(const mr_stage *s, int32_t *out_n);

#endif
