/* backends/pinned.h - host memory that the queues of several backends read or write: pinned for each of them that can
 * pin it. A backend that cannot copies it all the same, only slower.
 * Owns:    the memory, unless it is borrowed. Borrows: the backends.
 * Threads: caller serialises.
 * Errors:  MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_PINNED_H
#define MR_BACKENDS_PINNED_H

#include "backends/backend.h"

typedef struct mr_pinned {
    uint8_t *data;                       /* [bytes]; of mr_pinned_create: zeroed, and aligned to 64 */
    void *memory;                        /* NULL: borrowed */
    mr_backend *pinned[MR_MAX_BACKENDS]; /* NULL: not pinned for this one */
} mr_pinned;

MR_MUST_USE mr_status mr_pinned_create(const mr_backends *backends, size_t bytes, mr_pinned *out, mr_err *err);
/* Pins memory that the caller owns, and frees only after mr_pinned_destroy. */
void mr_pinned_borrow(const mr_backends *backends, void *host, size_t bytes, mr_pinned *out);
/* All copies have ended. {0} is accepted. */
void mr_pinned_destroy(mr_pinned *p);

#endif
