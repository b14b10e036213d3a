/* coordinator/session/profile_file.c - reads and writes profiles as JSON. Users and scripts may make such files, so
 * every field is checked. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/profile_file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/json/json.h"
#include "coordinator/session/output_json.h"
#include "engine/base/cache_dir.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/gguf/model_info.h"
#include "engine/text/text_file.h"
#include "proto/limits.h"

enum { MAX_FILE_BYTES = 256 << 20 };
#define DIGEST_FORM "a text like \"0x0123456789abcdef\""

/* --- Read -------------------------------------------------------------------------------------------------------- */

/* The first error stays: after it nothing more is read. */
typedef struct reader {
    const char *name; /* of the file */
    char at[48];      /* "layers[2]." */
    mr_status status;
    mr_err *err;
} reader;

static void MR_PRINTF(3, 4) refuse(reader *r, const char *field, const char *fmt, ...) {
    char text[256];
    va_list args;
    if (r->status != MR_OK)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    r->status = mr_err_set(r->err, MR_E_FORMAT, "%.160s: %s%s %s", r->name, r->at, field, text);
}

/* The value of a field; NULL, with an error, if it is missing or not of this type. */
static json_t *take(reader *r, const json_t *object, const char *field, json_type type, const char *form) {
    json_t *value = r->status == MR_OK ? json_object_get(object, field) : NULL;
    if (!value)
        refuse(r, field, "is missing; it should be %s", form);
    else if (json_typeof(value) != type)
        refuse(r, field, "should be %s", form);
    return r->status == MR_OK ? value : NULL;
}

static int64_t check_int(reader *r, const char *field, const json_t *value, int64_t low, int64_t high) {
    int64_t v = value && json_is_integer(value) ? json_integer_value(value) : low - 1;
    if (v < low || v > high)
        refuse(r, field, "should be a whole number from %" PRId64 " to %" PRId64, low, high);
    return r->status == MR_OK ? v : low;
}

static int64_t take_int(reader *r, const json_t *object, const char *field, int64_t low, int64_t high) {
    return r->status == MR_OK ? check_int(r, field, json_object_get(object, field), low, high) : low;
}

static void read_model(reader *r, const json_t *root, mr_profile_model *out) {
    const json_t *name = take(r, root, "model", JSON_STRING, "a text"), *digest;
    char *end = NULL;
    if (name && json_string_length(name) >= sizeof out->name)
        refuse(r, "model", "is longer than %zu bytes", sizeof out->name - 1);
    else if (name)
        memcpy(out->name, json_string_value(name), json_string_length(name) + 1);
    digest = take(r, root, "digest", JSON_STRING, DIGEST_FORM);
    const char *text = digest ? json_string_value(digest) : "";
    if (digest && strncmp(text, "0x", 2) == 0 && strlen(text) == 18 && strspn(text + 2, "0123456789abcdef") == 16)
        out->digest = strtoull(text, &end, 16);
    else
        refuse(r, "digest", "should be " DIGEST_FORM);
}

/* Reads one layer and adds it as one part. */
static void read_layer(reader *r, const json_t *layer, int32_t least, mr_profile *out) {
    mr_profile_part part = {.is_neurons = out->is_neurons, .n_rows = out->n_rows};
    if (!json_is_object(layer))
        refuse(r, "", "should be an object");
    part.layer = (int32_t)take_int(r, layer, "layer", least, MR_MODEL_MAX_LAYERS - 1);
    const json_t *counts = take(r, layer, "counts", JSON_ARRAY, "an array");
    if (counts && (json_array_size(counts) < 1 || json_array_size(counts) > MR_MAX_USED))
        refuse(r, "counts", "has %zu elements; allowed are 1 to %d", json_array_size(counts), MR_MAX_USED);
    if (r->status != MR_OK)
        return;
    part.n = part.n_counts = (int32_t)json_array_size(counts);
    uint64_t *values = mr_alloc_array((size_t)part.n, sizeof *values);
    if (!values)
        r->status = mr_err_set(r->err, MR_E_NO_MEMORY, "no memory to read %.160s", r->name);
    for (int32_t i = 0; i < part.n && r->status == MR_OK; i++)
        values[i] = (uint64_t)check_int(r, "counts", json_array_get(counts, (size_t)i), 0, (int64_t)out->n_rows);
    part.counts = values;
    if (r->status == MR_OK && (r->status = mr_profile_add(out, &part, r->err)) != MR_OK)
        mr_err_prefix(r->err, "%.160s", r->name);
    mr_free(values);
}

static void read_layers(reader *r, const json_t *root, mr_profile *out) {
    const json_t *kind = take(r, root, "kind", JSON_STRING, "\"experts\" or \"neurons\""), *layers;
    const char *text = kind ? json_string_value(kind) : "";
    bool is_neurons = strcmp(text, "neurons") == 0;
    if (!is_neurons && strcmp(text, "experts") != 0)
        refuse(r, "kind", "should be \"experts\" or \"neurons\"");
    uint64_t n_rows = (uint64_t)take_int(r, root, "rows", 1, (int64_t)MR_MAX_COUNTED_ROWS);
    layers = take(r, root, "layers", JSON_ARRAY, "an array");
    size_t n = layers ? json_array_size(layers) : 0;
    if (n < 1 || n > MR_MODEL_MAX_LAYERS)
        refuse(r, "layers", "has %zu elements; allowed are 1 to %d", n, MR_MODEL_MAX_LAYERS);
    for (size_t i = 0; i < n && r->status == MR_OK; i++) {
        out->is_neurons = is_neurons;
        out->n_rows = n_rows;
        snprintf(r->at, sizeof r->at, "layers[%zu].", i);
        read_layer(r, json_array_get(layers, i), i > 0 ? out->layers[i - 1].layer + 1 : 0, out);
    }
}

mr_status mr_profile_parse(const char *text, size_t n, const char *name, mr_profile_model *out_model, mr_profile *out,
                           mr_err *err) {
    reader r = {.name = name, .err = err};
    mr_profile profile = {0};
    mr_profile_model model = {0};
    json_t *root = mr_json_read((mr_str){text, n}, MR_JSON_UNIQUE_NAMES, err);
    if (!root)
        return mr_err_prefix(err, err->status == MR_E_FORMAT ? "%.160s is no profile" : "%.160s", name);
    if (!json_is_object(root))
        refuse(&r, "the file", "should be an object");
    (void)take_int(&r, root, "version", 1, MR_PROFILE_VERSION);
    read_model(&r, root, &model);
    read_layers(&r, root, &profile);
    json_decref(root);
    if (r.status != MR_OK) {
        mr_profile_deinit(&profile);
        return r.status;
    }
    *out_model = model;
    *out = profile;
    return MR_OK;
}

mr_status mr_profile_read(const char *path, mr_profile_model *out_model, mr_profile *out, mr_err *err) {
    mr_text_buf text = {0};
    mr_status status = mr_text_file_read(path, MAX_FILE_BYTES, &text, err);
    if (status == MR_OK)
        status = mr_profile_parse(text.data, text.len, path, out_model, out, err);
    mr_text_buf_deinit(&text);
    return status;
}

/* --- Write ------------------------------------------------------------------------------------------------------- */

/* The functions of jansson return NULL if there is no memory, and accept NULL, so only the result needs a check. */
static json_t *layers_json(const mr_profile *p) {
    json_t *layers = json_array();
    for (int32_t i = 0; i < p->n_layers; i++) {
        json_t *counts = json_array();
        bool good = counts != NULL;
        for (int32_t k = 0; k < p->layers[i].n && good; k++)
            good = json_array_append_new(counts, json_integer((json_int_t)p->layers[i].counts[k])) == 0;
        if (!good || json_array_append_new(
                         layers, json_pack("{s:i, s:O}", "layer", p->layers[i].layer, "counts", counts)) != 0) {
            json_decref(counts);
            json_decref(layers);
            return NULL;
        }
        json_decref(counts);
    }
    return layers;
}

mr_status mr_profile_write(const char *path, const mr_profile_model *model, const mr_profile *p, mr_err *err) {
    char digest[24];
    snprintf(digest, sizeof digest, "0x%016" PRIx64, model->digest);
    json_t *root =
        json_pack("{s:i, s:o, s:s, s:s, s:I, s:o}", "version", (int)MR_PROFILE_VERSION, "model",
                  mr_output_json_text(mr_str_from(model->name)), "digest", digest, "kind",
                  p->is_neurons ? "neurons" : "experts", "rows", (json_int_t)p->n_rows, "layers", layers_json(p));
    return output_json_write_file(path, root, JSON_COMPACT, "the profile", err);
}

/* --- The cache --------------------------------------------------------------------------------------------------- */

mr_status mr_profile_path(const char *cache_wish, uint64_t digest, char **out_path, mr_err *err) {
    char *folder = NULL;
    mr_status status = mr_cache_dir_make(cache_wish, &folder, err);
    if (status != MR_OK)
        return status;
    size_t bytes = strlen(folder) + 64;
    char *path = mr_alloc(bytes);
    if (path) {
        snprintf(path, bytes, "%s/profile-%016" PRIx64 ".json", folder, digest);
        *out_path = path;
    } else {
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for the path of a profile");
    }
    mr_free(folder);
    return status;
}

bool mr_profile_find(const char *cache_wish, uint64_t digest, const mr_model_info *info, mr_profile *out) {
    char *path = NULL;
    mr_profile_model model;
    mr_profile profile = {0};
    mr_err err;
    mr_status status = mr_profile_path(cache_wish, digest, &path, &err);
    if (status == MR_OK)
        status = mr_profile_read(path, &model, &profile, &err);
    if (status == MR_OK && model.digest != digest)
        status = mr_err_set(&err, MR_E_FORMAT, "%.160s is of another model file", path);
    if (status == MR_OK && (status = mr_profile_check_model(&profile, info, &err)) != MR_OK)
        mr_err_prefix(&err, "%.160s", path);
    if (status == MR_OK)
        *out = profile;
    else
        mr_profile_deinit(&profile);
    if (status != MR_OK && status != MR_E_NOT_FOUND)
        mr_log_write(MR_LOG_WARN, "coordinator", "%s; hint: run millrace profile again", err.text);
    mr_free(path);
    return status == MR_OK;
}
