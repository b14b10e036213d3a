// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/measure.h"

#include <inttypes.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "worker/lobby/measure_trial.h"

enum {
    MAX_TRIALS = 16,    /* of one kind */
    MOST_LAYERS = 4,    /* of one trial: a step of many rows is not to take all the time there is */
    MOST_ROWS = 512,    /* of a step */
    MOST_OUT_ROWS = 64, /* that want a token */
    MOST_ROUNDS = 15,
    SAMPLE_ROWS = 8,
    SAMPLE_RUNS = 9,
    DEFAULT_CACHE_BYTES = 64 << 20, /* where the system does not tell */
};
static const int64_t KIND_NS = 3 * MR_NS_PER_S / 2, ALL_NS = 5 * MR_NS_PER_S, SWEEP_NS = 3 * MR_NS_PER_MS;
/* Of a kind's time: for one step through all its trials, and for all samples of a point. */
static const double LONG_PART = 0.05, POINT_PART = 0.2;

/* The times of one point of a curve. */
typedef struct series {
    int32_t n;
    double seconds[MOST_ROUNDS];
} series;

typedef struct measure {
    const mr_measure_config *config;
    uint8_t *kind; /* [n_layers] */
    trial trials[MAX_TRIALS];
    int32_t n_trials, n_layers; /* of all trials */
    uint64_t free_bytes;        /* this rank's part, as it was before the first trial, without what trials hold */
    int64_t budget_ns;
    int64_t ran_ns, had_core_ns; /* by all trials; the part of it in which this thread had a core */
} measure;

/* --- Series ------------------------------------------------------------------------------------------------------ */

static void series_add(series *s, double seconds) {
    int32_t i = s->n++;
    for (; i > 0 && s->seconds[i - 1] > seconds; i--)
        s->seconds[i] = s->seconds[i - 1];
    s->seconds[i] = seconds;
}

/* The k-th quarter of the times; 0 while there are none. */
static double series_quarter(const series *s, int32_t k) {
    return s->n > 0 ? s->seconds[(s->n - 1) * k / 4] : 0;
}

/* The median: a run too has steps that something else disturbs. */
static double series_median(const series *s) {
    return series_quarter(s, 2);
}

/* A curve of the series of 1, 2, 4 ... rows that have been measured. */
static void make_curve(const series *s, int32_t n, mr_step_times *out) {
    *out = (mr_step_times){0};
    for (int32_t i = 0; i < n && s[i].n > 0; i++) {
        out->rows[out->n] = 1 << i;
        out->seconds[out->n++] = series_median(&s[i]);
    }
}

static int32_t n_points(int32_t max_rows) {
    int32_t n = 0;
    while (n < MR_STEP_TIMES_MAX && 1 << n <= max_rows)
        n++;
    return n;
}

/* --- Trials ------------------------------------------------------------------------------------------------------ */

static size_t last_cache_bytes(void) {
    long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : DEFAULT_CACHE_BYTES;
}

/* The weights of a kind that its trials load together. A stage reads the weights of all its layers before it comes to
 * the first again, so they come from memory unless all of them fit the last cache: the trials take turns, and have more
 * than the cache holds, or all layers of the kind. */
static size_t bytes_wanted(const measure *m) {
    uint64_t cache = last_cache_bytes(), free_part = m->free_bytes / 4;
    return (size_t)(free_part < cache ? free_part : cache);
}

/* All but the first n. */
static void drop_trials(measure *m, int32_t n) {
    while (m->n_trials > n) {
        trial *t = &m->trials[--m->n_trials];
        m->free_bytes += t->bytes;
        m->n_layers -= t->n_layers;
        trial_deinit(t);
    }
}

/* The first layer of a kind at or behind l that has neither embedding nor output matrix beside it, and how many follow
 * it; false: none. */
static bool next_inner(const measure *m, uint8_t kind, int32_t l, mr_layer_range *out) {
    int32_t last = m->config->info->n_layers - 1;
    l = l < 1 ? 1 : l;
    while (l < last && m->kind[l] != kind)
        l++;
    if (l >= last)
        return false;
    *out = (mr_layer_range){l, l + 1};
    while (out->last < last && out->last - out->first < MOST_LAYERS && m->kind[out->last] == kind)
        out->last++;
    return true;
}

/* Where a kind has no inner layer. */
static mr_layer_range outer(const measure *m, uint8_t kind) {
    int32_t l = m->kind[0] == kind ? 0 : m->config->info->n_layers - 1;
    return (mr_layer_range){l, l + 1};
}

/* The trial with the fewest layers stands first. */
static mr_status add_trial(measure *m, mr_layer_range range, int32_t max_rows, mr_err *err) {
    trial *t = &m->trials[m->n_trials], first = m->trials[0];
    mr_status status = trial_init(t, m->config, range, max_rows, m->free_bytes, err);
    if (status != MR_OK)
        return status;
    m->free_bytes -= t->bytes;
    m->n_trials++;
    m->n_layers += t->n_layers;
    if (t->n_layers < first.n_layers) {
        m->trials[0] = *t;
        *t = first;
    }
    return MR_OK;
}

/* As many trials as are wanted, or as memory is there for: one at least. */
static mr_status load_kind(measure *m, uint8_t kind, int32_t max_rows, mr_err *err) {
    const mr_measure_config *c = m->config;
    size_t wanted = bytes_wanted(m), bytes = 0;
    mr_layer_range range = {0, 0};
    mr_status status = MR_OK;
    while (status == MR_OK && m->n_trials < MAX_TRIALS && bytes < wanted && next_inner(m, kind, range.last, &range)) {
        size_t layer = mr_model_layer_bytes(c->gguf, range.first);
        while (range.last - range.first > 1 && bytes + layer * (size_t)(range.last - range.first - 1) >= wanted)
            range.last--;
        bytes += layer * (size_t)(range.last - range.first);
        status = add_trial(m, range, max_rows, err);
        if (status == MR_OK && c->progress)
            c->progress(c->ctx);
    }
    if (status == MR_E_NO_MEMORY && m->n_trials > 0)
        return MR_OK;
    return status == MR_OK && m->n_trials == 0 ? add_trial(m, outer(m, kind), max_rows, err) : status;
}

/* Seconds of a layer in one step through each of the first n trials. */
static mr_status sweep(measure *m, int32_t n, const trial_step *step, double *out_layer_seconds, mr_err *err) {
    double sum = 0, seconds = 0;
    int32_t n_layers = 0;
    int64_t start_ns = mr_clock_now_ns(), start_core_ns = mr_clock_thread_ns();
    mr_status status = MR_OK;
    for (int32_t i = 0; i < n && status == MR_OK; i++) {
        status = trial_run(&m->trials[i], step, &seconds, err);
        sum += seconds;
        n_layers += m->trials[i].n_layers;
    }
    m->ran_ns += mr_clock_now_ns() - start_ns;
    m->had_core_ns += mr_clock_thread_ns() - start_core_ns;
    *out_layer_seconds = sum / n_layers;
    return status;
}

/* --- Layers ------------------------------------------------------------------------------------------------------ */

/* Adds a time to a series, if there is the time for it; guess: what it may be, where the series is empty. What is over
 * soon runs for a moment before, so that caches hold what they would hold in a run of such steps; of what takes long,
 * one trial is enough. */
static mr_status add_sample(measure *m, const trial_step *step, double guess, int64_t end_ns, series *s, mr_err *err) {
    const double unit = (double)MR_NS_PER_S;
    double layer_ns = (s->n > 0 ? series_median(s) : guess) * unit, layer_seconds = 0;
    int32_t n = layer_ns * m->n_layers > LONG_PART * (double)m->budget_ns ? 1 : m->n_trials;
    double need_ns = layer_ns * (n == 1 ? m->trials[0].n_layers : m->n_layers);
    int64_t start_ns = mr_clock_now_ns();
    if (start_ns + (int64_t)need_ns > end_ns || need_ns * s->n > POINT_PART * (double)m->budget_ns)
        return MR_OK;
    mr_status status = MR_OK;
    do
        status = sweep(m, n, step, &layer_seconds, err);
    while (status == MR_OK && mr_clock_now_ns() < start_ns + SWEEP_NS);
    if (status == MR_OK)
        series_add(s, layer_seconds);
    return status;
}

/* The curve of the kind that is loaded, and with out_position the time of a position. The rounds go through all points
 * in turn, so that a disturbance of some moments does not bend the curve. The curve ends where the first round has no
 * time for a point. */
static mr_status measure_layer(measure *m, int32_t max_rows, mr_step_times *out, double *out_position, mr_err *err) {
    series flat[MR_STEP_TIMES_MAX] = {0}, shallow = {0}, deep = {0};
    const trial_step shallow_step = {.n_rows = MEASURE_DEEP_ROWS},
                     deep_step = {.n_rows = MEASURE_DEEP_ROWS, .deep = true};
    int32_t n = n_points(max_rows);
    double ignored;
    mr_status status = sweep(m, m->n_trials, &deep_step, &ignored, err); /* to warm up */
    int64_t end_ns = mr_clock_now_ns() + m->budget_ns;
    for (int round = 0; round < MOST_ROUNDS && status == MR_OK && mr_clock_now_ns() < end_ns; round++) {
        for (int32_t i = 0; i < n && status == MR_OK; i++) {
            double guess = i > 0 ? 2 * series_median(&flat[i - 1]) : 0;
            status = add_sample(m, &(trial_step){.n_rows = 1 << i}, guess, end_ns, &flat[i], err);
            if (flat[i].n == 0)
                n = i;
        }
        if (status == MR_OK && out_position)
            status = add_sample(m, &shallow_step, 0, end_ns, &shallow, err);
        if (status == MR_OK && out_position)
            status = add_sample(m, &deep_step, 0, end_ns, &deep, err);
    }
    make_curve(flat, n, out);
    if (out_position) {
        /* A small difference of large numbers: of times that nothing has disturbed. */
        double more = series_quarter(&deep, 1) - series_quarter(&shallow, 1);
        *out_position = more > 0 ? more / (MEASURE_DEEP_ROWS * (m->trials[0].depth - 1)) : 0;
    }
    return status;
}

/* --- Output ------------------------------------------------------------------------------------------------------ */

/* The last layer with and without tokens; between, the layers that are loaded run, because in a step they come between
 * two readings of the output matrix. */
static mr_status measure_output(measure *m, int32_t max_rows, mr_step_times *out, mr_err *err) {
    const mr_model_info *info = m->config->info;
    series more[MR_STEP_TIMES_MAX] = {0};
    trial tail;
    double with, without, ignored;
    const mr_layer_range last = {info->n_layers - 1, info->n_layers};
    mr_status status = trial_init(&tail, m->config, last, max_rows, m->free_bytes, err);
    while (status == MR_E_NO_MEMORY && m->n_trials > 1) {
        drop_trials(m, m->n_trials - 1);
        status = trial_init(&tail, m->config, last, max_rows, m->free_bytes, err);
    }
    if (status != MR_OK)
        return status;
    int64_t end_ns = mr_clock_now_ns() + m->budget_ns / 2;
    int32_t n = n_points(max_rows);
    status = trial_run(&tail, &(trial_step){.n_rows = 1, .n_out = 1}, &ignored, err); /* to warm up */
    for (int round = 0; round < MOST_ROUNDS && status == MR_OK && (round == 0 || mr_clock_now_ns() < end_ns); round++)
        for (int32_t i = 0; i < n && status == MR_OK && (round == 0 || mr_clock_now_ns() < end_ns); i++) {
            trial_step step = {.n_rows = 1 << i};
            status = sweep(m, m->n_trials, &(trial_step){.n_rows = 1}, &ignored, err);
            if (status == MR_OK)
                status = trial_run(&tail, &step, &without, err);
            step.n_out = step.n_rows;
            if (status == MR_OK)
                status = trial_run(&tail, &step, &with, err);
            if (status == MR_OK)
                series_add(&more[i], with > without ? with - without : 0);
        }
    make_curve(more, n, out);
    trial_deinit(&tail);
    return status;
}

/* --- All --------------------------------------------------------------------------------------------------------- */

static mr_status begin(measure *m, const mr_measure_config *c, int32_t *out_n_kinds, mr_err *err) {
    *m = (measure){.config = c, .free_bytes = trial_free_bytes(c)};
    mr_thread_set_denormals_flushed();
    m->kind = mr_alloc_array((size_t)c->info->n_layers, sizeof *m->kind);
    if (!m->kind)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to measure %" PRId32 " layers", c->info->n_layers);
    return mr_model_layer_kinds(c->gguf, c->info, MR_MAX_LAYER_KINDS, m->kind, out_n_kinds, err);
}

static void end(measure *m) {
    drop_trials(m, 0);
    mr_free(m->kind);
}

static void log_curve(const char *what, int32_t kind, const mr_step_times *t) {
    for (int32_t i = 0; i < t->n; i++)
        mr_log_write(MR_LOG_DEBUG, "worker", "%s %" PRId32 ", %" PRId32 " rows: %.1f us", what, kind, t->rows[i],
                     t->seconds[i] * 1e6);
}

static int64_t budget_ns(const mr_measure_config *c, int32_t n_kinds) {
    int64_t wanted = c->kind_ns > 0 ? c->kind_ns : KIND_NS;
    return wanted < ALL_NS / n_kinds ? wanted : ALL_NS / n_kinds;
}

mr_status mr_measure_sample(const mr_measure_config *config, double *out_seconds, mr_err *err) {
    measure m;
    int32_t n_kinds;
    mr_status status = begin(&m, config, &n_kinds, err);
    mr_layer_range range;
    series times = {0};
    double seconds;
    if (status == MR_OK) {
        if (!next_inner(&m, m.kind[config->info->n_layers / 2], 0, &range))
            range = outer(&m, m.kind[0]);
        range.last = range.first + 1;
        status = add_trial(&m, range, SAMPLE_ROWS, err);
    }
    for (int i = 0; i < 2 * SAMPLE_RUNS && status == MR_OK; i++) {
        status = trial_run(&m.trials[0], &(trial_step){.n_rows = SAMPLE_ROWS}, &seconds, err);
        if (i >= SAMPLE_RUNS)
            series_add(&times, seconds);
    }
    if (status == MR_OK)
        *out_seconds = series_median(&times);
    end(&m);
    return status;
}

mr_status mr_measure_stage_times(const mr_measure_config *config, mr_measured *out, mr_err *err) {
    measure m;
    mr_measured r = {0};
    int32_t max_rows = config->max_rows < MOST_ROWS ? config->max_rows : MOST_ROWS;
    mr_status status = mr_measure_sample(config, &r.sample_s, err);
    if (status != MR_OK)
        return status;
    status = begin(&m, config, &r.n_kinds, err);
    if (status == MR_OK)
        m.budget_ns = budget_ns(config, r.n_kinds);
    for (int32_t k = 0; k < r.n_kinds && status == MR_OK; k++) {
        status = load_kind(&m, (uint8_t)k, max_rows, err);
        if (status == MR_OK)
            status = measure_layer(&m, max_rows, &r.layer[k], k == 0 ? &r.position_s : NULL, err);
        log_curve("layer kind", k, &r.layer[k]);
        if (status == MR_OK && m.kind[config->info->n_layers - 1] == k)
            status = measure_output(&m, max_rows < MOST_OUT_ROWS ? max_rows : MOST_OUT_ROWS, &r.output, err);
        drop_trials(&m, 0);
    }
    if (m.ran_ns > 0)
        r.core_share = m.had_core_ns < m.ran_ns ? (double)m.had_core_ns / (double)m.ran_ns : 1;
    end(&m);
    if (status != MR_OK)
        return status;
    log_curve("output", 0, &r.output);
    mr_log_write(MR_LOG_DEBUG, "worker", "a position: %.3f ns, the quick sample: %.1f us", r.position_s * 1e9,
                 r.sample_s * 1e6);
    *out = r;
    return MR_OK;
}
