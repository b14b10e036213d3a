/* engine/base/numerics.h - the version of the numerics contract (engine/NUMERICS.md) that this program follows. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_NUMERICS_H
#define MR_ENGINE_BASE_NUMERICS_H

/* The number in the heading of engine/NUMERICS.md. Every change of a rule raises the number. All ranks of a job must
 * have the same one. */
enum { MR_NUMERICS_VERSION = 4 };

#endif
