/* coordinator/serving/metrics/metrics.h - the metrics of the server, for Prometheus and for the page. metrics.def lists
 * the metrics. Each metric has one series for each set of label values that was ever used; series that are to go again
 * are set in a group.
 * Owns:    the series and copies of their label values.
 * Threads: thread-safe. Series are found without a lock and counted by atomics, so the numbers that mr_metrics_write
 *          reads are not all of the same moment. create and destroy: the caller serialises.
 * Errors:  counting never fails: without memory for a new series, the value is dropped. A metric has at most
 *          MR_METRICS_MAX_SERIES series; values of further series are counted under the label values "other".
 * Source:  the text format of Prometheus, version 0.0.4. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_METRICS_METRICS_H
#define MR_COORDINATOR_SERVING_METRICS_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/buffers.h"

typedef enum mr_metric_id {
#define MR_METRIC(id, ...) MR_METRIC_##id,
#include "coordinator/serving/metrics/metrics.def"
#undef MR_METRIC
    MR_METRIC_COUNT,
} mr_metric_id;

enum { MR_METRICS_MAX_LABELS = 5, MR_METRICS_MAX_SERIES = 8192, MR_HISTOGRAM_BUCKETS = 17 };

/* The values of the labels of a metric, in the order of metrics.def; {{0}} for a metric without labels. The functions
 * below do not keep the pointers. */
typedef struct mr_labels {
    const char *values[MR_METRICS_MAX_LABELS];
} mr_labels;

typedef struct mr_metrics mr_metrics;

MR_MUST_USE mr_status mr_metrics_create(mr_metrics **out, mr_err *err);
void mr_metrics_destroy(mr_metrics *m);

/* With m NULL, the counting functions do nothing. */

/* Adds to a counter (by >= 0) or to a gauge. */
void mr_metrics_add(mr_metrics *m, mr_metric_id id, mr_labels labels, double by);
/* Sets a gauge, or a counter whose total is kept elsewhere. A total that is less than before is ignored. */
void mr_metrics_set(mr_metrics *m, mr_metric_id id, mr_labels labels, double value);
/* Adds a value to a histogram. */
void mr_metrics_observe(mr_metrics *m, mr_metric_id id, mr_labels labels, double seconds);

/* The upper bounds of the buckets in seconds: ascending, the same for all histograms. One more bucket is above the last
 * bound. */
extern const double mr_histogram_bounds[MR_HISTOGRAM_BUCKETS];

typedef struct mr_histogram {
    uint64_t n[MR_HISTOGRAM_BUCKETS + 1]; /* number of values in each bucket; not cumulative */
    double sum;
} mr_histogram;

/* Reads a histogram; zeros if nothing was observed. */
void mr_metrics_read_histogram(const mr_metrics *m, mr_metric_id id, mr_labels labels, mr_histogram *out);

/* --- Series that go again --- */

/* Series that show one state of the server together, and that the next state may not have: those of the stages of a
 * plan. Each state is set as a whole, and takes the place of the one before:
 *
 *     mr_metrics_group_create(&g, err);
 *     mr_metrics_group_set(g, MR_METRIC_STAGE_STEPS, (mr_labels){{"0"}}, 7);
 *     mr_metrics_replace(m, g, false, err);
 *
 * mr_metrics_write finds all series of one group, and none of another. A metric should be set either so or by the
 * functions above. Threads: a group is for one thread at a time. */
typedef struct mr_metrics_group mr_metrics_group;

MR_MUST_USE mr_status mr_metrics_group_create(mr_metrics_group **out, mr_err *err);
/* Only for a group that mr_metrics_replace did not get. NULL is accepted. */
void mr_metrics_group_destroy(mr_metrics_group *g);
/* Adds a series to the group: a gauge or a counter, with labels that the metric does not have in the group yet. If
 * memory runs out, mr_metrics_replace says so. */
void mr_metrics_group_set(mr_metrics_group *g, mr_metric_id id, mr_labels labels, double value);
/* Any thread: shows the group in place of the one before. Takes g over, also with an error. goes_on: the counters of
 * both groups have the same beginning, so that a total that is less than before stays as it was. MR_E_NO_MEMORY: the
 * group is not whole; the one before stays. */
MR_MUST_USE mr_status mr_metrics_replace(mr_metrics *m, mr_metrics_group *g, bool goes_on, mr_err *err);

/* --- Text --- */

/* Appends all metrics in the text format of Prometheus: Content-Type "text/plain; version=0.0.4; charset=utf-8". */
MR_MUST_USE mr_status mr_metrics_write(mr_metrics *m, mr_text_buf *out, mr_err *err);

#endif
