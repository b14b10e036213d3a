/* tests/unit/engine/graph/test_graph_rig.h - a graph over up to two test devices and the CPU, and rows for it.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_UNIT_ENGINE_GRAPH_TEST_GRAPH_RIG_H
#define MR_TESTS_UNIT_ENGINE_GRAPH_TEST_GRAPH_RIG_H

#include "tests/support/test_device.h"
#include "tests/unit/engine/graph/test_graph_support.h"

#define BIT(op) (1u << (op))

enum { ROWS = 4 };

typedef struct rig {
    mr_backends backends;
    mr_buffer *work[MR_MAX_BACKENDS], *identity[MR_MAX_BACKENDS];
    mr_graph *g;
    mr_graph_stats stats;
} rig;

void rig_add_device(rig *r, const test_device_options *options);
/* Devices with these ops (0: none), then the CPU, and an empty graph for ROWS rows. */
rig rig_make(uint32_t a_ops, uint32_t b_ops);
void rig_finish(rig *r);
void rig_place(rig *r);
void rig_destroy(rig *r);

/* x times the identity, on one of the backends: the same values. Once for each backend. */
int32_t carry(rig *r, int32_t home, int32_t x);
/* Writes rows of an input that hold value + i, i counting their elements. */
void set_some(rig *r, int32_t id, float value, int32_t n_rows);
void set_all(rig *r, int32_t id, float value);
/* The rows hold value + factor * i. */
void expect_some(rig *r, int32_t id, float value, float factor, int32_t n_rows);
void expect_all(rig *r, int32_t id, float value, float factor);

#endif
