/* tests/support/fake_service.h - stands in for coordinator/serving/service, without a model and without threads. Every
 * choice answers with the ids that the test sets. The test can read the latest request.
 * Threads: caller serialises. wake is never called, because every piece is there at once. */
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
    FAKE_MAX_TOKENS = 64 /* ids of a prompt whose log-probabilities are requested */
};

struct mr_service {
    const mr_tokenizer *tok;
    /* The output of every choice; choice k repeats the last id k more times. */
    const int32_t *ids;
    int32_t n_ids;
    mr_finish finish;
    mr_status error;         /* of an ERROR piece after the ids */
    int32_t n_takes;         /* pieces that can still be taken; -1: no limit */
    mr_status submit_status; /* result of submit after the first n_submit_ok requests */
    int32_t n_submit_ok;
    int32_t max_ids;  /* what mr_service_max_ids returns */
    int32_t max_open; /* limit of open requests, then MR_E_BUSY; 0: no limit */

    int32_t n_submitted, n_open;
    mr_generate_desc desc; /* the latest request; its pointers are not valid, the copies below are */
    char stops[FAKE_MAX_STOPS][FAKE_STOP_BYTES];
    int32_t bias_ids[FAKE_MAX_LIST], breakers[FAKE_MAX_LIST];
    int32_t stop_ids[FAKE_MAX_LIST], late_ids[FAKE_MAX_LIST], bad_words[FAKE_MAX_LIST];
    char grammar[FAKE_GRAMMAR_BYTES]; /* the packed grammar, cut to this size */
    float biases[FAKE_MAX_LIST];
    int32_t prompt[FAKE_MAX_TOKENS]; /* its beginning */
};

#endif
