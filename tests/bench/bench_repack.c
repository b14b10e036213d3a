/* tests/bench/bench_repack.c - measures how fast one thread repacks rows of a file into panels, in gigabytes of the
 * file per second.
 *   bench_repack [type]
 * Repacks two panels of 4096 columns at a time, as products with matrices in FILE storage do. Rows and panels stay in
 * the cache. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

enum { K = 4096, PANELS = 2, ROUNDS = 15 };
static const int64_t ROUND_NS = MR_NS_PER_S / 100;

/* Repacks for the time of one round. Returns the number of calls per nanosecond. */
static double round_of(const mr_repack_args *args) {
    int64_t start = mr_clock_now_ns(), now = start;
    int n = 0;
    for (; now - start < ROUND_NS; now = mr_clock_now_ns(), n++)
        mr_repack(args, 0, PANELS);
    return (double)n / (double)(now - start);
}

int main(int argc, char **argv) {
    for (int32_t type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        const mr_type_info *info = mr_type_get(type);
        mr_repack_args args = {.type = (mr_type)type, .k = K, .n = PANELS * MR_PANEL};
        if (!info || !info->is_weight || (argc > 1 && strcmp(argv[1], info->name) != 0) ||
            !mr_type_bytes(type, K, &args.src_row_bytes))
            continue;
        size_t bytes = args.src_row_bytes * PANELS * MR_PANEL;
        uint8_t *src = mr_pages_alloc(bytes);
        args.src = src;
        args.dst = mr_pages_alloc(PANELS * mr_panel_bytes((mr_type)type, K));
        if (!src || !args.dst)
            return 1;
        for (size_t i = 0; i < bytes; i++)
            src[i] = (uint8_t)(i * 2654435761u >> 13);
        double best = 0;
        for (int i = 0; i < ROUNDS; i++) {
            double calls = round_of(&args);
            best = calls > best ? calls : best;
        }
        printf("%-8s %6.2f GB/s\n", info->name, best * (double)bytes);
        mr_pages_free(src, bytes);
        mr_pages_free(args.dst, PANELS * mr_panel_bytes((mr_type)type, K));
    }
    return 0;
}
