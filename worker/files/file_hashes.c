/* worker/files/file_hashes.c - computes the SHA-256 of the blocks of a model file in the background, and keeps the
 * hashes in a file. The file server asks for hashes often and must not wait, so a call takes what is known and queues
 * the rest. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/files/file_hashes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/base/clock.h"
#include "engine/base/le.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum {
    MAGIC = 0x3148524d, /* "MRH1" */
    AT_MAGIC = 0,
    AT_BLOCK_BYTES = 4,
    AT_FILE_BYTES = 8,
    AT_CHANGED = 16,
    HEADER_BYTES = 24,
    SUM_BYTES = 8,
    MAX_THREADS = 4,
    KEEP_BLOCKS = 4096, /* after so many, the hashes are kept */
};

typedef enum block_state { BLOCK_UNKNOWN, BLOCK_WANTED, BLOCK_BUSY, BLOCK_KNOWN } block_state;

struct mr_file_hashes {
    mr_file_hashes_config config;
    char *path, *kept_path;
    mr_part_files files;
    uint64_t file_bytes, n_blocks, changed_ns;
    mr_thread *threads[MAX_THREADS];
    int32_t n_threads;
    mr_mutex lock; /* guards what follows */
    mr_cond wanted;
    uint8_t *states;            /* [n_blocks]: block_state */
    mr_file_hash *hashes;       /* [n_blocks] */
    uint64_t n_wanted, look_at; /* no block before look_at is wanted */
    uint64_t n_computed;        /* hashes that were not in the kept file at first */
    bool stop;
    mr_status status; /* the first error of reading */
    mr_err err;
};

/* --- Reading ----------------------------------------------------------------------------------------------------- */

uint64_t mr_file_hashes_bytes(const mr_file_hashes *h) {
    return h->file_bytes;
}

mr_status mr_file_hashes_read(const mr_file_hashes *h, uint64_t idx, void *out, mr_err *err) {
    size_t bytes = mr_file_block_bytes(h->file_bytes, idx);
    return mr_part_files_read(&h->files, mr_file_block_at(idx), out, bytes, err);
}

/* --- The kept file ----------------------------------------------------------------------------------------------- */

static size_t kept_bytes(const mr_file_hashes *h) {
    return HEADER_BYTES + (size_t)h->n_blocks * sizeof *h->hashes + SUM_BYTES;
}

/* The bytes of the kept file if they are valid and belong to this model file, else NULL. The caller frees them. */
static uint8_t *read_kept(const mr_file_hashes *h) {
    size_t bytes = kept_bytes(h);
    uint8_t *data = mr_alloc(bytes + 1);
    FILE *f = data ? fopen(h->kept_path, "rbe") : NULL;
    bool good = f && fread(data, 1, bytes + 1, f) == bytes && mr_load_le32(data + AT_MAGIC) == MAGIC &&
                mr_load_le32(data + AT_BLOCK_BYTES) == MR_FILE_BLOCK_BYTES &&
                mr_load_le64(data + AT_FILE_BYTES) == h->file_bytes &&
                mr_load_le64(data + AT_CHANGED) == h->changed_ns &&
                mr_load_le64(data + bytes - SUM_BYTES) == XXH3_64bits(data, bytes - SUM_BYTES);
    if (f)
        fclose(f);
    if (good)
        return data;
    mr_free(data);
    return NULL;
}

/* Copies hashes from the kept file that are not known yet. */
static void take_kept(mr_file_hashes *h) {
    uint8_t *data = h->kept_path ? read_kept(h) : NULL;
    for (uint64_t i = 0; data && i < h->n_blocks; i++) {
        mr_file_hash one;
        memcpy(&one, data + HEADER_BYTES + i * sizeof one, sizeof one);
        if (h->states[i] == BLOCK_KNOWN || !mr_file_hash_known(&one))
            continue;
        h->hashes[i] = one;
        h->states[i] = BLOCK_KNOWN;
    }
    mr_free(data);
}

/* Writes the kept file. Several ranks of a host may do so at the same time: each rank writes a temporary file, and the
 * last rename wins. */
static void keep(const mr_file_hashes *h) {
    size_t bytes = kept_bytes(h), name_bytes = strlen(h->kept_path) + 8;
    uint8_t *data = mr_alloc(bytes);
    char *temporary = mr_alloc(name_bytes);
    int fd = -1;
    if (data && temporary) {
        snprintf(temporary, name_bytes, "%s-XXXXXX", h->kept_path);
        fd = mkostemp(temporary, O_CLOEXEC);
    }
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (f) {
        mr_store_le32(data + AT_MAGIC, MAGIC);
        mr_store_le32(data + AT_BLOCK_BYTES, MR_FILE_BLOCK_BYTES);
        mr_store_le64(data + AT_FILE_BYTES, h->file_bytes);
        mr_store_le64(data + AT_CHANGED, h->changed_ns);
        memcpy(data + HEADER_BYTES, h->hashes, (size_t)h->n_blocks * sizeof *h->hashes);
        mr_store_le64(data + bytes - SUM_BYTES, XXH3_64bits(data, bytes - SUM_BYTES));
        bool written = fwrite(data, 1, bytes, f) == bytes;
        written = fclose(f) == 0 && written;
        if (!written || rename(temporary, h->kept_path) != 0)
            unlink(temporary);
    } else {
        mr_log_write(MR_LOG_DEBUG, "worker", "hashes are not kept in %s", h->kept_path);
    }
    mr_free(temporary);
    mr_free(data);
}

/* --- Threads ----------------------------------------------------------------------------------------------------- */

/* Waits for a wanted block and marks the first one busy. false: the thread has to end. Called under the lock. */
static bool take_wanted(mr_file_hashes *h, uint64_t *out_idx) {
    while (!h->stop && h->n_wanted == 0)
        mr_cond_wait_until(&h->wanted, &h->lock, MR_NEVER);
    if (h->stop)
        return false;
    while (h->states[h->look_at] != BLOCK_WANTED)
        h->look_at++;
    h->states[h->look_at] = BLOCK_BUSY;
    h->n_wanted--;
    *out_idx = h->look_at;
    return true;
}

static void compute(void *ctx) {
    mr_file_hashes *h = ctx;
    uint64_t idx = 0;
    mr_err err;
    uint8_t *block = mr_alloc(MR_FILE_BLOCK_BYTES);
    mr_mutex_lock(&h->lock);
    while (take_wanted(h, &idx)) {
        mr_file_hash hash = {{0}};
        mr_mutex_unlock(&h->lock);
        mr_status status = block ? mr_file_hashes_read(h, idx, block, &err)
                                 : mr_err_set(&err, MR_E_NO_MEMORY, "no memory to hash a file");
        if (status == MR_OK)
            mr_file_hash_of(block, mr_file_block_bytes(h->file_bytes, idx), &hash);
        mr_mutex_lock(&h->lock);
        h->hashes[idx] = hash;
        h->states[idx] = status == MR_OK ? BLOCK_KNOWN : BLOCK_UNKNOWN;
        h->n_computed += status == MR_OK;
        if (status == MR_OK && h->n_computed % KEEP_BLOCKS == 0 && h->kept_path)
            keep(h); /* a process that is killed has not hashed in vain */
        if (status != MR_OK && h->status == MR_OK) {
            h->status = status;
            h->err = err;
        }
        h->config.ready(h->config.ctx);
    }
    mr_mutex_unlock(&h->lock);
    mr_free(block);
}

/* Starts the threads that are missing. Called under the lock. Succeeds if at least one thread runs. */
static mr_status start_threads(mr_file_hashes *h, mr_err *err) {
    mr_status status = MR_OK;
    int32_t most = h->config.n_threads < MAX_THREADS ? h->config.n_threads : MAX_THREADS;
    while (h->n_threads < most && status == MR_OK) {
        status = mr_thread_create("hash", 0, compute, h, &h->threads[h->n_threads], err);
        h->n_threads += status == MR_OK;
    }
    return h->n_threads > 0 ? MR_OK : status;
}

mr_status mr_file_hashes_get(mr_file_hashes *h, uint64_t first, uint32_t n, mr_file_hash *out, bool *out_known,
                             mr_err *err) {
    bool known = true, news = false;
    for (uint64_t i = first; i < first + n; i++)
        if (!mr_part_files_has(&h->files, mr_file_block_at(i)))
            return mr_err_set(err, MR_E_NOT_FOUND, "%.200s: block %" PRIu64 " is of a part that is not here", h->path,
                              i);
    mr_mutex_lock(&h->lock);
    mr_status status = h->status;
    if (status != MR_OK)
        mr_err_set(err, status, "%s", h->err.text);
    for (uint64_t i = first; status == MR_OK && i < first + n; i++) {
        known = known && h->states[i] == BLOCK_KNOWN;
        if (h->states[i] != BLOCK_UNKNOWN)
            continue;
        h->states[i] = BLOCK_WANTED;
        h->look_at = h->n_wanted == 0 || i < h->look_at ? i : h->look_at;
        h->n_wanted++;
        news = true;
    }
    if (status == MR_OK && news)
        status = start_threads(h, err);
    if (news)
        mr_cond_broadcast(&h->wanted);
    if (status == MR_OK && known)
        memcpy(out, h->hashes + first, n * sizeof *out);
    mr_mutex_unlock(&h->lock);
    *out_known = status == MR_OK && known;
    return status;
}

/* --- Open and close ---------------------------------------------------------------------------------------------- */

/* The parts of a model have one list of hashes, which has the name of the first part here. A change of any part makes
 * the list invalid. */
static mr_status open_file(mr_file_hashes *h, mr_err *err) {
    struct stat st, first = {0};
    bool any = false;
    mr_status status =
        h->config.parts ? mr_part_files_open_places(h->path, h->config.parts, h->config.n_parts, NULL, &h->files, err)
                        : mr_part_files_open_one(h->path, h->config.part, &h->files, err);
    if (status != MR_OK)
        return status;
    h->file_bytes = h->files.bytes;
    h->n_blocks = mr_file_n_blocks(h->file_bytes);
    for (int32_t i = 0; i < h->files.n; i++) {
        if (h->files.parts[i].fd < 0)
            continue;
        if (fstat(h->files.parts[i].fd, &st) != 0)
            return mr_err_set(err, MR_E_IO, "%.200s cannot be opened: %s", h->path, strerror(errno));
        uint64_t changed_ns = (uint64_t)st.st_mtim.tv_sec * MR_NS_PER_S + (uint64_t)st.st_mtim.tv_nsec;
        h->changed_ns = any ? XXH3_64bits_withSeed(&changed_ns, sizeof changed_ns, h->changed_ns) : changed_ns;
        first = any ? first : st;
        any = true;
    }
    size_t size = h->config.folder ? strlen(h->config.folder) + 64 : 0;
    h->kept_path = size ? mr_alloc(size) : NULL;
    if (h->kept_path)
        snprintf(h->kept_path, size, "%s/%" PRIx64 "-%" PRIx64 "%s.hashes", h->config.folder, (uint64_t)first.st_dev,
                 (uint64_t)first.st_ino, h->files.n < h->files.total ? "-part" : "");
    return MR_OK;
}

mr_status mr_file_hashes_open(const mr_file_hashes_config *config, mr_file_hashes **out, mr_err *err) {
    mr_file_hashes *h = mr_alloc(sizeof *h);
    if (!h)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the hashes of a file");
    *h = (mr_file_hashes){.config = *config};
    mr_mutex_init(&h->lock);
    mr_cond_init(&h->wanted);
    h->path = mr_strdup(config->path);
    mr_status status = h->path ? open_file(h, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a path");
    h->config.parts = NULL; /* borrowed for this call only */
    h->states = mr_alloc_array((size_t)h->n_blocks, sizeof *h->states);
    h->hashes = mr_alloc_array((size_t)h->n_blocks, sizeof *h->hashes);
    if (status == MR_OK && (!h->states || !h->hashes))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRIu64 " hashes", h->n_blocks);
    if (status != MR_OK) {
        mr_file_hashes_close(h);
        return status;
    }
    take_kept(h);
    *out = h;
    return MR_OK;
}

void mr_file_hashes_close(mr_file_hashes *h) {
    if (!h)
        return;
    mr_mutex_lock(&h->lock);
    h->stop = true;
    mr_cond_broadcast(&h->wanted);
    mr_mutex_unlock(&h->lock);
    for (int32_t i = 0; i < h->n_threads; i++)
        mr_thread_join(h->threads[i]);
    if (h->n_computed > 0 && h->kept_path) {
        take_kept(h); /* what another rank has kept meanwhile */
        keep(h);
    }
    mr_part_files_close(&h->files);
    mr_cond_deinit(&h->wanted);
    mr_mutex_deinit(&h->lock);
    mr_free(h->path);
    mr_free(h->kept_path);
    mr_free(h->states);
    mr_free(h->hashes);
    mr_free(h);
}
