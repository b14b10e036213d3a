/* coordinator/serving/metrics/metrics_group.c - groups of series that take the place of each other as a whole. Series
 * that threads find without a lock can never be freed, so those that go again are kept apart: a group is made by one
 * thread, and one pointer shows it. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/metrics/metrics_internal.h"
#include "engine/base/mem.h"

mr_status mr_metrics_group_create(mr_metrics_group **out, mr_err *err) {
    mr_metrics_group *g = mr_alloc(sizeof *g);
    if (!g)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a group of metrics");
    *out = g;
    return MR_OK;
}

void mr_metrics_group_destroy(mr_metrics_group *g) {
    if (!g)
        return;
    for (int id = 0; id < MR_METRIC_COUNT; id++)
        metric_series_destroy_all(g->first[id]);
    mr_free(g);
}

void mr_metrics_group_set(mr_metrics_group *g, mr_metric_id id, mr_labels labels, double value) {
    MR_ASSERT(metric_descs[id].kind != METRIC_HISTOGRAM);
    metric_series *s = metric_series_create(id, &labels);
    if (!s) {
        g->lacks_memory = true;
        return;
    }
    metric_set_value(s, value);
    if (g->last[id])
        atomic_store_explicit(&g->last[id]->next, s, memory_order_relaxed);
    else
        g->first[id] = s;
    g->last[id] = s;
}

static metric_series *next_of(const metric_series *s) {
    return atomic_load_explicit(&s->next, memory_order_relaxed);
}

static bool has_same_labels(const metric_series *a, const metric_series *b) {
    int32_t i = 0;
    while (metric_descs[a->id].labels[i] && strcmp(a->labels[i], b->labels[i]) == 0)
        i++;
    return !metric_descs[a->id].labels[i];
}

/* Looks for the series with the same labels from `from` on, then from the first one. NULL: there is none. */
static const metric_series *partner(const metric_series *s, const metric_series *from, const metric_series *first) {
    for (const metric_series *at = from; at; at = next_of(at))
        if (has_same_labels(s, at))
            return at;
    for (const metric_series *at = first; at && at != from; at = next_of(at))
        if (has_same_labels(s, at))
            return at;
    return NULL;
}

/* Both groups are filled in the same order, so the partner of the next series mostly is the next one. */
static void keep_totals(mr_metrics_group *g, const mr_metrics_group *former) {
    for (int id = 0; id < MR_METRIC_COUNT; id++) {
        const metric_series *at = former->first[id];
        for (metric_series *s = g->first[id]; s && metric_descs[id].kind == METRIC_COUNTER; s = next_of(s)) {
            const metric_series *old = partner(s, at, former->first[id]);
            if (old && metric_value(old) > metric_value(s))
                metric_set_value(s, metric_value(old));
            at = old ? next_of(old) : at;
        }
    }
}

mr_status mr_metrics_replace(mr_metrics *m, mr_metrics_group *g, bool goes_on, mr_err *err) {
    if (g->lacks_memory) {
        mr_metrics_group_destroy(g);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for metrics");
    }
    mr_mutex_lock(&m->group_lock);
    mr_metrics_group *former = m->group;
    if (goes_on && former)
        keep_totals(g, former);
    m->group = g;
    mr_mutex_unlock(&m->group_lock);
    mr_metrics_group_destroy(former);
    return MR_OK;
}
