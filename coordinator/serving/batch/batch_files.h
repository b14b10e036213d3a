/* coordinator/serving/batch/batch_files.h - the folder of batches on the disk. The file ID holds the content of an
 * uploaded file; ID.json holds an object of OpenAI's Files or Batches API. The object of a batch that has not ended
 * names the files of its results, which are written at the end; clients see null until then. An object is replaced as
 * a whole, and is on the disk when a function returns. Ids are random. A caller checks every id that comes from a
 * client with batch_id_is_good before the id becomes part of a path.
 * Threads: any; callers serialise writes of the same object.
 * Errors:  MR_E_IO, MR_E_NO_MEMORY, MR_E_NOT_FOUND; MR_E_FORMAT: an object is malformed. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_FILES_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_FILES_H

#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"

enum { BATCH_ID_BYTES = 40, BATCH_PATH_BYTES = 4096 };

/* The ending of the journal of a batch that has not ended: the file of all its results (batch_results.h). */
#define BATCH_JOURNAL ".journal"

/* The prefix ("file-", "batch_") and 24 lower-case letters and digits: the time, then random ones. */
void batch_id_make(const char *prefix, char out[BATCH_ID_BYTES]);
/* Whether the id looks like one of batch_id_make. */
bool batch_id_is_good(const char *id, const char *prefix);
/* Writes FOLDER/ID and the ending. MR_E_TOO_LONG. */
MR_MUST_USE mr_status batch_path(const char *folder, const char *id, const char *ending, char out[BATCH_PATH_BYTES],
                                 mr_err *err);

/* A file that is written piece by piece. It has another name until it is closed, so that a crash leaves the old content
 * or the new. */
typedef struct batch_writer {
    const char *folder; /* borrowed */
    FILE *file;         /* NULL: not open */
    size_t n_bytes;     /* written so far */
    char path[BATCH_PATH_BYTES], temporary[BATCH_PATH_BYTES + 8];
} batch_writer;
MR_MUST_USE mr_status batch_writer_open(batch_writer *w, const char *folder, const char *id, const char *ending,
                                        mr_err *err);
MR_MUST_USE mr_status batch_writer_put(batch_writer *w, mr_str bytes, mr_err *err);
/* On MR_OK the bytes are on the disk, in place of an earlier content. After an error the earlier content is left. */
MR_MUST_USE mr_status batch_writer_close(batch_writer *w, mr_err *err);
/* Leaves the earlier content. A writer that is closed is accepted. */
void batch_writer_abort(batch_writer *w);

MR_MUST_USE mr_status batch_object_save(const char *folder, const json_t *object, mr_err *err);
MR_MUST_USE mr_status batch_object_load(const char *folder, const char *id, json_t **out, mr_err *err);
/* batch_check.c: whether an object that was read may be used as that of this id. MR_E_FORMAT. */
MR_MUST_USE mr_status batch_object_check(const json_t *object, const char *id, mr_err *err);
/* batch_check.c: whether the status of a batch is a last one: completed, failed or cancelled. */
bool batch_has_ended(const json_t *batch);
/* batch_check.c: to be called once, before others use the folder. Warns of malformed objects, and removes what a killed
 * server has left half made. Removes nothing where an object is malformed. MR_E_IO, MR_E_NO_MEMORY. */
MR_MUST_USE mr_status batch_folder_check(const char *folder, mr_err *err);
/* All well-formed objects whose id has the prefix, the latest first. */
MR_MUST_USE mr_status batch_objects_list(const char *folder, const char *prefix, json_t **out_array, mr_err *err);

/* The object of a file. NULL: name or purpose is not UTF-8, or no memory. */
json_t *batch_file_object(const char *id, mr_str name, mr_str purpose, size_t n_bytes);
/* Writes a new file and its object, and returns the object. MR_E_INVALID: name or purpose is not UTF-8. */
MR_MUST_USE mr_status batch_file_create(const char *folder, mr_str name, mr_str purpose, mr_str content, json_t **out,
                                        mr_err *err);
/* Whether a file has the size that its object says. MR_E_FORMAT: another program has changed it. */
MR_MUST_USE mr_status batch_file_check(const char *folder, const char *id, mr_err *err);
MR_MUST_USE mr_status batch_file_read(const char *folder, const char *id, mr_text_buf *out, mr_err *err);
MR_MUST_USE mr_status batch_file_delete(const char *folder, const char *id, mr_err *err);

/* batch_multipart.c: finds a part of a multipart/form-data body by name. The first line of the body is the boundary.
 * The results point into the body; a part without a file name has "". */
bool batch_multipart_find(mr_str body, const char *name, mr_str *out_content, mr_str *out_filename);

#endif
