/* tests/cluster/test_worker_bench.h - one stage in a thread, between a coordinator and a neighbour that the test plays.
 * Endpoints 0 and 1 are stages, 2 is the coordinator.
 * Threads: the test's thread plays coordinator and neighbour. Errors: every error fails the test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CLUSTER_TEST_WORKER_BENCH_H
#define MR_TESTS_CLUSTER_TEST_WORKER_BENCH_H

#include "backends/backend.h"
#include "engine/base/thread.h"
#include "proto/channel_local.h"
#include "proto/link.h"
#include "proto/messages.h"
#include "proto/weights_root.h"
#include "tests/support/prefix_log.h"
#include "tests/support/tiny_model.h"
#include "worker/stage/devices.h"

enum {
    COORDINATOR = 2,
    EPOCH = 5,
    N_LAYERS = 2,
    WIDTH = 64,
    VOCAB = 90,
    MAX_ROWS = 8,
    MAX_OUT_ROWS = 4,
    MAX_CONTEXT = 32,
    N_KV_BLOCKS = 4,
    RING_SLOTS = 4
};

typedef struct bench {
    mr_local_hub *hub;
    mr_channel *coordinator, *worker, *peer;
    int32_t self; /* endpoint of the worker; the peer has the endpoint of the other stage */
    mr_backend *backend;
    mr_thread *thread;
    mr_outbox *control, *lobby; /* lobby: the link of epoch 0 */
    mr_inbox *report, *tokens;
    mr_outbox *to_worker; /* link from the peer: activations or tokens */
    mr_arena *arena;      /* memory of the last received message */
    prefix_log log;       /* of what the coordinator has sent */
    bool told_to_end;
    mr_status status; /* what mr_worker_run returned, after bench_end */
    mr_err err;
} bench;

/* What the workers of benches know of their weights: mr_worker_config. */
extern const mr_weights_root *bench_root;
extern bool bench_must_verify;

/* The model's file: N_LAYERS layers. */
void bench_model_create(void);
void bench_model_remove(void);

void bench_start(bench *b, int32_t self);
/* As bench_start, but the coordinator receives no reports. The stage is told to end while it loads and has more reports
 * to send than buffers. */
void bench_start_unheard(bench *b, int32_t self);
/* As bench_start, behind a lobby: the stage runs after bench_lobby_start. b->status is what mr_lobby_run returned. */
void bench_start_in_lobby(bench *b, int32_t self);
void bench_lobby_start(bench *b);
void bench_lobby_shutdown(bench *b);
/* As bench_start, but without a thread. bench_work_here runs the stage on the test's thread. It calls look in each turn
 * of the stage and instead of each wait. look plays coordinator and neighbour; true ends the stage. */
void bench_connect(bench *b, int32_t self);
void bench_work_here(bench *b, const mr_devices *devices, bool (*look)(void *ctx), void *ctx);
/* Waits until the worker has returned. If the worker was not told to end, the coordinator closes its channel first. */
void bench_end(bench *b);
void bench_coordinator_leaves(bench *b);
void bench_peer_leaves(bench *b);

/* Sends from the coordinator. */
void bench_control(bench *b, const Millrace__Control *message);
void bench_shutdown(bench *b);
/* A plan over n stages with one layer each, ranks 0 to n - 1; a single stage has rank self and all layers. edit
 * changes the plan before it is sent; edit may be NULL. */
void bench_plan(bench *b, int32_t n_stages, void (*edit)(Millrace__Plan *plan));
void bench_open(bench *b, uint32_t slot, uint32_t generation, bool samples);
/* Opens the slot for the ids 1, 2, 3. sampling: NULL for none. */
void bench_open_sampling(bench *b, uint32_t slot, uint32_t generation, Millrace__Sampling *sampling);
void bench_close(bench *b, uint32_t slot, uint32_t generation);
/* A step of one run. Blocks from index first_block_idx on have the ids from block_id on. */
typedef struct bench_run {
    uint32_t slot, generation, first_position, n_rows;
    uint32_t first_block_idx, n_blocks, block_id;
    uint32_t id; /* id of every row */
    bool without_ids;
    int32_t sampled_id; /* without ids: the id that the stage takes */
    Millrace__Want want;
} bench_run;
void bench_step(bench *b, uint64_t step, const bench_run *run);
/* Sends any bytes as a frame of the control link of an epoch. */
void bench_raw(bench *b, uint32_t epoch, const uint8_t *bytes, size_t n);

/* Sends from the peer. */
void bench_peer_opens(bench *b, mr_link_kind kind);
void bench_peer_sends(bench *b, const mr_frame *frame, const void *payload);
void bench_peer_tokens(bench *b, uint64_t step, uint32_t slot, uint32_t position);

/* The next report that has come; NULL: none, or the worker is gone and there is none. */
const Millrace__Report *bench_report(bench *b);
/* Waits for the worker's report that the stage is ready. */
void bench_ready(bench *b);
/* Waits for the next tokens message. */
const Millrace__Tokens *bench_tokens(bench *b);
/* Waits for a failure report and for the end of the worker. Both must have status want, and text in their texts. */
void bench_expect(bench *b, mr_status want, const char *text);

#endif
