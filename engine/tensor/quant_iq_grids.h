/* engine/tensor/quant_iq_grids.h - the points of the lattices that the IQ1, IQ2 and IQ3 types choose from, packed.
 * IQ1 and IQ2: eight coordinates of 2 bits, the first in the lowest bits; IQ3: four of 3 bits. A coordinate is an index
 * into the list of its type's values. Threads: constants. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TENSOR_QUANT_IQ_GRIDS_H
#define MR_ENGINE_TENSOR_QUANT_IQ_GRIDS_H

#include <stdint.h>

extern const uint16_t mr_iq1_grid[2048];    /* of -1, 0, 1 */
extern const uint16_t mr_iq2_xxs_grid[256]; /* of 8, 25, 43 */
extern const uint16_t mr_iq2_xs_grid[512];
extern const uint16_t mr_iq2_s_grid[1024];
extern const uint16_t mr_iq3_xxs_grid[256]; /* of 4, 12, 20, 28, 36, 44, 52, 62 */
extern const uint16_t mr_iq3_s_grid[512];   /* of 1, 3, 5 … 15 */

#endif
