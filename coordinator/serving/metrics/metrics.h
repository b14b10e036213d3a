/* coordinator/serving/metrics/metrics.h - the metrics of the server, for Prometheus and for the page. metrics.def lists
 * the metrics. Each metric has one series for each set of label values that was ever used.
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

/* Appends all metrics in the text format of Prometheus: Content-Type "text/plain; version=0.0.4; charset=utf-8". */
MR_MUST_USE mr_status mr_metrics_write(const mr_metrics *m, mr_text_buf *out, mr_err *err);

#endif
