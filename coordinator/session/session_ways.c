/* coordinator/session/session_ways.c - the ways of a session's activations: by what the ranks said in their hellos, or
 * by the devices that the threads of this process take. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/hop_ways.h"
#include "coordinator/session/session.h"
#include "engine/base/mem.h"
#include "proto/nccl/nccl_carrier.h"

static mr_way wish_of(const mr_options *o) {
    static const mr_way ways[] = {MR_WAY_AUTO, MR_WAY_HOST, MR_WAY_POINTERS, MR_WAY_NCCL}; /* as --link lists them */
    return ways[mr_options_number(o, MR_OPTION_LINK)];
}

/* Stages of this process take its devices in turn. Numbers stand for their uuids. */
static void describe_threads(const mr_session *s, mr_rank_links *out) {
    int32_t n_devices = mr_devices_count(&s->devices);
    uint32_t version = 0;
    mr_err ignored;
    for (int32_t i = 0; i < s->plan.n_stages; i++) {
        if (s->plan.stages[i].device_layers == 0 || n_devices == 0)
            continue;
        if (version == 0 && mr_nccl_version(&version, &ignored) != MR_OK)
            version = 0;
        int32_t device = s->devices.one_device ? s->devices.one_device : 1 + i % n_devices;
        out[s->plan.stages[i].rank] =
            (mr_rank_links){.has_device = true, .uuid = {(uint64_t)device}, .nccl_version = version};
    }
}

mr_status mr_session_choose_ways(mr_session *s, mr_err *err) {
    bool are_threads = s->cluster.n_ranks == 0;
    int32_t n = are_threads ? MR_MAX_STAGES : s->cluster.n_ranks;
    mr_rank_links *links = mr_alloc_array((size_t)n, sizeof *links);
    if (!links)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for what %d ranks say of links", (int)n);
    if (are_threads && !s->plan.synthetic && s->plan.n_stages > 1)
        describe_threads(s, links);
    for (int32_t i = 0; i < n && !are_threads; i++)
        links[i] = mr_session_cluster_rank(&s->cluster, i)->links;
    mr_status status = mr_plan_choose_ways(&s->plan, links, n, wish_of(s->options), err);
    mr_free(links);
    return status;
}
