/* cut_mpi.c - two ranks for test_mpi_faults.py. Rank 0 sends to rank 1, which receives nothing more than a greeting,
 * while the network between the two is cut. Then rank 0 is told that rank 1 is gone, and lives on while the network
 * comes back. Argument: how it is told (lost, gone, or not at all). Rank 0 says on its output how far it is, and waits
 * for a line of its input each time. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "proto/channel_mpi.h"

enum { N = 100, BYTES = 60000, TAG = 17 }; /* more than the kernel keeps, each in one piece */

static unsigned char data[BYTES];

static void must(mr_status status, const mr_err *err) {
    if (status == MR_OK)
        return;
    fprintf(stderr, "cut_mpi: %s\n", err->text);
    exit(1);
}

static void say_and_wait(const char *word) {
    char line[16];
    puts(word);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        exit(1);
}

static void make_progress(mr_channel *ch, double seconds) {
    int64_t end_ns = mr_clock_now_ns() + (int64_t)(seconds * (double)MR_NS_PER_S);
    mr_err err;
    while (mr_clock_now_ns() < end_ns)
        must(mr_channel_wait(ch, end_ns, &err), &err);
}

/* Waits until a request has ended. */
static void await(mr_channel *ch, mr_channel_request request) {
    mr_completion c = {0};
    mr_err err;
    must(mr_channel_test(ch, request, &c, &err), &err);
    while (!c.done) {
        make_progress(ch, 0.01);
        must(mr_channel_test(ch, request, &c, &err), &err);
    }
}

int main(int argc, char **argv) {
    const char *told = argc > 1 ? argv[1] : "";
    mr_mpi_config config = {.max_requests = 2 * N};
    mr_channel_request request;
    mr_mpi *mpi;
    mr_err err;
    mr_mpi_prepare();
    (void)gethostname(config.card.host, sizeof config.card.host - 1);
    must(mr_mpi_start(&config, &mpi, &err), &err);
    mr_channel *ch = mr_mpi_stage_channel(mpi);
    if (mr_mpi_rank(mpi) == 1) {
        must(mr_channel_post_recv(ch, 0, TAG, data, BYTES, &request, &err), &err);
        await(ch, request);
        for (;;)
            pause(); /* until this process is killed */
    }
    must(mr_channel_post_send(ch, 1, TAG, data, BYTES, &request, &err), &err);
    await(ch, request);
    say_and_wait("connected");
    for (int i = 0; i < N; i++)
        must(mr_channel_post_send(ch, 1, TAG, data, BYTES, &request, &err), &err);
    make_progress(ch, 0.3);
    if (strcmp(told, "lost") == 0)
        mr_mpi_peer_lost(mpi, 1);
    if (strcmp(told, "gone") == 0)
        mr_channel_peer_gone(ch, 1);
    make_progress(ch, 0.1);
    say_and_wait("told");
    make_progress(ch, 3);
    puts("alive");
    fflush(stdout);
    _exit(0); /* MPI would wait for rank 1 */
}
