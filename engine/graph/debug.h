/* engine/graph/debug.h - environment variables about graphs.
 * MILLRACE_GRAPH_REUSE: on or off. MILLRACE_GRAPH_DEBUG: what a person wants to see, printed through the log:
 *   splits  which backend runs which nodes, and what is copied: when a graph is placed
 *   plan    where each tensor lies in the work buffers, and from when to when: when a graph is placed
 *   timing  time by op, summed over the runs: when a graph is destroyed
 * Threads: variables are read at each call; the environment does not change while the program runs. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAPH_DEBUG_H
#define MR_ENGINE_GRAPH_DEBUG_H

#include <stdbool.h>

#include "engine/base/status.h"

/* Bits. */
typedef enum mr_graph_debug {
    MR_GRAPH_DEBUG_SPLITS = 1,
    MR_GRAPH_DEBUG_PLAN = 2,
    MR_GRAPH_DEBUG_TIMING = 4,
} mr_graph_debug;

/* The words of MILLRACE_GRAPH_DEBUG, separated by commas; unknown ones are ignored. */
unsigned mr_graph_debug_wanted(void);
/* False for MILLRACE_GRAPH_REUSE=off: whoever runs graphs then builds one anew for each run, in the memory that was
 * planned for the first. */
bool mr_graph_reuse_wanted(void);
/* MR_E_INVALID for an unknown word in either, with those that there are. */
MR_MUST_USE mr_status mr_graph_variables_check(mr_err *err);

#endif
