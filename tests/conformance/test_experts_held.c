/* Experts of which a device holds some: for any map of experts to the device and the host, and for maps that change
 * between runs, the result has the bits of the CPU alone. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "engine/graph/graph.h"
#include "tests/conformance/emulated_gpu.h"
#include "tests/kernels/test_matmul_reference.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"

enum { NONE = MR_NO_TENSOR, MAX_BUFFERS = 32, MATRICES = 3, MAX_EXPERTS = 16 };

/* What a case is made of. */
typedef struct shape {
    mr_type type;
    int32_t width, ff, n, n_used, n_held, rows;
    bool has_biases;
} shape;

/* The numbers of a case, the same for every place of the experts. gate, up, down: matrices in file layout. */
typedef struct numbers {
    uint8_t *matrices[MATRICES];
    size_t matrix_bytes[MATRICES]; /* of one expert */
    float *router, *biases[MATRICES], *x;
} numbers;

static int32_t columns_of(const shape *p, int m) {
    return m == 2 ? p->ff : p->width;
}
static int32_t rows_of(const shape *p, int m) {
    return m == 2 ? p->width : p->ff;
}

static float *draw(rng *r, int32_t n) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int32_t i = 0; i < n; i++)
        x[i] = rng_unit(r);
    return x;
}

static numbers numbers_make(const shape *p, uint64_t seed) {
    rng r = {.state = seed};
    numbers n = {.router = draw(&r, p->width * p->n), .x = draw(&r, p->width * p->rows)};
    for (int m = 0; m < MATRICES; m++) {
        mr_tensor t;
        assert_true(mr_tensor_init(&t, "w", p->type, columns_of(p, m), rows_of(p, m), MR_STORAGE_FILE, MR_ROWS_FIXED));
        n.matrix_bytes[m] = t.bytes;
        n.matrices[m] = malloc(t.bytes * (size_t)p->n);
        for (int32_t row = 0; row < rows_of(p, m) * p->n; row++)
            random_weights(&r, VALUES_PLAIN, p->type, t.ne[0], n.matrices[m] + (size_t)row * t.row_bytes);
        n.biases[m] = draw(&r, rows_of(p, m) * p->n);
    }
    return n;
}

static void numbers_free(numbers *n) {
    for (int m = 0; m < MATRICES; m++) {
        free(n->matrices[m]);
        free(n->biases[m]);
    }
    free(n->router);
    free(n->x);
}

/* A feed-forward part on a device and the CPU, or on the CPU alone. */
typedef struct rig {
    const shape *p;
    const numbers *n;
    mr_backends backends;
    mr_graph *g;
    struct {
        mr_backend *be;
        mr_buffer *buffer;
    } buffers[MAX_BUFFERS];
    int n_buffers;
    mr_tensor held[MATRICES], held_biases[MATRICES], places[2]; /* of the device, of the host */
    int32_t x, y;
} rig;

static mr_buffer *take_buffer(rig *r, mr_backend *be, size_t bytes) {
    mr_err err = {0};
    assert_true(r->n_buffers < MAX_BUFFERS);
    r->buffers[r->n_buffers].be = be;
    expect_ok(be->ops->buffer_create(be, bytes, &r->buffers[r->n_buffers].buffer, &err), &err);
    return r->buffers[r->n_buffers++].buffer;
}

static void write(const mr_tensor *t, size_t offset, const void *data, size_t bytes) {
    mr_err err = {0};
    mr_fence fence = 0;
    expect_ok(t->home->ops->set(t->home, t->buffer, offset, data, bytes, &fence, &err), &err);
    expect_ok(t->home->ops->wait(t->home, fence, MR_NEVER, &err), &err);
}

/* A tensor of the backend without values. */
static mr_tensor place(rig *r, mr_backend *be, mr_type type, int32_t columns, int32_t rows, mr_storage storage) {
    mr_tensor t;
    assert_true(mr_tensor_init(&t, "t", type, columns, rows, storage, MR_ROWS_FIXED));
    t.home = be;
    t.buffer = take_buffer(r, be, t.bytes);
    return t;
}

/* Room for n matrices of kind m in the layout of the backend. */
static mr_tensor place_matrices(rig *r, mr_backend *be, int m, int32_t n) {
    mr_tensor t;
    mr_err err = {0};
    int32_t columns = columns_of(r->p, m), rows = rows_of(r->p, m);
    assert_true(mr_tensor_init(&t, "w", r->p->type, columns, rows * n, MR_STORAGE_WEIGHT, MR_ROWS_FIXED));
    expect_ok(be->ops->weight_bytes(be, t.type, columns, rows, &t.bytes, &err), &err);
    t.bytes *= (size_t)n;
    t.home = be;
    t.buffer = take_buffer(r, be, t.bytes);
    return t;
}

/* Loads the matrix of an expert as number idx of n in t. */
static void load_matrix(const rig *r, const mr_tensor *t, int m, int32_t n, int32_t idx, int32_t expert) {
    mr_err err = {0};
    mr_fence fence = 0;
    mr_tensor one = *t;
    one.ne[1] = rows_of(r->p, m);
    one.bytes = t->bytes / (size_t)n;
    one.offset = one.bytes * (size_t)idx;
    const uint8_t *src = r->n->matrices[m] + r->n->matrix_bytes[m] * (size_t)expert;
    expect_ok(t->home->ops->weight_load(t->home, &one, src, &fence, &err), &err);
    expect_ok(t->home->ops->wait(t->home, fence, MR_NEVER, &err), &err);
}

/* The matrices and biases of all experts, on the last backend. */
static void add_all(rig *r, mr_experts_desc *desc, mr_expert_biases *biases) {
    mr_backend *host = r->backends.at[r->backends.n - 1];
    int32_t ids[MATRICES], bias_ids[MATRICES];
    for (int m = 0; m < MATRICES; m++) {
        mr_tensor t = place_matrices(r, host, m, r->p->n);
        for (int32_t e = 0; e < r->p->n; e++)
            load_matrix(r, &t, m, r->p->n, e, e);
        ids[m] = mr_graph_use(r->g, &t);
        t = place(r, host, MR_TYPE_F32, rows_of(r->p, m), r->p->n, MR_STORAGE_FILE);
        write(&t, 0, r->n->biases[m], t.bytes);
        bias_ids[m] = r->p->has_biases ? mr_graph_use(r->g, &t) : NONE;
    }
    desc->gate = ids[0], desc->up = ids[1], desc->down = ids[2];
    *biases = (mr_expert_biases){NONE, NONE, bias_ids[0], bias_ids[1], bias_ids[2]};
}

/* Room for some of them on the first one. */
static void add_held(rig *r, mr_experts_held *out) {
    mr_backend *device = r->backends.at[0], *host = r->backends.at[r->backends.n - 1];
    int32_t ids[MATRICES], bias_ids[MATRICES];
    for (int m = 0; m < MATRICES; m++) {
        r->held[m] = place_matrices(r, device, m, r->p->n_held);
        ids[m] = mr_graph_use(r->g, &r->held[m]);
        r->held_biases[m] = place(r, device, MR_TYPE_F32, rows_of(r->p, m), r->p->n_held, MR_STORAGE_FILE);
        bias_ids[m] = r->p->has_biases ? mr_graph_use(r->g, &r->held_biases[m]) : NONE;
    }
    r->places[0] = place(r, device, MR_TYPE_I32, r->p->n, 1, MR_STORAGE_STATE);
    r->places[1] = place(r, host, MR_TYPE_I32, r->p->n, 1, MR_STORAGE_STATE);
    *out = (mr_experts_held){.n = r->p->n_held,
                             .gate = ids[0],
                             .up = ids[1],
                             .down = ids[2],
                             .gate_bias = bias_ids[0],
                             .up_bias = bias_ids[1],
                             .down_bias = bias_ids[2],
                             .device_places = mr_graph_use(r->g, &r->places[0]),
                             .host_places = mr_graph_use(r->g, &r->places[1])};
}

/* device: NULL for the CPU alone. The router is on the device. */
static void rig_make(rig *r, const shape *p, const numbers *n, mr_backend *device, mr_backend *cpu) {
    mr_err err = {0};
    mr_graph_stats stats;
    *r = (rig){.p = p, .n = n, .backends = {.at = {device ? device : cpu, cpu}, .n = device ? 2 : 1}};
    expect_ok(mr_graph_create(p->rows, p->rows, &r->g, &err), &err);
    mr_expert_biases biases;
    mr_experts_held held;
    mr_experts_desc desc = {.n = p->n, .n_used = p->n_used, .shared = NONE, .biases = &biases};
    mr_tensor router = place(r, r->backends.at[0], MR_TYPE_F32, p->width, p->n, MR_STORAGE_WEIGHT);
    mr_fence fence = 0;
    mr_buffer *work[MR_MAX_BACKENDS] = {NULL};
    expect_ok(router.home->ops->weight_bytes(router.home, router.type, p->width, p->n, &router.bytes, &err), &err);
    router.buffer = take_buffer(r, router.home, router.bytes);
    expect_ok(router.home->ops->weight_load(router.home, &router, (const uint8_t *)n->router, &fence, &err), &err);
    expect_ok(router.home->ops->wait(router.home, fence, MR_NEVER, &err), &err);
    desc.router = mr_graph_use(r->g, &router);
    add_all(r, &desc, &biases);
    if (device) {
        add_held(r, &held);
        desc.held = &held;
    }
    r->x = mr_graph_input(r->g, "x", MR_TYPE_F32, p->width, MR_ROWS_STEP);
    r->y = mr_graph_experts(r->g, r->x, r->x, &desc);
    mr_graph_output(r->g, r->y);
    expect_ok(mr_graph_finish(r->g, &r->backends, &stats, &err), &err);
    for (int32_t b = 0; b < r->backends.n; b++)
        work[b] = stats.work_bytes[b] > 0 ? take_buffer(r, r->backends.at[b], stats.work_bytes[b]) : NULL;
    expect_ok(mr_graph_place(r->g, work, &err), &err);
}

static void rig_deinit(rig *r) {
    mr_graph_destroy(r->g);
    for (int i = 0; i < r->n_buffers; i++)
        r->buffers[i].be->ops->buffer_destroy(r->buffers[i].be, r->buffers[i].buffer);
}

static void run(rig *r, float *out) {
    mr_err err = {0};
    size_t row_bytes = (size_t)r->p->width * sizeof(float);
    expect_ok(mr_graph_set_rows(r->g, r->x, r->n->x, row_bytes, r->p->rows, &err), &err);
    expect_ok(mr_graph_run(r->g, &(mr_run){.n_rows = {1, r->p->rows}}, &err), &err);
    expect_ok(mr_graph_get_rows(r->g, r->y, 0, r->p->rows, out, row_bytes, &err), &err);
}

/* --- Maps -------------------------------------------------------------------------------------------------------- */

/* Gives the device n experts: a drawn choice in a drawn order. */
static void draw_map(rig *r, rng *random, int32_t n) {
    int32_t order[MAX_EXPERTS], places[2][MAX_EXPERTS];
    assert_true(r->p->n <= MAX_EXPERTS && n <= r->p->n_held);
    for (int32_t e = 0; e < r->p->n; e++) {
        int32_t at = rng_below(random, e + 1);
        order[e] = order[at];
        order[at] = e;
        places[0][e] = -1;
        places[1][e] = e;
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t idx = r->p->n_held - 1 - i; /* unused places come first */
        for (int m = 0; m < MATRICES; m++) {
            const mr_tensor *bias = &r->held_biases[m];
            load_matrix(r, &r->held[m], m, r->p->n_held, idx, order[i]);
            write(bias, bias->row_bytes * (size_t)idx, r->n->biases[m] + rows_of(r->p, m) * order[i], bias->row_bytes);
        }
        places[0][order[i]] = idx;
        places[1][order[i]] = -1;
    }
    for (int side = 0; side < 2; side++)
        write(&r->places[side], 0, places[side], (size_t)r->p->n * sizeof(int32_t));
}

/* Every number of experts on the device, with drawn maps, one run behind the other in the same graph. */
static void check(const shape *p, mr_backend *device, mr_backend *cpu, uint64_t seed) {
    numbers n = numbers_make(p, seed);
    rng random = {.state = seed + 1};
    size_t bytes = (size_t)p->width * (size_t)p->rows * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    rig r;
    rig_make(&r, p, &n, NULL, cpu);
    run(&r, want);
    rig_deinit(&r);
    rig_make(&r, p, &n, device, cpu);
    for (int32_t n_held = 0; n_held <= p->n_held; n_held++) {
        draw_map(&r, &random, n_held);
        run(&r, got);
        if (memcmp(got, want, bytes) != 0)
            fail_msg("%s, %d rows: other bits with %d of %d experts on the device", mr_type_name(p->type), p->rows,
                     n_held, p->n);
    }
    rig_deinit(&r);
    numbers_free(&n);
    free(want);
    free(got);
}

static void check_all(mr_backend *device) {
    static const mr_type TYPES[] = {MR_TYPE_F32, MR_TYPE_Q8_0, MR_TYPE_Q4_K, MR_TYPE_BF16, MR_TYPE_MXFP4};
    static const int32_t ROWS[] = {1, 2, 7, 33, 64};
    mr_backend *cpu = NULL;
    mr_err err = {0};
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 2}, &cpu, &err), &err);
    for (size_t i = 0; i < 10; i++) {
        shape p = {.type = TYPES[i % 5], .width = 256, .ff = 256, .rows = ROWS[(i + i / 5) % 5], .has_biases = i % 2};
        p.n = i % 3 ? 8 : 11;
        p.n_used = i % 4 == 3 ? p.n : 1 + (int32_t)i % 3;
        p.n_held = i % 2 ? p.n : 3;
        if (mr_type_get(p.type)->block_elems == 1)
            p.ff = 40;
        check(&p, device, cpu, 7 * i + 1);
    }
    mr_backend_destroy(cpu);
    mr_backend_destroy(device);
}

static void test_on_the_test_device(void **state) {
    (void)state;
    mr_backend *device = NULL;
    mr_err err = {0};
    expect_ok(test_device_create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .seed = 1, .max_delay_us = 20},
                                 &device, &err),
              &err);
    check_all(device);
}

static void test_on_an_emulated_gpu(void **state) {
    (void)state;
    mr_backend *device = NULL;
    mr_err err = {0};
    expect_ok(emulated_gpu_create(&device, &err), &err);
    check_all(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_the_test_device),
        cmocka_unit_test(test_on_an_emulated_gpu),
    };
    return cmocka_run_group_tests_name("experts_held", tests, NULL, NULL);
}
