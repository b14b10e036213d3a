/* tests/fuzz/fuzz_profile.c - fuzzes files with a profile. The counts of an accepted file are in range and give an
 * order. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/session/profile_file.h"
#include "engine/base/mem.h"
#include "proto/limits.h"
#include "tests/fuzz/fuzz.h"

static void use_layer(const mr_profile *p, const mr_profile_layer *l) {
    mr_err err;
    MR_ASSERT(l->n >= 1 && l->n <= MR_MAX_USED && l->n_known == l->n &&
              mr_profile_sum(l) <= p->n_rows * (uint64_t)l->n);
    MR_ASSERT(mr_profile_find_layer(p, l->layer) == l);
    int32_t *order = mr_alloc_array((size_t)l->n, sizeof *order);
    if (order && mr_profile_order(l, order, &err) == MR_OK)
        for (int32_t i = 1; i < l->n; i++)
            MR_ASSERT(l->counts[order[i - 1]] >= l->counts[order[i]]);
    mr_free(order);
}

int mr_fuzz_profile(const uint8_t *data, size_t size) {
    mr_profile p = {0};
    mr_profile_model model;
    mr_err err = {0};
    mr_status status = mr_profile_parse((const char *)data, size, "input", &model, &p, &err);
    MR_ASSERT(status == MR_OK || err.text[0]);
    for (int32_t i = 0; status == MR_OK && i < p.n_layers; i++)
        use_layer(&p, &p.layers[i]);
    mr_profile_deinit(&p);
    return 0;
}
