/* coordinator/serving/page/page_count.c - sets the metrics for Prometheus from the same statistics that the page
 * shows. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "coordinator/serving/page/page.h"

enum { NUMBER_BYTES = 12 };

static void set(mr_metrics *m, mr_metric_id id, double value) {
    mr_metrics_set(m, id, (mr_labels){{0}}, value);
}

static const char *number(int32_t n, char out[NUMBER_BYTES]) {
    snprintf(out, NUMBER_BYTES, "%d", n);
    return out;
}

static void count_stage(const mr_page_stage *s, const char *name, mr_metrics_group *g) {
    char rank[NUMBER_BYTES], first[NUMBER_BYTES], last[NUMBER_BYTES];
    const mr_labels self = {{name}};
    mr_metrics_group_set(g, MR_METRIC_STAGE,
                         (mr_labels){{name, s->host, number(s->rank, rank), number(s->first_layer, first),
                                      number(s->last_layer - 1, last)}},
                         1);
    for (int i = 0; i < MR_PHASE_COUNT; i++)
        mr_metrics_group_set(g, MR_METRIC_STAGE_SECONDS, (mr_labels){{name, mr_phase_name((mr_phase)i)}},
                             (double)s->ns[i] / 1e9);
    mr_metrics_group_set(g, MR_METRIC_STAGE_STEPS, self, (double)s->n_steps);
    mr_metrics_group_set(g, MR_METRIC_STAGE_ROWS, self, (double)s->n_rows);
    mr_metrics_group_set(g, MR_METRIC_STAGE_BYTES, (mr_labels){{name, "in"}}, (double)s->in_bytes);
    mr_metrics_group_set(g, MR_METRIC_STAGE_BYTES, (mr_labels){{name, "out"}}, (double)s->out_bytes);
    mr_metrics_group_set(g, MR_METRIC_STAGE_MEMORY, (mr_labels){{name, "weights"}}, (double)s->weight_bytes);
    mr_metrics_group_set(g, MR_METRIC_STAGE_MEMORY, (mr_labels){{name, "kv"}}, (double)s->kv_bytes);
    mr_metrics_group_set(g, MR_METRIC_STAGE_MEMORY, (mr_labels){{name, "work"}}, (double)s->work_bytes);
    if (s->n_expert_uses > 0) {
        uint64_t n_device = s->n_device_expert_uses;
        mr_metrics_group_set(g, MR_METRIC_STAGE_EXPERT_USES, (mr_labels){{name, "device"}}, (double)n_device);
        mr_metrics_group_set(g, MR_METRIC_STAGE_EXPERT_USES, (mr_labels){{name, "host"}},
                             (double)(s->n_expert_uses - n_device));
        mr_metrics_group_set(g, MR_METRIC_STAGE_EXPERT_SWAPS, self, (double)s->n_expert_swaps);
    }
    if (s->step_s > 0) {
        mr_metrics_group_set(g, MR_METRIC_STAGE_STEP_ROWS, self, s->step_rows);
        mr_metrics_group_set(g, MR_METRIC_STAGE_STEP_SECONDS, (mr_labels){{name, "measured"}}, s->step_s);
    }
    if (s->predicted_s > 0)
        mr_metrics_group_set(g, MR_METRIC_STAGE_STEP_SECONDS, (mr_labels){{name, "predicted"}}, s->predicted_s);
}

/* What belongs to a plan, and goes with it. */
static mr_status count_plan(const mr_page_stats *stats, uint32_t former_plan, mr_metrics *m, mr_err *err) {
    char name[NUMBER_BYTES];
    mr_metrics_group *g = NULL;
    mr_status status = mr_metrics_group_create(&g, err);
    if (status != MR_OK)
        return status;
    for (int32_t i = 0; i < stats->n_rank_states; i++)
        mr_metrics_group_set(g, MR_METRIC_RANKS, (mr_labels){{stats->ranks[i].state}}, stats->ranks[i].n);
    for (int32_t i = 0; i < stats->n_stages; i++)
        count_stage(&stats->stages[i], number(i, name), g);
    return mr_metrics_replace(m, g, stats->plan == former_plan, err);
}

mr_status mr_page_count(const mr_page_stats *stats, uint32_t former_plan, mr_metrics *m, mr_err *err) {
    if (!m)
        return MR_OK;
    mr_metrics_set(m, MR_METRIC_BUILD, (mr_labels){{stats->version, stats->model}}, 1);
    set(m, MR_METRIC_READY, stats->state == MR_PAGE_READY && !stats->waits_for_memory);
    set(m, MR_METRIC_LOADED, stats->loaded);
    set(m, MR_METRIC_PROMPT_TOKENS, (double)stats->n_prompt_tokens);
    set(m, MR_METRIC_PREFIX_HIT_TOKENS, (double)stats->n_cached_tokens);
    set(m, MR_METRIC_GENERATED_TOKENS, (double)stats->n_generated);
    set(m, MR_METRIC_PREEMPTIONS, (double)stats->n_preempted);
    set(m, MR_METRIC_STEPS, (double)stats->n_steps);
    set(m, MR_METRIC_SEQUENCES_LIVE, stats->n_live);
    set(m, MR_METRIC_SEQUENCES_WAITING, stats->n_waiting);
    set(m, MR_METRIC_SEQUENCES_LIMIT, stats->max_sequences);
    set(m, MR_METRIC_STEPS_OPEN, stats->n_open_steps);
    set(m, MR_METRIC_MICRO_BATCHES, stats->n_micro_batches);
    set(m, MR_METRIC_KV_BLOCKS_LIMIT, stats->n_blocks);
    mr_metrics_set(m, MR_METRIC_KV_BLOCKS, (mr_labels){{"held"}}, stats->n_held_blocks);
    mr_metrics_set(m, MR_METRIC_KV_BLOCKS, (mr_labels){{"cached"}}, stats->n_cached_blocks);
    mr_metrics_set(m, MR_METRIC_KV_BLOCKS, (mr_labels){{"free"}}, stats->n_free_blocks);
    return stats->changes_plan ? MR_OK : count_plan(stats, former_plan, m, err);
}

void mr_page_count_latency(void *metrics, bool is_first, int64_t ns) {
    mr_metrics_observe(metrics, is_first ? MR_METRIC_FIRST_TOKEN_SECONDS : MR_METRIC_NEXT_TOKEN_SECONDS,
                       (mr_labels){{0}}, (double)ns / 1e9);
}
