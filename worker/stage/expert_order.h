/* worker/stage/expert_order.h - the order of experts that a plan asks for, in the form of mr_stage_config.expert_order.
 * Owns:    nothing. Threads: pure function. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_EXPERT_ORDER_H
#define MR_WORKER_STAGE_EXPERT_ORDER_H

#include <stddef.h>

#include "engine/base/status.h"
#include "worker/stage/devices.h"

/* held: for each layer that shares its experts between device and host, the numbers of those that the device gets:
 * n_host_experts * n_device_experts numbers. The orders of other layers ascend. *out, [n_layers][n_experts], is to be
 * freed by mr_free. MR_E_PROTOCOL: a number is not below n_experts, or is there twice. */
MR_MUST_USE mr_status mr_expert_order_make(const uint32_t *held, const mr_devices_share *share, int32_t n_layers,
                                           int32_t n_experts, int32_t **out, mr_err *err);

#endif
