/* tests/kernels/test_matmul_blocks.c - tests the loops around the tiles, with more rows than a block, more panels than
 * a group and more k than a chunk. Every instruction set is compared with the scalar kernel, which has no such
 * loops. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "engine/base/thread.h"
#include "test_matmul_reference.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

enum { N = 280, N_PANELS = (N + MR_PANEL - 1) / MR_PANEL, MAX_ROWS = 196, ALIGN = 64 };
static const int32_t ROWS[] = {9, 83, 84, 85, 98, 99, 168, 193, MAX_ROWS};

static void *aligned(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, ALIGN, bytes) != 0)
        abort();
    return p;
}

static void check_type(mr_type type, int32_t k) {
    static float want[MAX_ROWS][N], got[MAX_ROWS][N];
    const mr_type_info *info = mr_type_get(type);
    rng r = {7 + (uint64_t)type};
    size_t file_row = (size_t)(k / info->block_elems) * (size_t)info->block_bytes;
    size_t a_row = (activation_bytes(type, k) + ALIGN - 1) / ALIGN * ALIGN;
    uint8_t *file = aligned(file_row * N), *a = aligned(a_row * MAX_ROWS);
    uint8_t *w = aligned(mr_panel_bytes(type, k) * N_PANELS);
    for (size_t n = 0; n < N; n++)
        random_weights(&r, VALUES_PLAIN, type, k, file + n * file_row);
    for (size_t row = 0; row < MAX_ROWS; row++)
        random_activations(&r, VALUES_PLAIN, type, k, a + row * a_row);
    mr_repack(&(mr_repack_args){type, k, N, file, file_row, w, NULL}, 0, N_PANELS);
    mr_matmul_args args = {.w = w, .k = k, .n = N, .a = a, .a_row_bytes = a_row, .y_row_bytes = sizeof got[0]};
    mr_panel_type panel = mr_panel_of(type);
    mr_matmul_fn *scalar = mr_kernels_get(MR_ISA_SCALAR)->matmul[panel];
    args.y = want[0];
    scalar(&args, 0, N_PANELS, 0, MAX_ROWS);
    args.y = got[0];
    for (int isa = MR_ISA_SCALAR + 1; isa <= (int)mr_isa_detect(); isa++) {
        mr_matmul_fn *fn = mr_kernels_get((mr_isa)isa)->matmul[panel];
        if (fn == mr_kernels_get((mr_isa)(isa - 1))->matmul[panel])
            continue; /* this instruction set has no kernel of its own */
        for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
            memset(got, 0x55, sizeof got);
            fn(&args, 0, N_PANELS, 0, ROWS[i]);
            if (memcmp(want, got, sizeof got[0] * (size_t)ROWS[i]) != 0)
                fail_msg("%s %s, k %d, %d rows", mr_type_name(type), mr_isa_name((mr_isa)isa), k, ROWS[i]);
        }
    }
    free(file);
    free(a);
    free(w);
}

/* One type for each kind of panel, with k above one chunk of floats and above one chunk of bytes. */
static void test_blocks_groups_and_chunks(void **state) {
    (void)state;
    static const struct {
        mr_type type;
        int32_t k;
    } CASES[] = {{MR_TYPE_F32, 150},  {MR_TYPE_F16, 261},    {MR_TYPE_BF16, 300},   {MR_TYPE_Q8_0, 608},
                 {MR_TYPE_Q4_0, 608}, {MR_TYPE_IQ4_NL, 544}, {MR_TYPE_MXFP4, 544},  {MR_TYPE_Q4_K, 768},
                 {MR_TYPE_Q5_K, 768}, {MR_TYPE_Q6_K, 768},   {MR_TYPE_IQ4_XS, 768}, {MR_TYPE_IQ3_S, 768},
                 {MR_TYPE_Q2_K, 768}};
    const int n = (int)(sizeof CASES / sizeof CASES[0]);
    for (int i = share_first(n); i < n; i += share_get())
        check_type(CASES[i].type, CASES[i].k);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks_groups_and_chunks)};
    mr_thread_set_denormals_flushed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
