/* engine/graph/memory.c - gives work tensors their offsets in the work buffers, from their lifetimes. Nothing is
 * allocated yet: the caller learns the size of the buffers from the result.
 * The lifetime of a tensor is the range of groups that write or read it. A node may overwrite an input that no later
 * node reads. A tensor that is copied between memories lives until the copy is certainly done: see note_copies.
 * The scratch memory of a backend's programs lies behind its work tensors.
 * The i32 inputs are placed together, as the record, at offset 0 of each memory that holds any of them.
 * Each memory is planned by itself, the largest tensor first. A tensor gets the lowest offset at which it overlaps no
 * placed tensor of an overlapping lifetime
 * (greedy by size: Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020). */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/graph/debug.h"
#include "engine/graph/graph_internal.h"

typedef struct life {
    int32_t tensor;
    int32_t first, last;    /* groups, inclusive */
    int32_t root;           /* the tensor whose memory this tensor uses; itself if the memory is its own */
    int32_t n_readers_last; /* number of readers in group last */
    bool is_record;         /* root of all inputs of the record in its memory */
    size_t bytes, offset;
    size_t within; /* offset of the tensor in the memory of its root */
} life;

static int32_t last_group(const mr_graph *g) {
    return g->n_nodes ? g->nodes[g->n_nodes - 1].group : 0;
}

static void note_reader(life *l, int32_t group) {
    if (group < l->last)
        return;
    l->n_readers_last = l->last == group ? l->n_readers_last + 1 : 1;
    l->last = group;
}

/* The last group of the split that computes the copied tensor. The copy may start behind this group, so from this group
 * on no other tensor may use the memory of the copy. */
static int32_t made_in(const mr_graph *g, const graph_copy *c) {
    return c->after == GRAPH_BEFORE_ALL ? 0 : g->splits[c->after].last_group;
}

/* Extends the lifetime of copied tensors. A copy from a device runs in the order of the device's queue, right behind
 * the split that computed the tensor. A copy from the host's memory may read until the host computes again after the
 * split that needs the copy, because mr_graph_run waits for the copy only then. */
static void note_copies(const mr_graph *g, life *lives) {
    for (int32_t i = 0; i < g->n_copies; i++) {
        const graph_copy *c = &g->copies[i];
        int32_t s = c->before;
        if (c->source)
            continue;
        while (s + 1 < g->n_splits && !g->is_host[g->splits[s + 1].backend])
            s++;
        note_reader(&lives[c->src], c->to_host ? made_in(g, c) : g->splits[s].last_group);
    }
}

static void find_lifetimes(const mr_graph *g, life *lives) {
    for (int32_t t = 0; t < g->n_tensors; t++) {
        bool is_input = g->tensors[t].storage == MR_STORAGE_INPUT;
        lives[t] = (life){.tensor = t, .first = is_input ? 0 : -1, .last = is_input ? 0 : -1, .root = t};
        lives[t].bytes = g->tensors[t].bytes;
    }
    for (int32_t c = 0; c < g->n_copies; c++)
        lives[g->copies[c].dst].first = lives[g->copies[c].dst].last = made_in(g, &g->copies[c]);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const mr_node *n = &g->nodes[i];
        if (n->out != MR_NO_TENSOR && lives[n->out].first < 0)
            lives[n->out].first = lives[n->out].last = n->group;
        for (int k = 0; k < MR_MAX_INPUTS; k++)
            if (n->in[k] != MR_NO_TENSOR)
                note_reader(&lives[n->in[k]], n->group);
    }
    note_copies(g, lives);
    for (int32_t t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].storage == MR_STORAGE_OUTPUT)
            lives[t].last = last_group(g);
}

/* The input that a node may overwrite with its result, because the node reads each element before it writes the same
 * element of the result. MR_NO_TENSOR if there is none. */
static int32_t overwritable(const mr_node *n) {
    switch (n->op) {
    case MR_OP_MATMUL:
        return n->in[3];
    case MR_OP_EXPERT_SUM:
        return n->in[2];
    case MR_OP_ROPE:
    case MR_OP_ADD:
    case MR_OP_ADD_GATED:
    case MR_OP_SCALE:
    case MR_OP_RELU:
    case MR_OP_SOFT_CAP:
    case MR_OP_GLU:
    case MR_OP_RMS_NORM:
        return n->in[0];
    default:
        return MR_NO_TENSOR;
    }
}

static void share_in_place(const mr_graph *g, life *lives) {
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const mr_node *n = &g->nodes[i];
        int32_t in = overwritable(n);
        if (in == MR_NO_TENSOR || n->out == MR_NO_TENSOR)
            continue;
        const mr_tensor *a = &g->tensors[in], *b = &g->tensors[n->out];
        bool dies_here = lives[in].last == n->group && lives[in].n_readers_last == 1;
        bool may = a->storage == MR_STORAGE_WORK || a->storage == MR_STORAGE_INPUT;
        if (!dies_here || !may || a->type != b->type || a->bytes != b->bytes || lives[n->out].first != n->group)
            continue;
        life *root = &lives[lives[in].root];
        lives[n->out].root = root->tensor;
        if (lives[n->out].last > root->last)
            root->last = lives[n->out].last;
    }
}

/* Gives each i32 input its place in the record. Returns the size of the record. */
static size_t lay_out_record(const mr_graph *g, life *lives) {
    size_t bytes = 0, alignment = 1;
    for (int32_t b = 0; b < g->backends.n; b++) {
        mr_device_info device;
        g->backends.at[b]->ops->describe(g->backends.at[b], &device);
        alignment = device.alignment > alignment ? device.alignment : alignment;
    }
    for (int32_t t = 0; t < g->n_built; t++) {
        if (!graph_in_record(g, t))
            continue;
        for (int32_t i = t; i != MR_NO_TENSOR; i = g->links[i].also)
            lives[i].within = bytes;
        bytes += mr_round_up(g->tensors[t].bytes, alignment);
    }
    return bytes;
}

/* Puts the inputs of the record in this memory into the memory of the first one. */
static void join_record(mr_graph *g, life *lives, int32_t memory, size_t record_bytes) {
    life *record = NULL;
    for (int32_t t = 0; t < g->n_tensors; t++) {
        if (!graph_in_record(g, t) || graph_home(g, t) != memory)
            continue;
        if (!record)
            record = &lives[t];
        lives[t].root = record->tensor;
        lives[t].bytes = 0;
        record->last = lives[t].last > record->last ? lives[t].last : record->last;
    }
    g->has_record[memory] = record != NULL;
    if (!record)
        return;
    record->is_record = true;
    record->bytes = record_bytes;
}

static int by_size(const void *a, const void *b) {
    const life *x = *(const life *const *)a, *y = *(const life *const *)b;
    if (x->is_record || y->is_record)
        return x->is_record ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->tensor < y->tensor ? -1 : 1;
}

/* The lowest offset at which l overlaps none of placed[n] that live at the same time. placed is sorted by offset. */
static size_t lowest_gap(const life *l, life *const *placed, int32_t n) {
    size_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        const life *p = placed[i];
        if (p->last < l->first || p->first > l->last)
            continue;
        if (at + l->bytes <= p->offset)
            break;
        if (p->offset + p->bytes > at)
            at = p->offset + p->bytes;
    }
    return at;
}

static void insert_by_offset(life **placed, int32_t n, life *l) {
    int32_t i = n;
    for (; i > 0 && placed[i - 1]->offset > l->offset; i--)
        placed[i] = placed[i - 1];
    placed[i] = l;
}

typedef struct plan {
    const mr_graph *g;
    life *lives;            /* [n_tensors] */
    life **order, **placed; /* [n_tensors] scratch */
} plan;

/* Places the tensors of one memory and returns the size of its work buffer. *unshared grows by the tensors' sizes. */
static size_t plan_one(const plan *p, int32_t memory, size_t *unshared) {
    mr_device_info device;
    mr_backend *owner = p->g->backends.at[memory];
    owner->ops->describe(owner, &device);
    int32_t n = 0;
    size_t total = 0;
    for (int32_t t = 0; t < p->g->n_tensors; t++) {
        life *l = &p->lives[t];
        if (!graph_is_work(p->g, t) || l->first < 0 || graph_home(p->g, t) != memory)
            continue;
        l->bytes = mr_round_up(l->bytes, device.alignment);
        *unshared += l->bytes;
        if (l->root == t)
            p->order[n++] = l;
    }
    qsort(p->order, (size_t)n, sizeof *p->order, by_size);
    for (int32_t i = 0; i < n; i++) {
        life *l = p->order[i];
        l->offset = lowest_gap(l, p->placed, i);
        insert_by_offset(p->placed, i, l);
        total = l->offset + l->bytes > total ? l->offset + l->bytes : total;
    }
    return total;
}

/* Keeps the lifetimes for printing. */
static mr_status keep_ranges(mr_graph *g, const life *lives, mr_err *err) {
    g->ranges = mr_alloc_array((size_t)g->n_tensors + 1, sizeof *g->ranges);
    if (!g->ranges)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to print the plan of %d tensors", g->n_tensors);
    for (int32_t t = 0; t < g->n_tensors; t++)
        g->ranges[t] = (graph_range){lives[t].first, lives[t].last};
    return MR_OK;
}

/* Puts the scratch memory of each backend's programs behind its work tensors. They share it: their runs stand one
 * behind the other in the queue of the backend. */
static mr_status add_scratch(mr_graph *g, mr_graph_stats *stats, mr_err *err) {
    size_t most[MR_MAX_BACKENDS] = {0};
    for (int32_t s = 0; s < g->n_splits; s++) {
        const graph_split *split = &g->splits[s];
        mr_backend *be = g->backends.at[split->backend];
        const mr_program_desc desc = graph_program(g, split);
        size_t bytes = 0;
        mr_status status = be->ops->scratch_bytes ? be->ops->scratch_bytes(be, &desc, &bytes, err) : MR_OK;
        if (status != MR_OK)
            return status;
        most[split->backend] = bytes > most[split->backend] ? bytes : most[split->backend];
    }
    for (int32_t b = 0; b < g->backends.n; b++) {
        mr_device_info device;
        size_t *work = &stats->work_bytes[g->memory[b]];
        g->backends.at[b]->ops->describe(g->backends.at[b], &device);
        g->scratch_at[b] = *work;
        if (most[b] == 0)
            continue;
        g->scratch_at[b] = mr_round_up(*work, device.alignment);
        if (!mr_add_size(g->scratch_at[b], most[b], work))
            return mr_err_set(err, MR_E_TOO_LONG, "scratch memory of %zu bytes", most[b]);
    }
    return MR_OK;
}

mr_status graph_plan_memory(mr_graph *g, mr_graph_stats *stats, mr_err *err) {
    size_t n = (size_t)g->n_tensors + 1;
    plan p = {.g = g};
    p.lives = mr_alloc_array(n, sizeof *p.lives);
    p.order = mr_alloc_array(n, sizeof *p.order);
    p.placed = mr_alloc_array(n, sizeof *p.placed);
    mr_status status = MR_OK;
    if (!p.lives || !p.order || !p.placed) {
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory to plan %d tensors", g->n_tensors);
        goto out;
    }
    find_lifetimes(g, p.lives);
    share_in_place(g, p.lives);
    stats->record_bytes = lay_out_record(g, p.lives);
    stats->unshared_bytes = 0;
    for (int32_t m = 0; m < g->backends.n; m++) {
        join_record(g, p.lives, m, stats->record_bytes);
        stats->work_bytes[m] = plan_one(&p, m, &stats->unshared_bytes);
    }
    for (int32_t t = 0; t < g->n_tensors; t++)
        if (graph_is_work(g, t) && p.lives[t].first >= 0)
            g->tensors[t].offset = p.lives[p.lives[t].root].offset + p.lives[t].within;
    status = add_scratch(g, stats, err);
    if (status == MR_OK && (g->debug & MR_GRAPH_DEBUG_PLAN))
        status = keep_ranges(g, p.lives, err);
out:
    mr_free(p.lives);
    mr_free(p.order);
    mr_free(p.placed);
    return status;
}
