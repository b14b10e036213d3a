// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/product_rig.h"

#include <math.h>
#include <stdlib.h>

#include "backends/cpu/kernels.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "tests/support/test.h"

enum { ALIGN = 256, GUARD = 0xa5, GAP = 3 }; /* GAP: floats between rows of results */

struct product_problem {
    product_shape shape;
    size_t matrix_bytes, cpu_matrix_bytes, file_row_bytes, a_row_bytes;
    uint8_t *panels, *cpu_panels;
    uint8_t *a, *cpu_a; /* a row of all heads is one row; behind the row, a has bytes that must not count */
    float *bias;        /* [n_matrices][n] */
    rng random;
};

static void *aligned(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, ALIGN, bytes + 1) != 0)
        abort();
    return p;
}

static float *random_floats(rng *r, size_t n) {
    float *x = aligned(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = rng_unit(r);
    return x;
}

static void make_matrices(product_problem *p, product_layout layout, values kind) {
    const product_shape *s = &p->shape;
    const mr_type_info *info = mr_type_get(s->type);
    p->file_row_bytes = (size_t)(s->k / info->block_elems) * (size_t)info->block_bytes;
    p->cpu_matrix_bytes = mr_panel_bytes(s->type, s->k) * (size_t)((s->n + MR_PANEL - 1) / MR_PANEL);
    p->matrix_bytes = layout.matrix_bytes;
    uint8_t *file = aligned(p->file_row_bytes * (size_t)s->n);
    p->panels = aligned(p->matrix_bytes * (size_t)s->n_matrices);
    p->cpu_panels = aligned(p->cpu_matrix_bytes * (size_t)s->n_matrices);
    memset(p->panels, GUARD, p->matrix_bytes * (size_t)s->n_matrices + 1);
    for (size_t m = 0; m < (size_t)s->n_matrices; m++) {
        for (size_t n = 0; n < (size_t)s->n; n++)
            random_weights(&p->random, kind, s->type, s->k, file + n * p->file_row_bytes);
        layout.repack(&(cuda_repack){s->type, s->k, s->n, file, p->panels + m * p->matrix_bytes});
        mr_repack_args args = {s->type, s->k, s->n, file, p->file_row_bytes, p->cpu_panels + m * p->cpu_matrix_bytes,
                               NULL};
        mr_repack(&args, 0, (s->n + MR_PANEL - 1) / MR_PANEL);
    }
    assert_int_equal(p->panels[p->matrix_bytes * (size_t)s->n_matrices], GUARD);
    free(file);
}

product_problem *product_problem_create(const product_shape *shape, product_layout layout, values kind, uint64_t seed) {
    product_problem *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    p->shape = *shape;
    p->random.state = seed;
    make_matrices(p, layout, kind);
    size_t bytes = activation_bytes(shape->type, shape->k);
    size_t rows = (size_t)shape->n_rows * (size_t)shape->n_matrices;
    p->a_row_bytes = mr_round_up(bytes, 64);
    p->a = aligned(p->a_row_bytes * rows);
    p->cpu_a = aligned(p->a_row_bytes * rows);
    memset(p->a, 0xff, p->a_row_bytes * rows); /* NaN */
    size_t used = shape->type == MR_TYPE_BF16 ? (size_t)shape->k * 2 : bytes;
    for (size_t r = 0; r < rows; r++) {
        random_activations(&p->random, kind, shape->type, shape->k, p->cpu_a + r * p->a_row_bytes);
        memcpy(p->a + r * p->a_row_bytes, p->cpu_a + r * p->a_row_bytes, used);
    }
    p->bias = random_floats(&p->random, (size_t)shape->n * (size_t)shape->n_matrices);
    return p;
}

void product_problem_destroy(product_problem *p) {
    free(p->panels);
    free(p->cpu_panels);
    free(p->a);
    free(p->cpu_a);
    free(p->bias);
    free(p);
}

/* Which expert each slot has: some have many slots, some none. Lists as EXPERT_ROWS makes them, with rows drawn. */
static mr_expert_rows draw_experts(const product_problem *p, int32_t n_slots, int32_t *lists) {
    int32_t n_experts = p->shape.n_matrices;
    rng r = p->random;
    mr_expert_rows rows = mr_expert_rows_at(lists, n_experts, n_slots);
    memset(rows.first, 0, (size_t)(n_experts + 1) * sizeof *rows.first);
    for (int32_t i = 0; i < n_slots; i++) {
        int32_t e = rng_below(&r, n_experts);
        rows.first[1 + (e % 3 == 1 ? 0 : e)]++;
    }
    for (int32_t e = 0; e < n_experts; e++)
        rows.first[e + 1] += rows.first[e];
    for (int32_t i = 0; i < n_slots; i++) {
        rows.slots[i] = n_slots - 1 - i;
        rows.rows[i] = rng_below(&r, p->shape.n_rows);
    }
    return rows;
}

/* The products of matrix m by the scalar kernel. */
static void multiply_on_cpu(const product_problem *p, int32_t m, mr_matmul_args args, int32_t n_rows) {
    static mr_matmul_fn *const SCALAR[MR_PANEL_COUNT] = {
        [MR_PANEL_F32] = mr_matmul_f32_scalar,       [MR_PANEL_F16] = mr_matmul_f16_scalar,
        [MR_PANEL_BF16] = mr_matmul_bf16_scalar,     [MR_PANEL_Q8_0] = mr_matmul_q8_0_scalar,
        [MR_PANEL_Q4_0] = mr_matmul_q4_0_scalar,     [MR_PANEL_IQ4_NL] = mr_matmul_iq4_nl_scalar,
        [MR_PANEL_MXFP4] = mr_matmul_mxfp4_scalar,   [MR_PANEL_Q4_K] = mr_matmul_q4_k_scalar,
        [MR_PANEL_Q5_K] = mr_matmul_q5_k_scalar,     [MR_PANEL_Q6_K] = mr_matmul_q6_k_scalar,
        [MR_PANEL_IQ4_XS] = mr_matmul_iq4_xs_scalar,
    };
    const product_shape *s = &p->shape;
    args.w = p->cpu_panels + (size_t)m * p->cpu_matrix_bytes;
    args.k = s->k;
    args.n = s->n;
    args.bias = args.bias ? args.bias + m * s->n : NULL;
    SCALAR[mr_panel_of(s->type)](&args, 0, (s->n + MR_PANEL - 1) / MR_PANEL, 0, n_rows);
}

static void compute_expected(const product_problem *p, const product_variant *v, const mr_expert_rows *experts,
                             mr_matmul_args args) {
    if (v->of == PRODUCT_ALONE)
        multiply_on_cpu(p, 0, args, v->n_rows);
    for (int32_t m = 0; m < p->shape.n_matrices && v->of == PRODUCT_HEADS; m++) {
        mr_matmul_args of_head = args;
        of_head.a += (size_t)m * p->a_row_bytes;
        of_head.a_row_bytes *= (size_t)p->shape.n_matrices;
        of_head.y += m * p->shape.n;
        of_head.add = args.add ? args.add + m * p->shape.n : NULL;
        multiply_on_cpu(p, m, of_head, v->n_rows);
    }
    for (int32_t m = 0; m < p->shape.n_matrices && v->of == PRODUCT_EXPERTS; m++) {
        mr_matmul_args of_expert = args;
        of_expert.a_rows = experts->rows + experts->first[m];
        of_expert.y_rows = experts->slots + experts->first[m];
        multiply_on_cpu(p, m, of_expert, experts->first[m + 1] - experts->first[m]);
    }
}

static void run_on_device(const product_problem *p, const product_variant *v, const mr_expert_rows *experts,
                          const mr_matmul_args *cpu, product_run_fn *run, void *ctx) {
    const product_shape *s = &p->shape;
    cuda_step step = {.n_rows = {[MR_ROWS_STEP] = v->n_rows}};
    bool heads = v->of == PRODUCT_HEADS;
    cuda_product_args args = {
        .step = &step,
        .rows = {MR_ROWS_STEP, -1},
        .k = s->k,
        .n = s->n,
        .w = p->panels,
        .matrix_bytes = p->matrix_bytes,
        .a = p->a,
        .y = (uint8_t *)cpu->y,
        .bias = (const uint8_t *)cpu->bias,
        .add = (const uint8_t *)cpu->add,
        .a_row_bytes = (uint32_t)(p->a_row_bytes * (size_t)(heads ? s->n_matrices : 1)),
        .y_row_bytes = (uint32_t)cpu->y_row_bytes,
        .add_row_bytes = (uint32_t)cpu->add_row_bytes,
        .bias_matrix_bytes = (uint32_t)s->n * 4,
        .a_head_bytes = heads ? (uint32_t)p->a_row_bytes : 0,
        .y_head_bytes = heads ? (uint32_t)s->n * 4 : 0,
        .first = v->of == PRODUCT_EXPERTS ? experts->first : NULL,
        .a_rows = experts->rows,
        .y_rows = experts->slots,
        .n_experts = s->n_matrices,
    };
    run(s, v, &args, ctx);
}

static bool same_bits(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

void product_check(const product_problem *p, const product_variant *v, product_run_fn *run, void *ctx) {
    const product_shape *s = &p->shape;
    int32_t lists[1024];
    assert_true(s->n_matrices + 1 + 2 * v->n_rows <= 1024);
    mr_expert_rows experts = draw_experts(p, v->n_rows, lists);
    size_t width = (size_t)s->n * (size_t)(v->of == PRODUCT_HEADS ? s->n_matrices : 1) + GAP;
    size_t bytes = width * (size_t)v->n_rows * sizeof(float);
    float *want = aligned(bytes), *got = aligned(bytes), *add = random_floats(&(rng){5}, width * (size_t)v->n_rows);
    memset(want, GUARD, bytes);
    if (v->alias)
        memcpy(want, add, bytes);
    memcpy(got, want, bytes);
    mr_matmul_args args = {.a = p->cpu_a, .a_row_bytes = p->a_row_bytes, .y = want};
    args.y_row_bytes = args.add_row_bytes = width * sizeof *want;
    args.bias = v->bias ? p->bias : NULL;
    args.add = !v->add ? NULL : v->alias ? want : add;
    mr_thread_set_denormals_flushed();
    compute_expected(p, v, &experts, args);
    args.y = got;
    args.add = args.add == want ? got : args.add;
    run_on_device(p, v, &experts, &args, run, ctx);
    if (!same_bits(want, got, bytes / sizeof *want))
        for (size_t i = 0; i < bytes / sizeof *want; i++)
            if (!same_bits(want + i, got + i, 1))
                fail_msg("%s matrices %d k %d n %d rows %d of %d bias %d add %d alias %d: y[%zu][%zu] is %a, not %a",
                         mr_type_name(s->type), s->n_matrices, s->k, s->n, v->n_rows, (int)v->of, v->bias, v->add,
                         v->alias, i / width, i % width, (double)got[i], (double)want[i]);
    free(want);
    free(got);
    free(add);
}
