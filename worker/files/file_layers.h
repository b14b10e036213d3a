/* worker/files/file_layers.h - a model file whose parts come from other ranks, as a stage wants it: first the header,
 * then the tensors of its layers. Owns: nothing. Threads and errors: those of worker/files/file_client.h, and of
 * reading a model. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_FILES_FILE_LAYERS_H
#define MR_WORKER_FILES_FILE_LAYERS_H

#include "engine/gguf/model_info.h"
#include "engine/model/model.h"
#include "worker/files/file_client.h"

/* Fetches the header and opens the file. Its tensors may be holes: nothing but zeros. */
MR_MUST_USE mr_status mr_file_layers_open(mr_file_client *c, const mr_file_wait *wait, mr_gguf **out, mr_err *err);
/* Fetches all that a stage of these layers reads. range NULL: fetches what must not be zeros where layers are measured,
 * which is little, but with experts what chooses them in all layers, so that rows are spread over them as in a run. */
MR_MUST_USE mr_status mr_file_layers_fetch(mr_file_client *c, const mr_gguf *g, const mr_model_info *info,
                                           const mr_layer_range *range, const mr_file_wait *wait, mr_err *err);

/* The bytes of the tensors that a stage of these layers reads. */
size_t mr_file_layers_bytes(const mr_gguf *g, const mr_model_info *info, mr_layer_range range);

#endif
