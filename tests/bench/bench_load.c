/* tests/bench/bench_load.c - measures how fast the weights of a model are loaded, beside a plain copy of the bytes.
 *   bench_load MODEL [threads] [rounds]
 * The copy goes from the mapped file into fresh memory, in equal parts on so many threads. The file is read once
 * before, so both take it from the page cache. Each round measures both, and begins with the other one than the round
 * before. */
// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/model_info.h"
#include "engine/model/model.h"

enum { MAX_THREADS = 256, MAX_ROUNDS = 100, PAGE = 4096 };

typedef struct part {
    const uint8_t *from;
    uint8_t *to; /* NULL: a byte of each page is read */
    size_t bytes;
    uint8_t sum;
} part;

static void check(mr_status status, const mr_err *err) {
    if (status == MR_OK)
        return;
    fprintf(stderr, "bench_load: %s\n", err->text);
    exit(1);
}

static void *run_part(void *ctx) {
    part *p = ctx;
    if (p->to)
        memcpy(p->to, p->from, p->bytes);
    for (size_t i = 0; !p->to && i < p->bytes; i += PAGE)
        p->sum = (uint8_t)(p->sum + p->from[i]);
    return NULL;
}

/* Seconds to copy the file into fresh memory. is_read: only reads its pages. */
static double copy(const mr_gguf *gguf, int n_threads, bool is_read) {
    pthread_t threads[MAX_THREADS];
    part parts[MAX_THREADS];
    size_t all = mr_gguf_file_bytes(gguf), each = mr_round_up(all / (size_t)n_threads + 1, PAGE);
    int64_t start = mr_clock_now_ns();
    uint8_t *to = is_read ? NULL : mr_pages_alloc(all);
    if (!is_read && !to)
        exit(1);
    for (int i = 0; i < n_threads; i++) {
        size_t from = each * (size_t)i < all ? each * (size_t)i : all;
        parts[i] = (part){.from = mr_gguf_file_data(gguf) + from,
                          .to = to ? to + from : NULL,
                          .bytes = all - from < each ? all - from : each};
        if (pthread_create(&threads[i], NULL, run_part, &parts[i]) != 0)
            exit(1);
    }
    for (int i = 0; i < n_threads; i++)
        pthread_join(threads[i], NULL);
    double s = (double)(mr_clock_now_ns() - start) / (double)MR_NS_PER_S;
    if (to)
        mr_pages_free(to, all);
    mr_gguf_release_pages(gguf, mr_gguf_file_data(gguf), all);
    return s;
}

/* Seconds to load the weights, allocation included. */
static double load(mr_gguf *gguf, const mr_model_info *info, mr_backend *backend) {
    mr_err err;
    mr_weights *weights = NULL;
    mr_backends backends = {.n = 1, .at = {backend}};
    mr_weights_desc desc = {.gguf = gguf, .info = info, .range = {0, info->n_layers}};
    int64_t start = mr_clock_now_ns();
    check(mr_weights_create(&desc, &backends, &weights, &err), &err);
    check(mr_weights_load(weights, NULL, NULL, &err), &err);
    double s = (double)(mr_clock_now_ns() - start) / (double)MR_NS_PER_S;
    mr_weights_destroy(weights);
    return s;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    mr_err err;
    mr_gguf *gguf = NULL;
    mr_model_info info;
    mr_backend *backend = NULL;
    double ratio[MAX_ROUNDS];
    int n_threads = argc > 2 ? atoi(argv[2]) : 2, n_rounds = argc > 3 ? atoi(argv[3]) : 3;
    if (argc < 2 || n_threads < 1 || n_threads > MAX_THREADS || n_rounds < 1 || n_rounds > MAX_ROUNDS) {
        fprintf(stderr, "bench_load MODEL [threads] [rounds]\n");
        return 2;
    }
    check(mr_gguf_open(argv[1], &gguf, &err), &err);
    check(mr_model_info_read(gguf, &info, &err), &err);
    check(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = n_threads}, &backend, &err), &err);
    double gib = (double)mr_gguf_file_bytes(gguf) / (double)(1u << 30);
    (void)copy(gguf, n_threads, true);
    for (int i = 0; i < n_rounds; i++) {
        double copied = i % 2 ? 0 : copy(gguf, n_threads, false);
        double loaded = load(gguf, &info, backend);
        copied = i % 2 ? copy(gguf, n_threads, false) : copied;
        ratio[i] = copied / loaded;
        printf("%.2f GiB loaded in %6.2f s, %.2f GiB/s; copied in %6.2f s, %.2f GiB/s; ratio %.2f\n", gib, loaded,
               gib / loaded, copied, gib / copied, ratio[i]);
    }
    qsort(ratio, (size_t)n_rounds, sizeof ratio[0], by_value);
    printf("median of the ratios: %.2f\n", ratio[n_rounds / 2]);
    mr_backend_destroy(backend);
    mr_gguf_close(gguf);
    return 0;
}
