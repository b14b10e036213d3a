/* tests/support/wrong_bits.h - makes a backend give other bits: from now on the lowest bit of the first byte that is
 * read behind a program changes, if the first node of the program has this op and type of the tensor in in[0] (for
 * ops on keys: of the keys). For the digest of a backend, whose programs have one node.
 * Threads: caller serialises; one backend at a time, which may be destroyed before the end. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_WRONG_BITS_H
#define MR_TESTS_SUPPORT_WRONG_BITS_H

#include "backends/backend.h"

/* type: MR_TYPE_FILE_COUNT for any. */
void wrong_bits_begin(mr_backend *be, mr_op op, int32_t type);
void wrong_bits_end(void);

#endif
