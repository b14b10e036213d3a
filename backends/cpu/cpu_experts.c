/* backends/cpu/cpu_experts.c - mixtures of experts, by rule X of engine/NUMERICS.md. cpu_route.c chooses the experts of
 * each row. The slots are then sorted by expert, and one product multiplies an expert's matrix by all of its rows. The
 * kernels find these rows through lists of row numbers. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_internal.h"

enum {
    WEIGHT_ROWS = 4,   /* reading the weights of a product takes about as long as computing so many rows */
    SUM_COLUMNS = 256, /* columns summed at a time: the sums lie on the stack */
};

/* --- Which rows --------------------------------------------------------------------------------------------------- */

/* The lists of an EXPERT_ROWS node or of a node that reads them. */
static mr_expert_rows lists_of(const cpu_node *n, const mr_tensor *lists) {
    int32_t n_experts = n->node->params.experts.n;
    return mr_expert_rows_at(cpu_data(lists), n_experts, (lists->ne[0] - n_experts - 1) / 2);
}

/* The number of an expert among the matrices of a backend. -1: the backend has none for the expert. places: as
 * EXPERT_ROWS reads them, or NULL. */
static int32_t place_of(const mr_tensor *places, int32_t expert) {
    return places ? cpu_int_row(places, 0)[expert] : expert;
}

/* Sorts the slots by expert, by counting. The slots of one expert stay in ascending order. */
void cpu_run_expert_rows(const cpu_node *n, const mr_run *run) {
    mr_expert_rows l = lists_of(n, n->out);
    int32_t n_experts = n->node->params.experts.n, n_used = n->node->params.experts.n_used;
    int32_t n_rows = run->n_rows[MR_ROWS_STEP];
    memset(l.first, 0, ((size_t)n_experts + 1) * sizeof *l.first);
    for (int32_t row = 0; row < n_rows; row++)
        for (int32_t u = 0; u < n_used; u++) {
            int32_t place = place_of(n->in[1], cpu_int_row(n->in[0], row)[u]);
            if (place >= 0)
                l.first[place + 1]++;
        }
    for (int32_t e = 0; e < n_experts; e++)
        l.first[e + 1] += l.first[e];
    for (int32_t row = 0; row < n_rows; row++)
        for (int32_t u = 0; u < n_used; u++) {
            int32_t place = place_of(n->in[1], cpu_int_row(n->in[0], row)[u]);
            if (place < 0)
                continue;
            int32_t at = l.first[place]++; /* ends as the first slot of the next expert */
            l.slots[at] = row * n_used + u;
            l.rows[at] = row;
        }
    memmove(l.first + 1, l.first, (size_t)n_experts * sizeof *l.first);
    l.first[0] = 0;
}

/* --- Products ---------------------------------------------------------------------------------------------------- */

/* The work of a product, laid out on a line. For each expert that has rows, its pairs of panels follow one another; the
 * length of a pair is its work. The tasks are equal parts of the line. */
typedef struct experts_work {
    mr_expert_rows lists;
    int32_t n_experts, n_out, n_panels, n_pairs; /* n_out, n_panels and n_pairs are those of one expert */
    int64_t length;
} experts_work;

/* The work of a pair of panels of expert e: its rows and the time to read its weights. 0 if the expert has no rows. */
static int64_t pair_length(const experts_work *w, int32_t e) {
    int32_t n_rows = w->lists.first[e + 1] - w->lists.first[e];
    return n_rows ? n_rows + WEIGHT_ROWS : 0;
}

static experts_work find_work(const cpu_node *n) {
    experts_work w = {.lists = lists_of(n, n->in[2]), .n_experts = n->node->params.experts.n, .n_out = n->out->ne[0]};
    w.n_panels = (w.n_out + MR_PANEL - 1) / MR_PANEL;
    w.n_pairs = (w.n_panels + 1) / 2;
    for (int32_t e = 0; e < w.n_experts; e++)
        w.length += pair_length(&w, e) * w.n_pairs;
    return w;
}

int32_t cpu_count_expert_tasks(const cpu_backend *be, const cpu_node *n) {
    experts_work w = find_work(n);
    int32_t n_busy = 0;
    for (int32_t e = 0; e < w.n_experts; e++)
        n_busy += pair_length(&w, e) > 0;
    return cpu_count_panel_tasks(be, n->in[0], (int64_t)n_busy * w.n_panels);
}

/* The number of pairs of expert e that begin before `end`. base: where the first pair of the expert begins. */
static int32_t pairs_before(const experts_work *w, int32_t e, int64_t base, int64_t end) {
    int64_t length = pair_length(w, e), n = end <= base ? 0 : (end - base + length - 1) / length;
    return (int32_t)(n < w->n_pairs ? n : w->n_pairs);
}

/* Multiplies a range of panels of expert e by all rows of the expert. */
static void multiply_expert(const cpu_backend *be, const cpu_node *n, const experts_work *work, int32_t e,
                            cpu_panels range, int thread_idx) {
    const mr_tensor *w = n->in[0], *a = n->in[1];
    bool in_file = w->storage == MR_STORAGE_FILE;
    size_t matrix_bytes =
        in_file ? w->row_bytes * (size_t)work->n_out : mr_panel_bytes(w->type, w->ne[0]) * (size_t)work->n_panels;
    int32_t first = work->lists.first[e];
    mr_matmul_args args = {
        .w = cpu_data(w) + (size_t)e * matrix_bytes,
        .k = w->ne[0],
        .n = work->n_out,
        .a = cpu_data(a),
        .a_row_bytes = a->row_bytes,
        .y = (float *)(void *)cpu_data(n->out),
        .y_row_bytes = n->out->row_bytes,
        .bias = n->in[3] ? cpu_float_row(n->in[3], e) : NULL,
        .a_rows = (a->row_count == MR_ROWS_SLOTS ? work->lists.slots : work->lists.rows) + first,
        .y_rows = work->lists.slots + first,
    };
    cpu_multiply(be, w, &args, range, work->lists.first[e + 1] - first, thread_idx);
}

void cpu_run_expert_matmul(const cpu_backend *be, const cpu_node *n, int32_t idx, int32_t n_tasks, int thread_idx) {
    experts_work w = find_work(n);
    int64_t from = w.length * idx / n_tasks, to = w.length * (idx + 1) / n_tasks, base = 0;
    for (int32_t e = 0; e < w.n_experts && base < to; e++) {
        int64_t length = pair_length(&w, e);
        if (length == 0)
            continue;
        cpu_panels range = {2 * pairs_before(&w, e, base, from), 2 * pairs_before(&w, e, base, to)};
        range.last = range.last < w.n_panels ? range.last : w.n_panels;
        if (range.first < range.last)
            multiply_expert(be, n, &w, e, range, thread_idx);
        base += length * w.n_pairs;
    }
}

/* --- The sum ----------------------------------------------------------------------------------------------------- */

void cpu_run_expert_sum(const cpu_node *n, int32_t row) {
    int32_t width = n->out->ne[0], n_used = n->node->params.experts.n_used;
    const int32_t *experts = cpu_int_row(n->in[1], row);
    const float *weights = (const float *)(const void *)(experts + n_used);
    const float *add = cpu_float_row(n->in[2], row), *shared = n->in[3] ? cpu_float_row(n->in[3], row) : NULL;
    float *out = cpu_float_row(n->out, row), sum[SUM_COLUMNS];
    for (int32_t first = 0; first < width; first += SUM_COLUMNS) {
        int32_t n_columns = width - first < SUM_COLUMNS ? width - first : SUM_COLUMNS;
        memset(sum, 0, sizeof sum);
        for (int32_t u = 0; u < n_used; u++) {
            const mr_tensor *from = place_of(n->in[5], experts[u]) < 0 ? n->in[4] : n->in[0];
            const float *y = cpu_float_row(from, row * n_used + u) + first, w = weights[u];
            for (int32_t i = 0; i < n_columns; i++)
                sum[i] += w * y[i];
        }
        for (int32_t i = 0; i < n_columns; i++)
            out[first + i] = add[first + i] + sum[i];
        for (int32_t i = 0; shared && i < n_columns; i++)
            out[first + i] += shared[first + i];
    }
}
