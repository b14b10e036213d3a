/* worker/lobby/kept_facts.h - what was measured of a model on this machine, kept in a file of the cache folder: a Facts
 * message in a frame, under a name that says of what. A file that is missing or broken counts as none.
 * Threads: any; ranks of one host may write the same file. Errors: none; a file that cannot be written is not
 * kept. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_KEPT_FACTS_H
#define MR_WORKER_LOBBY_KEPT_FACTS_H

#include "proto/measured.h"
#include "worker/lobby/measure.h"

/* What times depend on: the model's header, this machine and its processor, this version of the program, and the
 * config. n_together: mr_lobby's neighbours on this host. */
uint64_t mr_kept_facts_key(const mr_measure_config *config, int32_t n_threads, int32_t n_together);
/* cache_wish: as in mr_cache_dir_make. */
bool mr_kept_facts_read(const char *cache_wish, uint64_t key, mr_measured *out);
void mr_kept_facts_write(const char *cache_wish, uint64_t key, const mr_measured *measured);

/* Whether a quick sample (mr_measure_sample) says that what was kept still holds: within a quarter of it. */
static inline bool mr_kept_facts_hold(const mr_measured *kept, double sample_s) {
    return sample_s <= 1.25 * kept->sample_s && kept->sample_s <= 1.25 * sample_s;
}

#endif
