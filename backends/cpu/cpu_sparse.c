/* backends/cpu/cpu_sparse.c - the neurons of sparse feed-forward parts, by rule S of engine/NUMERICS.md: lists the
 * active ones, computes their units, and adds up their rows.
 *
 * Matrices lie in the layout of the file, with a row for each neuron. The rows of active neurons are repacked into
 * panels in scratch, two at a time, and an ordinary kernel multiplies the panels: so there is nothing but rule M. A
 * few rows of a step take the rows of F16 matrices as they are. The rows of a step share the union of their active
 * neurons, and each row keeps the results of its own set only. up is computed for neurons whose gate some row has
 * above zero. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_internal.h"
#include "engine/base/mem.h"
#include "engine/tensor/relu.h"

enum {
    PAIR = 2 * MR_PANEL,    /* kernels take panels in pairs */
    PIECE_NEURONS = 256,    /* neurons of which all gates are computed before their ups */
    PIECE_ROWS = 168,       /* two row blocks of the matmul kernels (matmul_tiles.h) */
    TASK_BYTES = 256 << 10, /* least weights of a task, as in cpu_ops.c */
    TASKS_PER_THREAD = 8,
    AXPY_TASKS = 4, /* for each thread: memory is slow to give short pieces of rows */
};

/* --- Which neurons ------------------------------------------------------------------------------------------------ */

/* Bit i: score i is that of an active neuron. n: 1 to 32. */
static uint32_t make_word(const float *scores, int32_t n, float threshold) {
    uint32_t word = 0;
    for (int32_t i = 0; i < n; i++)
        word |= (uint32_t)mr_is_active(scores[i], threshold) << i;
    return word;
}

/* Lists the active neurons of some partitions. */
void cpu_run_active(const cpu_node *n, int32_t n_rows, int32_t idx, int32_t n_tasks) {
    mr_neurons neurons = mr_neurons_of(n->node, n->in[0]->ne[0]);
    int32_t n_neurons = neurons.n, n_parts = mr_count_partitions(n_neurons);
    mr_active a = mr_active_at(cpu_data(n->out), n_neurons);
    for (int32_t p = cpu_cut_at(n_parts, idx, n_tasks); p < cpu_cut_at(n_parts, idx + 1, n_tasks); p++) {
        uint32_t any[MR_PARTITION_WORDS] = {0};
        int32_t first = p * MR_PARTITION, n_words = (mr_min_i32(MR_PARTITION, n_neurons - first) + 31) / 32;
        for (int32_t row = 0; row < n_rows; row++) {
            uint32_t *set = a.sets + ((size_t)row * (size_t)n_parts + (size_t)p) * MR_PARTITION_WORDS;
            const float *scores = cpu_float_row(n->in[0], row) + neurons.first;
            memset(set, 0, MR_PARTITION_WORDS * sizeof *set);
            for (int32_t w = 0, at = first; w < n_words; w++, at += 32) {
                set[w] = make_word(scores + at, mr_min_i32(32, n_neurons - at), n->node->params.sparse.threshold);
                any[w] |= set[w];
            }
        }
        int32_t *list = a.neurons + first, count = 0;
        for (int32_t w = 0; w < n_words; w++)
            for (uint32_t left = any[w]; left; left &= left - 1)
                list[count++] = first + 32 * w + __builtin_ctz(left);
        a.counts[p] = count;
    }
}

/* The active neurons of a step, one behind the other. */
typedef struct neuron_union {
    mr_active active;
    int32_t n_all, n_parts, n;
} neuron_union;

static neuron_union find_neurons(const cpu_node *n) {
    int32_t n_all = n->in[0]->ne[1];
    neuron_union u = {.active = mr_active_at(cpu_data(n->in[3]), n_all), .n_all = n_all};
    u.n_parts = mr_count_partitions(n_all);
    for (int32_t p = 0; p < u.n_parts; p++)
        u.n += u.active.counts[p];
    return u;
}

/* Writes the numbers of active neurons [first, first + n). */
static void list_neurons(const neuron_union *u, int32_t first, int32_t n, int32_t *out) {
    for (int32_t p = 0, begin = 0; p < u->n_parts && n > 0; begin += u->active.counts[p], p++) {
        int32_t from = first - begin, count = mr_min_i32(u->active.counts[p] - from, n);
        if (count <= 0)
            continue;
        memcpy(out, u->active.neurons + (size_t)p * MR_PARTITION + from, (size_t)count * sizeof *out);
        out += count;
        first += count;
        n -= count;
    }
}

static bool is_in_set(const neuron_union *u, int32_t row, int32_t neuron) {
    const uint32_t *set = u->active.sets + (size_t)row * (size_t)u->n_parts * MR_PARTITION_WORDS;
    return set[neuron / 32] >> (neuron % 32) & 1u;
}

/* --- Units -------------------------------------------------------------------------------------------------------- */

bool cpu_supports_sparse(const mr_tensor *tensors, const mr_node *n) {
    for (int k = 0; k < (n->op == MR_OP_AXPY ? 1 : 2); k++) {
        const mr_tensor *w = n->in[k] == MR_NO_TENSOR ? NULL : &tensors[n->in[k]];
        if (w && (w->storage != MR_STORAGE_FILE || mr_panel_bytes(w->type, w->ne[0]) == 0))
            return false;
    }
    return true;
}

/* Some active neurons, and some rows: what is computed in one go. */
typedef struct piece {
    const cpu_backend *be;
    const cpu_node *n;
    int32_t row, n_rows;
    uint8_t *panels; /* scratch for a pair of panels */
} piece;

static size_t pair_bytes(const cpu_node *n) {
    size_t gate = mr_panel_bytes(n->in[0]->type, n->in[0]->ne[0]);
    size_t up = n->in[1] ? mr_panel_bytes(n->in[1]->type, n->in[1]->ne[0]) : 0;
    return mr_round_up(2 * (gate > up ? gate : up), CPU_ALIGNMENT);
}

/* Multiplies the rows of the piece by rows neurons[0 .. count) of w: y [n_rows][PIECE_NEURONS]. */
static void multiply_panels(const piece *p, const mr_tensor *w, const int32_t *neurons, int32_t count, float *y) {
    const mr_tensor *a = p->n->in[2];
    for (int32_t at = 0; at < count; at += PAIR) {
        int32_t n = mr_min_i32(PAIR, count - at), n_panels = (n + MR_PANEL - 1) / MR_PANEL;
        const mr_repack_args repack = {.type = w->type,
                                       .k = w->ne[0],
                                       .n = count - at,
                                       .src = cpu_data(w),
                                       .src_row_bytes = w->row_bytes,
                                       .dst = p->panels,
                                       .rows = neurons + at};
        const mr_matmul_args args = {.w = p->panels,
                                     .k = w->ne[0],
                                     .n = n,
                                     .a = cpu_data(a) + (size_t)p->row * a->row_bytes,
                                     .a_row_bytes = a->row_bytes,
                                     .y = y + at,
                                     .y_row_bytes = PIECE_NEURONS * sizeof *y};
        mr_repack(&repack, 0, n_panels);
        p->be->kernels->matmul[mr_panel_of(w->type)](&args, 0, n_panels, 0, p->n_rows);
    }
}

/* The same. A few rows of activations take the listed rows of w as they are, where there is a kernel for the type. */
static void multiply(const piece *p, const mr_tensor *w, const int32_t *neurons, int32_t count, float *y) {
    const mr_tensor *a = p->n->in[2];
    if (w->type != MR_TYPE_F16 || p->n_rows > MR_LISTED_ROWS) {
        multiply_panels(p, w, neurons, count, y);
        return;
    }
    const mr_listed_args args = {.w = cpu_data(w),
                                 .w_row_bytes = w->row_bytes,
                                 .k = w->ne[0],
                                 .list = neurons,
                                 .n = count,
                                 .a = cpu_float_row(a, p->row),
                                 .a_row_bytes = a->row_bytes,
                                 .y = y,
                                 .y_row_bytes = PIECE_NEURONS * sizeof *y,
                                 .n_rows = p->n_rows};
    p->be->kernels->listed_f16(&args);
}

/* Sets the gates of neurons outside of a row's own set to zero. Returns how many neurons have a gate above zero in some
 * row; their numbers go to out_neurons, their columns to out_columns. */
static int32_t mask_gates(const piece *p, const neuron_union *u, const int32_t *list, int32_t count, float *gate,
                          int32_t *out_neurons, int32_t *out_columns) {
    bool is_needed[PIECE_NEURONS] = {false};
    int32_t n = 0;
    for (int32_t r = 0; r < p->n_rows; r++)
        for (int32_t i = 0; i < count; i++) {
            float *g = gate + (size_t)r * PIECE_NEURONS + i;
            *g = is_in_set(u, p->row + r, list[i]) ? mr_relu(*g) : 0.0f;
            is_needed[i] |= *g != 0.0f;
        }
    for (int32_t i = 0; i < count; i++)
        if (is_needed[i]) {
            out_neurons[n] = list[i];
            out_columns[n++] = i;
        }
    return n;
}

/* Computes the units of active neurons list[0 .. count) for the rows of the piece. */
static void run_piece(const piece *p, const neuron_union *u, const int32_t *list, int32_t count, float *gate,
                      float *up) {
    int32_t needed[PIECE_NEURONS], columns[PIECE_NEURONS];
    mr_relu_unit unit = p->n->node->params.sparse.unit;
    multiply(p, p->n->in[0], list, count, gate);
    int32_t n = mask_gates(p, u, list, count, gate, needed, columns);
    if (unit != MR_RELU_ALONE)
        multiply(p, p->n->in[1], needed, n, up);
    for (int32_t r = 0; r < p->n_rows; r++) {
        float *h = cpu_float_row(p->n->out, p->row + r);
        for (int32_t i = 0; i < n; i++)
            h[needed[i]] =
                mr_relu_unit_one(gate[(size_t)r * PIECE_NEURONS + columns[i]], up[(size_t)r * PIECE_NEURONS + i], unit);
    }
}

static int32_t piece_rows(int32_t n_rows) {
    return mr_min_i32(PIECE_ROWS, n_rows);
}

static size_t gate_up_scratch_bytes(const cpu_node *n) {
    size_t floats = (size_t)piece_rows(n->out->ne[1]) * PIECE_NEURONS;
    return pair_bytes(n) + 2 * floats * sizeof(float);
}

/* A task has some of the active neurons, and all neurons from its first one to that of the next task: those that are
 * not active get zeros. */
void cpu_run_sparse_gate_up(const cpu_backend *be, const cpu_node *n, int32_t n_rows, int32_t idx, int32_t n_tasks,
                            int thread_idx) {
    neuron_union u = find_neurons(n);
    int32_t n_pairs = (u.n + PAIR - 1) / PAIR, list[PIECE_NEURONS];
    int32_t first = cpu_cut_at(n_pairs, idx, n_tasks) * PAIR;
    int32_t last = mr_min_i32(cpu_cut_at(n_pairs, idx + 1, n_tasks) * PAIR, u.n);
    int32_t zeros[2] = {0, u.n_all};
    if (idx > 0)
        list_neurons(&u, first, 1, &zeros[0]);
    if (idx < n_tasks - 1)
        list_neurons(&u, last, 1, &zeros[1]);
    for (int32_t row = 0; row < n_rows; row++)
        memset(cpu_float_row(n->out, row) + zeros[0], 0, (size_t)(zeros[1] - zeros[0]) * sizeof(float));

    piece p = {.be = be, .n = n, .panels = be->scratch + (size_t)thread_idx * be->scratch_bytes};
    float *gate = (float *)(void *)(p.panels + pair_bytes(n));
    float *up = gate + (size_t)piece_rows(n_rows) * PIECE_NEURONS;
    for (; first < last; first += PIECE_NEURONS) {
        int32_t count = mr_min_i32(PIECE_NEURONS, last - first);
        list_neurons(&u, first, count, list);
        for (p.row = 0; p.row < n_rows; p.row += p.n_rows) {
            p.n_rows = piece_rows(n_rows - p.row);
            run_piece(&p, &u, list, count, gate, up);
        }
    }
}

/* --- Sums of rows ------------------------------------------------------------------------------------------------- */

/* The factors of one partition and row that are not zero, with their neurons. */
static int32_t list_factors(const float *h, int32_t first, int32_t last, int32_t *neurons, float *factors) {
    int32_t n = 0;
    for (int32_t i = first; i < last; i++) {
        neurons[n] = i;
        factors[n] = h[i];
        n += h[i] != 0.0f;
    }
    return n;
}

/* Some columns of all rows. The tasks of a node divide the columns, so that no sum is divided. The partitions are the
 * outer loop: their weights stay in the cache for all rows. */
void cpu_run_axpy(const cpu_backend *be, const cpu_node *n, int32_t n_rows, int32_t idx, int32_t n_tasks) {
    const mr_tensor *w = n->in[0], *add = n->in[2], *start = n->in[3];
    int32_t n_units = (w->ne[0] + MR_AXPY_COLUMNS - 1) / MR_AXPY_COLUMNS, n_neurons = w->ne[1];
    int32_t first = cpu_cut_at(n_units, idx, n_tasks) * MR_AXPY_COLUMNS;
    int32_t last = mr_min_i32(cpu_cut_at(n_units, idx + 1, n_tasks) * MR_AXPY_COLUMNS, w->ne[0]);
    int32_t neurons[MR_PARTITION + 1];
    float factors[MR_PARTITION + 1];
    for (int32_t row = 0; row < n_rows; row++) {
        float *y = cpu_float_row(n->out, row) + first;
        if (start)
            memcpy(y, cpu_float_row(start, row) + first, (size_t)(last - first) * sizeof *y);
        else
            memset(y, 0, (size_t)(last - first) * sizeof *y);
    }
    for (int32_t at = 0; at < n_neurons; at += MR_PARTITION)
        for (int32_t row = 0; row < n_rows; row++) {
            int32_t end = mr_min_i32(at + MR_PARTITION, n_neurons);
            int32_t count = list_factors(cpu_float_row(n->in[1], row), at, end, neurons, factors);
            const mr_axpy_args args = {.w = cpu_data(w),
                                       .w_row_bytes = w->row_bytes,
                                       .type = w->type,
                                       .neurons = neurons,
                                       .h = factors,
                                       .n = count,
                                       .y = cpu_float_row(n->out, row)};
            if (count > 0)
                be->kernels->axpy(&args, first, last);
        }
    for (int32_t row = 0; row < n_rows && add; row++) {
        float *y = cpu_float_row(n->out, row);
        const float *more = cpu_float_row(add, row);
        for (int32_t d = first; d < last; d++)
            y[d] = y[d] + more[d];
    }
}

/* --- Tasks -------------------------------------------------------------------------------------------------------- */

size_t cpu_sparse_scratch_bytes(const cpu_node *n) {
    return n->node->op == MR_OP_SPARSE_GATE_UP ? gate_up_scratch_bytes(n) : 0;
}

int32_t cpu_count_sparse_tasks(const cpu_backend *be, const cpu_node *n) {
    int32_t most = be->n_threads * TASKS_PER_THREAD;
    if (n->node->op == MR_OP_ACTIVE)
        return mr_min_i32(mr_count_partitions(mr_neurons_of(n->node, n->in[0]->ne[0]).n), most);
    if (n->node->op == MR_OP_AXPY)
        return mr_min_i32((n->in[0]->ne[0] + MR_AXPY_COLUMNS - 1) / MR_AXPY_COLUMNS, be->n_threads * AXPY_TASKS);
    int32_t n_active = find_neurons(n).n, n_pairs = (n_active + PAIR - 1) / PAIR;
    int64_t bytes = (int64_t)n_active * (int64_t)n->in[0]->row_bytes;
    int64_t n_tasks = mr_min_i32(n_pairs, (int32_t)(bytes / TASK_BYTES > most ? most : bytes / TASK_BYTES));
    return n_tasks > 1 ? (int32_t)n_tasks : 1;
}
