/* coordinator/planning/what_if.h - adds an imagined rank to the facts, as a text describes it:
 * "mem=64GB,bw=80GB/s,speed=2,link=1GB/s".
 *   mem    memory; without mem as much as the mean rank has. K, M, G and T count by 1024
 *   bw     bandwidth of its memory, in bytes per second (by 1000): how fast it reads weights, which decides the time of
 *          a step of one row
 *   speed  compared with the mean rank: for the time of further rows, and without bw for the first row, too
 *   link   bytes per second to and from all other ranks; without link as the mean link, or 10 Gbit/s if there is none
 * Owns:    a what_if owns its arrays. {0} may be deinitialised. Threads: pure functions.
 * Errors:  MR_E_INVALID names the word that cannot be read. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_WHAT_IF_H
#define MR_COORDINATOR_PLANNING_WHAT_IF_H

#include <stddef.h>

#include "coordinator/planning/cluster_facts.h"
#include "engine/base/status.h"

typedef struct mr_what_if {
    mr_cluster_facts facts;
    mr_rank_facts *ranks;
    mr_link_facts *links;
} mr_what_if;

/* Adds the rank that text describes. layer_bytes: [n_kinds], the bytes that a step reads of a layer. out->facts borrows
 * facts->kind. */
MR_MUST_USE mr_status mr_what_if_make(const char *text, const mr_cluster_facts *facts, const size_t *layer_bytes,
                                      mr_what_if *out, mr_err *err);
void mr_what_if_deinit(mr_what_if *w);

#endif
