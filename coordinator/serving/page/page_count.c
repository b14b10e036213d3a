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

static void count_stage(const mr_page_stage *s, const char *name, mr_metrics *m) {
    char rank[NUMBER_BYTES], first[NUMBER_BYTES], last[NUMBER_BYTES];
    const mr_labels self = {{name}};
    mr_metrics_set(m, MR_METRIC_STAGE,
                   (mr_labels){{name, s->host, number(s->rank, rank), number(s->first_layer, first),
                                number(s->last_layer - 1, last)}},
                   1);
    for (int i = 0; i < MR_PHASE_COUNT; i++)
        mr_metrics_set(m, MR_METRIC_STAGE_SECONDS, (mr_labels){{name, mr_phase_name((mr_phase)i)}},
                       (double)s->ns[i] / 1e9);
    mr_metrics_set(m, MR_METRIC_STAGE_STEPS, self, (double)s->n_steps);
    mr_metrics_set(m, MR_METRIC_STAGE_ROWS, self, (double)s->n_rows);
    mr_metrics_set(m, MR_METRIC_STAGE_BYTES, (mr_labels){{name, "in"}}, (double)s->in_bytes);
    mr_metrics_set(m, MR_METRIC_STAGE_BYTES, (mr_labels){{name, "out"}}, (double)s->out_bytes);
    mr_metrics_set(m, MR_METRIC_STAGE_MEMORY, (mr_labels){{name, "weights"}}, (double)s->weight_bytes);
    mr_metrics_set(m, MR_METRIC_STAGE_MEMORY, (mr_labels){{name, "kv"}}, (double)s->kv_bytes);
    mr_metrics_set(m, MR_METRIC_STAGE_MEMORY, (mr_labels){{name, "work"}}, (double)s->work_bytes);
    if (s->n_expert_uses > 0) {
        mr_metrics_set(m, MR_METRIC_STAGE_EXPERT_USES, (mr_labels){{name, "device"}}, (double)s->n_device_expert_uses);
        mr_metrics_set(m, MR_METRIC_STAGE_EXPERT_USES, (mr_labels){{name, "host"}},
                       (double)(s->n_expert_uses - s->n_device_expert_uses));
        mr_metrics_set(m, MR_METRIC_STAGE_EXPERT_SWAPS, self, (double)s->n_expert_swaps);
    }
    if (s->step_s > 0) {
        mr_metrics_set(m, MR_METRIC_STAGE_STEP_ROWS, self, s->step_rows);
        mr_metrics_set(m, MR_METRIC_STAGE_STEP_SECONDS, (mr_labels){{name, "measured"}}, s->step_s);
    }
    if (s->predicted_s > 0)
        mr_metrics_set(m, MR_METRIC_STAGE_STEP_SECONDS, (mr_labels){{name, "predicted"}}, s->predicted_s);
}

void mr_page_count(const mr_page_stats *stats, mr_metrics *m) {
    char name[NUMBER_BYTES];
    mr_metrics_set(m, MR_METRIC_BUILD, (mr_labels){{stats->version, stats->model}}, 1);
    set(m, MR_METRIC_READY, stats->state == MR_PAGE_READY);
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
    for (int32_t i = 0; i < stats->n_stages; i++)
        count_stage(&stats->stages[i], number(i, name), m);
}

void mr_page_count_latency(void *metrics, bool is_first, int64_t ns) {
    mr_metrics_observe(metrics, is_first ? MR_METRIC_FIRST_TOKEN_SECONDS : MR_METRIC_NEXT_TOKEN_SECONDS,
                       (mr_labels){{0}}, (double)ns / 1e9);
}
