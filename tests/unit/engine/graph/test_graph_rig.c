// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/engine/graph/test_graph_rig.h"

#include "backends/cpu/cpu_backend.h"
#include "tests/support/test.h"

void rig_add_device(rig *r, const test_device_options *options) {
    mr_err err = {0};
    expect_ok(test_device_create(options, &r->backends.at[r->backends.n++], &err), &err);
}

rig rig_make(uint32_t a_ops, uint32_t b_ops) {
    rig r = {0};
    if (a_ops)
        rig_add_device(&r, &(test_device_options){.ops = a_ops});
    if (b_ops)
        rig_add_device(&r, &(test_device_options){.ops = b_ops});
    mr_cpu_options cpu = {.n_threads = 1};
    assert_int_equal(mr_cpu_backend_create(&cpu, &r.backends.at[r.backends.n++], NULL), MR_OK);
    r.g = graph_make(ROWS, ROWS);
    return r;
}

void rig_finish(rig *r) {
    mr_err err = {0};
    if (mr_graph_finish(r->g, &r->backends, &r->stats, &err) != MR_OK)
        fail_msg("finish: %s", err.text);
}

void rig_place(rig *r) {
    mr_err err = {0};
    for (int32_t b = 0; b < r->backends.n; b++) {
        mr_backend *be = r->backends.at[b];
        if (r->stats.work_bytes[b] > 0)
            assert_int_equal(be->ops->buffer_create(be, r->stats.work_bytes[b], &r->work[b], NULL), MR_OK);
    }
    if (mr_graph_place(r->g, r->work, &err) != MR_OK)
        fail_msg("place: %s", err.text);
}

void rig_destroy(rig *r) {
    mr_graph_destroy(r->g);
    for (int32_t b = 0; b < r->backends.n; b++)
        for (int i = 0; i < 2; i++)
            r->backends.at[b]->ops->buffer_destroy(r->backends.at[b], i ? r->identity[b] : r->work[b]);
    for (int32_t b = 0; b < r->backends.n; b++)
        mr_backend_destroy(r->backends.at[b]);
}

int32_t carry(rig *r, int32_t home, int32_t x) {
    static float rows[WIDTH][WIDTH];
    mr_backend *be = r->backends.at[home];
    mr_fence fence;
    mr_tensor t;
    for (int i = 0; i < WIDTH; i++)
        rows[i][i] = 1.0f;
    assert_true(mr_tensor_init(&t, "identity", MR_TYPE_F32, WIDTH, WIDTH, MR_STORAGE_WEIGHT, MR_ROWS_FIXED));
    assert_int_equal(be->ops->weight_bytes(be, MR_TYPE_F32, WIDTH, WIDTH, &t.bytes, NULL), MR_OK);
    assert_int_equal(be->ops->buffer_create(be, t.bytes, &r->identity[home], NULL), MR_OK);
    t.home = be;
    t.buffer = r->identity[home];
    assert_int_equal(be->ops->weight_load(be, &t, (const uint8_t *)rows, &fence, NULL), MR_OK);
    assert_int_equal(be->ops->wait(be, fence, INT64_MAX, NULL), MR_OK);
    return mr_graph_matmul(r->g, mr_graph_use(r->g, &t), x, NONE, NONE);
}

void set_some(rig *r, int32_t id, float value, int32_t n_rows) {
    static float sent[16][ROWS][WIDTH]; /* a device may read the rows later */
    static int n_sent;
    float(*rows)[WIDTH] = sent[n_sent++ % 16];
    for (int i = 0; i < ROWS * WIDTH; i++)
        rows[i / WIDTH][i % WIDTH] = value + (float)i;
    assert_int_equal(mr_graph_set_rows(r->g, id, rows, sizeof rows[0], n_rows, NULL), MR_OK);
}

void set_all(rig *r, int32_t id, float value) {
    set_some(r, id, value, ROWS);
}

void expect_some(rig *r, int32_t id, float value, float factor, int32_t n_rows) {
    float rows[ROWS][WIDTH];
    assert_int_equal(mr_graph_get_rows(r->g, id, 0, n_rows, rows, sizeof rows[0], NULL), MR_OK);
    for (int i = 0; i < n_rows * WIDTH; i++)
        if (rows[i / WIDTH][i % WIDTH] != value + factor * (float)i)
            fail_msg("element %d is %g, wanted %g", i, (double)rows[i / WIDTH][i % WIDTH],
                     (double)(value + factor * (float)i));
}

void expect_all(rig *r, int32_t id, float value, float factor) {
    expect_some(r, id, value, factor, ROWS);
}
