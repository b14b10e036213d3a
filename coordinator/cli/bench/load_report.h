/* coordinator/cli/bench/load_report.h - what became of a load, as tables or JSON.
 * Owns:    nothing. Threads: bound to the main thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_BENCH_LOAD_REPORT_H
#define MR_COORDINATOR_CLI_BENCH_LOAD_REPORT_H

#include "coordinator/cli/bench/load.h"

/* job: stopped, for the seconds of its stages. */
MR_MUST_USE mr_status load_report_print_tables(const mr_load *load, const mr_load_summary *summary, const mr_job *job,
                                               int32_t n_stages, mr_err *err);
MR_MUST_USE mr_status load_report_print_json(const mr_load *load, const mr_load_summary *summary, const mr_job *job,
                                             int32_t n_stages, mr_err *err);

#endif
