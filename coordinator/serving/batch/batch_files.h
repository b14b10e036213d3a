/* coordinator/serving/batch/batch_files.h - a folder of uploaded files and of what is known of files and batches: ID is
 * the content of a file, ID.json an object of OpenAI's Files or Batches API. An object is replaced as a whole, and is
 * on the disk when a function returns. Ids are drawn by lot; others than such are never part of a path.
 * Threads: any; whoever writes one object serialises that.
 * Errors:  MR_E_IO, MR_E_NO_MEMORY, MR_E_NOT_FOUND. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_FILES_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_FILES_H

#include <stdbool.h>

#include <jansson.h>

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"

enum { BATCH_ID_BYTES = 40, BATCH_PATH_BYTES = 4096 };

/* prefix ("file-", "batch_") and 24 small letters and digits: the time, and lots. */
void batch_id_make(const char *prefix, char out[BATCH_ID_BYTES]);
bool batch_id_is_good(const char *id, const char *prefix);
/* ID in the folder, with an ending. MR_E_TOO_LONG. */
MR_MUST_USE mr_status batch_path(const char *folder, const char *id, const char *ending, char out[BATCH_PATH_BYTES],
                                 mr_err *err);

MR_MUST_USE mr_status batch_object_save(const char *folder, const json_t *object, mr_err *err);
MR_MUST_USE mr_status batch_object_load(const char *folder, const char *id, json_t **out, mr_err *err);
/* All objects whose id has the prefix, the latest first. */
MR_MUST_USE mr_status batch_objects_list(const char *folder, const char *prefix, json_t **out_array, mr_err *err);

/* A new file with its object. */
MR_MUST_USE mr_status batch_file_create(const char *folder, mr_str name, mr_str purpose, mr_str content, json_t **out,
                                        mr_err *err);
MR_MUST_USE mr_status batch_file_read(const char *folder, const char *id, mr_text_buf *out, mr_err *err);
MR_MUST_USE mr_status batch_file_delete(const char *folder, const char *id, mr_err *err);

/* batch_multipart.c: a part of a multipart/form-data body by its name; the body says its boundary in its first line. */
bool batch_multipart_find(mr_str body, const char *name, mr_str *out_content, mr_str *out_filename);

#endif
