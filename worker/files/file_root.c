/* worker/files/file_root.c - hashes a whole file. worker/files/file_hashes.h hashes the blocks in the background and
 * keeps the hashes, so that the file server of this rank finds them there. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/files/file_root.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "worker/files/file_hashes.h"

enum { BATCH = 64 /* blocks that are asked for at once */ };

typedef struct news {
    mr_mutex lock;
    mr_cond changed;
    bool any;
} news;

static void note_news(void *ctx) {
    news *n = ctx;
    mr_mutex_lock(&n->lock);
    n->any = true;
    mr_cond_broadcast(&n->changed);
    mr_mutex_unlock(&n->lock);
}

static void wait_for_news(news *n) {
    mr_mutex_lock(&n->lock);
    while (!n->any)
        (void)mr_cond_wait_until(&n->changed, &n->lock, MR_NEVER);
    n->any = false;
    mr_mutex_unlock(&n->lock);
}

static mr_status take_hashes(mr_file_hashes *h, news *n, uint64_t n_blocks, mr_file_hash *out, mr_err *err) {
    mr_status status = MR_OK;
    for (uint64_t at = 0; at < n_blocks && status == MR_OK;) {
        bool is_known = false;
        uint32_t count = n_blocks - at < BATCH ? (uint32_t)(n_blocks - at) : BATCH;
        status = mr_file_hashes_get(h, at, count, out + at, &is_known, err);
        if (is_known)
            at += count;
        else if (status == MR_OK)
            wait_for_news(n);
    }
    return status;
}

mr_status mr_file_root(const char *path, int32_t part, const char *folder, int32_t n_threads, mr_file_hash *out,
                       mr_err *err) {
    news n = {.any = false};
    mr_file_hashes *hashes = NULL;
    mr_file_hash *list = NULL;
    uint64_t bytes = 0;
    const mr_file_hashes_config config = {.path = path,
                                          .part = part,
                                          .folder = folder,
                                          .n_threads = n_threads > 0 ? n_threads : 1,
                                          .ready = note_news,
                                          .ctx = &n};
    mr_mutex_init(&n.lock);
    mr_cond_init(&n.changed);
    mr_status status = mr_file_hashes_open(&config, &hashes, err);
    if (status == MR_OK) {
        bytes = mr_file_hashes_bytes(hashes);
        list = mr_alloc_array((size_t)mr_file_n_blocks(bytes), sizeof *list);
        status = list ? take_hashes(hashes, &n, mr_file_n_blocks(bytes), list, err)
                      : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the hashes of %.200s", path);
    }
    mr_file_hashes_close(hashes);
    if (status == MR_OK)
        mr_file_root_of(bytes, list, out);
    mr_cond_deinit(&n.changed);
    mr_mutex_deinit(&n.lock);
    mr_free(list);
    return status;
}
