/* backends/cpu/cpu_choice.c - now and then a few runs try half or twice as many threads. A trial that looks worse ends
 * at once. A trial that looks better may be an accident, because other programs were idle for a moment. Such a trial
 * goes on for some time slices of the operating system; if it is still better, its number of threads is taken.
 * Two limits say how often there is a trial. First, the time that the trials of all programs may lose: 40 ms, plus half
 * a percent of the time of all runs. Second, the gap to the next trial doubles with each trial that changes nothing,
 * because a trial moves threads to other cores, which costs more time than the trial itself shows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_choice.h"

static const double LOOK_NS = 2e6,      /* shortest trial before it is rejected */
    TAKE_NS = 40e6,                     /* shortest trial before its level is taken */
    GAP_NS = 50e6, MOST_GAP_NS = 0.8e9, /* first and longest gap between two trials */
    OTHER = 2,                          /* runs faster or slower by this factor: the machine changed, reset the gap */
    HALF_NS = 0.3e9,                    /* the sums of runs are halved after so much time */
    FUND_NS = 40e6, SHARE = 0.005,      /* trials may lose FUND_NS, plus this SHARE of the time of all runs */
    BETTER = 0.95;                      /* a level is better if its runs take at most this part of the time */

static int32_t count_of(const cpu_choice *c, int32_t level) {
    return c->past->most >> (c->past->n_levels - 1 - level);
}

static double mean(const cpu_choice_runs *r) {
    return r->n > 0 ? r->ns / r->n : 0;
}

void cpu_choice_past_init(cpu_choice_past *past, int32_t most) {
    *past = (cpu_choice_past){.most = most};
    while (most >> past->n_levels > 0)
        past->n_levels++;
    past->level = past->n_levels - 1;
}

void cpu_choice_init(cpu_choice *c, cpu_choice_past *past) {
    *c = (cpu_choice){.past = past, .level = past->level, .trial = -1};
}

/* Predicts the time that a trial of the level would lose: from the last runs on this level, or, if there are none, as
 * if the time of a run were inversely proportional to the number of threads. */
static double expected_loss(const cpu_choice *c, int32_t level) {
    double now = mean(&c->runs[c->level]), then = mean(&c->runs[level]);
    if (then == 0)
        then = now * count_of(c, c->level) / count_of(c, level);
    double n_runs = then > LOOK_NS ? 1 : LOOK_NS / then;
    return then > now ? n_runs * (then - now) : 0;
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
    if (level < 0 || c->past->lost_ns + expected_loss(c, level) > FUND_NS + SHARE * c->past->run_ns)
        return;
    c->trial = level;
    c->trial_runs = (cpu_choice_runs){0};
}

int32_t cpu_choice_next(cpu_choice *c) {
    double now = mean(&c->runs[c->level]);
    if (now > OTHER * c->tried_mean || c->tried_mean > OTHER * now)
        c->gap_ns = GAP_NS;
    if (c->trial < 0 && c->past->n_levels > 1 && c->runs[c->level].ns >= LOOK_NS &&
        (c->tried_ns == 0 || c->run_ns - c->tried_ns >= c->gap_ns))
        begin_trial(c);
    return count_of(c, c->trial < 0 ? c->level : c->trial);
}

static void judge_trial(cpu_choice *c) {
    const cpu_choice_runs *t = &c->trial_runs;
    double now = mean(&c->runs[c->level]);
    bool better = mean(t) <= BETTER * now;
    if (t->ns < LOOK_NS || (better && t->ns < TAKE_NS))
        return;
    if (t->ns > t->n * now)
        c->past->lost_ns += t->ns - t->n * now;
    c->runs[c->trial] = *t;
    c->level = better ? c->trial : c->level;
    c->tried_ns = c->run_ns;
    c->tried_mean = mean(&c->runs[c->level]);
    c->gap_ns = better ? GAP_NS : 2 * c->gap_ns < MOST_GAP_NS ? 2 * c->gap_ns : MOST_GAP_NS;
    c->trial = -1;
}

void cpu_choice_note(cpu_choice *c, int64_t ns) {
    cpu_choice_runs *r = c->trial < 0 ? &c->runs[c->level] : &c->trial_runs;
    r->ns += (double)ns;
    r->n += 1;
    c->run_ns += (double)ns;
    c->past->run_ns += (double)ns;
    if (c->trial >= 0)
        judge_trial(c);
    c->past->level = c->level;
    if (c->run_ns - c->halved_ns < HALF_NS)
        return;
    c->halved_ns = c->run_ns;
    for (int32_t l = 0; l < c->past->n_levels; l++)
        c->runs[l] = (cpu_choice_runs){c->runs[l].ns / 2, c->runs[l].n / 2};
}
