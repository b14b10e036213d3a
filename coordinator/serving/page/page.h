/* coordinator/serving/page/page.h - the web page that shows a running cluster and talks to its model, and the JSON that
 * the page draws. The files of the page are a part of the program, and load nothing from other servers.
 * Owns:    nothing but constants.
 * Threads: any; there is no shared state but the metrics, which are thread-safe.
 * Errors:  MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_PAGE_PAGE_H
#define MR_COORDINATOR_SERVING_PAGE_PAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "coordinator/serving/metrics/metrics.h"
#include "engine/base/str.h"
#include "proto/phases.h"

/* --- Files ------------------------------------------------------------------------------------------------------- */

typedef struct mr_page_file {
    const char *path;         /* the path of the request: "/", "/page.css" */
    const char *content_type; /* a header's value */
    const char *data;
    size_t bytes;
} mr_page_file;

/* The file for the path of a GET; NULL: none. The files need no API key, but the data that they show needs one. */
const mr_page_file *mr_page_find(mr_str path);
/* The value of Content-Security-Policy: the page loads from this server only. */
extern const char mr_page_policy[];

/* --- What the page shows ----------------------------------------------------------------------------------------- */

/* A stage, and its counts since the stage was ready. */
typedef struct mr_page_stage {
    int32_t first_layer, last_layer; /* [first, last) */
    int32_t rank;
    const char *host; /* NULL: not known */
    uint64_t weight_bytes, kv_bytes, work_bytes;
    int64_t ns[MR_PHASE_COUNT];
    uint64_t n_steps, n_rows, in_bytes, out_bytes;
    uint64_t n_expert_uses, n_device_expert_uses, n_expert_swaps; /* as in mr_stage_seconds */
    double step_rows, step_s; /* rows and seconds of a usual step; 0: not known yet */
    double predicted_s;       /* the predicted seconds of a step with as many rows; 0: not known */
} mr_page_stage;

/* How many ranks are in a state. */
typedef struct mr_page_ranks {
    const char *state; /* as /plan names it */
    int32_t n;
} mr_page_ranks;

typedef enum mr_page_state { MR_PAGE_LOADING, MR_PAGE_READY, MR_PAGE_ENDING, MR_PAGE_FAILED } mr_page_state;

/* The state of the server at one moment. Texts should be UTF-8; invalid bytes become U+FFFD. */
typedef struct mr_page_stats {
    mr_page_state state;
    const char *error;       /* the reason of FAILED; else NULL */
    double loaded;           /* share of the model, 0 to 1 */
    const char *version;     /* of the program */
    const char *model;       /* as /v1/models names it */
    const char *description; /* of the model: architecture and size, for people; may be NULL */
    int32_t n_layers, n_context;
    int64_t now_ns, start_ns; /* monotonic: this moment, and the start of the server */
    int32_t n_live, n_waiting, max_sequences;
    int32_t n_blocks, n_held_blocks, n_cached_blocks, n_free_blocks, block_tokens; /* KV */
    int64_t n_prompt_tokens, n_cached_tokens, n_generated, n_preempted, n_steps;   /* since the start */
    int32_t n_open_steps, n_micro_batches;
    int32_t n_stages; /* 0: none runs: not planned yet, or the job waits for memory */
    const mr_page_stage *stages;
    uint32_t plan;         /* the number of the plan: the counts of its stages begin with it */
    bool changes_plan;     /* what is said of stages and ranks is not known for the moment */
    bool waits_for_memory; /* the job does, so it is not ready */
    int32_t n_rank_states; /* all states that a rank can have */
    const mr_page_ranks *ranks;
} mr_page_stats;

/* Appends the answer to GET /page/state, a JSON object, which page_state.c describes. m: gives the latencies; may be
 * NULL. */
MR_MUST_USE mr_status mr_page_write_state(const mr_page_stats *stats, const mr_metrics *m, mr_text_buf *out,
                                          mr_err *err);

/* Sets the metrics of GET /metrics from the stats: all metrics except those of requests, latencies and recoveries. The
 * metrics of stages and ranks replace those of earlier stats in one step; while the plan changes, they stay.
 * former_plan: the plan of the stats that m was counted from before; 0: none. m may be NULL. MR_E_NO_MEMORY: the
 * metrics of stages and ranks are as they were. */
MR_MUST_USE mr_status mr_page_count(const mr_page_stats *stats, uint32_t former_plan, mr_metrics *m, mr_err *err);
/* Counts a latency. Fits on_latency of the service (coordinator/serving/service/service.h). metrics: the mr_metrics. */
void mr_page_count_latency(void *metrics, bool is_first, int64_t ns);

#endif
