/* proto/ways.h - the ways of activations between the stages of two devices (proto/device_link.h).
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_WAYS_H
#define MR_PROTO_WAYS_H

#include <stdint.h>
#include <string.h>

typedef enum mr_way {
    MR_WAY_HOST,     /* through pinned memory of the hosts and the channel */
    MR_WAY_POINTERS, /* the channel takes addresses in the memory of devices */
    MR_WAY_NCCL,     /* NCCL, beside the channel */
    MR_WAYS,
    MR_WAY_AUTO = MR_WAYS, /* the fastest way that both devices have */
} mr_way;

static inline const char *mr_way_name(mr_way way) {
    static const char *const names[] = {"host", "pointers", "nccl", "auto"};
    return way >= 0 && way <= MR_WAY_AUTO ? names[way] : "?";
}

/* The way of this name; MR_WAYS + 1: there is none. */
static inline int32_t mr_way_find(const char *name) {
    int32_t way = 0;
    while (way <= MR_WAY_AUTO && strcmp(mr_way_name((mr_way)way), name) != 0)
        way++;
    return way;
}

#endif
