// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/file_sharing.h"

#include <string.h>

#include "engine/base/cache_dir.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

/* What a message says. */
typedef struct sharing {
    const mr_lobby_config *config;
    const Millrace__ShareFile *message;
    const char *folder; /* of the cache; NULL: there is none */
    mr_file_part parts[MR_MAX_FILE_PARTS];
    mr_part_place places[MR_MAX_FILE_PARTS];
    bool asks;
} sharing;

static void read_message(sharing *s, const mr_lobby_config *config, const Millrace__ShareFile *message,
                         const char *folder) {
    s->config = config;
    s->message = message;
    s->folder = folder;
    s->asks = false;
    for (size_t i = 0; i < message->n_parts; i++) {
        const Millrace__FilePart *p = message->parts[i];
        s->parts[i] = (mr_file_part){p->bytes, p->header_bytes, .n_sources = (int32_t)p->n_sources};
        for (size_t k = 0; k < p->n_sources; k++)
            s->parts[i].sources[k] = (int32_t)p->sources[k];
        s->places[i] = (mr_part_place){p->bytes, p->n_sources == 0};
        if (message->part_roots.len > 0)
            memcpy(&s->parts[i].root, message->part_roots.data + i * MR_FILE_HASH_BYTES, MR_FILE_HASH_BYTES);
        s->asks = s->asks || p->n_sources > 0;
    }
}

static mr_status create_server(mr_file_sharing *f, const sharing *s, const mr_err *problem, mr_err *err) {
    const mr_file_server_config config = {.channel = s->config->channel,
                                          .path = s->config->model_path,
                                          .parts = s->places,
                                          .n_parts = (int32_t)s->message->n_parts,
                                          .cache_folder = s->folder,
                                          .n_threads = s->config->n_threads,
                                          .peers = s->message->askers,
                                          .n_peers = (int32_t)s->message->n_askers,
                                          .problem = problem};
    return mr_file_server_create(&config, &f->server, err);
}

static mr_status create_client(mr_file_sharing *f, const sharing *s, mr_err *err) {
    const mr_file_client_config config = {.channel = s->config->channel,
                                          .cache_folder = s->folder,
                                          .model_path = s->config->model_path,
                                          .digest = s->message->file_digest,
                                          .parts = s->parts,
                                          .n_parts = (int32_t)s->message->n_parts,
                                          .server = f->server};
    return mr_file_client_create(&config, &f->client, err);
}

void mr_file_sharing_end(mr_file_sharing *f) {
    mr_file_client_destroy(f->client);
    mr_file_server_destroy(f->server);
    f->server = NULL;
    f->client = NULL;
}

void mr_file_sharing_begin(mr_file_sharing *f, const mr_lobby_config *config, const Millrace__ShareFile *message) {
    static const char NO_ANSWER[] = "other ranks get no answer to their requests for the model file";
    char *folder = NULL;
    mr_err ignored;
    mr_file_sharing_end(f);
    mr_status status = mr_cache_dir_make(config->cache_dir, &folder, &f->problem);
    sharing *s = mr_alloc(sizeof *s);
    if (!s) {
        status = mr_err_set(&f->problem, MR_E_NO_MEMORY, "no memory to share a file");
    } else {
        read_message(s, config, message, folder);
        status = s->asks ? status : MR_OK; /* a server works without a cache folder */
        if (s->message->n_askers > 0 && create_server(f, s, NULL, &ignored) != MR_OK) {
            f->problem = ignored;
            status = ignored.status;
            if (create_server(f, s, &f->problem, &ignored) != MR_OK)
                mr_log_write(MR_LOG_WARN, "worker", "%s: %s", NO_ANSWER, f->problem.text);
        }
        if (s->asks && status == MR_OK)
            status = create_client(f, s, &f->problem);
    }
    f->problem.status = status;
    mr_free(s);
    mr_free(folder);
}
