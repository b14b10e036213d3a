/* worker/stage/devices_check.h - refuses devices that say they are exact and are not, or leaves them out.
 * Threads: the caller serialises the calls on the devices. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_DEVICES_CHECK_H
#define MR_WORKER_STAGE_DEVICES_CHECK_H

#include "worker/stage/devices.h"

/* Compares what each exact device computes with what the CPU computes (backends/digest/digest.h). The CPU takes some
 * 10 ms. Call it before a device computes for a job. MR_E_UNSUPPORTED: the text names the device and the ops that
 * differ. MR_E_DEVICE, MR_E_NO_MEMORY: the device cannot be compared. A device that nobody has named is left out
 * instead. */
MR_MUST_USE mr_status mr_devices_check(mr_devices *d, mr_err *err);

#endif
