/* coordinator/cli/status_file.h - what rank 0 writes for the launcher that set MILLRACE_STATUS_FILE, such as
 * millrace-mpirun. "FILE.pid" has the line "PID HOST" from the first moment of rank 0, so that signals can go to it
 * alone; FILE has its exit status at the end, because mpirun --enable-recovery returns 0 whatever its ranks return.
 * Each file is written under another name and moved, so that a reader finds all of it or nothing.
 * Threads: for the main thread of rank 0.
 * Errors:  a file that cannot be written is a warning. Without the variable nothing happens. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_STATUS_FILE_H
#define MR_COORDINATOR_CLI_STATUS_FILE_H

void status_file_begin(void);
void status_file_end(int exit_status);

#endif
