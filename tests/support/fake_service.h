/* tests/support/fake_service.h - a service without a model and without threads, in the place of
 * coordinator/serving/service: every choice answers with the ids that the test says, and what was asked for can be
 * looked at. Threads: caller serialises; wake is never called, because all there is can be taken at once. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_FAKE_SERVICE_H
#define MR_TESTS_SUPPORT_FAKE_SERVICE_H

#include "coordinator/serving/service/service.h"

enum {
    FAKE_MAX_STOPS = 8,
    FAKE_STOP_BYTES = 32,
    FAKE_EMBEDDING = 5,
    FAKE_MAX_LIST = 8,
    FAKE_GRAMMAR_BYTES = 256,
    FAKE_MAX_TOKENS = 64 /* of a prompt with log-probabilities */
};

struct mr_service {
    const mr_tokenizer *tok;
    /* Of every choice; choice k says the last id k times more. */
    const int32_t *ids;
    int32_t n_ids;
    mr_finish finish;
    mr_status error;         /* of an ERROR, which comes behind the ids */
    int32_t n_takes;         /* pieces that may be taken yet, -1: any number */
    mr_status submit_status; /* of the requests from n_submit_ok on */
    int32_t n_submit_ok;
    int32_t max_open; /* more are refused as MR_E_BUSY; 0: any number */

    int32_t n_submitted, n_open;
    mr_generate_desc desc; /* the latest; of its pointers only those below are good */
    char stops[FAKE_MAX_STOPS][FAKE_STOP_BYTES];
    int32_t bias_ids[FAKE_MAX_LIST], breakers[FAKE_MAX_LIST];
    int32_t stop_ids[FAKE_MAX_LIST], late_ids[FAKE_MAX_LIST], bad_words[FAKE_MAX_LIST];
    char grammar[FAKE_GRAMMAR_BYTES]; /* packed, its beginning */
    float biases[FAKE_MAX_LIST];
    int32_t prompt[FAKE_MAX_TOKENS]; /* its beginning */
};

#endif
