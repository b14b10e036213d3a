/* tests/conformance/test_channel_support.c - what the suites of channels share: blocking calls with a deadline, and
 * messages with a pattern that shows whose they are. */
// SPDX-License-Identifier: Apache-2.0
#include "test_channel.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"

static const int64_t PATIENCE_NS = 60 * MR_NS_PER_S;

uint64_t suite_seed(void) {
    const char *s = getenv("MILLRACE_TEST_SEED");
    return s ? strtoull(s, NULL, 0) : 1;
}

bool check_failed(const endpoint *e, const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: endpoint %d, seed %llu: %s\n", file, line, e->self, (unsigned long long)e->seed, what);
    return false;
}

mr_status finish(mr_channel *ch, mr_channel_request request, size_t *out_bytes) {
    int64_t deadline = mr_clock_now_ns() + PATIENCE_NS;
    mr_completion c = {.done = false};
    for (;;) {
        mr_status status = mr_channel_test(ch, request, &c, NULL);
        if (status != MR_OK)
            return status;
        if (c.done)
            break;
        if (mr_clock_now_ns() >= deadline) {
            mr_channel_cancel(ch, request);
            return MR_E_TIMEOUT;
        }
        status = mr_channel_wait(ch, deadline, NULL);
        if (status != MR_OK)
            return status;
    }
    if (out_bytes)
        *out_bytes = c.bytes;
    return MR_OK;
}

mr_status send_now(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes) {
    mr_channel_request r = 0;
    mr_status status = mr_channel_post_send(ch, peer, tag, data, bytes, &r, NULL);
    return status == MR_OK ? finish(ch, r, NULL) : status;
}

mr_status recv_now(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity, size_t *out_bytes) {
    mr_channel_request r = 0;
    mr_status status = mr_channel_post_recv(ch, peer, tag, buffer, capacity, &r, NULL);
    return status == MR_OK ? finish(ch, r, out_bytes) : status;
}

static uint8_t pattern_byte(size_t i, uint64_t seed, uint64_t number) {
    uint64_t x = (i / 8 + 1) * UINT64_C(0x9e3779b97f4a7c15) + seed * UINT64_C(0xbf58476d1ce4e5b9) + number;
    x = (x ^ (x >> 29)) * UINT64_C(0x94d049bb133111eb);
    return (uint8_t)(x >> (8 * (i % 8)));
}

void fill_pattern(uint8_t *dst, size_t bytes, uint64_t seed, uint64_t number) {
    for (size_t i = 0; i < bytes; i++)
        dst[i] = pattern_byte(i, seed, number);
}

bool has_pattern(const uint8_t *data, size_t bytes, uint64_t seed, uint64_t number) {
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != pattern_byte(i, seed, number))
            return false;
    return true;
}
