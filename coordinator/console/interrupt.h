/* coordinator/console/interrupt.h - SIGINT (Ctrl-C), SIGTERM (as mpirun sends it) and SIGHUP as flags that a command
 * polls. So a command can end early and still print its results. Signals that nobody means for it are ignored.
 * Threads: mr_interrupt_ignore_strays and the two catch functions are for the main thread; the other functions are for
 * any thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_INTERRUPT_H
#define MR_COORDINATOR_CONSOLE_INTERRUPT_H

#include <stdbool.h>

/* Ignores the signals that would end the program though nobody means that: SIGUSR1, SIGALRM and others, which batch
 * systems and scripts send to whole jobs. SIGPIPE and SIGXFSZ are ignored because write returns an error then, too.
 * Actions that a library has set stay. */
void mr_interrupt_ignore_strays(void);
/* From now on, the first SIGINT or SIGTERM only sets a flag. A second one has its previous action, by default to end
 * the program. Signals that were ignored (nohup) stay ignored. May be called again. */
void mr_interrupt_catch(void);
/* The first signal also makes an empty file at path, so that others can tell a death by a second signal from a crash.
 * Call before mr_interrupt_catch; path has static storage. A file that cannot be made is no error. */
void mr_interrupt_mark(const char *path);
/* Whether SIGINT or SIGTERM has come since mr_interrupt_catch or mr_interrupt_forget. */
bool mr_interrupt_seen(void);
/* Clears the flag, for a command that continues after a signal. The next signal counts as the first again. */
void mr_interrupt_forget(void);
/* From now on, SIGHUP only sets a flag. If SIGHUP was ignored, it stays ignored. */
void mr_interrupt_catch_hangup(void);
/* Whether SIGHUP has come since the last call. */
bool mr_interrupt_take_hangup(void);
/* The name of the signal, such as "SIGTERM"; "" if none has come. */
const char *mr_interrupt_name(void);
/* 128 plus the number of the signal, as in shells: 130 after SIGINT. */
int mr_interrupt_exit_status(void);

#endif
