/* backends/cpu/cpu_program.c - prepares programs and runs them on the thread pool, group by group. The number of
 * threads is the one that has been fastest for the program (cpu_choice.h). A step allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_choice.h"
#include "backends/cpu/cpu_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

enum {
    WINDOW_BYTES = 8 << 20, /* most bytes to read ahead; a fast disk reads them in a millisecond */
    WINDOW_PART = 4,        /* at most one part in WINDOW_PART of the free memory is read ahead */
};

/* Nodes [first, last) of a group. */
typedef struct group {
    int32_t first, last;
    int32_t range; /* index into ranges: the first matrix in the file that this group or a later one reads */
} group;

struct mr_program {
    cpu_node *nodes;
    group *groups;
    int32_t n_nodes, n_groups;
    cpu_cut **cuts; /* [n_cuts] of the ATTENTION nodes */
    int32_t n_cuts;
    mr_read_range *ranges; /* [n_ranges] matrices in the file, in the order of nodes */
    int32_t n_ranges;
    const cpu_backend *be;
    cpu_choice choice; /* of the number of threads; used if the backend adapts it */
    const mr_run *run; /* of the current submit */
};

void cpu_program_destroy(mr_backend *be, mr_program *p) {
    (void)be;
    if (!p)
        return;
    for (int32_t i = 0; i < p->n_cuts; i++)
        cpu_cut_destroy(p->cuts[i]);
    if (p->be && p->be->ahead)
        mr_readahead_forget(p->be->ahead, p->ranges);
    mr_free(p->ranges);
    mr_free(p->cuts);
    mr_free(p->nodes);
    mr_free(p->groups);
    mr_free(p);
}

static void fill_nodes(mr_program *p, const mr_program_desc *desc) {
    int32_t n_groups = 0;
    for (int32_t i = 0; i < desc->n_nodes; i++) {
        const mr_node *n = &desc->nodes[i];
        cpu_node *c = &p->nodes[i];
        c->node = n;
        c->out = n->out == MR_NO_TENSOR ? NULL : &desc->tensors[n->out];
        for (int k = 0; k < MR_MAX_INPUTS; k++)
            c->in[k] = n->in[k] == MR_NO_TENSOR ? NULL : &desc->tensors[n->in[k]];
        if (i == 0 || n->group != desc->nodes[i - 1].group)
            p->groups[n_groups++].first = i;
        p->groups[n_groups - 1].last = i + 1;
    }
    p->n_nodes = desc->n_nodes;
    p->n_groups = n_groups;
}

/* Lists the matrices in the file. Creates the thread that reads ahead, if they do not fit into memory. */
static mr_status plan_reading(cpu_backend *be, mr_program *p, mr_err *err) {
    size_t bytes = 0;
    for (int32_t g = 0; g < p->n_groups; g++) {
        p->groups[g].range = p->n_ranges;
        for (int32_t i = p->groups[g].first; i < p->groups[g].last; i++) {
            mr_op op = p->nodes[i].node->op;
            int n_matrices =
                op == MR_OP_GATE_UP ? 2 : op == MR_OP_MATMUL || op == MR_OP_EXPERT_MATMUL || op == MR_OP_HEAD_MATMUL;
            for (int k = 0; k < n_matrices; k++) {
                const mr_tensor *w = p->nodes[i].in[k];
                if (w->storage != MR_STORAGE_FILE)
                    continue;
                bytes += w->bytes;
                if (op != MR_OP_EXPERT_MATMUL) /* the experts that a step will read are not known in advance */
                    p->ranges[p->n_ranges++] = (mr_read_range){cpu_data(w), w->bytes};
            }
        }
    }
    uint64_t available = bytes > 0 && !be->ahead ? mr_mem_available() : 0;
    if (available == 0 || bytes <= available)
        return MR_OK;
    uint64_t window = available / WINDOW_PART;
    return mr_readahead_create((size_t)(window < WINDOW_BYTES ? window : WINDOW_BYTES), &be->ahead, err);
}

/* Makes the scratch large enough for every node of the program. */
static mr_status grow_scratch(cpu_backend *be, const mr_program *p, mr_err *err) {
    size_t bytes = be->scratch_bytes;
    for (int32_t i = 0; i < p->n_nodes; i++) {
        size_t need = mr_round_up(cpu_scratch_bytes(&p->nodes[i]), CPU_ALIGNMENT);
        bytes = need > bytes ? need : bytes;
    }
    if (bytes == be->scratch_bytes)
        return MR_OK;
    mr_free(be->scratch_memory);
    be->scratch_bytes = 0;
    be->scratch_memory = mr_alloc(bytes * (size_t)be->n_threads + CPU_ALIGNMENT);
    if (!be->scratch_memory)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to convert weights in: %zu bytes for each of %d threads",
                          bytes, be->n_threads);
    be->scratch = (uint8_t *)mr_round_up((uintptr_t)be->scratch_memory, CPU_ALIGNMENT);
    be->scratch_bytes = bytes;
    return MR_OK;
}

mr_status cpu_program_create(mr_backend *be, const mr_program_desc *desc, mr_program **out, mr_err *err) {
    mr_program *p = mr_alloc(sizeof *p);
    size_t n = (size_t)desc->n_nodes;
    if (p) {
        p->be = (const cpu_backend *)be;
        cpu_choice_init(&p->choice, &((cpu_backend *)be)->choices);
        p->nodes = mr_alloc_array(n, sizeof *p->nodes);
        p->groups = mr_alloc_array(n + 1, sizeof *p->groups);
        p->cuts = mr_alloc_array(n + 1, sizeof(cpu_cut *));
        p->ranges = mr_alloc_array(2 * n, sizeof *p->ranges);
    }
    if (!p || !p->nodes || !p->groups || !p->cuts || !p->ranges) {
        cpu_program_destroy(be, p);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a program of %d nodes", desc->n_nodes);
    }
    fill_nodes(p, desc);
    mr_status status = grow_scratch((cpu_backend *)be, p, err);
    if (status == MR_OK)
        status = plan_reading((cpu_backend *)be, p, err);
    for (int32_t i = 0; i < p->n_nodes && status == MR_OK; i++)
        if (p->nodes[i].node->op == MR_OP_ATTENTION)
            status = cpu_cut_find(p->be, &p->nodes[i], p->cuts, &p->n_cuts, err);
    if (status == MR_OK)
        *out = p;
    else
        cpu_program_destroy(be, p);
    return status;
}

/* Called when a group begins. The first matrix in the file of this group or a later one will be read next. */
static int32_t count_tasks(void *ctx, int32_t idx) {
    mr_program *p = ctx;
    const group *g = &p->groups[idx];
    int32_t n = 0;
    if (mr_run_is_stopped(p->run))
        return 0;
    if (p->be->ahead && p->n_ranges > 0)
        mr_readahead_post(p->be->ahead, p->ranges, p->n_ranges, g->range % p->n_ranges);
    for (int32_t i = g->first; i < g->last; i++) {
        p->nodes[i].n_tasks = cpu_count_tasks(p->be, &p->nodes[i], p->run);
        n += p->nodes[i].n_tasks;
    }
    return n;
}

static void run_task(void *ctx, int32_t idx, int32_t task, int thread_idx) {
    const mr_program *p = ctx;
    const cpu_node *n = &p->nodes[p->groups[idx].first];
    for (; task >= n->n_tasks; n++)
        task -= n->n_tasks;
    cpu_run_task(p->be, n, p->run, task, n->n_tasks, thread_idx);
}

static void call_progress(void *ctx) {
    const mr_run *run = ((const mr_program *)ctx)->run;
    run->progress(run->progress_ctx);
}

mr_status cpu_submit(mr_backend *be, mr_program *p, const mr_run *run, mr_fence *out, mr_err *err) {
    for (int32_t i = 0; i < p->n_cuts; i++)
        cpu_cut_make(p->be, p->cuts[i], run);
    p->run = run;
    int32_t n_threads = p->be->adapts ? cpu_choice_next(&p->choice) : 0;
    int64_t start_ns = mr_clock_now_ns();
    mr_pool_run(p->be->pool, &(mr_pool_job){.n_groups = p->n_groups,
                                            .n_threads = n_threads,
                                            .count = count_tasks,
                                            .run = run_task,
                                            .progress = run->progress ? call_progress : NULL,
                                            .ctx = p});
    p->run = NULL;
    if (mr_run_is_stopped(run))
        return mr_err_set(err, MR_E_CANCELLED, "the run was stopped");
    if (p->be->adapts)
        cpu_choice_note(&p->choice, mr_clock_now_ns() - start_ns);
    *out = mr_host_fence(be);
    return MR_OK;
}
