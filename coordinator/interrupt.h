/* coordinator/interrupt.h - Ctrl-C for commands that end early but in order.
 * Threads: bound to the main thread, the one that a signal interrupts. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_INTERRUPT_H
#define MR_COORDINATOR_INTERRUPT_H

#include <stdbool.h>

/* From here on the first Ctrl-C is only noted; the second one ends the program at once. */
void interrupt_catch(void);
bool interrupt_seen(void);

#endif
