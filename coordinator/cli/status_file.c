/* status_file.c - writes the process id and the exit status of rank 0 into the files that its launcher reads. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/status_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"

enum { HOST_BYTES = 256, LINE_BYTES = HOST_BYTES + 32 };

/* Writes a line into the file whose name is the value of the variable and the suffix. */
static void write_line(const char *suffix, const char *line) {
    const char *base = getenv("MILLRACE_STATUS_FILE");
    char path[PATH_MAX], part[PATH_MAX];
    if (!base || !*base)
        return;
    bool fits = snprintf(path, sizeof path, "%s%s", base, suffix) < PATH_MAX &&
                snprintf(part, sizeof part, "%s%s.part", base, suffix) < PATH_MAX;
    FILE *f = fits ? fopen(part, "we") : NULL;
    if (!fits)
        errno = ENAMETOOLONG;
    bool written = f && fputs(line, f) >= 0;
    if (f && fclose(f) != 0)
        written = false;
    if (!written || rename(part, path) != 0)
        mr_output_warning("%.160s%s cannot be written: %s", base, suffix, strerror(errno));
}

/* Has the first signal make the file. */
static void mark_signals(void) {
    static char path[PATH_MAX];
    const char *base = getenv("MILLRACE_STATUS_FILE");
    if (base && *base && snprintf(path, sizeof path, "%s.ending", base) < PATH_MAX)
        mr_interrupt_mark(path);
}

void status_file_begin(void) {
    char host[HOST_BYTES] = "", line[LINE_BYTES];
    if (gethostname(host, sizeof host - 1) != 0)
        strcpy(host, "?");
    snprintf(line, sizeof line, "%ld %s\n", (long)getpid(), host);
    write_line(".pid", line);
    mark_signals();
}

void status_file_end(int exit_status) {
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%d\n", exit_status);
    write_line("", line);
}
