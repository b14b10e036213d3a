// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/proto/test_proto_samples.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const mr_msg_limits sample_limits = {
    .n_stages = 4,
    .max_rows = 16,
    .max_sequences = 8,
    .max_context = CONTEXT, /* 7 blocks */
    .n_kv_blocks = 50,
    .n_vocab = 1000,
};

static void plan_init(samples *s) {
    s->plan = (Millrace__Plan)MILLRACE__PLAN__INIT;
    for (uint32_t i = 0; i < 3; i++) {
        s->stage[i] = (Millrace__StageRange)MILLRACE__STAGE_RANGE__INIT;
        s->stage[i].rank = 3 - i;
        s->stage[i].first_layer = 10 * i;
        s->stage[i].last_layer = 10 * i + 10;
        s->stages[i] = &s->stage[i];
    }
    s->plan.epoch = 7;
    s->stage[2].device_layers = 3;
    s->stage[2].host_experts = s->stage[2].device_experts = 2;
    s->stage[2].held_experts = s->held_experts;
    s->stage[2].n_held_experts = 4;
    for (uint32_t i = 0; i < 4; i++)
        s->held_experts[i] = 4095 - i;
    s->plan.n_stages = 3;
    s->plan.stages = s->stages;
    s->plan.n_kv_blocks = MR_MAX_KV_BLOCKS;
    s->plan.kv_type = 1;
    s->plan.max_rows = MR_MAX_STEP_ROWS;
    s->plan.max_out_rows = MR_MAX_STEP_ROWS;
    s->plan.max_sequences = MR_MAX_SEQUENCES;
    s->plan.max_context = MR_MAX_CONTEXT;
    s->plan.ring_slots = MR_MAX_RING_SLOTS;
    s->plan.map_weights = true;
    s->plan.counts_uses = true;
    s->plan.renew_rows = MR_MAX_RENEW_ROWS;
    s->plan.weights_root = (ProtobufCBinaryData){.len = MR_FILE_HASH_BYTES, .data = s->roots};
    s->plan.fast_numerics = true;
}

static void open_init(samples *s) {
    s->open = (Millrace__OpenSequence)MILLRACE__OPEN_SEQUENCE__INIT;
    s->open.slot = 7;
    s->open.generation = UINT32_MAX;
    s->open.n_ids = 5;
    s->open.ids = s->prompt;
    s->prompt[4] = 999;
    s->open.sampling = &s->sampling;
    s->sampling = (Millrace__Sampling)MILLRACE__SAMPLING__INIT;
    s->sampling.temperature = 0.8f;
    s->sampling.top_k = INT32_MAX;
    s->sampling.top_p = 1.0f;
    s->sampling.repeat_penalty = 1.1f;
    s->sampling.repeat_last_n = -1;
    s->sampling.seed = UINT64_MAX;
    s->sampling.presence_penalty = -2.0f;
    s->sampling.frequency_penalty = 2.0f;
    s->sampling.typical_p = 1.0f;
    s->sampling.top_n_sigma = 1.5f;
    s->sampling.xtc_probability = s->sampling.xtc_threshold = 0.5f;
    s->sampling.dry_multiplier = 0.8f;
    s->sampling.dry_base = 1.75f;
    s->sampling.dry_allowed_length = INT32_MAX;
    s->sampling.dry_last_n = -1;
    s->sampling.dry_breakers = s->prompt;
    s->sampling.n_dry_breakers = 5;
    s->sampling.mirostat = 2;
    s->sampling.mirostat_tau = 5.0f;
    s->sampling.mirostat_eta = 0.1f;
    s->sampling.mirostat_mu = -1e12;
    s->sampling.bias_ids = s->bias_ids;
    s->sampling.biases = s->biases;
    s->sampling.n_bias_ids = s->sampling.n_biases = 2;
    s->bias_ids[1] = 999;
    s->biases[0] = -100.0f;
    s->biases[1] = -INFINITY;
    s->sampling.min_tokens = 3;
    s->sampling.late_ids = s->prompt;
    s->sampling.n_late_ids = 5;
    s->sampling.bad_words = s->bad_words;
    s->sampling.n_bad_words = 5;
    s->bad_words[0] = 1;
    s->bad_words[1] = 999;
    s->bad_words[2] = 2;
    s->sampling.logprobs = true;
    s->sampling.n_top_logprobs = MR_MAX_TOP_LOGPROBS;
    s->open.n_generated = 5;
    s->open.grammar.data = s->packed_grammar;
    s->open.grammar.len = sizeof s->packed_grammar;
    s->open.n_blocks = 7;
    s->open.blocks = s->blocks;
    s->close = (Millrace__CloseSequence)MILLRACE__CLOSE_SEQUENCE__INIT;
    s->close.slot = 7;
}

static void step_init(samples *s) {
    s->step = (Millrace__StepPlan)MILLRACE__STEP_PLAN__INIT;
    s->step.step = UINT64_MAX;
    s->step.n_runs = 3;
    s->step.runs = s->runs;
    s->step.n_copy_from = s->step.n_copy_to = 3;
    s->step.copy_from = s->blocks;
    s->step.copy_to = s->copies;
    for (uint32_t i = 0; i < 3; i++) {
        s->run[i] = (Millrace__Run)MILLRACE__RUN__INIT;
        s->run[i].slot = 7 - i;
        s->run[i].first_position = CONTEXT - 1;
        s->run[i].n_rows = 1;
        s->run[i].want = (Millrace__Want)i;
        s->runs[i] = &s->run[i];
    }
    /* A prefill chunk that ends at the last position of the context, with the last block of the table. */
    s->run[1].n_rows = 14;
    s->run[1].first_position = CONTEXT - 14;
    s->run[1].n_ids = 14;
    s->run[1].ids = s->ids;
    s->run[1].first_block_idx = 6;
    s->run[1].n_blocks = 1;
    s->run[1].blocks = s->blocks;
    s->ids[13] = 999;
    s->blocks[0] = 49;
}

static void tokens_init(samples *s) {
    s->tokens = (Millrace__Tokens)MILLRACE__TOKENS__INIT;
    s->tokens.step = 5;
    s->tokens.n_tokens = 2;
    s->tokens.tokens = s->token_list;
    for (uint32_t i = 0; i < 2; i++) {
        s->token[i] = (Millrace__Token)MILLRACE__TOKEN__INIT;
        s->token[i].slot = 7;
        s->token[i].position = i ? CONTEXT : 1;
        s->token[i].id = 999;
        s->token[i].status = i ? MR_E_NUMERICS : MR_OK;
        s->token[i].mirostat_mu = 1e12;
        s->token[i].logprob = i ? -INFINITY : 0.0f;
        s->token[i].n_top_ids = s->token[i].n_top_logprobs = MR_MAX_TOP_LOGPROBS * i;
        s->token[i].top_ids = s->top_ids;
        s->token[i].top_logprobs = s->top_logprobs;
        s->top_ids[19] = 999;
        s->top_logprobs[19] = -INFINITY;
        s->token_list[i] = &s->token[i];
    }
}

static void report_init(samples *s) {
    s->report = (Millrace__Report)MILLRACE__REPORT__INIT;
    s->ready = (Millrace__Ready)MILLRACE__READY__INIT;
    s->ready.stage = 3;
    s->ready.weight_bytes = UINT64_MAX;
    s->failure = (Millrace__Failure)MILLRACE__FAILURE__INIT;
    s->failure.stage = 3;
    s->failure.status = MR_E_DEVICE;
    s->failure.text = s->text;
    snprintf(s->text, sizeof s->text, "the disk is full");
    s->progress = (Millrace__LoadProgress)MILLRACE__LOAD_PROGRESS__INIT;
    s->progress.stage = 3;
    s->progress.done_bytes = s->progress.total_bytes = 1;
}

static void hello_init(samples *s) {
    s->hello = (Millrace__Hello)MILLRACE__HELLO__INIT;
    snprintf(s->version, sizeof s->version, "0.1.0");
    snprintf(s->host, sizeof s->host, "node7");
    s->hello.version = s->version;
    s->hello.host = s->hello.isa = s->hello.model_path = s->host;
    s->hello.text = s->text;
    s->hello.status = MR_E_NOT_FOUND;
    s->hello.numerics = 1;
    s->hello.cores = s->hello.threads = 64;
    s->hello.memory_group = UINT64_MAX;
    s->hello.n_digest_of = s->hello.n_digest_bits = MR_MAX_DIGEST_PARTS;
    s->hello.n_device_uuid = 2;
    s->hello.device_uuid = s->uuid;
    s->hello.digest_of = s->digest_of;
    s->hello.digest_bits = s->digest_bits;
    for (size_t i = 0; i < MR_MAX_DIGEST_PARTS; i++) {
        s->digest_of[i] = UINT16_MAX;
        s->digest_bits[i] = UINT64_MAX;
    }
    s->hello.memory_bytes = UINT64_MAX;
    s->hello.n_parts = MR_MAX_FILE_PARTS;
    s->hello.parts = s->part_points;
    s->pong = (Millrace__Pong)MILLRACE__PONG__INIT;
    s->pong.clock_ns = INT64_MAX / 4;
    s->state = (Millrace__RankState)MILLRACE__RANK_STATE__INIT;
    s->state.question = s->state.n_signals = UINT32_MAX;
    s->state.memory_bytes = UINT64_MAX;
}

static void spans_init(samples *s) {
    s->spans = (Millrace__Spans)MILLRACE__SPANS__INIT;
    for (uint32_t i = 0; i < 3; i++) {
        s->phases[i] = i;
        s->span_steps[i] = s->span_rows[i] = 5;
        s->starts_ns[i] = i;
        s->ends_ns[i] = INT64_MAX / 4;
    }
    s->phases[2] = MR_SPAN_KINDS - 1;
    s->spans.stage = 3;
    s->spans.n_phase = s->spans.n_step = s->spans.n_rows = s->spans.n_start_ns = s->spans.n_end_ns = 3;
    s->spans.phase = s->phases;
    s->spans.step = s->span_steps;
    s->spans.rows = s->span_rows;
    s->spans.start_ns = s->starts_ns;
    s->spans.end_ns = s->ends_ns;
    s->seconds = (Millrace__Seconds)MILLRACE__SECONDS__INIT;
    s->seconds.stage = 3;
    s->seconds.n_ns = MR_PHASE_COUNT;
    s->seconds.ns = s->phase_ns;
}

static void step_sums_init(samples *s) {
    s->step_sums = (Millrace__StepSums)MILLRACE__STEP_SUMS__INIT;
    s->step_sums.stage = 3;
    s->step_sums.n_steps = s->step_sums.n_rows = s->step_sums.n_ns = 3;
    s->step_sums.steps = s->sum_steps;
    s->step_sums.rows = s->sum_rows;
    s->step_sums.ns = s->sum_ns;
    s->sum_steps[0] = s->sum_rows[0] = 5;
    s->sum_steps[2] = 2; /* steps of 3 and of 4 rows; none of 2 rows */
    s->sum_rows[2] = 7;
    s->sum_ns[2] = MR_MAX_PHASE_NS;
    s->step_sums.round_rows = 16;
    s->step_sums.round_ns = MR_MAX_PHASE_NS;
}

static void expert_share_init(samples *s) {
    s->expert_share = (Millrace__ExpertShare)MILLRACE__EXPERT_SHARE__INIT;
    s->expert_share.stage = 3;
    s->expert_share.uses = s->expert_share.device_uses = s->expert_share.swaps = MR_MAX_EXPERT_USES;
}

static void use_counts_init(samples *s) {
    s->use_counts = (Millrace__UseCounts)MILLRACE__USE_COUNTS__INIT;
    s->use_counts.stage = 3;
    s->use_counts.layer = MR_MAX_LAYERS - 1;
    s->use_counts.neurons = true;
    s->use_counts.n = MR_MAX_USED;
    s->use_counts.rows = MR_MAX_COUNTED_ROWS;
    s->use_counts.first = MR_MAX_USED - 3;
    s->use_counts.n_counts = 3;
    s->use_counts.counts = s->counts;
    s->counts[1] = MR_MAX_COUNTED_ROWS;
}

static void facts_init(samples *s) {
    s->measure = (Millrace__Measure)MILLRACE__MEASURE__INIT;
    s->measure.kv_type = 8;
    s->measure.max_rows = MR_MAX_STEP_ROWS;
    s->measure.n_together = MR_MAX_STAGES;
    s->measure.anew = true;
    s->measure.again = UINT32_MAX;
    s->probe = (Millrace__Probe)MILLRACE__PROBE__INIT;
    s->probe.peer = MR_MAX_STAGES - 1;
    s->facts = (Millrace__Facts)MILLRACE__FACTS__INIT;
    for (uint32_t i = 0; i < MR_STEP_TIMES_MAX; i++) {
        s->time_rows[i] = i + 1 < MR_STEP_TIMES_MAX ? i + 1 : MR_MAX_STEP_ROWS;
        s->times_s[i] = i + 1 < MR_STEP_TIMES_MAX ? 0 : 86400;
    }
    for (int i = 0; i < 3; i++) {
        s->times[i] = (Millrace__Times)MILLRACE__TIMES__INIT;
        s->times[i].n_rows = s->times[i].n_seconds = MR_STEP_TIMES_MAX;
        s->times[i].rows = s->time_rows;
        s->times[i].seconds = s->times_s;
    }
    s->kinds[0] = &s->times[0];
    s->kinds[1] = &s->times[1];
    s->facts.n_layers = 2;
    s->facts.layers = s->kinds;
    s->facts.output = &s->times[2];
    s->position_s[0] = s->position_s[1] = 1e-9;
    s->facts.n_position_s = 2;
    s->facts.position_s = s->position_s;
    s->facts.text = s->text;
    s->device = (Millrace__DeviceFacts)MILLRACE__DEVICE_FACTS__INIT;
    s->device.name = s->device_name;
    memset(s->device_name, 'd', sizeof s->device_name - 2);
    s->device.memory_bytes = UINT64_C(1) << 50;
    s->device.n_layers = s->device.n_position_s = s->device.n_layer_bytes = s->device.n_token_bytes = 2;
    s->device.layers = s->device.trunks = s->kinds;
    s->device.n_trunks = s->device.n_trunk_bytes = 2;
    s->device.position_s = s->position_s;
    s->device.output = s->device.crossing = &s->times[2];
    s->device.layer_bytes = s->device.token_bytes = s->device.trunk_bytes = s->device_bytes;
    s->device_bytes[1] = UINT64_C(1) << 50;
    s->facts.device = &s->device;
    s->measured = (Millrace__MeasuredAgain)MILLRACE__MEASURED_AGAIN__INIT;
    s->measured.again = UINT32_MAX;
    s->measured.layer = &s->times[0];
    s->measured.text = s->text;
    s->link = (Millrace__LinkFacts)MILLRACE__LINK_FACTS__INIT;
    s->link.peer = MR_MAX_STAGES - 1;
    s->link.second_bytes = 1;
    s->link.text = s->text;
}

void samples_init(samples *s, int control_body, int report_body) {
    *s = (samples){0};
    plan_init(s);
    open_init(s);
    step_init(s);
    tokens_init(s);
    report_init(s);
    hello_init(s);
    spans_init(s);
    step_sums_init(s);
    use_counts_init(s);
    expert_share_init(s);
    facts_init(s);
    s->shutdown = (Millrace__Shutdown)MILLRACE__SHUTDOWN__INIT;
    s->start = (Millrace__Start)MILLRACE__START__INIT;
    s->start.epoch = UINT32_MAX;
    s->ping = (Millrace__Ping)MILLRACE__PING__INIT;
    s->report_uses = (Millrace__ReportUses)MILLRACE__REPORT_USES__INIT;
    s->share = (Millrace__ShareFile)MILLRACE__SHARE_FILE__INIT;
    s->share.n_askers = 2;
    s->share.askers = s->peers;
    s->peers[1] = MR_MAX_STAGES - 1;
    s->share.n_parts = MR_MAX_FILE_PARTS;
    s->share.parts = s->part_points;
    for (int i = 0; i < MR_MAX_FILE_PARTS; i++) {
        Millrace__FilePart *p = s->part_points[i] = &s->parts[i];
        millrace__file_part__init(p);
        p->bytes = p->header_bytes = (uint64_t)(MR_MAX_FILE_BLOCKS / MR_MAX_FILE_PARTS) * MR_FILE_BLOCK_BYTES;
        p->digest = UINT64_MAX;
        p->n_tensors = UINT32_MAX;
        p->n_sources = MR_MAX_PART_SOURCES;
        p->sources = s->part_sources;
    }
    for (int i = 0; i < MR_MAX_PART_SOURCES; i++)
        s->part_sources[i] = MR_MAX_STAGES - 1;
    s->share.file_digest = UINT64_MAX;
    s->share.part_roots = (ProtobufCBinaryData){.len = sizeof s->roots, .data = s->roots};
    s->request = (Millrace__FileRequest)MILLRACE__FILE_REQUEST__INIT;
    s->request.what = MILLRACE__FILE_REQUEST__WHAT__HASHES;
    s->request.first_block = FILE_BLOCKS - MR_MAX_FILE_HASHES;
    s->request.n_blocks = MR_MAX_FILE_HASHES;
    s->setup = (Millrace__LinkSetup)MILLRACE__LINK_SETUP__INIT;
    s->setup.step = MILLRACE__LINK_SETUP__STEP__OFFER;
    s->setup.way = MR_WAY_NCCL;
    s->setup.version = UINT32_MAX;
    s->setup.n_uuid = 2;
    s->setup.uuid = s->uuid;
    s->setup.id = (ProtobufCBinaryData){sizeof s->link_id, s->link_id};
    s->setup.text = s->text;
    s->control = (Millrace__Control)MILLRACE__CONTROL__INIT;
    s->control.body_case = (Millrace__Control__BodyCase)control_body;
    s->report.body_case = (Millrace__Report__BodyCase)report_body;
    if (control_body == MILLRACE__CONTROL__BODY_PLAN)
        s->control.plan = &s->plan;
    else if (control_body == MILLRACE__CONTROL__BODY_OPEN)
        s->control.open = &s->open;
    else if (control_body == MILLRACE__CONTROL__BODY_CLOSE)
        s->control.close = &s->close;
    else if (control_body == MILLRACE__CONTROL__BODY_STEP)
        s->control.step = &s->step;
    else if (control_body == MILLRACE__CONTROL__BODY_SHUTDOWN)
        s->control.shutdown = &s->shutdown;
    else if (control_body == MILLRACE__CONTROL__BODY_START)
        s->control.start = &s->start;
    else if (control_body == MILLRACE__CONTROL__BODY_SHARE)
        s->control.share = &s->share;
    else if (control_body == MILLRACE__CONTROL__BODY_MEASURE)
        s->control.measure = &s->measure;
    else if (control_body == MILLRACE__CONTROL__BODY_PROBE)
        s->control.probe = &s->probe;
    else if (control_body == MILLRACE__CONTROL__BODY_REPORT_USES)
        s->control.report_uses = &s->report_uses;
    else
        s->control.ping = &s->ping;
    if (report_body == MILLRACE__REPORT__BODY_READY)
        s->report.ready = &s->ready;
    else if (report_body == MILLRACE__REPORT__BODY_FAILURE)
        s->report.failure = &s->failure;
    else if (report_body == MILLRACE__REPORT__BODY_PROGRESS)
        s->report.progress = &s->progress;
    else if (report_body == MILLRACE__REPORT__BODY_HELLO)
        s->report.hello = &s->hello;
    else if (report_body == MILLRACE__REPORT__BODY_PONG)
        s->report.pong = &s->pong;
    else if (report_body == MILLRACE__REPORT__BODY_STATE)
        s->report.state = &s->state;
    else if (report_body == MILLRACE__REPORT__BODY_SPANS)
        s->report.spans = &s->spans;
    else if (report_body == MILLRACE__REPORT__BODY_STEP_SUMS)
        s->report.step_sums = &s->step_sums;
    else if (report_body == MILLRACE__REPORT__BODY_USE_COUNTS)
        s->report.use_counts = &s->use_counts;
    else if (report_body == MILLRACE__REPORT__BODY_EXPERT_SHARE)
        s->report.expert_share = &s->expert_share;
    else if (report_body == MILLRACE__REPORT__BODY_FACTS)
        s->report.facts = &s->facts;
    else if (report_body == MILLRACE__REPORT__BODY_MEASURED)
        s->report.measured = &s->measured;
    else if (report_body == MILLRACE__REPORT__BODY_LINK)
        s->report.link = &s->link;
    else
        s->report.seconds = &s->seconds;
}

mr_arena *sample_arena(void) {
    static uint64_t memory[ARENA_BYTES / 8];
    return mr_arena_create_fixed(memory, sizeof memory);
}

void pack(samples *s, message which) {
    const ProtobufCMessage *const all[] = {&s->control.base, &s->tokens.base, &s->report.base, &s->request.base,
                                           &s->setup.base};
    mr_err err;
    if (mr_msg_pack(all[which], s->packed, sizeof s->packed, &s->bytes, &err) != MR_OK)
        fail_msg("%s", err.text);
}

mr_status unpack(const samples *s, message which, const mr_msg_limits *l, mr_arena *a, void *out, mr_err *err) {
    if (which == CONTROL)
        return mr_msg_unpack_control(s->packed, s->bytes, l, a, out, err);
    if (which == TOKENS)
        return mr_msg_unpack_tokens(s->packed, s->bytes, l, a, out, err);
    if (which == FILE_REQUEST)
        return mr_msg_unpack_file_request(s->packed, s->bytes, FILE_BLOCKS, a, out, err);
    if (which == LINK_SETUP)
        return mr_msg_unpack_link_setup(s->packed, s->bytes, a, out, err);
    return mr_msg_unpack_report(s->packed, s->bytes, l, a, out, err);
}

void expect_error_text(const mr_err *err, const char *words) {
    if (!strstr(err->text, words))
        fail_msg("\"%s\" does not say \"%s\"", err->text, words);
}

void expect_refused(samples *s, message which, const char *words) {
    mr_err err = {0};
    void *out = s;
    pack(s, which);
    assert_int_equal(unpack(s, which, &sample_limits, sample_arena(), &out, &err), MR_E_PROTOCOL);
    assert_int_equal(err.status, MR_E_PROTOCOL);
    assert_ptr_equal(out, s);
    expect_error_text(&err, words);
    assert_int_equal(unpack(s, which, &sample_limits, sample_arena(), &out, NULL), MR_E_PROTOCOL);
}

void expect_accepted(samples *s, message which) {
    mr_err err = {0};
    void *out = NULL;
    pack(s, which);
    if (unpack(s, which, &sample_limits, sample_arena(), &out, &err) != MR_OK)
        fail_msg("%s", err.text);
    assert_non_null(out);
}
