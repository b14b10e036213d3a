/* tests/unit/proto/test_proto_samples.h - a good message of each kind, to be sent as it is or with one thing broken.
 * Threads: one thread, as cmocka. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_UNIT_PROTO_TEST_PROTO_SAMPLES_H
#define MR_TESTS_UNIT_PROTO_TEST_PROTO_SAMPLES_H

#include <stdbool.h>

#include "proto/device_link.h"
#include "proto/measured.h"
#include "proto/messages.h"
#include "proto/phases.h"
#include "tests/support/test.h"

enum { PACKED_BYTES = MR_MAX_LOBBY_BYTES, ARENA_BYTES = 256 << 10, CONTEXT = 100, FILE_BLOCKS = 1000 };

/* Limits that the samples just meet. */
extern const mr_msg_limits sample_limits;

typedef struct samples {
    Millrace__Control control;
    Millrace__Plan plan;
    Millrace__StageRange stage[3], *stages[3];
    uint32_t held_experts[4];
    Millrace__OpenSequence open;
    Millrace__Sampling sampling;
    uint32_t prompt[5], bias_ids[2], bad_words[5];
    float biases[2];
    uint8_t packed_grammar[7];
    Millrace__CloseSequence close;
    Millrace__StepPlan step;
    Millrace__Run run[3], *runs[3];
    uint32_t ids[16], blocks[9], copies[9];
    Millrace__Shutdown shutdown;
    Millrace__Start start;
    Millrace__Ping ping;
    Millrace__ReportUses report_uses;
    Millrace__ShareFile share;
    uint32_t peers[2];
    Millrace__FilePart parts[MR_MAX_FILE_PARTS], *part_points[MR_MAX_FILE_PARTS];
    uint32_t part_sources[MR_MAX_PART_SOURCES];
    uint8_t roots[MR_MAX_FILE_PARTS * MR_FILE_HASH_BYTES];
    Millrace__FileRequest request;
    Millrace__LinkSetup setup;
    uint64_t uuid[2];
    uint8_t link_id[MR_CARRIER_ID_BYTES];
    Millrace__Measure measure;
    Millrace__Probe probe;
    Millrace__Tokens tokens;
    Millrace__Token token[2], *token_list[2];
    uint32_t top_ids[MR_MAX_TOP_LOGPROBS + 1];
    float top_logprobs[MR_MAX_TOP_LOGPROBS + 1];
    Millrace__Report report;
    Millrace__Ready ready;
    Millrace__Failure failure;
    Millrace__LoadProgress progress;
    Millrace__Hello hello;
    uint32_t digest_of[MR_MAX_DIGEST_PARTS + 1];
    uint64_t digest_bits[MR_MAX_DIGEST_PARTS + 1];
    Millrace__Pong pong;
    Millrace__RankState state;
    Millrace__Spans spans;
    Millrace__Seconds seconds;
    Millrace__StepSums step_sums;
    uint32_t sum_steps[3];
    uint64_t sum_rows[3], sum_ns[3];
    Millrace__UseCounts use_counts;
    Millrace__ExpertShare expert_share;
    uint64_t counts[3];
    Millrace__Facts facts;
    Millrace__DeviceFacts device;
    char device_name[65];
    uint64_t device_bytes[2];
    Millrace__MeasuredAgain measured;
    Millrace__LinkFacts link;
    Millrace__Times times[3], *kinds[2];
    uint32_t time_rows[MR_STEP_TIMES_MAX + 1];
    double times_s[MR_STEP_TIMES_MAX + 1], position_s[2];
    uint32_t phases[3], span_rows[3];
    uint64_t span_steps[3], starts_ns[3], ends_ns[3], phase_ns[MR_PHASE_COUNT];
    char version[600], host[600]; /* texts of the hello */
    char text[2000];
    uint8_t packed[PACKED_BYTES];
    size_t bytes;
} samples;

/* Fills the samples with valid messages, with the given body of a control and of a report. */
void samples_init(samples *s, int control_body, int report_body);

typedef enum message { CONTROL, TOKENS, REPORT, FILE_REQUEST, LINK_SETUP } message;

/* A fixed arena of ARENA_BYTES, the same memory each time. */
mr_arena *sample_arena(void);
/* Into s->packed. */
void pack(samples *s, message which);
mr_status unpack(const samples *s, message which, const mr_msg_limits *l, mr_arena *a, void *out, mr_err *err);
void expect_error_text(const mr_err *err, const char *words);
/* Packs and unpacks under sample_limits. */
void expect_refused(samples *s, message which, const char *words);
void expect_accepted(samples *s, message which);

#endif
