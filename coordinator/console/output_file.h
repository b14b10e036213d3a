/* coordinator/console/output_file.h - a result file that appears only when it is complete. The bytes go to a temporary
 * file in the same folder, which commit renames. The temporary file is removed on failure, and when SIGINT, SIGTERM or
 * SIGHUP ends the program. Devices and pipes are written directly.
 * Owns:    the descriptor and the names. abort accepts {0}, a closed file.
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
    char *place;      /* the path behind symbolic links */
    char *temporary;  /* the temporary file; NULL: path is written directly */
} mr_output_file;

/* Reserves expected_bytes on the disk where the file system can do so. A full disk is then noticed at once. */
MR_MUST_USE mr_status mr_output_file_open(mr_output_file *f, const char *path, size_t expected_bytes, mr_err *err);
MR_MUST_USE mr_status mr_output_file_write(mr_output_file *f, const void *data, size_t bytes, mr_err *err);
/* Closes the complete file and renames it. On failure, removes the temporary file. */
MR_MUST_USE mr_status mr_output_file_commit(mr_output_file *f, mr_err *err);
/* Closes and removes a file that was not committed. After commit, does nothing. */
void mr_output_file_abort(mr_output_file *f);

#endif
