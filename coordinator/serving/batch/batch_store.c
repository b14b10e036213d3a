/* coordinator/serving/batch/batch_store.c - the thread that runs stored batches one after another, oldest first, and
 * records their progress in their objects on the disk. HTTP requests about batches are in batch_store_answer.c. */
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

enum { BATCH_PRIORITY = -100 }; /* below the priority of interactive requests */
#define RETRY_NS MR_NS_PER_S    /* after a failure, for example while the service starts or while the disk is full */

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

static bool has_status(const json_t *batch, const char *status) {
    const char *its = json_string_value(json_object_get(batch, "status"));
    return its && strcmp(its, status) == 0;
}

/* Under the lock: the oldest batch that has not ended; NULL: none. */
static json_t *next_batch(mr_batch_store *s) {
    json_t *list = NULL, *next = NULL, *batch;
    mr_err err;
    size_t i;
    if (batch_objects_list(s->folder, "batch_", &list, &err) != MR_OK) {
        mr_log_write(MR_LOG_WARN, "batch", "%s", err.text);
        return NULL;
    }
    json_array_foreach(list, i, batch) if (has_status(batch, "validating") || has_status(batch, "in_progress") ||
                                           has_status(batch, "cancelling")) next = batch;
    json_incref(next);
    json_decref(list);
    return next;
}

static bool stops(void *ctx) {
    mr_batch_store *s = ctx;
    mr_mutex_lock(&s->lock);
    bool yes = s->stops || s->cancels;
    mr_mutex_unlock(&s->lock);
    return yes;
}

static void take_counts(void *ctx, const mr_batch_counts *counts) {
    mr_batch_store *s = ctx;
    mr_mutex_lock(&s->lock);
    s->counts = *counts;
    mr_mutex_unlock(&s->lock);
}

/* Runs a batch until it ends or is stopped. Not under the lock. */
static mr_status run_batch(mr_batch_store *s, const json_t *batch, mr_batch_counts *counts, mr_err *err) {
    char in_path[BATCH_PATH_BYTES], out_path[BATCH_PATH_BYTES];
    mr_batch_input in = {0};
    mr_batch_results results = {.fd = -1};
    mr_status status =
        batch_path(s->folder, json_string_value(json_object_get(batch, "input_file_id")), "", in_path, err);
    if (status == MR_OK)
        status = batch_path(s->folder, json_string_value(json_object_get(batch, "output_file_id")), "", out_path, err);
    if (status == MR_OK)
        status = mr_batch_input_open(in_path, &in, err);
    if (status == MR_E_NOT_FOUND) /* clients read this text, which must not name a path */
        return mr_err_set(err, status, "the input file is not there any more");
    if (status == MR_OK)
        status = mr_batch_results_open(out_path, &in, &results, err);
    const mr_batch_config config = {.api = s->api,
                                    .input = &in,
                                    .results = &results,
                                    .max_live = s->max_live,
                                    .url = json_string_value(json_object_get(batch, "endpoint")),
                                    .max_tokens = -1,
                                    .priority = BATCH_PRIORITY,
                                    .grace_ns = 0,
                                    .stops = stops,
                                    .progress = take_counts,
                                    .ctx = s};
    if (status == MR_OK)
        status = mr_batch_run(&config, counts, err);
    mr_batch_results_close(&results);
    mr_batch_input_close(&in);
    return status;
}

static bool put_counts(json_t *batch, const mr_batch_counts *c) {
    return json_object_set_new(batch, "request_counts",
                               json_pack("{s:I, s:I, s:I}", "total", (json_int_t)c->n_lines, "completed",
                                         (json_int_t)(c->n_done - c->n_failed), "failed", (json_int_t)c->n_failed)) ==
           0;
}

/* Saves the object of the file of results, with the present size of the file. */
static mr_status publish_results(mr_batch_store *s, const json_t *batch, mr_err *err) {
    char path[BATCH_PATH_BYTES];
    const char *id = json_string_value(json_object_get(batch, "output_file_id"));
    struct stat st = {0};
    mr_status status = batch_path(s->folder, id, "", path, err);
    if (status != MR_OK || stat(path, &st) != 0)
        return status; /* no results yet */
    json_t *object = json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:s}", "id", id, "object", "file", "bytes",
                               (json_int_t)st.st_size, "created_at", (json_int_t)time(NULL), "filename",
                               "results.jsonl", "purpose", "batch_output", "status", "processed");
    status =
        object ? batch_object_save(s->folder, object, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a file");
    json_decref(object);
    return status;
}

/* Whether an error is the fault of the cluster or of this process. The batch does not fail then: it is resumed after
 * RETRY_NS or at the next start. */
static bool is_passing(mr_status status) {
    return status == MR_E_UNAVAILABLE || status == MR_E_NO_MEMORY;
}

/* Under the lock: saves counts, results and the new status of a batch whose run has ended. */
static mr_status end_batch(mr_batch_store *s, json_t *batch, mr_status status, const mr_batch_counts *counts,
                           const mr_err *why, mr_err *err) {
    bool left = s->stops || is_passing(status); /* the batch is resumed later */
    if (counts->n_lines && !put_counts(batch, counts))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a batch");
    mr_status saved = publish_results(s, batch, err);
    if (saved != MR_OK)
        return saved;
    if (status == MR_OK)
        return batch_store_set_status(s, batch, "completed", "completed_at", err);
    if (s->cancels)
        return batch_store_set_status(s, batch, "cancelled", "cancelled_at", err);
    if (left)
        return batch_object_save(s->folder, batch, err);
    json_object_set_new(batch, "errors",
                        json_pack("{s:s, s:[{s:s, s:s, s:n, s:n}]}", "object", "list", "data", "code", "batch_failed",
                                  "message", why->text, "param", "line"));
    return batch_store_set_status(s, batch, "failed", "failed_at", err);
}

/* Runs one batch, and releases the object `batch`. Called under the lock, which is released while the batch runs. */
static mr_status work_at(mr_batch_store *s, json_t *batch, mr_err *err) {
    mr_batch_counts counts = {0};
    mr_err why = {0};
    mr_status status = MR_E_CANCELLED;
    const char *id = json_string_value(json_object_get(batch, "id"));
    memcpy(s->now, id, strlen(id) + 1);
    s->counts = counts;
    s->cancels = has_status(batch, "cancelling");
    mr_status saved = has_status(batch, "validating")
                          ? batch_store_set_status(s, batch, "in_progress", "in_progress_at", err)
                          : MR_OK;
    if (saved == MR_OK && !s->cancels) {
        mr_mutex_unlock(&s->lock);
        status = run_batch(s, batch, &counts, &why);
        mr_mutex_lock(&s->lock);
        json_t *now = NULL; /* a cancel request has changed the object on the disk */
        if (s->cancels && batch_object_load(s->folder, id, &now, err) == MR_OK) {
            json_decref(batch);
            batch = now;
        }
    }
    if (saved == MR_OK)
        saved = end_batch(s, batch, status, &counts, &why, err);
    if (status != MR_OK && status != MR_E_CANCELLED)
        mr_log_write(MR_LOG_WARN, "batch", "%s: %s", s->now, why.text);
    s->now[0] = 0;
    s->cancels = false;
    json_decref(batch);
    return saved == MR_OK && is_passing(status) ? status : saved;
}

static void work(void *ctx) {
    mr_batch_store *s = ctx;
    mr_err err;
    mr_mutex_lock(&s->lock);
    while (!s->stops) {
        json_t *batch = next_batch(s);
        mr_status status = batch ? work_at(s, batch, &err) : MR_OK;
        if (status != MR_OK && !is_passing(status))
            mr_log_write(MR_LOG_WARN, "batch", "%s", err.text);
        if (!s->stops && (!batch || status != MR_OK))
            (void)mr_cond_wait_until(&s->changed, &s->lock, batch ? mr_clock_now_ns() + RETRY_NS : MR_NEVER);
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
