// SPDX-License-Identifier: Apache-2.0
#include "coordinator/console/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

static const int SIGNALS[] = {SIGINT, SIGTERM};
enum { N_SIGNALS = sizeof SIGNALS / sizeof SIGNALS[0] };

/* Set by the handler, read by any thread. */
static atomic_int interrupted;
static atomic_bool hung_up;
static struct sigaction before[N_SIGNALS]; /* the actions from before catch, for a second signal */

static const char *mark; /* the file that says that a signal came; NULL: none */

static void make_mark(void) {
    int before_errno = errno;
    int fd = mark ? open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0)
        close(fd);
    errno = before_errno;
}

/* Makes the mark first: from then on, a second signal may end the program. */
static void on_interrupt(int signal_number) {
    make_mark();
    for (int i = 0; i < N_SIGNALS; i++)
        if (SIGNALS[i] == signal_number)
            sigaction(signal_number, &before[i], NULL);
    interrupted = signal_number;
}

static void ignore(int signal_number) {
    struct sigaction action;
    if (sigaction(signal_number, NULL, &action) != 0 || action.sa_handler != SIG_DFL)
        return;
    action.sa_handler = SIG_IGN;
    sigaction(signal_number, &action, NULL);
}

void mr_interrupt_ignore_strays(void) {
    static const int STRAYS[] = {SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPWR, SIGXFSZ};
    for (size_t i = 0; i < sizeof STRAYS / sizeof STRAYS[0]; i++)
        ignore(STRAYS[i]);
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
        ignore(number);
}

void mr_interrupt_catch(void) {
    const struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    for (int i = 0; i < N_SIGNALS && !interrupted; i++) {
        struct sigaction was;
        /* A signal that the program was told to ignore (nohup) stays ignored. */
        if (sigaction(SIGNALS[i], NULL, &was) != 0 || was.sa_handler == SIG_IGN || was.sa_handler == on_interrupt)
            continue;
        before[i] = was;
        sigaction(SIGNALS[i], &action, NULL);
    }
}

void mr_interrupt_mark(const char *path) {
    mark = path;
}

void mr_interrupt_forget(void) {
    interrupted = 0;
    mr_interrupt_catch();
}

static void on_hangup(int signal_number) {
    (void)signal_number;
    hung_up = true;
}

void mr_interrupt_catch_hangup(void) {
    const struct sigaction action = {.sa_handler = on_hangup, .sa_flags = SA_RESTART};
    struct sigaction was;
    if (sigaction(SIGHUP, NULL, &was) == 0 && was.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
}

bool mr_interrupt_take_hangup(void) {
    return atomic_exchange(&hung_up, false);
}

bool mr_interrupt_seen(void) {
    return interrupted != 0;
}

const char *mr_interrupt_name(void) {
    int number = interrupted;
    return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "";
}

int mr_interrupt_exit_status(void) {
    int number = interrupted;
    return 128 + (number ? number : SIGINT);
}
