// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/plan_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/json/json.h"
#include "engine/base/mem.h"
#include "engine/text/text_file.h"

enum { MAX_ROWS = 1 << 20, MAX_WAYS = 4 * MR_MAX_STAGES * MR_WAYS };
static const double MAX_SECONDS = 1e6, MAX_MEMORY = 1e18, MAX_SPEED = 1e15;

/* Where in the file the reader is, for its errors. The first error stays: after it nothing more is read. */
typedef struct reader {
    const char *path;
    char at[64];       /* "stages[2]." */
    int32_t past_last; /* 1: last_layer is one past the last layer, as in version 1; else 0 */
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
    r->status = mr_err_set(r->err, MR_E_FORMAT, "%.160s: %s%s %s", r->path, r->at, field, text);
}

static void MR_PRINTF(2, 3) go_to(reader *r, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->at, sizeof r->at, fmt, args);
    va_end(args);
}

/* The value of a field; NULL, with an error, if it is missing or not of this type. */
static json_t *take(reader *r, json_t *object, const char *field, json_type type, const char *type_name) {
    json_t *value = r->status == MR_OK ? json_object_get(object, field) : NULL;
    if (r->status == MR_OK && !value)
        refuse(r, field, "is missing; it should be %s", type_name);
    else if (value && json_typeof(value) != type)
        refuse(r, field, "should be %s", type_name);
    return r->status == MR_OK ? value : NULL;
}

static int64_t take_int(reader *r, json_t *object, const char *field, int64_t low, int64_t high) {
    json_t *value = take(r, object, field, JSON_INTEGER, "a whole number");
    int64_t v = value ? json_integer_value(value) : low;
    if (v < low || v > high)
        refuse(r, field, "is %" PRId64 ", allowed is %" PRId64 " to %" PRId64, v, low, high);
    return r->status == MR_OK ? v : low;
}

/* Checks an element of an array. */
static int32_t check_int(reader *r, const char *field, const json_t *value, int32_t low, int32_t high) {
    int64_t v = value && json_is_integer(value) ? json_integer_value(value) : (int64_t)low - 1;
    if (v < low || v > high)
        refuse(r, field, "should be a whole number from %" PRId32 " to %" PRId32, low, high);
    return r->status == MR_OK ? (int32_t)v : low;
}

static double check_real(reader *r, const char *field, const json_t *value, double low, double high) {
    double v = value && json_is_number(value) ? json_number_value(value) : NAN;
    if (!(v >= low && v <= high))
        refuse(r, field, "should be a number from %g to %g", low, high);
    return r->status == MR_OK ? v : low;
}

static double take_real(reader *r, json_t *object, const char *field, double low, double high) {
    return r->status == MR_OK ? check_real(r, field, json_object_get(object, field), low, high) : low;
}

static void no_memory(reader *r) {
    if (r->status == MR_OK)
        r->status = mr_err_set(r->err, MR_E_NO_MEMORY, "no memory to read %.160s", r->path);
}

/* --- The model --------------------------------------------------------------------------------------------------- */

static void read_model(reader *r, json_t *root, plan_file *out) {
    json_t *model = take(r, root, "model", JSON_OBJECT, "an object");
    char *end = NULL;
    go_to(r, "model.");
    out->n_layers = (int32_t)take_int(r, model, "layers", 1, MR_MODEL_MAX_LAYERS);
    json_t *digest = take(r, model, "digest", JSON_STRING, "a text like \"0x0123456789abcdef\"");
    const char *text = digest ? json_string_value(digest) : "";
    if (digest && (strncmp(text, "0x", 2) != 0 || strlen(text) != 18))
        refuse(r, "digest", "should be a text like \"0x0123456789abcdef\"");
    else if (digest)
        out->model_digest = strtoull(text, &end, 16);
    if (end && *end)
        refuse(r, "digest", "should be a text like \"0x0123456789abcdef\"");
    go_to(r, "%s", "");
}

/* --- The plan ---------------------------------------------------------------------------------------------------- */

static void read_stage(reader *r, json_t *stage, int32_t i, plan_file *out) {
    mr_plan_stage *s = &out->plan.stages[i];
    int32_t next = i > 0 ? s[-1].last : 0;
    go_to(r, "stages[%" PRId32 "].", i);
    if (!json_is_object(stage))
        refuse(r, "", "should be an object");
    s->rank = (int32_t)take_int(r, stage, "rank", 0, MR_MAX_STAGES - 1);
    s->first = (int32_t)take_int(r, stage, "first_layer", 0, out->n_layers - 1);
    int32_t last = (int32_t)take_int(r, stage, "last_layer", r->past_last, out->n_layers - 1 + r->past_last);
    s->last = last + 1 - r->past_last;
    if (s->first != next)
        refuse(r, "first_layer", "is %" PRId32 ", but %s; hint: layers of stages follow each other", s->first,
               i == 0            ? "the first stage begins with layer 0"
               : s->first < next ? "the stage before has that layer too"
                                 : "the stage before ends earlier, and no stage has the layers between");
    if (json_object_get(stage, "device_layers"))
        s->device_layers = (int32_t)take_int(r, stage, "device_layers", 0, s->last - s->first);
    if (json_object_get(stage, "host_experts"))
        s->host_experts = (int32_t)take_int(r, stage, "host_experts", 0, s->device_layers);
    if (json_object_get(stage, "device_experts"))
        s->device_experts = (int32_t)take_int(r, stage, "device_experts", 0, s->host_experts > 0 ? MR_MAX_EXPERTS : 0);
    if (json_object_get(stage, "cold_partitions"))
        s->cold_partitions =
            (int32_t)take_int(r, stage, "cold_partitions", 0, s->device_layers > 0 ? MR_MAX_PARTITIONS : 0);
    if (s->last <= s->first)
        refuse(r, "last_layer", "is %" PRId32 ", but should be at least %" PRId32 "%s", last, s->first + r->past_last,
               r->past_last ? " (in version 1 it is one past the last)" : ", first_layer");
    const char *host = json_string_value(json_object_get(stage, "host"));
    snprintf(out->hosts[i].name, sizeof out->hosts[i].name, "%s", host ? host : "");
    for (int32_t k = 0; k < i; k++)
        if (out->plan.stages[k].rank == s->rank)
            refuse(r, "rank", "is %" PRId32 ", which has stage %" PRId32 " already; hint: one stage for each rank",
                   s->rank, k);
}

static void read_stages(reader *r, json_t *root, plan_file *out) {
    json_t *stages = json_object_get(root, "stages");
    if (r->status != MR_OK || !stages)
        return;
    size_t n = json_array_size(stages); /* 0 if stages is not an array */
    if (n < 1 || n > MR_MAX_STAGES)
        refuse(r, "stages", "should be an array of 1 to %d objects", MR_MAX_STAGES);
    out->hosts = mr_alloc_array(n > 0 ? n : 1, sizeof *out->hosts);
    if (!out->hosts)
        no_memory(r);
    for (size_t i = 0; i < n && r->status == MR_OK; i++)
        read_stage(r, json_array_get(stages, i), (int32_t)i, out);
    go_to(r, "%s", "");
    if (r->status == MR_OK && out->plan.stages[n - 1].last != out->n_layers)
        refuse(r, "stages", "end with layer %" PRId32 ", but the model has %" PRId32 " layers",
               out->plan.stages[n - 1].last - 1, out->n_layers);
    out->plan.n_stages = (int32_t)n;
    out->has_plan = true;
}

/* --- Facts ------------------------------------------------------------------------------------------------------- */

/* {"rows": [1, 2, 4], "seconds": [0.1, 0.2, 0.3]} */
static void read_curve(reader *r, json_t *curve, const char *field, mr_step_times *out) {
    json_t *rows = json_object_get(curve, "rows"), *seconds = json_object_get(curve, "seconds");
    size_t n = json_array_size(rows);
    if (n < 1 || n > MR_STEP_TIMES_MAX || json_array_size(seconds) != n) {
        refuse(r, field, "should have two arrays of 1 to %d numbers, rows and seconds, equally many",
               MR_STEP_TIMES_MAX);
        return;
    }
    for (size_t i = 0; i < n && r->status == MR_OK; i++) {
        out->rows[i] = check_int(r, field, json_array_get(rows, i), 1, MAX_ROWS);
        out->seconds[i] = check_real(r, field, json_array_get(seconds, i), 0, MAX_SECONDS);
        if (i > 0 && out->rows[i] <= out->rows[i - 1])
            refuse(r, field, "has rows that do not ascend");
    }
    out->n = (int32_t)n;
}

/* An array with a number for each kind of layers. In versions 1 and 2: one number for all kinds. */
static void read_position_seconds(reader *r, json_t *rank, int32_t n_kinds, double *out) {
    const json_t *value = json_object_get(rank, "position_s");
    if (json_is_array(value) && json_array_size(value) != (size_t)n_kinds)
        refuse(r, "position_s", "has %zu numbers, but there are %" PRId32 " kinds of layers", json_array_size(value),
               n_kinds);
    for (int32_t k = 0; k < n_kinds && r->status == MR_OK; k++)
        out[k] = check_real(r, "position_s", json_is_array(value) ? json_array_get(value, (size_t)k) : value, 0,
                            MAX_SECONDS);
}

/* An array with a curve for each kind of layers. */
static void read_curves(reader *r, json_t *object, int32_t n_kinds, mr_step_times *out) {
    json_t *layers = take(r, object, "layers", JSON_ARRAY, "an array of curves, one for each kind of layers");
    if (layers && json_array_size(layers) != (size_t)n_kinds)
        refuse(r, "layers", "has %zu curves, but there are %" PRId32 " kinds of layers", json_array_size(layers),
               n_kinds);
    for (int32_t k = 0; k < n_kinds && r->status == MR_OK; k++)
        read_curve(r, json_array_get(layers, (size_t)k), "layers", &out[k]);
}

/* An array with a number of bytes for each kind of layers. */
static void read_kind_bytes(reader *r, json_t *device, const char *field, int32_t n_kinds, uint64_t *out) {
    json_t *bytes = take(r, device, field, JSON_ARRAY, "an array of numbers, one for each kind of layers");
    for (int32_t k = 0; k < n_kinds && r->status == MR_OK; k++)
        out[k] = (uint64_t)check_real(r, field, json_array_get(bytes, (size_t)k), 0, MAX_MEMORY);
}

/* The curves of layers without their experts; null for kinds without any. Files of earlier versions lack them. */
static void read_trunks(reader *r, json_t *device, int32_t n_kinds, mr_measured_device *out) {
    json_t *trunks = json_object_get(device, "trunks");
    if (!trunks || r->status != MR_OK)
        return;
    if (json_array_size(trunks) != (size_t)n_kinds)
        refuse(r, "trunks", "should be an array of %" PRId32 " curves, one for each kind of layers", n_kinds);
    for (int32_t k = 0; k < n_kinds && r->status == MR_OK; k++)
        if (!json_is_null(json_array_get(trunks, (size_t)k)))
            read_curve(r, json_array_get(trunks, (size_t)k), "trunks", &out->trunk[k]);
    read_kind_bytes(r, device, "trunk_bytes", n_kinds, out->trunk_bytes);
}

/* The curves of whole layers on the device. A kind of which only the trunk fits has none: null. */
static void read_device_layers(reader *r, json_t *device, int32_t n_kinds, mr_measured_device *out) {
    json_t *layers = take(r, device, "layers", JSON_ARRAY, "an array of curves, one for each kind of layers");
    if (layers && json_array_size(layers) != (size_t)n_kinds)
        refuse(r, "layers", "has %zu curves, but there are %" PRId32 " kinds of layers", json_array_size(layers),
               n_kinds);
    for (int32_t k = 0; k < n_kinds && r->status == MR_OK; k++)
        if (out->trunk[k].n == 0 || !json_is_null(json_array_get(layers, (size_t)k)))
            read_curve(r, json_array_get(layers, (size_t)k), "layers", &out->layer[k]);
}

/* The device of a rank may be missing. */
static void read_device(reader *r, json_t *rank, size_t i, int32_t n_kinds, mr_measured_device *out) {
    json_t *device = json_object_get(rank, "device");
    if (!device || r->status != MR_OK)
        return;
    go_to(r, "facts.ranks[%zu].device.", i);
    json_t *name = take(r, device, "name", JSON_STRING, "a name");
    snprintf(out->name, sizeof out->name, "%s", name ? json_string_value(name) : "");
    out->memory_bytes = (uint64_t)take_real(r, device, "memory_bytes", 0, MAX_MEMORY);
    out->stage_bytes = (uint64_t)take_real(r, device, "stage_bytes", 0, MAX_MEMORY);
    out->head_bytes = (uint64_t)take_real(r, device, "head_bytes", 0, MAX_MEMORY);
    out->tail_bytes = (uint64_t)take_real(r, device, "tail_bytes", 0, MAX_MEMORY);
    read_kind_bytes(r, device, "layer_bytes", n_kinds, out->layer_bytes);
    read_kind_bytes(r, device, "token_bytes", n_kinds, out->token_bytes);
    read_position_seconds(r, device, n_kinds, out->position_s);
    read_trunks(r, device, n_kinds, out);
    read_device_layers(r, device, n_kinds, out);
    if (r->status == MR_OK)
        read_curve(r, json_object_get(device, "output"), "output", &out->output);
    if (r->status == MR_OK)
        read_curve(r, json_object_get(device, "crossing"), "crossing", &out->crossing);
    out->is_known = true;
}

static void read_rank(reader *r, json_t *rank, size_t i, plan_file *out) {
    mr_rank_facts *f = &out->ranks[i];
    go_to(r, "facts.ranks[%zu].", i);
    json_t *host = take(r, rank, "host", JSON_STRING, "a name");
    snprintf(f->host, sizeof f->host, "%s", host ? json_string_value(host) : "");
    f->threads = (int32_t)take_int(r, rank, "threads", 1, 1 << 20);
    f->memory_bytes = (uint64_t)take_real(r, rank, "memory_bytes", 0, MAX_MEMORY);
    read_position_seconds(r, rank, out->facts.n_kinds, f->position_s);
    f->step_s = take_real(r, rank, "step_s", 0, MAX_SECONDS);
    if (json_object_get(rank, "core_share"))
        f->core_share = take_real(r, rank, "core_share", 0, 1);
    read_curves(r, rank, out->facts.n_kinds, f->layer);
    if (r->status == MR_OK)
        read_curve(r, json_object_get(rank, "output"), "output", &f->output);
    read_device(r, rank, i, out->facts.n_kinds, &f->device);
}

static void read_links(reader *r, json_t *facts, size_t n, plan_file *out) {
    json_t *links = take(r, facts, "links", JSON_ARRAY, "a table: an array of arrays");
    go_to(r, "facts.");
    if (links && json_array_size(links) != n)
        refuse(r, "links", "has %zu lines, but there are %zu ranks", json_array_size(links), n);
    for (size_t a = 0; a < n && r->status == MR_OK; a++) {
        json_t *line = json_array_get(links, a);
        go_to(r, "facts.links[%zu]", a);
        if (json_array_size(line) != n)
            refuse(r, "", "should be an array of %zu links", n);
        for (size_t b = 0; b < n && r->status == MR_OK; b++) {
            json_t *link = json_array_get(line, b);
            if (a == b)
                continue;
            go_to(r, "facts.links[%zu][%zu].", a, b);
            out->links[a * n + b] = (mr_link_facts){take_real(r, link, "latency_s", 0, MAX_SECONDS),
                                                    take_real(r, link, "bytes_per_second", 0, MAX_SPEED)};
        }
    }
}

/* What was measured of the ways between devices; may be missing. */
static void read_ways(reader *r, json_t *facts, size_t n_ranks, plan_file *out) {
    json_t *ways = json_object_get(facts, "ways");
    if (r->status != MR_OK || !ways)
        return;
    size_t n = json_array_size(ways); /* 0 if ways is not an array */
    if (n < 1 || n > MAX_WAYS)
        refuse(r, "ways", "should be an array of 1 to %d objects", MAX_WAYS);
    out->ways = r->status == MR_OK ? mr_alloc_array(n, sizeof *out->ways) : NULL;
    if (r->status == MR_OK && !out->ways)
        no_memory(r);
    for (size_t i = 0; i < n && r->status == MR_OK; i++) {
        json_t *entry = json_array_get(ways, i);
        mr_way_facts *w = &out->ways[i];
        go_to(r, "facts.ways[%zu].", i);
        w->from = (int32_t)take_int(r, entry, "from", 0, (int64_t)n_ranks - 1);
        w->to = (int32_t)take_int(r, entry, "to", 0, (int64_t)n_ranks - 1);
        json_t *name = take(r, entry, "way", JSON_STRING, "the name of a way");
        int32_t way = name ? mr_way_find(json_string_value(name)) : 0;
        if (way >= MR_WAYS)
            refuse(r, "way", "is \"%.40s\", which is no way", json_string_value(name));
        w->way = (mr_way)way;
        const char *why = json_string_value(json_object_get(entry, "why"));
        snprintf(w->why, sizeof w->why, "%s", why ? why : "");
        if (!why)
            w->link = (mr_link_facts){take_real(r, entry, "latency_s", 0, MAX_SECONDS),
                                      take_real(r, entry, "bytes_per_second", 1, MAX_SPEED)};
    }
    go_to(r, "facts.");
    out->facts.ways = out->ways;
    out->facts.n_ways = (int32_t)n;
}

static void read_kinds(reader *r, json_t *facts, plan_file *out) {
    json_t *kinds = take(r, facts, "kinds", JSON_ARRAY, "an array with the kind of each layer");
    if (kinds && json_array_size(kinds) != (size_t)out->n_layers)
        refuse(r, "kinds", "has %zu entries, but the model has %" PRId32 " layers", json_array_size(kinds),
               out->n_layers);
    for (int32_t l = 0; l < out->n_layers && r->status == MR_OK; l++) {
        out->kind[l] = (uint8_t)check_int(r, "kinds", json_array_get(kinds, (size_t)l), 0, MR_MAX_LAYER_KINDS - 1);
        out->facts.n_kinds = out->kind[l] >= out->facts.n_kinds ? out->kind[l] + 1 : out->facts.n_kinds;
    }
}

static void read_facts(reader *r, json_t *root, plan_file *out) {
    json_t *facts = json_object_get(root, "facts");
    if (r->status != MR_OK || !facts)
        return;
    json_t *ranks = take(r, facts, "ranks", JSON_ARRAY, "an array of objects");
    size_t n = json_array_size(ranks);
    go_to(r, "facts.");
    if (n < 1 || n > MR_MAX_STAGES)
        refuse(r, "ranks", "should be an array of 1 to %d objects", MR_MAX_STAGES);
    if (r->status != MR_OK)
        return;
    out->kind = mr_alloc_array((size_t)out->n_layers, sizeof *out->kind);
    out->ranks = mr_alloc_array(n, sizeof *out->ranks);
    out->links = mr_alloc_array(n * n, sizeof *out->links);
    if (!out->kind || !out->ranks || !out->links)
        no_memory(r);
    out->facts = (mr_cluster_facts){.n_ranks = (int32_t)n,
                                    .n_layers = out->n_layers,
                                    .row_bytes = (int32_t)take_int(r, facts, "row_bytes", 1, INT32_MAX),
                                    .kind = out->kind,
                                    .ranks = out->ranks,
                                    .links = out->links};
    read_kinds(r, facts, out);
    for (size_t i = 0; i < n && r->status == MR_OK; i++)
        read_rank(r, json_array_get(ranks, i), i, out);
    go_to(r, "facts.");
    read_links(r, facts, n, out);
    read_ways(r, facts, n, out);
    go_to(r, "%s", "");
    out->has_facts = true;
}

/* --- The file ---------------------------------------------------------------------------------------------------- */

static bool is_blank(mr_str text) {
    size_t i = 0;
    while (i < text.len && memchr(" \t\r\n", text.data[i], 4))
        i++;
    return i == text.len;
}

mr_status plan_file_parse(mr_str text, const char *path, plan_file *out, mr_err *err) {
    reader r = {.path = path, .err = err};
    *out = (plan_file){0};
    if (is_blank(text))
        return mr_err_set(err, MR_E_FORMAT,
                          "%.160s is empty; hint: `millrace plan --save` writes such a file, and --facts takes a list "
                          "of hosts, too",
                          path);
    json_t *root = mr_json_read(text, MR_JSON_UNIQUE_NAMES, err);
    if (!root)
        return mr_err_prefix(err, err->status == MR_E_FORMAT ? "%.160s is no plan" : "%.160s", path);
    if (!json_is_object(root) || !json_object_get(root, "millrace_plan"))
        r.status = mr_err_set(err, MR_E_FORMAT, "%.160s is no plan: it has no field millrace_plan", path);
    r.past_last = take_int(&r, root, "millrace_plan", 1, PLAN_FILE_VERSION) == 1;
    read_model(&r, root, out);
    read_stages(&r, root, out);
    read_facts(&r, root, out);
    json_decref(root);
    if (r.status == MR_OK && !out->has_plan && !out->has_facts)
        refuse(&r, "stages", "and facts are missing: there is nothing in it");
    if (r.status != MR_OK)
        plan_file_deinit(out);
    return r.status;
}

mr_status plan_file_read(const char *path, plan_file *out, mr_err *err) {
    mr_text_buf text = {0};
    *out = (plan_file){0};
    mr_status status = mr_text_file_read(path, PLAN_FILE_MAX_BYTES, &text, err);
    if (status == MR_OK)
        status = plan_file_parse((mr_str){text.data, text.len}, path, out, err);
    mr_text_buf_deinit(&text);
    return status;
}

void plan_file_deinit(plan_file *f) {
    mr_free(f->hosts);
    mr_free(f->kind);
    mr_free(f->ranks);
    mr_free(f->links);
    mr_free(f->ways);
    *f = (plan_file){0};
}

mr_status plan_file_check_model(const plan_file *f, const char *path, uint64_t digest, int32_t n_layers, mr_err *err) {
    if (f->n_layers != n_layers)
        return mr_err_set(err, MR_E_FORMAT,
                          "%.160s: model.layers is %" PRId32 ", but this model has %" PRId32
                          "; hint: make a new plan for this model",
                          path, f->n_layers, n_layers);
    if (f->model_digest != digest)
        return mr_err_set(err, MR_E_FORMAT,
                          "%.160s: model.digest is 0x%016" PRIx64 ", but that of this model is 0x%016" PRIx64
                          "; hint: a plan is for one file, make a new plan for this file",
                          path, f->model_digest, digest);
    return MR_OK;
}

mr_status plan_file_check_devices(const plan_file *f, const char *path, const mr_model_info *info, mr_err *err) {
    int32_t n_partitions = mr_model_partitions(info);
    for (int32_t i = 0; i < f->plan.n_stages; i++) {
        const mr_plan_stage *s = &f->plan.stages[i];
        if (s->device_experts > info->n_experts)
            return mr_err_set(err, MR_E_FORMAT,
                              "%.160s: stages[%" PRId32 "].device_experts is %" PRId32
                              ", but layers of this model have %" PRId32 " experts; hint: 0 to %" PRId32,
                              path, i, s->device_experts, info->n_experts, info->n_experts);
        if (s->cold_partitions > n_partitions)
            return mr_err_set(err, MR_E_FORMAT,
                              "%.160s: stages[%" PRId32 "].cold_partitions is %" PRId32
                              ", but feed-forward parts of this model have at most %" PRId32
                              " partitions; hint: 0 to %" PRId32,
                              path, i, s->cold_partitions, n_partitions, n_partitions);
    }
    return MR_OK;
}

mr_status plan_file_check_ranks(const plan_file *f, const char *path, int32_t n_ranks, mr_err *err) {
    for (int32_t i = 0; i < f->plan.n_stages; i++)
        if (f->plan.stages[i].rank >= n_ranks)
            return mr_err_set(err, MR_E_INVALID,
                              "%.160s: stages[%" PRId32 "].rank is %" PRId32 ", but there are ranks 0 to %" PRId32
                              " only; hint: start %" PRId32 " ranks, or edit the plan",
                              path, i, f->plan.stages[i].rank, n_ranks - 1, f->plan.stages[i].rank + 1);
    return MR_OK;
}
