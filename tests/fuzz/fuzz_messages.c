/* tests/fuzz/fuzz_messages.c - fuzzes messages of millrace.proto. Uses every message that passes the checks as its
 * readers do, with tables of exactly the size that the checks allow. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "proto/device_link.h"
#include "proto/measured.h"
#include "proto/messages.h"
#include "proto/phases.h"
#include "tests/fuzz/fuzz.h"

enum { ARENA_BYTES = 64 << 10, FILE_BLOCKS = 1000 };

static const mr_msg_limits limits = {
    .n_stages = 4,
    .max_rows = 32,
    .max_sequences = 8,
    .max_context = 200,
    .n_kv_blocks = 50,
    .n_vocab = 1000,
};

/* The tables that accepted messages index, of exactly the allowed size. */
static volatile uint8_t slots[8], vocabulary[1000], blocks[50], positions[201], stages[4], phases[MR_SPAN_KINDS];
static volatile uint8_t file_blocks[FILE_BLOCKS], ranks[MR_MAX_STAGES];
static volatile int64_t time_ns;

static void use_run(const Millrace__Run *run) {
    slots[run->slot]++;
    for (uint32_t i = 0; i < run->n_rows; i++)
        positions[run->first_position + i]++;
    for (size_t i = 0; i < run->n_ids; i++)
        vocabulary[run->ids[i]]++;
    for (size_t i = 0; i < run->n_blocks; i++) {
        blocks[run->blocks[i]]++;
        positions[(run->first_block_idx + i) * MR_WIRE_BLOCK_TOKENS]++;
    }
    MR_ASSERT(run->n_ids == run->n_rows || (run->n_ids == 0 && run->n_rows == 1));
}

static void use_step(const Millrace__StepPlan *step) {
    uint64_t n_rows = 0;
    for (size_t i = 0; i < step->n_runs; i++) {
        use_run(step->runs[i]);
        n_rows += step->runs[i]->n_rows;
    }
    MR_ASSERT(n_rows >= 1 && n_rows <= limits.max_rows);
}

static void use_open(const Millrace__OpenSequence *open) {
    slots[open->slot]++;
    for (size_t i = 0; i < open->n_ids; i++)
        vocabulary[open->ids[i]]++;
    MR_ASSERT(open->n_generated <= open->n_ids && open->grammar.len <= MR_MAX_GRAMMAR_BYTES);
    for (size_t i = 0; open->sampling && i < open->sampling->n_bias_ids; i++) {
        vocabulary[open->sampling->bias_ids[i]]++;
        MR_ASSERT(open->sampling->biases[i] < INFINITY);
    }
    for (size_t i = 0; open->sampling && i < open->sampling->n_dry_breakers; i++)
        vocabulary[open->sampling->dry_breakers[i]]++;
    for (size_t i = 0; open->sampling && i < open->sampling->n_late_ids; i++)
        vocabulary[open->sampling->late_ids[i]]++;
    const uint32_t *word = open->sampling ? open->sampling->bad_words : NULL;
    for (const uint32_t *end = word ? word + open->sampling->n_bad_words : NULL; word < end; word += 1 + *word)
        for (uint32_t i = 1; i <= *word; i++)
            vocabulary[word[i]]++;
}

static void use_plan(const Millrace__Plan *plan) {
    MR_ASSERT(plan->n_stages >= 1 && plan->stages[0]->first_layer == 0);
    for (size_t i = 0; i < plan->n_stages; i++) {
        const Millrace__StageRange *s = plan->stages[i];
        MR_ASSERT(s->device_layers <= s->last_layer - s->first_layer);
        MR_ASSERT(s->first_layer < s->last_layer || (plan->synthetic && s->first_layer == s->last_layer));
        MR_ASSERT(i == 0 || s->first_layer == plan->stages[i - 1]->last_layer);
    }
}

static void use_prepare(const Millrace__Prepare *m) {
    MR_ASSERT(m->n_stages <= MR_MAX_STAGES);
    for (size_t i = 0; i < m->n_stages; i++) {
        MR_ASSERT(m->stages[i]->first_layer < m->stages[i]->last_layer);
        MR_ASSERT(i == 0 || m->stages[i]->first_layer >= m->stages[i - 1]->last_layer);
        MR_ASSERT(m->stages[i]->device_layers <= m->stages[i]->last_layer - m->stages[i]->first_layer);
    }
}

static void use_control(const Millrace__Control *c) {
    switch (c->body_case) {
    case MILLRACE__CONTROL__BODY_PLAN:
        use_plan(c->plan);
        break;
    case MILLRACE__CONTROL__BODY_OPEN:
        use_open(c->open);
        break;
    case MILLRACE__CONTROL__BODY_CLOSE:
        slots[c->close->slot]++;
        break;
    case MILLRACE__CONTROL__BODY_STEP:
        use_step(c->step);
        break;
    case MILLRACE__CONTROL__BODY_START:
        MR_ASSERT(c->start->epoch > 0);
        break;
    case MILLRACE__CONTROL__BODY_SHARE:
        MR_ASSERT(c->share->n_parts > 0);
        for (size_t i = 0; i < c->share->n_parts; i++)
            MR_ASSERT(c->share->parts[i]->header_bytes <= c->share->parts[i]->bytes);
        for (size_t i = 0; i < c->share->n_askers; i++)
            ranks[c->share->askers[i]]++;
        break;
    case MILLRACE__CONTROL__BODY_MEASURE:
        MR_ASSERT(c->measure->max_rows >= 1 && c->measure->max_rows <= MR_MAX_STEP_ROWS);
        MR_ASSERT(c->measure->n_together >= 1);
        break;
    case MILLRACE__CONTROL__BODY_PROBE:
        MR_ASSERT(c->probe->peer < MR_MAX_STAGES);
        break;
    case MILLRACE__CONTROL__BODY_ABORT:
        for (size_t i = 0; i < c->abort->n_gone; i++)
            ranks[c->abort->gone[i]]++;
        break;
    case MILLRACE__CONTROL__BODY_PREPARE:
        use_prepare(c->prepare);
        break;
    case MILLRACE__CONTROL__BODY_GIVE_KV:
        ranks[c->give_kv->to]++;
        MR_ASSERT(c->give_kv->kv_epoch < c->give_kv->epoch && c->give_kv->blocks.len <= MR_MAX_GIVEN_KV_BYTES);
        break;
    case MILLRACE__CONTROL__BODY_TAKE_KV:
        ranks[c->take_kv->from]++;
        MR_ASSERT(c->take_kv->first_layer < c->take_kv->last_layer && c->take_kv->last_layer <= MR_MAX_LAYERS);
        MR_ASSERT(c->take_kv->n_sent_blocks <= c->take_kv->n_kv_blocks);
        break;
    case MILLRACE__CONTROL__BODY_HEADERS:
    case MILLRACE__CONTROL__BODY_SHUTDOWN:
    case MILLRACE__CONTROL__BODY_PING:
    case MILLRACE__CONTROL__BODY_REPORT_USES:
        break;
    default:
        MR_ASSERT(!"a body that is none has passed");
    }
}

static void use_tokens(const Millrace__Tokens *t) {
    MR_ASSERT(t->n_tokens <= limits.max_rows);
    for (size_t i = 0; i < t->n_tokens; i++) {
        slots[t->tokens[i]->slot]++;
        vocabulary[t->tokens[i]->id]++;
        positions[t->tokens[i]->position]++;
        for (size_t k = 0; k < t->tokens[i]->n_top_ids; k++) {
            vocabulary[t->tokens[i]->top_ids[k]]++;
            MR_ASSERT(t->tokens[i]->top_logprobs[k] <= 0);
        }
    }
}

static void use_request(const Millrace__FileRequest *r) {
    if (r->what == MILLRACE__FILE_REQUEST__WHAT__NO_MORE)
        return;
    MR_ASSERT(r->n_blocks >= 1 && r->n_blocks <= MR_MAX_FILE_HASHES);
    MR_ASSERT(r->what == MILLRACE__FILE_REQUEST__WHAT__HASHES || r->n_blocks == 1);
    for (uint32_t i = 0; i < r->n_blocks; i++)
        file_blocks[r->first_block + i]++;
}

static void use_setup(const Millrace__LinkSetup *m) {
    uint8_t id[MR_CARRIER_ID_BYTES] = {0};
    MR_ASSERT(strlen(m->text) < MR_MAX_ERROR_TEXT && m->step <= MILLRACE__LINK_SETUP__STEP__RESULT);
    if (m->step != MILLRACE__LINK_SETUP__STEP__OFFER || m->status != MR_OK)
        return;
    memcpy(id, m->id.data, sizeof id);
    file_blocks[(m->uuid[0] ^ m->uuid[1]) % FILE_BLOCKS] += id[0];
    MR_ASSERT(m->way > MR_WAY_HOST && m->way < MR_WAYS);
}

static void use_text(const char *text) {
    MR_ASSERT(strlen(text) < MR_MAX_ERROR_TEXT);
    for (const char *s = text; *s; s++)
        MR_ASSERT(*s >= 0x20 && *s <= 0x7e);
}

static void use_hello(const Millrace__Hello *h) {
    const char *const texts[] = {h->version, h->host, h->isa, h->text, h->model_path};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        use_text(texts[i]);
    MR_ASSERT((int32_t)h->cores >= 0 && (int32_t)h->threads >= 0);
}

static void use_spans(const Millrace__Spans *s) {
    stages[s->stage]++;
    for (size_t i = 0; i < s->n_phase; i++) {
        phases[s->phase[i]]++;
        time_ns = (int64_t)s->end_ns[i] - (int64_t)s->start_ns[i];
        MR_ASSERT(time_ns >= 0);
        vocabulary[(s->step[i] + s->rows[i]) % 1000]++;
    }
}

static void use_seconds(const Millrace__Seconds *s) {
    stages[s->stage]++;
    for (size_t i = 0; i < MR_PHASE_COUNT; i++)
        phases[i] += s->ns[i] > 0;
}

static void use_step_sums(const Millrace__StepSums *s) {
    stages[s->stage]++;
    MR_ASSERT(s->n_steps <= MR_ROW_CLASSES);
    for (size_t i = 0; i < s->n_steps; i++)
        if (s->steps[i] > 0)
            vocabulary[(s->rows[i] / s->steps[i] + s->ns[i] / s->rows[i]) % 1000]++;
}

static void use_counts(const Millrace__UseCounts *m) {
    stages[m->stage]++;
    MR_ASSERT((m->n_counts == 0) == (m->ended != 0));
    MR_ASSERT(m->layer < MR_MAX_LAYERS && m->first + m->n_counts <= m->n && m->n <= MR_MAX_USED);
    for (size_t i = 0; i < m->n_counts; i++)
        vocabulary[m->counts[i] % 1000] += m->counts[i] <= m->rows;
}

static void use_times(const Millrace__Times *t) {
    mr_step_times copy = {0};
    for (size_t i = 0; i < t->n_rows; i++) {
        copy.rows[i] = (int32_t)t->rows[i];
        copy.seconds[i] = t->seconds[i];
        MR_ASSERT(copy.seconds[i] >= 0 && (i == 0 || copy.rows[i] > copy.rows[i - 1]));
    }
}

static void use_device(const Millrace__DeviceFacts *d, size_t n_kinds) {
    use_text(d->name);
    MR_ASSERT(strlen(d->name) < sizeof((mr_measured_device *)0)->name);
    MR_ASSERT(d->n_layers == n_kinds && d->n_position_s == n_kinds);
    MR_ASSERT(d->n_layer_bytes == n_kinds && d->n_token_bytes == n_kinds);
    for (size_t i = 0; i < n_kinds; i++) {
        use_times(d->layers[i]);
        MR_ASSERT(d->position_s[i] >= 0 && d->layer_bytes[i] <= UINT64_C(1) << 50);
    }
    use_times(d->output);
    use_times(d->crossing);
}

static void use_facts(const Millrace__Facts *f) {
    use_text(f->text);
    MR_ASSERT(f->n_layers <= MR_MAX_LAYER_KINDS && (f->output || f->n_layers == 0));
    MR_ASSERT(f->n_position_s == f->n_layers);
    for (size_t i = 0; i < f->n_layers; i++) {
        use_times(f->layers[i]);
        MR_ASSERT(f->position_s[i] >= 0);
    }
    if (f->output)
        use_times(f->output);
    if (f->device)
        use_device(f->device, f->n_layers);
    MR_ASSERT(f->sample_s >= 0 && f->core_share >= 0 && f->core_share <= 1);
}

static void use_report(const Millrace__Report *r) {
    switch (r->body_case) {
    case MILLRACE__REPORT__BODY_READY:
        stages[r->ready->stage]++;
        break;
    case MILLRACE__REPORT__BODY_PROGRESS:
        stages[r->progress->stage]++;
        break;
    case MILLRACE__REPORT__BODY_FAILURE:
        stages[r->failure->stage]++;
        use_text(r->failure->text);
        break;
    case MILLRACE__REPORT__BODY_HELLO:
        use_hello(r->hello);
        break;
    case MILLRACE__REPORT__BODY_PONG: /* the coordinator subtracts its own clock */
        time_ns = r->pong->clock_ns - MR_NS_PER_S;
        break;
    case MILLRACE__REPORT__BODY_STATE:
    case MILLRACE__REPORT__BODY_TOOK_KV:
        break;
    case MILLRACE__REPORT__BODY_HELD:
        use_text(r->held->text);
        break;
    case MILLRACE__REPORT__BODY_HEADERS:
        use_text(r->headers->text);
        break;
    case MILLRACE__REPORT__BODY_FACTS:
        use_facts(r->facts);
        break;
    case MILLRACE__REPORT__BODY_MEASURED:
        use_text(r->measured->text);
        MR_ASSERT(r->measured->layer || r->measured->status != MR_OK);
        if (r->measured->layer)
            use_times(r->measured->layer);
        break;
    case MILLRACE__REPORT__BODY_LINK:
        use_text(r->link->text);
        MR_ASSERT(r->link->peer < MR_MAX_STAGES && r->link->latency_s >= 0 && r->link->second_bytes >= 0);
        break;
    case MILLRACE__REPORT__BODY_SPANS:
        use_spans(r->spans);
        break;
    case MILLRACE__REPORT__BODY_SECONDS:
        use_seconds(r->seconds);
        break;
    case MILLRACE__REPORT__BODY_STEP_SUMS:
        use_step_sums(r->step_sums);
        break;
    case MILLRACE__REPORT__BODY_USE_COUNTS:
        use_counts(r->use_counts);
        break;
    case MILLRACE__REPORT__BODY_EXPERT_SHARE:
        stages[r->expert_share->stage]++;
        MR_ASSERT(r->expert_share->device_uses <= r->expert_share->uses);
        break;
    default:
        MR_ASSERT(!"a body that is none has passed");
    }
}

/* Unpacks and uses one message of a kind (0 to 4). Returns NULL if the message is refused. */
static const ProtobufCMessage *receive(int kind, const uint8_t *data, size_t size, mr_arena *arena) {
    mr_err err = {0};
    void *m = NULL;
    mr_status status;
    if (kind == 0)
        status = mr_msg_unpack_control(data, size, &limits, arena, (Millrace__Control **)&m, &err);
    else if (kind == 1)
        status = mr_msg_unpack_tokens(data, size, &limits, arena, (Millrace__Tokens **)&m, &err);
    else if (kind == 3)
        status = mr_msg_unpack_file_request(data, size, FILE_BLOCKS, arena, (Millrace__FileRequest **)&m, &err);
    else if (kind == 4)
        status = mr_msg_unpack_link_setup(data, size, arena, (Millrace__LinkSetup **)&m, &err);
    else
        status = mr_msg_unpack_report(data, size, &limits, arena, (Millrace__Report **)&m, &err);
    if (status != MR_OK) {
        MR_ASSERT(status == MR_E_PROTOCOL && err.status == status && err.text[0] && !m);
        return NULL;
    }
    if (kind == 0)
        use_control(m);
    else if (kind == 1)
        use_tokens(m);
    else if (kind == 3)
        use_request(m);
    else if (kind == 4)
        use_setup(m);
    else
        use_report(m);
    return m;
}

/* Packs an accepted message again. The packed bytes must be accepted, too. */
static void send_again(int kind, const ProtobufCMessage *m, size_t size) {
    static uint8_t memory[ARENA_BYTES];
    size_t bytes = 0, capacity = 2 * size + 1024;
    uint8_t *packed = malloc(capacity);
    MR_ASSERT(packed && mr_msg_pack(m, packed, capacity, &bytes, NULL) == MR_OK);
    MR_ASSERT(receive(kind, packed, bytes, mr_arena_create_fixed(memory, sizeof memory)));
    free(packed);
}

/* The first byte selects the kind of message and the size of the memory. The other bytes are the message. */
int mr_fuzz_messages(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    /* Keeps the meaning of corpus files from before there were a fourth and a fifth kind. */
    int kind = data[0] == 3 || data[0] == 4 ? data[0] : data[0] % 3;
    size_t room = data[0] & 0x80 ? (size_t)(data[0] & 0x7c) * 16 + 256 : ARENA_BYTES;
    uint8_t *memory = malloc(room);
    mr_arena *fixed = mr_arena_create_fixed(memory, room), *loose = NULL;
    MR_ASSERT(memory && fixed);
    data++;
    size--;
    const ProtobufCMessage *m = receive(kind, data, size, fixed);
    if (m && room == ARENA_BYTES)
        send_again(kind, m, size);
    /* With chunks of one byte each allocation is a block of its own, so a sanitizer detects an access behind its
     * end. */
    MR_ASSERT(mr_arena_create(1, 1 << 20, &loose, NULL) == MR_OK);
    receive(kind, data, size, loose);
    mr_arena_destroy(loose);
    free(memory);
    return 0;
}
