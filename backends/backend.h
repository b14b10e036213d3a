/* backends/backend.h - the interface to a device that stores tensors and runs nodes.
 * Device memory is opaque. The caller writes it with set, reads it with get, and loads weights with weight_load, which
 * may store them in any layout. The backend carries out set, get, weight_load and submit in the order of the calls, on
 * one queue. Each of these calls returns a fence, a number that grows, and may return before its work is done. Until
 * the fence is reached, the caller must not change or free the memory that it passed. The CPU and BLAS backends have
 * done the work when a call returns.
 *
 * A rank may have several backends (mr_backends). A graph is split over them, and a tensor is copied if a split reads
 * it from another memory (engine/graph/graph.h). Backends that are host_addressable share the memory of the host. They
 * exchange work tensors without copies: these tensors lie in buffers of the last backend of the list. A
 * host-addressable backend therefore reads a tensor at buffer->base + offset, whichever backend created the buffer.
 * WEIGHT tensors are the exception: each backend has its own layout for them, and creates their buffers itself.
 *
 * A backend that only multiplies matrices (BLAS) is host_addressable and supports no op but MATMUL. Products of few
 * rows go to the next backend of the list (min_rows). With keeps_source the backend needs no memory for weights.
 * mr_type_activation gives the type of activations that belongs to a type of weights, for example A8. The graph first
 * offers a product with activations of this type. If the backend refuses the product, the graph offers it with float32
 * activations.
 *
 * The calls of a backend, in the order of a stage's life (the graph makes the calls about programs):
 *
 *     ops->buffer_create(be, bytes, &buffer, err);            // weights, KV blocks, work memory
 *     ops->weight_load(be, &tensor, rows, &fence, err);       // for each matrix
 *     ops->program_create(be, &desc, &program, err);          // once for each row bucket
 *     ops->set(be, buffer, offset, input, n, &fence, err);    // then for each step
 *     ops->submit(be, program, &run, &fence, err);
 *     ops->get(be, buffer, offset, output, n, &fence, err);
 *     ops->wait(be, fence, deadline_ns, err);
 *
 * The host does other work while a device computes: a wait with a deadline in the past asks whether a fence is reached.
 * mark puts a fence into the queue whose time the backend keeps. The time that a device worked is the time between two
 * marks.
 *
 * Owns:    a backend owns the memory of its buffers and its threads. Buffers and programs must be destroyed before the
 *          backend.
 * Threads: the caller serialises all calls on one backend. Two backends are independent.
 * Errors:  any call may return MR_E_NO_MEMORY. A device may return MR_E_DEVICE, which is permanent: when a call has
 *          returned it, no work of the device is under way any more, and later calls that need the device return it,
 *          too. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_BACKEND_H
#define MR_BACKENDS_BACKEND_H

#include <stdatomic.h>

#include "engine/base/status.h"
#include "engine/tensor/tensor.h"

typedef struct mr_backend mr_backend;
typedef struct mr_program mr_program; /* nodes prepared to run any number of times */
typedef uint64_t mr_fence;            /* reached when the work of its call and of all earlier calls is done */

typedef struct mr_device_info {
    char name[128];
    size_t memory_bytes; /* most bytes that all buffers may have; 0: not known */
    size_t alignment;    /* of tensors inside buffers */
    /* The backend computes in the host's memory: it supports buffer_wrap, and reads tensors in buffers of other
     * host_addressable backends. */
    bool host_addressable;
    /* weight_load keeps the address src instead of a copy, so src must live as long as the tensor's buffer. Every
     * matrix of the last backend that such a backend can multiply is loaded into it, too. */
    bool keeps_source;
    bool exact; /* every op gives the bits of engine/NUMERICS.md */
} mr_device_info;

/* A device of this host, by what its driver says of it: no backend need exist. */
typedef struct mr_device_about {
    char name[100], driver[40], capability[40]; /* "driver for CUDA 12.4", "compute capability 9.0" */
    size_t memory_bytes;
    mr_err problem; /* why the program cannot use it; status MR_OK: it can */
} mr_device_about;

enum { MR_MAX_BACKENDS = 4, MR_NO_ROWS = INT32_MAX, MR_KEPT_MARKS = 16 };
typedef struct mr_rates {
    double products_per_s;     /* multiply-adds in large matrix products; 0: not measured */
    double copied_bytes_per_s; /* between the host's memory and the device's, in either direction; also weight_load */
} mr_rates;
/* The backends of a stage in order of preference. The last one runs every node that the others do not; if there are
 * others, it is host_addressable. */
typedef struct mr_backends {
    mr_backend *at[MR_MAX_BACKENDS];
    int32_t n;
    mr_rates rates[MR_MAX_BACKENDS]; /* of at[i] */
    /* at[0] holds the first whole_layers[0] layers of a stage, at[1] the next whole_layers[1] and so on; the last
     * backend holds the rest, whatever its number says. A backend with layers holds their matrices, experts, vectors,
     * keys and values; a part whose op it does not support stays on the last backend. */
    int32_t whole_layers[MR_MAX_BACKENDS];
    /* The last host_experts[i] of the whole_layers[i] layers leave their experts' matrices to the last backend. */
    int32_t host_experts[MR_MAX_BACKENDS];
    /* Of the experts of each of these layers, at[i] holds so many, too, and computes their part. Which ones these are
     * may change between steps (engine/model/model.h). */
    int32_t device_experts[MR_MAX_BACKENDS];
    /* Of each sparse feed-forward part of the whole_layers[i] layers, the last cold_partitions[i] partitions of neurons
     * (rule S) lie on the last backend. At most all of them. */
    int32_t cold_partitions[MR_MAX_BACKENDS];
    /* [i][t]: of the last backend's products, at[i] gets those of matrices of type t in graphs whose row bucket is at
     * least this, if it is host_addressable and supports the product. MR_NO_ROWS: it gets none of these products. */
    int32_t min_rows[MR_MAX_BACKENDS][MR_TYPE_FILE_COUNT];
} mr_backends;

/* Index of the backend that holds a layer of the stage; layers are counted from 0. */
static inline int32_t mr_backends_of_layer(const mr_backends *b, int32_t layer) {
    int32_t i = 0;
    for (; i < b->n - 1 && layer >= b->whole_layers[i]; i++)
        layer -= b->whole_layers[i];
    return i;
}

/* Index of the backend that holds the experts of a layer. */
static inline int32_t mr_backends_of_experts(const mr_backends *b, int32_t layer) {
    int32_t i = 0;
    for (; i < b->n - 1 && layer >= b->whole_layers[i]; i++)
        layer -= b->whole_layers[i];
    return i < b->n - 1 && layer >= b->whole_layers[i] - b->host_experts[i] ? b->n - 1 : i;
}

/* The last partitions of a layer's sparse part that lie on the last backend while the layer lies on another one. */
static inline int32_t mr_backends_cold_partitions(const mr_backends *b, int32_t layer) {
    return b->cold_partitions[mr_backends_of_layer(b, layer)];
}

/* A backend's own buffer structure begins with this one. */
struct mr_buffer {
    uint8_t *base; /* first byte, if the host may read and write the buffer; NULL in the memory of a device */
    size_t bytes;
    bool wrapped; /* borrowed host memory, read-only */
};

/* One run of a program: how many rows are real, and a function to call meanwhile. A backend that needs it after
 * submit has returned makes a copy. */
typedef struct mr_run {
    int32_t n_rows[MR_ROWS_KINDS]; /* mr_graph_run fills in the count of MR_ROWS_SLOTS */
    void (*progress)(void *ctx); /* called by the submitting thread between groups of nodes, or NULL; must not block */
    void *progress_ctx;
    /* Once it is true, a backend in the host's memory leaves out the groups that have not begun, and submit returns
     * MR_E_CANCELLED. progress may set it. NULL: the run cannot be stopped. */
    const atomic_bool *stop;
} mr_run;

static inline bool mr_run_is_stopped(const mr_run *run) {
    return run->stop && atomic_load_explicit(run->stop, memory_order_relaxed);
}

/* The nodes of a program; both arrays are borrowed until program_destroy. Nodes are sorted by group. Tensors are
 * placed. */
typedef struct mr_program_desc {
    const mr_tensor *tensors;
    const mr_node *nodes;
    int32_t n_nodes;
    /* Where the scratch memory of the program begins: scratch_bytes of a buffer of the backend. Programs that never run
     * at the same time may share it. NULL: the backend allocates it itself, and does not count it as buffers. */
    mr_buffer *scratch;
    size_t scratch_offset; /* aligned as tensors are */
} mr_program_desc;

enum { MR_DEVICE_UUID_BYTES = 16 };
/* What a link needs that moves rows between the memories of two devices (proto/device_link.h). Other libraries work on
 * the link's queue, which is the backend's own, beside the queue of all other calls. No work of the one waits for work
 * of the other. */
typedef struct mr_backend_link_ops {
    void (*uuid)(const mr_backend *be, uint8_t out[MR_DEVICE_UUID_BYTES]); /* two backends of one device: the same */
    /* The buffer's first byte, as other libraries take it. The host must not follow the address. */
    void *(*address)(const mr_buffer *buffer);
    /* Makes the device the current one of the calling thread, before a call of another library. */
    mr_status (*enter)(mr_backend *be, mr_err *err);
    /* The link's queue, as other libraries take it. The first call creates it. It lives as long as the backend. */
    mr_status (*queue)(mr_backend *be, void **out, mr_err *err);
    /* A mark behind all work of the link's queue, and whether it is reached. At most MR_LINK_MARKS marks are kept. */
    mr_status (*mark)(mr_backend *be, uint64_t *out, mr_err *err);
    mr_status (*reached)(mr_backend *be, uint64_t mark, bool *out, mr_err *err);
    /* Copies between two buffers of the backend, on the queue of set and get. */
    mr_status (*copy)(mr_backend *be, mr_buffer *dst, size_t dst_offset, const mr_buffer *src, size_t src_offset,
                      size_t bytes, mr_fence *out, mr_err *err);
} mr_backend_link_ops;
enum { MR_LINK_MARKS = 64 };

typedef struct mr_backend_ops {
    void (*destroy)(mr_backend *be);
    void (*describe)(const mr_backend *be, mr_device_info *out);
    /* Whether the backend can run the node, by its op, types and shapes. tensors need not be placed. */
    bool (*supports)(const mr_backend *be, const mr_tensor *tensors, const mr_node *node);

    mr_status (*buffer_create)(mr_backend *be, size_t bytes, mr_buffer **out, mr_err *err);
    /* A read-only buffer over host memory that outlives the buffer. MR_E_UNSUPPORTED unless host_addressable. */
    mr_status (*buffer_wrap)(mr_backend *be, const void *host, size_t bytes, mr_buffer **out, mr_err *err);
    void (*buffer_destroy)(mr_backend *be, mr_buffer *buffer);
    mr_status (*set)(mr_backend *be, mr_buffer *buffer, size_t offset, const void *src, size_t bytes, mr_fence *out,
                     mr_err *err);
    mr_status (*get)(mr_backend *be, const mr_buffer *buffer, size_t offset, void *dst, size_t bytes, mr_fence *out,
                     mr_err *err);

    /* Bytes of a matrix of the file in this backend's layout. MR_E_UNSUPPORTED: the backend cannot multiply matrices of
     * this type or with so many columns. Matrices that need as many bytes as one matrix of all their rows have the
     * layout of that one. On a device that is not host_addressable, panels of MR_PANEL rows lie one behind the other,
     * so that weight_load can load a matrix in parts of whole panels; only the last panel may have fewer rows. */
    mr_status (*weight_bytes)(const mr_backend *be, mr_type type, int32_t columns, int32_t rows, size_t *out,
                              mr_err *err);
    /* Writes a placed WEIGHT tensor in this backend's layout. src: the rows as they lie in the file (see keeps_source).
     * Steps may call this: it allocates nothing. */
    mr_status (*weight_load)(mr_backend *be, const mr_tensor *tensor, const uint8_t *src, mr_fence *out, mr_err *err);

    /* Bytes of the scratch memory that a program needs beside its tensors, which need not be placed. NULL: this
     * backend's programs need none. */
    mr_status (*scratch_bytes)(mr_backend *be, const mr_program_desc *desc, size_t *out, mr_err *err);
    mr_status (*program_create)(mr_backend *be, const mr_program_desc *desc, mr_program **out, mr_err *err);
    void (*program_destroy)(mr_backend *be, mr_program *program);
    /* Starts a run of the program. Allocates nothing (invariant I5). */
    mr_status (*submit)(mr_backend *be, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err);
    /* Waits until the fence is reached. MR_E_TIMEOUT: it was not reached by the deadline. */
    mr_status (*wait)(mr_backend *be, mr_fence fence, int64_t deadline_ns, mr_err *err);

    /* Puts a fence into the queue whose time is kept until MR_KEPT_MARKS further marks are made. */
    mr_status (*mark)(mr_backend *be, mr_fence *out, mr_err *err);
    /* When the mark was reached, in nanoseconds of the backend's own clock. MR_E_TIMEOUT: it is not reached yet.
     * MR_E_INVALID: its time is not kept. */
    mr_status (*fence_ns)(mr_backend *be, mr_fence mark, int64_t *out_ns, mr_err *err);

    /* Prepares host memory, so that set and get copy it fast and while the host works. set and get take any memory;
     * pinned memory is faster. unpin comes before the memory is freed, and after the copies have ended. */
    mr_status (*pin)(mr_backend *be, void *host, size_t bytes, mr_err *err);
    void (*unpin)(mr_backend *be, void *host);

    const mr_backend_link_ops *link; /* NULL: the backend has no memory that other libraries reach */
} mr_backend_ops;

/* A backend's own structure begins with this one. */
struct mr_backend {
    const mr_backend_ops *ops;
};

/* Waits until the backend has done all its work, before memory is freed that the work uses. */
static inline void mr_backend_drain(mr_backend *be) {
    mr_fence fence;
    if (be->ops->mark(be, &fence, NULL) == MR_OK)
        (void)!be->ops->wait(be, fence, INT64_MAX, NULL);
}

static inline void mr_backend_destroy(mr_backend *be) {
    if (be)
        be->ops->destroy(be);
}

#endif
