// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/faults.h"

#include "engine/base/clock.h"

const char *fault_name(fault_kind kind) {
    static const char *const NAMES[FAULT_KINDS] = {
        "kill",   "cut",     "stop",   "slow",  "corrupt", "no memory",          "no file",
        "drain",  "undrain", "cancel", "forge", "repeat",  "job without memory", "end",
        "timeout"};
    return NAMES[kind];
}

/* Faults that end ranks are drawn more often than others. */
static fault_kind draw_kind(rng *r) {
    static const fault_kind KINDS[] = {FAULT_KILL,    FAULT_KILL,  FAULT_KILL,    FAULT_KILL,    FAULT_CUT,
                                       FAULT_STOP,    FAULT_SLOW,  FAULT_CORRUPT, FAULT_CORRUPT, FAULT_NO_MEMORY,
                                       FAULT_NO_FILE, FAULT_DRAIN, FAULT_DRAIN,   FAULT_UNDRAIN, FAULT_CANCEL};
    return KINDS[rng_below(r, sizeof KINDS / sizeof KINDS[0])];
}

/* Of a run whose ranks only leave and come back, on purpose. */
static fault_kind draw_move(rng *r) {
    return rng_below(r, 3) ? FAULT_DRAIN : FAULT_UNDRAIN;
}

static fault_kind draw_strange(rng *r) {
    return rng_below(r, 2) ? FAULT_FORGE : FAULT_REPEAT;
}

static fault_kind draw_of_coordinator(rng *r) {
    return rng_below(r, 3) ? FAULT_JOB_NO_MEMORY : FAULT_END;
}

bool faults_with_spares(uint64_t seed) {
    return seed % 4 == 1;
}

bool faults_only_move(uint64_t seed) {
    return seed % 8 == 1;
}

bool faults_with_secret(uint64_t seed) {
    return seed % 16 == 7;
}

bool faults_with_little_room(uint64_t seed) {
    return seed % 16 == 3;
}

bool faults_at_coordinator(uint64_t seed) {
    return seed % 16 == 11;
}

bool faults_with_little_memory(uint64_t seed) {
    return seed % 16 == 15;
}

static fault_kind draw_kind_of(uint64_t seed, rng *r) {
    if (faults_only_move(seed))
        return draw_move(r);
    if (faults_with_secret(seed) && rng_below(r, 2))
        return draw_strange(r);
    if (faults_at_coordinator(seed) && rng_below(r, 3) == 0)
        return draw_of_coordinator(r);
    return draw_kind(r);
}

static int64_t draw_amount(rng *r, fault_kind kind) {
    switch ((int)kind) {
    case FAULT_STOP:
        return rng_below(r, 4) == 0 ? rng_below(r, 40) * MR_NS_PER_S : rng_below(r, 900) * MR_NS_PER_MS;
    case FAULT_SLOW:
        return rng_below(r, 2) ? 2000000 : 100000;
    case FAULT_NO_MEMORY:
        return rng_below(r, 60);
    case FAULT_JOB_NO_MEMORY:
        return rng_below(r, 40);
    case FAULT_FORGE:
    case FAULT_REPEAT:
        return rng_below(r, 4);
    default:
        return 0;
    }
}

static bool spares_its_rank(fault_kind kind) {
    return kind == FAULT_STOP || kind == FAULT_SLOW || kind == FAULT_DRAIN || kind == FAULT_UNDRAIN ||
           kind == FAULT_CANCEL || kind == FAULT_CORRUPT || (kind >= FAULT_FORGE && kind != FAULT_TIMEOUT);
}

/* Faults that were thought of later come from numbers of their own, so that the others stay as they were: somebody asks
 * for a drain once more, and a step fails in time. */
static void add_extra(faults *all, uint64_t seed, int32_t n_ranks, int32_t n_messages) {
    rng r = world_rng(seed, 7);
    for (int32_t i = 0; i < all->n && rng_below(&r, 2); i++) {
        if (all->at[i].kind != FAULT_DRAIN)
            continue;
        fault again = all->at[i];
        again.message += rng_below(&r, 30);
        all->at[all->n++] = again;
        break;
    }
    fault late = {.kind = FAULT_TIMEOUT, .rank = rng_below(&r, n_ranks), .message = 1 + rng_below(&r, n_messages)};
    if (rng_below(&r, 8) == 0 && late.rank != all->spared && !faults_only_move(seed))
        all->at[all->n++] = late;
}

faults faults_draw(uint64_t seed, int32_t n_ranks, int32_t n_clients, int32_t n_messages) {
    rng r = world_rng(seed, 3);
    faults all = {.spared = rng_below(&r, n_ranks)};
    int32_t n = 1 + rng_below(&r, FAULTS_MOST);
    for (int32_t i = 0; i < n; i++) {
        fault f = {.kind = draw_kind_of(seed, &r)};
        f.rank = rng_below(&r, n_ranks);
        if (f.rank == all.spared && !spares_its_rank(f.kind))
            f.rank = (f.rank + 1) % n_ranks;
        f.recovery = rng_below(&r, 3) == 0 ? 1 + rng_below(&r, 3) : 0;
        f.message = 1 + rng_below(&r, f.recovery ? 40 : n_messages);
        f.to = f.kind == FAULT_CANCEL ? rng_below(&r, n_clients) : rng_below(&r, n_ranks + 1);
        f.amount = draw_amount(&r, f.kind);
        all.at[all.n++] = f;
    }
    add_extra(&all, seed, n_ranks, n_messages);
    return all;
}
