/* coordinator/serving/batch/batch_check.c - checks what a folder of batches holds, because an earlier server may have
 * been killed at any moment, and anybody may have edited the files. Objects are checked whenever they are read: their
 * fields become paths. At the start of a server, malformed objects are named in the log, and what a killed server has
 * left half made is removed. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/serving/batch/batch_files.h"
#include "engine/base/log.h"

enum { MOST_NAMED = 20 }; /* malformed objects that are named one by one */

static const char *text_at(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool is_one_of(const char *status, const char *const *words, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(status, words[i]) == 0)
            return true;
    return false;
}

bool batch_has_ended(const json_t *batch) {
    static const char *const LAST[] = {"cancelled", "completed", "failed"};
    return is_one_of(text_at(batch, "status"), LAST, sizeof LAST / sizeof *LAST);
}

/* Whether the field names a file, or is null where it may be. */
static bool names_file(const json_t *object, const char *key, bool may_be_null) {
    const json_t *value = json_object_get(object, key);
    return (may_be_null && (!value || json_is_null(value))) || batch_id_is_good(text_at(object, key), "file-");
}

mr_status batch_object_check(const json_t *object, const char *id, mr_err *err) {
    static const char *const OPEN[] = {"validating", "in_progress", "cancelling"};
    const char *wrong = NULL;
    if (strcmp(text_at(object, "id"), id) != 0)
        wrong = "id";
    else if (batch_id_is_good(id, "batch_")) {
        if (!names_file(object, "input_file_id", false))
            wrong = "input_file_id";
        else if (!names_file(object, "output_file_id", batch_has_ended(object)))
            wrong = "output_file_id";
        else if (!names_file(object, "error_file_id", true))
            wrong = "error_file_id";
        else if (!batch_has_ended(object) && !is_one_of(text_at(object, "status"), OPEN, sizeof OPEN / sizeof *OPEN))
            wrong = "status";
        else if (!json_is_string(json_object_get(object, "endpoint")))
            wrong = "endpoint";
    }
    if (wrong)
        return mr_err_set(err, MR_E_FORMAT, "%s.json in the folder of batches is malformed: %s", id, wrong);
    return MR_OK;
}

/* --- At the start of a server ------------------------------------------------------------------------------------ */

/* Splits the name of a file of the folder into an id and an ending. false: the file is not ours. */
static bool split_name(const char *name, char id[BATCH_ID_BYTES], const char **out_ending) {
    size_t n = strcspn(name, ".");
    if (n >= BATCH_ID_BYTES)
        return false;
    memcpy(id, name, n);
    id[n] = 0;
    *out_ending = name + n;
    return batch_id_is_good(id, "file-") || batch_id_is_good(id, "batch_");
}

/* Calls visit for the files of the folder whose names are ours. */
static mr_status visit(const char *folder, void (*one)(void *ctx, const char *id, const char *ending), void *ctx,
                       mr_err *err) {
    char id[BATCH_ID_BYTES];
    const char *ending;
    const struct dirent *e;
    DIR *d = opendir(folder);
    if (!d)
        return mr_err_set(err, MR_E_IO, "%.200s cannot be read: %s", folder, strerror(errno));
    while ((e = readdir(d)))
        if (split_name(e->d_name, id, &ending))
            one(ctx, id, ending);
    closedir(d);
    return MR_OK;
}

typedef struct tidying {
    const char *folder;
    json_t *kept;    /* an object whose keys are the files of results of all batches, and batches that have not ended */
    int n_malformed; /* objects that cannot be read */
    bool no_memory;
} tidying;

/* "" is accepted. */
static void keep(tidying *t, const char *id) {
    if (*id && json_object_set_new(t->kept, id, json_true()) != 0)
        t->no_memory = true;
}

/* Reads each object. */
static void check_one(void *ctx, const char *id, const char *ending) {
    tidying *t = ctx;
    json_t *object = NULL;
    mr_err err;
    if (strcmp(ending, ".json") != 0)
        return;
    if (batch_object_load(t->folder, id, &object, &err) != MR_OK) {
        if (t->n_malformed++ < MOST_NAMED)
            mr_log_write(MR_LOG_WARN, "batch", "%s; it is left out; hint: restore the file, or remove it", err.text);
        return;
    }
    keep(t, text_at(object, "output_file_id"));
    keep(t, text_at(object, "error_file_id"));
    keep(t, batch_id_is_good(id, "batch_") && !batch_has_ended(object) ? id : "");
    json_decref(object);
}

static void remove_one(const tidying *t, const char *id, const char *ending) {
    char path[BATCH_PATH_BYTES];
    mr_err err;
    if (batch_path(t->folder, id, ending, path, &err) == MR_OK && unlink(path) != 0 && errno != ENOENT)
        mr_log_write(MR_LOG_WARN, "batch", "%.200s cannot be removed: %s", path, strerror(errno));
}

/* Removes a file that was being written, the journal of a batch that has ended or is gone, and a content that no object
 * names, so that no request could. */
static void tidy_one(void *ctx, const char *id, const char *ending) {
    tidying *t = ctx;
    char path[BATCH_PATH_BYTES];
    mr_err err;
    if (strcmp(ending, ".new") == 0 || strcmp(ending, ".json.new") == 0 ||
        (strcmp(ending, BATCH_JOURNAL) == 0 && !json_object_get(t->kept, id)))
        remove_one(t, id, ending);
    else if (!*ending && !json_object_get(t->kept, id) && batch_path(t->folder, id, ".json", path, &err) == MR_OK &&
             access(path, F_OK) != 0)
        remove_one(t, id, "");
}

mr_status batch_folder_check(const char *folder, mr_err *err) {
    tidying t = {.folder = folder, .kept = json_object()};
    if (!t.kept)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for batches");
    mr_status status = visit(folder, check_one, &t, err);
    if (t.n_malformed > MOST_NAMED)
        mr_log_write(MR_LOG_WARN, "batch", "%d further objects are malformed", t.n_malformed - MOST_NAMED);
    /* A malformed object may name any file. */
    if (status == MR_OK && t.n_malformed == 0 && !t.no_memory)
        status = visit(folder, tidy_one, &t, err);
    json_decref(t.kept);
    return status;
}
