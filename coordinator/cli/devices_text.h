/* coordinator/cli/devices_text.h - what a user sees of the devices of this machine: which there are, why none is used,
 * and which matrices of a model stay on the CPU beside them. Call these functions before a session has devices, or
 * beside it: they ask drivers, and use no device.
 * Threads: the main thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_DEVICES_TEXT_H
#define MR_COORDINATOR_CLI_DEVICES_TEXT_H

#include <jansson.h>

#include "backends/registry.h"
#include "engine/gguf/gguf.h"
#include "engine/text/buffers.h"

/* Adds a line for each device of a kind of backends, or one that says why there is none; nothing for kinds without
 * devices of their own. start: what each line begins with. False: no memory. */
MR_MUST_USE bool devices_text_add(mr_text_buf *out, const mr_backend_kind *kind, const char *start);
/* Adds a line for each type of the model's matrices that devices of a kind cannot multiply. False: no memory. */
MR_MUST_USE bool devices_text_add_left(mr_text_buf *out, const mr_backend_kind *kind, const char *start,
                                       const mr_gguf *g);
/* Whether this machine has a device of the kind that the program can use. */
bool devices_text_has(const mr_backend_kind *kind);
/* The devices of all kinds: [{backend, device, name, ...}], and [{backend, problem}] where a kind has none. NULL: no
 * memory. */
json_t *devices_json(void);
/* The matrices that devices of a kind cannot multiply, by types: [{backend, type, tensors, bytes}]. NULL: no memory. */
json_t *devices_json_left(const mr_backend_kind *kind, const mr_gguf *g);

#endif
