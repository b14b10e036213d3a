/* The ops that change state between steps: entries of block tables, and KV blocks in all layers of a store. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "test_backend.h"
#include "tests/support/test.h"

enum { SLOTS = 5, COLUMNS = 40, N_ENTRIES = 70, N_BLOCKS = 9, N_PARTS = 3, N_COPIES = 6 };
enum { T_SLOT, T_INDEX, T_BLOCK, T_FROM, T_TO, T_TABLE, T_STORE, T_PARTS, N_TENSORS };

static const int32_t PARTS[N_PARTS] = {64, 192, 128};
enum { BLOCK_BYTES = 64 + 192 + 128, STORE_BYTES = N_BLOCKS * BLOCK_BYTES };
/* Blocks are copied on, onto themselves, and over blocks that were copied before. */
static const int32_t FROM[N_COPIES] = {0, 1, 8, 1, 4, 2}, TO[N_COPIES] = {1, 2, 8, 7, 0, 1};

typedef struct lists {
    int32_t slot[N_ENTRIES], index[N_ENTRIES], block[N_ENTRIES];
} lists;

typedef struct contents {
    int32_t table[SLOTS][48]; /* rows are padded to 64 bytes */
    uint8_t store[STORE_BYTES];
} contents;

static void make_lists(lists *l) {
    for (int32_t i = 0; i < N_ENTRIES; i++) { /* the last entries hit places of the first ones */
        l->slot[i] = i * 3 % SLOTS;
        l->index[i] = i < N_ENTRIES - 4 ? i * 7 % COLUMNS : (i - N_ENTRIES + 4) * 35 % COLUMNS;
        l->block[i] = 1000 + i;
    }
}

/* What the ops have to do, with n_entries and n_copies real rows. */
static void change(contents *c, const lists *l, int32_t n_entries, int32_t n_copies) {
    size_t at = 0;
    for (int32_t i = 0; i < n_entries; i++)
        c->table[l->slot[i]][l->index[i]] = l->block[i];
    for (int p = 0; p < N_PARTS; at += (size_t)N_BLOCKS * (size_t)PARTS[p], p++)
        for (int32_t i = 0; i < n_copies; i++)
            memmove(c->store + at + (size_t)TO[i] * (size_t)PARTS[p],
                    c->store + at + (size_t)FROM[i] * (size_t)PARTS[p], (size_t)PARTS[p]);
}

/* Describes the tensors, one behind the other in a buffer. Returns its bytes. */
static size_t describe(mr_tensor t[N_TENSORS], mr_node nodes[2], size_t alignment) {
    size_t bytes = 0;
    for (int i = T_SLOT; i <= T_TO; i++)
        assert_true(mr_tensor_init(&t[i], "list", MR_TYPE_I32, 1, i < T_FROM ? N_ENTRIES : N_COPIES, MR_STORAGE_INPUT,
                                   i < T_FROM ? MR_ROWS_STEP : MR_ROWS_OUT));
    assert_true(mr_tensor_init(&t[T_TABLE], "table", MR_TYPE_I32, COLUMNS, SLOTS, MR_STORAGE_STATE, MR_ROWS_FIXED));
    assert_true(
        mr_tensor_init(&t[T_STORE], "store", MR_TYPE_I32, BLOCK_BYTES / 4, N_BLOCKS, MR_STORAGE_STATE, MR_ROWS_FIXED));
    assert_true(mr_tensor_init(&t[T_PARTS], "parts", MR_TYPE_I32, N_PARTS, 1, MR_STORAGE_CONSTANT, MR_ROWS_FIXED));
    assert_true(t[T_STORE].bytes == STORE_BYTES && t[T_TABLE].bytes == sizeof((contents *)NULL)->table);
    for (int i = 0; i < N_TENSORS; i++) {
        t[i].offset = bytes;
        bytes = mr_round_up(bytes + t[i].bytes, alignment);
    }
    nodes[0] = (mr_node){.op = MR_OP_TABLE_WRITE, .in = {T_SLOT, T_INDEX, T_BLOCK, T_TABLE}, .out = MR_NO_TENSOR};
    nodes[1] = (mr_node){.op = MR_OP_KV_COPY, .in = {T_FROM, T_TO, T_STORE, T_PARTS}, .out = MR_NO_TENSOR};
    for (int i = 0; i < 2; i++)
        for (int k = 4; k < MR_MAX_INPUTS; k++)
            nodes[i].in[k] = MR_NO_TENSOR;
    return bytes;
}

static mr_fence put(mr_backend *be, const mr_tensor *t, const void *data, size_t bytes) {
    mr_fence fence = 0;
    mr_err err = {0};
    expect_ok(be->ops->set(be, t->buffer, t->offset, data, bytes, &fence, &err), &err);
    return fence;
}

static void take(mr_backend *be, const mr_tensor *t, void *data, size_t bytes) {
    mr_fence fence = 0;
    mr_err err = {0};
    expect_ok(be->ops->get(be, t->buffer, t->offset, data, bytes, &fence, &err), &err);
    expect_ok(be->ops->wait(be, fence, MR_NEVER, &err), &err);
}

/* Everything is queued without a wait: contents, lists, two runs with other numbers of real rows. */
static bool check_state(mr_backend *be, const char *name) {
    static const int32_t counts[2][2] = {{N_ENTRIES, 0}, {3, N_COPIES}};
    static lists l;
    static contents start, want, got;
    mr_tensor t[N_TENSORS];
    mr_node nodes[2];
    mr_device_info device;
    mr_buffer *buffer = NULL;
    mr_program *program = NULL;
    mr_fence fence = 0;
    mr_err err = {0};
    be->ops->describe(be, &device);
    size_t bytes = describe(t, nodes, device.alignment);
    if (!be->ops->supports(be, t, &nodes[0]) || !be->ops->supports(be, t, &nodes[1]))
        return false;
    make_lists(&l);
    for (size_t i = 0; i < sizeof start; i++)
        ((uint8_t *)&start)[i] = (uint8_t)(i * 7 + i / 251);
    want = got = start;
    expect_ok(be->ops->buffer_create(be, bytes, &buffer, &err), &err);
    for (int i = 0; i < N_TENSORS; i++)
        t[i].buffer = buffer;
    expect_ok(
        be->ops->program_create(be, &(mr_program_desc){.tensors = t, .nodes = nodes, .n_nodes = 2}, &program, &err),
        &err);
    const void *data[N_TENSORS] = {l.slot, l.index, l.block, FROM, TO, start.table, start.store, PARTS};
    for (int i = 0; i < N_TENSORS; i++)
        (void)put(be, &t[i], data[i], i == T_PARTS ? sizeof PARTS : t[i].bytes);
    for (int i = 0; i < 2; i++) {
        mr_run run = {.n_rows = {1, counts[i][0], counts[i][1]}};
        expect_ok(be->ops->submit(be, program, &run, &fence, &err), &err);
        change(&want, &l, counts[i][0], counts[i][1]);
    }
    take(be, &t[T_TABLE], got.table, t[T_TABLE].bytes);
    take(be, &t[T_STORE], got.store, sizeof got.store);
    if (memcmp(&got, &want, sizeof got) != 0)
        fail_msg("%s: block tables or KV blocks differ", name);
    assert_memory_not_equal(&want, &start, sizeof want);
    be->ops->program_destroy(be, program);
    be->ops->buffer_destroy(be, buffer);
    return true;
}

void test_state(void **state) {
    (void)state;
    for (int i = 0; backend_kind_at(i); i++)
        if (backend_at(i) && !check_state(backend_at(i), backend_kind_at(i)->name))
            assert_false(backend_kind_at(i)->runs_all);
}
