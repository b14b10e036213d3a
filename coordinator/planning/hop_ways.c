/* coordinator/planning/hop_ways.c - chooses the way of each hop: the one that is the fastest as measured, or else by
 * rule: NCCL where both ranks have the same version of it and different devices, then addresses of devices, then the
 * hosts. */
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
    /* Likewise the sum over neurons. */
    bool sums_neurons = plan->n_partitions == 0 || from->cold_partitions < plan->n_partitions;
    return stage + 1 < plan->n_stages && !plan->synthetic && ends_on_device && sums_on_device && sums_neurons &&
           to->device_layers > 0;
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

bool mr_way_is_possible(mr_way way, const mr_rank_links *from, const mr_rank_links *to) {
    char reason[REASON_BYTES];
    judge(way, from, to, reason);
    return reason[0] == 0;
}

/* A hop between devices. */
typedef struct hop {
    const mr_ways_desc *desc;
    int32_t from, to; /* ranks */
    const mr_rank_links *a, *b;
} hop;

static const mr_way_facts *measured(const hop *h, mr_way way) {
    const mr_cluster_facts *f = h->desc->facts;
    return f && h->from < f->n_ranks && h->to < f->n_ranks ? mr_cluster_facts_way(f, h->from, h->to, way) : NULL;
}

/* Writes why the hop cannot have the way; "": it can. Two ranks that have measured it need not say so. */
static void judge_hop(const hop *h, mr_way way, char reason[REASON_BYTES]) {
    const mr_way_facts *w = way == MR_WAY_HOST ? NULL : measured(h, way);
    bool is_own = w && w->from == h->from && w->to == h->to;
    reason[0] = 0;
    if (is_own && w->why[0])
        snprintf(reason, REASON_BYTES, "%s", w->why);
    else if (!is_own)
        judge(way, h->a, h->b, reason);
}

/* The fastest of the ways that were measured; MR_WAYS: none was. */
static mr_way fastest(const hop *h) {
    char reason[REASON_BYTES];
    mr_way best = MR_WAYS;
    double least = 0;
    for (int32_t way = MR_WAYS - 1; way >= 0; way--) {
        const mr_way_facts *w = measured(h, (mr_way)way);
        judge_hop(h, (mr_way)way, reason);
        if (!mr_way_facts_works(w) || reason[0])
            continue;
        double seconds = mr_link_facts_seconds(&w->link, h->desc->rows * h->desc->facts->row_bytes);
        if (best == MR_WAYS || seconds < least) {
            best = (mr_way)way;
            least = seconds;
        }
    }
    return best;
}

static mr_status choose(const hop *h, mr_way *out, mr_err *err) {
    char reason[REASON_BYTES];
    mr_way wish = h->desc->wish, way = wish;
    if (wish == MR_WAY_AUTO) {
        way = fastest(h);
        *out = way;
        if (way != MR_WAYS)
            return MR_OK;
        way = MR_WAY_NCCL;
    }
    judge_hop(h, way, reason);
    if (reason[0] && wish != MR_WAY_AUTO)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "--link %s: ranks %" PRId32 " and %" PRId32 " cannot: %s; hint: --link auto",
                          mr_way_name(wish), h->from, h->to, reason);
    for (; reason[0] && way > MR_WAY_HOST; judge_hop(h, way, reason))
        way--;
    *out = way;
    return MR_OK;
}

mr_status mr_plan_choose_ways(mr_plan *plan, const mr_ways_desc *desc, mr_err *err) {
    static const mr_rank_links nothing = {0};
    mr_status status = MR_OK;
    plan->must_ways = desc->wish == MR_WAY_NCCL || desc->wish == MR_WAY_POINTERS;
    for (int32_t i = 0; i < plan->n_stages && status == MR_OK; i++) {
        plan->stages[i].way = MR_WAY_HOST;
        if (desc->wish == MR_WAY_HOST || !mr_hop_is_between_devices(plan, i))
            continue;
        int32_t from = plan->stages[i].rank, to = plan->stages[i + 1].rank;
        const hop h = {.desc = desc,
                       .from = from,
                       .to = to,
                       .a = desc->links && from < desc->n_ranks ? &desc->links[from] : &nothing,
                       .b = desc->links && to < desc->n_ranks ? &desc->links[to] : &nothing};
        status = choose(&h, &plan->stages[i].way, err);
    }
    return status;
}

const mr_link_facts *mr_hop_measured(const mr_plan *plan, const mr_cluster_facts *facts, int32_t stage) {
    if (!mr_hop_is_between_devices(plan, stage))
        return NULL;
    const mr_plan_stage *s = &plan->stages[stage];
    const mr_way_facts *w = mr_cluster_facts_way(facts, s->rank, s[1].rank, s->way);
    return mr_way_facts_works(w) ? &w->link : NULL;
}
