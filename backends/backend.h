/* backends/backend.h - the interface to a device that stores tensors and runs nodes.
 * Device memory is opaque: it is filled and read through set and get, and weights pass weight_load, which may give them
 * any layout. set, get, weight_load and submit are carried out in the order of the calls, on one queue of the backend;
 * each returns a fence, a number that grows, and may return before its work is done. The caller's memory is in use
 * until the fence is reached. The CPU backend is done when a call returns.
 *
 * A rank may have several backends (mr_backends): a graph is split over them, and tensors are copied where a split
 * reads what another memory holds (engine/graph/graph.h). Backends that are host_addressable share the memory
 * of the host. They exchange work tensors without copies: these tensors lie in buffers of the last backend of the list.
 * A host-addressable backend therefore reads a tensor at buffer->base + offset, whichever backend made the buffer.
 * WEIGHT tensors are the exception: each backend has its own layout for them, and makes their buffers itself.
 * A backend that only multiplies matrices (BLAS) is host_addressable and supports nothing but MATMUL; min_rows leaves
 * few rows to the next backend. With keeps_source it takes no memory for weights. The type of activations that
 * belongs to a type of weights is mr_type_activation, for example A8. The graph first offers a product with activations
 * of this type. If the backend refuses the product, the graph offers it with float32 activations.
 *
 * The calls of a backend, in the order of a stage's life (the graph makes those of programs):
 *
 *     ops->buffer_create(be, bytes, &buffer, err);            // weights, KV blocks, work memory
 *     ops->weight_load(be, &tensor, rows, &fence, err);       // for each matrix
 *     ops->program_create(be, &desc, &program, err);          // once for each row bucket
 *     ops->set(be, buffer, offset, input, n, &fence, err);    // then for each step
 *     ops->submit(be, program, &run, &fence, err);
 *     ops->get(be, buffer, offset, output, n, &fence, err);
 *     ops->wait(be, fence, deadline_ns, err);
 *
 * Owns:    a backend owns its buffers' memory and its threads; buffers and programs must be destroyed before it.
 * Threads: caller serialises all calls on one backend. Two backends are independent.
 * Errors:  any call may return MR_E_NO_MEMORY or, from a device, MR_E_DEVICE, which stays. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_BACKEND_H
#define MR_BACKENDS_BACKEND_H

#include "engine/base/status.h"
#include "engine/tensor/tensor.h"

typedef struct mr_backend mr_backend;
typedef struct mr_program mr_program; /* nodes made ready to run again and again */
typedef uint64_t mr_fence;

typedef struct mr_device_info {
    char name[128];
    size_t memory_bytes; /* that buffers may use at most, 0: not known */
    size_t alignment;    /* of tensors inside buffers */
    /* buffer_wrap works, and tensors in buffers of other host_addressable backends can be used. */
    bool host_addressable;
    /* weight_load notes where src lies instead of copying it: src lives as long as the tensor's buffer. Such a backend
     * gets every matrix that it takes, beside the backend that holds the matrix. */
    bool keeps_source;
} mr_device_info;

enum { MR_MAX_BACKENDS = 4, MR_NO_ROWS = INT32_MAX };
typedef struct mr_rates {
    double products_per_s;     /* multiplications with their additions, in large matrix products; 0: not measured */
    double copied_bytes_per_s; /* between the host's memory and the device's, either way; weight_load as well */
} mr_rates;
/* The backends of a stage in order of preference. The last one runs every node that the others do not; if there are
 * others, it is host_addressable. */
typedef struct mr_backends {
    mr_backend *at[MR_MAX_BACKENDS];
    int32_t n;
    mr_rates rates[MR_MAX_BACKENDS]; /* of at[i] */
    /* Of at[i]: what matrices may take there between steps; 0: no limit. The last backend has none. */
    size_t matrix_bytes[MR_MAX_BACKENDS];
    /* [i][t]: at[i] gets the products by matrices of type t in graphs of at least this row bucket, if it supports the
     * product. MR_NO_ROWS: none of them. The last backend takes all other products. */
    int32_t min_rows[MR_MAX_BACKENDS][MR_TYPE_FILE_COUNT];
} mr_backends;

/* Every implementation's buffers begin with this. */
struct mr_buffer {
    uint8_t *base; /* first byte, where the host may read and write it; NULL in the memory of a device */
    size_t bytes;
    bool wrapped; /* borrowed host memory, read-only */
};

/* One run of a program: how many rows are real, and whom to call meanwhile. Copied by submit. */
typedef struct mr_run {
    int32_t n_rows[MR_ROWS_KINDS]; /* mr_graph_run fills in that of MR_ROWS_SLOTS */
    void (*progress)(void *ctx); /* called by the submitting thread between groups of nodes, or NULL; must not block */
    void *progress_ctx;
} mr_run;

/* The nodes to prepare; borrowed until program_destroy. Nodes are sorted by group. All tensors are placed. */
typedef struct mr_program_desc {
    const mr_tensor *tensors;
    const mr_node *nodes;
    int32_t n_nodes;
} mr_program_desc;

typedef struct mr_backend_ops {
    void (*destroy)(mr_backend *be);
    void (*describe)(const mr_backend *be, mr_device_info *out);
    /* Whether the node runs here, by its op, types and shapes. tensors need not be placed. */
    bool (*supports)(const mr_backend *be, const mr_tensor *tensors, const mr_node *node);

    mr_status (*buffer_create)(mr_backend *be, size_t bytes, mr_buffer **out, mr_err *err);
    /* A read-only buffer over host memory that outlives it; MR_E_UNSUPPORTED unless host_addressable. */
    mr_status (*buffer_wrap)(mr_backend *be, const void *host, size_t bytes, mr_buffer **out, mr_err *err);
    void (*buffer_destroy)(mr_backend *be, mr_buffer *buffer);
    mr_status (*set)(mr_backend *be, mr_buffer *buffer, size_t offset, const void *src, size_t bytes, mr_fence *out,
                     mr_err *err);
    mr_status (*get)(mr_backend *be, const mr_buffer *buffer, size_t offset, void *dst, size_t bytes, mr_fence *out,
                     mr_err *err);

    /* Bytes that a matrix of the file takes in this backend's layout; MR_E_UNSUPPORTED for a type it cannot
     * multiply. */
    mr_status (*weight_bytes)(const mr_backend *be, mr_type type, int32_t columns, int32_t rows, size_t *out,
                              mr_err *err);
    /* Puts a placed WEIGHT tensor into the layout; src: its rows as in the file (see keeps_source). A step may do so:
     * allocates nothing. */
    mr_status (*weight_load)(mr_backend *be, const mr_tensor *tensor, const uint8_t *src, mr_fence *out, mr_err *err);

    mr_status (*program_create)(mr_backend *be, const mr_program_desc *desc, mr_program **out, mr_err *err);
    void (*program_destroy)(mr_backend *be, mr_program *program);
    /* Allocates nothing (invariant I5). */
    mr_status (*submit)(mr_backend *be, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err);
    /* Waits until the fence is reached, or MR_E_TIMEOUT at the deadline. */
    mr_status (*wait)(mr_backend *be, mr_fence fence, int64_t deadline_ns, mr_err *err);
} mr_backend_ops;

/* Every implementation begins with this. */
struct mr_backend {
    const mr_backend_ops *ops;
};

static inline void mr_backend_destroy(mr_backend *be) {
    if (be)
        be->ops->destroy(be);
}

#endif
