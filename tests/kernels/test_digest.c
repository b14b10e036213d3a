/* The digest of the CPU backend: one for all instruction sets, and any wrong bit of a kernel changes the part of its
 * op. */
// SPDX-License-Identifier: Apache-2.0
#include <fenv.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/cpu_internal.h"
#include "backends/digest/digest.h"
#include "engine/base/clock.h"
#include "engine/base/fmath.h"
#include "engine/base/mem.h"
#include "engine/base/numerics.h"
#include "engine/base/thread.h"
#include "tests/support/isa_env.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

/* The sum of all parts in numerics version 4; the first test prints the number to record. */
static const uint64_t GOLDEN = UINT64_C(0xc8f077db9d8c458b);

static mr_backend *cpu_create(int32_t n_threads) {
    mr_backend *be = NULL;
    mr_err err = {0};
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = n_threads}, &be, &err), &err);
    return be;
}

/* kernels: instead of those that the backend has chosen; NULL: these. */
static void compute(const mr_kernels *kernels, int32_t n_threads, mr_digest *out) {
    mr_backend *be = cpu_create(n_threads);
    mr_err err = {0};
    if (kernels)
        ((cpu_backend *)be)->kernels = kernels;
    expect_ok(mr_digest_compute(be, NULL, out, &err), &err);
    mr_backend_destroy(be);
}

static uint64_t sum_of(const mr_kernels *kernels) {
    mr_digest d;
    compute(kernels, 1, &d);
    return mr_digest_sum(&d);
}

static void test_every_level_equals_the_recorded_digest(void **state) {
    (void)state;
    mr_digest first = {.n = 0};
    for (mr_isa isa = MR_ISA_SCALAR; isa < MR_ISA_COUNT; isa++) {
        char differ[128];
        mr_digest d;
        if (isa > mr_isa_detect()) {
            print_message("%s: skipped, not on this CPU or capped by MILLRACE_CPU_ISA\n", mr_isa_name(isa));
            continue;
        }
        int64_t start_ns = mr_clock_now_ns();
        compute(mr_kernels_get(isa), 1, &d);
        print_message("%s: %016" PRIx64 ", %d parts in %.1f ms\n", mr_isa_name(isa), mr_digest_sum(&d), (int)d.n,
                      (double)(mr_clock_now_ns() - start_ns) * 1e-6);
        first = isa == MR_ISA_SCALAR ? d : first;
        if (mr_digest_compare(&first, &d, differ, sizeof differ) > 0)
            fail_msg("%s computes other bits than scalar in: %s", mr_isa_name(isa), differ);
        if (mr_digest_sum(&d) != GOLDEN)
            fail_msg("%s: the digest is %016" PRIx64 ", recorded for numerics version %d is %016" PRIx64
                     "; hint: kernels compute other bits than before: a bug, or a change of engine/NUMERICS.md, which "
                     "raises MR_NUMERICS_VERSION there and in engine/base/numerics.h; then record the new digest here",
                     mr_isa_name(isa), mr_digest_sum(&d), MR_NUMERICS_VERSION, GOLDEN);
    }
}

static void test_any_cap_gives_the_recorded_digest(void **state) {
    (void)state;
    if (share_is_small()) /* a digest takes seconds with a sanitizer */
        skip();
    for (mr_isa isa = MR_ISA_SCALAR; isa < MR_ISA_COUNT; isa++) {
        char *saved = isa_env_set(mr_isa_name(isa));
        uint64_t sum = sum_of(NULL);
        isa_env_restore(saved);
        assert_true(sum == GOLDEN);
    }
}

/* Tasks of any number of threads. */
static void test_numbers_of_threads_agree(void **state) {
    (void)state;
    for (int32_t n_threads = 2; n_threads <= (share_is_small() ? 2 : 5); n_threads++) {
        mr_digest d;
        compute(NULL, n_threads, &d);
        assert_true(mr_digest_sum(&d) == GOLDEN);
    }
}

static void run_digest(void *ctx) {
    *(uint64_t *)ctx = sum_of(NULL);
}

static void test_threads_agree(void **state) {
    (void)state;
    enum { N_THREADS = 4 };
    mr_thread *threads[N_THREADS];
    uint64_t sums[N_THREADS] = {0};
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(mr_thread_create("digest", 0, run_digest, &sums[i], &threads[i], NULL), MR_OK);
    for (int i = 0; i < N_THREADS; i++)
        mr_thread_join(threads[i]);
    for (int i = 0; i < N_THREADS; i++)
        assert_true(sums[i] == GOLDEN);
}

/* The CPU supports every op with every type, so its digest has all parts. */
static void test_every_op_has_a_part(void **state) {
    (void)state;
    mr_digest d;
    bool has[MR_OP_COUNT + 1] = {false};
    compute(NULL, 1, &d);
    for (int32_t i = 0; i < d.n; i++)
        has[d.parts[i].op] = true;
    for (int op = 0; op < MR_OP_COUNT; op++)
        if (!has[op])
            fail_msg("the digest has no part of %s", mr_op_name((mr_op)op));
    for (int type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        int n = 0;
        for (int32_t i = 0; i < d.n; i++)
            n += d.parts[i].type == type && d.parts[i].op != MR_OP_KV_WRITE && d.parts[i].op != MR_OP_ATTENTION;
        assert_int_equal(n, mr_type_get(type) && mr_type_get(type)->is_weight ? 5 : 0);
    }
}

/* --- Kernels that are off by one bit ----------------------------------------------------------------------------- */

/* The real kernels, but call number `broken_call` of the one named `broken` flips the lowest bit of one output. */
static const mr_kernels *real;
static const char *broken;
static int broken_call, n_calls;

static bool is_broken(const char *name) {
    return broken && strcmp(broken, name) == 0 && n_calls++ == broken_call;
}

static void flip(const char *name, void *p) {
    if (is_broken(name))
        *(uint8_t *)p ^= 1;
}

static void broken_quantize(const float *x, uint8_t *a8, int32_t n) {
    real->quantize(x, a8, n);
    flip("quantize", a8 + n - 1);
}
static void broken_rms_norm(const float *x, const float *w, float *y, int32_t n, int32_t m, float eps) {
    real->rms_norm(x, w, y, n, m, eps);
    flip("rms_norm", y + n - 1);
}
static void broken_rope_table(const float *const angles[MR_ROPE_ROWS], int32_t half, int32_t position, float magnitude,
                              float *out) {
    real->rope_table(angles, half, position, magnitude, out);
    flip("rope_table", out + half - 1);
}
static void broken_rope(float *x, int32_t n_heads, int32_t head_dim, int32_t n_rot, mr_rope_pairs pairs,
                        const float *table) {
    real->rope(x, n_heads, head_dim, n_rot, pairs, table);
    flip("rope", x + (n_heads - 1) * head_dim + n_rot - 1);
}
static void broken_round_bf16(const float *x, uint16_t *bf16, int32_t n) {
    real->round_bf16(x, bf16, n);
    flip("round_bf16", bf16 + n - 1);
}
static void broken_glu(const float *gate, const float *up, float *y, int32_t n, mr_glu glu) {
    real->glu(gate, up, y, n, glu);
    flip("glu", y + n - 1);
}
static void broken_soft_cap(const float *x, float *y, int32_t n, float cap) {
    real->soft_cap(x, y, n, cap);
    flip("soft_cap", y + n - 1);
}
/* Flips a bit of the largest result, which a ReLU keeps. */
static void broken_listed_f16(const mr_listed_args *args) {
    int32_t largest = 0;
    real->listed_f16(args);
    for (int32_t i = 1; i < args->n; i++)
        largest = args->y[i] > args->y[largest] ? i : largest;
    flip("listed_f16", args->y + largest);
}
static void broken_axpy(const mr_axpy_args *args, int32_t first, int32_t last) {
    real->axpy(args, first, last);
    flip("axpy", args->y + last - 1);
}
static void broken_kv_write(const mr_kv_write_args *args, int32_t row_first, int32_t row_last) {
    real->kv_write(args, row_first, row_last);
    flip("kv_write",
         (uint8_t *)args->v_store + (size_t)(args->slots[row_last - 1] / MR_KV_BLOCK) * args->v_block_bytes);
}
static void broken_attention(const mr_attention_args *args, const mr_attention_part *part) {
    real->attention(args, part);
    float *last = args->out + (size_t)(part->row_last - 1) * args->out_row_bytes / sizeof(float);
    flip("attention", last + args->n_heads * args->v_dim - 1);
}

static void flip_product(const char *name, const mr_matmul_args *args, int32_t row_last) {
    flip(name, args->y + (size_t)(row_last - 1) * args->y_row_bytes / sizeof(float) + args->n - 1);
}

#define KERNEL(name, type, ...)
#define MATMUL(name, panel, ...)                                                                                       \
    static void broken_##name(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,  \
                              int32_t row_last) {                                                                      \
        real->matmul[panel](args, panel_first, panel_last, row_first, row_last);                                       \
        flip_product(#name, args, row_last);                                                                           \
    }
#include "backends/cpu/cpu_kernels.def"
#undef KERNEL
#undef MATMUL

#define KERNEL(name, type, ...) .name = broken_##name,
#define MATMUL(name, panel, ...) .matmul[panel] = broken_##name,
static const mr_kernels BROKEN = {
#include "backends/cpu/cpu_kernels.def"
};
#undef KERNEL
#undef MATMUL

#define KERNEL(name, type, ...) #name,
#define MATMUL(name, panel, ...) #name,
static const char *const NAMES[] = {
#include "backends/cpu/cpu_kernels.def"
};
#undef KERNEL
#undef MATMUL

/* Expects that a wrong bit of a kernel shows, and in its op, unless several ops call the kernel. */
static void expect_shows(const char *kernel, const mr_digest *good, const mr_digest *bad) {
    static const char *const OF_ONE_OP[] = {"rms_norm", "rope_table", "soft_cap", "axpy", "kv_write", "attention"};
    char differ[128];
    if (mr_digest_compare(good, bad, differ, sizeof differ) == 0)
        fail_msg("the digest does not show a wrong bit of call %d of %s", broken_call, kernel);
    for (size_t i = 0; i < sizeof OF_ONE_OP / sizeof OF_ONE_OP[0]; i++)
        if (strcmp(kernel, OF_ONE_OP[i]) == 0 && strncmp(differ, kernel, strlen(kernel)) != 0)
            fail_msg("a wrong bit of call %d of %s shows in %s", broken_call, kernel, differ);
    if (strncmp(kernel, "matmul", 6) == 0 && !strstr(differ, "matmul") && !strstr(differ, "gate_up"))
        fail_msg("a wrong bit of call %d of %s shows in %s", broken_call, kernel, differ);
}

static void test_one_bit_of_any_kernel_shows(void **state) {
    (void)state;
    mr_digest good, bad;
    if (share_is_small()) /* takes a hundred digests */
        skip();
    real = mr_kernels_get(mr_isa_detect());
    broken = NULL;
    compute(&BROKEN, 1, &good);
    assert_true(mr_digest_sum(&good) == GOLDEN);
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        broken = NAMES[i];
        broken_call = -1; /* none: counts the calls */
        n_calls = 0;
        assert_true(sum_of(&BROKEN) == GOLDEN);
        int last = n_calls - 1;
        if (last < 1)
            fail_msg("the digest calls %s less than twice", broken);
        for (broken_call = 0; broken_call <= last; broken_call += last) {
            n_calls = 0;
            compute(&BROKEN, 1, &bad);
            expect_shows(broken, &good, &bad);
        }
    }
    broken = NULL;
}

/* --- The floating point mode ------------------------------------------------------------------------------------- */

static void test_rounding_mode_shows(void **state) {
    (void)state;
    for (mr_isa isa = share_is_small() ? mr_isa_detect() : MR_ISA_SCALAR; isa <= mr_isa_detect(); isa++) {
        assert_int_equal(fesetround(FE_TOWARDZERO), 0);
        uint64_t digest = sum_of(mr_kernels_get(isa));
        assert_int_equal(fesetround(FE_TONEAREST), 0);
        assert_true(digest != GOLDEN);
    }
}

#if defined(__x86_64__)
static void unflushed_glu(const float *gate, const float *up, float *y, int32_t n, mr_glu glu) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode & ~(1u << 15 | 1u << 6));
    real->glu(gate, up, y, n, glu);
    _mm_setcsr(mode);
}
static void unflushed_matmul(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                             int32_t row_last) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode & ~(1u << 15 | 1u << 6));
    real->matmul[MR_PANEL_Q8_0](args, panel_first, panel_last, row_first, row_last);
    _mm_setcsr(mode);
}

/* Denormals that are not flushed in one kernel only: the inputs hold some. */
static void test_denormal_mode_shows(void **state) {
    (void)state;
    real = mr_kernels_get(mr_isa_detect());
    mr_kernels k = *real;
    k.glu = unflushed_glu;
    assert_true(sum_of(&k) != GOLDEN);
    k = *real;
    k.matmul[MR_PANEL_Q8_0] = unflushed_matmul;
    assert_true(sum_of(&k) != GOLDEN);
}
#endif

/* Every allocation fails once: an error, and the digest is not written. */
static void test_no_memory(void **state) {
    (void)state;
    mr_backend *be = cpu_create(1);
    int32_t n_failed = 0;
    mr_status status = MR_E_NO_MEMORY;
    for (int n = 0; status != MR_OK; n += n < 20 ? 1 : 97) {
        mr_digest d = {.n = 7};
        mr_err err = {0};
        mr_mem_fail_at(n);
        status = mr_digest_compute(be, NULL, &d, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK ? mr_digest_sum(&d) == GOLDEN : status == MR_E_NO_MEMORY && d.n == 7);
        assert_true(status == MR_OK || strlen(err.text) > 0);
        n_failed += status != MR_OK;
        if (share_is_small() && n > 10)
            break;
    }
    assert_true(n_failed > 5);
    mr_backend_destroy(be);
}

static void test_compare(void **state) {
    (void)state;
    mr_digest a = {.n = 6}, b;
    char text[128];
    for (int32_t i = 0; i < a.n; i++)
        a.parts[i] = (mr_digest_part){i, i == 1 ? MR_TYPE_Q4_K : MR_DIGEST_NO_TYPE, 5};
    b = a;
    assert_int_equal(mr_digest_compare(&a, &b, text, sizeof text), 0);
    assert_string_equal(text, "");
    b.parts[1].type = MR_TYPE_Q5_K; /* a part that only one of them has */
    b.parts[1].bits = b.parts[2].bits = b.parts[5].bits = 6;
    assert_int_equal(mr_digest_compare(&a, &b, text, sizeof text), 2);
    assert_string_equal(text, "rms_norm, rope");
    for (int32_t i = 0; i < a.n; i++)
        b.parts[i] = (mr_digest_part){a.parts[i].op, a.parts[i].type, 7};
    assert_int_equal(mr_digest_compare(&a, &b, text, sizeof text), 6);
    assert_string_equal(text, "embed, rope_table Q4_K, rms_norm, quantize and 2 more");
    assert_int_equal(mr_digest_compare(&a, &b, text, 10), 6);
    assert_string_equal(text, "embed, ro");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_level_equals_the_recorded_digest),
        cmocka_unit_test(test_any_cap_gives_the_recorded_digest),
        cmocka_unit_test(test_numbers_of_threads_agree),
        cmocka_unit_test(test_threads_agree),
        cmocka_unit_test(test_every_op_has_a_part),
        cmocka_unit_test(test_one_bit_of_any_kernel_shows),
        cmocka_unit_test(test_rounding_mode_shows),
#if defined(__x86_64__)
        cmocka_unit_test(test_denormal_mode_shows),
#endif
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_compare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
