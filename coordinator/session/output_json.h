/* coordinator/session/output_json.h - JSON results. What makes a value returns NULL where there is no memory, and what
 * takes one accepts NULL, so that only printing has to be checked.
 * Threads: bound to the main thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_OUTPUT_JSON_H
#define MR_COORDINATOR_SESSION_OUTPUT_JSON_H

#include <jansson.h>

#include "coordinator/planning/plan.h"
#include "coordinator/session/session_cluster.h"
#include "engine/base/str.h"
#include "worker/stage/stage.h"

/* Any bytes: those that are no UTF-8 become U+FFFD. */
json_t *mr_output_json_text(mr_str text);
/* The stages of a plan, and where they are; sizes [n_stages] may be NULL. */
json_t *mr_output_json_plan(const mr_plan *plan, const mr_stage_sizes *sizes, const mr_session_cluster *cluster);
/* The plan as notes: its table, or with --log-json the table's first line and an event for each stage. */
void output_json_note_plan(const char *table, const mr_plan *plan, const mr_stage_sizes *sizes,
                           const mr_session_cluster *cluster);
/* Writes root as one line to standard output, and releases it. */
MR_MUST_USE mr_status mr_output_json_print(json_t *root, mr_err *err);

#endif
