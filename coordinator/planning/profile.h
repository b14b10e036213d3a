/* coordinator/planning/profile.h - how often a text has used each expert of a model, or each neuron of its sparse
 * feed-forward parts, by layer. Placements of experts and neurons follow from it.
 * When:    `millrace profile` collects a profile from the reports of the stages and writes it into the cache; later
 *          commands read it there (coordinator/session/profile_file.h).
 * Owns:    a profile owns its layers. {0} is an empty profile.
 * Threads: caller serialises.
 * Errors:  texts name the layer. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_PROFILE_H
#define MR_COORDINATOR_PLANNING_PROFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/gguf/model_info.h"

typedef struct mr_profile_layer {
    int32_t layer;    /* of the model */
    int32_t n;        /* experts or neurons */
    int32_t n_known;  /* counts that are filled in; n in a complete profile */
    uint64_t *counts; /* [n]: rows that have used the expert or neuron; at most n_rows of the profile */
} mr_profile_layer;

typedef struct mr_profile {
    bool is_neurons;          /* of sparse feed-forward parts; false: experts */
    uint64_t n_rows;          /* that each layer has computed */
    mr_profile_layer *layers; /* [n_layers], ascending by layer; layers with neither are left out */
    int32_t n_layers;
} mr_profile;

void mr_profile_deinit(mr_profile *p);

/* Counts of consecutive experts or neurons of a layer. */
typedef struct mr_profile_part {
    int32_t layer;
    bool is_neurons;
    int32_t n;       /* of the layer */
    uint64_t n_rows; /* that the layer has computed */
    int32_t first, n_counts;
    const uint64_t *counts; /* [n_counts], from expert or neuron first on */
} mr_profile_part;
/* Adds a part. The parts of a layer come in order; the order of layers is free. MR_E_PROTOCOL: the part does not follow
 * the one before, or other layers have other rows or the other kind. */
MR_MUST_USE mr_status mr_profile_add(mr_profile *p, const mr_profile_part *part, mr_err *err);
/* MR_E_FORMAT: the profile does not have the layers of this model, or not all counts of a layer. */
MR_MUST_USE mr_status mr_profile_check_model(const mr_profile *p, const mr_model_info *info, mr_err *err);

/* NULL: the profile does not have this layer of the model. */
const mr_profile_layer *mr_profile_find_layer(const mr_profile *p, int32_t layer);
/* Sum of all counts of a layer. */
uint64_t mr_profile_sum(const mr_profile_layer *l);
/* Writes the numbers of all experts or neurons of a layer to out [l->n], by falling count; equal counts by number. */
MR_MUST_USE mr_status mr_profile_order(const mr_profile_layer *l, int32_t *out, mr_err *err);
/* For experts: which part of the uses of a layer falls on its n most used experts, as a mean over the layers. out:
 * [experts + 1], for n from 0 on. mr_profile_check_model has accepted the profile. */
MR_MUST_USE mr_status mr_profile_shares(const mr_profile *p, double *out, mr_err *err);
/* How many experts or neurons are `percent` of all, rounded up. */
int32_t mr_profile_n_hottest(const mr_profile_layer *l, int32_t percent);

#endif
