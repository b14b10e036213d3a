/* proto/launcher.h - exchanges texts between ranks before MPI starts, through the launcher (mpirun, srun). Both
 * launchers run a PMIx server on each host. One rank puts a text, and the other ranks read the text on any host. No
 * other rank has to be alive for that, whereas MPI_Init waits for all ranks. The PMIx library is the one that the MPI
 * library has loaded, or that of the system. It is found at run time, so that a process never has two PMIx libraries.
 * Threads: open and close are for one thread; any thread may call the other functions.
 * Errors:  MR_E_IO with the text of PMIx. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_LAUNCHER_H
#define MR_PROTO_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct mr_launcher mr_launcher;

/* Call before MPI_Init. NULL: this launcher has no PMIx, or there is no PMIx library. */
mr_launcher *mr_launcher_open(void);
/* Call after MPI_Finalize; otherwise the launcher takes the end of the process for a crash. NULL is accepted. */
void mr_launcher_close(mr_launcher *l);

/* Publishes a text of this rank to all ranks. The text of a key can be set once. */
MR_MUST_USE mr_status mr_launcher_put(mr_launcher *l, const char *key, const char *text, mr_err *err);
/* Waits until the rank has put its text, and copies the text to out_text[bytes]. MR_E_TIMEOUT: `seconds` have
 * passed. */
MR_MUST_USE mr_status mr_launcher_get(mr_launcher *l, int32_t rank, const char *key, int seconds, char *out_text,
                                      size_t bytes, mr_err *err);
/* The host on which the launcher has started a rank, whether the rank is alive or not; "": the launcher does not
 * say. */
void mr_launcher_host(mr_launcher *l, int32_t rank, char *out_host, size_t bytes);

#endif
