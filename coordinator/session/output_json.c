// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/output_json.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/console/output.h"
#include "coordinator/console/output_file.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/base/log.h"

json_t *mr_output_json_text(mr_str text) {
    return mr_api_json_text(text);
}

json_t *mr_output_json_plan(const mr_plan *plan, const mr_stage_sizes *sizes, const mr_session_cluster *cluster) {
    char here[HOST_NAME_MAX + 1] = "";
    if (gethostname(here, sizeof here - 1) != 0)
        here[0] = 0;
    json_t *stages = json_array();
    for (int32_t i = 0; i < plan->n_stages && stages; i++) {
        const mr_plan_stage *p = &plan->stages[i];
        const mr_rank_info *rank = mr_session_cluster_rank(cluster, p->rank); /* NULL: a thread of rank 0 */
        json_t *stage =
            json_pack("{s:i, s:i, s:o, s:i, s:i, s:I}", "stage", i, "rank", rank ? p->rank : 0, "host",
                      mr_output_json_text(mr_str_from(rank ? rank->host : here)), "first_layer", p->first, "last_layer",
                      p->last - 1, "weight_bytes", (json_int_t)(sizes ? sizes[i].weight_bytes : p->weight_bytes));
        if (p->device_layers > 0)
            json_object_set_new(stage, "device_layers", json_integer(p->device_layers));
        if (p->host_experts > 0)
            json_object_set_new(stage, "host_experts", json_integer(p->host_experts));
        if (p->device_experts > 0)
            json_object_set_new(stage, "device_experts", json_integer(p->device_experts));
        if (p->cold_partitions > 0)
            json_object_set_new(stage, "cold_partitions", json_integer(p->cold_partitions));
        if (i + 1 < plan->n_stages)
            json_object_set_new(stage, "link", json_string(mr_way_name(p->way)));
        if (stage && sizes) {
            json_object_set_new(stage, "kv_bytes", json_integer((json_int_t)sizes[i].kv_bytes));
            json_object_set_new(stage, "buffer_bytes", json_integer((json_int_t)sizes[i].work_bytes));
        }
        if (json_array_append_new(stages, stage) != 0) {
            json_decref(stages);
            stages = NULL;
        }
    }
    return stages;
}

void output_json_note_plan(const char *table, const mr_plan *plan, const mr_stage_sizes *sizes,
                           const mr_session_cluster *cluster) {
    char fields[1024], text[32];
    if (!mr_output_notes_are_json()) {
        mr_output_note_lines(table);
        return;
    }
    mr_output_note("%.*s", (int)strcspn(table, "\n"), table);
    json_t *stages = mr_output_json_plan(plan, sizes, cluster);
    for (size_t i = 0; i < json_array_size(stages); i++) {
        char *stage = json_dumps(json_array_get(stages, i), JSON_COMPACT);
        snprintf(text, sizeof text, "stage %zu", i);
        int n = snprintf(fields, sizeof fields, "\"stage\":%s", stage ? stage : "null");
        if (n > 0 && (size_t)n < sizeof fields)
            mr_log_event(MR_LOG_INFO, "millrace", text, fields);
        free(stage);
    }
    json_decref(stages);
}

mr_status mr_output_json_print(json_t *root, mr_err *err) {
    mr_status status = MR_OK;
    char *text = root ? json_dumps(root, JSON_REAL_PRECISION(9)) : NULL;
    size_t len = text ? strlen(text) : 0;
    json_decref(root);
    if (!text)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the JSON object");
    text[len] = '\n'; /* replaces the terminating zero */
    status = mr_output_write(text, len + 1, err);
    free(text);
    return status;
}

mr_status output_json_write_file(const char *path, json_t *root, size_t flags, const char *what, mr_err *err) {
    mr_output_file file = {0};
    char *text = root ? json_dumps(root, flags) : NULL;
    json_decref(root);
    if (!text)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %s", what);
    size_t len = strlen(text);
    text[len] = '\n'; /* replaces the terminating zero */
    mr_status status = mr_output_file_open(&file, path, len + 1, err);
    if (status == MR_OK)
        status = mr_output_file_write(&file, text, len + 1, err);
    if (status == MR_OK)
        status = mr_output_file_commit(&file, err);
    mr_output_file_abort(&file);
    free(text);
    return status;
}
