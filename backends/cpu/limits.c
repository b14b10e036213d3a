/* backends/cpu/limits.c - times the loops of kernels/limits_*.c on all threads and turns the best times into speeds. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/limits.h"

#include "backends/cpu/kernels.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/pool.h"

enum {
    READ_BYTES = 1 << 29,   /* of all threads together: a cloud machine may have a shared cache of some hundred MiB */
    MEMORY_PART = 4,        /* at most one part in MEMORY_PART of the free memory is used */
    READ_UNIT = 1024,       /* the bytes of a thread are a multiple of it */
    FIRST_ROUNDS = 1 << 20, /* take some milliseconds; a busy machine may need as long to start threads */
};
static const int64_t RUN_NS = 5 * MR_NS_PER_MS; /* shortest run of products */
static const int64_t TIME_NS = MR_NS_PER_S / 5; /* after the first three runs of a loop, none begins after this time */

typedef struct loops {
    mr_limit_read_fn *read;
    mr_limit_product_fn *int8, *f32;
} loops;

/* A level without loops of its own uses those of the next lower level. */
static const loops LOOPS[MR_ISA_COUNT] = {
    [MR_ISA_SCALAR] = {mr_limit_read_scalar, mr_limit_int8_scalar, mr_limit_f32_scalar},
#if defined(__x86_64__)
    [MR_ISA_AVX2] = {mr_limit_read_avx2, mr_limit_int8_avx2, mr_limit_f32_avx2},
    [MR_ISA_AVXVNNI] = {mr_limit_read_avx2, mr_limit_int8_avx2, mr_limit_f32_avx2},
    [MR_ISA_AVX512] = {mr_limit_read_avx512, mr_limit_int8_avx512, mr_limit_f32_avx512},
#elif defined(__aarch64__)
    [MR_ISA_NEON] = {mr_limit_read_neon, mr_limit_int8_neon, mr_limit_f32_neon},
    [MR_ISA_DOTPROD] = {mr_limit_read_neon, mr_limit_int8_dotprod, mr_limit_f32_neon},
#endif
};

/* One run of a loop on all threads. */
typedef struct run {
    mr_limit_read_fn *read; /* NULL: the loop is product */
    uint8_t *bytes;
    size_t n_bytes; /* of each thread */
    mr_limit_product_fn *product;
    int64_t rounds;
    int32_t per_round; /* written by thread 0 */
} run;

static void run_thread(void *ctx, int thread_idx, int n_threads) {
    run *r = ctx;
    (void)n_threads;
    if (r->read) {
        r->read(r->bytes + (size_t)thread_idx * r->n_bytes, r->n_bytes);
        return;
    }
    int32_t per_round = r->product(r->rounds);
    if (thread_idx == 0)
        r->per_round = per_round;
}

/* Each thread writes its own part first. So the part lies in the memory of the thread's NUMA node, and every page has
 * memory of its own: untouched pages would all be the system's one zero page. */
static void touch_thread(void *ctx, int thread_idx, int n_threads) {
    run *r = ctx;
    (void)n_threads;
    for (size_t i = 0; i < r->n_bytes; i += 4096)
        r->bytes[(size_t)thread_idx * r->n_bytes + i] = 1;
}

static int64_t time_run(mr_pool *pool, run *r) {
    int64_t start_ns = mr_clock_now_ns();
    mr_pool_run_each(pool, run_thread, r);
    int64_t ns = mr_clock_now_ns() - start_ns;
    return ns > 0 ? ns : 1;
}

/* The time of the shortest run. There are at least three runs, and more until TIME_NS is over. If a run of products
 * takes less than RUN_NS, the rounds are doubled and the measurement begins again. This is checked for every run,
 * because on a busy machine a run that is too short may take long once. */
static int64_t best_ns(mr_pool *pool, run *r) {
    int64_t best = INT64_MAX, end_ns = mr_clock_now_ns() + TIME_NS;
    for (int i = 0; i < 3 || mr_clock_now_ns() < end_ns; i++) {
        int64_t ns = time_run(pool, r);
        if (r->product && ns < RUN_NS) {
            r->rounds *= 2;
            best = INT64_MAX;
            i = -1;
            continue;
        }
        best = ns < best ? ns : best;
    }
    return best;
}

static double measure_products(mr_pool *pool, mr_limit_product_fn *product) {
    run r = {.product = product, .rounds = FIRST_ROUNDS};
    int64_t ns = best_ns(pool, &r);
    return (double)r.per_round * (double)r.rounds * mr_pool_n_threads(pool) * (double)MR_NS_PER_S / (double)ns;
}

static mr_status measure_read(mr_pool *pool, mr_limit_read_fn *read, double *out, mr_err *err) {
    uint64_t available = mr_mem_available() / MEMORY_PART; /* 0: not known */
    size_t all = available > 0 && available < READ_BYTES ? (size_t)available : READ_BYTES;
    size_t n_threads = (size_t)mr_pool_n_threads(pool), n_bytes = all / n_threads / READ_UNIT * READ_UNIT;
    uint8_t *bytes = n_bytes > 0 ? mr_pages_alloc(all) : NULL;
    if (!bytes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a read loop over %zu MiB", all >> 20);
    run r = {.read = read, .bytes = bytes, .n_bytes = n_bytes};
    mr_pool_run_each(pool, touch_thread, &r);
    *out = (double)n_bytes * (double)n_threads * (double)MR_NS_PER_S / (double)best_ns(pool, &r);
    mr_pages_free(bytes, all);
    return MR_OK;
}

mr_status mr_cpu_limits_measure(const mr_cpu_options *options, mr_cpu_limits *out, mr_err *err) {
    mr_isa isa = mr_isa_detect();
    while (!LOOPS[isa].read)
        isa--;
    const loops *l = &LOOPS[isa];
    mr_pool *pool = NULL;
    mr_cpu_limits found;
    mr_status status = mr_pool_create(options->n_threads, options->cpu_ids, &pool, err);
    if (status != MR_OK)
        return status;
    status = measure_read(pool, l->read, &found.read_bytes, err);
    if (status == MR_OK) {
        int64_t start_ns = mr_clock_now_ns(), start_core_ns = mr_clock_thread_ns();
        found.int8_products = measure_products(pool, l->int8);
        found.f32_products = measure_products(pool, l->f32);
        double ns = (double)(mr_clock_now_ns() - start_ns), core_ns = (double)(mr_clock_thread_ns() - start_core_ns);
        found.core_share = core_ns < ns ? core_ns / ns : 1;
        *out = found;
    }
    mr_pool_destroy(pool);
    return status;
}
