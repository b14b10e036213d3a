/* The transfer of a model file from rank to rank: between real servers and a client, and between a client and
 * sources that send wrong data, refuse, stop answering or die. */
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "proto/channel_local.h"
#include "proto/link.h"
#include "tests/support/share.h"
#include "tests/support/test.h"
#include "worker/files/file_blocks.h"
#include "worker/files/file_client.h"
#include "worker/files/file_server.h"

enum {
    N_BLOCKS = 140, /* so many that three requests for hashes are needed */
    FILE_BYTES = (N_BLOCKS - 1) * MR_FILE_BLOCK_BYTES + 77,
    CLIENT = 0,
    MAX_SOURCES = MR_MAX_PART_SOURCES,
    PATIENCE_S = 60,
    LONG_PATIENCE_S = 10, /* of clients, where another source is left: a tenth of it counts */
    BAD_BLOCK = 130,
    FORGED_BYTES = MR_FRAME_BYTES + 8,
};

static const uint64_t HEADER_BYTES = MR_FILE_BLOCK_BYTES + 5;
static const mr_part_place WHOLE = {FILE_BYTES, true};

/* How a source behaves. */
typedef enum role {
    SERVES,       /* runs the real file server */
    SERVES_OTHER, /* the same, with a file that has another byte */
    GOOD,         /* played by the test, like all roles below */
    WRONG_BYTES,  /* sends BAD_BLOCK with wrong bytes */
    WRONG_HASH,   /* sends a wrong hash of BAD_BLOCK */
    DIES_LATE,    /* leaves when it is asked for BAD_BLOCK */
    DIES,         /* leaves after some answers */
    REFUSES,      /* refuses after some answers */
    SILENT,
    ANSWERS_OTHERS, /* sends a block that was not asked for */
    SHORT_BLOCK,
    MANY_HASHES,
    FEW_HASHES, /* sends one hash for each request, and nothing of the others */
    ODD_KIND,
    FORGED,    /* somebody without the launch secret sends a frame in its name before each answer */
    ZERO_HASH, /* sends the hash that means "not known" for BAD_BLOCK */
} role;

typedef struct source {
    role role;
    int32_t self;
    mr_local_hub *hub;
    mr_channel *channel;
    const char *path;
    mr_thread *thread;
    atomic_bool stop;
    int n_blocks_given;
    mr_file_server *server;
} source;

typedef struct rig {
    int32_t n;
    mr_local_hub *hub;
    mr_channel *channel;
    mr_file_client *client;
    source sources[MAX_SOURCES];
    mr_err err;
    atomic_int turns_left; /* turns after which the client is told to end; negative: never */
    uint64_t most_bytes;   /* bytes after which the client is told to end; 0: never */
    size_t done_bytes, total_bytes;
} rig;

static char folder[] = "/tmp/millrace-share-XXXXXX";
static char model_path[64], other_path[64];
static uint8_t *content; /* [FILE_BYTES] */
static const char *served_path = model_path;
static mr_file_hash known_root; /* of the file, for clients; all zero: none */
static int n_caches;
static int64_t patience_ns;                          /* of clients */
static mr_secret secret;                             /* of channels */
static uint8_t forged[MR_FRAME_KINDS][FORGED_BYTES]; /* a frame of each kind, without a secret */

/* --- Sources ------------------------------------------------------------------------------------------------------ */

static void run_server(source *s) {
    mr_err err;
    while (!atomic_load(&s->stop))
        if (!mr_file_server_serve(s->server, 0))
            expect_ok(mr_channel_wait(s->channel, MR_NEVER, &err), &err);
    mr_file_server_destroy(s->server);
}

/* The good answer to a request; returns the frame. */
static mr_frame good_answer(const Millrace__FileRequest *m, uint8_t *payload) {
    if (m->what == MILLRACE__FILE_REQUEST__WHAT__BLOCK) {
        size_t n = mr_file_block_bytes(FILE_BYTES, m->first_block);
        memcpy(payload, content + mr_file_block_at(m->first_block), n);
        return (mr_frame){
            .step = m->first_block, .type = MR_FILE_ANSWER_BLOCK, .row_bytes = m->fetch, .payload_bytes = n};
    }
    for (uint32_t i = 0; i < m->n_blocks; i++) {
        uint64_t idx = m->first_block + i;
        mr_file_hash_of(content + mr_file_block_at(idx), mr_file_block_bytes(FILE_BYTES, idx),
                        (mr_file_hash *)payload + i);
    }
    return (mr_frame){.step = m->first_block,
                      .type = MR_FILE_ANSWER_HASHES,
                      .rows = m->n_blocks,
                      .row_bytes = m->fetch,
                      .payload_bytes = m->n_blocks * sizeof(mr_file_hash)};
}

/* Sends what somebody without the launch secret might send in the name of this endpoint. */
static void send_forged(mr_channel *from, int32_t to, mr_link_kind kind) {
    mr_channel_request request;
    mr_err err;
    expect_ok(mr_channel_post_send(from, to, mr_link_tag(kind, 0), forged[kind], FORGED_BYTES, &request, &err), &err);
}

/* Makes a good answer what the role wants; false: the source is done. */
static bool spoil(source *s, mr_frame *f, uint8_t *payload) {
    bool is_block = f->type == MR_FILE_ANSWER_BLOCK;
    bool late = s->n_blocks_given >= 3;
    if (s->role == WRONG_BYTES && is_block && f->step == BAD_BLOCK)
        payload[5] ^= 1;
    else if (s->role == WRONG_HASH && !is_block && f->step <= BAD_BLOCK && f->step + f->rows > BAD_BLOCK)
        payload[(BAD_BLOCK - f->step) * sizeof(mr_file_hash)] ^= 1;
    else if ((s->role == DIES && late) || (s->role == DIES_LATE && is_block && f->step == BAD_BLOCK))
        return false;
    else if (s->role == REFUSES && late) {
        f->type = MR_FILE_ANSWER_REFUSAL;
        f->payload_bytes = 10;
        memcpy(payload, "disk\x01 gone", 10);
    } else if (s->role == ANSWERS_OTHERS && is_block)
        f->step = f->step + 1 < N_BLOCKS ? N_BLOCKS : 0;
    else if (s->role == SHORT_BLOCK && is_block)
        f->payload_bytes--;
    else if (s->role == MANY_HASHES && !is_block)
        f->rows = UINT32_MAX;
    else if (s->role == FEW_HASHES && !is_block) {
        f->rows = 1;
        f->payload_bytes = sizeof(mr_file_hash);
    } else if (s->role == ZERO_HASH && !is_block && f->step <= BAD_BLOCK && f->step + f->rows > BAD_BLOCK)
        memset(payload + (BAD_BLOCK - f->step) * sizeof(mr_file_hash), 0, sizeof(mr_file_hash));
    else if (s->role == ODD_KIND)
        f->type = 9;
    s->n_blocks_given += is_block;
    return true;
}

static void play(source *s) {
    static const size_t arena_bytes = 4096;
    mr_err err;
    mr_inbox *in = NULL;
    mr_outbox *out = NULL;
    mr_arena *arena = NULL;
    expect_ok(mr_arena_create(arena_bytes, arena_bytes, &arena, &err), &err);
    expect_ok(mr_inbox_create(s->channel, CLIENT, MR_LINK_FILE, 0, MR_FILE_REQUEST_SLOTS, MR_MAX_FILE_REQUEST_BYTES,
                              &in, &err),
              &err);
    expect_ok(mr_outbox_create(s->channel, CLIENT, MR_LINK_FILE_ANSWERS, 0, 2, MR_FILE_BLOCK_BYTES, &out, &err), &err);
    for (bool goes_on = true; goes_on && !atomic_load(&s->stop);) {
        mr_frame f;
        const uint8_t *data = NULL;
        uint8_t *payload = NULL;
        Millrace__FileRequest *m;
        mr_status status = mr_inbox_peek(in, &f, &data, &err);
        if (status == MR_OK && data && s->role != SILENT)
            status = mr_outbox_reserve(out, &payload, &err);
        if (status != MR_OK)
            break; /* the client has left */
        if (!payload) {
            expect_ok(mr_channel_wait(s->channel, MR_NEVER, &err), &err);
            continue;
        }
        expect_ok(mr_msg_unpack_file_request(data, f.payload_bytes, N_BLOCKS, arena, &m, &err), &err);
        if (m->what != MILLRACE__FILE_REQUEST__WHAT__NO_MORE) {
            if (s->role == FORGED)
                send_forged(s->channel, CLIENT, MR_LINK_FILE_ANSWERS);
            f = good_answer(m, payload);
            goes_on = spoil(s, &f, payload) && mr_outbox_send(out, &f, &err) == MR_OK;
        }
        expect_ok(mr_inbox_release(in, &err), &err);
    }
    mr_inbox_destroy(in);
    mr_outbox_destroy(out);
    mr_arena_destroy(arena);
}

static bool dies(const source *s) {
    return s->role == DIES || s->role == DIES_LATE;
}

static void run_source(void *ctx) {
    source *s = ctx;
    if (s->role == SERVES || s->role == SERVES_OTHER)
        run_server(s);
    else
        play(s);
    if (dies(s))
        mr_channel_destroy(s->channel);
}

/* --- The rig ----------------------------------------------------------------------------------------------------- */

/* parts: as mr_file_server_config has them. */
static void start_source(rig *r, int32_t i, role does, const char *path, const mr_part_place *parts, int32_t n_parts) {
    static const uint32_t peers[] = {CLIENT};
    source *s = &r->sources[i];
    *s = (source){.role = does, .self = i + 1, .hub = r->hub, .path = path};
    expect_ok(mr_local_channel_open(r->hub, s->self, &s->channel, &r->err), &r->err);
    s->channel->secret = &secret;
    const mr_file_server_config config = {.channel = s->channel,
                                          .path = path,
                                          .parts = parts,
                                          .n_parts = n_parts,
                                          .n_threads = 2,
                                          .peers = peers,
                                          .n_peers = 1};
    if (does == SERVES || does == SERVES_OTHER)
        expect_ok(mr_file_server_create(&config, &s->server, &r->err), &r->err);
    expect_ok(mr_thread_create("source", 0, run_source, s, &s->thread, &r->err), &r->err);
}

/* cache: a number; the same one is the same folder, and a new one takes the place of those before. */
static void open_client_of(rig *r, const char *path, const mr_file_part *parts, int32_t n_parts, int cache) {
    char cache_path[128];
    snprintf(cache_path, sizeof cache_path, "%s/cache-%d", folder, cache);
    if (access(cache_path, F_OK) != 0) {
        char command[128];
        snprintf(command, sizeof command, "rm -rf %s/cache-*", folder);
        assert_int_equal(system(command), 0);
        assert_int_equal(mkdir(cache_path, 0700), 0);
    }
    const mr_file_client_config config = {.channel = r->channel,
                                          .cache_folder = cache_path,
                                          .model_path = path,
                                          .parts = parts,
                                          .n_parts = n_parts,
                                          .digest = 0xabc,
                                          .patience_ns = patience_ns};
    expect_ok(mr_file_client_create(&config, &r->client, &r->err), &r->err);
}

/* Of a whole file. */
static void open_client(rig *r, int32_t n_sources, int cache) {
    mr_file_part part = {.bytes = FILE_BYTES, .header_bytes = HEADER_BYTES, .n_sources = n_sources, .root = known_root};
    for (int32_t i = 0; i < n_sources; i++)
        part.sources[i] = i + 1;
    open_client_of(r, "/data/model.gguf", &part, 1, cache);
}

static void rig_start(rig *r, const role *roles, int32_t n, int cache) {
    *r = (rig){.n = n, .turns_left = -1};
    alarm(PATIENCE_S);
    expect_ok(mr_local_hub_create(n + 1, 1024, &r->hub, &r->err), &r->err);
    expect_ok(mr_local_channel_open(r->hub, CLIENT, &r->channel, &r->err), &r->err);
    r->channel->secret = &secret;
    for (int32_t i = 0; i < n; i++)
        start_source(r, i, roles[i], roles[i] == SERVES_OTHER ? other_path : served_path, &WHOLE, 1);
    open_client(r, n, cache);
}

static void rig_stop(rig *r) {
    mr_file_client_destroy(r->client);
    for (int32_t i = 0; i < r->n; i++) {
        source *s = &r->sources[i];
        atomic_store(&s->stop, true);
        if (!dies(s))
            mr_channel_wake(s->channel);
        mr_thread_join(s->thread);
        if (!dies(s))
            mr_channel_destroy(s->channel);
    }
    mr_channel_destroy(r->channel);
    mr_local_hub_destroy(r->hub);
    alarm(0);
}

static bool told_to_end(void *ctx) {
    rig *r = ctx;
    if (r->most_bytes > 0 && mr_file_client_moved_bytes(r->client) >= r->most_bytes)
        return true;
    if (atomic_load(&r->turns_left) < 0)
        return false;
    return atomic_fetch_sub(&r->turns_left, 1) == 0;
}

static void note_progress(void *ctx, size_t done_bytes, size_t total_bytes) {
    rig *r = ctx;
    assert_true(done_bytes >= r->done_bytes && done_bytes <= total_bytes);
    r->done_bytes = done_bytes;
    r->total_bytes = total_bytes;
}

static mr_status fetch(rig *r, uint64_t at, uint64_t bytes) {
    const mr_file_range range = {at, bytes};
    const mr_file_wait wait = {told_to_end, note_progress, r};
    r->done_bytes = 0;
    return mr_file_client_fetch(r->client, &range, 1, &wait, &r->err);
}

/* The cached file has the content in [at, at + bytes). */
static void expect_content(rig *r, uint64_t at, uint64_t bytes) {
    uint8_t *found = mr_alloc(bytes);
    FILE *f = fopen(mr_file_client_path(r->client), "rb");
    assert_true(found && f && fseek(f, (long)at, SEEK_SET) == 0 && fread(found, 1, bytes, f) == bytes);
    fclose(f);
    assert_true(memcmp(found, content + at, bytes) == 0);
    mr_free(found);
}

static void expect_error(rig *r, mr_status got, mr_status want, const char *words) {
    if (got != want || !strstr(r->err.text, words))
        fail_msg("%s: %s; wanted %s: %s", mr_status_name(got), got == MR_OK ? "" : r->err.text, mr_status_name(want),
                 words);
}

/* --- Tests ------------------------------------------------------------------------------------------------------- */

/* Header, a part, all, from two servers; then a second start, which moves nothing; one server gave its share each
 * time. */
static void test_fetch(void **state) {
    (void)state;
    rig r;
    int cache = n_caches++;
    rig_start(&r, (role[]){SERVES, SERVES}, 2, cache);
    expect_ok(fetch(&r, 0, HEADER_BYTES), &r.err);
    expect_content(&r, 0, HEADER_BYTES);
    assert_int_equal(mr_file_client_moved_bytes(r.client), 2 * MR_FILE_BLOCK_BYTES);
    expect_ok(fetch(&r, 10 * MR_FILE_BLOCK_BYTES - 1, 2), &r.err);
    expect_content(&r, 10 * MR_FILE_BLOCK_BYTES - 1, 2);
    assert_int_equal(mr_file_client_moved_bytes(r.client), 4 * MR_FILE_BLOCK_BYTES);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    assert_int_equal(mr_file_client_moved_bytes(r.client), FILE_BYTES);
    assert_int_equal(r.total_bytes, FILE_BYTES - 4 * MR_FILE_BLOCK_BYTES);
    assert_int_equal(r.done_bytes, r.total_bytes);
    expect_content(&r, 0, FILE_BYTES);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    mr_file_client_destroy(r.client);
    open_client(&r, 2, cache);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    assert_int_equal(mr_file_client_moved_bytes(r.client), 0);
    expect_content(&r, 0, FILE_BYTES);
    expect_error(&r, fetch(&r, FILE_BYTES - 1, 2), MR_E_INVALID, "outside");
    rig_stop(&r);
}

/* Four sources give blocks, each block once. */
static void test_spread(void **state) {
    (void)state;
    rig r;
    rig_start(&r, (role[]){GOOD, GOOD, GOOD, GOOD}, 4, n_caches++);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    expect_content(&r, 0, FILE_BYTES);
    rig_stop(&r);
    int n_given = 0, n_givers = 0;
    for (int i = 0; i < 4; i++) {
        n_givers += r.sources[i].n_blocks_given > 0;
        n_given += r.sources[i].n_blocks_given;
    }
    assert_int_equal(n_given, N_BLOCKS);
    assert_true(n_givers >= 3); /* every source gives blocks if each one gets a processor in time */
}

/* If a fetch ends in the middle, the next start continues at the same place. */
static void test_goes_on(void **state) {
    (void)state;
    rig r;
    int cache = n_caches++;
    rig_start(&r, (role[]){SERVES}, 1, cache);
    r.most_bytes = FILE_BYTES / 3;
    assert_int_equal(fetch(&r, 0, FILE_BYTES), MR_E_CANCELLED);
    uint64_t first = mr_file_client_moved_bytes(r.client);
    assert_true(first < FILE_BYTES);
    mr_file_client_destroy(r.client);
    open_client(&r, 1, cache);
    r.most_bytes = 0;
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    expect_content(&r, 0, FILE_BYTES);
    /* Blocks that were on their way when the client ended were sent, but not written. */
    assert_true(first + mr_file_client_moved_bytes(r.client) == FILE_BYTES);
    rig_stop(&r);
}

/* One of two sources is useless, so the other source gives all blocks. */
static void test_bad_source(void **state) {
    (void)state;
    static const role BAD[] = {DIES, REFUSES, ANSWERS_OTHERS, SHORT_BLOCK, MANY_HASHES, ODD_KIND, ZERO_HASH};
    int n = 0;
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        rig r;
        if (share_skips(&n))
            continue;
        rig_start(&r, (role[]){BAD[i], GOOD}, 2, n_caches++);
        expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
        expect_content(&r, 0, FILE_BYTES);
        rig_stop(&r);
    }
}

static void test_no_good_source(void **state) {
    (void)state;
    const struct {
        role role;
        mr_status status;
        const char *words;
    } cases[] = {
        {DIES, MR_E_PEER_LOST, "endpoint 1 is gone"},
        {REFUSES, MR_E_IO, "endpoint 1: disk? gone"},
        {ANSWERS_OTHERS, MR_E_PROTOCOL, "endpoint 1: an answer of kind 2"},
        {SHORT_BLOCK, MR_E_PROTOCOL, "not asked for"},
        {MANY_HASHES, MR_E_PROTOCOL, "an answer of kind 1"},
        {ODD_KIND, MR_E_PROTOCOL, "an answer of kind 9"},
        {ZERO_HASH, MR_E_PROTOCOL, "endpoint 1: no hash for block 130"},
        {WRONG_BYTES, MR_E_FORMAT, "block 130 of the model file"},
        {WRONG_HASH, MR_E_FORMAT, "from endpoint 1 is not the one that it announced"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig r;
        rig_start(&r, &cases[i].role, 1, n_caches++);
        expect_error(&r, fetch(&r, 0, FILE_BYTES), cases[i].status, cases[i].words);
        /* The blocks that came before are valid. */
        mr_file_client_destroy(r.client);
        r.client = NULL;
        rig_stop(&r);
    }
}

/* A block that is damaged on the way, or at one source, comes from another source. If all sources give bytes that do
 * not match the hash, the error names both. */
static void test_damaged_block(void **state) {
    (void)state;
    rig r;
    rig_start(&r, (role[]){WRONG_BYTES, GOOD}, 2, n_caches++);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    expect_content(&r, 0, FILE_BYTES);
    rig_stop(&r);
    rig_start(&r, (role[]){WRONG_BYTES, DIES_LATE}, 2, n_caches++);
    expect_error(&r, fetch(&r, 0, FILE_BYTES), MR_E_FORMAT, "from endpoint 1 is not");
    rig_stop(&r);
    rig_start(&r, (role[]){WRONG_HASH, WRONG_HASH}, 2, n_caches++);
    expect_error(&r, fetch(&r, 0, FILE_BYTES), MR_E_FORMAT, "block 130 of the model file");
    expect_says(r.err.text, "is not the one that it announced");
    rig_stop(&r);
}

static void find_root(void) {
    mr_file_hash hashes[N_BLOCKS];
    for (uint64_t i = 0; i < N_BLOCKS; i++)
        mr_file_hash_of(content + mr_file_block_at(i), mr_file_block_bytes(FILE_BYTES, i), &hashes[i]);
    mr_file_root_of(FILE_BYTES, hashes, &known_root);
}

/* With a known root no byte of another file is taken, however many sources agree on it. */
static void test_root(void **state) {
    (void)state;
    const struct {
        role roles[3];
        int n;
    } good[] = {{{SERVES}, 1},           {{SERVES_OTHER, SERVES}, 2}, {{SERVES_OTHER, SERVES_OTHER, SERVES}, 3},
                {{WRONG_HASH, GOOD}, 2}, {{WRONG_BYTES, GOOD}, 2},    {{GOOD, WRONG_BYTES}, 2},
                {{DIES, GOOD}, 2},       {{ZERO_HASH, GOOD}, 2}};
    rig r;
    int n = 0;
    find_root();
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (share_skips(&n))
            continue;
        rig_start(&r, good[i].roles, good[i].n, n_caches++);
        expect_ok(fetch(&r, 9 * MR_FILE_BLOCK_BYTES, 1), &r.err);
        expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
        expect_content(&r, 0, FILE_BYTES);
        rig_stop(&r);
    }
    const struct {
        role role;
        const char *words;
    } bad[] = {{SERVES_OTHER, "endpoint 1: its model file has other bytes"},
               {WRONG_HASH, "endpoint 1: its model file has other bytes"},
               {WRONG_BYTES, "from endpoint 1 is not that of the file that the job wants"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rig_start(&r, &bad[i].role, 1, n_caches++);
        expect_error(&r, fetch(&r, 0, FILE_BYTES), MR_E_FORMAT, bad[i].words);
        rig_stop(&r);
    }
    known_root = (mr_file_hash){{0}};
}

/* Blocks of another file with the same digest are in the cache: with a known root those that differ are replaced. */
static void test_root_and_cache(void **state) {
    (void)state;
    rig r;
    int cache = n_caches++;
    rig_start(&r, (role[]){SERVES_OTHER}, 1, cache);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    rig_stop(&r);
    find_root();
    rig_start(&r, (role[]){SERVES}, 1, cache);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    assert_int_equal(mr_file_client_moved_bytes(r.client), MR_FILE_BLOCK_BYTES);
    assert_int_equal(r.total_bytes, MR_FILE_BLOCK_BYTES);
    expect_content(&r, 0, FILE_BYTES);
    rig_stop(&r);
    known_root = (mr_file_hash){{0}};
}

/* The file of the only source differs from what the cache holds of the same digest: the block is replaced. */
static void test_stale_cache(void **state) {
    (void)state;
    rig r;
    int cache = n_caches++;
    rig_start(&r, (role[]){SERVES}, 1, cache);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    rig_stop(&r);
    served_path = other_path;
    rig_start(&r, (role[]){SERVES}, 1, cache);
    served_path = model_path;
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    assert_int_equal(mr_file_client_moved_bytes(r.client), MR_FILE_BLOCK_BYTES);
    rig_stop(&r);
}

/* Puts all blocks of the cached file in doubt. */
static void touch_cache(const rig *r) {
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 2000000000}};
    assert_int_equal(utimensat(AT_FDCWD, mr_file_client_path(r->client), times, 0), 0);
}

/* A block that was damaged behind the list's back is asked for again, and counts in the progress. */
static void test_damaged_cache(void **state) {
    (void)state;
    rig r;
    int cache = n_caches++;
    rig_start(&r, (role[]){SERVES}, 1, cache);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    FILE *f = fopen(mr_file_client_path(r.client), "r+b");
    assert_true(f && fseek(f, 5 * MR_FILE_BLOCK_BYTES, SEEK_SET) == 0 && fwrite("damaged", 1, 7, f) == 7);
    assert_int_equal(fclose(f), 0);
    touch_cache(&r);
    mr_file_client_destroy(r.client);
    open_client(&r, 1, cache);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    assert_int_equal(r.total_bytes, MR_FILE_BLOCK_BYTES);
    expect_content(&r, 0, FILE_BYTES);
    rig_stop(&r);
}

/* While the blocks in doubt of a file with a known root are hashed, the fetch can be ended. */
static void test_doubt_ends(void **state) {
    (void)state;
    rig r;
    int cache = n_caches++;
    find_root();
    rig_start(&r, (role[]){SERVES}, 1, cache);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    touch_cache(&r);
    mr_file_client_destroy(r.client);
    open_client(&r, 1, cache);
    expect_ok(fetch(&r, 0, HEADER_BYTES), &r.err);
    for (int n_turns = 0; n_turns < N_BLOCKS / 16; n_turns++) {
        atomic_store(&r.turns_left, 0);
        assert_int_equal(fetch(&r, 0, FILE_BYTES), MR_E_CANCELLED);
    }
    atomic_store(&r.turns_left, -1);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    assert_int_equal(mr_file_client_moved_bytes(r.client), 0);
    expect_content(&r, 0, FILE_BYTES);
    rig_stop(&r);
    known_root = (mr_file_hash){{0}};
}

static void test_silence(void **state) {
    (void)state;
    rig r;
    rig_start(&r, (role[]){SILENT}, 1, n_caches++);
    atomic_store(&r.turns_left, 3);
    assert_int_equal(fetch(&r, 0, FILE_BYTES), MR_E_CANCELLED);
    rig_stop(&r);
}

/* How many lines of a log name a source that hangs, and the file. */
static int count_warnings(FILE *log, int endpoint) {
    char line[MR_LOG_LINE_BYTES], words[128];
    int n = 0;
    snprintf(words, sizeof words, " worker: endpoint %d has sent nothing of the model file /data/model.gguf for ",
             endpoint);
    rewind(log);
    while (fgets(line, sizeof line, log))
        n += strstr(line, " warn ") && strstr(line, words);
    return n;
}

/* A source that accepts requests and never answers. A warning names the source, then the client gives it up, and the
 * error names it. Where another source is left, that one gets the requests long before the patience ends. */
static void test_patience(void **state) {
    (void)state;
    rig r;
    FILE *log = tmpfile();
    assert_non_null(log);
    patience_ns = LONG_PATIENCE_S * MR_NS_PER_S;
    for (int i = 0; i < 2; i++) {
        rig_start(&r, i == 0 ? (role[]){GOOD, SILENT} : (role[]){SILENT, GOOD}, 2, n_caches++);
        mr_log_set_fd(fileno(log));
        int64_t start_ns = mr_clock_now_ns();
        expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
        mr_log_set_fd(2);
        assert_true(mr_clock_now_ns() - start_ns < patience_ns);
        assert_int_equal(count_warnings(log, 2 - i), 1);
        expect_content(&r, 0, FILE_BYTES);
        rig_stop(&r);
        find_root();
    }
    known_root = (mr_file_hash){{0}};
    fclose(log);
    patience_ns = MR_NS_PER_S;
    rig_start(&r, (role[]){ODD_KIND, SILENT}, 2, n_caches++);
    expect_error(&r, fetch(&r, 0, FILE_BYTES), MR_E_TIMEOUT,
                 "endpoint 2: nothing of the model file /data/model.gguf has come for 1 s");
    rig_stop(&r);
    patience_ns = 0;
}

/* A source that leaves hashes out counts as silent, with a known root and without. */
static void test_few_hashes(void **state) {
    (void)state;
    rig r;
    for (int i = 0; i < 2; i++) {
        patience_ns = MR_NS_PER_S;
        rig_start(&r, (role[]){FEW_HASHES}, 1, n_caches++);
        expect_error(&r, fetch(&r, 0, FILE_BYTES), MR_E_TIMEOUT, "endpoint 1: nothing of the model file");
        rig_stop(&r);
        patience_ns = LONG_PATIENCE_S * MR_NS_PER_S;
        rig_start(&r, (role[]){FEW_HASHES, GOOD}, 2, n_caches++);
        expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
        expect_content(&r, 0, FILE_BYTES);
        rig_stop(&r);
        find_root();
    }
    known_root = (mr_file_hash){{0}};
    patience_ns = 0;
}

/* Sends what is no request from the client's endpoint to the server of source 0. */
static void send_bad_request(rig *r) {
    mr_outbox *out = NULL;
    uint8_t *payload = NULL;
    expect_ok(mr_outbox_create(r->channel, 1, MR_LINK_FILE, 0, 2, MR_MAX_FILE_REQUEST_BYTES, &out, &r->err), &r->err);
    expect_ok(mr_outbox_reserve(out, &payload, &r->err), &r->err);
    memset(payload, 0xff, 8);
    expect_ok(mr_outbox_send(out, &(mr_frame){.payload_bytes = 8}, &r->err), &r->err);
    mr_outbox_flush(out, MR_NEVER);
    mr_outbox_destroy(out);
}

/* A server ignores a peer that sends invalid messages. */
static void test_bad_requests(void **state) {
    (void)state;
    rig r;
    rig_start(&r, (role[]){SERVES}, 1, n_caches++);
    send_bad_request(&r);
    rig_stop(&r);
}

/* Frames of somebody without the launch secret, more than the server has receives posted, change nothing for the rank
 * in whose name they come. What the rank itself sends has to be valid. */
static void test_forged_requests(void **state) {
    (void)state;
    rig r;
    secret = (mr_secret){.is_set = true, .bytes = {1, 2, 3}};
    patience_ns = LONG_PATIENCE_S * MR_NS_PER_S;
    rig_start(&r, (role[]){SERVES}, 1, n_caches++);
    for (int i = 0; i < 6; i++)
        send_forged(r.channel, 1, MR_LINK_FILE);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    expect_content(&r, 0, FILE_BYTES);
    rig_stop(&r);
    patience_ns = MR_NS_PER_S;
    rig_start(&r, (role[]){SERVES}, 1, n_caches++);
    send_bad_request(&r);
    expect_error(&r, fetch(&r, 0, FILE_BYTES), MR_E_TIMEOUT, "endpoint 1: nothing of the model file");
    rig_stop(&r);
    patience_ns = 0;
    secret = (mr_secret){.is_set = false};
}

/* The same of answers: a source is not dropped for what somebody else sends. */
static void test_forged_answers(void **state) {
    (void)state;
    rig r;
    secret = (mr_secret){.is_set = true, .bytes = {1, 2, 3}};
    rig_start(&r, (role[]){FORGED}, 1, n_caches++);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    expect_content(&r, 0, FILE_BYTES);
    rig_stop(&r);
    secret = (mr_secret){.is_set = false};
}

/* A client that is played: it asks for blocks from first on, two at a time. */
typedef struct asker {
    mr_channel *channel;
    mr_inbox *in;
    mr_outbox *out;
    int n_asked, n_got;
} asker;

enum { N_ASKERS = 70, N_EACH = 5 };

static void ask(asker *a, int32_t self, mr_err *err) {
    bool sent = true;
    while (sent && a->n_asked <= N_EACH && a->n_asked < a->n_got + 2) {
        Millrace__FileRequest m = MILLRACE__FILE_REQUEST__INIT;
        bool more = a->n_asked < N_EACH;
        m.what = more ? MILLRACE__FILE_REQUEST__WHAT__BLOCK : MILLRACE__FILE_REQUEST__WHAT__NO_MORE;
        m.first_block = more ? (uint64_t)(self + a->n_asked) : 0;
        m.n_blocks = more;
        expect_ok(mr_outbox_send_message(a->out, &m.base, &sent, err), err);
        a->n_asked += sent;
    }
}

/* Whether an answer is there; with takes it is taken. */
static bool has_answer(asker *a, int32_t self, bool takes, mr_err *err) {
    mr_frame f;
    const uint8_t *payload = NULL;
    uint64_t idx = (uint64_t)(self + a->n_got);
    expect_ok(mr_inbox_peek(a->in, &f, &payload, err), err);
    if (!payload)
        return false;
    assert_true(f.type == MR_FILE_ANSWER_BLOCK && f.step == idx);
    assert_true(memcmp(payload, content + mr_file_block_at(idx), mr_file_block_bytes(FILE_BYTES, idx)) == 0);
    a->n_got += takes;
    if (takes)
        expect_ok(mr_inbox_release(a->in, err), err);
    return true;
}

/* Many ranks ask at the same time: 32 of them have buffers for answers at a time, and all get what they asked for. */
static void test_many_clients(void **state) {
    (void)state;
    static asker askers[N_ASKERS];
    mr_err err;
    mr_local_hub *hub = NULL;
    mr_channel *channel = NULL;
    mr_file_server *server = NULL;
    uint32_t peers[N_ASKERS];
    int n_served = 0;
    bool done = false;
    alarm(PATIENCE_S);
    expect_ok(mr_local_hub_create(N_ASKERS + 1, 1024, &hub, &err), &err);
    expect_ok(mr_local_channel_open(hub, N_ASKERS, &channel, &err), &err);
    for (int32_t i = 0; i < N_ASKERS; i++) {
        asker *a = &askers[i];
        peers[i] = (uint32_t)i;
        expect_ok(mr_local_channel_open(hub, i, &a->channel, &err), &err);
        expect_ok(mr_inbox_create(a->channel, N_ASKERS, MR_LINK_FILE_ANSWERS, 0, 1, MR_FILE_BLOCK_BYTES, &a->in, &err),
                  &err);
        expect_ok(mr_outbox_create(a->channel, N_ASKERS, MR_LINK_FILE, 0, 2, MR_MAX_FILE_REQUEST_BYTES, &a->out, &err),
                  &err);
    }
    const mr_file_server_config config = {.channel = channel,
                                          .path = model_path,
                                          .parts = &WHOLE,
                                          .n_parts = 1,
                                          .n_threads = 1,
                                          .peers = peers,
                                          .n_peers = N_ASKERS};
    expect_ok(mr_file_server_create(&config, &server, &err), &err);
    for (int32_t i = 0; i < N_ASKERS; i++)
        ask(&askers[i], i, &err);
    while (mr_file_server_serve(server, 0))
        continue;
    for (int32_t i = 0; i < N_ASKERS; i++)
        n_served += has_answer(&askers[i], i, false, &err);
    assert_int_equal(n_served, 32);
    while (!done) {
        mr_file_server_serve(server, 0);
        done = true;
        for (int32_t i = 0; i < N_ASKERS; i++) {
            has_answer(&askers[i], i, true, &err);
            ask(&askers[i], i, &err);
            done = done && askers[i].n_got == N_EACH;
        }
    }
    mr_file_server_destroy(server);
    for (int32_t i = 0; i < N_ASKERS; i++) {
        mr_inbox_destroy(askers[i].in);
        mr_outbox_destroy(askers[i].out);
        mr_channel_destroy(askers[i].channel);
    }
    mr_channel_destroy(channel);
    mr_local_hub_destroy(hub);
    alarm(0);
}

enum { N_PARTS = 3, PART_BLOCKS = 50 };

/* Writes the parts that bits name as FOLDER/NAME-00001-of-00003.gguf and so on; path becomes that of the second. */
static void save_parts(const char *name, unsigned bits, const mr_file_part *parts, char path[64]) {
    for (int i = N_PARTS - 1; i >= 0; i--) {
        char part[64];
        snprintf(part, sizeof part, "%s/%s-%05d-of-%05d.gguf", folder, name, i + 1, N_PARTS);
        if (i == 1)
            strcpy(path, part);
        FILE *f = bits >> i & 1 ? fopen(part, "wb") : NULL;
        if (f) {
            assert_int_equal(fwrite(content + i * PART_BLOCKS * MR_FILE_BLOCK_BYTES, 1, parts[i].bytes, f),
                             parts[i].bytes);
            fclose(f);
        }
    }
}

/* A file in three parts: one source has the first and the last part, two have the second, and the client's host has the
 * last. Nobody is asked for a part that it lacks, and a source that is asked all the same refuses and goes on. */
static void test_parts(void **state) {
    (void)state;
    enum { PART_BYTES = PART_BLOCKS * MR_FILE_BLOCK_BYTES };
    char path[2][64];
    rig r = {.n = 3, .turns_left = -1};
    mr_file_part parts[N_PARTS] = {{.bytes = PART_BYTES, .header_bytes = 10, .sources = {1}, .n_sources = 1},
                                   {.bytes = PART_BYTES, .header_bytes = 10, .sources = {2, 3}, .n_sources = 2},
                                   {.bytes = FILE_BYTES - 2 * PART_BYTES, .header_bytes = 10}};
    const mr_part_place first[N_PARTS] = {{parts[0].bytes, true}, {parts[1].bytes, false}, {parts[2].bytes, true}};
    const mr_part_place second[N_PARTS] = {{parts[0].bytes, false}, {parts[1].bytes, true}, {parts[2].bytes, false}};
    save_parts("odd", 1u << 0 | 1u << 2, parts, path[0]);
    save_parts("even", 1u << 1, parts, path[1]);
    alarm(PATIENCE_S);
    expect_ok(mr_local_hub_create(r.n + 1, 1024, &r.hub, &r.err), &r.err);
    expect_ok(mr_local_channel_open(r.hub, CLIENT, &r.channel, &r.err), &r.err);
    start_source(&r, 0, SERVES, path[0], first, N_PARTS);
    start_source(&r, 1, SERVES, path[1], second, N_PARTS);
    start_source(&r, 2, SERVES, path[1], second, N_PARTS);
    int cache = n_caches++;
    open_client_of(&r, path[0], parts, N_PARTS, cache);
    expect_ok(fetch(&r, PART_BYTES - 1, 2), &r.err);
    assert_int_equal(mr_file_client_moved_bytes(r.client), 2 * MR_FILE_BLOCK_BYTES);
    expect_ok(fetch(&r, 0, FILE_BYTES), &r.err);
    assert_int_equal(mr_file_client_moved_bytes(r.client), 2 * PART_BYTES);
    expect_content(&r, 0, 2 * PART_BYTES);
    mr_file_client_destroy(r.client);
    parts[0].sources[0] = 2;
    open_client_of(&r, path[0], parts, N_PARTS, n_caches++);
    expect_error(&r, fetch(&r, 0, 1), MR_E_IO, "block 0 is of a part that is not here");
    expect_ok(fetch(&r, PART_BYTES, 1), &r.err);
    rig_stop(&r);
}

static void save(char path[64], const char *name) {
    snprintf(path, 64, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(content, 1, FILE_BYTES, f) != FILE_BYTES || fclose(f) != 0)
        abort();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fetch),          cmocka_unit_test(test_spread),
        cmocka_unit_test(test_goes_on),        cmocka_unit_test(test_bad_source),
        cmocka_unit_test(test_no_good_source), cmocka_unit_test(test_damaged_block),
        cmocka_unit_test(test_stale_cache),    cmocka_unit_test(test_silence),
        cmocka_unit_test(test_bad_requests),   cmocka_unit_test(test_patience),
        cmocka_unit_test(test_damaged_cache),  cmocka_unit_test(test_many_clients),
        cmocka_unit_test(test_parts),          cmocka_unit_test(test_root),
        cmocka_unit_test(test_root_and_cache), cmocka_unit_test(test_few_hashes),
        cmocka_unit_test(test_doubt_ends),     cmocka_unit_test(test_forged_requests),
        cmocka_unit_test(test_forged_answers),
    };
    char command[128];
    content = mr_alloc(FILE_BYTES);
    if (!content || !mkdtemp(folder))
        return 1;
    for (size_t i = 0; i < FILE_BYTES; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 13);
    content[3 * MR_FILE_BLOCK_BYTES] ^= 1;
    save(other_path, "other");
    content[3 * MR_FILE_BLOCK_BYTES] ^= 1;
    save(model_path, "model");
    for (int kind = 1; kind < MR_FRAME_KINDS; kind++)
        mr_frame_seal(&(mr_frame){.kind = (mr_frame_kind)kind, .payload_bytes = 8}, forged[kind]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mr_free(content);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return failed + (system(command) != 0);
}
