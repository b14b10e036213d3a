/* worker/lobby/part_roots.h - the roots of the parts of the model file that this rank knows: of parts that it has, if
 * it verifies weights, and of parts that it fetches, from the coordinator.
 * Owns: nothing. Threads: bound to the step thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_PART_ROOTS_H
#define MR_WORKER_LOBBY_PART_ROOTS_H

#include "engine/base/status.h"
#include "proto/millrace.pb-c.h"
#include "proto/weights_root.h"

/* {0}: nothing is known. */
typedef struct mr_part_roots {
    size_t n_parts;
    uint8_t bytes[MR_MAX_FILE_PARTS * MR_FILE_HASH_BYTES]; /* of each part; all zero: not known */
} mr_part_roots;

/* hello: after mr_hello_add_roots. */
void mr_part_roots_note_own(mr_part_roots *r, const Millrace__Hello *hello);
/* MR_E_FORMAT: the message has another root for a part of this rank. */
MR_MUST_USE mr_status mr_part_roots_note_shared(mr_part_roots *r, const Millrace__ShareFile *message, mr_err *err);
/* Whether the roots of all parts are known. */
bool mr_part_roots_join(const mr_part_roots *r, mr_weights_root *out);

#endif
