/* engine/tensor/quant_iq_grids.h - the lattice points of the IQ1, IQ2 and IQ3 types, packed.
 * A point of IQ1 or IQ2 has eight coordinates of 2 bits, the first one in the lowest bits. A point of IQ3 has four of 3
 * bits. A coordinate is an index into the list of values of the type, which stands behind each table.
 * Threads: constants. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TENSOR_QUANT_IQ_GRIDS_H
#define MR_ENGINE_TENSOR_QUANT_IQ_GRIDS_H

#include <stdint.h>

extern const uint16_t mr_iq1_grid[2048];    /* values -1, 0, 1 */
extern const uint16_t mr_iq2_xxs_grid[256]; /* values 8, 25, 43; also in the next two */
extern const uint16_t mr_iq2_xs_grid[512];
extern const uint16_t mr_iq2_s_grid[1024];
extern const uint16_t mr_iq3_xxs_grid[256]; /* values 4, 12, 20, 28, 36, 44, 52, 62 */
extern const uint16_t mr_iq3_s_grid[512];   /* values 1, 3, 5 … 15 */

#endif
