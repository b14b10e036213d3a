/* engine/base/cores_internal.h - for cores.c and its tests: the cores of a topology. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_CORES_INTERNAL_H
#define MR_ENGINE_BASE_CORES_INTERNAL_H

#include <hwloc.h>

#include "engine/base/cores.h"

/* The cores of a loaded topology for a thread that may run on the CPUs of allowed. */
void cores_of_topology(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, mr_cores *out);

#endif
