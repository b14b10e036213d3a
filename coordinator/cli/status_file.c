/* status_file.c - writes the process id and the exit status of rank 0 into the files that its launcher reads. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/status_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"

enum { HOST_BYTES = 256, LINE_BYTES = HOST_BYTES + 32 };

/* Writes a line into a file, in one piece. A file that is there keeps its room until the line stands in it: a launcher
 * makes one, so that the line can be written on a file system that has become full. */
static bool write_whole(const char *path, const char *line) {
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    ssize_t n = (ssize_t)strlen(line), done = write(fd, line, (size_t)n);
    if (done >= 0 && done < n)
        errno = ENOSPC;
    bool written = done == n && ftruncate(fd, n) == 0;
    return close(fd) == 0 && written;
}

/* Writes a line into the file whose name is the value of the variable and the suffix. */
static void write_line(const char *suffix, const char *line) {
    const char *base = getenv("MILLRACE_STATUS_FILE");
    char path[PATH_MAX], part[PATH_MAX];
    if (!base || !*base)
        return;
    bool fits = snprintf(path, sizeof path, "%s%s", base, suffix) < PATH_MAX &&
                snprintf(part, sizeof part, "%s%s.part", base, suffix) < PATH_MAX;
    if (!fits)
        errno = ENAMETOOLONG;
    if (!fits || !write_whole(part, line) || rename(part, path) != 0)
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
