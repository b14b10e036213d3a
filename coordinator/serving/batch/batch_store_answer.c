/* coordinator/serving/batch/batch_store_answer.c - answers HTTP requests about files and batches. The thread that runs
 * batches is in batch_store.c; these functions only read and change what is stored. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordinator/serving/batch/batch_store_internal.h"
#include "coordinator/serving/json/json.h"
#include "coordinator/serving/wire/api_json.h"

/* --- Answers ----------------------------------------------------------------------------------------------------- */

static void answer_error(mr_batch_answer *out, const mr_api_error *e) {
    out->status = e->status;
    mr_text_buf_clear(&out->body);
    if (!mr_api_json_write_error(e, &out->body))
        out->status = 503;
}

static void refuse(mr_batch_answer *out, int status, const char *param, const char *message) {
    mr_api_error e = {0};
    (void)mr_api_error_set(&e, status, NULL, param, "%s", message);
    answer_error(out, &e);
}

static void answer_failure(mr_batch_answer *out, mr_status status, const char *what, const mr_err *err) {
    mr_api_error e = {0};
    if (status == MR_E_NOT_FOUND)
        (void)mr_api_error_set(&e, 404, NULL, "id", "no such %s", what);
    else if (status == MR_E_FORMAT) /* what the server keeps is damaged, not what the client sent */
        (void)mr_api_error_set(&e, 500, NULL, NULL, "%s", err->text);
    else
        (void)mr_api_error_from(&e, status, err);
    answer_error(out, &e);
}

/* Releases the object. NULL: no memory. */
static void answer_json(mr_batch_answer *out, json_t *object) {
    char *text = object ? mr_json_dump(object, JSON_COMPACT) : NULL;
    if (!text || !mr_text_buf_append(&out->body, text, strlen(text)))
        refuse(out, 503, NULL, "no memory for the answer");
    free(text);
    json_decref(object);
}

/* Under the lock: makes the object of a batch what clients see. The files of a batch are there once it has ended, and a
 * running batch has its present counts. */
static mr_status show(mr_batch_store *s, json_t *batch, mr_err *err) {
    const mr_batch_counts *c = &s->counts;
    const char *id = json_string_value(json_object_get(batch, "id"));
    bool ok = batch_has_ended(batch) || (json_object_set_new(batch, "output_file_id", json_null()) == 0 &&
                                         json_object_set_new(batch, "error_file_id", json_null()) == 0);
    if (ok && strcmp(s->now, id) == 0 && c->n_lines)
        ok = batch_store_put_counts(batch, c->n_lines, c->n_done - c->n_failed, c->n_failed);
    return ok ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a batch");
}

static void answer_list(mr_batch_store *s, const char *prefix, mr_batch_answer *out) {
    json_t *list = NULL, *batch;
    mr_err err;
    size_t i;
    mr_mutex_lock(&s->lock);
    mr_status status = batch_objects_list(s->folder, prefix, &list, &err);
    if (status == MR_OK && strcmp(prefix, "batch_") == 0)
        json_array_foreach(list, i, batch) {
            if (status == MR_OK)
                status = show(s, batch, &err);
        }
    mr_mutex_unlock(&s->lock);
    if (status != MR_OK) {
        json_decref(list);
        answer_failure(out, status, "folder", &err);
        return;
    }
    size_t n = json_array_size(list);
    const json_t *first = n ? json_object_get(json_array_get(list, 0), "id") : NULL;
    const json_t *last = n ? json_object_get(json_array_get(list, n - 1), "id") : NULL;
    answer_json(out, json_pack("{s:s, s:O, s:O?, s:O?, s:b}", "object", "list", "data", list, "first_id", first,
                               "last_id", last, "has_more", 0));
    json_decref(list);
}

/* --- Files ------------------------------------------------------------------------------------------------------- */

static void create_file(mr_batch_store *s, mr_str body, mr_batch_answer *out) {
    mr_str content, purpose, name, unused;
    json_t *object = NULL;
    mr_err err;
    if (!batch_multipart_find(body, "file", &content, &name)) {
        refuse(out, 400, "file", "the body has no file: multipart/form-data with file and purpose is expected");
        return;
    }
    if (!batch_multipart_find(body, "purpose", &purpose, &unused) || !mr_str_is(purpose, "batch")) {
        refuse(out, 400, "purpose", "the purpose of a file is batch");
        return;
    }
    mr_status status = batch_file_create(s->folder, name, purpose, content, &object, &err);
    if (status == MR_OK)
        answer_json(out, object);
    else
        answer_failure(out, status, "folder", &err);
}

static void delete_file(mr_batch_store *s, const char *id, mr_batch_answer *out) {
    mr_err err;
    mr_status status = batch_file_delete(s->folder, id, &err);
    if (status == MR_OK)
        answer_json(out, json_pack("{s:s, s:s, s:b}", "id", id, "object", "file", "deleted", 1));
    else
        answer_failure(out, status, "file", &err);
}

static void answer_content(mr_batch_store *s, const char *id, mr_batch_answer *out) {
    mr_err err;
    mr_status status = batch_file_check(s->folder, id, &err);
    if (status == MR_OK)
        status = batch_file_read(s->folder, id, &out->body, &err);
    out->content_type = "application/octet-stream";
    if (status == MR_OK)
        return;
    out->content_type = "application/json";
    answer_failure(out, status, "file", &err);
}

static void answer_object(mr_batch_store *s, const char *id, const char *what, mr_batch_answer *out) {
    json_t *object = NULL;
    mr_err err;
    mr_status status = batch_object_load(s->folder, id, &object, &err);
    if (status == MR_OK)
        answer_json(out, object);
    else
        answer_failure(out, status, what, &err);
}

static void answer_files(mr_batch_store *s, const char *method, const char *id, const char *rest, mr_str body,
                         mr_batch_answer *out) {
    bool get = strcmp(method, "GET") == 0, post = strcmp(method, "POST") == 0;
    if (!*id && get)
        answer_list(s, "file-", out);
    else if (!*id && post)
        create_file(s, body, out);
    else if (!batch_id_is_good(id, "file-"))
        refuse(out, 404, "id", "no such file");
    else if (!*rest && get)
        answer_object(s, id, "file", out);
    else if (!*rest && strcmp(method, "DELETE") == 0)
        delete_file(s, id, out);
    else if (strcmp(rest, "content") == 0 && get)
        answer_content(s, id, out);
    else
        refuse(out, 404, NULL, "there is nothing at this path for this method");
}

/* --- Batches ----------------------------------------------------------------------------------------------------- */

static const char *text_at(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool is_endpoint(const char *url) {
    return strcmp(url, "/v1/chat/completions") == 0 || strcmp(url, "/v1/completions") == 0 ||
           strcmp(url, "/v1/embeddings") == 0;
}

/* NULL: no memory. */
static json_t *new_batch(const json_t *asked) {
    char id[BATCH_ID_BYTES], output[BATCH_ID_BYTES], errors[BATCH_ID_BYTES];
    const json_t *metadata = json_object_get(asked, "metadata"), *window = json_object_get(asked, "completion_window");
    batch_id_make("batch_", id);
    batch_id_make("file-", output);
    batch_id_make("file-", errors);
    return json_pack("{s:s, s:s, s:O, s:n, s:O, s:O?, s:s, s:s, s:s, s:I, s:{s:i, s:i, s:i}, s:O?}", "id", id, "object",
                     "batch", "endpoint", json_object_get(asked, "endpoint"), "errors", "input_file_id",
                     json_object_get(asked, "input_file_id"), "completion_window",
                     json_is_string(window) ? window : NULL, "status", "validating", "output_file_id", output,
                     "error_file_id", errors, "created_at", (json_int_t)time(NULL), "request_counts", "total", 0,
                     "completed", 0, "failed", 0, "metadata", json_is_object(metadata) ? metadata : NULL);
}

static void create_batch(mr_batch_store *s, mr_str body, mr_batch_answer *out) {
    mr_api_error wrong = {0};
    json_t *asked = mr_api_json_parse(body, &wrong), *file = NULL, *batch = NULL;
    const char *input = text_at(asked, "input_file_id");
    mr_err err;
    mr_status status = MR_OK;
    if (!asked)
        answer_error(out, &wrong);
    else if (!is_endpoint(text_at(asked, "endpoint")))
        refuse(out, 400, "endpoint", "endpoint is none of /v1/chat/completions, /v1/completions, /v1/embeddings");
    else if (!batch_id_is_good(input, "file-") || batch_object_load(s->folder, input, &file, &err) != MR_OK)
        refuse(out, 400, "input_file_id", "input_file_id names no file");
    else {
        batch = new_batch(asked);
        mr_mutex_lock(&s->lock);
        status = batch ? batch_object_save(s->folder, batch, &err)
                       : mr_err_set(&err, MR_E_NO_MEMORY, "no memory for a batch");
        if (status == MR_OK)
            status = show(s, batch, &err);
        mr_cond_broadcast(&s->changed);
        mr_mutex_unlock(&s->lock);
        if (status == MR_OK)
            answer_json(out, json_incref(batch));
        else
            answer_failure(out, status, "folder", &err);
    }
    json_decref(batch);
    json_decref(file);
    json_decref(asked);
}

/* Under the lock. A batch that has not started is cancelled at once, because the batches before it may take hours. */
static mr_status cancel_batch(mr_batch_store *s, const char *id, json_t *batch, mr_err *err) {
    bool waits = strcmp(text_at(batch, "status"), "validating") == 0;
    if (!waits && strcmp(text_at(batch, "status"), "in_progress") != 0)
        return MR_OK;
    s->cancels = s->cancels || strcmp(s->now, id) == 0;
    mr_status status = batch_store_set_status(s, batch, "cancelling", "cancelling_at", err);
    if (status == MR_OK && waits && strcmp(s->now, id) != 0 &&
        (json_object_set_new(batch, "output_file_id", json_null()) != 0 ||
         json_object_set_new(batch, "error_file_id", json_null()) != 0))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a batch");
    if (status == MR_OK && waits && strcmp(s->now, id) != 0)
        status = batch_store_set_status(s, batch, "cancelled", "cancelled_at", err);
    mr_cond_broadcast(&s->changed);
    return status;
}

static void answer_batch(mr_batch_store *s, const char *id, bool cancel, mr_batch_answer *out) {
    json_t *batch = NULL;
    mr_err err;
    mr_mutex_lock(&s->lock);
    mr_status status = batch_object_load(s->folder, id, &batch, &err);
    if (status == MR_OK && cancel)
        status = cancel_batch(s, id, batch, &err);
    if (status == MR_OK)
        status = show(s, batch, &err);
    mr_mutex_unlock(&s->lock);
    if (status == MR_OK)
        answer_json(out, json_incref(batch));
    else
        answer_failure(out, status, "batch", &err);
    json_decref(batch);
}

static void answer_batches(mr_batch_store *s, const char *method, const char *id, const char *rest, mr_str body,
                           mr_batch_answer *out) {
    bool get = strcmp(method, "GET") == 0, post = strcmp(method, "POST") == 0;
    if (!*id && get)
        answer_list(s, "batch_", out);
    else if (!*id && post)
        create_batch(s, body, out);
    else if (!batch_id_is_good(id, "batch_"))
        refuse(out, 404, "id", "no such batch");
    else if (!*rest && get)
        answer_batch(s, id, false, out);
    else if (strcmp(rest, "cancel") == 0 && post)
        answer_batch(s, id, true, out);
    else
        refuse(out, 404, NULL, "there is nothing at this path for this method");
}

/* The parts of PREFIX/ID/REST. */
static bool split(const char *path, const char *prefix, char id[BATCH_ID_BYTES], const char **out_rest) {
    size_t n = strlen(prefix), len;
    if (strncmp(path, prefix, n) != 0 || (path[n] && path[n] != '/'))
        return false;
    path += n + (path[n] == '/');
    len = strcspn(path, "/");
    if (len >= BATCH_ID_BYTES)
        return false;
    memcpy(id, path, len);
    id[len] = 0;
    *out_rest = path + len + (path[len] == '/');
    return true;
}

void mr_batch_store_answer(mr_batch_store *s, const char *method, const char *path, mr_str body, mr_batch_answer *out) {
    char id[BATCH_ID_BYTES];
    const char *rest;
    *out = (mr_batch_answer){.status = 200, .content_type = "application/json"};
    if (split(path, "/v1/files", id, &rest))
        answer_files(s, method, id, rest, body, out);
    else if (split(path, "/v1/batches", id, &rest))
        answer_batches(s, method, id, rest, body, out);
    else
        refuse(out, 404, NULL, "there is nothing at this path");
}
