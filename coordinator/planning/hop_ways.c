/* coordinator/planning/hop_ways.c - chooses the way of each hop by rule: NCCL where both ranks have the same version of
 * it and different devices, then addresses of devices, then the hosts. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/hop_ways.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { REASON_BYTES = 160 };

bool mr_hop_is_between_devices(const mr_plan *plan, int32_t stage) {
    const mr_plan_stage *from = &plan->stages[stage], *to = from + 1;
    bool ends_on_device = from->device_layers > 0 && from->device_layers == from->last - from->first;
    /* The sum over experts is on the device if it holds any. */
    bool sums_on_device = from->host_experts == 0 || from->device_experts > 0;
    return stage + 1 < plan->n_stages && !plan->synthetic && ends_on_device && sums_on_device && to->device_layers > 0;
}

/* Writes why two ranks cannot have NCCL; "": they can. */
static void judge_nccl(const mr_rank_links *a, const mr_rank_links *b, char reason[REASON_BYTES]) {
    reason[0] = 0;
    if (memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0)
        snprintf(reason, REASON_BYTES, "both use one device, which NCCL does not connect to itself");
    else if (a->nccl_version == 0 || b->nccl_version == 0)
        snprintf(reason, REASON_BYTES, "%s no NCCL (libnccl.so.2)",
                 a->nccl_version   ? "the second one has"
                 : b->nccl_version ? "the first one has"
                                   : "they have");
    else if (a->nccl_version != b->nccl_version)
        snprintf(reason, REASON_BYTES, "their versions of NCCL are %" PRIu32 " and %" PRIu32, a->nccl_version,
                 b->nccl_version);
}

static void judge_pointers(const mr_rank_links *a, const mr_rank_links *b, char reason[REASON_BYTES]) {
    reason[0] = 0;
    if (!a->device_pointers || !b->device_pointers)
        snprintf(reason, REASON_BYTES, "the MPI library does not take addresses of devices");
}

/* Writes why a hop cannot have the way; "": it can. */
static void judge(mr_way way, const mr_rank_links *a, const mr_rank_links *b, char reason[REASON_BYTES]) {
    reason[0] = 0;
    if (way != MR_WAY_HOST && (!a->has_device || !b->has_device))
        snprintf(reason, REASON_BYTES, "they say nothing of devices");
    else if (way == MR_WAY_NCCL)
        judge_nccl(a, b, reason);
    else if (way == MR_WAY_POINTERS)
        judge_pointers(a, b, reason);
}

mr_status mr_plan_choose_ways(mr_plan *plan, const mr_rank_links *links, int32_t n, mr_way wish, mr_err *err) {
    static const mr_rank_links nothing = {0};
    char reason[REASON_BYTES];
    plan->must_ways = wish == MR_WAY_NCCL || wish == MR_WAY_POINTERS;
    for (int32_t i = 0; i < plan->n_stages; i++) {
        plan->stages[i].way = MR_WAY_HOST;
        if (wish == MR_WAY_HOST || !mr_hop_is_between_devices(plan, i))
            continue;
        int32_t from = plan->stages[i].rank, to = plan->stages[i + 1].rank;
        const mr_rank_links *a = links && from < n ? &links[from] : &nothing;
        const mr_rank_links *b = links && to < n ? &links[to] : &nothing;
        mr_way way = wish == MR_WAY_AUTO ? MR_WAY_NCCL : wish;
        judge(way, a, b, reason);
        if (reason[0] && plan->must_ways)
            return mr_err_set(err, MR_E_UNSUPPORTED,
                              "--link %s: ranks %" PRId32 " and %" PRId32 " cannot: %s; hint: --link auto",
                              mr_way_name(wish), from, to, reason);
        for (; reason[0] && way > MR_WAY_HOST; judge(way, a, b, reason))
            way--;
        plan->stages[i].way = way;
    }
    return MR_OK;
}
