/* tests/bench/bench_attention.c - measures attention against the limits of this machine: 32 heads, 4 KV heads.
 *   bench_attention [-r repetitions] [-m MiB of keys and values] [-k F16|F32|Q8_0] [-i avx512|avx2]
 * Decode: bytes of keys and values read per second by one row, and the share of a plain AVX-512 read loop over the same
 * memory. The layers lie in a region that is larger than the caches. Block tables are shuffled.
 * Prefill: operations per second of 512 rows behind a depth, and the share of the float32 fma peak.
 * The two measurements of a line run alternately, and the medians are printed. Times are CPU times of the slowest
 * thread. On a shared machine only these times and the ratios are meaningful. */
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "engine/base/mem.h"
#include "engine/base/pool.h"
#include "engine/tensor/f16.h"
#include "tests/bench/bench_cpu.h"

#define AVX512 __attribute__((target("avx512f")))
enum { MAX_THREADS = 2, MAX_REPS = 99, N_HEADS = 32, N_KV_HEADS = 4, MAX_DIM = 128, ROWS = 512, MAX_DEPTH = 16384 };
enum { MAX_BLOCKS = (MAX_DEPTH + ROWS) / MR_KV_BLOCK, PEAK_LOOPS = 1000000, CHAINS = 12 };

typedef struct bench {
    mr_pool *pools[MAX_THREADS + 1];
    uint8_t *kv;
    size_t kv_bytes;
    float *q, *out; /* [ROWS][N_HEADS * MAX_DIM] */
    int32_t table[MAX_BLOCKS], row_seq[ROWS], row_position[ROWS];
    int reps;
    const char *only_type, *only_isa; /* NULL: all types and instruction sets */
} bench;

typedef enum work { WORK_READ, WORK_FMA, WORK_ATTENTION } work;

typedef struct job {
    bench *b;
    work what;
    mr_attention_fn *fn;
    mr_type type;
    int32_t head_dim, depth, n_rows, n_layers;
    double cpu_seconds[MAX_THREADS];
} job;

AVX512 static void fma_loop(void) {
    __m512 acc[CHAINS], x = _mm512_set1_ps(0.5f);
    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < PEAK_LOOPS; n++) {
        __asm__ volatile("" : "+v"(x)); /* makes the compiler treat x as a new value, so that it keeps the loop */
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm512_fmadd_ps(acc[i], x, x);
    }
    for (int i = 1; i < CHAINS; i++)
        acc[0] = _mm512_add_ps(acc[0], acc[i]);
    sink = (int32_t)_mm512_reduce_add_ps(acc[0]);
}

static size_t layer_bytes(const job *j) { /* bytes of keys and values */
    size_t blocks = (size_t)(j->depth + j->n_rows + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    return blocks * N_KV_HEADS * mr_kv_head_bytes(j->type, j->head_dim);
}

static void run_layers(const job *j, int thread_idx, int n_threads) {
    const bench *b = j->b;
    size_t half = layer_bytes(j), row_bytes = (size_t)(N_HEADS * j->head_dim) * sizeof(float);
    mr_attention_args a = {.q = b->q,
                           .q_row_bytes = row_bytes,
                           .k_block_bytes = N_KV_HEADS * mr_kv_head_bytes(j->type, j->head_dim),
                           .v_block_bytes = N_KV_HEADS * mr_kv_head_bytes(j->type, j->head_dim),
                           .kv_type = j->type,
                           .row_seq = b->row_seq,
                           .row_position = b->row_position,
                           .block_table = b->table,
                           .n_heads = N_HEADS,
                           .n_kv_heads = N_KV_HEADS,
                           .k_dim = j->head_dim,
                           .v_dim = j->head_dim,
                           .scale = 0.1f,
                           .out = b->out,
                           .out_row_bytes = row_bytes};
    for (int32_t i = 0; i < j->n_layers; i++) {
        a.k_store = b->kv + (size_t)i * 2 * half;
        a.v_store = b->kv + (size_t)i * 2 * half + half;
        mr_attention_part part = {.row_last = j->n_rows,
                                  .head_first = N_KV_HEADS * thread_idx / n_threads * (N_HEADS / N_KV_HEADS),
                                  .head_last = N_KV_HEADS * (thread_idx + 1) / n_threads * (N_HEADS / N_KV_HEADS)};
        j->fn(&a, &part);
    }
}

static void run_thread(void *ctx, int thread_idx, int n_threads) {
    job *j = ctx;
    size_t part = j->b->kv_bytes / (size_t)n_threads / 256 * 256;
    double start = thread_seconds();
    if (j->what == WORK_READ)
        read_loop(j->b->kv + part * (size_t)thread_idx, part);
    else if (j->what == WORK_FMA)
        fma_loop();
    else
        run_layers(j, thread_idx, n_threads);
    j->cpu_seconds[thread_idx] = thread_seconds() - start;
}

static double seconds(job *j, int n_threads) {
    double longest = 0;
    mr_pool_run_each(j->b->pools[n_threads], run_thread, j);
    for (int i = 0; i < n_threads; i++)
        longest = j->cpu_seconds[i] > longest ? j->cpu_seconds[i] : longest;
    return longest;
}

/* Runs two jobs alternately. out: the median of each. */
static void alternate(job *one, job *other, int n_threads, double out[2]) {
    double t[2][MAX_REPS];
    int reps = one->b->reps;
    for (int i = 0; i < reps; i++) {
        t[0][i] = seconds(one, n_threads);
        t[1][i] = seconds(other, n_threads);
    }
    for (int i = 0; i < 2; i++)
        out[i] = median(t[i], reps);
}

/* Sets n_rows rows at positions depth, depth + 1, … and a shuffled block table for them. */
static void set_rows(bench *b, int32_t depth, int32_t n_rows) {
    int32_t n_blocks = (depth + n_rows + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    for (int32_t r = 0; r < n_rows; r++)
        b->row_position[r] = depth + r;
    for (int32_t i = 0; i < n_blocks; i++)
        b->table[i] = i;
    for (int32_t i = n_blocks - 1; i > 0; i--) {
        int32_t j = rand() % (i + 1), t = b->table[i];
        b->table[i] = b->table[j];
        b->table[j] = t;
    }
}

static void fill_kv(bench *b, mr_type type) {
    for (size_t i = 0; i < b->kv_bytes / 4; i++) {
        float x = (float)(rand() % 2001 - 1000) * 1e-3f;
        uint16_t half = mr_f32_to_f16(x);
        if (type == MR_TYPE_F32)
            ((float *)(void *)b->kv)[i] = x;
        else
            memset(b->kv + i * 4, 0, 4),
                memcpy(b->kv + i * 4, &half, 2); /* for Q8_0, this makes some scales small and all scales finite */
    }
}

static void print_decode(job j, const char *isa, int threads) {
    job read = {.b = j.b, .what = WORK_READ};
    double t[2];
    j.n_rows = 1;
    j.depth -= 1; /* the row itself is the last of the positions */
    j.n_layers = (int32_t)(j.b->kv_bytes / (2 * layer_bytes(&j)));
    set_rows(j.b, j.depth, 1);
    alternate(&read, &j, threads, t);
    double gbs = 2e-9 * (double)layer_bytes(&j) * j.n_layers / t[1], limit = (double)j.b->kv_bytes / t[0] * 1e-9;
    printf("%s %-6s dim %3d  %d thread%s  decode   at %5d  %6.1f GB/s    %.2f of the read loop (%.1f)\n",
           mr_type_name(j.type), isa, j.head_dim, threads, threads > 1 ? "s" : " ", j.depth + 1, gbs, gbs / limit,
           limit);
}

static void print_prefill(job j, const char *isa, int threads) {
    job peak = {.b = j.b, .what = WORK_FMA};
    double t[2], positions = (double)ROWS * (j.depth + 0.5 * (ROWS + 1));
    j.n_rows = ROWS;
    j.n_layers = j.depth ? 1 : 8;
    set_rows(j.b, j.depth, ROWS);
    alternate(&peak, &j, threads, t);
    double gflops = 4e-9 * positions * N_HEADS * j.head_dim * j.n_layers / t[1];
    double limit = 32e-9 * PEAK_LOOPS * CHAINS * threads / t[0];
    printf("%s %-6s dim %3d  %d thread%s  prefill  at %5d  %6.1f GFLOP/s %.2f of the fma peak (%.0f)\n",
           mr_type_name(j.type), isa, j.head_dim, threads, threads > 1 ? "s" : " ", j.depth, gflops, gflops / limit,
           limit);
}

static void run_type(bench *b, mr_type type, mr_isa isa) {
    if ((b->only_type && strcmp(b->only_type, mr_type_name(type)) != 0) ||
        (b->only_isa && strcmp(b->only_isa, mr_isa_name(isa)) != 0))
        return;
    static const int32_t DIMS[] = {64, 128}, DECODE[] = {512, 4096, 16384}, PREFILL[] = {0, 4096};
    fill_kv(b, type);
    for (int d = 0; d < 2; d++)
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            job j = {.b = b,
                     .what = WORK_ATTENTION,
                     .fn = mr_kernels_get(isa)->attention,
                     .type = type,
                     .head_dim = DIMS[d]};
            for (int i = 0; i < 3; i++) {
                j.depth = DECODE[i];
                print_decode(j, mr_isa_name(isa), threads);
            }
            for (int i = 0; i < 2; i++) {
                j.depth = PREFILL[i];
                print_prefill(j, mr_isa_name(isa), threads);
            }
        }
}

static bool bench_init(bench *b) {
    for (int i = 1; i <= MAX_THREADS; i++)
        if (mr_pool_create(i, NULL, &b->pools[i], NULL) != MR_OK)
            return false;
    b->kv = mr_pages_alloc(b->kv_bytes);
    b->q = mr_pages_alloc((size_t)ROWS * N_HEADS * MAX_DIM * sizeof(float));
    b->out = mr_pages_alloc((size_t)ROWS * N_HEADS * MAX_DIM * sizeof(float));
    for (int i = 0; b->q && i < ROWS * N_HEADS * MAX_DIM; i++)
        b->q[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
    return b->kv && b->q && b->out;
}

int main(int argc, char **argv) {
    static bench b = {.reps = 9, .kv_bytes = (size_t)512 << 20};
    for (int arg = 1; arg + 1 < argc && argv[arg][0] == '-'; arg += 2) {
        int value = atoi(argv[arg + 1]);
        if (argv[arg][1] == 'r' && value > 0 && value <= MAX_REPS)
            b.reps = value;
        if (argv[arg][1] == 'k')
            b.only_type = argv[arg + 1];
        if (argv[arg][1] == 'i')
            b.only_isa = argv[arg + 1];
        if (argv[arg][1] == 'm' && value >= 256 && value <= 65536)
            b.kv_bytes = (size_t)value << 20;
    }
    if (mr_isa_detect() < MR_ISA_AVX512) {
        printf("the limits are measured with AVX-512, which this CPU or MILLRACE_CPU_ISA lacks\n");
        return 0;
    }
    if (!bench_init(&b)) {
        fprintf(stderr, "not enough memory for %zu bytes of keys and values\n", b.kv_bytes);
        return 1;
    }
    for (int isa = MR_ISA_AVX512; isa > MR_ISA_SCALAR; isa--) {
        run_type(&b, MR_TYPE_F16, (mr_isa)isa);
        run_type(&b, MR_TYPE_F32, (mr_isa)isa);
        run_type(&b, MR_TYPE_Q8_0, (mr_isa)isa);
    }
    return 0;
}
