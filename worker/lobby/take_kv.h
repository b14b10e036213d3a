/* worker/lobby/take_kv.h - answers TakeKv: receives KV blocks of layers that this rank will get, from a rank whose
 * stage runs.
 * Owns:    nothing. Borrows: the channel and the backend. Threads: bound to the step thread.
 * Errors:  as mr_kv_take; MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_TAKE_KV_H
#define MR_WORKER_LOBBY_TAKE_KV_H

#include "engine/gguf/model_info.h"
#include "proto/millrace.pb-c.h"
#include "worker/kv_transfer.h"
#include "worker/stage/kept_kv.h"

/* transfer: channel, told_to_end and ctx are set; the rest is of the message. Afterwards *kept has the store, if all
 * blocks have come. */
MR_MUST_USE mr_status mr_kv_take_ahead(const Millrace__TakeKv *message, const mr_model_info *info, mr_backend *backend,
                                       int32_t coordinator, mr_kv_transfer transfer, mr_kept_kv *kept, mr_err *err);

#endif
