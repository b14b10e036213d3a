/* coordinator/session/session_ways.c - the ways of a session's activations: by what the ranks said in their hellos and
 * have measured, or by the devices that the threads of this process take. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/session_ways.h"

#include <inttypes.h>

#include "coordinator/planning/hop_ways.h"
#include "engine/base/mem.h"
#include "proto/nccl/nccl_carrier.h"

static mr_way wish_of(const mr_options *o) {
    static const mr_way ways[] = {MR_WAY_AUTO, MR_WAY_HOST, MR_WAY_POINTERS, MR_WAY_NCCL}; /* as --link lists them */
    return ways[mr_options_number(o, MR_OPTION_LINK)];
}

uint32_t mr_session_ways_to_measure(const mr_session *s) {
    mr_way wish = wish_of(s->options);
    bool may_hold = mr_devices_may_hold_layers(&s->devices) || s->cluster.n_ranks > 1; /* others may have devices */
    bool has_layers = s->gpu_layers != 0 && may_hold;
    uint32_t all = (1u << MR_WAYS) - 1;
    return !has_layers ? 0 : wish == MR_WAY_AUTO ? all : 1u << wish;
}

/* The rows of a decode step of the sequences that the plan is for. Steps of prompts are longer, but there are fewer. */
static double usual_rows(const mr_session *s) {
    const mr_planner_config *planner = &s->facts.planner;
    double rows = (double)planner->n_sequences / s->plan.n_stages;
    return planner->objective == MR_OBJECTIVE_LATENCY || rows < 1 ? 1 : rows;
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
    s->plan.n_partitions = mr_model_partitions(&s->info);
    const mr_ways_desc desc = {links, n, s->facts.known, usual_rows(s), wish_of(s->options)};
    mr_status status = mr_plan_choose_ways(&s->plan, &desc, err);
    mr_free(links);
    return status;
}

void mr_session_take_ways(mr_session *s, const mr_job *job) {
    for (int32_t i = 0; i + 1 < s->plan.n_stages; i++)
        s->plan.stages[i].way = mr_job_stage_report(job, i)->way;
}

/* --- Texts ------------------------------------------------------------------------------------------------------- */

/* "0.012 ms, 8100 MB/s", or why there are no figures. */
static void figures_text(const mr_way_facts *w, char out[MR_WAY_WHY_BYTES + 32]) {
    char ms[OUTPUT_ROUNDED_TEXT], speed[OUTPUT_ROUNDED_TEXT];
    if (mr_way_facts_works(w))
        snprintf(out, MR_WAY_WHY_BYTES + 32, "%s ms, %s MB/s", mr_output_rounded(1e3 * w->link.latency_s, ms),
                 mr_output_rounded(1e-6 * w->link.bytes_per_second, speed));
    else
        snprintf(out, MR_WAY_WHY_BYTES + 32, "fails: %s", w->why);
}

/* What was measured of a way of the hop from stage i to the next one; NULL: nothing. */
static const mr_way_facts *measured(const mr_session *s, int32_t i, mr_way way) {
    const mr_cluster_facts *f = s->facts.known;
    return f && mr_hop_is_between_devices(&s->plan, i)
               ? mr_cluster_facts_way(f, s->plan.stages[i].rank, s->plan.stages[i + 1].rank, way)
               : NULL;
}

/* " (0.012 ms, 8100 MB/s as measured; host 0.050 ms, 3200 MB/s)": the figures of the way, and of those beside it. */
static bool print_figures(const mr_session *s, int32_t i, mr_text_buf *out) {
    char text[MR_WAY_WHY_BYTES + 32];
    mr_way own = s->plan.stages[i].way;
    const mr_way_facts *w = measured(s, i, own);
    bool ok = true, is_first = true;
    if (w) {
        figures_text(w, text);
        ok = mr_output_printf(out, " (%s as measured", text);
        is_first = false;
    }
    for (int32_t way = MR_WAYS - 1; way >= 0 && ok; way--) {
        w = way != (int32_t)own ? measured(s, i, (mr_way)way) : NULL;
        if (!w)
            continue;
        figures_text(w, text);
        ok = mr_output_printf(out, "%s%s %s", is_first ? " (" : "; ", mr_way_name((mr_way)way), text);
        is_first = false;
    }
    return ok && (is_first || mr_output_printf(out, ")"));
}

bool mr_session_print_ways(const mr_session *s, mr_text_buf *out) {
    bool ok = true;
    for (int32_t i = 0; i + 1 < s->plan.n_stages && ok; i++) {
        const mr_plan_stage *stage = &s->plan.stages[i];
        if (stage->device_layers == 0 && stage[1].device_layers == 0)
            continue;
        bool by_host = stage->way == MR_WAY_HOST;
        ok = mr_output_printf(out, "stage %" PRId32 " to stage %" PRId32 ": activations %s%s", i, i + 1,
                              by_host ? "through the host" : "by ", by_host ? "" : mr_way_name(stage->way)) &&
             print_figures(s, i, out) && mr_output_printf(out, "\n");
    }
    return ok;
}

json_t *mr_session_ways_json(const mr_session *s, int32_t i) {
    json_t *ways = json_object();
    for (int32_t way = 0; way < MR_WAYS; way++) {
        const mr_way_facts *w = measured(s, i, (mr_way)way);
        if (w)
            json_object_set_new(ways, mr_way_name((mr_way)way),
                                mr_way_facts_works(w) ? json_pack("{s:f, s:f}", "latency_s", w->link.latency_s,
                                                                  "bytes_per_second", w->link.bytes_per_second)
                                                      : json_pack("{s:s}", "why", w->why));
    }
    if (json_object_size(ways) > 0)
        return ways;
    json_decref(ways);
    return NULL;
}
