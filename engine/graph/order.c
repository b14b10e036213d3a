/* engine/graph/order.c - sorts the nodes into splits: few of them, and so that host and devices work at the same time.
 * The executor (run.c) submits the splits in this order. The host goes on when it has submitted a device's split, and
 * waits where it needs a result of a device. So a split takes all nodes of its backend that can run, but for two rules:
 * A split ends behind the nodes that a large node of another memory waits for, if large nodes are left to the next
 * split. Both sides work at the same time from there.
 * A split takes no node that waits for a device, if it has large nodes that wait for no device, or for earlier work. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "engine/graph/graph_internal.h"

/* LARGE: multiply-adds from which on a node is worth one more split, which costs some 10 us.
 * LOOK_AHEAD: a search ends when it has found nothing in so many nodes. */
enum { LARGE = 1 << 16, LOOK_AHEAD = 256, NO_WAIT = -1, BLOCKED = INT32_MAX };

typedef struct sorter {
    const mr_graph *g;
    mr_node *sorted;   /* [n_nodes] */
    int32_t *split_of; /* [n_nodes]: of sorted */
    int32_t *maker;    /* [n_tensors]: index into sorted of the node that computes the tensor, or -1 */
    bool *is_large;    /* [n_nodes] */
    bool *is_sorted;   /* [n_nodes] */
    bool *is_needed;   /* [n_nodes] scratch */
    int32_t *chosen;   /* [n_nodes]: the nodes of the next split, in ascending order */
    int32_t *waits;    /* [n_nodes] scratch */
    int32_t *made;     /* [n_tensors] scratch of a pass over the nodes: value of the node that makes the tensor */
    int32_t *read;     /* [n_tensors] scratch: highest value of the nodes that read the tensor */
    int32_t n_sorted, n_splits, n_chosen;
    int32_t first;                    /* all nodes before this one are sorted */
    int32_t awaited[MR_MAX_BACKENDS]; /* the last split of each backend whose results the host has waited for, or -1 */
    bool has_device;                  /* a backend works while the host does something else */
} sorter;

static mr_status sorter_init(sorter *s, const mr_graph *g, mr_err *err) {
    size_t n_nodes = (size_t)g->n_nodes + 1, n_tensors = (size_t)g->n_tensors + 1;
    s->g = g;
    s->sorted = mr_alloc_array(n_nodes, sizeof *s->sorted);
    s->split_of = mr_alloc_array(n_nodes, sizeof *s->split_of);
    s->maker = mr_alloc_array(n_tensors, sizeof *s->maker);
    s->is_large = mr_alloc_array(n_nodes, sizeof *s->is_large);
    s->is_sorted = mr_alloc_array(n_nodes, sizeof *s->is_sorted);
    s->is_needed = mr_alloc_array(n_nodes, sizeof *s->is_needed);
    s->chosen = mr_alloc_array(n_nodes, sizeof *s->chosen);
    s->waits = mr_alloc_array(n_nodes, sizeof *s->waits);
    s->made = mr_alloc_array(n_tensors, sizeof *s->made);
    s->read = mr_alloc_array(n_tensors, sizeof *s->read);
    for (int32_t b = 0; b < g->backends.n; b++)
        s->has_device |= !g->is_host[b];
    bool has_all = s->sorted && s->split_of && s->maker && s->is_large && s->is_sorted && s->is_needed && s->chosen &&
                   s->waits && s->made && s->read;
    return has_all ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory to split %d nodes", g->n_nodes);
}

static void sorter_deinit(sorter *s) {
    mr_free(s->sorted);
    mr_free(s->split_of);
    mr_free(s->maker);
    mr_free(s->is_large);
    mr_free(s->is_sorted);
    mr_free(s->is_needed);
    mr_free(s->chosen);
    mr_free(s->waits);
    mr_free(s->made);
    mr_free(s->read);
}

/* The work of attention grows with the context. */
static bool is_large(const mr_graph *g, const mr_node *n) {
    if (n->op == MR_OP_ATTENTION)
        return true;
    if (n->op != MR_OP_MATMUL && n->op != MR_OP_GATE_UP && n->op != MR_OP_EXPERT_MATMUL && n->op != MR_OP_HEAD_MATMUL &&
        n->op != MR_OP_SPARSE_GATE_UP && n->op != MR_OP_AXPY)
        return false;
    const mr_tensor *w = &g->tensors[n->in[0]], *y = &g->tensors[n->out];
    return (int64_t)w->ne[0] * (n->op == MR_OP_AXPY ? w->ne[1] : y->ne[0]) * y->ne[1] >= LARGE;
}

/* --- Passes over the nodes --------------------------------------------------------------------------------------- */

/* Whether n changes its input k: KV_WRITE changes its two state tensors. */
static bool writes(const mr_node *n, int k) {
    return n->op == MR_OP_KV_WRITE && (k == 3 || k == 4);
}

/* The highest value among the nodes that have to run before n. */
static int32_t highest_before(const sorter *s, const mr_node *n) {
    int32_t value = NO_WAIT;
    for (int k = 0; k < MR_MAX_INPUTS; k++) {
        int32_t t = n->in[k];
        if (t != MR_NO_TENSOR && s->made[t] > value)
            value = s->made[t];
        if (t != MR_NO_TENSOR && writes(n, k) && s->read[t] > value)
            value = s->read[t];
    }
    return value;
}

static void note_value(sorter *s, const mr_node *n, int32_t value) {
    if (n->out != MR_NO_TENSOR)
        s->made[n->out] = value;
    for (int k = 0; k < MR_MAX_INPUTS; k++) {
        int32_t t = n->in[k], *highest = writes(n, k) ? s->made : s->read;
        if (t != MR_NO_TENSOR && value > highest[t])
            highest[t] = value;
    }
}

/* The split of a device that the host waits for when backend b reads tensor t, or NO_WAIT. */
static int32_t wait_for(const sorter *s, int32_t b, int32_t t) {
    if (s->maker[t] < 0)
        return NO_WAIT;
    int32_t by = s->sorted[s->maker[t]].backend, split = s->split_of[s->maker[t]];
    bool waits = !s->g->is_host[by] && s->g->memory[by] != s->g->memory[b] && split > s->awaited[by];
    return waits ? split : NO_WAIT;
}

/* Chooses the nodes of backend b that can run now. One pass finds all of them, because a node always stands behind the
 * nodes that it depends on. If some are large, chooses only the nodes that wait for no later split than the first large
 * one does, and returns this split or NO_WAIT. BLOCKED: none of them is large. */
static int32_t choose(sorter *s, int32_t b) {
    const mr_graph *g = s->g;
    int32_t n = 0, least = BLOCKED;
    for (int32_t t = 0; t < g->n_tensors; t++) {
        s->made[t] = wait_for(s, b, t);
        s->read[t] = NO_WAIT;
    }
    for (int32_t i = s->first, last = i; i < g->n_nodes && i <= last + LOOK_AHEAD; i++) {
        if (s->is_sorted[i])
            continue;
        int32_t wait = g->nodes[i].backend == b ? highest_before(s, &g->nodes[i]) : BLOCKED;
        note_value(s, &g->nodes[i], wait);
        if (wait == BLOCKED)
            continue;
        least = s->is_large[i] && wait < least ? wait : least;
        s->waits[n] = wait;
        s->chosen[n++] = last = i;
    }
    s->n_chosen = 0;
    for (int32_t i = 0; i < n; i++)
        if (s->waits[i] <= least)
            s->chosen[s->n_chosen++] = s->chosen[i];
    return least;
}

/* The large node of another memory that could run behind the chosen nodes of backend b, and needs the earliest of them;
 * or -1. The value of a node is the last chosen node that it depends on. */
static int32_t find_follower(sorter *s, int32_t b) {
    const mr_graph *g = s->g;
    int32_t follower = -1, earliest = BLOCKED, next = 0;
    memset(s->made, 0xff, (size_t)g->n_tensors * sizeof *s->made); /* NO_WAIT */
    memset(s->read, 0xff, (size_t)g->n_tensors * sizeof *s->read);
    for (int32_t i = s->first, last = s->chosen[s->n_chosen - 1]; i < g->n_nodes && i <= last + LOOK_AHEAD; i++) {
        bool is_other = g->memory[g->nodes[i].backend] != g->memory[b];
        bool is_chosen = next < s->n_chosen && s->chosen[next] == i;
        if (s->is_sorted[i])
            continue;
        next += is_chosen;
        int32_t value = is_chosen ? i : is_other ? highest_before(s, &g->nodes[i]) : BLOCKED;
        note_value(s, &g->nodes[i], value);
        if (is_other && s->is_large[i] && value != NO_WAIT && value < earliest) {
            earliest = value;
            follower = i;
        }
    }
    return follower;
}

/* Finds the nodes that have to run before the follower. The value of a tensor says whether such a node needs it: made,
 * the nodes that compute or write it are needed; read, the nodes that read it. */
static void find_needed(sorter *s, int32_t follower) {
    const mr_graph *g = s->g;
    memset(s->made, 0, (size_t)g->n_tensors * sizeof *s->made);
    memset(s->read, 0, (size_t)g->n_tensors * sizeof *s->read);
    memset(s->is_needed, 0, (size_t)g->n_nodes * sizeof *s->is_needed);
    for (int32_t i = follower; i >= s->first; i--) {
        const mr_node *n = &g->nodes[i];
        bool needed = i == follower || (n->out != MR_NO_TENSOR && s->made[n->out]);
        for (int k = 0; k < MR_MAX_INPUTS; k++)
            if (n->in[k] != MR_NO_TENSOR)
                needed |= s->read[n->in[k]] || (writes(n, k) && s->made[n->in[k]]);
        s->is_needed[i] = needed;
        for (int k = 0; k < MR_MAX_INPUTS && needed; k++)
            if (n->in[k] != MR_NO_TENSOR) {
                s->made[n->in[k]] = 1;
                s->read[n->in[k]] |= writes(n, k);
            }
    }
}

/* Leaves chosen nodes to a later split: those that a large node of another memory does not need, if some of them are
 * large. */
static void leave_to_later(sorter *s, int32_t b) {
    int32_t follower = find_follower(s, b), n = 0;
    bool leaves_large = false;
    if (follower < 0)
        return;
    find_needed(s, follower);
    for (int32_t i = 0; i < s->n_chosen; i++)
        leaves_large |= s->is_large[s->chosen[i]] && !s->is_needed[s->chosen[i]];
    for (int32_t i = 0; i < s->n_chosen && leaves_large; i++)
        if (s->is_needed[s->chosen[i]])
            s->chosen[n++] = s->chosen[i];
    s->n_chosen = leaves_large ? n : s->n_chosen;
}

/* --- Splits ------------------------------------------------------------------------------------------------------ */

/* The backend of the next split: the one whose large nodes wait least, a device first, because the host goes on while
 * the device works. Where no large node can run, the backend of the first node that is left. */
static int32_t next_backend(sorter *s) {
    int32_t best = s->g->nodes[s->first].backend, least = BLOCKED;
    for (int32_t b = 0; b < s->g->backends.n && s->has_device; b++) {
        int32_t wait = choose(s, b);
        if (wait < least || (wait == least && wait != BLOCKED && s->g->is_host[best] && !s->g->is_host[b])) {
            least = wait;
            best = b;
        }
    }
    return best;
}

/* Makes a split of nodes of backend b. There is none if no node can run. */
static void take_split(sorter *s, int32_t b) {
    const mr_graph *g = s->g;
    choose(s, b);
    if (s->n_chosen == 0)
        return;
    if (s->has_device)
        leave_to_later(s, b);
    for (int32_t c = 0; c < s->n_chosen; c++) {
        const mr_node *n = &g->nodes[s->chosen[c]];
        for (int k = 0; k < MR_MAX_INPUTS; k++) {
            int32_t wait = n->in[k] == MR_NO_TENSOR ? NO_WAIT : wait_for(s, b, n->in[k]);
            if (wait != NO_WAIT)
                s->awaited[s->sorted[s->maker[n->in[k]]].backend] = wait;
        }
        s->is_sorted[s->chosen[c]] = true;
        if (n->out != MR_NO_TENSOR)
            s->maker[n->out] = s->n_sorted;
        s->split_of[s->n_sorted] = s->n_splits;
        s->sorted[s->n_sorted++] = *n;
    }
    s->n_splits++;
    while (s->first < g->n_nodes && s->is_sorted[s->first])
        s->first++;
}

/* Sorts all nodes into splits, beginning with backend b unless this would hold up large nodes. Returns the number of
 * splits. */
static int32_t sort_from(sorter *s, int32_t b) {
    memset(s->is_sorted, 0, (size_t)s->g->n_nodes * sizeof *s->is_sorted);
    memset(s->maker, 0xff, (size_t)s->g->n_tensors * sizeof *s->maker);
    memset(s->awaited, 0xff, sizeof s->awaited);
    s->n_sorted = s->n_splits = s->first = 0;
    take_split(s, s->has_device && choose(s, b) != BLOCKED ? next_backend(s) : b);
    while (s->n_sorted < s->g->n_nodes)
        take_split(s, next_backend(s));
    return s->n_splits;
}

static mr_status add_splits(mr_graph *g, const sorter *s, mr_err *err) {
    for (int32_t i = 0; i < g->n_nodes; i++) {
        if (s->split_of[i] == g->n_splits) {
            if (!graph_grow((void **)&g->splits, g->n_splits, &g->cap_splits, sizeof *g->splits))
                return mr_err_set(err, MR_E_NO_MEMORY, "no memory for splits");
            g->splits[g->n_splits++] = (graph_split){.backend = s->sorted[i].backend, .first = i};
        }
        g->splits[g->n_splits - 1].last = i + 1;
    }
    return MR_OK;
}

mr_status graph_sort_nodes(mr_graph *g, mr_err *err) {
    sorter s = {0};
    mr_status status = g->n_nodes > 0 ? sorter_init(&s, g, err) : MR_OK;
    int32_t best = 0, fewest = INT32_MAX;
    for (int32_t i = 0; status == MR_OK && i < g->n_nodes; i++)
        s.is_large[i] = is_large(g, &g->nodes[i]);
    for (int32_t b = 0; status == MR_OK && b < g->backends.n && g->n_nodes > 0; b++) {
        int32_t n = sort_from(&s, b);
        if (n < fewest) {
            fewest = n;
            best = b;
        }
    }
    if (status == MR_OK && g->n_nodes > 0) {
        sort_from(&s, best);
        status = add_splits(g, &s, err);
        memcpy(g->nodes, s.sorted, (size_t)g->n_nodes * sizeof *g->nodes);
    }
    sorter_deinit(&s);
    return status;
}
