/* tests/bench/bench_step.c - measures the cost of a decode step of one thread outside of its kernels. Runs the same
 * step again with kernels that do nothing. The remaining time is that of graph, tasks, inputs and the copy of the
 * logits.
 *   bench_step MODEL [repetitions]
 * Prints the fastest and the median step in microseconds: with kernels, and without. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/cpu_internal.h"
#include "engine/base/clock.h"
#include "worker/stage/stage.h"

enum { POSITION = 100, N_BLOCKS = 8, MAX_REPETITIONS = 100000 };

/* --- Kernels that do nothing ------------------------------------------------------------------------------------- */

static void no_matmul(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                      int32_t row_last) {
    (void)args, (void)panel_first, (void)panel_last, (void)row_first, (void)row_last;
}
static void no_quantize(const float *x, uint8_t *a8, int32_t n) {
    (void)x, (void)a8, (void)n;
}
static void no_norm(const float *x, const float *w, float *y, int32_t n, int32_t m, float eps) {
    (void)x, (void)w, (void)y, (void)n, (void)m, (void)eps;
}
static void no_rope_table(const float *const angles[MR_ROPE_ROWS], int32_t half, int32_t position, float magnitude,
                          float *out) {
    (void)angles, (void)half, (void)position, (void)magnitude, (void)out;
}
static void no_rope(float *x, int32_t n_heads, int32_t head_dim, int32_t n_rot, mr_rope_pairs pairs,
                    const float *table) {
    (void)x, (void)n_heads, (void)head_dim, (void)n_rot, (void)pairs, (void)table;
}
static void no_glu(const float *gate, const float *up, float *y, int32_t n, mr_glu glu) {
    (void)gate, (void)up, (void)y, (void)n, (void)glu;
}
static void no_soft_cap(const float *x, float *y, int32_t n, float cap) {
    (void)x, (void)y, (void)n, (void)cap;
}
static void no_kv_write(const mr_kv_write_args *args, int32_t row_first, int32_t row_last) {
    (void)args, (void)row_first, (void)row_last;
}
static void no_attention(const mr_attention_args *args, const mr_attention_part *part) {
    (void)args, (void)part;
}

static void no_round_bf16(const float *x, uint16_t *out, int32_t n) {
    (void)x, (void)out, (void)n;
}

static mr_kernels nothing(void) {
    mr_kernels k = {.quantize = no_quantize,
                    .round_bf16 = no_round_bf16,
                    .rms_norm = no_norm,
                    .rope_table = no_rope_table,
                    .rope = no_rope,
                    .glu = no_glu,
                    .soft_cap = no_soft_cap,
                    .kv_write = no_kv_write,
                    .attention = no_attention};
    for (size_t t = 0; t < sizeof k.matmul / sizeof k.matmul[0]; t++)
        k.matmul[t] = no_matmul;
    return k;
}

/* --- Measuring --------------------------------------------------------------------------------------------------- */

static void check(mr_status status, const mr_err *err) {
    if (status == MR_OK)
        return;
    fprintf(stderr, "bench_step: %s\n", err->text);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void measure(mr_stage *s, int n, const char *what) {
    static int64_t ns[MAX_REPETITIONS];
    mr_err err;
    for (int i = 0; i < n; i++) {
        int64_t start = mr_clock_now_ns();
        mr_step_rows *rows = mr_stage_rows(s);
        rows->n_rows = rows->n_out = 1;
        rows->ids[0] = 1;
        rows->positions[0] = rows->slots[0] = POSITION;
        check(mr_stage_run(s, &(mr_stage_step){0}, &err), &err);
        ns[i] = mr_clock_now_ns() - start;
    }
    qsort(ns, (size_t)n, sizeof ns[0], by_value);
    printf("%-16s %8.1f us fastest %8.1f us median\n", what, (double)ns[0] / 1e3, (double)ns[n / 2] / 1e3);
}

int main(int argc, char **argv) {
    mr_err err;
    mr_gguf *gguf = NULL;
    mr_model_info info;
    mr_backend *backend = NULL;
    mr_stage *s = NULL;
    int n = argc > 2 ? atoi(argv[2]) : 2000;
    if (argc < 2 || n < 1 || n > MAX_REPETITIONS) {
        fprintf(stderr, "bench_step MODEL [repetitions]\n");
        return 2;
    }
    check(mr_gguf_open(argv[1], &gguf, &err), &err);
    check(mr_model_info_read(gguf, &info, &err), &err);
    check(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &backend, &err), &err);
    mr_stage_config config = {.gguf = gguf,
                              .info = &info,
                              .range = {0, info.n_layers},
                              .max_rows = 1,
                              .max_out_rows = 1,
                              .max_sequences = 1,
                              .max_context = N_BLOCKS * MR_KV_BLOCK,
                              .n_kv_blocks = N_BLOCKS,
                              .kv_type = MR_TYPE_F16};
    check(mr_stage_create(&config, backend, NULL, NULL, &s, &err), &err);
    int32_t blocks[N_BLOCKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    check(mr_stage_set_blocks(s, 0, 0, blocks, N_BLOCKS, &err), &err);
    const mr_kernels none = nothing();
    measure(s, n, "whole step");
    ((cpu_backend *)backend)->kernels = &none;
    measure(s, n, "outside kernels");
    mr_stage_destroy(s);
    mr_backend_destroy(backend);
    mr_gguf_close(gguf);
    return 0;
}
