/* coordinator/console/output_file.h - a result file that appears only when it is whole: written beside its place and
 * renamed; removed on failure, and when SIGINT, SIGTERM or SIGHUP ends the program. Devices and pipes are written
 * directly.
 * Owns:    descriptor and names. {0} is closed; abort accepts it.
 * Threads: bound to the main thread; one file at a time.
 * Errors:  MR_E_IO, with the path and the system's reason. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CONSOLE_OUTPUT_FILE_H
#define MR_COORDINATOR_CONSOLE_OUTPUT_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

typedef struct mr_output_file {
    bool open;
    int fd;
    const char *path; /* as the user gave it; borrowed */
    char *place;      /* behind symbolic links */
    char *temporary;  /* NULL: written directly */
} mr_output_file;

/* Room for expected_bytes is reserved where the file system can do that, so that a full disk shows at once. */
MR_MUST_USE mr_status mr_output_file_open(mr_output_file *f, const char *path, size_t expected_bytes, mr_err *err);
MR_MUST_USE mr_status mr_output_file_write(mr_output_file *f, const void *data, size_t bytes, mr_err *err);
/* The file is whole. On failure it is removed. */
MR_MUST_USE mr_status mr_output_file_commit(mr_output_file *f, mr_err *err);
/* Removes what was written, unless it was committed. */
void mr_output_file_abort(mr_output_file *f);

#endif
