/* coordinator/cli/status_file.h - the files that rank 0 writes for a launcher that set MILLRACE_STATUS_FILE=FILE, such
 * as millrace-mpirun. FILE.pid has the line "PID HOST" from the start of rank 0, so that the launcher can send signals
 * to rank 0 alone. FILE has the exit status of rank 0 at the end, because mpirun --enable-recovery returns 0 whatever
 * its ranks return. Each file is written as FILE.part or FILE.pid.part and renamed, so a reader never sees a partial
 * file. The launcher may have made these with some bytes, as room on a file system that becomes full.
 * FILE.ending is made, empty, by the first signal that ends rank 0 in order: after a second one there is no status.
 * Threads: for the main thread of rank 0.
 * Errors:  a file that cannot be written causes a warning. Without the variable, the functions do nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_STATUS_FILE_H
#define MR_COORDINATOR_CLI_STATUS_FILE_H

void status_file_begin(void);
void status_file_end(int exit_status);

#endif
