// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby.h"

#include "engine/base/cache_dir.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "proto/link.h"
#include "proto/messages.h"
#include "worker/hello.h"
#include "worker/lobby_facts.h"
#include "worker/worker.h"

typedef struct lobby {
    const mr_lobby_config *config;
    mr_outbox *report;
    mr_inbox *control;
    mr_arena *arena;
    Millrace__Control *message; /* that was taken last, in the arena */
    mr_file_server *file_server;
    mr_file_client *file_client;
    mr_err file_problem; /* why there is none of them */
    mr_status status;    /* of that look while a stage ran, and its text */
    mr_err err;
} lobby;

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

static mr_status send_report(lobby *l, const Millrace__Report *report, mr_err *err) {
    bool sent = false;
    mr_status status = mr_outbox_send_message(l->report, &report->base, &sent, err);
    if (status == MR_OK && !sent)
        return mr_err_set(err, MR_E_TIMEOUT, "the coordinator does not take reports");
    return status;
}

static mr_status say_hello(lobby *l, mr_err *err) {
    mr_hello hello;
    Millrace__Report report = MILLRACE__REPORT__INIT;
    mr_hello_fill(&hello, l->config->model_path, l->config->n_threads, l->config->problem);
    report.body_case = MILLRACE__REPORT__BODY_HELLO;
    report.hello = &hello.message;
    return send_report(l, &report, err);
}

/* The next message, which stays until it is released; NULL while there is none. */
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

/* What a running stage asks now and then. A malformed message is told of once, so the lobby keeps what is wrong. */
static bool told_to_end(void *ctx) {
    lobby *l = ctx;
    if (l->status == MR_OK)
        l->status = peek(l, &l->err);
    return l->status != MR_OK || (l->message && l->message->body_case == MILLRACE__CONTROL__BODY_SHUTDOWN);
}

static mr_status create_file_server(lobby *l, const Millrace__ShareFile *share, const char *folder,
                                    const mr_err *problem, mr_err *err) {
    const mr_file_server_config config = {.channel = l->config->channel,
                                          .path = l->config->model_path,
                                          .cache_folder = folder,
                                          .file_bytes = share->file_bytes,
                                          .n_threads = l->config->n_threads,
                                          .peers = share->peers,
                                          .n_peers = (int32_t)share->n_peers,
                                          .problem = problem};
    return mr_file_server_create(&config, &l->file_server, err);
}

static mr_status create_file_client(lobby *l, const Millrace__ShareFile *share, const char *folder, mr_err *err) {
    mr_file_client_config config = {.channel = l->config->channel,
                                    .cache_folder = folder,
                                    .model_path = l->config->model_path,
                                    .file_bytes = share->file_bytes,
                                    .header_bytes = share->header_bytes,
                                    .digest = share->file_digest};
    for (size_t i = 0; i < share->n_peers && i < MR_FILE_MAX_SOURCES; i++)
        config.sources[config.n_sources++] = (int32_t)share->peers[i];
    return mr_file_client_create(&config, &l->file_client, err);
}

static void end_sharing(lobby *l) {
    mr_file_server_destroy(l->file_server);
    mr_file_client_destroy(l->file_client);
    l->file_server = NULL;
    l->file_client = NULL;
}

/* What does not work is told by this rank's stage, and to those who ask for the file: here nobody would hear it. */
static mr_status share_file(lobby *l, mr_err *err) {
    const Millrace__ShareFile *share = l->message->share;
    char *folder = NULL;
    mr_err ignored;
    end_sharing(l);
    mr_status status = mr_cache_dir_make(l->config->cache_dir, &folder, &l->file_problem);
    if (share->gives) /* which it can do without a cache */
        status = create_file_server(l, share, folder, NULL, &l->file_problem);
    else if (status == MR_OK)
        status = create_file_client(l, share, folder, &l->file_problem);
    l->file_problem.status = status;
    if (share->gives && status != MR_OK && create_file_server(l, share, NULL, &l->file_problem, &ignored) != MR_OK)
        mr_log_write(MR_LOG_WARN, "worker", "nobody can be told that %s", l->file_problem.text);
    mr_free(folder);
    return mr_inbox_release(l->control, err);
}

static void run_stage(lobby *l, uint32_t epoch) {
    mr_err err;
    mr_worker_config config = {.model_path = l->config->model_path,
                               .channel = l->config->channel,
                               .coordinator = l->config->coordinator,
                               .epoch = epoch,
                               .backend = l->config->backend,
                               .devices = l->config->devices,
                               .file_client = l->file_client,
                               .file_server = l->file_server,
                               .problem = l->file_problem.status != MR_OK ? &l->file_problem : NULL,
                               .told_to_end = told_to_end,
                               .told_to_end_ctx = l};
    if (mr_worker_run(&config, &err) != MR_OK)
        mr_log_write(MR_LOG_DEBUG, "worker", "the stage ended: %s", err.text);
}

static mr_status answer_ping(lobby *l, mr_err *err) {
    Millrace__Pong pong = MILLRACE__PONG__INIT;
    Millrace__Report report = MILLRACE__REPORT__INIT;
    pong.clock_ns = mr_clock_now_ns();
    report.body_case = MILLRACE__REPORT__BODY_PONG;
    report.pong = &pong;
    mr_status status = mr_inbox_release(l->control, err);
    return status == MR_OK ? send_report(l, &report, err) : status;
}

/* Ranks that have no file cannot begin to measure before they have its header. */
static bool told_to_end_and_serve(void *ctx) {
    lobby *l = ctx;
    mr_file_server_serve(l->file_server, 0);
    return told_to_end(l);
}

/* Measures layers or a link, which takes some seconds, and says what came of it. */
static mr_status answer_measure(lobby *l, mr_err *err) {
    const Millrace__Measure wish = *l->message->measure;
    mr_lobby_facts answer;
    Millrace__Report report = MILLRACE__REPORT__INIT;
    mr_status status = mr_inbox_release(l->control, err);
    if (status != MR_OK)
        return status;
    const mr_lobby_file file = {l->file_client, l->file_problem.status != MR_OK ? &l->file_problem : NULL};
    if (mr_lobby_measure(l->config, &file, &wish, told_to_end_and_serve, l, &answer) != MR_OK)
        return l->status == MR_OK ? MR_OK : mr_err_set(err, l->status, "%s", l->err.text);
    report.body_case = MILLRACE__REPORT__BODY_FACTS;
    report.facts = &answer.facts.message;
    return send_report(l, &report, err);
}

static mr_status answer_probe(lobby *l, mr_err *err) {
    const Millrace__Probe wish = *l->message->probe;
    mr_lobby_facts answer;
    Millrace__Report report = MILLRACE__REPORT__INIT;
    mr_status status = mr_inbox_release(l->control, err);
    if (status != MR_OK)
        return status;
    if (mr_lobby_probe(l->config, &wish, told_to_end, l, &answer) != MR_OK)
        return l->status == MR_OK ? MR_OK : mr_err_set(err, l->status, "%s", l->err.text);
    report.body_case = MILLRACE__REPORT__BODY_LINK;
    report.link = &answer.link;
    return send_report(l, &report, err);
}

/* Does what is done in the lobby; false: the message is none of these. */
static bool answer(lobby *l, mr_status *out_status, mr_err *err) {
    switch ((int)l->message->body_case) {
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
    default:
        return false;
    }
}

static mr_status wait_to_be_told(lobby *l, bool *out_abandoned, mr_err *err) {
    for (;;) {
        mr_status status = peek(l, err);
        bool served = mr_file_server_serve(l->file_server, 0);
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
            return mr_err_set(err, MR_E_PROTOCOL, "the coordinator sent a message that nobody waits for in the lobby");
        uint32_t epoch = l->message->start->epoch;
        status = mr_inbox_release(l->control, err);
        if (status != MR_OK)
            return status;
        run_stage(l, epoch);
        if (l->status != MR_OK)
            return mr_err_set(err, l->status, "%s", l->err.text);
    }
}

mr_status mr_lobby_run(const mr_lobby_config *config, bool *out_abandoned, mr_err *err) {
    lobby l = {.config = config};
    *out_abandoned = false;
    mr_status status = open_links(&l, err);
    if (status == MR_OK)
        status = say_hello(&l, err);
    if (status == MR_OK)
        status = wait_to_be_told(&l, out_abandoned, err);
    end_sharing(&l);
    mr_inbox_destroy(l.control);
    mr_outbox_destroy(l.report);
    mr_arena_destroy(l.arena);
    return status;
}
