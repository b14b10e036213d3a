/* engine/base/cores_internal.h - internal to cores.c and its tests: the cores of a given topology. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_CORES_INTERNAL_H
#define MR_ENGINE_BASE_CORES_INTERNAL_H

#include <hwloc.h>

#include "engine/base/cores.h"

/* Writes the cores of a loaded topology on which a thread bound to the CPUs of allowed may run. */
void cores_of_topology(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, mr_cores *out);

#endif
