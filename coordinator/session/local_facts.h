/* coordinator/session/local_facts.h - measures the stages that one process would have: each a rank in a lobby of its
 * own, a thread on a local channel, so that they measure together and keep what they measured as ranks do
 * (coordinator/lobby/facts.h).
 * Threads: bound to the calling thread while it runs. Errors: those of mr_facts_measure, and of the backends. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_LOCAL_FACTS_H
#define MR_COORDINATOR_SESSION_LOCAL_FACTS_H

#include "coordinator/clusters/local_cluster.h"
#include "coordinator/lobby/facts.h"

/* f is for as many ranks as config has stages; wish->memory_limit is of all of them together. cache_dir: as in
 * mr_cache_dir_make. */
MR_MUST_USE mr_status local_facts_measure(const mr_local_cluster_config *config, const char *cache_dir,
                                          const mr_facts_wish *wish, mr_facts *f, mr_err *err);

#endif
