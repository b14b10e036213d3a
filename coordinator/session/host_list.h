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
 * Errors:  MR_E_IO; MR_E_FORMAT names the file, the line and the word. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_HOST_LIST_H
#define MR_COORDINATOR_SESSION_HOST_LIST_H

#include "coordinator/session/plan_file.h"

/* Whether the file is such a list and not JSON. false also if it cannot be read. */
bool host_list_is(const char *path);
/* Makes facts of the list. out becomes a plan_file with facts only; the caller deinitialises it. */
MR_MUST_USE mr_status host_list_read(const char *path, const mr_gguf *gguf, const mr_model_info *info, mr_type kv_type,
                                     plan_file *out, mr_err *err);

#endif
