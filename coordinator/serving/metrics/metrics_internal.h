/* coordinator/serving/metrics/metrics_internal.h - the series behind metrics.h, for the files that group and write
 * them. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_METRICS_METRICS_INTERNAL_H
#define MR_COORDINATOR_SERVING_METRICS_METRICS_INTERNAL_H

#include <stdatomic.h>

#include "coordinator/serving/metrics/metrics.h"
#include "engine/base/thread.h"

typedef enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM } metric_kind;

typedef struct metric_desc {
    metric_kind kind;
    const char *name, *help;
    const char *labels[MR_METRICS_MAX_LABELS + 1]; /* ends with NULL */
} metric_desc;

extern const metric_desc metric_descs[MR_METRIC_COUNT];

typedef struct metric_series metric_series;
struct metric_series {
    mr_metric_id id;
    _Atomic(metric_series *) next;        /* of the metric, in the order of their making */
    _Atomic(metric_series *) next_hashed; /* of the same hash */
    _Atomic(uint64_t) value;              /* the bits of a double; of a histogram the sum */
    _Atomic(uint64_t) *buckets;           /* [MR_HISTOGRAM_BUCKETS + 1], each alone; NULL: no histogram */
    const char *labels[MR_METRICS_MAX_LABELS];
};

enum { METRICS_HASH_SIZE = 512 };

struct mr_metrics {
    mr_mutex lock; /* of making a series; pointers are published with release, and read with acquire */
    _Atomic(metric_series *) hashed[METRICS_HASH_SIZE];
    _Atomic(metric_series *) first[MR_METRIC_COUNT];
    metric_series *last[MR_METRIC_COUNT];
    int32_t n_series[MR_METRIC_COUNT];
    mr_mutex group_lock;     /* held while the group is replaced or written */
    mr_metrics_group *group; /* NULL: none yet */
};

/* Built by one thread and constant from then on, so its series need no hash and no atomics. */
struct mr_metrics_group {
    metric_series *first[MR_METRIC_COUNT], *last[MR_METRIC_COUNT];
    bool lacks_memory; /* a series is missing */
};

/* A new series with copies of the labels; NULL: no memory. */
metric_series *metric_series_create(mr_metric_id id, const mr_labels *labels);
/* Frees a series and all that follow it in its metric. NULL is accepted. */
void metric_series_destroy_all(metric_series *s);
double metric_value(const metric_series *s);
void metric_set_value(metric_series *s, double value);

#endif
