/* coordinator/serving/batch/batch_store_run.c - runs one stored batch. All results go into its journal. When the batch
 * ends, each line without an answer has an error, the journal is split into the files of answers and of failures, and
 * the object of the batch says how it ended. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/serving/batch/batch_store_internal.h"
#include "engine/base/log.h"

enum { BATCH_PRIORITY = -100 };  /* below the priority of interactive requests */
enum { ERROR_PATH_BYTES = 160 }; /* of a path in the errors of batch_input.c and batch_results.c */

static const char *text_at(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* --- The run ----------------------------------------------------------------------------------------------------- */

static bool stops(void *ctx) {
    mr_batch_store *s = ctx;
    mr_mutex_lock(&s->lock);
    bool yes = s->stops || s->cancels;
    mr_mutex_unlock(&s->lock);
    return yes;
}

/* While the server stops, a cancelled batch is left to the next start. */
static bool is_cancelled(mr_batch_store *s) {
    mr_mutex_lock(&s->lock);
    bool yes = s->cancels && !s->stops;
    mr_mutex_unlock(&s->lock);
    return yes;
}

static void take_counts(void *ctx, const mr_batch_counts *counts) {
    mr_batch_store *s = ctx;
    mr_mutex_lock(&s->lock);
    s->counts = *counts;
    mr_mutex_unlock(&s->lock);
}

/* Gives each line without a result an error. */
static mr_status cancel_rest(mr_batch_input *in, mr_batch_results *results, mr_err *err) {
    mr_status status = MR_OK;
    for (uint32_t i = 0; i < in->n && status == MR_OK; i++)
        if (!in->lines[i].is_done)
            status = batch_results_add_error(results, in, &in->lines[i], "batch_cancelled",
                                             "the batch was cancelled before this request was answered", err);
    return status == MR_OK ? batch_results_sync(results, err) : status;
}

static mr_status run_lines(mr_batch_store *s, const mr_batch_config *config, const char *journal, batch_outcome *out,
                           mr_err *err) {
    mr_batch_counts counts = {0};
    mr_status status = mr_batch_results_open(journal, config->input, config->results, err);
    if (status != MR_OK)
        return status;
    if (!is_cancelled(s)) {
        status = mr_batch_run(config, &counts, err);
        out->n_answers = counts.n_done - counts.n_failed;
        out->n_failures = counts.n_failed;
        if (status == MR_OK)
            out->end = BATCH_COMPLETED;
        if (status != MR_E_CANCELLED)
            return status;
    }
    if (!is_cancelled(s))
        return MR_OK; /* the server stops */
    out->end = BATCH_CANCELLED;
    return cancel_rest(config->input, config->results, err);
}

/* Sets how a batch fails that is to be refused as a whole. */
static mr_status check_lines(const mr_batch_config *config, batch_outcome *out, mr_err *err) {
    batch_request refused;
    mr_status status = batch_request_refuse_all(config, &refused, &out->line, err);
    if (status != MR_OK || !refused.code)
        return status;
    out->end = BATCH_FAILED;
    out->code = refused.code;
    out->param = out->line ? "url" : NULL;
    snprintf(out->message, sizeof out->message, "%s", refused.message);
    return MR_OK;
}

/* --- Failures ---------------------------------------------------------------------------------------------------- */

/* Whether an error is the fault of the cluster, of this process or of the disk. The batch does not fail then. */
static bool is_passing(mr_status status) {
    return status == MR_E_UNAVAILABLE || status == MR_E_NO_MEMORY || status == MR_E_IO;
}

/* Clients read the message, so words stand in place of the path. The log has the path. */
static void fail(const json_t *batch, batch_outcome *out, const char *path, const char *words, const mr_err *why) {
    size_t n = strnlen(path, ERROR_PATH_BYTES);
    bool has_path = n && strncmp(why->text, path, n) == 0;
    out->end = BATCH_FAILED;
    out->code = "batch_failed";
    snprintf(out->message, sizeof out->message, "%s%s", has_path ? words : "", has_path ? why->text + n : why->text);
    mr_log_write(MR_LOG_WARN, "batch", "%s: %s", text_at(batch, "id"), why->text);
}

/* The hints are for `millrace batch`: a client can do nothing about the journal. */
static void fail_by_journal(const json_t *batch, batch_outcome *out, const char *journal, const mr_err *why) {
    fail(batch, out, journal, "the journal of the batch", why);
    char *hint = strstr(out->message, "; hint: ");
    if (hint)
        *hint = 0;
}

static mr_status open_input(const char *folder, const char *path, const json_t *batch, mr_batch_input *in,
                            batch_outcome *out, mr_err *err) {
    mr_status status = batch_file_check(folder, text_at(batch, "input_file_id"), err);
    if (status == MR_OK)
        status = mr_batch_input_open(path, in, err);
    if (status == MR_OK || is_passing(status))
        return status;
    if (status == MR_E_NOT_FOUND)
        mr_err_set(err, status, "%.*s is not there any more", ERROR_PATH_BYTES, path);
    fail(batch, out, path, "the input file", err);
    return MR_OK;
}

static mr_status split(const char *folder, const json_t *batch, const char *journal, batch_outcome *out, mr_err *err) {
    mr_status status = batch_split(folder, batch, &out->n_answers, &out->n_failures, err);
    mr_err why;
    if (status == MR_OK && out->end != BATCH_FAILED && out->n_answers + out->n_failures != out->n_lines) {
        mr_err_set(&why, MR_E_FORMAT,
                   "%.*s was changed by another program while the batch ran: %" PRIu32 " of %" PRIu32
                   " results are left",
                   ERROR_PATH_BYTES, journal, out->n_answers + out->n_failures, out->n_lines);
        fail_by_journal(batch, out, journal, &why);
    }
    return status;
}

mr_status batch_store_run(mr_batch_store *s, const json_t *batch, batch_outcome *out, mr_err *err) {
    char in_path[BATCH_PATH_BYTES], journal[BATCH_PATH_BYTES];
    mr_batch_input in = {0};
    mr_batch_results results = {.fd = -1};
    const mr_batch_config config = {.api = s->api,
                                    .input = &in,
                                    .results = &results,
                                    .max_live = s->max_live,
                                    .url = text_at(batch, "endpoint"),
                                    .max_tokens = -1,
                                    .priority = BATCH_PRIORITY,
                                    .grace_ns = 0,
                                    .stops = stops,
                                    .progress = take_counts,
                                    .ctx = s};
    *out = (batch_outcome){.end = BATCH_LEFT};
    mr_status status = batch_path(s->folder, text_at(batch, "input_file_id"), "", in_path, err);
    if (status == MR_OK)
        status = batch_path(s->folder, text_at(batch, "id"), BATCH_JOURNAL, journal, err);
    if (status == MR_OK)
        status = open_input(s->folder, in_path, batch, &in, out, err);
    out->n_lines = in.n;
    if (status == MR_OK && out->end == BATCH_LEFT && !is_cancelled(s))
        status = check_lines(&config, out, err);
    if (status == MR_OK && out->end == BATCH_LEFT) {
        status = run_lines(s, &config, journal, out, err);
        if (status != MR_OK && !is_passing(status)) {
            fail_by_journal(batch, out, journal, err);
            status = MR_OK;
        }
    }
    mr_batch_results_close(&results);
    mr_batch_input_close(&in);
    if (status == MR_OK && out->end != BATCH_LEFT)
        status = split(s->folder, batch, journal, out, err);
    if (status != MR_OK)
        out->end = BATCH_LEFT;
    return status;
}

/* --- The end ----------------------------------------------------------------------------------------------------- */

static bool put_errors(json_t *batch, const batch_outcome *o) {
    json_t *line = o->line ? json_integer((json_int_t)o->line) : json_null();
    return json_object_set_new(batch, "errors",
                               json_pack("{s:s, s:[{s:s, s:s, s:s?, s:o}]}", "object", "list", "data", "code", o->code,
                                         "message", o->message, "param", o->param, "line", line)) == 0;
}

/* Under the lock: the journal is not needed any more. What is left of it goes at the next start. */
static void remove_journal(const mr_batch_store *s, const json_t *batch) {
    char path[BATCH_PATH_BYTES];
    mr_err err;
    if (batch_path(s->folder, text_at(batch, "id"), BATCH_JOURNAL, path, &err) == MR_OK && unlink(path) != 0 &&
        errno != ENOENT)
        mr_log_write(MR_LOG_WARN, "batch", "%.200s cannot be removed: %s", path, strerror(errno));
}

/* Where the input was not read, earlier runs may have counted its lines. */
static uint32_t total_of(const json_t *batch, const batch_outcome *o) {
    json_int_t earlier = json_integer_value(json_object_get(json_object_get(batch, "request_counts"), "total"));
    uint32_t n_results = o->n_answers + o->n_failures, total = o->n_lines;
    if (!total && earlier > 0 && earlier <= BATCH_MAX_LINES)
        total = (uint32_t)earlier;
    return total > n_results ? total : n_results;
}

mr_status batch_store_end(mr_batch_store *s, json_t *batch, const batch_outcome *o, mr_err *err) {
    static const struct {
        const char *status, *at;
    } ENDS[] = {[BATCH_COMPLETED] = {"completed", "completed_at"},
                [BATCH_CANCELLED] = {"cancelled", "cancelled_at"},
                [BATCH_FAILED] = {"failed", "failed_at"}};
    bool is_left = o->end == BATCH_LEFT, ok = true;
    if (!is_left || o->n_answers || o->n_failures)
        ok = batch_store_put_counts(batch, total_of(batch, o), o->n_answers, o->n_failures);
    if (!is_left && !o->n_answers)
        ok = ok && json_object_set_new(batch, "output_file_id", json_null()) == 0;
    if (!is_left && !o->n_failures)
        ok = ok && json_object_set_new(batch, "error_file_id", json_null()) == 0;
    if (o->end == BATCH_FAILED)
        ok = ok && put_errors(batch, o);
    if (!ok)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a batch");
    if (is_left)
        return batch_object_save(s->folder, batch, err);
    mr_status status = batch_store_set_status(s, batch, ENDS[o->end].status, ENDS[o->end].at, err);
    if (status == MR_OK)
        remove_journal(s, batch);
    return status;
}
