/* engine/graph/debug.h - environment variables about graphs.
 * MILLRACE_GRAPH_REUSE: on or off. MILLRACE_GRAPH_DEBUG: a list of reports that go to the log:
 *   splits  which backend runs which nodes, and which tensors are copied. Printed when a graph is placed.
 *   plan    offset of each tensor in the work buffers, and the groups in which it is alive. Printed likewise.
 *   timing  time by op, summed over all runs. Printed when a graph is destroyed.
 * Threads: every call reads the variables. The environment must not change while the program runs. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAPH_DEBUG_H
#define MR_ENGINE_GRAPH_DEBUG_H

#include <stdbool.h>

#include "engine/base/status.h"

typedef enum mr_graph_debug {
    MR_GRAPH_DEBUG_SPLITS = 1, /* bits: several reports may be wanted */
    MR_GRAPH_DEBUG_PLAN = 2,
    MR_GRAPH_DEBUG_TIMING = 4,
} mr_graph_debug;

/* The reports named in MILLRACE_GRAPH_DEBUG, separated by commas. Unknown words are ignored. */
unsigned mr_graph_debug_wanted(void);
/* False for MILLRACE_GRAPH_REUSE=off. The stage then builds a new graph for each run, in the memory that was planned
 * for the first graph. */
bool mr_graph_reuse_wanted(void);
/* MR_E_INVALID for an unknown word in one of the two variables; the text lists the known words. */
MR_MUST_USE mr_status mr_graph_variables_check(mr_err *err);

#endif
