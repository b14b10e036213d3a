/* coordinator/serving/metrics/metrics.h - what the server counts, for Prometheus and for the page: the metrics of
 * metrics.def, each with one series for each set of label values that was ever used.
 * Owns:    the series and copies of their label values.
 * Threads: thread-safe; series are found without a lock and counted by atomics. A writer sees each number as it is at
 *          some moment, not all at one moment. create and destroy: the caller serialises.
 * Errors:  counting never fails: what finds no memory is not counted. A metric has MR_METRICS_MAX_SERIES series at
 *          most; what would be one more is counted under the label values "other".
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

/* Values of the labels that metrics.def names, in its order; {{0}} where it names none. Read during the call only. */
typedef struct mr_labels {
    const char *values[MR_METRICS_MAX_LABELS];
} mr_labels;

typedef struct mr_metrics mr_metrics;

MR_MUST_USE mr_status mr_metrics_create(mr_metrics **out, mr_err *err);
void mr_metrics_destroy(mr_metrics *m);

/* Counting; a NULL m is accepted, and nothing is counted. */

/* A counter goes up; a gauge moves. */
void mr_metrics_add(mr_metrics *m, mr_metric_id id, mr_labels labels, double by);
/* Of a gauge: what it is now. Of a counter whose total is kept elsewhere: the total; a smaller one than before is
 * ignored. */
void mr_metrics_set(mr_metrics *m, mr_metric_id id, mr_labels labels, double value);
/* One more value of a histogram, in seconds. */
void mr_metrics_observe(mr_metrics *m, mr_metric_id id, mr_labels labels, double seconds);

/* Bounds of the buckets, in seconds: ascending, the same for all histograms; above the last is one bucket more. */
extern const double mr_histogram_bounds[MR_HISTOGRAM_BUCKETS];

typedef struct mr_histogram {
    uint64_t n[MR_HISTOGRAM_BUCKETS + 1]; /* values of each bucket alone */
    double sum;
} mr_histogram;

/* What was observed; zeros where nothing was. */
void mr_metrics_read_histogram(const mr_metrics *m, mr_metric_id id, mr_labels labels, mr_histogram *out);

/* Appends all of them as Prometheus reads them: Content-Type "text/plain; version=0.0.4; charset=utf-8".
 * MR_E_NO_MEMORY. */
MR_MUST_USE mr_status mr_metrics_write(const mr_metrics *m, mr_text_buf *out, mr_err *err);

#endif
