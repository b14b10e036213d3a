/* coordinator/session/session_ways.h - what is said of the ways of a session's activations, and what was measured of
 * them.
 * Owns:    nothing. Threads: bound to the main thread.
 * Errors:  none; false or NULL where a text says so. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_WAYS_H
#define MR_COORDINATOR_SESSION_SESSION_WAYS_H

#include <jansson.h>

#include "coordinator/console/output_table.h"
#include "coordinator/session/session.h"

/* A line for each hop from or to a device, with the figures of all ways that were measured. False: no memory. */
bool mr_session_print_ways(const mr_session *s, mr_text_buf *out);
/* {"nccl": {"latency_s": ..., "bytes_per_second": ...}, "pointers": {"why": ...}} of the hop from stage i to the next
 * one. NULL: nothing was measured, or there is no memory. */
json_t *mr_session_ways_json(const mr_session *s, int32_t i);

#endif
