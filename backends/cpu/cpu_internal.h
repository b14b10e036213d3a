/* backends/cpu/cpu_internal.h - what the files of the CPU backend share. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_CPU_INTERNAL_H
#define MR_BACKENDS_CPU_CPU_INTERNAL_H

#include "backends/cpu/cpu_choice.h"
#include "backends/cpu/kernels.h"
#include "backends/host_memory.h"
#include "engine/base/pool.h"
#include "engine/base/readahead.h"

enum {
    CPU_ALIGNMENT = 64,         /* of tensors in buffers, and of panels */
    CPU_MAX_EXPERTS = 4096,     /* of a layer: the scores of a row lie on the stack */
    CPU_MAX_ROW_FLOATS = 65536, /* most columns of a row that an op computes and quantises, or rotates, in one pass */
};

typedef struct cpu_backend {
    mr_host_backend host;
    mr_pool *pool;
    mr_isa isa;
    const mr_kernels *kernels;
    int n_threads;
    bool adapts; /* mr_cpu_options.adapts */
    cpu_choice_past choices;
    /* Where threads repack matrices in file layout into panels, and compute pieces of gate and up; thread i at scratch
     * + i * scratch_bytes. cpu_program_create makes it larger if a program needs more. */
    uint8_t *scratch, *scratch_memory; /* scratch is the first aligned address in the allocation scratch_memory */
    size_t scratch_bytes;              /* of each thread; a multiple of 64 */
    mr_readahead *ahead; /* created when a program's matrices in the file do not fit into memory; else NULL */
} cpu_backend;

mr_status cpu_program_create(mr_backend *be, const mr_program_desc *desc, mr_program **out, mr_err *err);
void cpu_program_destroy(mr_backend *be, mr_program *program);
mr_status cpu_submit(mr_backend *be, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err);
bool cpu_supports(const mr_backend *be, const mr_tensor *tensors, const mr_node *node);

/* --- Tasks: a node is cut into independent parts that threads claim ---------------------------------------------- */
typedef struct cpu_cut cpu_cut; /* how attention is cut into tasks; made anew for the rows of each run */
/* A node with its tensors. */
typedef struct cpu_node {
    const mr_node *node;
    const mr_tensor *out; /* NULL for an op that changes state */
    const mr_tensor *in[MR_MAX_INPUTS];
    cpu_cut *cut;    /* of ATTENTION; else NULL */
    int32_t n_tasks; /* in the current run; valid once the node's group has begun */
} cpu_node;

/* Number of rows that are real in this run: of the node's result, or of its first input if it has none. */
static inline int32_t cpu_real_rows(const cpu_node *n, const mr_run *run) {
    const mr_tensor *t = n->out ? n->out : n->in[0];
    return t->row_count == MR_ROWS_FIXED ? t->ne[1] : run->n_rows[t->row_count];
}
/* Number of tasks of the node in this run. */
int32_t cpu_count_tasks(const cpu_backend *be, const cpu_node *n, const mr_run *run);
/* Bytes of scratch that a thread needs to run a task of the node; 0 for most nodes. */
size_t cpu_scratch_bytes(const cpu_node *n);
/* Runs task idx of n_tasks, on the scratch of thread thread_idx. */
void cpu_run_task(const cpu_backend *be, const cpu_node *n, const mr_run *run, int32_t idx, int32_t n_tasks,
                  int thread_idx);

/* --- Products: cpu_ops.c --- */
typedef struct cpu_panels {
    int32_t first, last; /* panels [first, last) */
} cpu_panels;
/* Number of tasks for n_panels panels of w. A task has at least a pair of panels. */
int32_t cpu_count_panel_tasks(const cpu_backend *be, const mr_tensor *w, int64_t n_panels);
/* Multiplies n_rows rows by a range of panels. args->w: panels, or rows in file layout if w is a FILE tensor. */
void cpu_multiply(const cpu_backend *be, const mr_tensor *w, const mr_matmul_args *args, cpu_panels range,
                  int32_t n_rows, int thread_idx);

bool cpu_supports_matmul(const mr_tensor *w, const mr_tensor *a);
/* Bytes of a thread's scratch that cpu_multiply uses. */
size_t cpu_file_scratch_bytes(const mr_tensor *w);

/* x[n] as activations of the type: F32, BF16 or A8. */
void cpu_make_activations(const cpu_backend *be, const float *x, mr_type type, uint8_t *out, int32_t n);

/* --- Products of heads: cpu_heads.c --- */
int32_t cpu_count_head_tasks(const cpu_node *n, int32_t n_rows);
size_t cpu_head_scratch_bytes(const cpu_node *n);
void cpu_run_head_matmul(const cpu_backend *be, const cpu_node *n, int32_t n_rows, int32_t idx, int thread_idx);

/* --- Gate and up in one pass: cpu_gate_up.c --- */
bool cpu_supports_gate_up(const mr_tensor *tensors, const mr_node *node);
size_t cpu_gate_up_scratch_bytes(const cpu_node *n);
void cpu_run_gate_up(const cpu_backend *be, const cpu_node *n, int32_t n_rows, cpu_panels range, int thread_idx);

/* --- Experts: cpu_route.c, cpu_experts.c --- */
void cpu_run_route(const cpu_backend *be, const cpu_node *n, int32_t row);
void cpu_run_expert_rows(const cpu_node *n, const mr_run *run);
/* Number of tasks, from the rows of each expert. Call this when the node's group begins: its lists of rows are
 * ready. */
int32_t cpu_count_expert_tasks(const cpu_backend *be, const cpu_node *n);
void cpu_run_expert_matmul(const cpu_backend *be, const cpu_node *n, int32_t idx, int32_t n_tasks, int thread_idx);
void cpu_run_expert_sum(const cpu_node *n, int32_t row);

/* --- First tokens: cpu_top.c --- */
void cpu_run_top(const cpu_node *n, int32_t row);

/* --- Sparse feed-forward parts: cpu_sparse.c --- */
bool cpu_supports_sparse(const mr_tensor *tensors, const mr_node *n);
size_t cpu_sparse_scratch_bytes(const cpu_node *n);
/* Number of tasks of an ACTIVE, SPARSE_GATE_UP or AXPY node. Call this when the node's group begins: the active neurons
 * are known. */
int32_t cpu_count_sparse_tasks(const cpu_backend *be, const cpu_node *n);
void cpu_run_active(const cpu_node *n, int32_t n_rows, int32_t idx, int32_t n_tasks);
void cpu_run_sparse_gate_up(const cpu_backend *be, const cpu_node *n, int32_t n_rows, int32_t idx, int32_t n_tasks,
                            int thread_idx);
void cpu_run_axpy(const cpu_backend *be, const cpu_node *n, int32_t n_rows, int32_t idx, int32_t n_tasks);

/* Cuts [0, total) into n_parts, and returns where part idx begins. */
static inline int32_t cpu_cut_at(int32_t total, int32_t idx, int32_t n_parts) {
    return (int32_t)((int64_t)total * idx / n_parts);
}

/* --- Attention: cpu_attention.c --- */
/* Sets the cut of the node: one of cuts[*n_cuts] that can be shared, or a new one, which is appended. Call this for the
 * nodes in the order of their groups. */
mr_status cpu_cut_find(const cpu_backend *be, cpu_node *n, cpu_cut **cuts, int32_t *n_cuts, mr_err *err);
void cpu_cut_destroy(cpu_cut *cut);
/* Makes the tasks for the rows of this run. The inputs row_seq and row_position must be written before. Call this
 * before any thread counts tasks. */
void cpu_cut_make(const cpu_backend *be, cpu_cut *cut, const mr_run *run);
int32_t cpu_cut_n_tasks(const cpu_cut *cut);
void cpu_run_attention(const cpu_backend *be, const cpu_node *n, int32_t idx);
/* Writes rows [first, last) of a KV_WRITE node. */
void cpu_run_kv_write(const cpu_backend *be, const cpu_node *n, int32_t first, int32_t last);

/* --- Block tables and KV blocks: cpu_state.c --- */
void cpu_run_table_write(const cpu_node *n, int32_t n_entries);
/* Copies n_copies blocks in one part of the store. Every part is a task. */
void cpu_run_kv_copy(const cpu_node *n, int32_t n_copies, int32_t part);

/* First byte of a placed tensor; NULL for NULL. */
static inline uint8_t *cpu_data(const mr_tensor *t) {
    return t ? t->buffer->base + t->offset : NULL;
}
static inline float *cpu_float_row(const mr_tensor *t, int32_t row) {
    return (float *)(void *)(cpu_data(t) + (size_t)row * t->row_bytes);
}
static inline int32_t *cpu_int_row(const mr_tensor *t, int32_t row) {
    return (int32_t *)(void *)(cpu_data(t) + (size_t)row * t->row_bytes);
}

#endif
