/* backends/cpu/cpu_ops.c - says which nodes the CPU backend supports, cuts each op into tasks, and calls the kernel
 * that runs a task. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_internal.h"
#include "engine/base/fmath.h"
#include "engine/tensor/quant.h"
#include "engine/tensor/relu.h"

enum {
    TASK_BYTES = 256 << 10, /* least weights of a matmul task: reading them takes some 6 us */
    TASKS_PER_THREAD = 8,   /* most matmul tasks for each thread */
    NARROW_ROWS = 32,       /* up to so many rows, every row is a task of its own */
    FILE_PANELS = 2,        /* panels repacked at a time from file layout: kernels take panels in pairs */
};

bool cpu_supports_matmul(const mr_tensor *w, const mr_tensor *a) {
    return mr_panel_bytes(w->type, w->ne[0]) > 0 && a->type == mr_type_activation(w->type);
}

static bool is_head_dim(mr_type kv_type, int32_t dim) {
    return mr_kv_head_bytes(kv_type, dim) > 0 && dim % 2 == 0 && dim >= 2 && dim <= MR_ATTENTION_DIM;
}

bool cpu_supports(const mr_backend *be, const mr_tensor *tensors, const mr_node *n) {
    (void)be;
    const mr_tensor *a = n->in[0] == MR_NO_TENSOR ? NULL : &tensors[n->in[0]];
    switch (n->op) {
    case MR_OP_EMBED: {
        const mr_type_info *info = mr_type_get(a->type);
        return info && info->is_weight;
    }
    case MR_OP_MATMUL:
    case MR_OP_EXPERT_MATMUL:
        return cpu_supports_matmul(a, &tensors[n->in[1]]);
    case MR_OP_HEAD_MATMUL:
        return mr_panel_bytes(a->type, a->ne[0]) > 0;
    case MR_OP_GATE_UP:
        return cpu_supports_gate_up(tensors, n);
    case MR_OP_SPARSE_GATE_UP:
    case MR_OP_AXPY:
        return cpu_supports_sparse(tensors, n);
    case MR_OP_RMS_NORM:
    case MR_OP_GLU:
        return tensors[n->out].type == MR_TYPE_F32 || a->ne[0] <= CPU_MAX_ROW_FLOATS;
    case MR_OP_ROUTE:
        return a->ne[0] <= CPU_MAX_EXPERTS;
    case MR_OP_KV_WRITE:
        if (n->in[5] != MR_NO_TENSOR && a->ne[0] > CPU_MAX_ROW_FLOATS)
            return false;
        /* fall through */
    case MR_OP_ATTENTION: {
        mr_type kv = tensors[n->in[n->op == MR_OP_ATTENTION ? 1 : 3]].type;
        return is_head_dim(kv, n->params.attention.k_dim) && is_head_dim(kv, n->params.attention.v_dim);
    }
    default:
        return n->op < MR_OP_COUNT;
    }
}

/* --- Cutting ----------------------------------------------------------------------------------------------------- */

static int32_t count_panels(const mr_tensor *w) {
    return (w->ne[1] + MR_PANEL - 1) / MR_PANEL;
}

int32_t cpu_count_panel_tasks(const cpu_backend *be, const mr_tensor *w, int64_t n_panels) {
    int64_t bytes = n_panels * (int64_t)mr_panel_bytes(w->type, w->ne[0]);
    int64_t tasks = bytes / TASK_BYTES + 1, most = (int64_t)be->n_threads * TASKS_PER_THREAD;
    tasks = tasks > most ? most : tasks;
    /* Kernels take panels in pairs. */
    int64_t pairs = (n_panels + 1) / 2;
    return (int32_t)(tasks > pairs ? pairs : tasks);
}

/* Number of rows that a node computes. ACTIVE has one result for all rows of its input. */
static int32_t count_rows(const cpu_node *n, const mr_run *run) {
    return n->node->op == MR_OP_ACTIVE ? run->n_rows[n->in[0]->row_count] : cpu_real_rows(n, run);
}

int32_t cpu_count_tasks(const cpu_backend *be, const cpu_node *n, const mr_run *run) {
    int32_t n_rows = count_rows(n, run);
    if (n_rows == 0)
        return 0;
    switch (n->node->op) {
    case MR_OP_MATMUL:
    case MR_OP_GATE_UP:
        return cpu_count_panel_tasks(be, n->in[0], count_panels(n->in[0]));
    case MR_OP_EXPERT_MATMUL:
        return cpu_count_expert_tasks(be, n);
    case MR_OP_HEAD_MATMUL:
        return cpu_count_head_tasks(n, n_rows);
    case MR_OP_ATTENTION:
        return cpu_cut_n_tasks(n->cut);
    case MR_OP_ACTIVE:
    case MR_OP_SPARSE_GATE_UP:
    case MR_OP_AXPY:
        return cpu_count_sparse_tasks(be, n);
    case MR_OP_TABLE_WRITE:
        return 1;
    case MR_OP_KV_COPY:
        return n->in[3]->ne[0];
    default:
        return n_rows <= NARROW_ROWS ? n_rows : mr_min_i32(n_rows, be->n_threads * TASKS_PER_THREAD);
    }
}

/* Cuts [0, total) into n_parts and returns part idx. */
static void cut(int32_t total, int32_t idx, int32_t n_parts, int32_t *out_first, int32_t *out_last) {
    *out_first = cpu_cut_at(total, idx, n_parts);
    *out_last = cpu_cut_at(total, idx + 1, n_parts);
}

/* The panels of a task. Pairs stay together, because kernels take panels in pairs. */
static cpu_panels panels_of_task(const mr_tensor *w, int32_t idx, int32_t n_tasks) {
    int32_t first, last;
    cut((count_panels(w) + 1) / 2, idx, n_tasks, &first, &last);
    return (cpu_panels){first * 2, mr_min_i32(last * 2, count_panels(w))};
}

/* --- Running ----------------------------------------------------------------------------------------------------- */

size_t cpu_file_scratch_bytes(const mr_tensor *w) {
    return w->storage == MR_STORAGE_FILE ? FILE_PANELS * mr_panel_bytes(w->type, w->ne[0]) : 0;
}

size_t cpu_scratch_bytes(const cpu_node *n) {
    switch (n->node->op) {
    case MR_OP_MATMUL:
    case MR_OP_EXPERT_MATMUL:
        return cpu_file_scratch_bytes(n->in[0]);
    case MR_OP_HEAD_MATMUL:
        return cpu_head_scratch_bytes(n);
    case MR_OP_GATE_UP:
        return cpu_gate_up_scratch_bytes(n);
    case MR_OP_SPARSE_GATE_UP:
    case MR_OP_AXPY:
        return cpu_sparse_scratch_bytes(n);
    default:
        return 0;
    }
}

/* Multiplies by a range of panels of a matrix in file layout. FILE_PANELS panels at a time are repacked into scratch
 * and passed to the ordinary kernel, so the bits are the same as with a matrix that was repacked at load. */
static void run_file_panels(const mr_tensor *w, mr_matmul_fn *kernel, const mr_matmul_args *whole, cpu_panels range,
                            int32_t n_rows, uint8_t *scratch) {
    for (int32_t panel = range.first; panel < range.last; panel += FILE_PANELS) {
        int32_t from = panel * MR_PANEL, n = mr_min_i32(whole->n - from, FILE_PANELS * MR_PANEL);
        int32_t n_panels = mr_min_i32(range.last - panel, FILE_PANELS);
        mr_repack_args repack = {
            .type = w->type,
            .k = whole->k,
            .n = n,
            .src = whole->w + (size_t)from * w->row_bytes,
            .src_row_bytes = w->row_bytes,
            .dst = scratch,
        };
        mr_repack(&repack, 0, n_panels);
        mr_matmul_args args = *whole;
        args.w = scratch;
        args.n = n;
        args.y += from;
        args.bias = whole->bias ? whole->bias + from : NULL;
        args.add = whole->add ? whole->add + from : NULL;
        kernel(&args, 0, n_panels, 0, n_rows);
    }
}

void cpu_multiply(const cpu_backend *be, const mr_tensor *w, const mr_matmul_args *args, cpu_panels range,
                  int32_t n_rows, int thread_idx) {
    mr_matmul_fn *kernel = be->kernels->matmul[mr_panel_of(w->type)];
    if (w->storage == MR_STORAGE_FILE)
        run_file_panels(w, kernel, args, range, n_rows, be->scratch + (size_t)thread_idx * be->scratch_bytes);
    else
        kernel(args, range.first, range.last, 0, n_rows);
}

static void run_matmul(const cpu_backend *be, const cpu_node *n, int32_t n_rows, int32_t idx, int32_t n_tasks,
                       int thread_idx) {
    const mr_tensor *w = n->in[0], *a = n->in[1], *add = n->in[3];
    mr_matmul_args args = {
        .w = cpu_data(w),
        .k = w->ne[0],
        .n = w->ne[1],
        .a = cpu_data(a),
        .a_row_bytes = a->row_bytes,
        .y = (float *)cpu_data(n->out),
        .y_row_bytes = n->out->row_bytes,
        .bias = (const float *)cpu_data(n->in[2]),
        .add = (const float *)cpu_data(add),
        .add_row_bytes = add ? add->row_bytes : 0,
    };
    cpu_multiply(be, w, &args, panels_of_task(w, idx, n_tasks), n_rows, thread_idx);
}

static void run_embed(const cpu_node *n, int32_t row) {
    const mr_tensor *table = n->in[0];
    int32_t id = ((const int32_t *)cpu_data(n->in[1]))[row];
    uint8_t *out = cpu_data(n->out) + (size_t)row * n->out->row_bytes;
    mr_dequantize(table->type, cpu_data(table) + (size_t)id * table->row_bytes, (float *)out, table->ne[0]);
}

static void run_rope(const cpu_backend *be, const cpu_node *n, int32_t row) {
    const mr_tensor *x = n->in[0], *table = n->in[1];
    float *out = (float *)(cpu_data(n->out) + (size_t)row * n->out->row_bytes);
    const float *in = (const float *)(cpu_data(x) + (size_t)row * x->row_bytes);
    const float *turns = (const float *)(cpu_data(table) + (size_t)row * table->row_bytes);
    if (out != in)
        memcpy(out, in, (size_t)x->ne[0] * sizeof(float));
    int32_t head_dim = n->node->params.rope.head_dim;
    be->kernels->rope(out + n->node->params.rope.first, x->ne[0] / head_dim, head_dim, n->node->params.rope.n_rot,
                      n->node->params.rope.pairs, turns);
}

static void run_rope_table(const cpu_backend *be, const cpu_node *n, int32_t row) {
    const mr_tensor *constant = n->in[0];
    const float *angles[MR_ROPE_ROWS];
    for (int i = 0; i < MR_ROPE_ROWS; i++)
        angles[i] = (const float *)(cpu_data(constant) + (size_t)i * constant->row_bytes);
    int32_t position = ((const int32_t *)cpu_data(n->in[1]))[row];
    float *out = (float *)(cpu_data(n->out) + (size_t)row * n->out->row_bytes);
    be->kernels->rope_table(angles, constant->ne[0], position, n->node->params.rope.magnitude, out);
}

void cpu_make_activations(const cpu_backend *be, const float *x, mr_type type, uint8_t *out, int32_t n) {
    if (type == MR_TYPE_F32)
        memcpy(out, x, (size_t)n * sizeof *x);
    else if (type == MR_TYPE_BF16)
        be->kernels->round_bf16(x, (uint16_t *)(void *)out, n);
    else
        be->kernels->quantize(x, out, n);
}

/* Sums and products element by element. */
static void run_elements(const cpu_backend *be, const cpu_node *n, int32_t row) {
    const float *a = cpu_float_row(n->in[0], row), *b = n->in[1] ? cpu_float_row(n->in[1], row) : NULL;
    float *y = cpu_float_row(n->out, row), factor = n->node->params.scale.factor;
    int32_t width = n->out->ne[0];
    switch (n->node->op) {
    case MR_OP_ADD:
        for (int32_t i = 0; i < width; i++)
            y[i] = a[i] + b[i];
        return;
    case MR_OP_ADD_GATED:
        factor = mr_sigmoidf(cpu_float_row(n->in[2], row)[0]);
        for (int32_t i = 0; i < width; i++)
            y[i] = a[i] + factor * b[i];
        return;
    case MR_OP_SCALE:
        for (int32_t i = 0; i < width; i++)
            y[i] = a[i] * factor;
        return;
    case MR_OP_RELU:
        for (int32_t i = 0; i < width; i++)
            y[i] = mr_relu(a[i]);
        return;
    default:
        be->kernels->soft_cap(a, y, width, factor);
    }
}

/* Computes one row of an op whose rows are independent. */
static void run_row(const cpu_backend *be, const cpu_node *n, int32_t row) {
    const mr_tensor *x = n->in[0], *out = n->out;
    uint8_t *y = cpu_data(out) + (size_t)row * out->row_bytes;
    const uint8_t *a = cpu_data(x) + (x->row_count == MR_ROWS_FIXED ? 0 : (size_t)row * x->row_bytes);
    float scratch[CPU_MAX_ROW_FLOATS];
    float *f32 = out->type == MR_TYPE_F32 ? (float *)y : scratch;
    switch (n->node->op) {
    case MR_OP_EMBED:
        run_embed(n, row);
        return;
    case MR_OP_ROPE:
        run_rope(be, n, row);
        return;
    case MR_OP_ROPE_TABLE:
        run_rope_table(be, n, row);
        return;
    case MR_OP_QUANTIZE:
        cpu_make_activations(be, (const float *)a, out->type, y, x->ne[0]);
        return;
    case MR_OP_RMS_NORM: {
        int32_t n_kept = n->node->params.norm.n_kept, n_normed = x->ne[0] - n_kept;
        be->kernels->rms_norm((const float *)a, (const float *)cpu_data(n->in[1]), f32, n_normed, n->in[1]->ne[0],
                              n->node->params.norm.eps);
        if (n_kept > 0 && f32 != (const float *)a)
            memcpy(f32 + n_normed, (const float *)a + n_normed, (size_t)n_kept * sizeof *f32);
        break;
    }
    case MR_OP_GLU:
        be->kernels->glu((const float *)a, (const float *)(cpu_data(n->in[1]) + (size_t)row * n->in[1]->row_bytes), f32,
                         x->ne[0], n->node->params.glu);
        break;
    case MR_OP_ADD:
    case MR_OP_ADD_GATED:
    case MR_OP_SCALE:
    case MR_OP_RELU:
    case MR_OP_SOFT_CAP:
        run_elements(be, n, row);
        return;
    case MR_OP_ROUTE:
        cpu_run_route(be, n, row);
        return;
    case MR_OP_EXPERT_SUM:
        cpu_run_expert_sum(n, row);
        return;
    case MR_OP_TOP:
        cpu_run_top(n, row);
        return;
    case MR_OP_TAKE_ROWS: {
        int32_t from = ((const int32_t *)cpu_data(n->in[1]))[row];
        memcpy(y, cpu_data(x) + (size_t)from * x->row_bytes, (size_t)x->ne[0] * sizeof(float));
        return;
    }
    default:
        MR_ASSERT(!"an op that is not done row by row");
    }
    if (out->type != MR_TYPE_F32)
        cpu_make_activations(be, scratch, out->type, y, out->ne[0]);
}

void cpu_run_task(const cpu_backend *be, const cpu_node *n, const mr_run *run, int32_t idx, int32_t n_tasks,
                  int thread_idx) {
    int32_t n_rows = count_rows(n, run), first, last;
    switch (n->node->op) {
    case MR_OP_MATMUL:
        run_matmul(be, n, n_rows, idx, n_tasks, thread_idx);
        return;
    case MR_OP_GATE_UP:
        cpu_run_gate_up(be, n, n_rows, panels_of_task(n->in[0], idx, n_tasks), thread_idx);
        return;
    case MR_OP_HEAD_MATMUL:
        cpu_run_head_matmul(be, n, n_rows, idx, thread_idx);
        return;
    case MR_OP_ATTENTION:
        cpu_run_attention(be, n, idx);
        return;
    case MR_OP_EXPERT_ROWS:
        cpu_run_expert_rows(n, run);
        return;
    case MR_OP_EXPERT_MATMUL:
        cpu_run_expert_matmul(be, n, idx, n_tasks, thread_idx);
        return;
    case MR_OP_ACTIVE:
        cpu_run_active(n, n_rows, idx, n_tasks);
        return;
    case MR_OP_SPARSE_GATE_UP:
        cpu_run_sparse_gate_up(be, n, n_rows, idx, n_tasks, thread_idx);
        return;
    case MR_OP_AXPY:
        cpu_run_axpy(be, n, n_rows, idx, n_tasks);
        return;
    case MR_OP_TABLE_WRITE:
        cpu_run_table_write(n, n_rows);
        return;
    case MR_OP_KV_COPY:
        cpu_run_kv_copy(n, n_rows, idx);
        return;
    default:
        break;
    }
    cut(n_rows, idx, n_tasks, &first, &last);
    if (n->node->op == MR_OP_KV_WRITE) {
        cpu_run_kv_write(be, n, first, last);
        return;
    }
    for (int32_t row = first; row < last; row++)
        run_row(be, n, row);
}
