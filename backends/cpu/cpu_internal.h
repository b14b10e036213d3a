/* backends/cpu/cpu_internal.h - what the files of the CPU backend share. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_CPU_INTERNAL_H
#define MR_BACKENDS_CPU_CPU_INTERNAL_H

#include "backends/backend.h"
#include "backends/cpu/kernels.h"
#include "engine/base/pool.h"

enum { CPU_ALIGNMENT = 64 }; /* of tensors in buffers, and of panels */

typedef struct cpu_backend {
    mr_backend base;
    mr_pool *pool;
    mr_isa isa;
    const mr_kernels *kernels;
    int n_threads;
    /* Where a thread makes the panels of a matrix in file layout: for thread i at scratch + i * scratch_bytes. Grown by
     * program_create. */
    uint8_t *scratch, *scratch_memory; /* scratch is aligned inside it */
    size_t scratch_bytes;              /* of each thread, a multiple of 64 */
} cpu_backend;

mr_status cpu_program_create(mr_backend *be, const mr_program_desc *desc, mr_program **out, mr_err *err);
void cpu_program_destroy(mr_backend *be, mr_program *program);
mr_status cpu_submit(mr_backend *be, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err);
bool cpu_supports(const mr_backend *be, const mr_tensor *tensors, const mr_node *node);

/* --- Tasks: a node is cut into independent parts that threads claim ------------------------------------------------ */
/* What a node computes in one run. */
typedef struct cpu_node {
    const mr_node *node;
    const mr_tensor *out; /* NULL for KV_WRITE */
    const mr_tensor *in[MR_MAX_INPUTS];
} cpu_node;

/* Number of tasks of the node for these row counts; the same on every thread. */
int32_t cpu_count_tasks(const cpu_backend *be, const cpu_node *n, const mr_run *run);
/* Bytes that a thread needs beside it to run a task of the node; 0 for most. */
size_t cpu_scratch_bytes(const cpu_node *n);
/* Runs task idx of that number. thread_idx: whose scratch it may use. */
void cpu_run_task(const cpu_backend *be, const cpu_node *n, const mr_run *run, int32_t idx, int32_t n_tasks,
                  int thread_idx);

/* First byte of a placed tensor; NULL for NULL. */
static inline uint8_t *cpu_data(const mr_tensor *t) {
    return t ? t->buffer->base + t->offset : NULL;
}

#endif
