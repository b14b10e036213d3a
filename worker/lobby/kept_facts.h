/* worker/lobby/kept_facts.h - the measured times of a model on this machine, kept in the cache folder for later starts.
 * The file "times-KEY" holds a Facts message in a frame.
 * Threads: any; ranks of one host may write the same file.
 * Errors:  none of files: a missing or broken file is not used, and a file that cannot be written is not kept. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_KEPT_FACTS_H
#define MR_WORKER_LOBBY_KEPT_FACTS_H

#include "proto/measured.h"
#include "proto/messages.h"
#include "worker/lobby/measure.h"

/* A hash of everything that times depend on: the header of the model, this machine and its processor, the version of
 * the program, and the config. n_together: ranks of this host that measure at the same time. */
uint64_t mr_kept_facts_key(const mr_measure_config *config, int32_t n_threads, int32_t n_together);
/* false: no valid file. cache_wish: as in mr_cache_dir_make. */
bool mr_kept_facts_read(const char *cache_wish, uint64_t key, mr_measured *out);
void mr_kept_facts_write(const char *cache_wish, uint64_t key, const mr_measured *measured);

/* The times of a rank. wish->anew: measures, and keeps the times. Else reads the kept times; *out_known: a quick sample
 * confirms them. Errors are those of the measurements. */
MR_MUST_USE mr_status mr_kept_facts_get(const char *cache_wish, int32_t n_threads, const mr_measure_config *config,
                                        const Millrace__Measure *wish, mr_measured *out, bool *out_known, mr_err *err);

/* Whether a quick sample (mr_measure_sample) confirms the kept times: the two differ by a factor of 1.25 at most. */
static inline bool mr_kept_facts_hold(const mr_measured *kept, double sample_s) {
    return sample_s <= 1.25 * kept->sample_s && kept->sample_s <= 1.25 * sample_s;
}

#endif
