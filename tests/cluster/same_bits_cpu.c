/* tests/cluster/same_bits_cpu.c - the places of layers in a test without devices. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/same_bits_places.h"

const int PLACES_N = 0;

const char *places_name(int place) {
    (void)place;
    return "on the CPU";
}

mr_devices_config places_devices(int place) {
    (void)place;
    return (mr_devices_config){0};
}

void places_apply(int place, int32_t n_partitions, mr_plan *plan) {
    (void)place;
    (void)n_partitions;
    (void)plan;
}

void places_begin(void) {}

void places_check(int place, const mr_plan *plan, int64_t n_steps, const char *what) {
    (void)place;
    (void)plan;
    (void)n_steps;
    (void)what;
}
