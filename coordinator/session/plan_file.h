/* coordinator/session/plan_file.h - files with a plan, and with the facts that the plan was chosen by. Users may read
 * and edit them.
 * Format:  one JSON object: "millrace_plan" (the version), "model" (name, layers, digest of the file), "stages"
 *          (rank, host, first_layer, last_layer; where a device holds layers, device_layers, host_experts,
 *          device_experts and cold_partitions) and "facts" (row_bytes, kinds of the layers, ranks with their curves and
 *          those of their device, links as a table from, to). "stages" or "facts" may be missing. Version 3 is written.
 *          Version 2, in which position_s is one number for all kinds of layers, and version 1, in which also
 *          last_layer is one past the last layer, can be read.
 * Owns:    a plan_file owns its arrays. {0} may be deinitialised.
 * Threads: caller serialises.
 * Errors:  those of mr_text_file_read; MR_E_FORMAT names the file, the field and the expected value. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_PLAN_FILE_H
#define MR_COORDINATOR_SESSION_PLAN_FILE_H

#include <jansson.h>

#include "coordinator/planning/cluster_facts.h"
#include "coordinator/planning/plan.h"
#include "engine/base/str.h"

enum { PLAN_FILE_VERSION = 3, PLAN_FILE_MAX_BYTES = 256 << 20 };

typedef struct plan_file_host {
    char name[64];
} plan_file_host;

typedef struct plan_file {
    uint64_t model_digest;
    int32_t n_layers;
    bool has_plan, has_facts;
    mr_plan plan;           /* without weight_bytes */
    plan_file_host *hosts;  /* [n_stages]: hosts of the stages' ranks when the plan was made; empty: not in the file */
    mr_cluster_facts facts; /* points into the arrays below */
    uint8_t *kind;
    mr_rank_facts *ranks;
    mr_link_facts *links;
    mr_way_facts *ways;
} plan_file;

/* Checks every field: the stages' layers follow each other and cover the model, no rank has two stages, numbers are
 * finite and in range. */
MR_MUST_USE mr_status plan_file_read(const char *path, plan_file *out, mr_err *err);
/* The same for the text of a file that has been read. */
MR_MUST_USE mr_status plan_file_parse(mr_str text, const char *path, plan_file *out, mr_err *err);
void plan_file_deinit(plan_file *f);

/* MR_E_FORMAT: the file is not for this model. */
MR_MUST_USE mr_status plan_file_check_model(const plan_file *f, const char *path, uint64_t digest, int32_t n_layers,
                                            mr_err *err);
/* MR_E_FORMAT: a device would hold experts or neurons that the model does not have. */
MR_MUST_USE mr_status plan_file_check_devices(const plan_file *f, const char *path, const mr_model_info *info,
                                              mr_err *err);
/* MR_E_INVALID: the plan names a rank beyond n_ranks. Hosts are not compared. */
MR_MUST_USE mr_status plan_file_check_ranks(const plan_file *f, const char *path, int32_t n_ranks, mr_err *err);

/* facts may be NULL, or else cover at least the ranks of the plan. */
MR_MUST_USE mr_status mr_plan_file_write(const char *path, const char *model_name, uint64_t digest, int32_t n_layers,
                                         const mr_plan *plan, const mr_cluster_facts *facts, mr_err *err);

#endif
