/* tests/cluster/test_job_support.h - a tiny model on disk, a cluster of threads over it, a job, and ears for its
 * sequences.
 * Owns:    a job_rig owns cluster and job; a job_model owns its file and the open model.
 * Threads: caller serialises.
 * Errors:  those of the job come back; everything else fails the test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CLUSTER_TEST_JOB_SUPPORT_H
#define MR_TESTS_CLUSTER_TEST_JOB_SUPPORT_H

#include "coordinator/clusters/local_cluster.h"
#include "coordinator/job/job.h"
#include "tests/support/tiny_model.h"

typedef struct job_model {
    char path[64]; /* of the file, removed with the model */
    tiny_model *tiny;
} job_model;

/* Four layers of width 64, vocabulary of 90 ids. */
tiny_desc job_model_desc(void);
/* Takes the writer over. */
void job_model_init(job_model *m, gguf_writer *w);
void job_model_deinit(job_model *m);
/* A file with these bytes; the caller unlinks path. */
void job_save_bytes(char path[64], const void *bytes, size_t n);

typedef struct job_rig_config {
    const job_model *model;
    const char *stage_path; /* what the stages open; NULL: the model's file */
    int32_t n_stages;
    int32_t max_rows, max_sequences, max_context, n_kv_blocks; /* 0: 64, 4, 64, 16 */
    bool synthetic;                                            /* stages compute nothing */
    int64_t synthetic_ns;                                      /* but sleep for so long in each step */
    bool grammars;                                             /* of mr_job_config */
    double token_s;                                            /* of mr_job_config */
    size_t control_bytes;                                      /* likewise */
    int64_t *n_rows;                                           /* counts the rows of steps that are done; may be NULL */
    mr_status (*wrap)(void *ctx, mr_channel **channel, mr_err *err); /* of mr_local_cluster_config */
    void *wrap_ctx;
} job_rig_config;

typedef struct job_rig {
    mr_plan plan;
    mr_local_cluster *cluster;
    mr_job *job; /* NULL after a failure */
} job_rig;

/* Fails the test when the cluster cannot be made; what mr_job_create says comes back. */
mr_status job_rig_start(job_rig *rig, const job_rig_config *config, mr_err *err);
/* Fails the test when the job cannot be made. */
void job_rig_must_start(job_rig *rig, const job_rig_config *config);
/* Runs all sequences to their ends; every KV block is accounted for, and free again. */
void job_rig_run(job_rig *rig);
void job_rig_stop(job_rig *rig);

enum { MAX_HEARD = 64 };

/* What one sequence told its callbacks. */
typedef struct listener {
    int32_t stop_after; /* tokens; 0: never */
    int32_t *clock;     /* counts the first tokens of all listeners that share it; may be NULL */
    int32_t ids[MAX_HEARD], n_ids;
    int32_t first_token_at; /* of *clock */
    int64_t heard_ns;       /* time of the last token */
    int32_t n_logits;       /* rows */
    mr_finish finish;       /* of the last event */
    mr_status status;
    char text[128];
} listener;

/* on_token and on_logits of a listener. */
bool listener_token(void *ctx, const mr_token_event *event);
void listener_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits);

/* A random prompt of n ids, the same for the same number; ids below limit. */
void job_prompt(int32_t number, int32_t n, int32_t limit, int32_t *out_ids);
/* Sampling with temperature and a penalty, seeded by number; three of four numbers with more: Mirostat 2, Mirostat 1,
 * or other samplers, DRY, biases. Prompt and max_tokens are the caller's to set. */
mr_sequence_desc job_sequence(int32_t number, listener *l);

/* Threads of this process. */
int job_count_threads(void);
/* The system may list a thread for a moment after it was joined. */
void job_expect_threads(int n);

#endif
