/* coordinator/session/plan_file.h - plans, and the facts that they were chosen by, as a file that people may read
 * and edit.
 * Format:  one JSON object: "millrace_plan" (its version), "model" (name, layers, digest of the file), "stages"
 *          (rank, host, first_layer, last_layer) and "facts" (row_bytes, kinds of the layers, ranks with their
 *          curves, links as a table from, to). Either of the last two may be missing. Version 2 is written; version
 *          1, in which last_layer is one past the last, is read.
 * Owns:    a plan_file its arrays. {0} may be deinitialised.
 * Threads: caller serialises.
 * Errors:  MR_E_IO; MR_E_FORMAT names the file, the field and what it should be. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_PLAN_FILE_H
#define MR_COORDINATOR_SESSION_PLAN_FILE_H

#include <jansson.h>

#include "coordinator/planning/cluster_facts.h"
#include "coordinator/planning/plan.h"

enum { PLAN_FILE_VERSION = 2 };

typedef struct plan_file_host {
    char name[64];
} plan_file_host;

typedef struct plan_file {
    uint64_t model_digest;
    int32_t n_layers;
    bool has_plan, has_facts;
    mr_plan plan;           /* without weight_bytes */
    plan_file_host *hosts;  /* [n_stages of the plan]: of its ranks then; empty: the file does not say */
    mr_cluster_facts facts; /* of the arrays below */
    uint8_t *kind;
    mr_rank_facts *ranks;
    mr_link_facts *links;
} plan_file;

/* Every field is checked: layers follow each other and are those of the model, no rank stands twice, figures are finite
 * and in their ranges. */
MR_MUST_USE mr_status plan_file_read(const char *path, plan_file *out, mr_err *err);
void plan_file_deinit(plan_file *f);

/* The file is of this model. */
MR_MUST_USE mr_status plan_file_check_model(const plan_file *f, const char *path, uint64_t digest, int32_t n_layers,
                                            mr_err *err);
/* Its plan fits n_ranks ranks, whatever their hosts. */
MR_MUST_USE mr_status plan_file_check_ranks(const plan_file *f, const char *path, int32_t n_ranks, mr_err *err);

/* facts may be NULL; else they are of the plan's ranks, at least. */
MR_MUST_USE mr_status mr_plan_file_write(const char *path, const char *model_name, uint64_t digest, int32_t n_layers,
                                         const mr_plan *plan, const mr_cluster_facts *facts, mr_err *err);

#endif
