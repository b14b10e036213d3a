/* tests/bench/bench_hop.c - measures the time of a message of activations from one rank to the next, through links and
 * channel: half of the round trip between two ranks that do nothing else.
 *   mpirun -n 2 bench_hop [repetitions]
 *   mpirun -n 2 --mca btl tcp,self bench_hop */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "proto/channel_mpi.h"
#include "proto/link.h"

enum { MAX_BYTES = 1 << 20, ROW_BYTES = 8192, SLOTS = 4, MAX_REPETITIONS = 100000 };

static void check(mr_status status, const mr_err *err) {
    if (status == MR_OK)
        return;
    fprintf(stderr, "bench_hop: %s\n", err->text);
    exit(1);
}

typedef struct hop {
    mr_channel *ch;
    mr_inbox *in;
    mr_outbox *out;
} hop;

static void send(hop *h, size_t bytes) {
    mr_err err;
    uint8_t *payload = NULL;
    while (!payload) {
        check(mr_outbox_reserve(h->out, &payload, &err), &err);
        if (!payload)
            check(mr_channel_wait(h->ch, MR_NEVER, &err), &err);
    }
    mr_frame frame = {.rows = (uint32_t)(bytes / ROW_BYTES), .row_bytes = ROW_BYTES, .payload_bytes = bytes};
    check(mr_outbox_send(h->out, &frame, &err), &err);
}

static void receive(hop *h) {
    mr_err err;
    mr_frame frame;
    const uint8_t *payload = NULL;
    while (!payload) {
        check(mr_inbox_peek(h->in, &frame, &payload, &err), &err);
        if (!payload)
            check(mr_channel_wait(h->ch, MR_NEVER, &err), &err);
    }
    check(mr_inbox_release(h->in, &err), &err);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void measure(hop *h, bool first, size_t bytes, int n) {
    static int64_t ns[MAX_REPETITIONS];
    for (int i = 0; i < n; i++) {
        int64_t start = mr_clock_now_ns();
        if (first)
            send(h, bytes);
        receive(h);
        if (!first)
            send(h, bytes);
        ns[i] = (mr_clock_now_ns() - start) / 2;
    }
    qsort(ns, (size_t)n, sizeof ns[0], by_value);
    if (first)
        printf("%7zu bytes: median %.1f us, 99 %% within %.1f us\n", bytes, (double)ns[n / 2] / 1e3,
               (double)ns[(size_t)n * 99 / 100] / 1e3);
}

int main(int argc, char **argv) {
    mr_err err;
    mr_mpi *mpi = NULL;
    int n = argc > 1 ? atoi(argv[1]) : 2000;
    n = n < 1 ? 1 : n > MAX_REPETITIONS ? MAX_REPETITIONS : n;
    mr_mpi_config config = {.max_requests = 64};
    (void)gethostname(config.card.host, sizeof config.card.host - 1);
    check(mr_mpi_start(&config, &mpi, &err), &err);
    int32_t rank = mr_mpi_rank(mpi);
    if (mr_mpi_n_ranks(mpi) != 2) {
        fprintf(stderr, "bench_hop: two ranks are needed: mpirun -n 2 bench_hop\n");
        return 2;
    }
    hop h = {.ch = mr_mpi_stage_channel(mpi)};
    check(mr_inbox_create(h.ch, 1 - rank, MR_LINK_ACTIVATIONS, 1, SLOTS, MAX_BYTES, &h.in, &err), &err);
    check(mr_outbox_create(h.ch, 1 - rank, MR_LINK_ACTIVATIONS, 1, SLOTS, MAX_BYTES, &h.out, &err), &err);
    static const size_t SIZES[] = {8 << 10, 8 << 10, 128 << 10, 1 << 20}; /* the first size is a warm-up */
    for (size_t i = 0; i < sizeof SIZES / sizeof SIZES[0]; i++)
        measure(&h, rank == 0, SIZES[i], n);
    mr_inbox_destroy(h.in);
    mr_outbox_destroy(h.out);
    mr_channel_destroy(h.ch);
    if (rank == 0)
        mr_channel_destroy(mr_mpi_coordinator_channel(mpi));
    mr_mpi_finish(mpi);
    return 0;
}
