/* backends/digest/digest_case.c - places the tensors of a case in one buffer, runs a program of one node, and adds the
 * bits of its result to a part. A case takes one set, one submit and one get. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/digest/digest_case.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "engine/base/numerics.h"
#include "engine/tensor/f16.h"

enum { POOL_STEP = 131 }; /* from one row of a view of the pool to the next */

/* --- The digest -------------------------------------------------------------------------------------------------- */

void case_part(trial *t, int32_t op, int32_t type) {
    mr_digest *d = t->digest;
    for (int32_t i = 0; i < d->n; i++)
        if (d->parts[i].op == op && d->parts[i].type == type) {
            t->part = &d->parts[i];
            return;
        }
    MR_ASSERT(d->n < MR_DIGEST_PARTS);
    t->part = &d->parts[d->n++];
    *t->part = (mr_digest_part){op, type, MR_NUMERICS_VERSION};
}

/* For a given word the new digest is a bijection of the old one; for a given digest it is a bijection of the word. So a
 * single word that differs always changes the part. */
static uint64_t mix(uint64_t bits, uint64_t word) {
    bits = (bits ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return bits ^ bits >> 32;
}

void case_add_word(trial *t, uint64_t word) {
    t->part->bits = mix(t->part->bits, word);
}

static uint64_t float_bits(float x) {
    return x == x ? mr_f32_bits(x) : 0x7fc00000u;
}

void case_add_floats(trial *t, const float *x, int32_t n) {
    uint64_t bits = t->part->bits;
    for (; n >= 2; n -= 2, x += 2)
        bits = mix(bits, float_bits(x[0]) | float_bits(x[1]) << 32);
    t->part->bits = n > 0 ? mix(bits, float_bits(x[0])) : bits;
}

static void add_bytes(trial *t, const uint8_t *p, size_t n) {
    uint64_t bits = t->part->bits;
    for (; n >= 8; n -= 8, p += 8)
        bits = mix(bits, mr_load_le64(p));
    for (; n > 0; n--, p++)
        bits = mix(bits, *p);
    t->part->bits = bits;
}

static void add_row(trial *t, const mr_tensor *r, const uint8_t *row) {
    size_t n = (size_t)r->ne[0], bytes = 0;
    MR_ASSERT(mr_type_bytes(r->type, r->ne[0], &bytes));
    if (r->type == MR_TYPE_F32 && r->storage != MR_STORAGE_STATE) {
        case_add_floats(t, (const float *)(const void *)row, r->ne[0]);
    } else if (r->type == MR_TYPE_A8) {
        add_bytes(t, row, n);
        case_add_floats(t, (const float *)(const void *)(row + n), r->ne[0] / 32);
        add_bytes(t, row + n + n / 8, n / 8);
    } else {
        add_bytes(t, row, bytes);
    }
}

/* --- Tensors ----------------------------------------------------------------------------------------------------- */

void case_forget(trial *t) {
    t->n_kept = t->n_tensors = 0;
    t->kept_used = t->image_used = 0;
}

mr_node case_begin(trial *t, mr_op op, int32_t n_rows) {
    mr_node n = {.op = op, .out = MR_NO_TENSOR};
    for (int i = 0; i < MR_MAX_INPUTS; i++)
        n.in[i] = MR_NO_TENSOR;
    t->n_rows = n_rows;
    t->n_slots = 0;
    t->n_tensors = t->n_kept;
    t->image_used = 0;
    return n;
}

/* The next place of so many bytes. */
static size_t take(const trial *t, size_t *used, size_t bytes, size_t most) {
    size_t at = *used;
    *used = mr_round_up(at + bytes, t->alignment);
    MR_ASSERT(*used <= most);
    return at;
}

static int32_t add(trial *t, const mr_tensor *made) {
    MR_ASSERT(t->n_tensors < CASE_TENSORS);
    t->tensors[t->n_tensors] = *made;
    t->tensors[t->n_tensors].buffer = t->buffer;
    t->tensors[t->n_tensors].home = t->be;
    return t->n_tensors++;
}

int32_t case_tensor(trial *t, mr_type type, int32_t columns, int32_t rows, mr_storage storage, mr_row_count count) {
    mr_tensor made;
    MR_ASSERT(mr_tensor_init(&made, "case", type, columns, rows, storage, count));
    made.offset = take(t, &t->image_used, made.bytes, CASE_IMAGE_BYTES);
    if (storage != MR_STORAGE_OUTPUT)
        t->input_bytes = t->image_used;
    return add(t, &made);
}

void *case_row(trial *t, int32_t tensor, int32_t row) {
    return t->image + t->tensors[tensor].offset + (size_t)row * t->tensors[tensor].row_bytes;
}

int32_t case_bucket(const trial *t) {
    return t->n_rows + t->n_rows / 4;
}

static void fill(trial *t, int32_t tensor, int32_t at, int32_t n_rows) {
    int32_t columns = t->tensors[tensor].ne[0];
    for (int32_t r = 0; r < n_rows; r++)
        memcpy(case_row(t, tensor, r), t->pool + (at + POOL_STEP * r) % (CASE_POOL - columns),
               (size_t)columns * sizeof(float));
}

int32_t case_floats(trial *t, int32_t at, int32_t columns) {
    int32_t id = case_tensor(t, MR_TYPE_F32, columns, case_bucket(t), MR_STORAGE_INPUT, MR_ROWS_STEP);
    fill(t, id, at, t->n_rows);
    return id;
}

int32_t case_vectors(trial *t, int32_t at, int32_t columns, int32_t rows) {
    int32_t id = case_tensor(t, MR_TYPE_F32, columns, rows, MR_STORAGE_FILE, MR_ROWS_FIXED);
    fill(t, id, at, rows);
    return id;
}

int32_t case_ints(trial *t, const int32_t *data) {
    int32_t id = case_tensor(t, MR_TYPE_I32, 1, case_bucket(t), MR_STORAGE_INPUT, MR_ROWS_STEP);
    memcpy(case_row(t, id, 0), data, (size_t)t->n_rows * sizeof *data);
    return id;
}

int32_t case_result(trial *t, mr_type type, int32_t columns) {
    return case_tensor(t, type, columns, case_bucket(t), MR_STORAGE_OUTPUT, MR_ROWS_STEP);
}

/* Keeps the first error. */
static bool note(trial *t, mr_status status) {
    if (t->status == MR_OK)
        t->status = status;
    return status == MR_OK;
}

/* Waits after an error, too, because the image must not change before. */
static void wait(trial *t, mr_fence fence) {
    mr_err again;
    note(t, t->be->ops->wait(t->be, fence, MR_NEVER, t->status == MR_OK ? t->err : &again));
}

static int32_t keep(trial *t, mr_tensor *made) {
    MR_ASSERT(t->n_tensors == t->n_kept);
    made->offset = CASE_IMAGE_BYTES + take(t, &t->kept_used, made->bytes, CASE_KEPT_BYTES);
    t->n_kept++;
    return add(t, made);
}

int32_t case_keep_matrices(trial *t, mr_type type, int32_t k, int32_t n, int32_t n_matrices, const uint8_t *file) {
    const mr_backend_ops *ops = t->be->ops;
    mr_tensor all, one;
    mr_fence fence = 0;
    mr_err why;
    MR_ASSERT(mr_tensor_init(&all, "matrices", type, k, n * n_matrices, MR_STORAGE_WEIGHT, MR_ROWS_FIXED));
    if (t->status != MR_OK || ops->weight_bytes(t->be, type, k, n, &one.bytes, &why) != MR_OK)
        return MR_NO_TENSOR;
    size_t matrix_bytes = one.bytes;
    all.bytes = matrix_bytes * (size_t)n_matrices;
    int32_t id = keep(t, &all);
    one = t->tensors[id];
    one.ne[1] = n;
    one.bytes = matrix_bytes;
    for (int32_t i = 0; i < n_matrices && t->status == MR_OK; i++, one.offset += matrix_bytes)
        note(t, ops->weight_load(t->be, &one, file + (size_t)i * (size_t)n * all.row_bytes, &fence, t->err));
    wait(t, fence);
    return id;
}

int32_t case_keep_state(trial *t, mr_type type, int32_t columns, int32_t rows) {
    mr_tensor made;
    mr_fence fence = 0;
    MR_ASSERT(mr_tensor_init(&made, "state", type, columns, rows, MR_STORAGE_STATE, MR_ROWS_FIXED));
    MR_ASSERT(made.bytes <= CASE_RESULT_BYTES);
    int32_t id = keep(t, &made);
    memset(t->result, 0xff, made.bytes);
    if (t->status == MR_OK)
        note(t, t->be->ops->set(t->be, t->buffer, t->tensors[id].offset, t->result, made.bytes, &fence, t->err));
    wait(t, fence);
    return id;
}

/* --- Runs -------------------------------------------------------------------------------------------------------- */

static bool can_run(const trial *t, const mr_node *n) {
    return t->status == MR_OK && t->be->ops->supports(t->be, t->tensors, n) &&
           (!t->beside || t->beside->ops->supports(t->beside, t->tensors, n));
}

bool case_execute(trial *t, const mr_node *n) {
    const mr_backend_ops *ops = t->be->ops;
    const mr_program_desc desc = {.tensors = t->tensors, .nodes = n, .n_nodes = 1};
    const mr_run run = {.n_rows = {[MR_ROWS_FIXED] = 1,
                                   [MR_ROWS_STEP] = t->n_rows,
                                   [MR_ROWS_OUT] = t->n_rows,
                                   [MR_ROWS_TOP] = t->n_rows,
                                   [MR_ROWS_HIDDEN] = t->n_rows,
                                   [MR_ROWS_SLOTS] = t->n_slots}};
    mr_program *program = NULL;
    mr_fence fence = 0;
    if (!can_run(t, n) || !note(t, ops->program_create(t->be, &desc, &program, t->err)))
        return false;
    if (note(t, ops->set(t->be, t->buffer, 0, t->image, t->input_bytes, &fence, t->err)))
        note(t, ops->submit(t->be, program, &run, &fence, t->err));
    wait(t, fence);
    ops->program_destroy(t->be, program);
    return t->status == MR_OK;
}

bool case_get(trial *t, int32_t tensor, int32_t n_rows) {
    const mr_tensor *from = &t->tensors[tensor];
    size_t bytes = from->row_bytes * (size_t)n_rows;
    mr_fence fence = 0;
    MR_ASSERT(bytes <= CASE_RESULT_BYTES);
    if (t->status == MR_OK)
        note(t, t->be->ops->get(t->be, t->buffer, from->offset, t->result, bytes, &fence, t->err));
    wait(t, fence);
    return t->status == MR_OK;
}

bool case_add_rows(trial *t, int32_t tensor, int32_t n_rows) {
    bool did = case_get(t, tensor, n_rows);
    for (int32_t i = 0; i < n_rows && did; i++)
        add_row(t, &t->tensors[tensor], t->result + (size_t)i * t->tensors[tensor].row_bytes);
    return did;
}

void case_run(trial *t, const mr_node *n) {
    if (case_execute(t, n))
        case_add_rows(t, n->out, t->n_rows);
}
