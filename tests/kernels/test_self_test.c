/* The digest of the kernels: one number for all instruction sets, and any wrong bit changes it. */
// SPDX-License-Identifier: Apache-2.0
#include <fenv.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backends/cpu/self_test.h"
#include "engine/base/clock.h"
#include "engine/base/fmath.h"
#include "engine/base/mem.h"
#include "engine/base/numerics.h"
#include "engine/base/thread.h"
#include "tests/support/isa_env.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

/* Of numerics version 2; the first test prints the number to record. */
static const uint64_t GOLDEN = UINT64_C(0x39a4124b4e1e340b);

static uint64_t digest_of(const mr_kernels *kernels) {
    uint64_t digest = 0;
    mr_err err = {0};
    expect_ok(mr_kernels_digest(kernels, &digest, &err), &err);
    return digest;
}

static void test_every_level_equals_the_recorded_digest(void **state) {
    (void)state;
    for (mr_isa isa = MR_ISA_SCALAR; isa < MR_ISA_COUNT; isa++) {
        if (isa > mr_isa_detect()) {
            print_message("%s: skipped, not on this CPU or capped by MILLRACE_CPU_ISA\n", mr_isa_name(isa));
            continue;
        }
        int64_t start_ns = mr_clock_now_ns();
        uint64_t digest = digest_of(mr_kernels_get(isa));
        print_message("%s: %016" PRIx64 " in %.1f ms\n", mr_isa_name(isa), digest,
                      (double)(mr_clock_now_ns() - start_ns) * 1e-6);
        if (digest != GOLDEN)
            fail_msg("%s: the digest is %016" PRIx64 ", recorded for numerics version %d is %016" PRIx64
                     "; hint: kernels compute other bits than before: a bug, or a change of engine/NUMERICS.md, which "
                     "raises MR_NUMERICS_VERSION there and in engine/base/numerics.h; then record the new digest here",
                     mr_isa_name(isa), digest, MR_NUMERICS_VERSION, GOLDEN);
    }
}

static void test_any_cap_gives_the_recorded_digest(void **state) {
    (void)state;
    if (share_get() > 1) /* a digest takes seconds with a sanitizer */
        skip();
    for (mr_isa isa = MR_ISA_SCALAR; isa < MR_ISA_COUNT; isa++) {
        uint64_t digest = 0;
        char *saved = isa_env_set(mr_isa_name(isa));
        assert_int_equal(mr_cpu_self_test(&digest, NULL), MR_OK);
        isa_env_restore(saved);
        assert_true(digest == GOLDEN);
    }
}

static void run_self_test(void *ctx) {
    if (mr_cpu_self_test(ctx, NULL) != MR_OK)
        *(uint64_t *)ctx = 0;
}

static void test_threads_agree(void **state) {
    (void)state;
    enum { N_THREADS = 4 };
    mr_thread *threads[N_THREADS];
    uint64_t digests[N_THREADS] = {0};
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(mr_thread_create("self-test", 0, run_self_test, &digests[i], &threads[i], NULL), MR_OK);
    for (int i = 0; i < N_THREADS; i++)
        mr_thread_join(threads[i]);
    for (int i = 0; i < N_THREADS; i++)
        assert_true(digests[i] == GOLDEN);
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
    flip("rope", x + n_heads * head_dim - 1);
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

static void test_one_bit_of_any_kernel_shows(void **state) {
    (void)state;
    if (share_get() > 1) /* takes a hundred digests */
        skip();
    real = mr_kernels_get(mr_isa_detect());
    broken = NULL;
    assert_true(digest_of(&BROKEN) == GOLDEN);
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        broken = NAMES[i];
        broken_call = -1; /* none: counts the calls */
        n_calls = 0;
        assert_true(digest_of(&BROKEN) == GOLDEN);
        int last = n_calls - 1;
        if (last < 1)
            fail_msg("the self-test calls %s less than twice", broken);
        for (broken_call = 0; broken_call <= last; broken_call += last) {
            n_calls = 0;
            if (digest_of(&BROKEN) == GOLDEN)
                fail_msg("the digest does not show a wrong bit of call %d of %s", broken_call, broken);
        }
    }
    broken = NULL;
}

/* --- The floating point mode ------------------------------------------------------------------------------------- */

static void test_rounding_mode_shows(void **state) {
    (void)state;
    for (mr_isa isa = share_get() > 1 ? mr_isa_detect() : MR_ISA_SCALAR; isa <= mr_isa_detect(); isa++) {
        assert_int_equal(fesetround(FE_TOWARDZERO), 0);
        uint64_t digest = digest_of(mr_kernels_get(isa));
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
    assert_true(digest_of(&k) != GOLDEN);
    k = *real;
    k.matmul[MR_PANEL_Q8_0] = unflushed_matmul;
    assert_true(digest_of(&k) != GOLDEN);
}
#endif

static void test_no_memory(void **state) {
    (void)state;
    uint64_t digest = 7;
    mr_err err = {0};
    mr_mem_fail_at(0);
    assert_int_equal(mr_cpu_self_test(&digest, &err), MR_E_NO_MEMORY);
    assert_true(digest == 7);
    mr_mem_fail_at(-1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_level_equals_the_recorded_digest),
        cmocka_unit_test(test_any_cap_gives_the_recorded_digest),
        cmocka_unit_test(test_threads_agree),
        cmocka_unit_test(test_one_bit_of_any_kernel_shows),
        cmocka_unit_test(test_rounding_mode_shows),
#if defined(__x86_64__)
        cmocka_unit_test(test_denormal_mode_shows),
#endif
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
