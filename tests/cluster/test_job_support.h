/* tests/cluster/test_job_support.h - a tiny model on disk, a cluster of threads that runs the model, a job, and
 * listeners for the events of its sequences.
 * Owns:    a job_rig owns cluster and job; a job_model owns its file and the open model.
 * Threads: caller serialises.
 * Errors:  errors of the job are returned; all other errors fail the test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CLUSTER_TEST_JOB_SUPPORT_H
#define MR_TESTS_CLUSTER_TEST_JOB_SUPPORT_H

#include "coordinator/clusters/local_cluster.h"
#include "coordinator/job/job.h"
#include "tests/support/tiny_model.h"

typedef struct job_model {
    char path[64]; /* path of the file; deinit removes the file */
    tiny_model *tiny;
} job_model;

/* Four layers of width 64, vocabulary of 90 ids. */
tiny_desc job_model_desc(void);
/* Saves and opens the writer's file. Takes ownership of the writer. */
void job_model_init(job_model *m, gguf_writer *w);
void job_model_deinit(job_model *m);
/* Writes the bytes to a temporary file. The caller unlinks path. */
void job_save_bytes(char path[64], const void *bytes, size_t n);

typedef struct job_rig_config {
    const job_model *model;
    const char *stage_path; /* the file that the stages open; NULL: the model's file */
    int32_t n_stages;
    int32_t n_threads;                                         /* of each stage; 0: 1 */
    int32_t max_rows, max_sequences, max_context, n_kv_blocks; /* 0: 64, 4, 64, 16 */
    bool synthetic;                                            /* stages compute nothing */
    int64_t synthetic_ns;                                      /* time that a synthetic stage sleeps in each step */
    bool grammars;                                             /* of mr_job_config */
    double token_s;                                            /* of mr_job_config */
    size_t control_bytes;                                      /* of mr_job_config */
    mr_devices_config devices;                                 /* of each stage */
    bool counts_uses;                                          /* of mr_job_config */
    mr_way way;                                                /* of every hop, which must be had */
    int64_t *n_rows;                                           /* counts the rows of finished steps; may be NULL */
    bool (*wants_restart)(void *ctx);                          /* of mr_job_config, as recover; ctx is NULL */
    mr_status (*recover)(void *ctx, mr_job *job, mr_status status, mr_err *err);
    mr_status (*wrap)(void *ctx, mr_channel **channel, mr_err *err); /* of mr_local_cluster_config */
    void *wrap_ctx;
} job_rig_config;

typedef struct job_rig {
    mr_plan plan;
    mr_local_cluster *cluster;
    mr_job *job; /* NULL after a failure */
} job_rig;

/* Returns the status of mr_job_create. Fails the test if the cluster cannot be made. */
mr_status job_rig_start(job_rig *rig, const job_rig_config *config, mr_err *err);
/* Fails the test if the job cannot be made. */
void job_rig_must_start(job_rig *rig, const job_rig_config *config);
/* Runs all sequences to their ends. Checks that every KV block is then free. */
void job_rig_run(job_rig *rig);
void job_rig_stop(job_rig *rig);

enum { MAX_HEARD = 64, JOB_VOCAB = 90 }; /* JOB_VOCAB: of job_model_desc */

/* The events of one sequence. */
typedef struct listener {
    int32_t stop_after; /* stops the sequence after so many tokens; 0: never */
    int32_t *clock;     /* shared by listeners, counts their first tokens; may be NULL */
    int32_t ids[MAX_HEARD], n_ids;
    int32_t first_token_at; /* value of *clock at the first token */
    int64_t heard_ns;       /* time of the last token */
    int32_t n_logits;       /* number of rows */
    mr_finish finish;       /* of the last event */
    mr_status status;
    char text[128];
} listener;

/* on_token and on_logits of a listener. */
bool listener_token(void *ctx, const mr_token_event *event);
void listener_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits);

/* The logits of a prompt of up to MAX_HEARD ids, and the on_logits that collects them. */
typedef struct job_logits {
    float rows[MAX_HEARD][JOB_VOCAB];
    int32_t n_rows;
} job_logits;
void job_logits_take(void *ctx, int32_t first_position, int32_t n_rows, const float *logits);

/* A random prompt of n ids below limit. The same number gives the same prompt. */
void job_prompt(int32_t number, int32_t n, int32_t limit, int32_t *out_ids);
/* Sampling with temperature and a penalty, seeded by number. Three of four numbers add Mirostat 2, Mirostat 1, or other
 * samplers, DRY and biases. The caller sets prompt and max_tokens. */
mr_sequence_desc job_sequence(int32_t number, listener *l);

/* The number of threads of this process. */
int job_count_threads(void);
/* Waits until the process has n threads: the system may list a thread for a moment after the thread was joined. */
void job_expect_threads(int n);

#endif
