/* tests/simulation/world.h - simulated time, and who runs next. Coordinator and ranks are actors: each is a fibre that
 * runs until it waits. Time stands still while an actor runs, but for a little in each call of its channel, and
 * jumps to the next thing that happens: an actor goes on, a message arrives, the news of a loss arrives. All numbers
 * are drawn from one seed, so that the same seed gives the same events.
 * Owns:    fibres and log. From init to deinit it controls the clock of the process (mr_clock_freeze).
 * Threads: one thread.
 * Errors:  none: world_fail prints the seed and its events, and ends the process. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SIMULATION_WORLD_H
#define MR_TESTS_SIMULATION_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/simulation/fibre.h"
#include "tests/support/rng.h"

enum { WORLD_MAX_RANKS = 4, WORLD_MAX_ACTORS = WORLD_MAX_RANKS + 1 };
#define WORLD_START_NS INT64_C(1000000000000)

typedef struct world world;

typedef struct world_actor {
    fibre *fibre;
    int64_t deadline_ns;   /* of its wait */
    int64_t not_before_ns; /* it does nothing until then */
    int64_t slice_ns;      /* the usual pause behind each of its turns */
    bool has_event;        /* its wait is over */
    bool runs;             /* it was begun, and has not ended */
    int32_t n_calls;       /* of its channel since its last wait */
} world_actor;

/* What the world asks its network. */
typedef struct world_network {
    /* When the next message or news arrives; INT64_MAX: nothing is under way. */
    int64_t (*next_ns)(void *ctx);
    /* Lets it arrive. */
    void (*arrive)(void *ctx);
    void *ctx;
} world_network;

/* Called before and behind each turn of an actor. */
typedef struct world_turns {
    void (*begins)(void *ctx, int32_t actor);
    void (*pauses)(void *ctx, int32_t actor);
    void *ctx;
} world_turns;

struct world {
    const char *name; /* of the run, for messages */
    bool traces;      /* prints every event at once */
    bool digests;     /* the digest is of all events, not only of those that the log keeps */
    int32_t n_ranks;  /* actors 0 .. n_ranks - 1; the coordinator is actor n_ranks */
    rng draws;
    int64_t now_ns, limit_ns;
    int64_t n_events;
    uint64_t digest;
    world_actor actors[WORLD_MAX_ACTORS];
    world_network network;
    world_turns turns;
    int32_t current; /* the actor that runs; -1: none */
    char *log;       /* the faults, and what was made of them */
    size_t log_bytes;
};

/* A further stream of random numbers for a seed. */
rng world_rng(uint64_t seed, uint64_t stream);

/* The fibres are kept from one world to the next: w is {0} before the first init. */
void world_init(world *w, const char *name, uint64_t seed, int32_t n_ranks, bool traces, bool digests);
/* All actors have ended. */
void world_deinit(world *w);
/* Frees what worlds share. */
void world_end(world *w);

void world_begin(world *w, int32_t actor, void (*run)(void *ctx), void *ctx);
/* Runs until all actors have ended. */
void world_run(world *w);

/* From inside the actor: waits until an event, or until the deadline. */
void world_wait(world *w, int32_t actor, int64_t deadline_ns);
/* From inside the actor: time passes while it works. */
void world_spend(world *w, int64_t ns);
/* Ends the wait of an actor. */
void world_notify(world *w, int32_t actor);
/* From inside the actor, in each call of its channel that does not wait: a loop that never waits lets others run. */
void world_tick(world *w, int32_t actor);

/* An event that the log keeps, and one that is only printed with traces. */
void world_note(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void world_trace(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void world_fail(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
