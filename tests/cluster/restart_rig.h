/* tests/cluster/restart_rig.h - a job that goes on in further epochs, over ranks that a test can kill, each a thread
 * with a lobby; and what its sequences hear, to be compared with what they hear in the undisturbed run.
 * Owns:    a restart_rig owns job, roll call, channels, and the ranks with their backends and devices.
 * Threads: the test's thread. Errors: every error fails the test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CLUSTER_RESTART_RIG_H
#define MR_TESTS_CLUSTER_RESTART_RIG_H

#include "coordinator/job/job.h"
#include "coordinator/lobby/roll_call.h"
#include "engine/base/thread.h"
#include "proto/channel_local.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/channel_kill.h"
#include "worker/lobby/lobby.h"

enum {
    N_RANKS = 4,
    N_STAGES = 2, /* while so many ranks live */
    N_TEXTS = 6,
    N_ROWS = 40, /* of a prompt whose rows are wanted */
    MAX_TOKENS = 36,
    N_KV_BLOCKS = 8, /* too few for all sequences at once: some are preempted */
    WIDTH = 64,
};

typedef struct text_heard {
    int32_t n, ids[MAX_TOKENS];
    float logprobs[MAX_TOKENS], top_logprobs[MAX_TOKENS][2];
    mr_finish finish;
} text_heard;

typedef struct heard {
    text_heard texts[N_TEXTS];
    float logits[N_ROWS][JOB_VOCAB], hidden[N_ROWS][WIDTH], last[WIDTH];
    int32_t n_logits, n_hidden, n_last;
} heard;

typedef struct restart_rank {
    channel_kill kill;
    mr_channel *channel;
    mr_lobby_config config;
    mr_devices devices;
    mr_thread *thread;
} restart_rank;

typedef struct restart_rig {
    mr_local_hub *hub;
    mr_channel *channel; /* of the coordinator */
    mr_roll_call *roll;
    mr_job *job;
    mr_plan plan;
    uint32_t epoch;
    restart_rank ranks[N_RANKS];
    mr_err err;
} restart_rig;

/* Of the group of tests: make and remove the model. */
int restart_rig_setup(void **state);
int restart_rig_teardown(void **state);

/* n_signals: of mr_lobby_config. Takes ownership of the devices, one for each rank or NULL. devices: NULL: no rank has
 * a device. */
void restart_rig_start_with(restart_rig *r, const atomic_uint *n_signals, mr_backend *const devices[N_RANKS]);
void restart_rig_start(restart_rig *r);
void restart_rig_stop(restart_rig *r);

/* Gives a stage to a rank. A device of the rank holds all its layers. */
void restart_rig_give_stage(restart_rig *r, mr_plan_stage *stage, int32_t to);
/* Sends the ranks that live into another epoch. */
mr_epoch_config restart_rig_next_epoch(restart_rig *r);
void restart_rig_create_job(restart_rig *r);
/* The first two texts begin with the same 20 ids. Mirostat, penalties and choices as in job_sequence. */
void restart_rig_submit_all(mr_job *job, heard *h);
/* on_token of a text_heard. */
bool restart_rig_hear_token(void *ctx, const mr_token_event *event);
/* Runs the job to its end over all restarts. Returns how many there were. */
int32_t restart_rig_run_to_end(restart_rig *r);

/* The first test of each group: the others compare with what it has heard. */
void restart_rig_test_undisturbed(void **state);
extern heard restart_rig_undisturbed;
extern long restart_rig_n_messages[N_RANKS]; /* that each rank sends in the undisturbed run */

#endif
