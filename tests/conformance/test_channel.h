/* tests/conformance/test_channel.h - the suite that every implementation of proto/channel.h has to pass.
 * A test is one function that each of its endpoints runs, in a thread (or a process) of its own: endpoints talk to each
 * other through the channel alone, so that the suite also fits implementations that span processes.
 * Threads: each endpoint's body runs in the thread that its channel is bound to. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CONFORMANCE_TEST_CHANNEL_H
#define MR_TESTS_CONFORMANCE_TEST_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/channel.h"

/* How channels of one implementation come to be. */
typedef struct channel_factory {
    const char *name;
    mr_status (*create)(int32_t n_endpoints, int32_t max_requests, void **out_world, mr_err *err);
    mr_status (*open)(void *world, int32_t self, mr_channel **out, mr_err *err);
    void (*destroy)(void *world);
} channel_factory;

typedef struct endpoint {
    mr_channel *ch; /* a body that destroys it sets it to NULL */
    int32_t self, n;
    uint64_t seed;
    bool sends_stay; /* MPI: a send that is cancelled may be delivered, and what has begun to arrive goes on */
} endpoint;

/* False: a check has failed, and was printed. */
typedef bool (*channel_body)(endpoint *e);

typedef struct channel_test {
    const char *name;
    channel_body body;
    int32_t n_endpoints;
} channel_test;

enum { MAX_REQUESTS = 64 }; /* of each endpoint, in every test */

/* Each ends with a NULL name. Those of lost need an implementation that notices by itself that an endpoint is gone. */
extern const channel_test channel_basic_tests[], channel_cancel_tests[], channel_lost_tests[], channel_load_tests[];

/* MILLRACE_TEST_SEED, or 1. */
uint64_t suite_seed(void);
/* Prints what failed; returns false. */
bool check_failed(const endpoint *e, const char *file, int line, const char *what);
#define CHECK(e, cond)                                                                                                 \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            return check_failed((e), __FILE__, __LINE__, #cond);                                                       \
    } while (0)

/* Waits until the request is done or has failed; MR_E_TIMEOUT after a minute. out_bytes may be NULL. */
mr_status finish(mr_channel *ch, mr_channel_request request, size_t *out_bytes);
/* Posts and finishes. */
mr_status send_now(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes);
mr_status recv_now(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity, size_t *out_bytes);
/* Byte i of the message (seed, number). */
void fill_pattern(uint8_t *dst, size_t bytes, uint64_t seed, uint64_t number);
bool has_pattern(const uint8_t *data, size_t bytes, uint64_t seed, uint64_t number);

#endif
