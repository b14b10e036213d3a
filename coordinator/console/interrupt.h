/* coordinator/console/interrupt.h - Ctrl-C (SIGINT), and SIGTERM as mpirun sends it, for commands that end early but in
 * order.
 * Threads: catch is for the main thread, the one that a signal interrupts; the others for any. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_INTERRUPT_H
#define MR_COORDINATOR_CONSOLE_INTERRUPT_H

#include <stdbool.h>

/* From here on the first signal is only noted; the second one does what it did before: by default it ends the program.
 * May be called again. */
void mr_interrupt_catch(void);
bool mr_interrupt_seen(void);
/* For a program that goes on: the next signal is the first one again. */
void mr_interrupt_forget(void);
/* From here on SIGHUP is only noted, unless the program was told to ignore it. */
void mr_interrupt_catch_hangup(void);
/* Whether one has come since it was last asked. */
bool mr_interrupt_take_hangup(void);
/* "SIGTERM"; "" while none was seen. */
const char *mr_interrupt_name(void);
/* Of a program that a signal has ended, as shells have it: 130 after SIGINT. */
int mr_interrupt_exit_status(void);

#endif
