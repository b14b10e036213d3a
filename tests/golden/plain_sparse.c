// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/plain_sparse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/quant.h"
#include "tests/kernels/test_matmul_reference.h"

/* A node, as a program of the CPU backend or, for a sparse op, as itself. */
typedef struct step {
    mr_program *inside; /* NULL: a sparse op */
    const mr_node *node;
} step;

struct mr_program {
    const mr_tensor *tensors;
    int32_t n;
    step *steps;
};

static const mr_backend_ops *cpu;
static mr_backend_ops ops;
static plain_form form;
static int64_t n_active, n_seen;
static const mr_tensor *scores; /* of the last ACTIVE node */

static uint8_t *row_of(const mr_tensor *t, int32_t row) {
    return t->buffer->base + t->offset + (size_t)row * t->row_bytes;
}

static float *floats(const mr_tensor *t, int32_t row) {
    return (float *)(void *)row_of(t, row);
}

static float relu(float x) {
    return x <= 0.0f ? 0.0f : x;
}

static float product(const mr_tensor *w, int32_t neuron, const mr_tensor *a, int32_t row) {
    return reference_dot(w->type, row_of(w, neuron), row_of(a, row), w->ne[0]);
}

static void run_gate_up(const mr_tensor *t, const mr_node *n, int32_t n_rows) {
    const mr_tensor *gate = &t[n->in[0]], *a = &t[n->in[2]];
    for (int32_t row = 0; row < n_rows; row++)
        for (int32_t i = 0; i < gate->ne[1]; i++) {
            float *h = floats(&t[n->out], row) + i;
            bool active = form == PLAIN_DENSE || !(floats(scores, row)[i] < n->params.sparse.threshold);
            n_active += active;
            n_seen++;
            *h = active ? relu(product(gate, i, a, row)) : 0.0f;
            if (*h != 0.0f && n->params.sparse.unit != MR_RELU_ALONE) {
                float up = product(&t[n->in[1]], i, a, row);
                *h = *h * (n->params.sparse.unit == MR_RELU_BOTH ? relu(up) : up);
            }
        }
}

/* Adds the neurons of a partition with h != 0 to y [width]. */
static void add_partition(const mr_tensor *down, const float *h, int32_t first, float *y) {
    int32_t width = down->ne[0], last = first + MR_PARTITION < down->ne[1] ? first + MR_PARTITION : down->ne[1];
    float *acc = calloc((size_t)width, sizeof *acc), *w = malloc((size_t)width * sizeof *w);
    bool any = false;
    for (int32_t i = first; acc && w && i < last; i++) {
        if (h[i] == 0.0f)
            continue;
        any = true;
        mr_dequantize(down->type, row_of(down, i), w, width);
        for (int32_t d = 0; d < width; d++)
            acc[d] = fmaf(w[d], h[i], acc[d]);
    }
    for (int32_t d = 0; any && d < width; d++)
        y[d] = y[d] + acc[d];
    free(acc);
    free(w);
}

static void run_axpy(const mr_tensor *t, const mr_node *n, int32_t n_rows) {
    const mr_tensor *down = &t[n->in[0]];
    for (int32_t row = 0; row < n_rows; row++) {
        float *y = calloc((size_t)down->ne[0], sizeof *y);
        for (int32_t first = 0; y && first < down->ne[1]; first += MR_PARTITION)
            add_partition(down, floats(&t[n->in[1]], row), first, y);
        for (int32_t d = 0; y && d < down->ne[0]; d++)
            floats(&t[n->out], row)[d] = n->in[2] == MR_NO_TENSOR ? y[d] : y[d] + floats(&t[n->in[2]], row)[d];
        free(y);
    }
}

static void run_plain(const mr_program *p, const mr_node *n, int32_t n_rows) {
    if (n->op == MR_OP_ACTIVE)
        scores = &p->tensors[n->in[0]];
    else if (n->op == MR_OP_SPARSE_GATE_UP)
        run_gate_up(p->tensors, n, n_rows);
    else
        run_axpy(p->tensors, n, n_rows);
}

static bool is_sparse(mr_op op) {
    return op == MR_OP_ACTIVE || op == MR_OP_SPARSE_GATE_UP || op == MR_OP_AXPY;
}

static void program_destroy(mr_backend *be, mr_program *p) {
    for (int32_t i = 0; p && p->steps && i < p->n; i++)
        if (p->steps[i].inside)
            cpu->program_destroy(be, p->steps[i].inside);
    if (p)
        free(p->steps);
    free(p);
}

static mr_status program_create(mr_backend *be, const mr_program_desc *desc, mr_program **out, mr_err *err) {
    mr_program *p = calloc(1, sizeof *p);
    if (p)
        *p = (mr_program){desc->tensors, desc->n_nodes, calloc((size_t)desc->n_nodes + 1, sizeof *p->steps)};
    mr_status status = p && p->steps ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a plain program");
    for (int32_t i = 0; i < desc->n_nodes && status == MR_OK; i++) {
        p->steps[i].node = &desc->nodes[i];
        mr_program_desc one = {.tensors = desc->tensors, .nodes = &desc->nodes[i], .n_nodes = 1};
        if (!is_sparse(desc->nodes[i].op))
            status = cpu->program_create(be, &one, &p->steps[i].inside, err);
    }
    if (status == MR_OK)
        *out = p;
    else
        program_destroy(be, p);
    return status;
}

static mr_status submit(mr_backend *be, mr_program *p, const mr_run *run, mr_fence *out, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t i = 0; i < p->n && status == MR_OK; i++) {
        if (p->steps[i].inside)
            status = cpu->submit(be, p->steps[i].inside, run, out, err);
        else
            run_plain(p, p->steps[i].node, run->n_rows[MR_ROWS_STEP]);
    }
    return status;
}

void plain_sparse_begin(mr_backend *be, plain_form wanted) {
    cpu = be->ops;
    form = wanted;
    n_active = n_seen = 0;
    ops = *cpu;
    ops.program_create = program_create;
    ops.program_destroy = program_destroy;
    ops.submit = submit;
    be->ops = &ops;
}

double plain_sparse_share(void) {
    return n_seen ? (double)n_active / (double)n_seen : 0;
}
