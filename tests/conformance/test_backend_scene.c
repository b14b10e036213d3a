/* tests/conformance/test_backend_scene.c - builds the graphs of the suite in test_backend.h and runs them on the
 * reference and on the backend under test. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "test_backend.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

enum { SEED = 3, MANY_VALUES = 16 };

/* --- Tensors ------------------------------------------------------------------------------------------------------ */

static int32_t add_input(scene *s, mr_type type, int32_t columns, mr_row_count rows) {
    assert_true(s->n_inputs < SCENE_MAX_TENSORS);
    int32_t id = mr_graph_input(s->g, "input", type, columns, rows);
    s->inputs[s->n_inputs].id = id;
    s->inputs[s->n_inputs].columns = columns;
    s->inputs[s->n_inputs].type = type;
    s->inputs[s->n_inputs].rows = rows;
    s->inputs[s->n_inputs].data = calloc((size_t)columns * (size_t)s->max_rows[rows], sizeof(float));
    assert_non_null(s->inputs[s->n_inputs].data);
    s->n_inputs++;
    return id;
}

void scene_refill(scene *s, int32_t input, const int32_t *data) {
    int i = 0;
    while (s->inputs[i].id != input)
        i++;
    int32_t n = s->inputs[i].columns * s->max_rows[s->inputs[i].rows];
    if (data)
        memcpy(s->inputs[i].data, data, (size_t)n * sizeof *data);
    for (int32_t e = 0; !data && e < n; e++)
        ((float *)s->inputs[i].data)[e] = rng_unit(&s->r);
}

int32_t scene_floats(scene *s, int32_t columns, mr_row_count rows) {
    int32_t id = add_input(s, MR_TYPE_F32, columns, rows);
    scene_refill(s, id, NULL);
    return id;
}

int32_t scene_ints(scene *s, const int32_t *data, mr_row_count rows) {
    int32_t id = add_input(s, MR_TYPE_I32, 1, rows);
    scene_refill(s, id, data);
    return id;
}

static void place(scene *s, mr_tensor *t) {
    mr_err err = {0};
    assert_true(s->n_buffers < SCENE_MAX_TENSORS - 1);
    expect_ok(s->be->ops->buffer_create(s->be, t->bytes, &s->buffers[s->n_buffers], &err), &err);
    t->buffer = s->buffers[s->n_buffers++];
    t->offset = 0;
}

/* Places the tensor and fills it. */
static int32_t use(scene *s, mr_tensor *t, const void *data, size_t bytes) {
    mr_fence fence = 0;
    mr_err err = {0};
    place(s, t);
    expect_ok(s->be->ops->set(s->be, t->buffer, 0, data, bytes, &fence, &err), &err);
    expect_ok(s->be->ops->wait(s->be, fence, MR_NEVER, &err), &err);
    return mr_graph_use(s->g, t);
}

/* Loads a matrix; on a device in two parts, the first of whole panels, as far as it has the rows. */
static void load_matrix(scene *s, const mr_tensor *t, const uint8_t *rows) {
    mr_fence fence = 0;
    mr_err err = {0};
    mr_device_info device;
    mr_tensor part = *t;
    s->be->ops->describe(s->be, &device);
    int32_t half = device.host_addressable ? 0 : t->ne[1] / 2 / MR_PANEL * MR_PANEL;
    const int32_t n_rows[2] = {half, t->ne[1] - half};
    for (int i = 0; i < 2; i++) {
        part.ne[1] = n_rows[i];
        if (part.ne[1] == 0)
            continue;
        expect_ok(s->be->ops->weight_bytes(s->be, t->type, t->ne[0], part.ne[1], &part.bytes, &err), &err);
        expect_ok(s->be->ops->weight_load(s->be, &part, rows, &fence, &err), &err);
        part.offset += part.bytes;
        rows += t->row_bytes * (size_t)part.ne[1];
    }
    assert_int_equal(part.offset, t->offset + t->bytes);
    expect_ok(s->be->ops->wait(s->be, fence, MR_NEVER, &err), &err);
}

/* Places n matrices of t's rows, each one loaded by itself. */
static int32_t use_weights(scene *s, mr_tensor *t, const uint8_t *rows, int32_t n) {
    mr_err err = {0};
    mr_tensor one = *t;
    one.ne[1] /= n;
    if (s->be->ops->weight_bytes(s->be, t->type, one.ne[0], one.ne[1], &one.bytes, &err) != MR_OK)
        return MR_NO_TENSOR;
    t->bytes = one.bytes * (size_t)n;
    place(s, t);
    one.buffer = t->buffer;
    for (int32_t i = 0; i < n; i++, one.offset += one.bytes, rows += t->row_bytes * (size_t)one.ne[1])
        load_matrix(s, &one, rows);
    return mr_graph_use(s->g, t);
}

int32_t scene_matrices(scene *s, const shape *p) {
    mr_tensor t;
    int32_t n_rows = p->n * p->experts;
    assert_true(mr_tensor_init(&t, "matrix", p->type, p->k, n_rows, p->storage, MR_ROWS_FIXED));
    uint8_t *rows = malloc(t.bytes);
    assert_non_null(rows);
    for (int32_t i = 0; i < n_rows; i++)
        random_weights(&s->r, VALUES_PLAIN, p->type, p->k, rows + (size_t)i * t.row_bytes);
    int32_t id = p->storage == MR_STORAGE_WEIGHT ? use_weights(s, &t, rows, p->experts) : use(s, &t, rows, t.bytes);
    /* Kept until the scene ends, for a backend that keeps the source. */
    assert_true(s->n_inputs < SCENE_MAX_TENSORS);
    s->inputs[s->n_inputs].id = MR_NO_TENSOR;
    s->inputs[s->n_inputs++].data = rows;
    return id;
}

int32_t scene_matrix(scene *s, mr_type type, int32_t k, int32_t n, mr_storage storage) {
    return scene_matrices(s, &(shape){.type = type, .k = k, .n = n, .storage = storage, .experts = 1});
}

static int32_t floats(scene *s, const char *name, int32_t columns, int32_t rows, mr_storage storage) {
    mr_tensor t;
    assert_true(mr_tensor_init(&t, name, MR_TYPE_F32, columns, rows, storage, MR_ROWS_FIXED));
    float *data = calloc(1, t.bytes);
    assert_non_null(data);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t i = 0; i < columns; i++)
            data[(size_t)r * t.row_bytes / sizeof *data + (size_t)i] = 0.75f + 0.25f * rng_unit(&s->r);
    int32_t id = use(s, &t, data, t.bytes);
    free(data);
    return id;
}

int32_t scene_vector(scene *s, int32_t n) {
    return scene_vectors(s, n, 1);
}

int32_t scene_vectors(scene *s, int32_t n, int32_t count) {
    return floats(s, "vector", n, count, MR_STORAGE_FILE);
}

int32_t scene_angles(scene *s, int32_t half) {
    return floats(s, "angles", half, MR_ROPE_ROWS, MR_STORAGE_CONSTANT);
}

int32_t scene_state(scene *s, const mr_tensor *t, const int32_t *data) {
    mr_tensor state = *t;
    void *zeros = calloc(1, t->bytes);
    assert_non_null(zeros);
    int32_t id = use(s, &state, data ? (const void *)data : zeros, t->bytes);
    free(zeros);
    return id;
}

/* --- Running ----------------------------------------------------------------------------------------------------- */

static void scene_close(scene *s) {
    mr_graph_destroy(s->g);
    for (int i = 0; i < s->n_buffers; i++)
        s->be->ops->buffer_destroy(s->be, s->buffers[i]);
    for (int i = 0; i < s->n_inputs; i++)
        free(s->inputs[i].data);
}

static void run_once(scene *s) {
    mr_err err = {0};
    mr_run run = {.n_rows = {1, s->max_rows[MR_ROWS_STEP], s->max_rows[MR_ROWS_OUT], s->max_rows[MR_ROWS_TOP]}};
    for (int i = 0; i < s->n_inputs; i++)
        if (s->inputs[i].id != MR_NO_TENSOR)
            expect_ok(mr_graph_set_rows(s->g, s->inputs[i].id, s->inputs[i].data,
                                        (size_t)s->inputs[i].columns * sizeof(float), s->max_rows[s->inputs[i].rows],
                                        &err),
                      &err);
    expect_ok(mr_graph_run(s->g, &run, &err), &err);
}

typedef struct result {
    float *data;
    size_t n;
} result;

/* False: the backend does not support it. */
static bool run_case(mr_backend *be, build_fn *build, change_fn *change, const shape *p, result *out) {
    scene s = {.be = be, .r = {SEED}, .max_rows = {1, p->rows, (p->rows + 1) / 2, (p->rows + 1) / 2}};
    mr_graph_stats stats;
    mr_err err = {0};
    expect_ok(mr_graph_create(s.max_rows[MR_ROWS_STEP], s.max_rows[MR_ROWS_OUT], &s.g, &err), &err);
    int32_t id = build(&s, p);
    if (id != MR_NO_TENSOR)
        mr_graph_output(s.g, id);
    mr_status status =
        id == MR_NO_TENSOR ? MR_E_UNSUPPORTED : mr_graph_finish(s.g, &(mr_backends){.at = {be}, .n = 1}, &stats, &err);
    if (status == MR_E_UNSUPPORTED) {
        scene_close(&s);
        return false;
    }
    expect_ok(status, &err);
    expect_ok(be->ops->buffer_create(be, stats.work_bytes[0], &s.buffers[s.n_buffers], &err), &err);
    expect_ok(mr_graph_place(s.g, &s.buffers[s.n_buffers++], &err), &err);
    run_once(&s);
    if (change) {
        change(&s, p);
        run_once(&s);
    }
    const mr_tensor *t = mr_graph_tensor(s.g, id);
    int32_t rows = s.max_rows[t->row_count];
    out->n = (size_t)rows * (size_t)t->ne[0];
    out->data = malloc(out->n * sizeof *out->data);
    assert_non_null(out->data);
    expect_ok(mr_graph_get_rows(s.g, id, 0, rows, out->data, (size_t)t->ne[0] * sizeof(float), &err), &err);
    scene_close(&s);
    return true;
}

/* Any NaN equals any NaN (rule A4). */
static bool same_bits(const result *a, const result *b) {
    for (size_t i = 0; i < a->n; i++)
        if (memcmp(&a->data[i], &b->data[i], sizeof(float)) != 0 && !(isnan(a->data[i]) && isnan(b->data[i])))
            return false;
    return true;
}

static double nmse(const result *got, const result *want) {
    double error = 0, size = 0;
    for (size_t i = 0; i < want->n; i++) {
        double d = (double)got->data[i] - (double)want->data[i];
        error += d * d;
        size += (double)want->data[i] * (double)want->data[i];
    }
    return size > 0 ? error / size : error;
}

/* What is rounded costs the same on the average of many values; one of them may be next to nothing by chance. */
static double bound(const backend_kind *kind, const shape *p, size_t n_values) {
    if (kind->max_nmse_rounded == 0 || mr_type_activation(p->type) == MR_TYPE_F32)
        return kind->max_nmse;
    return n_values >= MANY_VALUES ? kind->max_nmse_rounded : 1000 * kind->max_nmse_rounded;
}

static bool must_run(const backend_kind *kind, const shape *p) {
    return kind->runs_all || ((kind->types >> p->type & 1) && p->storage != MR_STORAGE_FILE);
}

void expect_same(const char *what, build_fn *build, change_fn *change, const shape *p) {
    static int count;
    result want = {0};
    if (share_skips(&count))
        return;
    assert_true(run_case(backend_at(0), build, change, p, &want));
    for (int i = 1; backend_kind_at(i); i++) {
        const backend_kind *kind = backend_kind_at(i);
        result got = {0};
        if (!backend_at(i))
            continue;
        if (!run_case(backend_at(i), build, change, p, &got)) {
            if (must_run(kind, p))
                fail_msg("%s: %s is not supported", kind->name, what);
            continue;
        }
        assert_int_equal(got.n, want.n);
        double max_nmse = bound(kind, p, want.n);
        bool good = max_nmse > 0 ? nmse(&got, &want) <= max_nmse : same_bits(&got, &want);
        if (!good)
            fail_msg("%s: %s (%s, k %d, n %d, %d rows) differs, nmse %g", kind->name, what, mr_type_name(p->type), p->k,
                     p->n, p->rows, nmse(&got, &want));
        free(got.data);
    }
    free(want.data);
}
