/* tests/simulation/faults.h - the faults of a run, drawn from its seed. Each comes with a message: the nth of the run,
 * or the nth behind the beginning of a recovery. One rank is spared, so that the job can always go on.
 * Threads: one thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SIMULATION_FAULTS_H
#define MR_TESTS_SIMULATION_FAULTS_H

#include "tests/simulation/world.h"

enum { FAULTS_MOST = 6, FAULTS_EXTRA = 2 };

typedef enum fault_kind {
    FAULT_KILL,          /* the process of a rank ends */
    FAULT_CUT,           /* the host of a rank is cut off */
    FAULT_STOP,          /* a rank does nothing for a while */
    FAULT_SLOW,          /* a rank is slow from now on */
    FAULT_CORRUPT,       /* a message arrives with a wrong byte */
    FAULT_NO_MEMORY,     /* an allocation of a rank fails */
    FAULT_NO_FILE,       /* a rank cannot load from now on */
    FAULT_DRAIN,         /* somebody asks to move the layers of a rank elsewhere */
    FAULT_UNDRAIN,       /* and to let it have layers again */
    FAULT_CANCEL,        /* a client gives up */
    FAULT_FORGE,         /* behind a message comes one with a wrong byte, from somebody without the secret */
    FAULT_REPEAT,        /* a message comes twice */
    FAULT_JOB_NO_MEMORY, /* an allocation of the coordinator fails */
    FAULT_END,           /* the job is told to end */
    FAULT_TIMEOUT,       /* a step of a rank fails: something was not there in time */
    FAULT_KINDS,
} fault_kind;

typedef struct fault {
    fault_kind kind;
    int32_t rank, to; /* to: of the wrong message; the client that gives up */
    int64_t message;  /* with which it comes, from 1 */
    int32_t recovery; /* of the messages behind the beginning of this recovery; 0: of the run */
    int64_t amount;   /* how long, how slow, which allocation, which link */
    bool is_done;
} fault;

typedef struct faults {
    fault at[FAULTS_MOST + FAULTS_EXTRA];
    int32_t n, spared;
} faults;

const char *fault_name(fault_kind kind);
/* Whether the session of this seed has spares. */
bool faults_with_spares(uint64_t seed);
/* Whether ranks only leave and come back, on purpose: with every other seed that has spares. */
bool faults_only_move(uint64_t seed);
/* Whether the ranks of this seed have a launch secret, and messages are forged. */
bool faults_with_secret(uint64_t seed);
/* Whether ranks of this seed have no room for grammars, until some time has passed. */
bool faults_with_little_room(uint64_t seed);
/* Whether the coordinator of this seed lacks memory, or is told to end. */
bool faults_at_coordinator(uint64_t seed);
/* Whether the ranks of this seed have memory for a few layers only, until some time has passed. */
bool faults_with_little_memory(uint64_t seed);
/* n_messages: about how many messages an undisturbed run has. */
faults faults_draw(uint64_t seed, int32_t n_ranks, int32_t n_clients, int32_t n_messages);

#endif
