/* engine/base/cache_dir.h - the folder for data that can be made again: blocks of model files from other hosts, their
 * hashes, and measurements.
 * Owns:    nothing; the caller frees the path with mr_free. Threads: not while another thread calls setenv.
 * Errors:  MR_E_IO names the folder that cannot be made. MR_E_NOT_FOUND: neither wish nor the environment names a
 *          folder. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_CACHE_DIR_H
#define MR_ENGINE_BASE_CACHE_DIR_H

#include "engine/base/status.h"

/* Returns the path wish, or if wish is NULL $XDG_CACHE_HOME/millrace, or else $HOME/.cache/millrace. A missing folder
 * is made with its parents, for this user alone. */
MR_MUST_USE mr_status mr_cache_dir_make(const char *wish, char **out_path, mr_err *err);

#endif
