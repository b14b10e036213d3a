/* worker/files/file_layers.h - which parts of a model file a stage needs, and how to fetch them from other ranks:
 * first the header, then the tensors of the layers.
 * Owns:    nothing. Threads: those of worker/files/file_client.h.
 * Errors:  those of worker/files/file_client.h and of reading a model. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_LAYERS_H
#define MR_WORKER_FILES_FILE_LAYERS_H

#include "engine/gguf/model_info.h"
#include "engine/model/model.h"
#include "worker/files/file_client.h"

/* Fetches the header and opens the file. The data of tensors that were not fetched reads as zeros. */
MR_MUST_USE mr_status mr_file_layers_open(mr_file_client *c, const mr_file_wait *wait, mr_gguf **out, mr_err *err);
/* Fetches all tensors that a stage of these layers reads. range NULL: fetches only the tensors that must not be zeros
 * when layers are measured. With experts this includes the router of every layer, so that rows are spread over the
 * experts as in a run. */
MR_MUST_USE mr_status mr_file_layers_fetch(mr_file_client *c, const mr_gguf *g, const mr_model_info *info,
                                           const mr_layer_range *range, const mr_file_wait *wait, mr_err *err);

/* The size of the tensors that a stage of these layers reads. */
size_t mr_file_layers_bytes(const mr_gguf *g, const mr_model_info *info, mr_layer_range range);

#endif
