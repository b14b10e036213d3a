/* The seeded simulator of faults. Each seed draws the delays of messages, and faults: ranks die, hang, are slow, cannot
 * load, run out of memory, send wrong bytes; their layers are moved on purpose; clients give up. What clients hear is
 * what they would have heard.
 *
 *     test_simulation                                   the daily test: 8,000 seeds, 100 s at most
 *     test_simulation --seeds 100000 --from 1           some seeds
 *     test_simulation --seed 17 --scenario decode --trace    one of them again, with every event
 *     test_simulation --slow-seeds 400                  the same with measured ranks, one of them slow, and --recut
 *     test_simulation --wrong-seeds 400                 the same, but the rank was only slow when it was measured
 *     test_simulation --seed 17 --scenario decode --slow 3 --wrong 1 [--faults]    one of these again
 *     test_simulation --sweep                           kills a rank at each of its messages, in each scenario */
// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/simulation/run.h"
#include "tests/support/share.h"

enum { DAILY_SEEDS = 8000, DAILY_S = 100, TWICE = 20, SLOW_SEEDS = 100 };

/* Runs that have failed once. */
static const struct {
    uint64_t seed;
    const char *scenario;
} REGRESSIONS[] = {{164, "mixed"},      {414, "logits"},        {762, "shared"},     {2499, "preempted"},
                   {6506, "mirostat"},  {310268, "preempted"},  {4247, "decode"},    {6655, "prefill"},
                   {1012157, "shared"}, {1027457, "preempted"}, {1033759, "decode"}, {493772, "grammar"}};

typedef struct totals {
    int64_t n_runs, n_events, n_messages, n_recoveries, n_with_recovery, n_faults[FAULT_KINDS], n_stuck, n_kv_kept,
        n_kv_ahead;
    int64_t n_waited, n_ended_early;
    int32_t most_requests, most_waiting;
} totals;

static double seconds(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void add(totals *t, const run_result *r) {
    t->n_runs++;
    t->n_events += r->n_events;
    t->n_messages += r->n_messages;
    t->n_recoveries += r->n_recoveries;
    t->n_with_recovery += r->n_recoveries > 0;
    t->n_stuck += r->n_stuck;
    t->n_kv_kept += r->n_kv_kept;
    t->n_kv_ahead += r->n_kv_ahead;
    t->n_waited += r->has_waited;
    t->n_ended_early += r->has_ended_early;
    for (int i = 0; i < FAULT_KINDS; i++)
        t->n_faults[i] += r->n_faults[i];
    t->most_requests = r->most_requests > t->most_requests ? r->most_requests : t->most_requests;
    t->most_waiting = r->most_waiting > t->most_waiting ? r->most_waiting : t->most_waiting;
}

static void print_totals(const totals *t, double took_s) {
    printf("%lld runs in %.1f s, %lld messages, %lld events; %lld recoveries in %lld runs, %lld with KV blocks, "
           "%lld of these with some copied before\n",
           (long long)t->n_runs, took_s, (long long)t->n_messages, (long long)t->n_events, (long long)t->n_recoveries,
           (long long)t->n_with_recovery, (long long)t->n_kv_kept, (long long)t->n_kv_ahead);
    for (int i = 0; i < FAULT_KINDS; i++)
        printf("%s%s %lld", i ? ", " : "faults: ", fault_name((fault_kind)i), (long long)t->n_faults[i]);
    printf("\n%lld runs waited for memory, %lld ended early; at most %d requests of an endpoint, %d messages without a "
           "receive; %lld sends stuck\n",
           (long long)t->n_waited, (long long)t->n_ended_early, (int)t->most_requests, (int)t->most_waiting,
           (long long)t->n_stuck);
}

static int32_t scenario_of(const char *name) {
    for (int32_t i = 0; i < N_SCENARIOS; i++)
        if (strcmp(name, scenario_at(i)->name) == 0)
            return i;
    fprintf(stderr, "no scenario %s; there are:", name);
    for (int32_t i = 0; i < N_SCENARIOS; i++)
        fprintf(stderr, " %s", scenario_at(i)->name);
    fprintf(stderr, "\n");
    exit(2);
}

/* --- What to run ------------------------------------------------------------------------------------------------- */

/* The same seed has the same events. */
static void run_twice(void) {
    for (uint64_t seed = 1; seed <= TWICE; seed++) {
        const run_config config = {
            .seed = seed, .scenario = (int32_t)(seed % N_SCENARIOS), .victim = -1, .digests = true};
        run_result a = run_one(&config), b = run_one(&config);
        if (a.digest == b.digest && a.n_events == b.n_events)
            continue;
        printf("seed %llu has other events the second time: %lld and %lld\n", (unsigned long long)seed,
               (long long)a.n_events, (long long)b.n_events);
        exit(1);
    }
}

static void run_regressions(void) {
    for (size_t i = 0; i < sizeof REGRESSIONS / sizeof REGRESSIONS[0]; i++)
        (void)run_one(
            &(run_config){.seed = REGRESSIONS[i].seed, .scenario = scenario_of(REGRESSIONS[i].scenario), .victim = -1});
}

/* Seeds from `from` on, each with the scenario that its number gives, for most_s seconds. */
static int64_t run_seeds(uint64_t from, int64_t n, double most_s) {
    totals t = {0};
    double start = seconds();
    for (int64_t i = 0; i < n && seconds() - start < most_s; i++) {
        uint64_t seed = from + (uint64_t)i;
        const run_config config = {.seed = seed, .scenario = (int32_t)(seed % N_SCENARIOS), .victim = -1};
        run_result r = run_one(&config);
        add(&t, &r);
        if (t.n_runs % 1000 == 0) {
            printf("%lld of %lld seeds in %.0f s\n", (long long)t.n_runs, (long long)n, seconds() - start);
            fflush(stdout);
        }
    }
    print_totals(&t, seconds() - start);
    return t.n_runs;
}

/* Kills each rank at each of its messages, until it sends no further one. */
static void run_sweep(void) {
    totals t = {0};
    double start = seconds();
    for (int32_t number = 0; number < N_SCENARIOS; number++)
        for (int32_t victim = 0; victim < 2; victim++) {
            bool was_killed = true;
            for (int64_t k = 1; was_killed; k++) {
                run_result r = run_one(&(run_config){.seed = 1, .scenario = number, .victim = victim, .kill_at = k});
                add(&t, &r);
                was_killed = r.n_faults[FAULT_KILL] > 0;
            }
        }
    print_totals(&t, seconds() - start);
}

/* One rank is slow: with every other seed, other faults come too. A rank whose steps are three times as long is found
 * by looks, one of ten times as long is suspected. */
static void run_slow(uint64_t from, int64_t n) {
    totals t = {0};
    int64_t n_alone = 0, n_moved = 0;
    double start = seconds();
    for (uint64_t seed = from; seed < from + (uint64_t)n; seed++) {
        const run_config config = {.seed = seed,
                                   .scenario = (int32_t)(seed / 4 % N_SCENARIOS),
                                   .victim = -1,
                                   .slow_times = seed / 2 % 2 ? 3 : 10,
                                   .wrong_times = 1,
                                   .has_faults = seed % 2};
        run_result r = run_one(&config);
        add(&t, &r);
        bool is_alone = !config.has_faults && r.slow_layers_first > 0;
        n_alone += is_alone;
        n_moved += is_alone && r.slow_layers_last < r.slow_layers_first;
    }
    print_totals(&t, seconds() - start);
    printf("%lld of %lld slow ranks without other faults have lost layers\n", (long long)n_moved, (long long)n_alone);
    if (2 * n_moved < n_alone)
        exit(1);
}

/* One rank gets no layers, because it was measured as ten times slower than it is: with every other seed, other faults
 * come too. More than three ranks do without it, because the model has three layers. The scenarios last long enough to
 * learn, to measure, and to look three times. */
static void run_wrong(uint64_t from, int64_t n) {
    static const char *const LONG[] = {"decode", "preempted", "grammar", "mirostat", "mixed"};
    totals t = {0};
    int64_t n_alone = 0, n_used = 0;
    double start = seconds();
    for (uint64_t seed = from; seed < from + (uint64_t)n; seed++) {
        const run_config config = {.seed = seed,
                                   .scenario = scenario_of(LONG[seed / 2 % (sizeof LONG / sizeof LONG[0])]),
                                   .victim = -1,
                                   .slow_times = 1,
                                   .wrong_times = 10,
                                   .has_faults = seed % 2};
        run_result r = run_one(&config);
        add(&t, &r);
        bool is_alone = !config.has_faults && r.slow_layers_first == 0 && r.n_ranks <= 3;
        n_alone += is_alone;
        n_used += is_alone && r.slow_layers_last > 0;
    }
    print_totals(&t, seconds() - start);
    printf("%lld of %lld ranks that were measured wrong have got layers\n", (long long)n_used, (long long)n_alone);
    if (10 * n_used < 9 * n_alone)
        exit(1);
}

static int usage(void) {
    fprintf(stderr, "test_simulation [--seeds N] [--from M] [--seconds S] | --seed N --scenario NAME [--trace] |\n"
                    "                --slow-seeds N [--from M] | --wrong-seeds N [--from M] |\n"
                    "                --seed N --scenario NAME --slow TIMES --wrong TIMES [--faults] |\n"
                    "                --sweep | --kill RANK,MESSAGE --scenario NAME [--trace]\n");
    return 2;
}

typedef struct arguments {
    const char *seeds, *from, *seconds, *seed, *scenario, *kill, *slow, *wrong, *slow_seeds, *wrong_seeds;
    bool traces, sweeps, faults;
} arguments;

static bool read_arguments(int argc, char **argv, arguments *a) {
    const struct {
        const char *name, **at;
    } texts[] = {{"--seeds", &a->seeds},       {"--from", &a->from},
                 {"--seconds", &a->seconds},   {"--seed", &a->seed},
                 {"--scenario", &a->scenario}, {"--kill", &a->kill},
                 {"--slow", &a->slow},         {"--slow-seeds", &a->slow_seeds},
                 {"--wrong", &a->wrong},       {"--wrong-seeds", &a->wrong_seeds}};
    for (int i = 1; i < argc; i++) {
        bool known = false;
        a->traces = a->traces || strcmp(argv[i], "--trace") == 0;
        a->sweeps = a->sweeps || strcmp(argv[i], "--sweep") == 0;
        a->faults = a->faults || strcmp(argv[i], "--faults") == 0;
        known = strcmp(argv[i], "--trace") == 0 || strcmp(argv[i], "--faults") == 0 || strcmp(argv[i], "--sweep") == 0;
        for (size_t k = 0; k < sizeof texts / sizeof texts[0] && !known; k++)
            if (strcmp(argv[i], texts[k].name) == 0 && i + 1 < argc) {
                *texts[k].at = argv[++i];
                known = true;
            }
        if (!known)
            return false;
    }
    return true;
}

static void run_again(const arguments *a) {
    run_config config = {.traces = a->traces, .scenario = scenario_of(a->scenario), .victim = -1};
    char *rest = NULL;
    if (a->kill) {
        config.seed = 1;
        config.victim = (int32_t)strtol(a->kill, &rest, 10);
        config.kill_at = *rest ? strtoll(rest + 1, NULL, 10) : 1;
    } else {
        config.seed = strtoull(a->seed, NULL, 10);
    }
    config.slow_times = a->slow ? (int32_t)strtol(a->slow, NULL, 10) : 0;
    config.wrong_times = a->wrong ? (int32_t)strtol(a->wrong, NULL, 10) : 1;
    config.has_faults = a->faults;
    run_result r = run_one(&config);
    totals t = {0};
    add(&t, &r);
    print_totals(&t, 0);
    if (config.slow_times > 0)
        printf("layers of the slow rank: %d, then %d\n", (int)r.slow_layers_first, (int)r.slow_layers_last);
}

int main(int argc, char **argv) {
    arguments a = {0};
    int result = 0;
    if (!read_arguments(argc, argv, &a) || (!a.scenario && (a.seed || a.kill)))
        return usage();
    mallopt(M_MMAP_THRESHOLD, 200000); /* large blocks come as pages of zeros, most of which nobody touches */
    scenarios_init();
    run_undisturbed();
    if (a.seed || a.kill) {
        run_again(&a);
    } else if (a.sweeps) {
        run_sweep();
    } else if (a.slow_seeds) {
        run_slow(a.from ? strtoull(a.from, NULL, 10) : 1, strtoll(a.slow_seeds, NULL, 10));
    } else if (a.wrong_seeds) {
        run_wrong(a.from ? strtoull(a.from, NULL, 10) : 1, strtoll(a.wrong_seeds, NULL, 10));
    } else if (a.seeds) {
        (void)run_seeds(a.from ? strtoull(a.from, NULL, 10) : 1, strtoll(a.seeds, NULL, 10),
                        a.seconds ? strtod(a.seconds, NULL) : 1e9);
    } else {
        run_regressions();
        run_twice();
        run_slow(1, SLOW_SEEDS / share_get());
        run_wrong(1, SLOW_SEEDS / share_get());
        const int64_t n_seeds = DAILY_SEEDS / share_get();
        int64_t n = run_seeds(1, n_seeds, DAILY_S);
        if (n < n_seeds)
            printf("the time was enough for %lld seeds\n", (long long)n);
    }
    run_end();
    scenarios_deinit();
    return result;
}
