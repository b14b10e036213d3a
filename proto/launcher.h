/* proto/launcher.h - what ranks tell each other before MPI starts, through the launcher that has started them. mpirun
 * and srun run a PMIx server beside the ranks of each host: one rank puts a text there, the others read it wherever
 * they are, and it needs no other rank to be alive. MPI_Init has no such mercy: it waits for all of them. The PMIx
 * library is the one that the MPI library has brought along, or the system's; it is found while the program runs, so
 * that a process never has two of them.
 * Threads: open and close are for one thread; the others may be called from any.
 * Errors:  MR_E_IO: what PMIx says. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LAUNCHER_H
#define MR_PROTO_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct mr_launcher mr_launcher;

/* Before MPI_Init. NULL: this launcher has no PMIx, or there is no library for it. */
mr_launcher *mr_launcher_open(void);
/* After MPI_Finalize, which the launcher otherwise takes for a crash. NULL is accepted. */
void mr_launcher_close(mr_launcher *l);

/* Lets all ranks read a text of this rank. A key has one text for ever. */
MR_MUST_USE mr_status mr_launcher_put(mr_launcher *l, const char *key, const char *text, mr_err *err);
/* Waits until the rank has put its text, out_text[bytes]. MR_E_TIMEOUT: not within the whole seconds given. */
MR_MUST_USE mr_status mr_launcher_get(mr_launcher *l, int32_t rank, const char *key, int seconds, char *out_text,
                                      size_t bytes, mr_err *err);
/* The host where the launcher has started a rank, dead or alive; "" where it does not say. */
void mr_launcher_host(mr_launcher *l, int32_t rank, char *out_host, size_t bytes);

#endif
