/* backends/cpu/cpu_choice.c - now and then a few runs try half or twice as many threads. A trial that looks worse ends
 * at once. A trial that looks better may be an accident, because other programs were idle for a moment. Such a trial
 * goes on for some time slices of the operating system; if it is still better, its number of threads is taken.
 * Two limits say how often there is a trial. First, the time that the trials of all programs may lose: 40 ms, plus half
 * a percent of the time of all runs. Second, the gap to the next trial doubles with each trial that changes nothing,
 * because a trial moves threads to other cores, which costs more time than the trial itself shows.
 *
 * Other rules hold while the machine is crowded (cpu_crowd.h), because fewer threads may well be faster there, and
 * because runs on the same number of threads differ by a fourth and more. The first trial of a level may begin at once
 * and lose three runs, so that large models need not wait for it. All further trials may lose one percent of the time.
 * A trial has at least three runs, unless fewer take as long, and they are added to those of earlier trials. When the
 * machine becomes crowded or free, the program forgets the times of its runs. When the machine becomes free, a
 * program that runs on fewer threads tries more at once. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_choice.h"

#include <stddef.h>

/* When trials begin and end. */
typedef struct rules {
    double base_runs, base_ns;        /* least runs, and their time, between a change of the machine and a trial */
    double look_runs, look_ns;        /* shortest trial before it is rejected */
    double take_ns;                   /* shortest trial before its level is taken */
    double gap_ns, most_gap_ns;       /* first and longest gap between two trials */
    double half_ns, half_runs;        /* the sums of runs are halved after so much time, with so many runs in them */
    double fund_runs, fund_ns, share; /* trials may lose fund_ns, fund_runs, plus this share of the time of all runs */
    double better;                    /* a level is better if its runs take at most this part of the time */
} rules;

static const rules FREE = {.base_ns = 2e6,
                           .look_ns = 2e6,
                           .take_ns = 40e6,
                           .gap_ns = 50e6,
                           .most_gap_ns = 0.8e9,
                           .half_ns = 0.3e9,
                           .fund_ns = 40e6,
                           .share = 0.005,
                           .better = 0.95},
                   CROWDED = {.base_runs = 3,
                              .base_ns = 100e6,
                              .look_runs = 3,
                              .look_ns = 100e6,
                              .take_ns = 200e6,
                              .gap_ns = 400e6,
                              .most_gap_ns = 3.2e9,
                              .half_ns = 4e9,
                              .half_runs = 8,
                              .fund_ns = 100e6,
                              .fund_runs = 3,
                              .share = 0.01,
                              .better = 0.97};
static const double OTHER = 2; /* runs faster or slower by this factor: the machine changed, reset the gap */

static const rules *rules_of(const cpu_choice *c) {
    return c->past->crowd.is_crowded ? &CROWDED : &FREE;
}

static int32_t count_of(const cpu_choice *c, int32_t level) {
    return c->past->most >> (c->past->n_levels - 1 - level);
}

static double mean(const cpu_choice_runs *r) {
    return r->n > 0 ? r->ns / r->n : 0;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

void cpu_choice_past_init(cpu_choice_past *past, int32_t most, cpu_crowd_fn *waited_ns, void *ctx) {
    *past = (cpu_choice_past){.most = most};
    while (most >> past->n_levels > 0)
        past->n_levels++;
    past->level = past->n_levels - 1;
    cpu_crowd_init(&past->crowd, past->n_levels > 1 ? waited_ns : NULL, ctx);
}

void cpu_choice_init(cpu_choice *c, cpu_choice_past *past) {
    *c = (cpu_choice){.past = past, .level = past->level, .trial = -1, .n_changes = past->crowd.n_changes};
}

/* Predicts the time that a trial of the level would lose: from the last runs on this level, or, if there are none, as
 * if the time of a run were inversely proportional to the number of threads. While the machine is crowded, a run takes
 * at most twice the time: fewer threads also wait less for each other. */
static double expected_loss(const cpu_choice *c, int32_t level) {
    const rules *h = rules_of(c);
    double now = mean(&c->runs[c->level]), then = mean(&c->runs[level]);
    if (then == 0)
        then = now * count_of(c, c->level) / count_of(c, level);
    if (c->past->crowd.is_crowded && then > 2 * now && c->runs[level].n == 0)
        then = 2 * now;
    double n_runs = larger(h->look_runs, then > h->look_ns ? 1 : h->look_ns / then);
    return then > now ? n_runs * (then - now) : 0;
}

/* The time that a trial of the level may lose. */
static double allowed_loss(const cpu_choice *c, int32_t level) {
    const cpu_choice_past *past = c->past;
    if (!past->crowd.is_crowded)
        return FREE.fund_ns + FREE.share * past->run_ns - past->lost_ns;
    double first = CROWDED.fund_ns + CROWDED.fund_runs * mean(&c->runs[c->level]);
    double rest = CROWDED.share * past->crowded_run_ns - past->crowded_lost_ns;
    /* Where the load comes and goes, there is a first trial each time. */
    bool may_begin = past->crowded_lost_ns <= CROWDED.share * (past->run_ns + past->crowded_run_ns);
    return c->runs[level].n == 0 && may_begin ? larger(first, rest) : rest;
}

/* The level for the next trial, below and above the present one in turn; -1: there is no other level. */
static int32_t next_trial(cpu_choice *c) {
    int32_t level = c->level + (c->trial_up ? 1 : -1);
    c->trial_up = !c->trial_up;
    if (level < 0 || level >= c->past->n_levels)
        level = 2 * c->level - level;
    return level < 0 || level >= c->past->n_levels ? -1 : level;
}

static void begin_trial(cpu_choice *c) {
    int32_t level = next_trial(c);
    if (level < 0 || expected_loss(c, level) > allowed_loss(c, level))
        return;
    c->trial = level;
    c->trial_runs = (cpu_choice_runs){0};
}

/* The machine has become crowded, which may ask for fewer threads, or free, which may ask for more. */
static void begin_anew(cpu_choice *c) {
    c->n_changes = c->past->crowd.n_changes;
    for (int32_t l = 0; l < c->past->n_levels; l++)
        c->runs[l] = (cpu_choice_runs){0};
    c->trial = -1;
    c->trial_up = !c->past->crowd.is_crowded;
    c->tried_mean = 0;
    c->tried_ns = c->past->crowd.is_crowded || c->level + 1 < c->past->n_levels ? 0 : c->run_ns;
}

int32_t cpu_choice_next(cpu_choice *c) {
    const rules *h = rules_of(c);
    const cpu_choice_runs *r = &c->runs[c->level];
    if (c->n_changes != c->past->crowd.n_changes)
        begin_anew(c);
    if (mean(r) > OTHER * c->tried_mean || c->tried_mean > OTHER * mean(r))
        c->gap_ns = h->gap_ns;
    if (c->trial < 0 && c->past->n_levels > 1 && r->ns >= h->base_ns && r->n >= h->base_runs &&
        (c->tried_ns == 0 || c->run_ns - c->tried_ns >= c->gap_ns))
        begin_trial(c);
    return count_of(c, c->trial < 0 ? c->level : c->trial);
}

static void judge_trial(cpu_choice *c) {
    const rules *h = rules_of(c);
    const cpu_choice_runs *t = &c->trial_runs;
    cpu_choice_runs all = *t;
    double now = mean(&c->runs[c->level]);
    if (c->past->crowd.is_crowded) {
        all.ns += c->runs[c->trial].ns;
        all.n += c->runs[c->trial].n;
    }
    bool better = mean(&all) <= h->better * now;
    bool is_short = t->ns < h->look_ns || (t->n < h->look_runs && t->ns < h->look_runs * now);
    if (is_short || (better && t->ns < h->take_ns))
        return;
    if (t->ns > t->n * now)
        *(c->past->crowd.is_crowded ? &c->past->crowded_lost_ns : &c->past->lost_ns) += t->ns - t->n * now;
    c->runs[c->trial] = all;
    c->level = better ? c->trial : c->level;
    c->tried_ns = c->run_ns;
    c->tried_mean = mean(&c->runs[c->level]);
    c->gap_ns = better ? h->gap_ns : 2 * c->gap_ns < h->most_gap_ns ? 2 * c->gap_ns : h->most_gap_ns;
    c->trial = -1;
}

void cpu_choice_note(cpu_choice *c, int64_t ns) {
    cpu_choice_runs *r = c->trial < 0 ? &c->runs[c->level] : &c->trial_runs;
    r->ns += (double)ns;
    r->n += 1;
    c->run_ns += (double)ns;
    *(c->past->crowd.is_crowded ? &c->past->crowded_run_ns : &c->past->run_ns) += (double)ns;
    cpu_crowd_note(&c->past->crowd, count_of(c, c->trial < 0 ? c->level : c->trial), c->trial >= 0, ns);
    if (c->trial >= 0)
        judge_trial(c);
    c->past->level = c->level;
    if (c->run_ns - c->halved_ns < rules_of(c)->half_ns || c->runs[c->level].n < rules_of(c)->half_runs)
        return;
    c->halved_ns = c->run_ns;
    for (int32_t l = 0; l < c->past->n_levels; l++)
        c->runs[l] = (cpu_choice_runs){c->runs[l].ns / 2, c->runs[l].n / 2};
}
