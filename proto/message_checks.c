/* proto/message_checks.c - checks that every number of a received message is inside the limits of proto/limits.h.
 * Readers of a message may then use its counts as lengths and its ids as indices. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/device_link.h"
#include "proto/measured.h"
#include "proto/messages.h"
#include "proto/phases.h"

enum {
    KV_TYPE_F32 = 0, /* type numbers of GGUF */
    KV_TYPE_F16 = 1,
    KV_TYPE_Q8_0 = 8,
    MAX_CORES = 1 << 20,
};
#define ABOVE_0 FLT_MIN
static const double MAX_MIROSTAT_MU = 1e12;
static const double MAX_SECONDS = 86400, MAX_BYTES_PER_SECOND = 1e15;
static const uint64_t MAX_DEVICE_BYTES = UINT64_C(1) << 50;
static const int64_t MAX_CLOCK_NS = INT64_MAX / 4; /* 73 years of monotonic time: differences do not overflow */

/* The checks of one message. The first failure stays: later checks do nothing. */
typedef struct checks {
    mr_err *err;
    mr_status status;
    const char *message;          /* "report" */
    const ProtobufCMessage *body; /* the message in the oneof; NULL: none */
    const char *item;             /* "stage" during the checks of a repeated field */
    size_t item_idx;
} checks;

/* "open sequence" for an OpenSequence. */
static void write_name(const ProtobufCMessage *m, char *out, size_t bytes) {
    size_t n = 0;
    for (const char *from = m->descriptor->short_name; *from && n + 2 < bytes; from++) {
        bool is_capital = *from >= 'A' && *from <= 'Z';
        if (is_capital && n > 0)
            out[n++] = ' ';
        out[n++] = is_capital ? (char)(*from - 'A' + 'a') : *from;
    }
    out[n] = 0;
}

/* Fails with "<message>: <item> <idx>: <what>". */
static void MR_PRINTF(2, 3) fail(checks *c, const char *fmt, ...) {
    char what[MR_ERR_TEXT_BYTES], message[64];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    snprintf(message, sizeof message, "%s", c->message);
    if (c->body)
        write_name(c->body, message, sizeof message);
    if (c->item)
        c->status = mr_err_set(c->err, MR_E_PROTOCOL, "%s: %s %zu: %s", message, c->item, c->item_idx, what);
    else
        c->status = mr_err_set(c->err, MR_E_PROTOCOL, "%s: %s", message, what);
}

static void in_range(checks *c, const char *field, uint64_t value, uint64_t low, uint64_t high) {
    if (c->status == MR_OK && (value < low || value > high))
        fail(c, "%s is %" PRIu64 ", allowed is %" PRIu64 " to %" PRIu64, field, value, low, high);
}

static void below(checks *c, const char *field, uint64_t value, uint64_t limit) {
    if (c->status == MR_OK && value >= limit)
        fail(c, "%s is %" PRIu64 ", allowed is below %" PRIu64, field, value, limit);
}

static void int_in_range(checks *c, const char *field, int64_t value, int64_t low, int64_t high) {
    if (c->status == MR_OK && (value < low || value > high))
        fail(c, "%s is %" PRId64 ", allowed is %" PRId64 " to %" PRId64, field, value, low, high);
}

static void float_in_range(checks *c, const char *field, float value, float low, float high) {
    if (c->status == MR_OK && !(value >= low && value <= high)) /* also when it is not a number */
        fail(c, "%s is %g, allowed is %g to %g", field, (double)value, (double)low, (double)high);
}

static void double_in_range(checks *c, const char *field, double value, double low, double high) {
    if (c->status == MR_OK && !(value >= low && value <= high)) /* also when it is not a number */
        fail(c, "%s is %g, allowed is %g to %g", field, value, low, high);
}

static void all_below(checks *c, const char *field, const uint32_t *values, size_t n, uint32_t limit) {
    for (size_t i = 0; i < n && c->status == MR_OK; i++)
        if (values[i] >= limit)
            fail(c, "%s %zu is %" PRIu32 ", allowed is below %" PRIu32, field, i, values[i], limit);
}

static void known_fields(checks *c, const ProtobufCMessage *m) {
    if (c->status == MR_OK && m->n_unknown_fields > 0)
        fail(c, "unknown field %" PRIu32, m->unknown_fields[0].tag);
}

static void known_status(checks *c, uint32_t value) {
    bool known = value == MR_OK || (value >= MR_E_INVALID && value <= MR_E_UNAVAILABLE) || value == MR_E_NUMERICS ||
                 (value >= MR_E_TIMEOUT && value <= MR_E_PROTOCOL) || value == MR_E_INTERNAL || value == MR_E_DEVICE;
    if (c->status == MR_OK && !known)
        fail(c, "status is %" PRIu32 ", which is not a known status", value);
}

/* A status that a rank reports. A peer must not report MR_E_CANCELLED, which means a local request to end. */
static void rank_status(checks *c, uint32_t value) {
    known_status(c, value);
    if (c->status == MR_OK && value == MR_E_CANCELLED)
        fail(c, "status is %" PRIu32 ", which no rank has", value);
}

static void known_kv_type(checks *c, uint32_t value) {
    if (value != KV_TYPE_Q8_0)
        in_range(c, "kv_type", value, KV_TYPE_F32, KV_TYPE_F16);
}

/* Either none, or n of them. */
static void check_roots(checks *c, const char *name, const ProtobufCBinaryData *roots, size_t n) {
    if (roots->len > 0)
        in_range(c, name, roots->len, n * MR_FILE_HASH_BYTES, n * MR_FILE_HASH_BYTES);
}

static void check_plan(checks *c, const Millrace__Plan *plan) {
    in_range(c, "the number of stages", plan->n_stages, 1, MR_MAX_STAGES);
    in_range(c, "n_kv_blocks", plan->n_kv_blocks, 1, MR_MAX_KV_BLOCKS);
    known_kv_type(c, plan->kv_type);
    in_range(c, "max_rows", plan->max_rows, 1, MR_MAX_STEP_ROWS);
    in_range(c, "max_out_rows", plan->max_out_rows, 1, plan->max_rows);
    in_range(c, "max_sequences", plan->max_sequences, 1, MR_MAX_SEQUENCES);
    in_range(c, "max_context", plan->max_context, 1, MR_MAX_CONTEXT);
    in_range(c, "ring_slots", plan->ring_slots, 1, MR_MAX_RING_SLOTS);
    in_range(c, "renew_rows", plan->renew_rows, 0, MR_MAX_RENEW_ROWS);
    in_range(c, "kv_epoch", plan->kv_epoch, 0, plan->epoch > 0 ? plan->epoch - 1 : 0);
    in_range(c, "n_sent_blocks", plan->n_sent_blocks, 0, plan->kv_epoch > 0 ? plan->n_kv_blocks : 0);
    check_roots(c, "the length of weights_root", &plan->weights_root, 1);
    uint32_t next_layer = 0;
    uint64_t n_held = 0;
    uint64_t max_synthetic_ns = plan->synthetic ? (uint64_t)MR_MAX_SYNTHETIC_MS * 1000000 : 0;
    c->item = "stage";
    for (size_t i = 0; i < plan->n_stages && c->status == MR_OK; i++) {
        const Millrace__StageRange *s = plan->stages[i];
        c->item_idx = i;
        known_fields(c, &s->base);
        below(c, "rank", s->rank, MR_MAX_STAGES);
        in_range(c, "first_layer", s->first_layer, next_layer, next_layer);
        in_range(c, "last_layer", s->last_layer, (uint64_t)s->first_layer + !plan->synthetic, MR_MAX_LAYERS);
        in_range(c, "device_layers", s->device_layers, 0,
                 plan->synthetic ? 0 : (uint64_t)s->last_layer - s->first_layer);
        in_range(c, "host_experts", s->host_experts, 0, s->device_layers);
        in_range(c, "device_experts", s->device_experts, 0, s->host_experts > 0 ? MR_MAX_EXPERTS : 0);
        uint64_t wanted = s->n_held_experts > 0 ? (uint64_t)s->host_experts * s->device_experts : 0;
        in_range(c, "the number of held_experts", s->n_held_experts, wanted, wanted);
        in_range(c, "the number of held_experts of the plan", n_held += s->n_held_experts, 0, MR_MAX_HELD_EXPERTS);
        all_below(c, "held_experts", s->held_experts, s->n_held_experts, MR_MAX_EXPERTS);
        in_range(c, "cold_partitions", s->cold_partitions, 0, s->device_layers > 0 ? MR_MAX_PARTITIONS : 0);
        in_range(c, "way", s->way, 0, MR_WAYS - 1);
        in_range(c, "kv_from", s->kv_from, 0, plan->kv_epoch > 0 ? MR_MAX_STAGES : 0);
        in_range(c, "synthetic_fixed_ns", s->synthetic_fixed_ns, 0, max_synthetic_ns);
        in_range(c, "synthetic_row_ns", s->synthetic_row_ns, 0, max_synthetic_ns);
        in_range(c, "the longest sleep", s->synthetic_fixed_ns + plan->max_rows * s->synthetic_row_ns, 0,
                 (uint64_t)MR_MAX_SYNTHETIC_STEP_MS * 1000000);
        next_layer = s->last_layer;
    }
}

static void check_give_kv(checks *c, const Millrace__GiveKv *m) {
    in_range(c, "epoch", m->epoch, 1, UINT32_MAX);
    in_range(c, "kv_epoch", m->kv_epoch, 1, (uint64_t)m->epoch - 1);
    below(c, "to", m->to, MR_MAX_STAGES);
    in_range(c, "the bytes of blocks", m->blocks.len, 1, MR_MAX_GIVEN_KV_BYTES);
}

static void check_take_kv(checks *c, const Millrace__TakeKv *m) {
    in_range(c, "epoch", m->epoch, 1, UINT32_MAX);
    in_range(c, "kv_epoch", m->kv_epoch, 1, (uint64_t)m->epoch - 1);
    below(c, "from", m->from, MR_MAX_STAGES);
    in_range(c, "last_layer", m->last_layer, (uint64_t)m->first_layer + 1, MR_MAX_LAYERS);
    in_range(c, "n_kv_blocks", m->n_kv_blocks, 1, MR_MAX_KV_BLOCKS);
    known_kv_type(c, m->kv_type);
    in_range(c, "n_sent_blocks", m->n_sent_blocks, 0, m->n_kv_blocks);
}

static void check_prepare(checks *c, const Millrace__Prepare *m) {
    uint32_t next_layer = 0;
    in_range(c, "the number of stages", m->n_stages, 0, MR_MAX_STAGES);
    c->item = "stage";
    for (size_t i = 0; i < m->n_stages && c->status == MR_OK; i++) {
        const Millrace__StageRange *s = m->stages[i];
        c->item_idx = i;
        known_fields(c, &s->base);
        in_range(c, "first_layer", s->first_layer, next_layer, MR_MAX_LAYERS);
        in_range(c, "last_layer", s->last_layer, (uint64_t)s->first_layer + 1, MR_MAX_LAYERS);
        in_range(c, "device_layers", s->device_layers, 0, (uint64_t)s->last_layer - s->first_layer);
        in_range(c, "host_experts", s->host_experts, 0, s->device_layers);
        in_range(c, "device_experts", s->device_experts, 0, s->host_experts > 0 ? MR_MAX_EXPERTS : 0);
        in_range(c, "the number of held_experts", s->n_held_experts, 0, 0);
        in_range(c, "cold_partitions", s->cold_partitions, 0, s->device_layers > 0 ? MR_MAX_PARTITIONS : 0);
        next_layer = s->last_layer;
    }
    c->item = NULL;
}

static void check_measure(checks *c, const Millrace__Measure *m) {
    known_kv_type(c, m->kv_type);
    in_range(c, "max_rows", m->max_rows, 1, MR_MAX_STEP_ROWS);
    in_range(c, "n_together", m->n_together, 1, MR_MAX_STAGES);
}

static void check_biases(checks *c, const Millrace__Sampling *s, const mr_msg_limits *limits) {
    in_range(c, "the number of biases", s->n_bias_ids, 0, MR_MAX_LOGIT_BIASES);
    in_range(c, "the number of their values", s->n_biases, s->n_bias_ids, s->n_bias_ids);
    all_below(c, "biased id", s->bias_ids, s->n_bias_ids, limits->n_vocab);
    for (size_t i = 0; i < s->n_biases && c->status == MR_OK; i++)
        float_in_range(c, "a bias", s->biases[i], -INFINITY, FLT_MAX);
}

/* A list of sequences of ids: for each its length, then its ids. */
static void check_bad_words(checks *c, const Millrace__Sampling *s, const mr_msg_limits *limits) {
    in_range(c, "the numbers of bad words", s->n_bad_words, 0, MR_MAX_BAD_WORDS);
    for (size_t at = 0; at < s->n_bad_words && c->status == MR_OK; at += 1 + s->bad_words[at]) {
        in_range(c, "the length of a bad word", s->bad_words[at], 1, s->n_bad_words - at - 1);
        if (c->status == MR_OK)
            all_below(c, "id of a bad word", s->bad_words + at + 1, s->bad_words[at], limits->n_vocab);
    }
}

/* A number that does not apply is not read, so its value is not checked. */
static void check_numbers(checks *c, const Millrace__Sampling *p) {
#define MR_SAMPLING(type, name, option, value, low, high, applies, hint)                                               \
    if (applies)                                                                                                       \
        _Generic((type)0, int32_t : int_in_range, float : float_in_range)(c, #name, p->name, low, high);
#include "engine/sample/params.def"
#undef MR_SAMPLING
    int_in_range(c, "repeat_last_n", p->repeat_last_n, -1, MR_MAX_CONTEXT);
    int_in_range(c, "dry_last_n", p->dry_last_n, -1, MR_MAX_CONTEXT);
    double_in_range(c, "mirostat_mu", p->mirostat_mu, -MAX_MIROSTAT_MU, MAX_MIROSTAT_MU);
}

static void check_sampling(checks *c, const Millrace__Sampling *s, const mr_msg_limits *limits) {
    known_fields(c, &s->base);
    check_numbers(c, s);
    below(c, "choice", s->choice, MR_MAX_SEQUENCES);
    in_range(c, "the number of breakers", s->n_dry_breakers, 0, MR_MAX_DRY_BREAKERS);
    all_below(c, "breaker", s->dry_breakers, s->n_dry_breakers, limits->n_vocab);
    check_biases(c, s, limits);
    in_range(c, "min_tokens", s->min_tokens, 0, MR_MAX_CONTEXT);
    in_range(c, "the number of late ids", s->n_late_ids, 0, MR_MAX_LATE_IDS);
    all_below(c, "late id", s->late_ids, s->n_late_ids, limits->n_vocab);
    check_bad_words(c, s, limits);
    in_range(c, "n_top_logprobs", s->n_top_logprobs, 0, MR_MAX_TOP_LOGPROBS);
}

static void check_open(checks *c, const Millrace__OpenSequence *open, const mr_msg_limits *limits) {
    below(c, "slot", open->slot, limits->max_sequences);
    in_range(c, "the number of ids", open->n_ids, 0, limits->max_context);
    all_below(c, "id", open->ids, open->n_ids, limits->n_vocab);
    in_range(c, "n_generated", open->n_generated, 0, open->n_ids);
    in_range(c, "the size of the grammar", open->grammar.len, 0, MR_MAX_GRAMMAR_BYTES);
    in_range(c, "the number of blocks", open->n_blocks, 0, mr_msg_table_entries(limits));
    all_below(c, "block", open->blocks, open->n_blocks, limits->n_kv_blocks);
    if (c->status == MR_OK && open->sampling)
        check_sampling(c, open->sampling, limits);
}

static void check_run(checks *c, const Millrace__Run *run, const mr_msg_limits *limits) {
    /* At most the blocks that n_rows rows can begin. message_bytes.c relies on this limit. */
    uint64_t most_blocks = ((uint64_t)run->n_rows + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS;
    known_fields(c, &run->base);
    below(c, "slot", run->slot, limits->max_sequences);
    in_range(c, "n_rows", run->n_rows, 1, limits->max_rows);
    in_range(c, "first_position + n_rows", (uint64_t)run->first_position + run->n_rows, 1, limits->max_context);
    /* Without ids the run has one row, which takes the last id sampled for the slot. */
    if (run->n_ids > 0 || run->n_rows != 1)
        in_range(c, "the number of ids", run->n_ids, run->n_rows, run->n_rows);
    all_below(c, "id", run->ids, run->n_ids, limits->n_vocab);
    in_range(c, "the number of blocks", run->n_blocks, 0, most_blocks);
    in_range(c, "first_block_idx + the number of blocks", (uint64_t)run->first_block_idx + run->n_blocks, 0,
             mr_msg_table_entries(limits));
    all_below(c, "block", run->blocks, run->n_blocks, limits->n_kv_blocks);
    int_in_range(c, "want", (int)run->want, MILLRACE__WANT__WANT_NOTHING, MILLRACE__WANT__WANT_LAST_HIDDEN);
}

static void check_step(checks *c, const Millrace__StepPlan *step, const mr_msg_limits *limits) {
    uint64_t n_rows = 0;
    in_range(c, "the number of runs", step->n_runs, 1, limits->max_rows);
    c->item = "run";
    for (size_t i = 0; i < step->n_runs && c->status == MR_OK; i++) {
        c->item_idx = i;
        check_run(c, step->runs[i], limits);
        n_rows += step->runs[i]->n_rows;
    }
    c->item = NULL;
    in_range(c, "the number of rows", n_rows, 1, limits->max_rows);
    in_range(c, "the number of copied blocks", step->n_copy_from, 0, limits->max_sequences);
    in_range(c, "the number of their copies", step->n_copy_to, step->n_copy_from, step->n_copy_from);
    all_below(c, "copied block", step->copy_from, step->n_copy_from, limits->n_kv_blocks);
    all_below(c, "copy", step->copy_to, step->n_copy_to, limits->n_kv_blocks);
}

/* Each part begins with a block, and all blocks together are a limited number. least_bytes: of a part. */
static void check_parts(checks *c, Millrace__FilePart *const *parts, size_t n, uint64_t least_bytes) {
    uint64_t n_blocks = MR_MAX_FILE_BLOCKS;
    in_range(c, "the number of parts", n, 0, MR_MAX_FILE_PARTS);
    c->item = "part";
    for (size_t i = 0; i < n && c->status == MR_OK; i++) {
        const Millrace__FilePart *p = parts[i];
        c->item_idx = i;
        in_range(c, "bytes", p->bytes, least_bytes, n_blocks * MR_FILE_BLOCK_BYTES);
        in_range(c, "header_bytes", p->header_bytes, p->bytes > 0, p->bytes);
        in_range(c, "the number of sources", p->n_sources, 0, MR_MAX_PART_SOURCES);
        all_below(c, "source", p->sources, p->n_sources, MR_MAX_STAGES);
        n_blocks -= c->status == MR_OK ? p->bytes / MR_FILE_BLOCK_BYTES + (p->bytes % MR_FILE_BLOCK_BYTES > 0) : 0;
    }
    c->item = NULL;
}

static void check_share(checks *c, const Millrace__ShareFile *share) {
    in_range(c, "the number of askers", share->n_askers, 0, MR_MAX_STAGES);
    all_below(c, "asker", share->askers, share->n_askers, MR_MAX_STAGES);
    in_range(c, "the number of parts", share->n_parts, 1, MR_MAX_FILE_PARTS);
    for (size_t i = 0; i < share->n_parts; i++)
        known_fields(c, &share->parts[i]->base);
    check_parts(c, share->parts, share->n_parts, 1);
    check_roots(c, "the length of part_roots", &share->part_roots, share->n_parts);
}

/* Starts the checks of a message with a oneof. body: any member of the union, because all members are pointers to
 * messages; NULL: the oneof is empty. */
static void begin_body(checks *c, const ProtobufCMessage *outer, const void *body) {
    known_fields(c, outer);
    if (c->status != MR_OK || !body)
        return;
    c->body = body;
    if (c->body->descriptor != &millrace__hello__descriptor)
        known_fields(c, c->body);
}

mr_status mr_msg_check_control(const Millrace__Control *m, const mr_msg_limits *limits, mr_err *err) {
    checks c = {.err = err, .message = "control message"};
    begin_body(&c, &m->base, m->plan);
    if (c.status != MR_OK)
        return c.status;
    switch ((int)m->body_case) {
    case MILLRACE__CONTROL__BODY_PLAN:
        check_plan(&c, m->plan);
        break;
    case MILLRACE__CONTROL__BODY_OPEN:
        check_open(&c, m->open, limits);
        break;
    case MILLRACE__CONTROL__BODY_CLOSE:
        below(&c, "slot", m->close->slot, limits->max_sequences);
        break;
    case MILLRACE__CONTROL__BODY_STEP:
        check_step(&c, m->step, limits);
        break;
    case MILLRACE__CONTROL__BODY_ABORT:
        in_range(&c, "the number of ranks that are gone", m->abort->n_gone, 0, MR_MAX_STAGES);
        for (size_t i = 0; i < m->abort->n_gone && c.status == MR_OK; i++)
            below(&c, "a rank that is gone", m->abort->gone[i], MR_MAX_STAGES);
        break;
    case MILLRACE__CONTROL__BODY_SHUTDOWN:
    case MILLRACE__CONTROL__BODY_PING:
    case MILLRACE__CONTROL__BODY_HEADERS:
    case MILLRACE__CONTROL__BODY_REPORT_USES:
        break;
    case MILLRACE__CONTROL__BODY_START:
        in_range(&c, "epoch", m->start->epoch, 1, UINT32_MAX);
        break;
    case MILLRACE__CONTROL__BODY_SHARE:
        check_share(&c, m->share);
        break;
    case MILLRACE__CONTROL__BODY_MEASURE:
        check_measure(&c, m->measure);
        break;
    case MILLRACE__CONTROL__BODY_PREPARE:
        check_prepare(&c, m->prepare);
        break;
    case MILLRACE__CONTROL__BODY_GIVE_KV:
        check_give_kv(&c, m->give_kv);
        break;
    case MILLRACE__CONTROL__BODY_TAKE_KV:
        check_take_kv(&c, m->take_kv);
        break;
    case MILLRACE__CONTROL__BODY_PROBE:
        below(&c, "peer", m->probe->peer, MR_MAX_STAGES);
        in_range(&c, "way", m->probe->way, 0, MR_WAYS);
        break;
    default:
        fail(&c, "body is %d, which is not a known message", (int)m->body_case);
    }
    return c.status;
}

mr_status mr_msg_check_tokens(const Millrace__Tokens *m, const mr_msg_limits *limits, mr_err *err) {
    checks c = {.err = err, .message = "tokens"};
    known_fields(&c, &m->base);
    in_range(&c, "the number of tokens", m->n_tokens, 0, limits->max_rows);
    c.item = "token";
    for (size_t i = 0; i < m->n_tokens && c.status == MR_OK; i++) {
        const Millrace__Token *t = m->tokens[i];
        c.item_idx = i;
        known_fields(&c, &t->base);
        below(&c, "slot", t->slot, limits->max_sequences);
        in_range(&c, "position", t->position, 1, limits->max_context);
        below(&c, "id", t->id, limits->n_vocab);
        known_status(&c, t->status);
        double_in_range(&c, "mirostat_mu", t->mirostat_mu, -MAX_MIROSTAT_MU, MAX_MIROSTAT_MU);
        float_in_range(&c, "logprob", t->logprob, -INFINITY, 0.0f);
        in_range(&c, "the number of top ids", t->n_top_ids, 0, MR_MAX_TOP_LOGPROBS);
        in_range(&c, "the number of their logprobs", t->n_top_logprobs, t->n_top_ids, t->n_top_ids);
        all_below(&c, "top id", t->top_ids, t->n_top_ids, limits->n_vocab);
        for (size_t k = 0; k < t->n_top_logprobs; k++)
            float_in_range(&c, "a top logprob", t->top_logprobs[k], -INFINITY, 0.0f);
    }
    return c.status;
}

static void check_spans(checks *c, const Millrace__Spans *s, const mr_msg_limits *limits) {
    below(c, "stage", s->stage, limits->n_stages);
    in_range(c, "the number of steps", s->n_step, s->n_phase, s->n_phase);
    in_range(c, "the number of rows", s->n_rows, s->n_phase, s->n_phase);
    in_range(c, "the number of starts", s->n_start_ns, s->n_phase, s->n_phase);
    in_range(c, "the number of ends", s->n_end_ns, s->n_phase, s->n_phase);
    all_below(c, "phase", s->phase, s->n_phase, MR_SPAN_KINDS);
    for (size_t i = 0; i < s->n_phase && c->status == MR_OK; i++)
        in_range(c, "end_ns", s->end_ns[i], s->start_ns[i], MAX_CLOCK_NS);
}

/* Sums are bounded, so that a reader may add and divide them without overflow. */
static void check_step_sums(checks *c, const Millrace__StepSums *s, const mr_msg_limits *limits) {
    below(c, "stage", s->stage, limits->n_stages);
    in_range(c, "the number of classes", s->n_steps, 0, MR_ROW_CLASSES);
    in_range(c, "the number of rows", s->n_rows, s->n_steps, s->n_steps);
    in_range(c, "the number of times", s->n_ns, s->n_steps, s->n_steps);
    for (size_t i = 0; i < s->n_steps && c->status == MR_OK; i++) {
        uint64_t most = (uint64_t)1 << i, least = i > 0 ? most / 2 + 1 : 1;
        in_range(c, "rows", s->rows[i], least * s->steps[i], most * s->steps[i]);
        in_range(c, "ns", s->ns[i], 0, MR_MAX_PHASE_NS);
    }
    in_range(c, "round_rows", s->round_rows, 0, limits->max_rows);
    in_range(c, "round_ns", s->round_ns, 0, MR_MAX_PHASE_NS);
}

static void check_times(checks *c, const Millrace__Times *t) {
    uint64_t least = 1;
    known_fields(c, &t->base);
    in_range(c, "the number of points", t->n_rows, 1, MR_STEP_TIMES_MAX);
    in_range(c, "the number of times", t->n_seconds, t->n_rows, t->n_rows);
    for (size_t i = 0; i < t->n_rows && c->status == MR_OK; i++) {
        in_range(c, "the rows of a point", t->rows[i], least, MR_MAX_STEP_ROWS);
        double_in_range(c, "a time", t->seconds[i], 0, MAX_SECONDS);
        least = (uint64_t)t->rows[i] + 1;
    }
}

static void check_kind(checks *c, const Millrace__Times *t, double position_s) {
    check_times(c, t);
    double_in_range(c, "position_s", position_s, 0, MAX_SECONDS);
}

/* A curve that may have no points. */
static void check_maybe_times(checks *c, const Millrace__Times *t) {
    known_fields(c, &t->base);
    if (t->n_rows > 0 || t->n_seconds > 0)
        check_times(c, t);
}

static void check_device_facts(checks *c, const Millrace__DeviceFacts *d, size_t n_kinds) {
    known_fields(c, &d->base);
    below(c, "the length of the device's name", strlen(d->name), sizeof((mr_measured_device *)0)->name);
    in_range(c, "memory_bytes", d->memory_bytes, 0, MAX_DEVICE_BYTES);
    in_range(c, "the number of the device's kinds of layers", d->n_layers, n_kinds, n_kinds);
    in_range(c, "the number of the device's position_s", d->n_position_s, n_kinds, n_kinds);
    in_range(c, "the number of layer_bytes", d->n_layer_bytes, n_kinds, n_kinds);
    in_range(c, "the number of token_bytes", d->n_token_bytes, n_kinds, n_kinds);
    in_range(c, "the number of trunks", d->n_trunks, n_kinds, n_kinds);
    in_range(c, "the number of trunk_bytes", d->n_trunk_bytes, n_kinds, n_kinds);
    in_range(c, "stage_bytes", d->stage_bytes, 0, MAX_DEVICE_BYTES);
    in_range(c, "head_bytes", d->head_bytes, 0, MAX_DEVICE_BYTES);
    in_range(c, "tail_bytes", d->tail_bytes, 0, MAX_DEVICE_BYTES);
    if (c->status == MR_OK && (!d->output || !d->crossing))
        fail(c, "the times of the device are not complete");
    if (c->status == MR_OK)
        check_times(c, d->output);
    if (c->status == MR_OK)
        check_times(c, d->crossing);
    c->item = "kind on the device";
    for (size_t i = 0; i < n_kinds && c->status == MR_OK; i++) {
        c->item_idx = i;
        check_maybe_times(c, d->trunks[i]);
        check_maybe_times(c, d->layers[i]);
        if (c->status == MR_OK && d->trunks[i]->n_rows == 0 && d->layers[i]->n_rows == 0)
            fail(c, "there are no times");
        double_in_range(c, "position_s", d->position_s[i], 0, MAX_SECONDS);
        in_range(c, "layer_bytes", d->layer_bytes[i], 0, MAX_DEVICE_BYTES);
        in_range(c, "token_bytes", d->token_bytes[i], 0, MAX_DEVICE_BYTES);
        in_range(c, "trunk_bytes", d->trunk_bytes[i], 0, MAX_DEVICE_BYTES);
    }
    c->item = NULL;
}

static void check_facts(checks *c, const Millrace__Facts *f) {
    rank_status(c, f->status);
    in_range(c, "the number of kinds of layers", f->n_layers, 0, MR_MAX_LAYER_KINDS);
    in_range(c, "the number of position_s", f->n_position_s, f->n_layers, f->n_layers);
    double_in_range(c, "sample_s", f->sample_s, 0, MAX_SECONDS);
    double_in_range(c, "core_share", f->core_share, 0, 1);
    if (c->status == MR_OK && f->n_layers > 0 && !f->output)
        fail(c, "the times of the output matrix are missing");
    if (c->status == MR_OK && f->output)
        check_times(c, f->output);
    c->item = "kind";
    for (size_t i = 0; i < f->n_layers && c->status == MR_OK; i++) {
        c->item_idx = i;
        check_kind(c, f->layers[i], f->position_s[i]);
    }
    c->item = NULL;
    if (c->status == MR_OK && f->device)
        check_device_facts(c, f->device, f->n_layers);
}

static void check_measured(checks *c, const Millrace__MeasuredAgain *m) {
    rank_status(c, m->status);
    if (c->status == MR_OK && m->status == MR_OK && !m->layer)
        fail(c, "the times of the layer are missing");
    if (c->status == MR_OK && m->layer)
        check_times(c, m->layer);
}

static void check_link(checks *c, const Millrace__LinkFacts *l) {
    below(c, "peer", l->peer, MR_MAX_STAGES);
    rank_status(c, l->status);
    in_range(c, "way", l->way, 0, MR_WAYS);
    double_in_range(c, "latency_s", l->latency_s, 0, MAX_SECONDS);
    double_in_range(c, "second_bytes", l->second_bytes, l->status == MR_OK && l->way == 0 ? 1 : 0,
                    MAX_BYTES_PER_SECOND);
}

static void check_seconds(checks *c, const Millrace__Seconds *m, const mr_msg_limits *limits) {
    below(c, "stage", m->stage, limits->n_stages);
    in_range(c, "the number of phases", m->n_ns, MR_PHASE_COUNT, MR_PHASE_COUNT);
    for (size_t i = 0; i < m->n_ns && c->status == MR_OK; i++)
        if (m->ns[i] > MR_MAX_PHASE_NS)
            fail(c, "the time of phase %zu is %" PRIu64 " ns", i, m->ns[i]);
}

/* Counts are bounded, so that a reader may add them without overflow. */
static void check_use_counts(checks *c, const Millrace__UseCounts *m, const mr_msg_limits *limits) {
    bool has_counts = !m->ended;
    below(c, "stage", m->stage, limits->n_stages);
    below(c, "layer", m->layer, MR_MAX_LAYERS);
    in_range(c, "n", m->n, has_counts, has_counts ? MR_MAX_USED : 0);
    in_range(c, "rows", m->rows, 0, MR_MAX_COUNTED_ROWS);
    in_range(c, "the number of counts", m->n_counts, has_counts, has_counts ? MR_USE_COUNTS_AT_ONCE : 0);
    in_range(c, "first + the number of counts", (uint64_t)m->first + m->n_counts, has_counts, m->n);
    for (size_t i = 0; i < m->n_counts && c->status == MR_OK; i++)
        in_range(c, "a count", m->counts[i], 0, m->rows);
}

static void check_expert_share(checks *c, const Millrace__ExpertShare *m, const mr_msg_limits *limits) {
    below(c, "stage", m->stage, limits->n_stages);
    in_range(c, "uses", m->uses, 0, MR_MAX_EXPERT_USES);
    in_range(c, "device_uses", m->device_uses, 0, m->uses);
    in_range(c, "swaps", m->swaps, 0, MR_MAX_EXPERT_USES);
}

/* A hello may have fields of another version of the program: the reader compares versions first. */
static void check_hello(checks *c, const Millrace__Hello *m) {
    for (size_t i = 0; i < m->base.n_unknown_fields; i++)
        in_range(c, "the number of an unknown field", m->base.unknown_fields[i].tag, 1, UINT32_MAX);
    rank_status(c, m->status);
    in_range(c, "cores", m->cores, 0, MAX_CORES);
    in_range(c, "threads", m->threads, 0, MAX_CORES);
    check_parts(c, m->parts, m->n_parts, 0);
    check_roots(c, "the length of part_roots", &m->part_roots, m->n_parts);
    in_range(c, "the number of digest_of", m->n_digest_of, 0, MR_MAX_DIGEST_PARTS);
    in_range(c, "the number of digest_bits", m->n_digest_bits, m->n_digest_of, m->n_digest_of);
    all_below(c, "digest_of", m->digest_of, m->n_digest_of, 1 << 16);
    if (m->n_device_uuid > 0)
        in_range(c, "the number of device_uuid", m->n_device_uuid, MR_DEVICE_UUID_WORDS, MR_DEVICE_UUID_WORDS);
}

static void check_ready(checks *c, const Millrace__Ready *m, const mr_msg_limits *limits) {
    below(c, "stage", m->stage, limits->n_stages);
    in_range(c, "way", m->way, 0, MR_WAYS - 1);
    in_range(c, "kept_layers", m->kept_layers, 0, MR_MAX_LAYERS);
}

static void check_failure(checks *c, const Millrace__Failure *m, const mr_msg_limits *limits) {
    below(c, "stage", m->stage, limits->n_stages);
    rank_status(c, m->status);
    in_range(c, "status", m->status, MR_E_INVALID, UINT32_MAX);
}

mr_status mr_msg_check_report(const Millrace__Report *m, const mr_msg_limits *limits, mr_err *err) {
    checks c = {.err = err, .message = "report"};
    begin_body(&c, &m->base, m->ready);
    if (c.status != MR_OK)
        return c.status;
    switch ((int)m->body_case) {
    case MILLRACE__REPORT__BODY_READY:
        check_ready(&c, m->ready, limits);
        break;
    case MILLRACE__REPORT__BODY_FAILURE:
        check_failure(&c, m->failure, limits);
        break;
    case MILLRACE__REPORT__BODY_PROGRESS:
        below(&c, "stage", m->progress->stage, limits->n_stages);
        in_range(&c, "done_bytes", m->progress->done_bytes, 0, m->progress->total_bytes);
        break;
    case MILLRACE__REPORT__BODY_PONG:
        int_in_range(&c, "clock_ns", m->pong->clock_ns, 0, MAX_CLOCK_NS);
        break;
    case MILLRACE__REPORT__BODY_FACTS:
        check_facts(&c, m->facts);
        break;
    case MILLRACE__REPORT__BODY_MEASURED:
        check_measured(&c, m->measured);
        break;
    case MILLRACE__REPORT__BODY_LINK:
        check_link(&c, m->link);
        break;
    case MILLRACE__REPORT__BODY_SPANS:
        check_spans(&c, m->spans, limits);
        break;
    case MILLRACE__REPORT__BODY_SECONDS:
        check_seconds(&c, m->seconds, limits);
        break;
    case MILLRACE__REPORT__BODY_STEP_SUMS:
        check_step_sums(&c, m->step_sums, limits);
        break;
    case MILLRACE__REPORT__BODY_USE_COUNTS:
        check_use_counts(&c, m->use_counts, limits);
        break;
    case MILLRACE__REPORT__BODY_EXPERT_SHARE:
        check_expert_share(&c, m->expert_share, limits);
        break;
    case MILLRACE__REPORT__BODY_STATE:
    case MILLRACE__REPORT__BODY_TOOK_KV: /* any numbers will do */
        break;
    case MILLRACE__REPORT__BODY_HELD:
        rank_status(&c, m->held->status);
        break;
    case MILLRACE__REPORT__BODY_HEADERS:
        rank_status(&c, m->headers->status);
        break;
    case MILLRACE__REPORT__BODY_HELLO:
        check_hello(&c, m->hello);
        break;
    default:
        fail(&c, "body is %d, which is not a known message", (int)m->body_case);
    }
    return c.status;
}

mr_status mr_msg_check_link_setup(const Millrace__LinkSetup *m, mr_err *err) {
    checks c = {.err = err, .message = "link setup"};
    known_fields(&c, &m->base);
    int_in_range(&c, "step", (int)m->step, MILLRACE__LINK_SETUP__STEP__OFFER, MILLRACE__LINK_SETUP__STEP__RESULT);
    rank_status(&c, m->status);
    if (m->step != MILLRACE__LINK_SETUP__STEP__OFFER || m->status != MR_OK)
        return c.status;
    in_range(&c, "way", m->way, MR_WAY_HOST + 1, MR_WAYS - 1);
    in_range(&c, "the number of uuid", m->n_uuid, MR_DEVICE_UUID_WORDS, MR_DEVICE_UUID_WORDS);
    in_range(&c, "the bytes of id", m->id.len, MR_CARRIER_ID_BYTES, MR_CARRIER_ID_BYTES);
    return c.status;
}

mr_status mr_msg_check_file_request(const Millrace__FileRequest *m, uint64_t n_file_blocks, mr_err *err) {
    checks c = {.err = err, .message = "file request"};
    known_fields(&c, &m->base);
    int_in_range(&c, "what", (int)m->what, MILLRACE__FILE_REQUEST__WHAT__HASHES, MILLRACE__FILE_REQUEST__WHAT__NO_MORE);
    if (m->what == MILLRACE__FILE_REQUEST__WHAT__NO_MORE)
        return c.status;
    below(&c, "first_block", m->first_block, n_file_blocks);
    in_range(&c, "n_blocks", m->n_blocks, 1, m->what == MILLRACE__FILE_REQUEST__WHAT__BLOCK ? 1 : MR_MAX_FILE_HASHES);
    if (c.status == MR_OK)
        in_range(&c, "first_block + n_blocks", m->first_block + m->n_blocks, 1, n_file_blocks);
    return c.status;
}
