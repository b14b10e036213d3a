/* worker/lobby_facts.h - what a rank in the lobby answers to Measure and Probe messages.
 * Owns:    nothing; the texts that a message points to. Borrows: the lobby's config.
 * Threads: the step thread.
 * Errors:  MR_E_CANCELLED alone: it was told to end, and there is nothing to answer. What else fails becomes the status
 *          and text of the answer. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_LOBBY_FACTS_H
#define MR_WORKER_LOBBY_FACTS_H

#include "proto/facts_message.h"
#include "worker/file_client.h"
#include "worker/lobby.h"

typedef struct mr_lobby_facts {
    mr_facts_message facts;
    Millrace__LinkFacts link;
    mr_err problem;
} mr_lobby_facts;

/* What is known of the model file when ranks have heard who has it. */
typedef struct mr_lobby_file {
    mr_file_client *client; /* unless NULL: it is not here, and what is needed of it comes by this */
    const mr_err *problem;  /* unless NULL: why it neither is here nor comes */
} mr_lobby_file;

/* told_to_end(ctx) is asked now and then. */
MR_MUST_USE mr_status mr_lobby_measure(const mr_lobby_config *config, const mr_lobby_file *file,
                                       const Millrace__Measure *wish, bool (*told_to_end)(void *ctx), void *ctx,
                                       mr_lobby_facts *out);
MR_MUST_USE mr_status mr_lobby_probe(const mr_lobby_config *config, const Millrace__Probe *wish,
                                     bool (*told_to_end)(void *ctx), void *ctx, mr_lobby_facts *out);

#endif
