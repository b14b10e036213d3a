/* coordinator/serving/metrics/metrics_write.c - metrics as Prometheus reads them. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/metrics/metrics_internal.h"
#include "engine/text/utf8.h"

/* A buffer that remembers that memory ran out. */
typedef struct writer {
    mr_text_buf *out;
    bool ok;
} writer;

static void put(writer *w, const char *text) {
    w->ok = w->ok && mr_text_buf_append(w->out, text, strlen(text));
}

static void put_byte(writer *w, char c) {
    w->ok = w->ok && mr_text_buf_append(w->out, &c, 1);
}

/* The fewest digits that give the same number again. */
static void put_number(writer *w, double value) {
    char text[32];
    if (isnan(value) || isinf(value)) {
        put(w, isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    put(w, text);
}

/* A label's value: backslash, quote and newline get a backslash, and what is no UTF-8 becomes U+FFFD. */
static void put_escaped(writer *w, const char *text) {
    for (size_t n; *text; text += n ? n : 1) {
        n = mr_utf8_char_len(text, strlen(text));
        if (*text == '\\' || *text == '"')
            put_byte(w, '\\');
        if (*text == '\n')
            put(w, "\\n");
        else if (n == 0)
            put(w, MR_UTF8_REPLACEMENT);
        else
            w->ok = w->ok && mr_text_buf_append(w->out, text, n);
    }
}

/* One line: the name and its ending, the labels, and le where it is not NULL. */
static void put_sample(writer *w, const metric_series *s, const char *ending, const char *le, double value) {
    const metric_desc *d = &metric_descs[s->id];
    const char *before = "{";
    put(w, d->name);
    put(w, ending);
    for (int32_t i = 0; d->labels[i]; i++) {
        put(w, before);
        put(w, d->labels[i]);
        put(w, "=\"");
        put_escaped(w, s->labels[i]);
        put_byte(w, '"');
        before = ",";
    }
    if (le) {
        put(w, before);
        put(w, "le=\"");
        put(w, le);
        put_byte(w, '"');
    }
    put(w, le || d->labels[0] ? "} " : " ");
    put_number(w, value);
    put_byte(w, '\n');
}

/* The count is that of the last bucket, so that both are of one moment. */
static void put_histogram(writer *w, const metric_series *s) {
    uint64_t n = 0;
    for (int32_t i = 0; i <= MR_HISTOGRAM_BUCKETS; i++) {
        char le[32] = "+Inf";
        n += atomic_load_explicit(&s->buckets[i], memory_order_relaxed);
        if (i < MR_HISTOGRAM_BUCKETS)
            snprintf(le, sizeof le, "%g", mr_histogram_bounds[i]);
        put_sample(w, s, "_bucket", le, (double)n);
    }
    put_sample(w, s, "_sum", NULL, metric_value(s));
    put_sample(w, s, "_count", NULL, (double)n);
}

/* The samples of a list of series. */
static void put_series(writer *w, const metric_series *s) {
    for (; s; s = atomic_load_explicit(&s->next, memory_order_acquire)) {
        if (metric_descs[s->id].kind == METRIC_HISTOGRAM)
            put_histogram(w, s);
        else
            put_sample(w, s, "", NULL, metric_value(s));
    }
}

static void put_metric(writer *w, mr_metrics *m, int id) {
    static const char *const KINDS[] = {"counter", "gauge", "histogram"};
    const metric_desc *d = &metric_descs[id];
    const metric_series *s = atomic_load_explicit(&m->first[id], memory_order_acquire);
    const metric_series *grouped = m->group ? m->group->first[id] : NULL;
    if (!s && !grouped)
        return;
    put(w, "# HELP ");
    put(w, d->name);
    put_byte(w, ' ');
    put(w, d->help);
    put(w, "\n# TYPE ");
    put(w, d->name);
    put_byte(w, ' ');
    put(w, KINDS[d->kind]);
    put_byte(w, '\n');
    put_series(w, s);
    put_series(w, grouped);
}

mr_status mr_metrics_write(mr_metrics *m, mr_text_buf *out, mr_err *err) {
    writer w = {.out = out, .ok = true};
    mr_mutex_lock(&m->group_lock); /* all series of the group are of one moment */
    for (int id = 0; id < MR_METRIC_COUNT; id++)
        put_metric(&w, m, id);
    mr_mutex_unlock(&m->group_lock);
    return w.ok ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the text of the metrics");
}
