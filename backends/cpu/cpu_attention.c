/* backends/cpu/cpu_attention.c - cuts attention into tasks of even work, by rows, heads and positions.
 * A run is a series of rows of one sequence. A unit is the query heads of one KV head, or an even part of them where
 * they are more than a kernel takes at a time. A task is a run and some units. If the work of a run and one unit is
 * more than a task's share of all work, the run becomes a chain: each task computes one partition of the positions, and
 * the tasks merge their states in ascending order (mr_attention_chain). No array here grows with the context: there are
 * at most TASKS_PER_THREAD chains for each thread. */
// SPDX-License-Identifier: Apache-2.0
#include <stdatomic.h>
#include <string.h>

#include "backends/cpu/cpu_internal.h"
#include "engine/base/mem.h"

enum { TASKS_PER_THREAD = 4 };

/* Rows [row_first, row_last) of one sequence. Their positions lie in partitions [part_first, part_last). */
typedef struct attention_run {
    int32_t row_first, row_last, part_first, part_last;
    int32_t n_positions;     /* positions that at least one of the rows sees */
    int32_t n_units;         /* of a task; 1 where a KV head has several */
    int32_t n_chains;        /* number of tasks for all units; each is a chain if the run is cut into partitions */
    int32_t chain, task_idx; /* indices of the first chain (-1: no chains) and of the first task */
} attention_run;

struct cpu_cut {
    const cpu_node *last_user;   /* the latest node that uses the cut; nodes of one group do not share a cut */
    attention_run *found, *runs; /* the same runs: found by rows, runs in the order of the tasks */
    mr_attention_chain *chains;
    void *chains_memory; /* the allocation; chains is its first aligned address */
    int32_t n_runs, n_tasks;
};

static mr_attention_args attention_args(const cpu_node *n) {
    const mr_tensor *q = n->in[0], *table = n->in[5];
    return (mr_attention_args){
        .q = (const float *)cpu_data(q),
        .q_row_bytes = q->row_bytes,
        .k_store = cpu_data(n->in[1]),
        .v_store = cpu_data(n->in[2]),
        .k_block_bytes = n->in[1]->row_bytes,
        .v_block_bytes = n->in[2]->row_bytes,
        .kv_type = n->in[1]->type,
        .row_seq = (const int32_t *)cpu_data(n->in[3]),
        .row_position = (const int32_t *)cpu_data(n->in[4]),
        .block_table = (const int32_t *)cpu_data(table),
        .table_stride = (int32_t)(table->row_bytes / sizeof(int32_t)),
        .n_heads = n->node->params.attention.n_heads,
        .n_kv_heads = n->node->params.attention.n_kv_heads,
        .k_dim = n->node->params.attention.k_dim,
        .v_dim = n->node->params.attention.v_dim,
        .scale = n->node->params.attention.scale,
        .soft_cap = n->node->params.attention.soft_cap,
        .temperature = n->node->params.attention.temperature,
        .window = n->node->params.attention.window,
        .sinks = (const float *)cpu_data(n->in[6]),
        .out = (float *)cpu_data(n->out),
        .out_row_bytes = n->out->row_bytes,
    };
}

/* --- Cutting ----------------------------------------------------------------------------------------------------- */

/* Whether the same cut fits both nodes: they have the same rows, positions and attention parameters. */
static bool is_same_cut(const cpu_node *a, const cpu_node *b) {
    return a->in[3] == b->in[3] && a->in[4] == b->in[4] && a->out->row_count == b->out->row_count &&
           memcmp(&a->node->params.attention, &b->node->params.attention, sizeof a->node->params.attention) == 0;
}

mr_status cpu_cut_find(const cpu_backend *be, cpu_node *n, cpu_cut **cuts, int32_t *n_cuts, mr_err *err) {
    for (int32_t i = 0; i < *n_cuts; i++)
        if (is_same_cut(cuts[i]->last_user, n) && cuts[i]->last_user->node->group != n->node->group) {
            n->cut = cuts[i];
            cuts[i]->last_user = n;
            return MR_OK;
        }
    size_t max_rows = (size_t)n->out->ne[1], max_chains = (size_t)be->n_threads * TASKS_PER_THREAD;
    cpu_cut *c = mr_alloc(sizeof *c);
    if (!c)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to cut attention");
    cuts[(*n_cuts)++] = c;
    c->last_user = n;
    c->found = mr_alloc_array(max_rows, sizeof *c->found);
    c->runs = mr_alloc_array(max_rows, sizeof *c->runs);
    c->chains_memory = mr_alloc_array(max_chains + 1, sizeof *c->chains);
    if (!c->found || !c->runs || !c->chains_memory)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to cut attention of %zu rows", max_rows);
    c->chains = (mr_attention_chain *)mr_round_up((uintptr_t)c->chains_memory, _Alignof(mr_attention_chain));
    n->cut = c;
    return MR_OK;
}

void cpu_cut_destroy(cpu_cut *c) {
    if (!c)
        return;
    mr_free(c->found);
    mr_free(c->runs);
    mr_free(c->chains_memory);
    mr_free(c);
}

/* Query heads of a unit. The last unit of a KV head may have fewer. */
static int32_t unit_heads(const mr_attention_args *a) {
    int32_t group = a->n_heads / a->n_kv_heads, most = mr_attention_most(a->k_dim, a->v_dim),
            n = (group + most - 1) / most;
    return (group + n - 1) / n;
}

/* Units of each KV head. */
static int32_t units_each(const mr_attention_args *a) {
    int32_t group = a->n_heads / a->n_kv_heads, n = unit_heads(a);
    return (group + n - 1) / n;
}

/* Finds the runs, each of at most max_rows rows. Returns all work: positions times units, summed over the runs. */
static int64_t find_runs(cpu_cut *c, const mr_attention_args *a, int32_t n_rows, int32_t max_rows) {
    int64_t work = 0, n_units = (int64_t)a->n_kv_heads * units_each(a);
    c->n_runs = 0;
    for (int32_t row = 0, end; row < n_rows; row = end) {
        for (end = row + 1; end < n_rows && end - row < max_rows && a->row_seq[end] == a->row_seq[row] &&
                            a->row_position[end] >= a->row_position[end - 1];)
            end++;
        int32_t first = mr_attention_first(a, row), last = a->row_position[end - 1] + 1;
        c->found[c->n_runs++] = (attention_run){.row_first = row,
                                                .row_last = end,
                                                .part_first = first / MR_ATTENTION_PARTITION,
                                                .part_last = (last - 1) / MR_ATTENTION_PARTITION + 1,
                                                .n_positions = last - first,
                                                .chain = -1};
        work += (last - first) * n_units;
    }
    return work;
}

/* Adds the tasks of the run. share: the work that one task should have. */
static void add_tasks(cpu_cut *c, attention_run *r, const mr_attention_args *a, int64_t share, int32_t *n_chains) {
    int32_t most = mr_attention_most(a->k_dim, a->v_dim) / (unit_heads(a) * (r->row_last - r->row_first));
    int32_t n_parts = r->part_last - r->part_first, length = r->n_positions, n_units = a->n_kv_heads * units_each(a);
    bool is_chain = length > share && n_parts > 1;
    if (is_chain)
        length = mr_min_i32(length, MR_ATTENTION_PARTITION);
    r->n_units = mr_min_i32(most, n_units);
    if (share / length < r->n_units)
        r->n_units = (int32_t)(share / length);
    r->n_units = r->n_units < 1 ? 1 : r->n_units;
    r->n_chains = (n_units + r->n_units - 1) / r->n_units;
    r->task_idx = c->n_tasks;
    c->n_tasks += r->n_chains * (is_chain ? n_parts : 1);
    if (!is_chain)
        return;
    r->chain = *n_chains;
    for (int32_t i = 0; i < r->n_chains; i++) {
        mr_attention_chain *chain = &c->chains[(*n_chains)++];
        chain->first = r->part_first;
        chain->last = r->part_last;
        atomic_store_explicit(&chain->next, r->part_first, memory_order_relaxed);
    }
}

void cpu_cut_make(const cpu_backend *be, cpu_cut *c, const mr_run *run) {
    mr_attention_args a = attention_args(c->last_user);
    int32_t max_rows = mr_attention_most(a.k_dim, a.v_dim) / unit_heads(&a), n = 0, n_chains = 0;
    int64_t work = find_runs(c, &a, cpu_real_rows(c->last_user, run), max_rows);
    int64_t share = be->n_threads > 1 ? work / (be->n_threads * TASKS_PER_THREAD) : work;
    c->n_tasks = 0;
    /* Runs longer than a share come first. Within both kinds, later runs come first: their rows see more positions. */
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = c->n_runs - 1; i >= 0; i--) {
            if ((c->found[i].n_positions <= share) != pass)
                continue;
            c->runs[n] = c->found[i];
            add_tasks(c, &c->runs[n++], &a, share, &n_chains);
        }
    MR_ASSERT(n_chains <= be->n_threads * TASKS_PER_THREAD);
}

int32_t cpu_cut_n_tasks(const cpu_cut *c) {
    return c->n_tasks;
}

/* --- Running ----------------------------------------------------------------------------------------------------- */

/* The run that task idx belongs to. */
static const attention_run *run_of(const cpu_cut *c, int32_t idx) {
    int32_t low = 0, high = c->n_runs;
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (c->runs[middle].task_idx <= idx)
            low = middle;
        else
            high = middle;
    }
    return &c->runs[low];
}

/* The first query head of a unit. */
static int32_t head_of_unit(const mr_attention_args *a, int32_t unit) {
    int32_t each = units_each(a), head = unit / each * (a->n_heads / a->n_kv_heads);
    return head + unit % each * unit_heads(a);
}

void cpu_run_attention(const cpu_backend *be, const cpu_node *n, int32_t idx) {
    mr_attention_args args = attention_args(n);
    const attention_run *r = run_of(n->cut, idx);
    int32_t task = idx - r->task_idx, beside = task % r->n_chains, unit = beside * r->n_units;
    int32_t n_units = args.n_kv_heads * units_each(&args);
    mr_attention_part part = {
        .row_first = r->row_first,
        .row_last = r->row_last,
        .head_first = head_of_unit(&args, unit),
        .head_last = head_of_unit(&args, mr_min_i32(unit + r->n_units, n_units)),
        .chain = r->chain < 0 ? NULL : &n->cut->chains[r->chain + beside],
        .partition = r->part_first + task / r->n_chains,
    };
    be->kernels->attention(&args, &part);
}

void cpu_run_kv_write(const cpu_backend *be, const cpu_node *n, int32_t first, int32_t last) {
    const mr_tensor *table = n->in[5];
    const mr_op_params *params = &n->node->params;
    float turned[CPU_MAX_ROW_FLOATS];
    mr_kv_write_args args = {
        .k = (const float *)cpu_data(n->in[0]),
        .v = (const float *)cpu_data(n->in[1]),
        .k_row_bytes = n->in[0]->row_bytes,
        .v_row_bytes = n->in[1]->row_bytes,
        .slots = (const int32_t *)cpu_data(n->in[2]),
        .k_store = cpu_data(n->in[3]),
        .v_store = cpu_data(n->in[4]),
        .k_block_bytes = n->in[3]->row_bytes,
        .v_block_bytes = n->in[4]->row_bytes,
        .kv_type = n->in[3]->type,
        .n_kv_heads = params->attention.n_kv_heads,
        .k_dim = params->attention.k_dim,
        .v_dim = params->attention.v_dim,
    };
    if (!table) {
        be->kernels->kv_write(&args, first, last);
        return;
    }
    args.k = turned;
    args.k_row_bytes = 0;
    for (int32_t row = first; row < last; row++) {
        memcpy(turned, cpu_data(n->in[0]) + (size_t)row * n->in[0]->row_bytes,
               (size_t)n->in[0]->ne[0] * sizeof *turned);
        be->kernels->rope(turned + params->attention.rope_first, args.n_kv_heads, args.k_dim, params->attention.n_rot,
                          params->attention.pairs, (const float *)(cpu_data(table) + (size_t)row * table->row_bytes));
        be->kernels->kv_write(&args, row, row + 1);
    }
}
