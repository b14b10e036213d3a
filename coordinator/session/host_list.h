/* coordinator/session/host_list.h - a list of hosts that a plan is made for, without measurements. Each line describes
 * a host: its name, and quantities behind it.
 *   node1  mem=512GB bw=140GB/s ops=2T link=1.25GB/s latency=50us
 *   mem      memory for weights, KV cache and buffers
 *   bw       bytes that a step reads from memory in a second; `millrace bench` measures it
 *   ops      operations of matrix products in a second; may be missing: then reading alone takes time
 *   link     bytes per second to and from each other host; may be missing: 10 Gbit/s
 *   latency  of a small message; may be missing: 50us
 * Empty lines and lines that begin with # are left out.
 * Threads: caller serialises.
 * Errors:  MR_E_NO_MEMORY; MR_E_FORMAT names the file, the line and the word. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_HOST_LIST_H
#define MR_COORDINATOR_SESSION_HOST_LIST_H

#include "coordinator/session/plan_file.h"

/* Whether the text is such a list, by its first character, and not JSON. */
bool host_list_is(mr_str text);
/* Makes facts of the list. path: the file of the text, for errors. out becomes a plan_file with facts only; the caller
 * deinitialises it. */
MR_MUST_USE mr_status host_list_parse(mr_str text, const char *path, const mr_gguf *gguf, const mr_model_info *info,
                                      mr_type kv_type, plan_file *out, mr_err *err);

#endif
