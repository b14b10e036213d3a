/* engine/base/cache_dir.h - the folder for what can be made again: blocks of model files that came from other hosts,
 * their hashes, measurements.
 * Owns:    nothing; the path is the caller's, by mr_free. Threads: not beside setenv.
 * Errors:  MR_E_IO names the folder that cannot be made, MR_E_NOT_FOUND: nothing says where it should be. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_CACHE_DIR_H
#define MR_ENGINE_BASE_CACHE_DIR_H

#include "engine/base/status.h"

/* wish, or where that is NULL $XDG_CACHE_HOME/millrace, or $HOME/.cache/millrace. It is made with its parents, for this
 * user alone, where it is missing. */
MR_MUST_USE mr_status mr_cache_dir_make(const char *wish, char **out_path, mr_err *err);

#endif
