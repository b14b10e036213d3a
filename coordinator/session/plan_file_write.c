/* coordinator/session/plan_file_write.c - writes the files of plan_file.h. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/session/output_json.h"
#include "coordinator/session/plan_file.h"

/* The functions of jansson return NULL if there is no memory, and accept NULL, so only the result needs a check. */
static json_t *curve_json(const mr_step_times *t) {
    json_t *rows = json_array(), *seconds = json_array();
    for (int32_t i = 0; i < t->n; i++) {
        json_array_append_new(rows, json_integer(t->rows[i]));
        json_array_append_new(seconds, json_real(t->seconds[i]));
    }
    return json_pack("{s:o, s:o}", "rows", rows, "seconds", seconds);
}

static json_t *device_json(const mr_measured_device *d, int32_t n_kinds) {
    json_t *layers = json_array(), *position_s = json_array(), *layer_bytes = json_array(), *token_bytes = json_array();
    json_t *trunks = json_array(), *trunk_bytes = json_array();
    for (int32_t k = 0; k < n_kinds; k++) {
        json_array_append_new(layers, d->layer[k].n > 0 ? curve_json(&d->layer[k]) : json_null());
        json_array_append_new(position_s, json_real(d->position_s[k]));
        json_array_append_new(layer_bytes, json_integer((json_int_t)d->layer_bytes[k]));
        json_array_append_new(token_bytes, json_integer((json_int_t)d->token_bytes[k]));
        json_array_append_new(trunks, d->trunk[k].n > 0 ? curve_json(&d->trunk[k]) : json_null());
        json_array_append_new(trunk_bytes, json_integer((json_int_t)d->trunk_bytes[k]));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", d->name,
                     "memory_bytes", (json_int_t)d->memory_bytes, "stage_bytes", (json_int_t)d->stage_bytes,
                     "head_bytes", (json_int_t)d->head_bytes, "tail_bytes", (json_int_t)d->tail_bytes, "layer_bytes",
                     layer_bytes, "token_bytes", token_bytes, "position_s", position_s, "layers", layers, "output",
                     curve_json(&d->output), "crossing", curve_json(&d->crossing), "trunks", trunks, "trunk_bytes",
                     trunk_bytes);
}

static json_t *rank_json(const mr_rank_facts *f, int32_t n_kinds) {
    json_t *layers = json_array(), *position_s = json_array();
    for (int32_t k = 0; k < n_kinds; k++) {
        json_array_append_new(layers, curve_json(&f->layer[k]));
        json_array_append_new(position_s, json_real(f->position_s[k]));
    }
    json_t *rank = json_pack("{s:s, s:i, s:I, s:o, s:f, s:o, s:o}", "host", f->host, "threads", f->threads,
                             "memory_bytes", (json_int_t)f->memory_bytes, "position_s", position_s, "step_s", f->step_s,
                             "layers", layers, "output", curve_json(&f->output));
    if (f->core_share > 0)
        json_object_set_new(rank, "core_share", json_real(f->core_share));
    if (f->device.is_known)
        json_object_set_new(rank, "device", device_json(&f->device, n_kinds));
    return rank;
}

/* What was measured of the ways between devices. */
static json_t *ways_json(const mr_cluster_facts *f) {
    json_t *ways = json_array();
    for (int32_t i = 0; i < f->n_ways; i++) {
        const mr_way_facts *w = &f->ways[i];
        json_t *way = json_pack("{s:i, s:i, s:s}", "from", w->from, "to", w->to, "way", mr_way_name(w->way));
        if (mr_way_facts_works(w)) {
            json_object_set_new(way, "latency_s", json_real(w->link.latency_s));
            json_object_set_new(way, "bytes_per_second", json_real(w->link.bytes_per_second));
        } else {
            json_object_set_new(way, "why", mr_output_json_text(mr_str_from(w->why)));
        }
        json_array_append_new(ways, way);
    }
    return ways;
}

static json_t *facts_json(const mr_cluster_facts *f) {
    json_t *kinds = json_array(), *ranks = json_array(), *links = json_array();
    for (int32_t l = 0; l < f->n_layers; l++)
        json_array_append_new(kinds, json_integer(f->kind[l]));
    for (int32_t a = 0; a < f->n_ranks; a++) {
        json_t *line = json_array();
        json_array_append_new(ranks, rank_json(&f->ranks[a], f->n_kinds));
        for (int32_t b = 0; b < f->n_ranks; b++) {
            const mr_link_facts *link = &f->links[(size_t)a * (size_t)f->n_ranks + (size_t)b];
            json_array_append_new(line, a == b ? json_null()
                                               : json_pack("{s:f, s:f}", "latency_s", link->latency_s,
                                                           "bytes_per_second", link->bytes_per_second));
        }
        json_array_append_new(links, line);
    }
    json_t *facts =
        json_pack("{s:i, s:o, s:o, s:o}", "row_bytes", f->row_bytes, "kinds", kinds, "ranks", ranks, "links", links);
    if (f->n_ways > 0)
        json_object_set_new(facts, "ways", ways_json(f));
    return facts;
}

static json_t *stages_json(const mr_plan *plan, const mr_cluster_facts *facts) {
    json_t *stages = json_array();
    for (int32_t i = 0; i < plan->n_stages; i++) {
        const mr_plan_stage *s = &plan->stages[i];
        json_t *stage =
            json_pack("{s:i, s:i, s:i}", "rank", s->rank, "first_layer", s->first, "last_layer", s->last - 1);
        if (s->device_layers > 0)
            json_object_set_new(stage, "device_layers", json_integer(s->device_layers));
        if (s->host_experts > 0)
            json_object_set_new(stage, "host_experts", json_integer(s->host_experts));
        if (s->device_experts > 0)
            json_object_set_new(stage, "device_experts", json_integer(s->device_experts));
        if (s->cold_partitions > 0)
            json_object_set_new(stage, "cold_partitions", json_integer(s->cold_partitions));
        if (facts)
            json_object_set_new(stage, "host", json_string(facts->ranks[s->rank].host));
        json_array_append_new(stages, stage);
    }
    return stages;
}

mr_status mr_plan_file_write(const char *path, const char *model_name, uint64_t digest, int32_t n_layers,
                             const mr_plan *plan, const mr_cluster_facts *facts, mr_err *err) {
    char hex[24];
    snprintf(hex, sizeof hex, "0x%016" PRIx64, digest);
    json_t *root = json_pack("{s:i, s:{s:s, s:i, s:s}, s:o}", "millrace_plan", (int)PLAN_FILE_VERSION, "model", "name",
                             model_name, "layers", n_layers, "digest", hex, "stages", stages_json(plan, facts));
    if (root && facts && json_object_set_new(root, "facts", facts_json(facts)) != 0) {
        json_decref(root);
        root = NULL;
    }
    return output_json_write_file(path, root, JSON_INDENT(1) | JSON_REAL_PRECISION(6), "the plan", err);
}
