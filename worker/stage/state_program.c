/* worker/stage/state_program.c - describes, places and runs the program. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/state_program.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"

static void describe_nodes(state_program *p) {
    static const mr_node nodes[] = {
        {.op = MR_OP_TABLE_WRITE, .in = {STATE_SLOT, STATE_INDEX, STATE_BLOCK, STATE_TABLE}},
        {.op = MR_OP_KV_COPY, .in = {STATE_FROM, STATE_TO, STATE_STORE, STATE_PARTS}},
    };
    for (int i = 0; i < 2; i++) {
        p->nodes[i] = nodes[i];
        p->nodes[i].out = MR_NO_TENSOR;
        for (int k = 4; k < MR_MAX_INPUTS; k++)
            p->nodes[i].in[k] = MR_NO_TENSOR;
    }
}

/* Places the tensors that lie in p's buffer: block table, parts, then the record. Returns the bytes of the buffer. */
static size_t place_own(state_program *p) {
    mr_device_info device;
    size_t at = 0;
    p->be->ops->describe(p->be, &device);
    static const int own[] = {STATE_TABLE, STATE_PARTS, STATE_SLOT, STATE_INDEX, STATE_BLOCK, STATE_FROM, STATE_TO};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        mr_tensor *t = &p->tensors[own[i]];
        if (own[i] == STATE_PARTS || own[i] == STATE_SLOT)
            at = mr_round_up(at, device.alignment);
        t->home = p->be;
        t->offset = at;
        at += t->bytes;
    }
    return at;
}

mr_status state_program_describe(state_program *p, mr_backend *be, const mr_tensor *table, const mr_kv_desc *kv,
                                 const state_limits *limits, mr_err *err) {
    static const char *const names[STATE_LISTS] = {"table_slots", "table_indices", "table_blocks", "copied", "copies"};
    bool good = true;
    *p = (state_program){.be = be};
    p->tensors[STATE_TABLE] = *table;
    p->parts = mr_alloc_array(2 * (size_t)kv->n_layers, sizeof *p->parts);
    if (!p->parts)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the state of a stage");
    for (int i = 0; i < STATE_LISTS && good; i++)
        good = mr_tensor_init(&p->tensors[i], names[i], MR_TYPE_I32, 1,
                              i < STATE_FROM ? limits->n_entries : limits->n_copies, MR_STORAGE_INPUT,
                              i < STATE_FROM ? MR_ROWS_STEP : MR_ROWS_OUT);
    good = good && mr_tensor_init(&p->tensors[STATE_PARTS], "kv_parts", MR_TYPE_I32, 2 * kv->n_layers, 1,
                                  MR_STORAGE_CONSTANT, MR_ROWS_FIXED);
    if (!good)
        return mr_err_set(err, MR_E_TOO_LONG, "%d layers, %d new blocks, %d copied blocks", kv->n_layers,
                          limits->n_entries, limits->n_copies);
    mr_status status = mr_kv_whole_describe(kv, &p->tensors[STATE_STORE], p->parts, err);
    p->tensors[STATE_STORE].home = be;
    place_own(p);
    describe_nodes(p);
    return status;
}

void state_program_deinit(state_program *p) {
    if (!p->be)
        return;
    p->be->ops->program_destroy(p->be, p->program);
    p->be->ops->buffer_destroy(p->be, p->buffer);
    mr_free(p->parts);
    *p = (state_program){0};
}

bool state_program_is_supported(const state_program *p) {
    return p->be->ops->supports(p->be, p->tensors, &p->nodes[0]) &&
           p->be->ops->supports(p->be, p->tensors, &p->nodes[1]);
}

size_t state_program_bytes(const state_program *p) {
    const mr_tensor *last = &p->tensors[STATE_TO];
    return last->offset + last->bytes;
}

mr_status state_program_place(state_program *p, const mr_tensor *first_keys, mr_err *err) {
    const mr_backend_ops *ops = p->be->ops;
    const mr_tensor *parts = &p->tensors[STATE_PARTS];
    mr_program_desc desc = {.tensors = p->tensors, .nodes = p->nodes, .n_nodes = 2};
    mr_fence fence = 0;
    mr_status status = ops->buffer_create(p->be, state_program_bytes(p), &p->buffer, err);
    if (status != MR_OK)
        return status;
    for (int i = 0; i < STATE_TENSORS; i++)
        p->tensors[i].buffer = p->buffer;
    p->tensors[STATE_STORE].buffer = first_keys->buffer;
    p->tensors[STATE_STORE].offset = first_keys->offset;
    status = ops->set(p->be, p->buffer, parts->offset, p->parts, (size_t)parts->ne[0] * sizeof *p->parts, &fence, err);
    if (status == MR_OK)
        status = ops->wait(p->be, fence, MR_NEVER, err);
    return status == MR_OK ? ops->program_create(p->be, &desc, &p->program, err) : status;
}

mr_status state_program_set(state_program *p, int32_t slot, int32_t first, const int32_t *blocks, int32_t n,
                            mr_fence *out, mr_err *err) {
    const mr_tensor *t = &p->tensors[STATE_TABLE];
    size_t offset = t->offset + (size_t)slot * t->row_bytes + (size_t)first * sizeof *blocks;
    return p->be->ops->set(p->be, p->buffer, offset, blocks, (size_t)n * sizeof *blocks, out, err);
}

mr_status state_program_run(state_program *p, const int32_t *record, const state_limits *counts, mr_fence *out,
                            mr_err *err) {
    const mr_tensor *first = &p->tensors[STATE_SLOT];
    const mr_run run = {
        .n_rows = {[MR_ROWS_FIXED] = 1, [MR_ROWS_STEP] = counts->n_entries, [MR_ROWS_OUT] = counts->n_copies}};
    mr_status status =
        p->be->ops->set(p->be, p->buffer, first->offset, record, state_program_bytes(p) - first->offset, out, err);
    return status == MR_OK ? p->be->ops->submit(p->be, p->program, &run, out, err) : status;
}
