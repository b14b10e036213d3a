/* coordinator/session/profile_file.h - files with a profile (coordinator/planning/profile.h). `millrace profile` writes
 * one into the cache folder, under the digest of the model file, so that a file that has changed has no profile.
 * Format:  one JSON object: "version" (1), "model" (the name of the file), "digest" (of the file, as
 *          "0x0123456789abcdef"), "kind" ("experts" or "neurons"), "rows", and "layers": for each layer {"layer",
 *          "counts"}, ascending.
 * Owns:    nothing.
 * Threads: caller serialises; write: bound to the main thread.
 * Errors:  read: those of mr_text_file_read, and MR_E_FORMAT, which names the file, the field and the expected value;
 *          write: MR_E_IO. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_PROFILE_FILE_H
#define MR_COORDINATOR_SESSION_PROFILE_FILE_H

#include <stddef.h>

#include "coordinator/planning/profile.h"

enum { MR_PROFILE_VERSION = 1, MR_PROFILE_NAME_BYTES = 1024 };

/* What a file says of its model. */
typedef struct mr_profile_model {
    char name[MR_PROFILE_NAME_BYTES];
    uint64_t digest;
} mr_profile_model;

/* Reads and checks a file. */
MR_MUST_USE mr_status mr_profile_read(const char *path, mr_profile_model *out_model, mr_profile *out, mr_err *err);
/* The same for text[n], the contents of a file that errors call name. */
MR_MUST_USE mr_status mr_profile_parse(const char *text, size_t n, const char *name, mr_profile_model *out_model,
                                       mr_profile *out, mr_err *err);
MR_MUST_USE mr_status mr_profile_write(const char *path, const mr_profile_model *model, const mr_profile *p,
                                       mr_err *err);

/* The path of a model's profile in the cache folder, to be freed by the caller; the folder is made. cache_wish: as in
 * mr_cache_dir_make. */
MR_MUST_USE mr_status mr_profile_path(const char *cache_wish, uint64_t digest, char **out_path, mr_err *err);
/* Finds the profile of a model in the cache folder, for commands that place experts or neurons. false: there is none.
 * A file that cannot be used, or is not of this model, is logged. */
bool mr_profile_find(const char *cache_wish, uint64_t digest, const mr_model_info *info, mr_profile *out);

#endif
