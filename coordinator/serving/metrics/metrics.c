// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/metrics/metrics.h"

#include <string.h>

#include "coordinator/serving/metrics/metrics_internal.h"
#include "engine/base/mem.h"

const double mr_histogram_bounds[MR_HISTOGRAM_BUCKETS] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                          0.5,    1,     2.5,    5,     10,   25,    50,   100};

const metric_desc metric_descs[MR_METRIC_COUNT] = {
#define MR_METRIC(id, kind, name, help, ...) {METRIC_##kind, name, help, {__VA_ARGS__}},
#include "coordinator/serving/metrics/metrics.def"
#undef MR_METRIC
};

mr_status mr_metrics_create(mr_metrics **out, mr_err *err) {
    mr_metrics *m = mr_alloc(sizeof *m);
    if (!m)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for metrics");
    mr_mutex_init(&m->lock);
    mr_mutex_init(&m->group_lock);
    *out = m;
    return MR_OK;
}

void mr_metrics_destroy(mr_metrics *m) {
    if (!m)
        return;
    for (int id = 0; id < MR_METRIC_COUNT; id++)
        metric_series_destroy_all(atomic_load(&m->first[id]));
    mr_metrics_group_destroy(m->group);
    mr_mutex_deinit(&m->group_lock);
    mr_mutex_deinit(&m->lock);
    mr_free(m);
}

/* --- Finding and making series ----------------------------------------------------------------------------------- */

static int32_t label_count(mr_metric_id id) {
    int32_t n = 0;
    while (metric_descs[id].labels[n])
        n++;
    return n;
}

static const char *label_or_empty(const mr_labels *labels, int32_t i) {
    return labels->values[i] ? labels->values[i] : "";
}

/* FNV-1a over the id and the values, the zeros at their ends included. */
static uint32_t hash_of(mr_metric_id id, const mr_labels *labels) {
    uint32_t h = 2166136261u ^ (uint32_t)id;
    for (int32_t i = 0; i < label_count(id); i++) {
        const char *c = label_or_empty(labels, i);
        do
            h = (h ^ (unsigned char)*c) * 16777619u;
        while (*c++);
    }
    return h % METRICS_HASH_SIZE;
}

static metric_series *find(const mr_metrics *m, mr_metric_id id, const mr_labels *labels) {
    const int32_t n = label_count(id);
    metric_series *s = atomic_load_explicit(&m->hashed[hash_of(id, labels)], memory_order_acquire);
    for (; s; s = atomic_load_explicit(&s->next_hashed, memory_order_acquire)) {
        int32_t i = 0;
        while (s->id == id && i < n && strcmp(s->labels[i], label_or_empty(labels, i)) == 0)
            i++;
        if (s->id == id && i == n)
            return s;
    }
    return NULL;
}

metric_series *metric_series_create(mr_metric_id id, const mr_labels *labels) {
    const int32_t n = label_count(id);
    size_t bytes = sizeof(metric_series);
    for (int32_t i = 0; i < n; i++)
        bytes += strlen(label_or_empty(labels, i)) + 1;
    metric_series *s = mr_alloc(bytes);
    if (!s)
        return NULL;
    s->id = id;
    char *text = (char *)(s + 1);
    for (int32_t i = 0; i < n; i++) {
        s->labels[i] = text;
        text = stpcpy(text, label_or_empty(labels, i)) + 1;
    }
    if (metric_descs[id].kind != METRIC_HISTOGRAM)
        return s;
    s->buckets = mr_alloc_array(MR_HISTOGRAM_BUCKETS + 1, sizeof *s->buckets);
    if (!s->buckets) {
        mr_free(s);
        return NULL;
    }
    return s;
}

void metric_series_destroy_all(metric_series *s) {
    while (s) {
        metric_series *next = atomic_load(&s->next);
        mr_free(s->buckets);
        mr_free(s);
        s = next;
    }
}

/* The lock is held. */
static metric_series *make_and_link(mr_metrics *m, mr_metric_id id, const mr_labels *labels) {
    metric_series *s = metric_series_create(id, labels);
    if (!s)
        return NULL;
    _Atomic(metric_series *) *bucket = &m->hashed[hash_of(id, labels)];
    atomic_store_explicit(&s->next_hashed, atomic_load_explicit(bucket, memory_order_relaxed), memory_order_relaxed);
    atomic_store_explicit(bucket, s, memory_order_release);
    atomic_store_explicit(m->last[id] ? &m->last[id]->next : &m->first[id], s, memory_order_release);
    m->last[id] = s;
    m->n_series[id]++;
    return s;
}

static metric_series *find_or_make(mr_metrics *m, mr_metric_id id, const mr_labels *labels) {
    static const mr_labels OTHER = {{"other", "other", "other", "other", "other"}};
    metric_series *s = find(m, id, labels);
    if (s)
        return s;
    mr_mutex_lock(&m->lock);
    s = find(m, id, labels);
    if (!s && m->n_series[id] >= MR_METRICS_MAX_SERIES - 1) {
        labels = &OTHER;
        s = find(m, id, labels);
    }
    if (!s)
        s = make_and_link(m, id, labels);
    mr_mutex_unlock(&m->lock);
    return s;
}

/* --- Counting ---------------------------------------------------------------------------------------------------- */

static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

double metric_value(const metric_series *s) {
    return double_of(atomic_load_explicit(&s->value, memory_order_relaxed));
}

void metric_set_value(metric_series *s, double value) {
    atomic_store_explicit(&s->value, bits_of(value), memory_order_relaxed);
}

static void add_to(metric_series *s, double by) {
    uint64_t old = atomic_load_explicit(&s->value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&s->value, &old, bits_of(double_of(old) + by), memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

void mr_metrics_add(mr_metrics *m, mr_metric_id id, mr_labels labels, double by) {
    metric_series *s = m ? find_or_make(m, id, &labels) : NULL;
    MR_ASSERT(metric_descs[id].kind == METRIC_GAUGE || (metric_descs[id].kind == METRIC_COUNTER && by >= 0));
    if (s)
        add_to(s, by);
}

void mr_metrics_set(mr_metrics *m, mr_metric_id id, mr_labels labels, double value) {
    metric_series *s = m ? find_or_make(m, id, &labels) : NULL;
    bool only_up = metric_descs[id].kind == METRIC_COUNTER;
    MR_ASSERT(metric_descs[id].kind != METRIC_HISTOGRAM);
    if (!s)
        return;
    uint64_t old = atomic_load_explicit(&s->value, memory_order_relaxed);
    while ((!only_up || value > double_of(old)) &&
           !atomic_compare_exchange_weak_explicit(&s->value, &old, bits_of(value), memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

void mr_metrics_observe(mr_metrics *m, mr_metric_id id, mr_labels labels, double seconds) {
    metric_series *s = m ? find_or_make(m, id, &labels) : NULL;
    MR_ASSERT(metric_descs[id].kind == METRIC_HISTOGRAM);
    if (!s)
        return;
    int32_t i = 0;
    while (i < MR_HISTOGRAM_BUCKETS && !(seconds <= mr_histogram_bounds[i]))
        i++;
    atomic_fetch_add_explicit(&s->buckets[i], 1, memory_order_relaxed);
    add_to(s, seconds);
}

void mr_metrics_read_histogram(const mr_metrics *m, mr_metric_id id, mr_labels labels, mr_histogram *out) {
    const metric_series *s = m ? find(m, id, &labels) : NULL;
    *out = (mr_histogram){.sum = 0};
    if (!s)
        return;
    out->sum = metric_value(s);
    for (int32_t i = 0; i <= MR_HISTOGRAM_BUCKETS; i++)
        out->n[i] = atomic_load_explicit(&s->buckets[i], memory_order_relaxed);
}
