/* engine/base/numerics.h - the version of the numerics contract that this program computes by: engine/NUMERICS.md. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_NUMERICS_H
#define MR_ENGINE_BASE_NUMERICS_H

/* The number in the heading of engine/NUMERICS.md, raised with any change of a rule. Ranks of one job share it. */
enum { MR_NUMERICS_VERSION = 2 };

#endif
