// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/world.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/rng.h"

enum {
    LOG_BYTES = 64 << 10,
    MOST_CALLS = 20000, /* of a channel without a wait */
    CALL_NS = 50,       /* that a call of the channel takes */
};
static const int64_t MOST_EVENTS = 2000000, MOST_NS = 600 * MR_NS_PER_S;

rng world_rng(uint64_t seed, uint64_t stream) {
    return (rng){.state = mr_rng_u64(seed, stream, 0)};
}

/* --- Log --------------------------------------------------------------------------------------------------------- */

static void take_digest(world *w, const char *text) {
    for (; *text; text++) /* FNV-1a */
        w->digest = (w->digest ^ (uint8_t)*text) * UINT64_C(1099511628211);
}

static const char *actor_name(const world *w) {
    static const char *const NAMES[] = {"rank 0", "rank 1", "rank 2", "rank 3"};
    return w->current < 0 ? "" : w->current == w->n_ranks ? "coordinator" : NAMES[w->current];
}

static void write_line(world *w, bool is_kept, const char *format, va_list args) {
    char line[600];
    if (!is_kept && !w->traces && !w->digests)
        return;
    int n =
        snprintf(line, sizeof line, "%12.6f ms  %-11s  ", (double)(w->now_ns - WORLD_START_NS) / 1e6, actor_name(w));
    vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    take_digest(w, line);
    if (w->traces)
        fprintf(stderr, "%s\n", line);
    size_t bytes = strlen(line);
    if (!is_kept || w->log_bytes + bytes + 2 > LOG_BYTES)
        return;
    memcpy(w->log + w->log_bytes, line, bytes);
    w->log[w->log_bytes + bytes] = '\n';
    w->log_bytes += bytes + 1;
    w->log[w->log_bytes] = 0;
}

void world_note(world *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    write_line(w, true, format, args);
    va_end(args);
}

void world_trace(world *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    write_line(w, false, format, args);
    va_end(args);
}

_Noreturn void world_fail(world *w, const char *format, ...) {
    va_list args;
    char text[600];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!w->traces)
        fputs(w->log, stdout);
    printf("%12.6f ms  %s: FAILED: %s\n", (double)(w->now_ns - WORLD_START_NS) / 1e6, actor_name(w), text);
    printf("again, with every event: test_simulation %s --trace\n", w->name);
    fflush(NULL);
    _exit(1);
}

/* A crash names its run, too. */
static const char *crashing_name = "";
static void on_crash(int number) {
    static const char TEXT[] = "crashed; again: test_simulation ";
    (void)!write(STDERR_FILENO, TEXT, sizeof TEXT - 1);
    (void)!write(STDERR_FILENO, crashing_name, strlen(crashing_name));
    (void)!write(STDERR_FILENO, "\n", 1);
    signal(number, SIG_DFL);
    raise(number);
}

/* --- Life -------------------------------------------------------------------------------------------------------- */

static void set_time(world *w, int64_t now_ns) {
    if (now_ns > w->now_ns)
        w->now_ns = now_ns;
    mr_clock_freeze(w->now_ns);
}

void world_init(world *w, const char *name, uint64_t seed, int32_t n_ranks, bool traces, bool digests) {
    char *log = w->log ? w->log : malloc(LOG_BYTES);
    if (!log)
        exit(1);
    log[0] = 0;
    world_actor actors[WORLD_MAX_ACTORS] = {0};
    for (int32_t i = 0; i < WORLD_MAX_ACTORS; i++)
        actors[i].fibre = w->actors[i].fibre ? w->actors[i].fibre : fibre_create();
    *w = (world){.name = name,
                 .traces = traces,
                 .digests = digests,
                 .n_ranks = n_ranks,
                 .draws = world_rng(seed, 1),
                 .digest = UINT64_C(14695981039346656037),
                 .limit_ns = WORLD_START_NS + MOST_NS,
                 .current = -1,
                 .log = log};
    memcpy(w->actors, actors, sizeof actors);
    set_time(w, WORLD_START_NS);
    crashing_name = name;
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
}

void world_deinit(world *w) {
    (void)w;
    mr_clock_freeze(-1);
}

void world_end(world *w) {
    for (int32_t i = 0; i < WORLD_MAX_ACTORS; i++)
        if (w->actors[i].fibre)
            fibre_destroy(w->actors[i].fibre);
    free(w->log);
    *w = (world){0};
}

void world_begin(world *w, int32_t actor, void (*run)(void *ctx), void *ctx) {
    world_actor *a = &w->actors[actor];
    fibre_begin(a->fibre, run, ctx);
    a->runs = a->has_event = true;
    a->not_before_ns = w->now_ns + rng_below(&w->draws, 1000);
}

/* --- Who is next ------------------------------------------------------------------------------------------------- */

/* When the actor can go on; INT64_MAX: never. */
static int64_t ready_ns(const world *w, int32_t actor) {
    const world_actor *a = &w->actors[actor];
    if (!a->runs)
        return INT64_MAX;
    int64_t then = a->has_event ? w->now_ns : a->deadline_ns;
    return then > a->not_before_ns ? then : a->not_before_ns;
}

/* The next actor to run: of several that can run at the same time, a drawn one. */
static int32_t next_actor(world *w, int64_t *out_ns) {
    int32_t next = -1, n = 0;
    *out_ns = INT64_MAX;
    for (int32_t i = 0; i <= w->n_ranks; i++) {
        int64_t then = ready_ns(w, i);
        then = then > w->now_ns ? then : then == INT64_MAX ? then : w->now_ns;
        if (then < *out_ns) {
            *out_ns = then;
            next = i;
            n = 1;
        } else if (then == *out_ns && then != INT64_MAX && rng_below(&w->draws, ++n) == 0) {
            next = i;
        }
    }
    return next;
}

static void run_actor(world *w, int32_t actor) {
    world_actor *a = &w->actors[actor];
    a->has_event = false;
    a->n_calls = 0;
    w->current = actor;
    world_trace(w, "goes on");
    w->turns.begins(w->turns.ctx, actor);
    fibre_resume(a->fibre);
    w->turns.pauses(w->turns.ctx, actor);
    a->runs = !fibre_has_ended(a->fibre);
    a->not_before_ns = w->now_ns + 1 + rng_below(&w->draws, (int32_t)(2 * a->slice_ns + 1));
    if (!a->runs)
        world_trace(w, "has ended");
    w->current = -1;
}

static bool all_have_ended(const world *w) {
    bool all = true;
    for (int32_t i = 0; i <= w->n_ranks; i++)
        all = all && !w->actors[i].runs;
    return all;
}

void world_run(world *w) {
    while (!all_have_ended(w)) {
        int64_t actor_ns, network_ns = w->network.next_ns(w->network.ctx);
        int32_t actor = next_actor(w, &actor_ns);
        if (actor_ns == INT64_MAX && network_ns == INT64_MAX)
            world_fail(w, "nothing can happen any more, and somebody still waits");
        set_time(w, actor_ns < network_ns ? actor_ns : network_ns);
        if (w->now_ns > w->limit_ns || ++w->n_events > MOST_EVENTS)
            world_fail(w, "no end after %.0f simulated seconds and %lld events",
                       (double)(w->now_ns - WORLD_START_NS) / 1e9, (long long)w->n_events);
        if (actor_ns < network_ns)
            run_actor(w, actor);
        else
            w->network.arrive(w->network.ctx);
    }
}

void world_wait(world *w, int32_t actor, int64_t deadline_ns) {
    world_actor *a = &w->actors[actor];
    a->deadline_ns = deadline_ns;
    if (a->has_event || deadline_ns <= w->now_ns)
        a->has_event = true; /* the wait is over at once, but others may run first */
    fibre_pause();
}

void world_spend(world *w, int64_t ns) {
    set_time(w, w->now_ns + ns);
}

void world_notify(world *w, int32_t actor) {
    w->actors[actor].has_event = true;
}

void world_tick(world *w, int32_t actor) {
    if (w->current != actor)
        return;
    set_time(w, w->now_ns + CALL_NS);
    if (++w->actors[actor].n_calls < MOST_CALLS)
        return;
    w->actors[actor].has_event = true;
    fibre_pause();
}
