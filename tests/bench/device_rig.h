/* tests/bench/device_rig.h - runs nodes on a backend, for the benchmarks of devices: tensors in buffers of their own,
 * programs, and times of the backend's clock.
 * Owns:    a rig owns its backend and its tensors. Threads: caller serialises.
 * Errors:  all functions end the process with a message. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_BENCH_DEVICE_RIG_H
#define MR_TESTS_BENCH_DEVICE_RIG_H

#include "backends/backend.h"

enum { RIG_TENSORS = 64, RIG_NODES = 1024 };

typedef struct rig {
    mr_backend *be;
    mr_tensor tensors[RIG_TENSORS];
    int32_t n_tensors;
    mr_node nodes[RIG_NODES];
    int32_t n_nodes;
} rig;

/* backend: a name of backends/registry.h. */
void rig_open(rig *r, const char *backend, int32_t n_threads);
void rig_close(rig *r);
/* Forgets tensors and nodes. */
void rig_clear(rig *r);

/* Ids of tensors. */
int32_t rig_tensor(rig *r, mr_type type, int32_t columns, int32_t rows, mr_storage storage);
/* [columns, rows] f32, random in -1 .. 1, by stream. */
int32_t rig_floats(rig *r, int32_t columns, int32_t rows, uint32_t stream);
/* [n, 1] f32 of the model, random. */
int32_t rig_vector(rig *r, int32_t n, uint32_t stream);
/* [columns, rows] i32: an input where columns is 1, else state. */
int32_t rig_ints(rig *r, int32_t columns, int32_t rows, const int32_t *data);
/* A matrix in the layout of the backend. file: rows as in a file. MR_NO_TENSOR: the backend cannot multiply it. */
int32_t rig_matrix(rig *r, mr_type type, int32_t k, int32_t n, const uint8_t *file);
/* data: mr_tensor.bytes. */
void rig_set(rig *r, int32_t tensor, const void *data);
void rig_get(rig *r, int32_t tensor, void *data);

/* How many of the first rows of a tensor, f32, BF16 or A8, differ in their bits; NaNs are equal. Both rigs have the
 * same tensors. */
int32_t rig_count_different(rig *a, rig *b, int32_t tensor, int32_t n_rows);

/* Adds a node without inputs, which runs after the earlier ones. */
mr_node *rig_node(rig *r, mr_op op);
/* Runs all nodes once, and forgets them. False: the backend does not support them. */
bool rig_run(rig *r, int32_t n_rows);
/* Runs them as often as takes so long, but at least three times, and forgets them. Returns the nanoseconds of a run;
 * 0: the backend does not support the nodes. */
double rig_time(rig *r, int32_t n_rows, double seconds);

#endif
