/* backends/cuda/cuda_internal.h - what the files of the CUDA backend share.
 * A program becomes one graph of the driver. The nodes of the program are taken in their order; the file of an op's
 * family turns a node into launches of kernels (a cuda_op):
 *
 *     static mr_status plan_add(cuda_builder *b, const cuda_node *n, mr_err *err) {
 *         cuda_add_args args = {.step = cuda_step_of(b), .rows = cuda_rows_of(n->out), .a = cuda_data(n->in[0]), …};
 *         return cuda_launch(b, &(cuda_launch_desc){"cuda_add", {n_rows, n_blocks}, CUDA_ELEMENT_THREADS, &args,
 *                                                   sizeof args}, err);
 *     }
 *
 * The launches of one node run one after the other. A node runs when the earlier nodes have ended whose results it
 * reads, or whose memory it writes, or with which it shares memory. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_INTERNAL_H
#define MR_BACKENDS_CUDA_CUDA_INTERNAL_H

#include "backends/backend.h"
#include "backends/cuda/cuda_driver.h"
#include "backends/cuda/kernels/cuda_step.h"

enum {
    CUDA_ALIGNMENT = 256, /* of tensors in buffers */
    CUDA_MAX_ARGS = 512,  /* most bytes of a kernel's argument */
};

typedef struct cuda_backend cuda_backend; /* the backend */
typedef struct cuda_builder cuda_builder; /* of one program */

/* A buffer in the device's memory. */
typedef struct cuda_buffer {
    mr_buffer base; /* base.base is NULL */
    cuda_address address;
} cuda_buffer;

/* A node with its tensors; in is NULL where absent. */
typedef struct cuda_node {
    const mr_node *node;
    const mr_tensor *out; /* NULL for an op that changes state */
    const mr_tensor *in[MR_MAX_INPUTS];
} cuda_node;

/* First byte of a placed tensor, as kernels take it; NULL for NULL. The host must not follow the pointer. A tensor that
 * is not placed has an address that stands for any: the program's scratch memory is being counted. */
static inline uint8_t *cuda_data(const mr_tensor *t) {
    const cuda_buffer *b = t ? (const cuda_buffer *)(const void *)t->buffer : NULL;
    return b ? (uint8_t *)(uintptr_t)(b->address + t->offset) : t ? (uint8_t *)(uintptr_t)CUDA_ALIGNMENT : NULL;
}

/* The rows of a tensor that a kernel computes. */
static inline cuda_rows cuda_rows_of(const mr_tensor *t) {
    return (cuda_rows){.kind = (int32_t)t->row_count, .n_fixed = t->ne[1]};
}

typedef struct cuda_launch_desc {
    const char *kernel;    /* its name in the module */
    uint32_t grid[2];      /* blocks: x and y */
    uint32_t n_threads;    /* of a block */
    const void *args;      /* copied */
    size_t args_bytes;     /* at most CUDA_MAX_ARGS */
    uint32_t shared_bytes; /* dynamic shared memory of a block (gpu_dynamic_shared) */
} cuda_launch_desc;
/* Adds a launch to the node that is planned. */
MR_MUST_USE mr_status cuda_launch(cuda_builder *b, const cuda_launch_desc *desc, mr_err *err);
/* The step's structure in the device's memory, for arguments of kernels. */
const cuda_step *cuda_step_of(const cuda_builder *b);
/* Multiprocessors of the device. */
int32_t cuda_processors(const cuda_builder *b);
/* Memory of the device for the launches of this node, at least bytes, aligned to CUDA_ALIGNMENT. Its content is lost
 * when the node ends. */
MR_MUST_USE mr_status cuda_scratch(cuda_builder *b, size_t bytes, void **out, mr_err *err);
/* The same for memory that all nodes of the program with an equal key share. They run one after the other, in the order
 * of the program. The memory keeps its content from the first of them to the last. key: without pointers, because
 * tensors may not be placed yet. *out_is_first: this node is the first of them. A node has at most CUDA_MAX_SHARED such
 * memories. */
enum { CUDA_MAX_SHARED = 2 };
typedef struct cuda_shared_key {
    int32_t words[10]; /* the first one says which kind of memory it is */
} cuda_shared_key;
MR_MUST_USE mr_status cuda_shared(cuda_builder *b, const cuda_shared_key *key, size_t bytes, void **out,
                                  bool *out_is_first, mr_err *err);

/* An op. supports: whether the kernels can run the node, as mr_backend_ops.supports. It checks types and storage of all
 * tensors. shared_bytes: the dynamic shared memory of its launches, for a node that is supported; NULL: none. A device
 * that has less for a block does not run the node. */
typedef struct cuda_op {
    bool (*supports)(const mr_tensor *tensors, const mr_node *node);
    mr_status (*plan)(cuda_builder *b, const cuda_node *n, mr_err *err);
    size_t (*shared_bytes)(const mr_tensor *tensors, const mr_node *node);
} cuda_op;
/* Each file of a family defines its ops. Those that exist are listed in cuda_ops.c. */
extern const cuda_op cuda_op_embed, cuda_op_rope_table, cuda_op_rms_norm, cuda_op_quantize, cuda_op_matmul,
    cuda_op_rope, cuda_op_kv_write, cuda_op_attention, cuda_op_glu, cuda_op_gate_up, cuda_op_add, cuda_op_add_gated,
    cuda_op_scale, cuda_op_soft_cap, cuda_op_take_rows, cuda_op_route, cuda_op_expert_rows, cuda_op_expert_matmul,
    cuda_op_head_matmul, cuda_op_expert_sum, cuda_op_table_write, cuda_op_kv_copy, cuda_op_top, cuda_op_relu,
    cuda_op_active, cuda_op_sparse_gate_up, cuda_op_axpy;

/* --- Matrices ------------------------------------------------------------------------------------------------- */
/* Bytes of a matrix of the file in the layout of the kernels; 0: they cannot multiply it. */
size_t cuda_weight_bytes(mr_type type, int32_t columns, int32_t rows);
typedef struct cuda_repack {
    mr_type type;
    int32_t columns, rows;
    const uint8_t *src; /* rows as they lie in the file, in the device's memory */
    uint8_t *dst;       /* in the device's memory */
} cuda_repack;
/* The launch that repacks a matrix. args: CUDA_MAX_ARGS bytes, which desc->args will point to. */
void cuda_weight_repack(const cuda_repack *repack, void *args, cuda_launch_desc *desc);

#endif
