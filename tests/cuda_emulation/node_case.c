/* tests/cuda_emulation/node_case.c - the two runs of a node, and the comparison. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/node_case.h"

#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/fmath.h"
#include "engine/base/thread.h"
#include "tests/cuda_emulation/emulator.h"
#include "tests/cuda_emulation/node_builder.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

#if MR_TEST_ASAN
enum { GUARD_BYTES = 0 }; /* the sanitizer finds more */
#else
enum { GUARD_BYTES = 256 }; /* before and behind each tensor */
#endif
enum { GUARD = 0x5a, PROCESSORS = 8 };

void fill_floats(rng *r, float *x, int32_t n, fill how) {
    for (int32_t i = 0; i < n; i++) {
        float u = rng_unit(r);
        switch (how) {
        case ZERO:
            x[i] = u < 0 ? -0.0f : 0.0f;
            break;
        case DENORMAL:
            x[i] = mr_bits_f32(rng_next(r) & 0x807fffffu);
            break;
        case TINY:
            x[i] = u * (rng_next(r) % 4 ? 1e-37f : 1e-35f);
            break;
        case LARGE:
            x[i] = u * (rng_next(r) % 4 ? 95.0f : 3e38f);
            break;
        case TIES:
            x[i] = (float)(rng_below(r, 509) - 254) * 0.5f;
            break;
        case INFINITE:
            x[i] = rng_next(r) % 16 ? u : u < 0 ? -INFINITY : INFINITY;
            break;
        case NANS:
            x[i] = rng_next(r) % 16 ? u : mr_bits_f32(rng_next(r) | 0x7f800001u);
            break;
        case ANY_BITS:
            x[i] = mr_bits_f32(rng_next(r));
            break;
        default:
            x[i] = u * 4.0f;
        }
    }
}

/* --- Tensors ----------------------------------------------------------------------------------------------------- */

static mr_backend *cpu;

static mr_backend *cpu_backend_of_tests(void) {
    if (!cpu) {
        mr_err err;
        setenv("MILLRACE_CPU_ISA", "scalar", 1);
        mr_thread_set_denormals_flushed();
        assert_int_equal(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &cpu, &err), MR_OK);
    }
    return cpu;
}

void node_case_begin(node_case *c, mr_op op, node_rows rows) {
    *c = (node_case){.node = {.op = op, .out = MR_NO_TENSOR}, .rows = rows};
    for (int i = 0; i < MR_MAX_INPUTS; i++)
        c->node.in[i] = MR_NO_TENSOR;
}

int32_t node_case_tensor(node_case *c, mr_type type, int32_t columns, int32_t rows, mr_storage storage,
                         mr_row_count count) {
    mr_backend *be = cpu_backend_of_tests();
    mr_tensor *t = &c->tensors[c->n_tensors];
    mr_err err;
    assert_true(c->n_tensors < NODE_CASE_TENSORS);
    assert_true(mr_tensor_init(t, "case", type, columns, rows, storage, count));
    assert_int_equal(be->ops->buffer_create(be, t->bytes, &t->buffer, &err), MR_OK);
    rng r = {.state = (uint64_t)c->n_tensors};
    for (size_t i = 0; i < t->bytes; i++)
        t->buffer->base[i] = (uint8_t)rng_next(&r);
    return c->n_tensors++;
}

int32_t node_case_rows(node_case *c, mr_type type, int32_t columns) {
    return node_case_tensor(c, type, columns, c->rows.bucket, MR_STORAGE_WORK, MR_ROWS_STEP);
}

void *node_case_row(const node_case *c, int32_t tensor, int32_t row) {
    const mr_tensor *t = &c->tensors[tensor];
    return t->buffer->base + (size_t)row * t->row_bytes;
}

int32_t node_case_floats(node_case *c, rng *r, int32_t columns, int32_t rows, fill how) {
    int32_t id = rows ? node_case_tensor(c, MR_TYPE_F32, columns, rows, MR_STORAGE_FILE, MR_ROWS_FIXED)
                      : node_case_rows(c, MR_TYPE_F32, columns);
    for (int32_t row = 0; row < c->tensors[id].ne[1]; row++)
        fill_floats(r, node_case_row(c, id, row), columns, how);
    return id;
}

int32_t node_case_ints(node_case *c, rng *r, int32_t limit) {
    int32_t id = node_case_rows(c, MR_TYPE_I32, 1);
    for (int32_t row = 0; row < c->rows.bucket; row++)
        *(int32_t *)node_case_row(c, id, row) = rng_below(r, limit);
    return id;
}

int32_t node_case_matrices(node_case *c, rng *r, mr_type type, int32_t k, int32_t n, int32_t n_matrices) {
    mr_backend *be = cpu_backend_of_tests();
    const mr_type_info *info = mr_type_get(type);
    size_t row_bytes = (size_t)(k / info->block_elems) * (size_t)info->block_bytes, bytes;
    mr_tensor *t = &c->tensors[c->n_tensors];
    mr_fence fence;
    mr_err err;
    assert_true(c->n_tensors < NODE_CASE_TENSORS);
    expect_ok(be->ops->weight_bytes(be, type, k, n, &bytes, &err), &err);
    assert_true(mr_tensor_init(t, "matrix", type, k, n * n_matrices, MR_STORAGE_WEIGHT, MR_ROWS_FIXED));
    t->bytes = bytes * (size_t)n_matrices;
    expect_ok(be->ops->buffer_create(be, t->bytes, &t->buffer, &err), &err);
    uint8_t *file = c->files[c->n_tensors] = malloc(row_bytes * (size_t)t->ne[1]);
    assert_non_null(file);
    for (int32_t i = 0; i < t->ne[1]; i++)
        random_weights(r, VALUES_PLAIN, type, k, file + (size_t)i * row_bytes);
    for (int32_t i = 0; i < n_matrices; i++) {
        mr_tensor one = *t;
        one.ne[1] = n;
        one.bytes = bytes;
        one.offset = bytes * (size_t)i;
        expect_ok(be->ops->weight_load(be, &one, file + (size_t)i * (size_t)n * row_bytes, &fence, &err), &err);
    }
    c->n_matrices[c->n_tensors] = n_matrices;
    return c->n_tensors++;
}

int32_t node_case_activations(node_case *c, rng *r, mr_type type, int32_t k, mr_row_count count) {
    int32_t n_rows = c->rows.bucket * (count == MR_ROWS_SLOTS ? c->rows.used : 1);
    int32_t id = node_case_tensor(c, mr_type_activation(type), k, n_rows, MR_STORAGE_WORK, count);
    for (int32_t row = 0; row < n_rows; row++)
        random_activations(r, VALUES_PLAIN, type, k, node_case_row(c, id, row));
    return id;
}

/* --- Runs --------------------------------------------------------------------------------------------------------- */

static const cuda_op *op_of(mr_op op) {
    static const cuda_op *const OPS[MR_OP_COUNT] = {
        [MR_OP_RMS_NORM] = &cuda_op_rms_norm,
        [MR_OP_QUANTIZE] = &cuda_op_quantize,
        [MR_OP_MATMUL] = &cuda_op_matmul,
        [MR_OP_EXPERT_MATMUL] = &cuda_op_expert_matmul,
        [MR_OP_HEAD_MATMUL] = &cuda_op_head_matmul,
        [MR_OP_GATE_UP] = &cuda_op_gate_up,
        [MR_OP_GLU] = &cuda_op_glu,
        [MR_OP_ADD] = &cuda_op_add,
        [MR_OP_ADD_GATED] = &cuda_op_add_gated,
        [MR_OP_SCALE] = &cuda_op_scale,
        [MR_OP_SOFT_CAP] = &cuda_op_soft_cap,
        [MR_OP_EMBED] = &cuda_op_embed,
        [MR_OP_TAKE_ROWS] = &cuda_op_take_rows,
        [MR_OP_ROPE_TABLE] = &cuda_op_rope_table,
        [MR_OP_ROPE] = &cuda_op_rope,
        [MR_OP_TOP] = &cuda_op_top,
        [MR_OP_ROUTE] = &cuda_op_route,
        [MR_OP_EXPERT_ROWS] = &cuda_op_expert_rows,
        [MR_OP_EXPERT_SUM] = &cuda_op_expert_sum,
        [MR_OP_TABLE_WRITE] = &cuda_op_table_write,
        [MR_OP_KV_COPY] = &cuda_op_kv_copy,
        [MR_OP_RELU] = &cuda_op_relu,
        [MR_OP_ACTIVE] = &cuda_op_active,
        [MR_OP_SPARSE_GATE_UP] = &cuda_op_sparse_gate_up,
        [MR_OP_AXPY] = &cuda_op_axpy,
    };
    assert_non_null(OPS[op]);
    return OPS[op];
}

static mr_run run_of(const node_case *c) {
    return (mr_run){.n_rows = {[MR_ROWS_FIXED] = 1,
                               [MR_ROWS_STEP] = c->rows.real,
                               [MR_ROWS_OUT] = c->rows.real,
                               [MR_ROWS_TOP] = c->rows.real,
                               [MR_ROWS_HIDDEN] = c->rows.real,
                               [MR_ROWS_SLOTS] = c->rows.real * c->rows.used}};
}

/* Brings the matrices of tensor i into the kernels' layout. */
static void load_matrices(const node_case *c, int32_t i, uint8_t *memory, size_t bytes) {
    const mr_tensor *t = &c->tensors[i];
    int32_t n = t->ne[1] / c->n_matrices[i];
    for (int32_t m = 0; m < c->n_matrices[i]; m++) {
        uint8_t args[CUDA_MAX_ARGS];
        cuda_launch_desc desc;
        cuda_weight_repack(&(cuda_repack){t->type, t->ne[0], n, c->files[i] + (size_t)(m * n) * t->row_bytes,
                                          memory + (size_t)m * bytes},
                           args, &desc);
        node_launch(&desc);
    }
}

/* The device's memory: a copy of each tensor, between guards. */
static void copy_tensors(const node_case *c, cuda_buffer *buffers, mr_tensor *tensors) {
    for (int32_t i = 0; i < c->n_tensors; i++) {
        const mr_tensor *t = &c->tensors[i];
        size_t one = c->files[i] ? cuda_weight_bytes(t->type, t->ne[0], t->ne[1] / c->n_matrices[i]) : 0;
        size_t bytes = one ? one * (size_t)c->n_matrices[i] : t->bytes, all = bytes + (size_t)2 * GUARD_BYTES;
        void *memory = NULL;
        assert_int_equal(posix_memalign(&memory, CUDA_ALIGNMENT, all), 0);
        memset(memory, GUARD, all);
        if (c->files[i])
            load_matrices(c, i, (uint8_t *)memory + GUARD_BYTES, one);
        else
            memcpy((uint8_t *)memory + GUARD_BYTES, t->buffer->base, bytes);
        buffers[i] = (cuda_buffer){.base = {.bytes = all}, .address = (cuda_address)(uintptr_t)memory};
        tensors[i] = *t;
        tensors[i].bytes = bytes;
        tensors[i].buffer = &buffers[i].base;
        tensors[i].offset = GUARD_BYTES;
    }
}

static void run_kernels(const node_case *c, const mr_tensor *tensors) {
    cuda_builder b = {.n_processors = PROCESSORS};
    cuda_node n = {.node = &c->node, .out = c->node.out == MR_NO_TENSOR ? NULL : &tensors[c->node.out]};
    mr_run run = run_of(c);
    mr_err err;
    memcpy(b.step.n_rows, run.n_rows, sizeof run.n_rows);
    for (int i = 0; i < MR_MAX_INPUTS; i++)
        n.in[i] = c->node.in[i] == MR_NO_TENSOR ? NULL : &tensors[c->node.in[i]];
    expect_ok(op_of(c->node.op)->plan(&b, &n, &err), &err);
    assert_true(b.n_launches > 0);
    node_builder_deinit(&b);
}

static void run_on_cpu(const node_case *c) {
    mr_backend *be = cpu_backend_of_tests();
    const mr_program_desc desc = {.tensors = c->tensors, .nodes = &c->node, .n_nodes = 1};
    mr_run run = run_of(c);
    mr_program *program;
    mr_fence fence;
    mr_err err;
    assert_true(be->ops->supports(be, c->tensors, &c->node));
    expect_ok(be->ops->program_create(be, &desc, &program, &err), &err);
    expect_ok(be->ops->submit(be, program, &run, &fence, &err), &err);
    expect_ok(be->ops->wait(be, fence, INT64_MAX, &err), &err);
    be->ops->program_destroy(be, program);
}

/* --- Comparison --------------------------------------------------------------------------------------------------- */

static bool is_nan_of(const uint8_t *p, int bytes) {
    uint32_t u = 0;
    memcpy(&u, p, (size_t)bytes); /* little-endian, as all machines that run this */
    return bytes == 2 ? (u & 0x7fffu) > 0x7f80u : (u & 0x7fffffffu) > 0x7f800000u;
}

/* How many bytes the number at byte i of a row has whose NaNs are all equal; 0: the bytes must be the same. */
static int nan_bytes(const node_case *c, const mr_tensor *t, int32_t i) {
    int32_t n = t->ne[0];
    if (t->type == MR_TYPE_F32 && t->storage != MR_STORAGE_STATE)
        return i < 4 * n ? 4 : 0;
    if (t->type == MR_TYPE_BF16)
        return i < 2 * n ? 2 : 0;
    if (t->type == MR_TYPE_A8)
        return i >= n && i < n + n / 8 ? 4 : 0;
    return c->node.op == MR_OP_ROUTE && i >= 2 * n && i < 4 * n ? 4 : 0; /* the weights */
}

static void compare(const node_case *c, const mr_tensor *got, const char *order) {
    for (int32_t i = 0; i < c->n_tensors; i++) {
        const mr_tensor *t = &c->tensors[i];
        const uint8_t *want = t->buffer->base;
        const uint8_t *is = (const uint8_t *)(uintptr_t)((const cuda_buffer *)(void *)got[i].buffer)->address;
        for (size_t g = 0; g != GUARD_BYTES; g++)
            if (is[g] != GUARD || is[GUARD_BYTES + got[i].bytes + g] != GUARD)
                fail_msg("%s, %s: a write outside of tensor %d", mr_op_name(c->node.op), order, i);
        is += GUARD_BYTES;
        for (size_t at = 0; at < t->bytes && !c->files[i]; at++) {
            int32_t row = (int32_t)(at / t->row_bytes), column = (int32_t)(at % t->row_bytes);
            int nan = want[at] == is[at] ? 0 : nan_bytes(c, t, column);
            size_t number = at & ~((size_t)nan - 1); /* nan: 2 or 4; without NaNs it is not used */
            if (want[at] != is[at] && !(nan && is_nan_of(want + number, nan) && is_nan_of(is + number, nan)))
                fail_msg("%s, %s: tensor %d (%s [%d, %d]), row %d, byte %d: %02x, not %02x", mr_op_name(c->node.op),
                         order, i, mr_type_name(t->type), t->ne[0], t->ne[1], row, column, is[at], want[at]);
        }
    }
}

bool node_case_is_supported(const node_case *c) {
    return op_of(c->node.op)->supports(c->tensors, &c->node);
}

void node_case_check(node_case *c) {
    static const char *const NAMES[] = {"forward", "reversed", "drawn"};
    cuda_buffer buffers[3][NODE_CASE_TENSORS];
    mr_tensor tensors[3][NODE_CASE_TENSORS];
    static uint64_t seed = 1;
    assert_true(node_case_is_supported(c));
    for (int order = EMULATOR_FORWARD; order <= EMULATOR_DRAWN; order++) {
        copy_tensors(c, buffers[order], tensors[order]);
        emulator_set_order((emulator_order)order, seed++);
        run_kernels(c, tensors[order]);
    }
    run_on_cpu(c);
    for (int order = EMULATOR_FORWARD; order <= EMULATOR_DRAWN; order++) {
        compare(c, tensors[order], NAMES[order]);
        for (int32_t i = 0; i < c->n_tensors; i++)
            free((void *)(uintptr_t)buffers[order][i].address);
    }
    node_case_end(c);
}

void node_case_end(node_case *c) {
    mr_backend *be = cpu_backend_of_tests();
    for (int32_t i = 0; i < c->n_tensors; i++) {
        be->ops->buffer_destroy(be, c->tensors[i].buffer);
        free(c->files[i]);
    }
    c->n_tensors = 0;
}

int node_case_teardown(void **state) {
    (void)state;
    mr_backend_destroy(cpu);
    cpu = NULL;
    return 0;
}
