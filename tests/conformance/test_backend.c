/* The list of backends under test, and the promises of backend.h other than the values of nodes. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/blas/blas_backend.h"
#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/kernels.h"
#include "engine/base/clock.h"
#include "test_backend.h"
#include "tests/conformance/emulated_gpu.h"
#include "tests/support/isa_env.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"

/* --- The backends ------------------------------------------------------------------------------------------------ */

/* The CPU at one level; NULL where the machine lacks it. */
static mr_status create_cpu(mr_isa isa, int32_t n_threads, mr_backend **out, mr_err *err) {
    char *saved = isa_env_set(mr_isa_name(isa));
    bool has = mr_isa_detect() == isa;
    mr_status status = has ? mr_cpu_backend_create(&(mr_cpu_options){.n_threads = n_threads}, out, err) : MR_OK;
    isa_env_restore(saved);
    return status;
}

static mr_status create_reference(mr_backend **out, mr_err *err) {
    return create_cpu(MR_ISA_SCALAR, 1, out, err);
}
static mr_status create_scalar(mr_backend **out, mr_err *err) {
    return create_cpu(MR_ISA_SCALAR, 3, out, err);
}
/* AVX2, NEON. */
static mr_status create_first_level(mr_backend **out, mr_err *err) {
    return create_cpu(MR_ISA_SCALAR + 1, 2, out, err);
}
/* AVX-512, NEON with dot products. */
static mr_status create_last_level(mr_backend **out, mr_err *err) {
    return create_cpu(MR_ISA_COUNT - 1, 2, out, err);
}
static mr_status create_device(mr_backend **out, mr_err *err) {
    return test_device_create(&(test_device_options){.ops = TEST_DEVICE_ALL_OPS, .seed = 1, .max_delay_us = 20}, out,
                              err);
}
/* As BLAS is: products alone, in the memory of the host, of matrices that stay in the file. */
static mr_status create_multiplier(mr_backend **out, mr_err *err) {
    test_device_options o = {.ops = 1u << MR_OP_MATMUL, .host_addressable = true, .keeps_source = true};
    return test_device_create(&o, out, err);
}

#ifdef MILLRACE_WITH_BLAS
static mr_status create_blas(mr_backend **out, mr_err *err) {
    return mr_blas_backend_create(&(mr_blas_options){.n_threads = 2}, out, err);
}
#endif

#define TYPE(name) (UINT64_C(1) << MR_TYPE_##name)
#define CUDA_TYPES                                                                                                     \
    (TYPE(F32) | TYPE(F16) | TYPE(BF16) | TYPE(Q8_0) | TYPE(Q4_0) | TYPE(Q4_K) | TYPE(Q5_K) | TYPE(Q6_K) |             \
     TYPE(IQ4_XS) | TYPE(IQ4_NL) | TYPE(MXFP4))

/* The first one is the reference. */
static const backend_kind KINDS[] = {
    {"CPU scalar, 1 thread", create_reference, true, 0, 0, 0},
    {"CPU scalar", create_scalar, true, 0, 0, 0},
    {"CPU, first vector level", create_first_level, true, 0, 0, 0},
    {"CPU, last vector level", create_last_level, true, 0, 0, 0},
    {"test device", create_device, true, 0, 0, 0},
    {"test multiplier", create_multiplier, false, 0, 0, 0},
#ifdef MILLRACE_TEST_GPU
    {"emulated GPU", emulated_gpu_create, false, 0, 0, CUDA_TYPES},
#endif
#ifdef MILLRACE_WITH_BLAS
    {"BLAS", create_blas, false, 1e-9, 6e-5, 0},
#endif
};
enum { N_KINDS = sizeof KINDS / sizeof KINDS[0] };
static mr_backend *made[N_KINDS];

const backend_kind *backend_kind_at(int i) {
    return i < N_KINDS ? &KINDS[i] : NULL;
}

mr_backend *backend_at(int i) {
    return made[i];
}

static int make_all(void **state) {
    (void)state;
    mr_err err = {0};
    for (int i = 0; i < N_KINDS; i++) {
        if (KINDS[i].create(&made[i], &err) != MR_OK)
            fail_msg("%s: %s", KINDS[i].name, err.text);
        if (!made[i])
            print_message("%s: skipped, not on this machine\n", KINDS[i].name);
    }
    return 0;
}

static int destroy_all(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++)
        mr_backend_destroy(made[i]);
    return 0;
}

/* --- The queue --------------------------------------------------------------------------------------------------- */

/* Many sets and gets without a wait between them happen in their order; fences grow; a deadline in the past is a
 * timeout or the end. */
static void check_queue(mr_backend *be, const char *name) {
    enum { N = 40, BYTES = 4096 };
    static uint8_t sent[N][BYTES], got[N][BYTES];
    mr_buffer *b = NULL;
    mr_fence fence = 0, last = 0;
    mr_err err = {0};
    expect_ok(be->ops->buffer_create(be, 2 * BYTES, &b, &err), &err);
    for (int i = 0; i < N; i++) {
        memset(sent[i], i + 1, BYTES);
        size_t offset = (size_t)(i % 3) * 1000 + 1;
        expect_ok(be->ops->set(be, b, offset, sent[i], BYTES, &fence, &err), &err);
        assert_true(fence >= last);
        last = fence;
        expect_ok(be->ops->get(be, b, offset, got[i], BYTES, &fence, &err), &err);
        assert_true(fence >= last);
        last = fence;
    }
    mr_status status = be->ops->wait(be, last, mr_clock_now_ns() - 1, &err);
    assert_true(status == MR_OK || status == MR_E_TIMEOUT);
    expect_ok(be->ops->wait(be, last, MR_NEVER, &err), &err);
    expect_ok(be->ops->wait(be, last, 0, &err), &err); /* reached is reached */
    if (memcmp(sent, got, sizeof got) != 0)
        fail_msg("%s: bytes come back in another order", name);
    be->ops->buffer_destroy(be, b);
    be->ops->buffer_destroy(be, NULL);
    be->ops->program_destroy(be, NULL);
}

/* The times of marks do not go back. The last marks are kept, earlier ones and other fences are not. */
static void check_marks(mr_backend *be) {
    mr_fence marks[MR_KEPT_MARKS + 4];
    int32_t n = sizeof marks / sizeof *marks;
    uint8_t bytes[4096] = {0};
    mr_buffer *b = NULL;
    mr_fence fence = 0;
    mr_err err = {0};
    expect_ok(be->ops->buffer_create(be, sizeof bytes, &b, &err), &err);
    for (int32_t i = 0; i < n; i++) {
        expect_ok(be->ops->mark(be, &marks[i], &err), &err);
        assert_true(marks[i] > (i > 0 ? marks[i - 1] : 0));
        expect_ok(be->ops->set(be, b, 0, bytes, sizeof bytes, &fence, &err), &err);
        assert_true(fence >= marks[i]);
    }
    expect_ok(be->ops->wait(be, fence, MR_NEVER, &err), &err);
    int64_t ns = 77, last_ns = INT64_MIN;
    for (int32_t i = 0; i < n; i++) {
        mr_status status = be->ops->fence_ns(be, marks[i], &ns, &err);
        assert_int_equal(status, i < n - MR_KEPT_MARKS ? MR_E_INVALID : MR_OK);
        assert_true(status == MR_OK ? ns >= last_ns : ns == 77);
        last_ns = status == MR_OK ? ns : last_ns;
    }
    assert_int_equal(be->ops->fence_ns(be, 0, &ns, &err), MR_E_INVALID);
    be->ops->buffer_destroy(be, b);
}

/* Copies from and to pinned memory are those from and to any memory. */
static void check_pinned(mr_backend *be) {
    static uint8_t memory[2][8192];
    mr_buffer *b = NULL;
    mr_fence fence = 0;
    mr_err err = {0};
    expect_ok(be->ops->buffer_create(be, sizeof memory[0], &b, &err), &err);
    expect_ok(be->ops->pin(be, memory, sizeof memory, &err), &err);
    memset(memory[0], 0x3c, sizeof memory[0]);
    memset(memory[1], 0, sizeof memory[1]);
    expect_ok(be->ops->set(be, b, 0, memory[0], sizeof memory[0], &fence, &err), &err);
    expect_ok(be->ops->get(be, b, 0, memory[1], sizeof memory[1], &fence, &err), &err);
    expect_ok(be->ops->wait(be, fence, MR_NEVER, &err), &err);
    assert_memory_equal(memory[1], memory[0], sizeof memory[0]);
    be->ops->unpin(be, memory);
    be->ops->buffer_destroy(be, b);
}

static void check_weights(mr_backend *be) {
    size_t bytes = 77;
    mr_err err = {0};
    assert_int_equal(be->ops->weight_bytes(be, MR_TYPE_I32, 64, 16, &bytes, &err), MR_E_UNSUPPORTED);
    assert_int_equal(bytes, 77);
    assert_true(strlen(err.text) > 0);
    expect_ok(be->ops->weight_bytes(be, MR_TYPE_F32, 64, 17, &bytes, &err), &err);
    assert_true(bytes > 0 && bytes != 77);
}

void test_queue(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        if (!made[i])
            continue;
        mr_device_info device;
        made[i]->ops->describe(made[i], &device);
        assert_true(strlen(device.name) > 0);
        assert_true(device.alignment >= 64 && (device.alignment & (device.alignment - 1)) == 0);
        assert_true(device.host_addressable || !device.keeps_source);
        assert_int_equal(device.exact, KINDS[i].max_nmse == 0);
        check_queue(made[i], KINDS[i].name);
        check_marks(made[i]);
        check_pinned(made[i]);
        check_weights(made[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue), cmocka_unit_test(test_matmul),    cmocka_unit_test(test_matmul_shapes),
        cmocka_unit_test(test_rows),  cmocka_unit_test(test_top),       cmocka_unit_test(test_rope),
        cmocka_unit_test(test_embed), cmocka_unit_test(test_attention), cmocka_unit_test(test_experts),
        cmocka_unit_test(test_heads), cmocka_unit_test(test_sparse),    cmocka_unit_test(test_state),
    };
    return cmocka_run_group_tests_name("backend", tests, make_all, destroy_all);
}
