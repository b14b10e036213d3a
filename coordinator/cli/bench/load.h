/* coordinator/cli/bench/load.h - a load: requests that arrive over time, with their lengths and the times of their
 * tokens.
 * Owns:    a load owns its requests and their token times. All memory is allocated when the load is made.
 * Threads: caller serialises.
 * Errors:  MR_E_INVALID: rate or lengths out of range. MR_E_FORMAT: the file is wrong; the error text names the
 *          line. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_BENCH_LOAD_H
#define MR_COORDINATOR_CLI_BENCH_LOAD_H

#include "coordinator/job/job.h"
#include "engine/base/str.h"

enum { MR_LOAD_MAX_REQUESTS = 1 << 20 };

typedef struct mr_load_request {
    int64_t at_ns; /* arrival, from the start of the load */
    int32_t n_prompt, n_tokens;
    int32_t n_come;    /* tokens generated so far */
    int64_t *token_ns; /* [n_tokens], times from the start of the load */
    bool failed;
} mr_load_request;

typedef struct mr_load {
    int32_t n;
    mr_load_request *requests; /* in the order of their arrival */
    int64_t *times;            /* the array that all token_ns point into */
} mr_load;

/* A Poisson process: requests of equal lengths arrive for some seconds, on average rate requests in a second. Equal
 * seeds make equal loads. */
typedef struct mr_load_poisson {
    double rate, seconds;
    int32_t n_prompt, n_tokens;
    uint64_t seed;
} mr_load_poisson;
MR_MUST_USE mr_status mr_load_make(const mr_load_poisson *p, mr_load *out, mr_err *err);
/* Parses lines "seconds,prompt tokens,new tokens". Empty lines and lines that begin with # are skipped. name: what
 * error texts call the file. */
MR_MUST_USE mr_status mr_load_parse(mr_str text, const char *name, mr_load *out, mr_err *err);
/* Frees a load. {0} is allowed. */
void mr_load_end(mr_load *l);
/* The tokens of the longest prompt, and those of the longest request (prompt and new tokens). */
void mr_load_longest(const mr_load *l, int32_t *out_prompt, int32_t *out_together);

/* Submits each request at its arrival time, with random ids, and runs the job until all requests have ended. Sets
 * failed in a request that fails.
 * MR_E_CANCELLED: interrupted by a signal. */
MR_MUST_USE mr_status mr_load_run(mr_load *l, mr_job *job, int32_t n_vocab, mr_err *err);

/* Percentiles by nearest rank: p90 is the smallest value that at least 90 % of the values do not exceed. n: number of
 * values; with 0 the percentiles mean nothing. */
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
    /* Requests per second. sustained: if not 0, requests arrived faster than they were completed, and this is the
     * highest rate that the cluster sustains. */
    double arrived, sustained;
} mr_load_summary;
MR_MUST_USE mr_status mr_load_summarise(const mr_load *l, mr_load_summary *out, mr_err *err);

/* In load_report.c: print the results of a load as tables or JSON. job: a stopped job, which knows the times of its
 * stages. */
MR_MUST_USE mr_status load_report_print_tables(const mr_load *load, const mr_load_summary *summary, const mr_job *job,
                                               int32_t n_stages, mr_err *err);
MR_MUST_USE mr_status load_report_print_json(const mr_load *load, const mr_load_summary *summary, const mr_job *job,
                                             int32_t n_stages, mr_err *err);

#endif
