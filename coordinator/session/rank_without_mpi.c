/* coordinator/session/rank_without_mpi.c - stands in for rank.c in a build without MPI: a job of several ranks is
 * refused with one message. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/rank.h"

#include <stdio.h>

void mr_rank_prepare(void) {}

mr_status rank_start(const mr_rank_config *config, rank_process **out, mr_err *err) {
    *out = NULL;
    return mr_err_set(
        err, MR_E_UNSUPPORTED,
        "%d ranks were started, but this millrace was built without MPI; hint: install libopenmpi-dev and "
        "build again, or run one process with --stages",
        (int)config->place.n_ranks);
}

mr_channel *rank_channel(rank_process *p) {
    (void)p;
    return NULL;
}

int32_t rank_threads(const rank_process *p) {
    (void)p;
    return 0;
}

void rank_end(rank_process *p, bool well) {
    (void)p;
    (void)well;
}

/* No message here: rank 0 reports the error. */
int mr_rank_follow(const mr_rank_config *config) {
    (void)config;
    return 0;
}

void rank_dismiss(void) {}

void rank_set_idle(rank_process *p, int32_t rank, bool is_idle) {
    (void)p;
    (void)rank;
    (void)is_idle;
}

void rank_allow_losses(rank_process *p) {
    (void)p;
}

bool rank_is_lost(rank_process *p, int32_t rank) {
    (void)p;
    (void)rank;
    return false;
}

int64_t rank_take_silence_ns(rank_process *p) {
    (void)p;
    return 0;
}

bool mr_rank_loss_reported(void) {
    return false;
}

bool rank_any_lost(void) {
    return false;
}

void mr_rank_mpi_library(char *out, size_t bytes) {
    snprintf(out, bytes, "none");
}

bool mr_rank_left_behind(void) {
    return false;
}
