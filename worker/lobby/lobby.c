/* worker/lobby/lobby.c - the loop of a rank in the lobby: takes control messages of epoch 0 and answers each. While a
 * stage runs or a measurement goes on, a callback looks for a shutdown message. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/lobby.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "proto/facts_message.h"
#include "proto/link.h"
#include "proto/messages.h"
#include "worker/files/file_layers.h"
#include "worker/lobby/file_sharing.h"
#include "worker/lobby/give_kv.h"
#include "worker/lobby/hello.h"
#include "worker/lobby/measure_wish.h"
#include "worker/lobby/part_roots.h"
#include "worker/lobby/prepare.h"
#include "worker/lobby/probe.h"
#include "worker/lobby/probe_device.h"
#include "worker/lobby/take_kv.h"
#include "worker/worker.h"

enum { LOAD_RESTS = 1, MEASURE_RESTS = 3 };

typedef struct lobby {
    const mr_lobby_config *config;
    mr_outbox *report;
    mr_inbox *control;
    mr_arena *arena;
    Millrace__Control *message; /* the message in the inbox, in the arena; NULL: none */
    mr_file_sharing files;
    mr_part_roots roots;
    mr_weight_store *store; /* the layers of the last stage, for the next one */
    mr_kept_kv kv;          /* its KV blocks, until the coordinator says that they are of no use */
    bool runs_stage;
    mr_kv_giving giving; /* of KV blocks, while a stage runs */
    uint32_t n_signals;  /* of config->n_signals, those that the coordinator was told of */
    int64_t worked_ns;   /* when work while others run has last called must_stop; 0: not yet */
    int32_t rests;       /* of this work: as must_stop says */
    mr_status status;    /* error of a peek inside told_to_end */
    mr_err err;
} lobby;

/* --- Links ------------------------------------------------------------------------------------------------------- */

static mr_status open_links(lobby *l, mr_err *err) {
    const mr_lobby_config *c = l->config;
    const mr_msg_limits none = {0};
    size_t arena_bytes = mr_msg_arena_bytes(&none);
    mr_status status = mr_arena_create(arena_bytes, arena_bytes, &l->arena, err);
    if (status == MR_OK)
        status = mr_outbox_create(c->channel, c->coordinator, MR_LINK_REPORT, 0, MR_LOBBY_SLOTS, MR_MAX_HELLO_BYTES,
                                  &l->report, err);
    if (status == MR_OK)
        status = mr_inbox_create(c->channel, c->coordinator, MR_LINK_CONTROL, 0, MR_LOBBY_SLOTS, MR_MAX_LOBBY_BYTES,
                                 &l->control, err);
    return status;
}

static mr_status send_report(lobby *l, ProtobufCMessage *body, mr_err *err) {
    const Millrace__Report report = mr_msg_report_of(body);
    bool sent = false;
    mr_status status = mr_outbox_send_message(l->report, &report.base, &sent, err);
    if (status == MR_OK && !sent)
        return mr_err_set(err, MR_E_TIMEOUT, "the coordinator does not take reports");
    return status;
}

static mr_status say_hello(lobby *l, mr_err *err) {
    mr_hello hello;
    mr_hello_fill(&hello, l->config->model_path, l->config->n_threads, l->config->problem);
    if (l->config->verifies_weights)
        mr_hello_add_roots(&hello, l->config->model_path, l->config->cache_dir, l->config->n_threads);
    mr_part_roots_note_own(&l->roots, &hello.message);
    mr_hello_add_links(&hello, l->config->devices, l->config->channel);
    return send_report(l, &hello.message.base, err);
}

/* Sets l->message to the next message, which stays in the inbox until it is released; NULL: no message has come. */
static mr_status peek(lobby *l, mr_err *err) {
    const mr_msg_limits none = {0};
    mr_frame frame;
    const uint8_t *payload = NULL;
    l->message = NULL;
    mr_status status = mr_inbox_peek(l->control, &frame, &payload, err);
    if (status != MR_OK || !payload)
        return status;
    return mr_msg_unpack_control(payload, frame.payload_bytes, &none, l->arena, &l->message, err);
}

/* question: 0: nobody has asked. Nothing is sent while the link is full. */
static mr_status say_state(lobby *l, uint32_t question, bool *out_sent, mr_err *err) {
    Millrace__RankState state = MILLRACE__RANK_STATE__INIT;
    state.question = question;
    state.memory_bytes = mr_mem_available();
    state.n_signals = l->config->n_signals ? atomic_load(l->config->n_signals) : 0;
    const Millrace__Report report = mr_msg_report_of(&state.base);
    mr_status status = mr_outbox_send_message(l->report, &report.base, out_sent, err);
    if (status == MR_OK && *out_sent)
        l->n_signals = state.n_signals;
    return status;
}

/* Tells the coordinator of signals. */
static mr_status pass_signals(lobby *l, mr_err *err) {
    bool sent;
    if (!l->config->n_signals || atomic_load(l->config->n_signals) == l->n_signals)
        return MR_OK;
    return say_state(l, 0, &sent, err);
}

/* While a stage runs: sends KV blocks that a message wants. */
static mr_status give_ahead(lobby *l, mr_err *err) {
    mr_kv_wish wish;
    mr_kv_giving_turn(&l->giving);
    if (!l->message || l->message->body_case != MILLRACE__CONTROL__BODY_GIVE_KV)
        return MR_OK;
    mr_kv_wish_read(l->message->give_kv, &wish);
    mr_kv_giving_begin(&l->giving, &wish, l->config->channel, l->config->coordinator, &l->kv);
    l->message = NULL;
    return mr_inbox_release(l->control, err);
}

/* Callback of a running stage or measurement. An error of the peek ends the stage; the lobby keeps the error, because
 * the inbox reports a malformed message only once. */
static bool told_to_end(void *ctx) {
    lobby *l = ctx;
    if (l->status == MR_OK)
        l->status = pass_signals(l, &l->err);
    if (l->status == MR_OK)
        l->status = peek(l, &l->err);
    if (l->status == MR_OK && l->runs_stage)
        l->status = give_ahead(l, &l->err);
    return l->status != MR_OK || (l->message && (l->message->body_case == MILLRACE__CONTROL__BODY_SHUTDOWN ||
                                                 l->message->body_case == MILLRACE__CONTROL__BODY_ABORT));
}

static int64_t look_ns(void *ctx) {
    const lobby *l = ctx;
    return mr_kv_giving_due_ns(&l->giving);
}

/* After told_to_end: the error that it met, or MR_OK. */
static mr_status how_told(const lobby *l, mr_err *err) {
    return l->status == MR_OK ? MR_OK : mr_err_set(err, l->status, "%s", l->err.text);
}

/* --- The model file ---------------------------------------------------------------------------------------------- */

/* Callback of what may take long in the lobby. Also serves the file: ranks without it need its header to measure, and
 * layers before they take KV blocks. */
static bool told_to_end_and_serve(void *ctx) {
    lobby *l = ctx;
    mr_file_server_serve(l->files.server, 0);
    return told_to_end(l);
}

/* Callback of work while other ranks run steps: whether a message has come. Otherwise waits for one `rests` times as
 * long as the work took since the last call, so that the work takes a part of the time of this rank's cores at most. */
static bool must_stop(void *ctx) {
    lobby *l = ctx;
    int64_t now_ns = mr_clock_now_ns();
    mr_file_server_serve(l->files.server, 0);
    if (l->worked_ns > 0 && !told_to_end(l) && !l->message)
        (void)!mr_channel_wait(l->config->channel, now_ns + l->rests * (now_ns - l->worked_ns), &l->err);
    l->worked_ns = mr_clock_now_ns();
    return told_to_end(l) || l->message;
}

static void begin_work(lobby *l, int32_t rests) {
    l->worked_ns = 0;
    l->rests = rests;
}

static mr_status share_file(lobby *l, mr_err *err) {
    mr_err why;
    mr_file_sharing_begin(&l->files, l->config, l->message->share);
    if (mr_part_roots_note_shared(&l->roots, l->message->share, &why) != MR_OK)
        l->files.problem = why;
    return mr_inbox_release(l->control, err);
}

/* Why the model file can be neither served nor fetched; NULL: no problem is known. */
static const mr_err *file_problem(const lobby *l) {
    return l->files.problem.status != MR_OK ? &l->files.problem : NULL;
}

/* An error: the stage has failed and the coordinator does not know, so it would wait for ever. This rank has to end. */
static mr_status run_stage(lobby *l, uint32_t epoch, mr_err *err) {
    bool is_unheard = false;
    mr_weights_root root;
    bool is_known = mr_part_roots_join(&l->roots, &root);
    mr_worker_config config = {.model_path = l->config->model_path,
                               .channel = l->config->channel,
                               .coordinator = l->config->coordinator,
                               .epoch = epoch,
                               .backend = l->config->backend,
                               .devices = l->config->devices,
                               .file_client = l->files.client,
                               .store = l->store,
                               .kept_kv = &l->kv,
                               .file_server = l->files.server,
                               .weights_root = is_known ? &root : NULL,
                               .must_verify = l->config->verifies_weights,
                               .problem = file_problem(l),
                               .runs_steps = l->config->runs_steps,
                               .is_unheard = &is_unheard,
                               .told_to_end = told_to_end,
                               .look_ns = look_ns,
                               .told_to_end_ctx = l};
    l->runs_stage = true;
    mr_status status = mr_worker_run(&config, err);
    l->runs_stage = false;
    mr_kv_giving_end(&l->giving);
    if (status != MR_OK)
        mr_log_write(MR_LOG_DEBUG, "worker", "the stage ended: %s", err->text);
    return is_unheard && status != MR_E_PEER_LOST && !told_to_end(l) ? status : MR_OK;
}

/* The stage has ended. */
static mr_status answer_abort(lobby *l, mr_err *err) {
    const Millrace__Abort *m = l->message->abort;
    uint32_t question = m->question;
    bool sent = true;
    for (size_t i = 0; i < m->n_gone; i++)
        if ((int32_t)m->gone[i] < l->config->channel->n_peers)
            mr_channel_peer_gone(l->config->channel, (int32_t)m->gone[i]);
    if (!m->keep_kv)
        mr_kept_kv_drop(&l->kv);
    mr_status status = mr_inbox_release(l->control, err);
    if (question > 0)
        mr_weight_store_clear(l->store); /* so that the answer counts their memory as free */
    if (status == MR_OK && question > 0)
        status = say_state(l, question, &sent, err);
    return status; /* without room for the answer: the coordinator asks again */
}

static mr_status answer_give_kv(lobby *l, mr_err *err) {
    mr_kv_wish wish;
    mr_kv_wish_read(l->message->give_kv, &wish);
    mr_status status = mr_inbox_release(l->control, err);
    if (status == MR_OK)
        mr_kv_wish_grant(&wish, l->config->channel, l->config->coordinator, &l->kv, told_to_end_and_serve, l);
    return status == MR_OK ? how_told(l, err) : status;
}

static mr_status answer_ping(lobby *l, mr_err *err) {
    Millrace__Pong pong = MILLRACE__PONG__INIT;
    pong.clock_ns = mr_clock_now_ns();
    mr_status status = mr_inbox_release(l->control, err);
    return status == MR_OK ? send_report(l, &pong.base, err) : status;
}

/* --- Measuring, which takes some seconds ------------------------------------------------------------------------- */

static void progress(void *ctx) {
    const lobby *l = ctx;
    mr_channel_progress(l->config->channel);
}

/* Opens the model file. Without the file, fetches the header and small tensors only: products with matrices of zeros
 * take the same time. */
static mr_status open_model(lobby *l, bool (*told)(void *ctx), mr_gguf **out_gguf, mr_model_info *out_info,
                            mr_err *err) {
    const mr_lobby_config *c = l->config;
    const mr_file_wait wait = {told, NULL, l};
    if (file_problem(l))
        return mr_err_set(err, l->files.problem.status, "%s", l->files.problem.text);
    if (!c->backend || !c->model_path)
        return mr_err_set(err, MR_E_NOT_FOUND, "there is nothing to measure with");
    mr_status status = l->files.client ? mr_file_layers_open(l->files.client, &wait, out_gguf, err)
                                       : mr_gguf_open(c->model_path, out_gguf, err);
    if (status == MR_OK)
        status = mr_model_info_read(*out_gguf, out_info, err);
    if (status == MR_OK && l->files.client)
        status = mr_file_layers_fetch(l->files.client, *out_gguf, out_info, NULL, &wait, err);
    return status;
}

/* Without `again` in the wish for out, which then is complete, else for out_layer. */
static mr_status measure(lobby *l, const Millrace__Measure *wish, mr_facts_message *out, mr_step_times *out_layer,
                         mr_err *err) {
    bool (*told)(void *ctx) = wish->again > 0 ? must_stop : told_to_end_and_serve;
    mr_gguf *gguf = NULL;
    mr_model_info info;
    mr_facts_message_fill(out, NULL);
    begin_work(l, MEASURE_RESTS);
    mr_status status = open_model(l, told, &gguf, &info, err);
    if (status == MR_OK) {
        const mr_measure_wish w = {wish, l->config, gguf, &info, progress, told, l};
        status = wish->again > 0 ? mr_measure_wish_again(&w, out_layer, err) : mr_measure_wish_facts(&w, out, err);
    }
    mr_gguf_close(gguf);
    return status;
}

/* Without room in the link there is no answer. */
static mr_status say_measured(lobby *l, uint32_t again, const mr_step_times *times, const mr_err *problem,
                              mr_err *err) {
    Millrace__MeasuredAgain answer = MILLRACE__MEASURED_AGAIN__INIT;
    mr_times_message layer;
    bool sent;
    answer.again = again;
    if (problem) {
        answer.status = (uint32_t)problem->status;
        answer.text = (char *)(uintptr_t)problem->text;
    } else {
        answer.layer = mr_times_message_fill(&layer, times);
    }
    const Millrace__Report report = mr_msg_report_of(&answer.base);
    return mr_outbox_send_message(l->report, &report.base, &sent, err);
}

/* An error of the measurement becomes status and text of the answer. After MR_E_CANCELLED (told to end) nothing is
 * answered. */
static mr_status answer_measure(lobby *l, mr_err *err) {
    const Millrace__Measure wish = *l->message->measure;
    mr_facts_message answer;
    mr_step_times layer;
    mr_err problem;
    mr_status status = mr_inbox_release(l->control, err);
    if (status != MR_OK)
        return status;
    if (wish.again == 0)
        mr_weight_store_clear(l->store); /* the measurement loads layers of its own */
    status = measure(l, &wish, &answer, &layer, &problem);
    if (status == MR_E_CANCELLED)
        return how_told(l, err);
    if (wish.again > 0)
        return say_measured(l, wish.again, &layer, status == MR_OK ? NULL : &problem, err);
    answer.message.status = (uint32_t)status;
    if (status != MR_OK)
        answer.message.text = problem.text;
    return send_report(l, &answer.message.base, err);
}

/* Errors as in answer_measure. */
static mr_status answer_headers(lobby *l, mr_err *err) {
    Millrace__FileHeaders answer = MILLRACE__FILE_HEADERS__INIT;
    mr_gguf *gguf = NULL;
    mr_model_info info;
    mr_err problem;
    mr_status status = mr_inbox_release(l->control, err);
    if (status != MR_OK)
        return status;
    status = open_model(l, told_to_end_and_serve, &gguf, &info, &problem);
    mr_gguf_close(gguf);
    if (status == MR_E_CANCELLED)
        return how_told(l, err);
    answer.status = (uint32_t)status;
    if (status != MR_OK)
        answer.text = problem.text;
    return send_report(l, &answer.base, err);
}

/* Between the devices of the two ranks. */
static mr_status probe_devices(lobby *l, const Millrace__Probe *wish, Millrace__LinkFacts *out, mr_err *err) {
    const mr_devices *devices = l->config->devices;
    int32_t holder = devices ? mr_devices_holder(&devices->list) : -1;
    const mr_probe_device_config probe = {.channel = l->config->channel,
                                          .peer = (int32_t)wish->peer,
                                          .epoch = wish->epoch,
                                          .is_sender = !wish->answers_first,
                                          .way = (mr_way)(wish->way - 1),
                                          .device = holder >= 0 ? devices->list.at[holder] : NULL,
                                          .told_to_end = told_to_end,
                                          .ctx = l};
    if (!probe.device || !probe.device->ops->link)
        return mr_err_set(err, MR_E_UNSUPPORTED, "this rank has no device for links");
    return mr_probe_device(&probe, &out->latency_s, &out->second_bytes, err);
}

/* Between the memories of the hosts. */
static mr_status probe_hosts(lobby *l, const Millrace__Probe *wish, Millrace__LinkFacts *out, mr_err *err) {
    const mr_probe_config probe = {.channel = l->config->channel,
                                   .peer = (int32_t)wish->peer,
                                   .answers_first = wish->answers_first,
                                   .told_to_end = told_to_end,
                                   .ctx = l};
    return mr_probe_link(&probe, &out->latency_s, &out->second_bytes, err);
}

/* Errors as in answer_measure. */
static mr_status answer_probe(lobby *l, mr_err *err) {
    const Millrace__Probe wish = *l->message->probe;
    Millrace__LinkFacts answer = MILLRACE__LINK_FACTS__INIT;
    mr_err problem;
    mr_status status = mr_inbox_release(l->control, err);
    if (status != MR_OK)
        return status;
    if ((int32_t)wish.peer >= l->config->coordinator || (int32_t)wish.peer == l->config->channel->self)
        status = mr_err_set(&problem, MR_E_PROTOCOL, "there is no link to rank %d", (int)wish.peer);
    else
        status = wish.way > 0 ? probe_devices(l, &wish, &answer, &problem) : probe_hosts(l, &wish, &answer, &problem);
    if (status == MR_E_CANCELLED)
        return how_told(l, err);
    answer.peer = wish.peer;
    answer.way = wish.way;
    answer.status = (uint32_t)status;
    if (status != MR_OK)
        answer.text = problem.text;
    return send_report(l, &answer.base, err);
}

/* --- Layers for a later stage ------------------------------------------------------------------------------------ */

/* Opens the model file, and fetches the layers of the wish if this host lacks them. */
static mr_status open_for(lobby *l, const mr_prepare_wish *wish, mr_gguf **out_gguf, mr_model_info *out_info,
                          mr_err *err) {
    const mr_file_wait wait = {must_stop, NULL, l};
    if (file_problem(l))
        return mr_err_set(err, l->files.problem.status, "%s", l->files.problem.text);
    mr_status status = l->files.client ? mr_file_layers_open(l->files.client, &wait, out_gguf, err)
                                       : mr_gguf_open(l->config->model_path, out_gguf, err);
    if (status == MR_OK)
        status = mr_model_info_read(*out_gguf, out_info, err);
    for (int32_t i = 0; i < wish->n && status == MR_OK && l->files.client; i++)
        status = mr_file_layers_fetch(l->files.client, *out_gguf, out_info, &wish->stages[i].range, &wait, err);
    return status;
}

/* Loads the layers, and reports what this rank then holds. Any message ends the load without a report. */
static mr_status answer_prepare(lobby *l, mr_err *err) {
    mr_prepare_wish *wish = mr_alloc(sizeof *wish);
    Millrace__Held answer = MILLRACE__HELD__INIT;
    mr_gguf *gguf = NULL;
    mr_model_info info;
    mr_err problem;
    if (!wish)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the layers of a later stage");
    mr_prepare_read(l->message->prepare, wish);
    answer.number = l->message->prepare->number;
    begin_work(l, LOAD_RESTS);
    mr_status status = mr_inbox_release(l->control, err);
    if (status != MR_OK || wish->n == 0) {
        mr_weight_store_clear(l->store);
        mr_free(wish);
        return status;
    }
    mr_status held = open_for(l, wish, &gguf, &info, &problem);
    if (held == MR_OK) {
        const mr_prepare_config config = {.gguf = gguf,
                                          .info = &info,
                                          .backend = l->config->backend,
                                          .devices = l->config->devices,
                                          .store = l->store,
                                          .must_stop = must_stop,
                                          .ctx = l};
        held = mr_prepare_layers(&config, wish, &answer.loaded_bytes, &problem);
    }
    mr_gguf_close(gguf);
    mr_free(wish);
    if (held == MR_E_CANCELLED)
        return how_told(l, err);
    answer.bytes = mr_weight_store_bytes(l->store);
    answer.status = (uint32_t)held;
    if (held != MR_OK)
        answer.text = problem.text;
    return send_report(l, &answer.base, err);
}

static mr_status answer_take_kv(lobby *l, mr_err *err) {
    const Millrace__TakeKv wish = *l->message->take_kv;
    const mr_kv_transfer transfer = {.channel = l->config->channel, .told_to_end = told_to_end_and_serve, .ctx = l};
    Millrace__TookKv answer = MILLRACE__TOOK_KV__INIT;
    mr_gguf *gguf = NULL;
    mr_model_info info;
    mr_err why;
    mr_status status = mr_inbox_release(l->control, err);
    if (status != MR_OK)
        return status;
    mr_status taken = open_model(l, told_to_end_and_serve, &gguf, &info, &why);
    if (taken == MR_OK)
        taken = mr_kv_take_ahead(&wish, &info, l->config->backend, l->config->coordinator, transfer, &l->kv, &why);
    else
        mr_kv_refuse(l->config->channel, (int32_t)wish.from, l->config->coordinator, true, wish.epoch);
    mr_gguf_close(gguf);
    if (taken == MR_E_CANCELLED)
        return how_told(l, err);
    if (taken != MR_OK)
        mr_log_write(MR_LOG_WARN, "worker", "KV blocks of rank %u did not come: %s", wish.from, why.text);
    answer.epoch = wish.epoch;
    answer.has_all = taken == MR_OK;
    return send_report(l, &answer.base, err);
}

/* --- Waiting ----------------------------------------------------------------------------------------------------- */

/* Answers a message of the lobby other than Start and Shutdown. false: the message is none of these. */
static bool answer(lobby *l, mr_status *out_status, mr_err *err) {
    switch ((int)l->message->body_case) {
    case MILLRACE__CONTROL__BODY_ABORT:
        *out_status = answer_abort(l, err);
        return true;
    case MILLRACE__CONTROL__BODY_GIVE_KV:
        *out_status = answer_give_kv(l, err);
        return true;
    case MILLRACE__CONTROL__BODY_TAKE_KV:
        if (!l->config->backend || !l->config->model_path)
            return false;
        *out_status = answer_take_kv(l, err);
        return true;
    case MILLRACE__CONTROL__BODY_PING:
        *out_status = answer_ping(l, err);
        return true;
    case MILLRACE__CONTROL__BODY_MEASURE:
        *out_status = answer_measure(l, err);
        return true;
    case MILLRACE__CONTROL__BODY_PROBE:
        *out_status = answer_probe(l, err);
        return true;
    case MILLRACE__CONTROL__BODY_SHARE:
        if (!l->config->model_path)
            return false;
        *out_status = share_file(l, err);
        return true;
    case MILLRACE__CONTROL__BODY_HEADERS:
        *out_status = answer_headers(l, err);
        return true;
    case MILLRACE__CONTROL__BODY_PREPARE:
        if (!l->config->backend || !l->config->model_path)
            return false;
        *out_status = answer_prepare(l, err);
        return true;
    default:
        return false;
    }
}

static mr_status wait_to_be_told(lobby *l, bool *out_abandoned, mr_err *err) {
    for (;;) {
        mr_status status = pass_signals(l, err);
        if (status == MR_OK)
            status = peek(l, err);
        bool served = mr_file_server_serve(l->files.server, 0);
        if (status == MR_OK && !l->message && !served)
            status = mr_channel_wait(l->config->channel, MR_NEVER, err);
        if (status != MR_OK)
            return status;
        if (!l->message)
            continue;
        if (l->message->body_case == MILLRACE__CONTROL__BODY_SHUTDOWN) {
            *out_abandoned = l->message->shutdown->abandon;
            return MR_OK;
        }
        if (answer(l, &status, err)) {
            if (status != MR_OK)
                return status;
            continue;
        }
        if (l->message->body_case != MILLRACE__CONTROL__BODY_START || !l->config->backend)
            return mr_err_set(err, MR_E_PROTOCOL, "the coordinator sent a message that is not expected in the lobby");
        uint32_t epoch = l->message->start->epoch;
        status = mr_inbox_release(l->control, err);
        if (status != MR_OK)
            return status;
        status = run_stage(l, epoch, err);
        if (status == MR_OK)
            status = how_told(l, err);
        if (status != MR_OK)
            return status;
    }
}

mr_status mr_lobby_run(const mr_lobby_config *config, bool *out_abandoned, mr_err *err) {
    lobby l = {.config = config};
    *out_abandoned = false;
    mr_status status = open_links(&l, err);
    if (status == MR_OK)
        status = mr_weight_store_create(&l.store, err);
    if (status == MR_OK)
        status = say_hello(&l, err);
    if (status == MR_OK)
        status = wait_to_be_told(&l, out_abandoned, err);
    mr_file_sharing_end(&l.files);
    mr_weight_store_destroy(l.store);
    mr_kept_kv_drop(&l.kv);
    mr_inbox_destroy(l.control);
    mr_outbox_destroy(l.report);
    mr_arena_destroy(l.arena);
    return status;
}
