/* worker/lobby/measure.c - measures curves of time over rows, for each kind of layers and for the output matrix. Trials
 * are small stages (measure_trial.h). The rounds of a measurement visit all points in turn, so that a short disturbance
 * spoils few samples of each point. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/measure.h"

#include <inttypes.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "worker/lobby/measure_internal.h"

enum {
    WIDE_BUDGETS = 2,   /* time budgets of a kind for these points */
    WIDE_ROUNDS = 7,    /* samples of each point with more rows */
    MOST_OUT_ROWS = 64, /* rows of a step that want a token */
    SAMPLE_ROWS = 8,
    SAMPLE_RUNS = 9,
    DEFAULT_CACHE_BYTES = 64 << 20, /* if the system does not tell the size of the last cache */
};
static const int64_t KIND_NS = 3 * MR_NS_PER_S / 2, ALL_NS = 5 * MR_NS_PER_S, SWEEP_NS = 3 * MR_NS_PER_MS,
                     AGAIN_NS = 2 * MR_NS_PER_S;
static const int32_t AGAIN_ROWS[] = {1, 4, 16};
/* Shares of the time budget of a kind. LONG_PART: a step through all trials that takes longer runs one trial only.
 * POINT_PART: most time for all samples of a point. */
static const double LONG_PART = 0.05, POINT_PART = 0.2;

/* --- Series ------------------------------------------------------------------------------------------------------ */

void series_add(series *s, double seconds) {
    int32_t i = s->n++;
    for (; i > 0 && s->seconds[i - 1] > seconds; i--)
        s->seconds[i] = s->seconds[i - 1];
    s->seconds[i] = seconds;
}

double series_quarter(const series *s, int32_t k) {
    return s->n > 0 ? s->seconds[(s->n - 1) * k / 4] : 0;
}

double series_median(const series *s) {
    return series_quarter(s, 2);
}

void series_curve(const series *s, int32_t n, mr_step_times *out) {
    *out = (mr_step_times){0};
    for (int32_t i = 0; i < n && s[i].n > 0; i++) {
        out->rows[out->n] = 1 << i;
        out->seconds[out->n++] = series_median(&s[i]);
    }
}

int32_t measure_points(int32_t max_rows) {
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

/* How many bytes of weights the trials of a kind load together. In a run a stage reads the weights of all its layers
 * before it reads the first layer again, so weights come from memory unless all of them fit the last cache. Therefore
 * the trials take turns and hold more weights than the cache, or all layers of the kind. */
static size_t bytes_wanted(const measure *m) {
    uint64_t cache = last_cache_bytes(), free_part = m->free_bytes / 4;
    return (size_t)(free_part < cache ? free_part : cache);
}

void measure_drop_trials(measure *m, int32_t n) {
    while (m->n_trials > n) {
        trial *t = &m->trials[--m->n_trials];
        m->free_bytes += t->bytes;
        m->n_layers -= t->n_layers;
        trial_deinit(t);
    }
}

bool measure_next_inner(const measure *m, uint8_t kind, int32_t l, mr_layer_range *out) {
    int32_t last = m->config->info->n_layers - 1;
    l = l < 1 ? 1 : l;
    while (l < last && m->kind[l] != kind)
        l++;
    if (l >= last)
        return false;
    *out = (mr_layer_range){l, l + 1};
    while (out->last < last && out->last - out->first < MEASURE_MOST_LAYERS && m->kind[out->last] == kind)
        out->last++;
    return true;
}

mr_layer_range measure_outer(const measure *m, uint8_t kind) {
    int32_t l = m->kind[0] == kind ? 0 : m->config->info->n_layers - 1;
    return (mr_layer_range){l, l + 1};
}

mr_status measure_add_trial(measure *m, mr_layer_range range, int32_t max_rows, mr_err *err) {
    trial *t = &m->trials[m->n_trials], first = m->trials[0];
    const trial_desc desc = {range, max_rows, m->free_bytes, m->on_device, m->host_experts};
    mr_status status = trial_init(t, m->config, &desc, err);
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

/* Loads the trials of a kind: as many as bytes_wanted asks for and memory allows, at least one. */
static mr_status load_trials(measure *m, uint8_t kind, int32_t max_rows, mr_err *err) {
    const mr_measure_config *c = m->config;
    m->max_rows = max_rows;
    size_t wanted = bytes_wanted(m), bytes = 0;
    mr_layer_range range = {0, 0};
    mr_status status = MR_OK;
    while (status == MR_OK && m->n_trials < MEASURE_MAX_TRIALS && bytes < wanted &&
           measure_next_inner(m, kind, range.last, &range)) {
        size_t layer = mr_model_layer_bytes(c->gguf, c->info, range.first);
        while (range.last - range.first > 1 && bytes + layer * (size_t)(range.last - range.first - 1) >= wanted)
            range.last--;
        bytes += layer * (size_t)(range.last - range.first);
        status = measure_add_trial(m, range, max_rows, err);
        if (status == MR_OK && c->progress)
            c->progress(c->ctx);
    }
    if (status == MR_E_NO_MEMORY && m->n_trials > 0)
        return MR_OK;
    return status == MR_OK && m->n_trials == 0 ? measure_add_trial(m, measure_outer(m, kind), max_rows, err) : status;
}

/* With the rows that are wanted, or with MEASURE_MOST_ROWS where memory is short. */
static mr_status load_kind(measure *m, uint8_t kind, mr_err *err) {
    if (m->on_device)
        return measure_load_on_device(m, kind, err);
    mr_status status = load_trials(m, kind, m->config->max_rows, err);
    if (status != MR_E_NO_MEMORY || m->config->max_rows <= MEASURE_MOST_ROWS)
        return status;
    measure_drop_trials(m, 0);
    return load_trials(m, kind, MEASURE_MOST_ROWS, err);
}

/* Runs a step through each of the first n trials. *out_layer_seconds: the mean time of one layer. */
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

/* Adds a sample to a series if the time left allows it. guess: expected seconds of a layer if the series is empty.
 * Short steps are repeated for SWEEP_NS and the last one counts, so that caches hold what they would hold in a run of
 * such steps. Long steps run through one trial only. */
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

/* Measures the points of more than MEASURE_MOST_ROWS rows, behind the first n, within a budget of their own. */
static mr_status measure_wide(measure *m, series *flat, int32_t n, mr_err *err) {
    const int32_t n_all = measure_points(m->max_rows);
    int64_t end_ns = mr_clock_now_ns() + WIDE_BUDGETS * m->budget_ns;
    mr_status status = MR_OK;
    for (int round = 0; round < WIDE_ROUNDS && status == MR_OK; round++)
        for (int32_t i = n; i < n_all && flat[i - 1].n > 0 && status == MR_OK; i++)
            status =
                add_sample(m, &(trial_step){.n_rows = 1 << i}, 2 * series_median(&flat[i - 1]), end_ns, &flat[i], err);
    return status;
}

/* Measures the curve of the loaded kind. out_position: the seconds that one row takes more for each earlier position
 * that it attends to. The rounds visit all points in turn, so that a short disturbance does not bend the curve. The
 * curve ends at the first point for which the first round has no time. */
static mr_status measure_layer(measure *m, int32_t max_rows, mr_step_times *out, double *out_position, mr_err *err) {
    series flat[MR_STEP_TIMES_MAX] = {0}, shallow = {0}, deep = {0};
    const trial_step shallow_step = {.n_rows = MEASURE_DEEP_ROWS},
                     deep_step = {.n_rows = MEASURE_DEEP_ROWS, .deep = true};
    int32_t n = measure_points(max_rows);
    double ignored;
    mr_status status = sweep(m, m->n_trials, &deep_step, &ignored, err); /* to warm up */
    int64_t end_ns = mr_clock_now_ns() + m->budget_ns;
    for (int round = 0; round < MEASURE_MOST_ROUNDS && status == MR_OK && mr_clock_now_ns() < end_ns; round++) {
        for (int32_t i = 0; i < n && status == MR_OK; i++) {
            double guess = i > 0 ? 2 * series_median(&flat[i - 1]) : 0;
            status = add_sample(m, &(trial_step){.n_rows = 1 << i}, guess, end_ns, &flat[i], err);
            if (flat[i].n == 0)
                n = i;
        }
        if (status == MR_OK)
            status = add_sample(m, &shallow_step, 0, end_ns, &shallow, err);
        if (status == MR_OK)
            status = add_sample(m, &deep_step, 0, end_ns, &deep, err);
    }
    if (status == MR_OK && n == measure_points(max_rows))
        status = measure_wide(m, flat, n, err);
    series_curve(flat, measure_points(m->max_rows), out);
    /* The difference is small beside the two times, so lower quartiles are taken: they are the least disturbed. */
    double more = series_quarter(&deep, 1) - series_quarter(&shallow, 1);
    *out_position = more > 0 ? more / (MEASURE_DEEP_ROWS * m->trials[0].n_attended) : 0;
    return status;
}

/* --- Output ------------------------------------------------------------------------------------------------------ */

/* Measures the output matrix and sampling: the time of the last layer with tokens, less its time without tokens. The
 * loaded layers run in between, as in a run, where layers evict the output matrix from the caches. */
static mr_status measure_output(measure *m, int32_t max_rows, mr_step_times *out, mr_err *err) {
    const mr_model_info *info = m->config->info;
    series more[MR_STEP_TIMES_MAX] = {0};
    trial tail;
    double with, without, ignored;
    trial_desc last = {{info->n_layers - 1, info->n_layers}, max_rows, m->free_bytes, m->on_device, m->host_experts};
    mr_status status = trial_init(&tail, m->config, &last, err);
    while (status == MR_E_NO_MEMORY && m->n_trials > (m->on_device ? 0 : 1)) {
        measure_drop_trials(m, m->n_trials - 1);
        last.free_bytes = m->free_bytes;
        status = trial_init(&tail, m->config, &last, err);
    }
    if (status != MR_OK)
        return status;
    int64_t end_ns = mr_clock_now_ns() + m->budget_ns / 2;
    int32_t n = measure_points(max_rows);
    status = trial_run(&tail, &(trial_step){.n_rows = 1, .n_out = 1}, &ignored, err); /* to warm up */
    for (int round = 0; round < MEASURE_MOST_ROUNDS && status == MR_OK && (round == 0 || mr_clock_now_ns() < end_ns);
         round++)
        for (int32_t i = 0; i < n && status == MR_OK && (round == 0 || mr_clock_now_ns() < end_ns); i++) {
            trial_step step = {.n_rows = 1 << i};
            status = m->n_trials > 0 ? sweep(m, m->n_trials, &(trial_step){.n_rows = 1}, &ignored, err) : MR_OK;
            if (status == MR_OK)
                status = trial_run(&tail, &step, &without, err);
            step.n_out = step.n_rows;
            if (status == MR_OK)
                status = trial_run(&tail, &step, &with, err);
            if (status == MR_OK)
                series_add(&more[i], with > without ? with - without : 0);
        }
    series_curve(more, n, out);
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
    measure_drop_trials(m, 0);
    mr_free(m->kind);
}

static void log_curve(const char *what, int32_t kind, const mr_step_times *t) {
    for (int32_t i = 0; i < t->n; i++)
        mr_log_write(MR_LOG_DEBUG, "worker", "%s %" PRId32 ", %" PRId32 " rows: %.1f us", what, kind, t->rows[i],
                     t->seconds[i] * 1e6);
}

/* The time budget of one kind. */
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
        if (!measure_next_inner(&m, m.kind[config->info->n_layers / 2], 0, &range))
            range = measure_outer(&m, m.kind[0]);
        range.last = range.first + 1;
        status = measure_add_trial(&m, range, SAMPLE_ROWS, err);
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

/* Rounds of all points, at least one. */
static mr_status measure_means(measure *m, mr_step_times *out, mr_err *err) {
    mr_step_times r = {0};
    double seconds = 0;
    int32_t n_rounds = 0;
    while (r.n < (int32_t)(sizeof AGAIN_ROWS / sizeof AGAIN_ROWS[0]) && AGAIN_ROWS[r.n] <= m->max_rows) {
        r.rows[r.n] = AGAIN_ROWS[r.n];
        r.n++;
    }
    mr_status status = sweep(m, m->n_trials, &(trial_step){.n_rows = 1}, &seconds, err); /* to warm up */
    int64_t end_ns = mr_clock_now_ns() + m->budget_ns;
    while (status == MR_OK && (n_rounds == 0 || mr_clock_now_ns() < end_ns)) {
        for (int32_t i = 0; i < r.n && status == MR_OK; i++) {
            status = sweep(m, m->n_trials, &(trial_step){.n_rows = r.rows[i]}, &seconds, err);
            r.seconds[i] += seconds;
        }
        n_rounds++;
    }
    if (status != MR_OK)
        return status;
    for (int32_t i = 0; i < r.n; i++)
        r.seconds[i] /= n_rounds;
    log_curve("again, layer kind", m->kind[m->config->info->n_layers / 2], &r);
    *out = r;
    return MR_OK;
}

mr_status mr_measure_again(const mr_measure_config *config, mr_step_times *out, mr_err *err) {
    measure m;
    int32_t n_kinds;
    mr_status status = begin(&m, config, &n_kinds, err);
    m.budget_ns = config->kind_ns > 0 ? config->kind_ns : AGAIN_NS;
    if (status == MR_OK)
        status = load_kind(&m, m.kind[config->info->n_layers / 2], err);
    if (status == MR_OK)
        status = measure_means(&m, out, err);
    end(&m);
    return status;
}

/* Where the measured curves go: to those of the CPU, or to those of the device. */
typedef struct curves {
    const char *what;      /* for the log */
    mr_step_times *layer;  /* [n_kinds] */
    double *position_s;    /* [n_kinds] */
    mr_step_times *output; /* NULL: not wanted */
} curves;

static mr_status measure_kind(measure *m, int32_t k, const curves *out, mr_err *err) {
    const mr_measure_config *c = m->config;
    int32_t max_rows = c->max_rows < MEASURE_MOST_ROWS ? c->max_rows : MEASURE_MOST_ROWS;
    mr_status status = load_kind(m, (uint8_t)k, err);
    if (status == MR_OK)
        status = measure_layer(m, max_rows, &out->layer[k], &out->position_s[k], err);
    if (status == MR_OK && m->on_device)
        measure_take_crossing(m, &out->layer[k]);
    log_curve(out->what, k, &out->layer[k]);
    mr_log_write(MR_LOG_DEBUG, "worker", "%s %" PRId32 ", a position: %.3f ns", out->what, k, out->position_s[k] * 1e9);
    if (status == MR_OK && out->output && m->kind[c->info->n_layers - 1] == k) {
        status = measure_output(m, max_rows < MOST_OUT_ROWS ? max_rows : MOST_OUT_ROWS, out->output, err);
        log_curve(m->on_device ? "device, output" : "output", 0, out->output);
    }
    measure_drop_trials(m, 0);
    return status;
}

/* Experts, or neurons of a sparse part: the host's memory may have them. */
static bool has_experts(const measure *m, int32_t k) {
    int32_t l = 0;
    while (m->kind[l] != k)
        l++;
    return mr_model_layer(m->config->info, l)->has_experts || m->config->info->is_sparse;
}

/* Measures a kind on the device: whole layers, and those whose experts, or neurons, are in the host's memory. One of
 * the two may not fit the device. */
static mr_status measure_kind_on_device(measure *m, int32_t k, mr_measured_device *out, mr_err *err) {
    double positions_s[MR_MAX_LAYER_KINDS] = {0};
    const curves whole = {"device, layer kind", out->layer, out->position_s, &out->output};
    curves trunk = {"device, without experts, layer kind", out->trunk, positions_s, NULL};
    mr_status status = measure_kind(m, k, &whole, err);
    if ((status != MR_OK && status != MR_E_NO_MEMORY) || !has_experts(m, k))
        return status;
    bool fits = status == MR_OK;
    if (!fits) {
        out->layer[k] = (mr_step_times){0};
        trunk.position_s = out->position_s;
        trunk.output = &out->output;
    }
    m->host_experts = true;
    status = measure_kind(m, k, &trunk, err);
    m->host_experts = false;
    if (status != MR_E_NO_MEMORY || !fits)
        return status;
    out->trunk[k] = (mr_step_times){0};
    return MR_OK;
}

/* Measures layers on the device that holds layers, if there is one with memory for them. */
static mr_status measure_device(measure *m, int32_t n_kinds, mr_measured_device *out, mr_err *err) {
    if (!mr_measure_describe_device(m->config, out))
        return MR_OK;
    m->on_device = true;
    mr_status status = measure_device_bytes(m, n_kinds, out, err);
    if (status == MR_OK)
        status = measure_crossing(m, &m->crossing, err);
    for (int32_t k = 0; k < n_kinds && status == MR_OK; k++)
        status = measure_kind_on_device(m, k, out, err);
    out->crossing = m->crossing;
    out->is_known = status == MR_OK;
    log_curve("device, crossing", 0, &out->crossing);
    if (status != MR_E_NO_MEMORY)
        return status;
    mr_log_write(MR_LOG_INFO, "worker", "%s gets no layers: %s", out->name, err->text);
    *out = (mr_measured_device){0};
    return MR_OK;
}

mr_status mr_measure_stage_times(const mr_measure_config *config, mr_measured *out, mr_err *err) {
    measure m;
    mr_measured r = {0};
    const curves to = {"layer kind", r.layer, r.position_s, &r.output};
    mr_status status = mr_measure_sample(config, &r.sample_s, err);
    if (status != MR_OK)
        return status;
    status = begin(&m, config, &r.n_kinds, err);
    if (status == MR_OK) {
        m.budget_ns = budget_ns(config, r.n_kinds);
        for (int32_t k = 0; k < r.n_kinds && status == MR_OK; k++)
            status = measure_kind(&m, k, &to, err);
    }
    if (m.ran_ns > 0)
        r.core_share = m.had_core_ns < m.ran_ns ? (double)m.had_core_ns / (double)m.ran_ns : 1;
    if (status == MR_OK)
        status = measure_device(&m, r.n_kinds, &r.device, err);
    end(&m);
    if (status != MR_OK)
        return status;
    mr_log_write(MR_LOG_DEBUG, "worker", "the quick sample: %.1f us", r.sample_s * 1e6);
    *out = r;
    return MR_OK;
}
