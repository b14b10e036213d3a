/* worker/files/file_root.h - one hash that stands for all bytes of a file: SHA-256 of the size of the file and of the
 * SHA-256 of each of its blocks (worker/files/file_blocks.h). A second call for a file that has not changed (device,
 * inode, size and modification time) takes the hashes of the blocks from the cache folder and reads nothing.
 * Owns:    nothing. Threads: the caller waits, while up to four threads read and hash.
 * Errors:  of opening and reading the file; MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_ROOT_H
#define MR_WORKER_FILES_FILE_ROOT_H

#include "engine/base/status.h"
#include "worker/files/file_blocks.h"

/* path, part: as in mr_part_files_open_one. folder: as in mr_file_hashes_config. */
MR_MUST_USE mr_status mr_file_root(const char *path, int32_t part, const char *folder, int32_t n_threads,
                                   mr_file_hash *out, mr_err *err);

#endif
