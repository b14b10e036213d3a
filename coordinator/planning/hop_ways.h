/* coordinator/planning/hop_ways.h - the way that activations take from each stage to the next one (proto/ways.h), by
 * what the ranks say of their devices and by what they have measured. When the stages are loaded, the two ends of a hop
 * try the way, and go through the hosts where it fails (proto/device_link.h).
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_HOP_WAYS_H
#define MR_COORDINATOR_PLANNING_HOP_WAYS_H

#include "coordinator/planning/cluster_facts.h"
#include "coordinator/planning/plan.h"

/* What a rank says of links from its device. Zeros: it has no device for layers. */
typedef struct mr_rank_links {
    bool has_device;
    uint64_t uuid[2];      /* of the device; equal on two ranks: they share it */
    uint32_t nccl_version; /* 0: there is no NCCL */
    bool device_pointers;  /* the MPI library takes addresses of devices */
} mr_rank_links;

/* Whether the activations of the hop from a stage to the next one come from a device and go to a device. */
bool mr_hop_is_between_devices(const mr_plan *plan, int32_t stage);
/* Whether two ranks with devices can have a way, by what they say. */
bool mr_way_is_possible(mr_way way, const mr_rank_links *from, const mr_rank_links *to);

/* By what the ways are chosen. */
typedef struct mr_ways_desc {
    const mr_rank_links *links; /* [n_ranks]; NULL: nothing is known */
    int32_t n_ranks;
    const mr_cluster_facts *facts; /* whose ways were measured; NULL: none were */
    double rows;                   /* of the steps for which a way should be fast */
    mr_way wish;
} mr_ways_desc;

/* Chooses the way of every hop. wish: MR_WAY_AUTO takes the way that is the fastest as measured. Where nothing was
 * measured, NCCL comes first, then addresses of devices, then the hosts. Another wish holds for the hops between
 * devices, and stages must have it. MR_E_UNSUPPORTED names the ranks that cannot. */
MR_MUST_USE mr_status mr_plan_choose_ways(mr_plan *plan, const mr_ways_desc *desc, mr_err *err);
/* What was measured of the way of the hop from a stage to the next one; NULL: nothing, or the hop is not between
 * devices. */
const mr_link_facts *mr_hop_measured(const mr_plan *plan, const mr_cluster_facts *facts, int32_t stage);

#endif
