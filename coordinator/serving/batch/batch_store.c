/* coordinator/serving/batch/batch_store.c - the store of batches, and its thread, which runs them one after another,
 * oldest first. How one batch runs is in batch_store_run.c, HTTP requests about batches are in batch_store_answer.c. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "coordinator/serving/batch/batch_store_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

/* After a failure, for example while the service starts, or while the disk is full. */
#define RETRY_NS MR_NS_PER_S
#define MAX_RETRY_NS (32 * MR_NS_PER_S)

/* Locks the folder, because two servers would run the same batches. */
static mr_status lock_folder(mr_batch_store *s, mr_err *err) {
    char path[BATCH_PATH_BYTES];
    mr_status status = batch_path(s->folder, "lock", "", path, err);
    if (status != MR_OK)
        return status;
    s->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->fd < 0)
        return mr_err_set(err, MR_E_IO, "%.200s cannot be opened: %s", path, strerror(errno));
    if (flock(s->fd, LOCK_EX | LOCK_NB) == 0)
        return MR_OK;
    return errno == EWOULDBLOCK ? mr_err_set(err, MR_E_IO, "%.200s: another server works at these batches", s->folder)
                                : mr_err_set(err, MR_E_IO, "%.200s cannot be locked: %s", path, strerror(errno));
}

mr_status mr_batch_store_create(const char *folder, mr_batch_store **out, mr_err *err) {
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return mr_err_set(err, MR_E_IO, "%.200s cannot be made: %s", folder, strerror(errno));
    mr_batch_store *s = mr_alloc(sizeof *s);
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for batches");
    *s = (mr_batch_store){.folder = folder, .fd = -1};
    mr_mutex_init(&s->lock);
    mr_cond_init(&s->changed);
    mr_status status = lock_folder(s, err);
    if (status == MR_OK)
        status = batch_folder_check(folder, err);
    if (status == MR_OK)
        *out = s;
    else
        mr_batch_store_destroy(s);
    return status;
}

void mr_batch_store_destroy(mr_batch_store *s) {
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    mr_cond_deinit(&s->changed);
    mr_mutex_deinit(&s->lock);
    mr_free(s);
}

mr_status batch_store_set_status(mr_batch_store *s, json_t *batch, const char *status, const char *at, mr_err *err) {
    if (json_object_set_new(batch, "status", json_string(status)) != 0 ||
        json_object_set_new(batch, at, json_integer((json_int_t)time(NULL))) != 0)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a batch");
    return batch_object_save(s->folder, batch, err);
}

bool batch_store_put_counts(json_t *batch, uint32_t n_lines, uint32_t n_answers, uint32_t n_failures) {
    return json_object_set_new(batch, "request_counts",
                               json_pack("{s:I, s:I, s:I}", "total", (json_int_t)n_lines, "completed",
                                         (json_int_t)n_answers, "failed", (json_int_t)n_failures)) == 0;
}

static bool has_status(const json_t *batch, const char *status) {
    const char *its = json_string_value(json_object_get(batch, "status"));
    return its && strcmp(its, status) == 0;
}

static bool is_later(const mr_batch_store *s, const json_t *batch) {
    return strcmp(json_string_value(json_object_get(batch, "id")), s->later) == 0;
}

/* Under the lock: the oldest batch that has not ended, but for one that met an error of the disk, if there is another.
 * NULL: none. */
static mr_status next_batch(mr_batch_store *s, json_t **out, mr_err *err) {
    json_t *list = NULL, *next = NULL, *batch;
    size_t i;
    *out = NULL;
    mr_status status = batch_objects_list(s->folder, "batch_", &list, err);
    if (status != MR_OK)
        return status;
    json_array_foreach(list, i, batch) { /* the newest first */
        if (!batch_has_ended(batch) && (!next || !is_later(s, batch)))
            next = batch;
    }
    *out = json_incref(next);
    json_decref(list);
    return MR_OK;
}

/* Under the lock: a batch that an earlier version has begun has its results at output_file_id, and names no other
 * file. */
static mr_status adopt(mr_batch_store *s, json_t *batch, mr_err *err) {
    char id[BATCH_ID_BYTES], old[BATCH_PATH_BYTES], journal[BATCH_PATH_BYTES];
    if (json_is_string(json_object_get(batch, "error_file_id")))
        return MR_OK;
    mr_status status = batch_path(s->folder, json_string_value(json_object_get(batch, "output_file_id")), "", old, err);
    if (status == MR_OK)
        status = batch_path(s->folder, s->now, BATCH_JOURNAL, journal, err);
    if (status != MR_OK)
        return status;
    if (rename(old, journal) != 0 && errno != ENOENT)
        return mr_err_set(err, MR_E_IO, "%.200s cannot be renamed: %s", old, strerror(errno));
    status = batch_path(s->folder, json_string_value(json_object_get(batch, "output_file_id")), ".json", old, err);
    if (status != MR_OK)
        return status;
    if (unlink(old) != 0 && errno != ENOENT) /* a file that clients see and that has no content now */
        return mr_err_set(err, MR_E_IO, "%.200s cannot be removed: %s", old, strerror(errno));
    batch_id_make("file-", id);
    return json_object_set_new(batch, "error_file_id", json_string(id)) == 0
               ? batch_object_save(s->folder, batch, err)
               : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a batch");
}

/* Under the lock: makes a batch ready to run. */
static mr_status begin_batch(mr_batch_store *s, json_t *batch, mr_err *err) {
    const char *id = json_string_value(json_object_get(batch, "id"));
    memcpy(s->now, id, strlen(id) + 1);
    s->counts = (mr_batch_counts){0};
    s->cancels = has_status(batch, "cancelling");
    mr_status status = adopt(s, batch, err);
    if (status == MR_OK && has_status(batch, "validating"))
        status = batch_store_set_status(s, batch, "in_progress", "in_progress_at", err);
    return status;
}

/* Runs one batch, and releases the object `batch`. Called under the lock, which is released while the batch runs. After
 * an error it is to be called again. */
static mr_status work_at(mr_batch_store *s, json_t *batch, mr_err *err) {
    batch_outcome outcome;
    mr_err on_end;
    mr_status status = begin_batch(s, batch, err);
    if (status == MR_OK) {
        mr_mutex_unlock(&s->lock);
        status = batch_store_run(s, batch, &outcome, err);
        mr_mutex_lock(&s->lock);
        json_t *now = NULL; /* a cancel request has changed the object on the disk */
        if (s->cancels && batch_object_load(s->folder, s->now, &now, &on_end) == MR_OK) {
            json_decref(batch);
            batch = now;
        }
        mr_status ended = batch_store_end(s, batch, &outcome, &on_end);
        if (status == MR_OK && ended != MR_OK) {
            status = ended;
            *err = on_end;
        }
    }
    if (status != MR_OK)
        mr_err_prefix(err, "%s", s->now);
    s->later[0] = 0;
    if (status == MR_E_IO)
        memcpy(s->later, s->now, sizeof s->later);
    s->now[0] = 0;
    s->cancels = false;
    json_decref(batch);
    return status;
}

static void work(void *ctx) {
    mr_batch_store *s = ctx;
    mr_err err;
    int64_t pause_ns = RETRY_NS;
    mr_mutex_lock(&s->lock);
    while (!s->stops) {
        json_t *batch = NULL;
        mr_status status = next_batch(s, &batch, &err);
        bool is_idle = status == MR_OK && !batch;
        if (batch)
            status = work_at(s, batch, &err);
        if (status != MR_OK)
            mr_log_write(MR_LOG_WARN, "batch", "%s; it is tried again", err.text);
        if (!s->stops && (is_idle || status != MR_OK))
            (void)mr_cond_wait_until(&s->changed, &s->lock, is_idle ? MR_NEVER : mr_clock_now_ns() + pause_ns);
        /* A disk may be full for hours, and each attempt reads all results. */
        if (status == MR_OK || status == MR_E_UNAVAILABLE)
            pause_ns = RETRY_NS;
        else if (pause_ns < MAX_RETRY_NS)
            pause_ns *= 2;
    }
    mr_mutex_unlock(&s->lock);
}

mr_status mr_batch_store_start(mr_batch_store *s, const mr_api *a, int32_t max_live, mr_err *err) {
    s->api = a;
    s->max_live = max_live;
    return mr_thread_create("batches", 0, work, s, &s->thread, err);
}

void mr_batch_store_ask_to_stop(mr_batch_store *s) {
    mr_mutex_lock(&s->lock);
    s->stops = true;
    mr_cond_broadcast(&s->changed);
    mr_mutex_unlock(&s->lock);
}

void mr_batch_store_stop(mr_batch_store *s) {
    mr_batch_store_ask_to_stop(s);
    mr_thread_join(s->thread);
    s->thread = NULL;
}
