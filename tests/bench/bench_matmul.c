/* tests/bench/bench_matmul.c - measures matrix products against the limits of this machine.
 *   bench_matmul [-r repetitions] [-m weight MiB] [type ...]
 * Matrix-vector: bytes of the FILE layout per second, and the share of a plain AVX-512 read loop over the same memory.
 * Tiles: operations per second, and the share of the VNNI peak (quantised types) or the float32 fma peak.
 * Weights are read from a region that is larger than the caches, one matrix after the other, as in a model. The
 * measurements of a line run alternately, and the medians are printed. On a shared machine only the ratios are
 * meaningful. */
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/pool.h"
#include "engine/base/thread.h"
#include "engine/tensor/f16.h"
#include "engine/tensor/quant.h"
#include "tests/bench/bench_cpu.h"
#include "tests/support/rng.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
enum { MAX_THREADS = 2, MAX_ROWS = 512, MAX_K = 5632, MAX_N = 5632, MAX_REPS = 99, SOURCE_ROWS = 64 };

typedef struct bench {
    mr_pool *pools[MAX_THREADS + 1];
    uint8_t *weights; /* [weight_bytes], filled with panels of the current type */
    size_t weight_bytes;
    uint8_t *a; /* MAX_ROWS rows of the type that mr_type_activation gives */
    float *y;
    int reps;
} bench;

/* --- Limits ---------------------------------------------------------------------------------------------------------
 */

enum { PEAK_LOOPS = 200000, CHAINS = 12 };

/* Assembly, because compilers copy registers between twelve chains of intrinsics. */
#define PEAK_LOOP(op)                                                                                                  \
    __asm__ volatile(".p2align 6\n1:\n" op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10)             \
                         op(11) "dec %0\n\tjnz 1b"                                                                     \
                     : "+r"(n)                                                                                         \
                     : "v"(x)                                                                                          \
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",  \
                       "xmm11")
#define DPBUSD(i) "vpdpbusd %1, %1, %%zmm" #i "\n\t"
#define FMA(i) "vfmadd231ps %1, %1, %%zmm" #i "\n\t"

AVX512 static void vnni_loop(void) {
    int n = PEAK_LOOPS;
    __m512i x = _mm512_setzero_si512();
    PEAK_LOOP(DPBUSD);
}

AVX512 static void fma_loop(void) {
    int n = PEAK_LOOPS;
    __m512 x = _mm512_setzero_ps();
    PEAK_LOOP(FMA);
}

/* --- Work of one thread ---------------------------------------------------------------------------------------------
 */

typedef enum work { WORK_READ, WORK_VNNI, WORK_FMA, WORK_MATMUL } work;

typedef struct job {
    const bench *b;
    work what;
    mr_matmul_fn *fn;
    mr_type type;
    int32_t k, n, rows, n_matrices;
    double seconds[MAX_THREADS]; /* out: the time of each thread */
} job;

static size_t activation_bytes(mr_type weight, int32_t k) {
    size_t bytes = 0;
    (void)mr_type_bytes(mr_type_activation(weight), k, &bytes);
    return mr_round_up(bytes, 64);
}

static void run_matrices(const job *j, int thread_idx, int n_threads) {
    const bench *b = j->b;
    size_t panel_bytes = mr_panel_bytes(j->type, j->k);
    int32_t n_panels = j->n / MR_PANEL, pairs = n_panels / 2;
    int32_t first = pairs * thread_idx / n_threads * 2;
    int32_t last = thread_idx + 1 == n_threads ? n_panels : pairs * (thread_idx + 1) / n_threads * 2;
    mr_matmul_args args = {.k = j->k, .n = j->n, .a = b->a, .y = b->y, .y_row_bytes = (size_t)j->n * sizeof(float)};
    args.a_row_bytes = activation_bytes(j->type, j->k);
    for (int32_t i = 0; i < j->n_matrices; i++) {
        args.w = b->weights + (size_t)i * (size_t)n_panels * panel_bytes;
        j->fn(&args, first, last, 0, j->rows);
    }
}

static void run_thread(void *ctx, int thread_idx, int n_threads) {
    job *j = ctx;
    double start = thread_seconds();
    size_t part = j->b->weight_bytes / (size_t)n_threads / 256 * 256;
    if (j->what == WORK_READ)
        read_loop(j->b->weights + part * (size_t)thread_idx, part);
    else if (j->what == WORK_VNNI)
        vnni_loop();
    else if (j->what == WORK_FMA)
        fma_loop();
    else
        run_matrices(j, thread_idx, n_threads);
    j->seconds[thread_idx] = thread_seconds() - start;
}

static double seconds(job *j, int n_threads) {
    double slowest = 0;
    mr_pool_run_each(j->b->pools[n_threads], run_thread, j);
    for (int i = 0; i < n_threads; i++)
        slowest = j->seconds[i] > slowest ? j->seconds[i] : slowest;
    return slowest;
}

/* Runs two jobs alternately. out: the median of each. */
static void alternate(const bench *b, job *one, job *other, int n_threads, double out[2]) {
    double t[2][MAX_REPS];
    for (int i = 0; i < b->reps; i++) {
        t[0][i] = seconds(one, n_threads);
        t[1][i] = seconds(other, n_threads);
    }
    out[0] = median(t[0], b->reps);
    out[1] = median(t[1], b->reps);
}

/* --- Data -----------------------------------------------------------------------------------------------------------
 */

static rng numbers = {.state = 1};

static void fill_activations(bench *b, mr_type type, int32_t k) {
    mr_type activation = mr_type_activation(type);
    size_t row_bytes = activation_bytes(type, k);
    for (size_t row = 0; row < MAX_ROWS; row++) {
        uint8_t *a = b->a + row * row_bytes;
        float *f = (float *)(void *)a;
        for (int32_t i = 0; i < k; i++) {
            if (activation == MR_TYPE_BF16)
                ((uint16_t *)(void *)a)[i] = mr_f32_to_bf16((float)(rng_next(&numbers) % 1000) * 1e-3f);
            else if (activation == MR_TYPE_F32)
                f[i] = (float)(rng_next(&numbers) % 1000) * 1e-3f;
            else
                a[i] = (uint8_t)(rng_next(&numbers) % 255 - 127);
        }
        for (int32_t i = 0; i < k / 32 && activation == MR_TYPE_A8; i++) {
            int32_t sum = 0;
            for (int e = 0; e < 32; e++)
                sum += (int8_t)a[i * 32 + e];
            ((float *)(void *)(a + k))[i] = 0.01f;
            ((int32_t *)(void *)(a + k + k / 8))[i] = sum;
        }
    }
}

/* Fills the whole region with panels of random rows of k columns. out_repack_gbs: gigabytes of rows repacked per
 * second. */
static bool fill_weights(bench *b, mr_type type, int32_t k, double *out_repack_gbs) {
    const mr_type_info *info = mr_type_get(type);
    size_t row_bytes = (size_t)(k / info->block_elems) * (size_t)info->block_bytes,
           panel_bytes = mr_panel_bytes(type, k);
    uint8_t *src = mr_alloc(row_bytes * SOURCE_ROWS);
    if (!src)
        return false;
    for (size_t i = 0; i < row_bytes * SOURCE_ROWS; i++)
        src[i] = (uint8_t)rng_next(&numbers);
    uint16_t small = mr_f32_to_f16(0.01f);
    for (size_t i = 0; i < row_bytes * SOURCE_ROWS; i += (size_t)info->block_bytes)
        if (type == MR_TYPE_F32)
            memcpy(src + i, &(float){0.01f}, 4);
        else
            mr_block_set_scale(type, src + i, small, small);
    mr_repack_args args = {type, k, SOURCE_ROWS, src, row_bytes, b->weights, NULL};
    int64_t start = mr_clock_now_ns();
    size_t done = 0;
    for (; done + panel_bytes * (SOURCE_ROWS / MR_PANEL) <= b->weight_bytes;
         done += panel_bytes * (SOURCE_ROWS / MR_PANEL)) {
        args.dst = b->weights + done;
        mr_repack(&args, 0, SOURCE_ROWS / MR_PANEL);
    }
    double bytes = (double)(done / panel_bytes) * MR_PANEL * (double)row_bytes;
    *out_repack_gbs = bytes / (double)(mr_clock_now_ns() - start);
    mr_free(src);
    return true;
}

/* --- Lines of the table ---------------------------------------------------------------------------------------------
 */

static void print_limits(const bench *b) {
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        job read = {.b = b, .what = WORK_READ}, vnni = {.b = b, .what = WORK_VNNI}, fma = {.b = b, .what = WORK_FMA};
        double t[2], u[2];
        alternate(b, &read, &vnni, threads, t);
        alternate(b, &read, &fma, threads, u);
        double loops = (double)PEAK_LOOPS * CHAINS * threads;
        printf("limits      %d thread%s  read %5.1f GB/s   VNNI %.3f TOPS   fma %.3f TFLOPS\n", threads,
               threads > 1 ? "s" : " ", (double)b->weight_bytes / t[0] * 1e-9, loops * 128 / t[1] * 1e-12,
               loops * 32 / u[1] * 1e-12);
    }
}

static void print_vector(const bench *b, const job *base, const char *isa, int threads) {
    const mr_type_info *info = mr_type_get(base->type);
    size_t matrix_bytes = (size_t)(base->n / MR_PANEL) * mr_panel_bytes(base->type, base->k);
    job j = *base, read = {.b = b, .what = WORK_READ};
    double t[2];
    j.rows = 1;
    j.n_matrices = (int32_t)(b->weight_bytes / matrix_bytes);
    alternate(b, &read, &j, threads, t);
    double file_bytes = (double)j.n_matrices * j.n * (j.k / info->block_elems) * info->block_bytes;
    double gbs = file_bytes / t[1] * 1e-9, limit = (double)b->weight_bytes / t[0] * 1e-9;
    printf("%-5s %-6s %d thread%s  vector %5dx%-5d           %6.1f GB/s   %.2f of the read loop\n", info->name, isa,
           threads, threads > 1 ? "s" : " ", base->n, base->k, gbs, gbs / limit);
}

static void print_tile(const bench *b, const job *base, const char *isa, int threads) {
    size_t matrix_bytes = (size_t)(base->n / MR_PANEL) * mr_panel_bytes(base->type, base->k);
    bool is_float = mr_type_activation(base->type) != MR_TYPE_A8;
    job j = *base, peak = {.b = b, .what = is_float ? WORK_FMA : WORK_VNNI};
    double t[2], ops = 2.0 * j.n * j.k * j.rows;
    j.n_matrices = (int32_t)(b->weight_bytes / matrix_bytes);
    int32_t enough = (int32_t)(4e9 * threads / ops) + 1; /* about 10 ms */
    j.n_matrices = j.n_matrices < enough ? j.n_matrices : enough;
    alternate(b, &peak, &j, threads, t);
    double tops = ops * j.n_matrices / t[1] * 1e-12;
    double limit = (double)PEAK_LOOPS * CHAINS * threads * (is_float ? 32 : 128) / t[0] * 1e-12;
    printf("%-5s %-6s %d thread%s  tile   %5dx%-5d %3d rows  %6.3f TOPS   %.2f of the %s peak\n",
           mr_type_name(base->type), isa, threads, threads > 1 ? "s" : " ", j.n, j.k, j.rows, tops, tops / limit,
           is_float ? "fma" : "VNNI");
}

static void run_type(bench *b, mr_type type, mr_isa isa) {
    static const int32_t SHAPES[][2] = {{2048, 2048}, {5632, 2048}, {2048, 5632}}; /* n and k of each shape */
    static const int32_t ROWS[] = {2, 4, 8, 16, 32, 64, 512};
    mr_matmul_fn *fn = mr_kernels_get(isa)->matmul[mr_panel_of(type)];
    for (size_t s = 0; s < sizeof SHAPES / sizeof SHAPES[0]; s++) {
        job j = {.b = b, .what = WORK_MATMUL, .fn = fn, .type = type, .n = SHAPES[s][0], .k = SHAPES[s][1]};
        double repack;
        if (!fn || !fill_weights(b, type, j.k, &repack))
            return;
        fill_activations(b, type, j.k);
        if (s == 0)
            printf("%-5s        1 thread   repack from cache             %6.1f GB/s\n", mr_type_name(type), repack);
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            print_vector(b, &j, mr_isa_name(isa), threads);
            for (size_t r = 0; r < sizeof ROWS / sizeof ROWS[0]; r++) {
                j.rows = ROWS[r];
                print_tile(b, &j, mr_isa_name(isa), threads);
            }
        }
    }
}

static bool bench_init(bench *b) {
    for (int i = 1; i <= MAX_THREADS; i++)
        if (mr_pool_create(i, NULL, &b->pools[i], NULL) != MR_OK)
            return false;
    b->weights = mr_pages_alloc(b->weight_bytes);
    b->a = mr_pages_alloc((size_t)MAX_ROWS * MAX_K * 4);
    b->y = mr_pages_alloc((size_t)MAX_ROWS * MAX_N * 4);
    return b->weights && b->a && b->y;
}

int main(int argc, char **argv) {
    bench b = {.reps = 11, .weight_bytes = (size_t)1 << 30};
    int arg = 1;
    for (; arg + 1 < argc && argv[arg][0] == '-'; arg += 2) {
        int value = atoi(argv[arg + 1]);
        if (argv[arg][1] == 'r' && value > 0 && value <= MAX_REPS)
            b.reps = value;
        if (argv[arg][1] == 'm' && value >= 64 && value <= 65536)
            b.weight_bytes = (size_t)value << 20;
    }
    mr_isa isa = mr_isa_detect();
    if (!__builtin_cpu_supports("avx512vnni"))
        fprintf(stderr, "bench_matmul: the limits need a CPU with AVX-512 VNNI\n");
    if (!__builtin_cpu_supports("avx512vnni") || !bench_init(&b))
        return 1;
    memset(b.weights, 1, b.weight_bytes);
    print_limits(&b);
    for (int type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        bool wanted = arg == argc;
        for (int j = arg; j < argc; j++)
            wanted |= strcmp(argv[j], mr_type_name(type)) == 0;
        if (wanted && mr_panel_of((mr_type)type) != MR_PANEL_NONE)
            run_type(&b, (mr_type)type, isa);
    }
    for (int i = 1; i <= MAX_THREADS; i++)
        mr_pool_destroy(b.pools[i]);
    mr_pages_free(b.weights, b.weight_bytes);
    mr_pages_free(b.a, (size_t)MAX_ROWS * MAX_K * 4);
    mr_pages_free(b.y, (size_t)MAX_ROWS * MAX_N * 4);
    return 0;
}
