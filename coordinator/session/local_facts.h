/* coordinator/session/local_facts.h - measures the stages of a session without ranks. Each stage becomes a thread with
 * a lobby of its own, on a local channel. So the stages measure at the same time, and keep their results in the cache,
 * as ranks do (coordinator/lobby/facts.h).
 * Threads: bound to the calling thread. The stages' threads end before the call returns. Errors: those of
 *          mr_facts_measure and of the backends. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_LOCAL_FACTS_H
#define MR_COORDINATOR_SESSION_LOCAL_FACTS_H

#include "coordinator/clusters/local_cluster.h"
#include "coordinator/lobby/facts.h"

/* f has as many ranks as config has stages. wish->memory_limit is the sum for all stages. cache_dir: see
 * mr_cache_dir_make. */
MR_MUST_USE mr_status local_facts_measure(const mr_local_cluster_config *config, const char *cache_dir,
                                          const mr_facts_wish *wish, mr_facts *f, mr_err *err);

#endif
