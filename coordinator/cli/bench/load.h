/* coordinator/cli/bench/load.h - requests that arrive over time: when, how long, and when their tokens came.
 * Owns:    a load owns its requests and their times, taken when it is made: noting a token allocates nothing.
 * Threads: caller serialises.
 * Errors:  MR_E_INVALID: a rate or lengths that make no load; MR_E_FORMAT: a file that is none, by its line. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_BENCH_LOAD_H
#define MR_COORDINATOR_CLI_BENCH_LOAD_H

#include "coordinator/job/job.h"
#include "engine/base/str.h"

enum { MR_LOAD_MAX_REQUESTS = 1 << 20 };

typedef struct mr_load_request {
    int64_t at_ns; /* after the start */
    int32_t n_prompt, n_tokens;
    int32_t n_come;    /* tokens that have come */
    int64_t *token_ns; /* [n_tokens], after the start */
    bool failed;
} mr_load_request;

typedef struct mr_load {
    int32_t n;
    mr_load_request *requests; /* in the order of their arrival */
    int64_t *times;            /* the memory of all token_ns */
} mr_load;

/* A Poisson process: requests of equal lengths, as many in a second as rate on average, for so many seconds. Equal
 * seeds make equal loads. */
typedef struct mr_load_poisson {
    double rate, seconds;
    int32_t n_prompt, n_tokens;
    uint64_t seed;
} mr_load_poisson;
MR_MUST_USE mr_status mr_load_make(const mr_load_poisson *p, mr_load *out, mr_err *err);
/* Lines "seconds,prompt tokens,new tokens"; empty ones and those that begin with # are passed over. name: what errors
 * call the source. */
MR_MUST_USE mr_status mr_load_parse(mr_str text, const char *name, mr_load *out, mr_err *err);
/* {0} may be ended. */
void mr_load_end(mr_load *l);
/* The longest prompt and the longest request, prompt and new tokens together. */
void mr_load_longest(const mr_load *l, int32_t *out_prompt, int32_t *out_together);

/* Submits each request at its time, with random ids, and turns the job until all have ended. A request that fails is
 * marked.
 * MR_E_CANCELLED: interrupted. */
MR_MUST_USE mr_status mr_load_run(mr_load *l, mr_job *job, int32_t n_vocab, mr_err *err);

/* Nearest ranks: the smallest value that at least so many percent of all do not exceed. n 0: no values. */
typedef struct mr_percentiles {
    int64_t n;
    double p50, p90, p99, max;
} mr_percentiles;
/* Sorts values. */
mr_percentiles mr_percentiles_of(double *values, int64_t n);

typedef struct mr_load_summary {
    int32_t n_done, n_failed;
    int64_t n_tokens;
    double seconds; /* from the start to the last token */
    /* In seconds: from the arrival of a request to its first token, and between tokens of one request. */
    mr_percentiles first_token, between_tokens;
    /* Requests per second. More arrived than were answered where sustained is not 0: it is the most that can be. */
    double arrived, sustained;
} mr_load_summary;
MR_MUST_USE mr_status mr_load_summarise(const mr_load *l, mr_load_summary *out, mr_err *err);

/* load_report.c: what became of a load, as tables or JSON. job: stopped, for the seconds of its stages. */
MR_MUST_USE mr_status load_report_print_tables(const mr_load *load, const mr_load_summary *summary, const mr_job *job,
                                               int32_t n_stages, mr_err *err);
MR_MUST_USE mr_status load_report_print_json(const mr_load *load, const mr_load_summary *summary, const mr_job *job,
                                             int32_t n_stages, mr_err *err);

#endif
