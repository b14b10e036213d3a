// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/device_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/registry.h"
#include "engine/base/clock.h"
#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "tests/support/rng.h"

static void need(mr_status status, const mr_err *err) {
    if (status == MR_OK)
        return;
    fprintf(stderr, "error: %s\n", err->text);
    exit(1);
}

/* Zeroed. */
static void *allocate(size_t bytes) {
    void *p = mr_alloc(bytes);
    if (p)
        return p;
    fprintf(stderr, "error: no %zu bytes of memory\n", bytes);
    exit(1);
}

void rig_open(rig *r, const char *backend, int32_t n_threads) {
    mr_err err;
    *r = (rig){0};
    need(mr_backend_create(backend, &(mr_backend_options){.n_threads = n_threads, .n_sharers = 1}, &r->be, &err), &err);
}

void rig_clear(rig *r) {
    mr_backend_drain(r->be);
    for (int32_t i = 0; i < r->n_tensors; i++)
        r->be->ops->buffer_destroy(r->be, r->tensors[i].buffer);
    r->n_tensors = r->n_nodes = 0;
}

void rig_close(rig *r) {
    rig_clear(r);
    mr_backend_destroy(r->be);
}

/* --- Tensors ----------------------------------------------------------------------------------------------------- */

static int32_t add(rig *r, const mr_tensor *t) {
    mr_err err;
    MR_ASSERT(r->n_tensors < RIG_TENSORS);
    mr_tensor *added = &r->tensors[r->n_tensors];
    *added = *t;
    added->home = r->be;
    need(r->be->ops->buffer_create(r->be, t->bytes, &added->buffer, &err), &err);
    return r->n_tensors++;
}

static mr_tensor describe(mr_type type, int32_t columns, int32_t rows, mr_storage storage) {
    mr_tensor t;
    bool is_of_step = storage == MR_STORAGE_INPUT || storage == MR_STORAGE_OUTPUT;
    if (mr_tensor_init(&t, "rig", type, columns, rows, storage, is_of_step ? MR_ROWS_STEP : MR_ROWS_FIXED))
        return t;
    fprintf(stderr, "error: there is no tensor of %d x %d elements of %s\n", columns, rows, mr_type_name(type));
    exit(1);
}

static void wait(rig *r, mr_fence fence) {
    mr_err err;
    need(r->be->ops->wait(r->be, fence, MR_NEVER, &err), &err);
}

void rig_set(rig *r, int32_t tensor, const void *data) {
    const mr_tensor *t = &r->tensors[tensor];
    mr_fence fence;
    mr_err err;
    need(r->be->ops->set(r->be, t->buffer, 0, data, t->bytes, &fence, &err), &err);
    wait(r, fence);
}

void rig_get(rig *r, int32_t tensor, void *data) {
    const mr_tensor *t = &r->tensors[tensor];
    mr_fence fence;
    mr_err err;
    need(r->be->ops->get(r->be, t->buffer, 0, data, t->bytes, &fence, &err), &err);
    wait(r, fence);
}

int32_t rig_tensor(rig *r, mr_type type, int32_t columns, int32_t rows, mr_storage storage) {
    mr_tensor t = describe(type, columns, rows, storage);
    int32_t id = add(r, &t);
    uint8_t *zeros = allocate(t.bytes);
    rig_set(r, id, zeros);
    mr_free(zeros);
    return id;
}

static int32_t add_floats(rig *r, const mr_tensor *t, uint32_t stream) {
    int32_t id = add(r, t);
    float *data = allocate(t->bytes);
    rng random = {.state = stream};
    for (size_t i = 0; i < t->bytes / sizeof *data; i++)
        data[i] = rng_unit(&random);
    rig_set(r, id, data);
    mr_free(data);
    return id;
}

int32_t rig_floats(rig *r, int32_t columns, int32_t rows, uint32_t stream) {
    mr_tensor t = describe(MR_TYPE_F32, columns, rows, MR_STORAGE_INPUT);
    return add_floats(r, &t, stream);
}

int32_t rig_vector(rig *r, int32_t n, uint32_t stream) {
    mr_tensor t = describe(MR_TYPE_F32, n, 1, MR_STORAGE_FILE);
    return add_floats(r, &t, stream);
}

int32_t rig_ints(rig *r, int32_t columns, int32_t rows, const int32_t *data) {
    mr_tensor t = describe(MR_TYPE_I32, columns, rows, columns == 1 ? MR_STORAGE_INPUT : MR_STORAGE_STATE);
    int32_t id = add(r, &t);
    uint8_t *bytes = allocate(t.bytes);
    for (int32_t i = 0; i < rows; i++)
        memcpy(bytes + (size_t)i * t.row_bytes, data + (size_t)i * (size_t)columns, (size_t)columns * sizeof *data);
    rig_set(r, id, bytes);
    mr_free(bytes);
    return id;
}

int32_t rig_matrix(rig *r, mr_type type, int32_t k, int32_t n, const uint8_t *file) {
    mr_tensor t = describe(type, k, n, MR_STORAGE_WEIGHT);
    mr_fence fence;
    mr_err err;
    if (r->be->ops->weight_bytes(r->be, type, k, n, &t.bytes, &err) != MR_OK)
        return MR_NO_TENSOR;
    int32_t id = add(r, &t);
    need(r->be->ops->weight_load(r->be, &r->tensors[id], file, &fence, &err), &err);
    wait(r, fence);
    return id;
}

/* --- Comparing --------------------------------------------------------------------------------------------------- */

static bool same_floats(const uint8_t *a, const uint8_t *b, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        float x = mr_load_le_f32(a + 4 * (size_t)i), y = mr_load_le_f32(b + 4 * (size_t)i);
        if (!(isnan(x) && isnan(y)) && memcmp(&x, &y, sizeof x) != 0)
            return false;
    }
    return true;
}

static bool same_bf16(const uint8_t *a, const uint8_t *b, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        uint16_t x = mr_load_le16(a + 2 * (size_t)i), y = mr_load_le16(b + 2 * (size_t)i);
        if (x != y && !((x & 0x7fff) > 0x7f80 && (y & 0x7fff) > 0x7f80))
            return false;
    }
    return true;
}

static bool same_row(mr_type type, const uint8_t *a, const uint8_t *b, int32_t n) {
    if (type == MR_TYPE_F32)
        return same_floats(a, b, n);
    if (type == MR_TYPE_BF16)
        return same_bf16(a, b, n);
    MR_ASSERT(type == MR_TYPE_A8);
    return memcmp(a, b, (size_t)n) == 0 && same_floats(a + n, b + n, n / 32) &&
           memcmp(a + n + n / 8, b + n + n / 8, (size_t)n / 8) == 0;
}

int32_t rig_count_different(rig *a, rig *b, int32_t tensor, int32_t n_rows) {
    const mr_tensor *t = &a->tensors[tensor];
    uint8_t *x = allocate(t->bytes), *y = allocate(t->bytes);
    int32_t n = 0;
    rig_get(a, tensor, x);
    rig_get(b, tensor, y);
    for (int32_t r = 0; r < n_rows; r++)
        n += !same_row(t->type, x + (size_t)r * t->row_bytes, y + (size_t)r * t->row_bytes, t->ne[0]);
    mr_free(x);
    mr_free(y);
    return n;
}

/* --- Runs -------------------------------------------------------------------------------------------------------- */

mr_node *rig_node(rig *r, mr_op op) {
    MR_ASSERT(r->n_nodes < RIG_NODES);
    mr_node *n = &r->nodes[r->n_nodes];
    *n = (mr_node){.op = op, .out = MR_NO_TENSOR, .group = r->n_nodes++};
    for (int i = 0; i < MR_MAX_INPUTS; i++)
        n->in[i] = MR_NO_TENSOR;
    return n;
}

/* NULL: the backend does not support a node. */
static mr_program *prepare(rig *r) {
    mr_program *program = NULL;
    mr_err err;
    for (int32_t i = 0; i < r->n_nodes; i++)
        if (!r->be->ops->supports(r->be, r->tensors, &r->nodes[i]))
            return NULL;
    const mr_program_desc desc = {.tensors = r->tensors, .nodes = r->nodes, .n_nodes = r->n_nodes};
    need(r->be->ops->program_create(r->be, &desc, &program, &err), &err);
    return program;
}

/* The nanoseconds of n runs. */
static int64_t run_for(rig *r, mr_program *program, int32_t n_rows, int32_t n) {
    const mr_run run = {.n_rows = {[MR_ROWS_FIXED] = 1, [MR_ROWS_STEP] = n_rows}};
    mr_fence begin, end, fence;
    int64_t begin_ns, end_ns;
    mr_err err;
    need(r->be->ops->mark(r->be, &begin, &err), &err);
    for (int32_t i = 0; i < n; i++)
        need(r->be->ops->submit(r->be, program, &run, &fence, &err), &err);
    need(r->be->ops->mark(r->be, &end, &err), &err);
    wait(r, end);
    need(r->be->ops->fence_ns(r->be, begin, &begin_ns, &err), &err);
    need(r->be->ops->fence_ns(r->be, end, &end_ns, &err), &err);
    return end_ns - begin_ns;
}

bool rig_run(rig *r, int32_t n_rows) {
    mr_program *program = prepare(r);
    if (program) {
        run_for(r, program, n_rows, 1);
        r->be->ops->program_destroy(r->be, program);
    }
    r->n_nodes = 0;
    return program != NULL;
}

double rig_time(rig *r, int32_t n_rows, double seconds) {
    mr_program *program = prepare(r);
    double ns = 0;
    if (program) {
        run_for(r, program, n_rows, 1); /* warms up */
        double once = (double)run_for(r, program, n_rows, 1), wanted = seconds * 1e9 / (once > 1 ? once : 1);
        int32_t n = wanted < 3 ? 3 : wanted > 1000 ? 1000 : (int32_t)wanted;
        ns = (double)run_for(r, program, n_rows, n) / n;
        r->be->ops->program_destroy(r->be, program);
    }
    r->n_nodes = 0;
    return ns;
}
