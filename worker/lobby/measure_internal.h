/* worker/lobby/measure_internal.h - internal to measure*.c: a measurement, its trials and its samples.
 * Owns:    as worker/lobby/measure.h says. Threads: that of the measurement. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_MEASURE_INTERNAL_H
#define MR_WORKER_LOBBY_MEASURE_INTERNAL_H

#include "worker/lobby/measure_trial.h"

enum {
    MEASURE_MAX_TRIALS = 16, /* trials of one kind */
    MEASURE_MOST_LAYERS = 4, /* of one trial: more would let one step of many rows use up the time budget */
    MEASURE_MOST_ROWS = 512, /* of a step that is measured in all rounds */
    MEASURE_MOST_ROUNDS = 15,
};

/* The samples of one point of a curve, ascending. */
typedef struct series {
    int32_t n;
    double seconds[MEASURE_MOST_ROUNDS];
} series;

void series_add(series *s, double seconds);
/* The k-th quartile of the samples; 0: no samples. */
double series_quarter(const series *s, int32_t k);
/* The median and not the minimum, because steps of a run are disturbed, too. */
double series_median(const series *s);
/* Makes a curve of the series of 1, 2, 4 ... rows, up to the first series without samples. */
void series_curve(const series *s, int32_t n, mr_step_times *out);

typedef struct measure {
    const mr_measure_config *config;
    uint8_t *kind; /* [n_layers] */
    trial trials[MEASURE_MAX_TRIALS];
    int32_t n_trials, n_layers; /* n_layers: sum over the trials */
    int32_t max_rows;           /* of the trials */
    uint64_t free_bytes;        /* this rank's share of the free memory at the start, less the bytes of the trials */
    int64_t budget_ns;
    int64_t ran_ns, had_core_ns; /* time of all sweeps; the part of that time in which this thread had a core */
    bool on_device;              /* the device that holds layers has those of the trials */
    bool host_experts;           /* but their experts, or neurons of sparse parts, are in the host's memory */
    mr_step_times crossing;      /* of mr_measured_device */
} measure;

/* The number of points 1, 2, 4 ... up to max_rows. */
int32_t measure_points(int32_t max_rows);
/* The next run of inner layers of a kind, from layer l on, up to MEASURE_MOST_LAYERS. Inner layers are all except the
 * first and the last layer of the model, whose stages also have the embedding or the output matrix. false: there is
 * none. */
bool measure_next_inner(const measure *m, uint8_t kind, int32_t l, mr_layer_range *out);
/* The range to measure if a kind has no inner layer. */
mr_layer_range measure_outer(const measure *m, uint8_t kind);
/* Adds a trial. The trial with the fewest layers stands first, because it runs alone where a step takes long. */
MR_MUST_USE mr_status measure_add_trial(measure *m, mr_layer_range range, int32_t max_rows, mr_err *err);
/* Frees all trials except the first n. */
void measure_drop_trials(measure *m, int32_t n);

/* --- measure_device.c: what the planner needs beside the curves of layers on a device ----------------------------- */

/* The bytes of layers and buffers on the device. */
MR_MUST_USE mr_status measure_device_bytes(const measure *m, int32_t n_kinds, mr_measured_device *out, mr_err *err);
/* The time of crossing: two stages of one layer take it twice, and one stage of both layers takes it once. 0 if the
 * model has one layer, or the device has memory for one. */
MR_MUST_USE mr_status measure_crossing(measure *m, mr_step_times *out, mr_err *err);
/* Takes the time of crossing from a curve that was measured with the loaded trial: it has one crossing for all of its
 * layers. */
void measure_take_crossing(const measure *m, mr_step_times *curve);
/* Loads the trial of a kind on the device: one, with as many layers and rows as fit. */
MR_MUST_USE mr_status measure_load_on_device(measure *m, uint8_t kind, mr_err *err);

#endif
