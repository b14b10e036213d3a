// SPDX-License-Identifier: Apache-2.0
#include "coordinator/interrupt.h"

#include <signal.h>
#include <stddef.h>

/* Set by the handler, read by the thread that it interrupts. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

void interrupt_catch(void) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND | SA_RESTART};
    sigaction(SIGINT, &action, NULL);
}

bool interrupt_seen(void) {
    return interrupted != 0;
}
