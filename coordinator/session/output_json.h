/* coordinator/session/output_json.h - JSON results. A function that makes a value returns NULL if there is no memory. A
 * function that takes a value accepts NULL. So only the printing at the end needs a check.
 * Threads: bound to the main thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_OUTPUT_JSON_H
#define MR_COORDINATOR_SESSION_OUTPUT_JSON_H

#include <jansson.h>

#include "coordinator/planning/plan.h"
#include "coordinator/session/session_cluster.h"
#include "engine/base/str.h"
#include "worker/stage/stage.h"

/* Takes any bytes: bytes that are not UTF-8 become U+FFFD. */
json_t *mr_output_json_text(mr_str text);
/* The stages of a plan with rank, host, layers and sizes. sizes: [n_stages], may be NULL. */
json_t *mr_output_json_plan(const mr_plan *plan, const mr_stage_sizes *sizes, const mr_session_cluster *cluster);
/* Writes the plan as notes: its table, or with --log-json the first line of the table and one event for each stage. */
void output_json_note_plan(const char *table, const mr_plan *plan, const mr_stage_sizes *sizes,
                           const mr_session_cluster *cluster);
/* Writes root as one line to standard output, and releases it. */
MR_MUST_USE mr_status mr_output_json_print(json_t *root, mr_err *err);
/* Writes root and a line's end to a file, which appears when it is complete, and releases root. flags: of json_dumps.
 * MR_E_NO_MEMORY, also if root is NULL: the text says what the file is. */
MR_MUST_USE mr_status output_json_write_file(const char *path, json_t *root, size_t flags, const char *what,
                                             mr_err *err);

#endif
