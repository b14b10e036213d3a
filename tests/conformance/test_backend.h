/* tests/conformance/test_backend.h - the suite that every implementation of backends/backend.h has to pass: each op,
 * type and class of shapes gives what the scalar CPU backend gives.
 * A case builds a graph with the helpers below; it runs with the same random numbers on the reference and on the
 * backend.
 * Threads: one. Errors: fail the test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CONFORMANCE_TEST_BACKEND_H
#define MR_TESTS_CONFORMANCE_TEST_BACKEND_H

#include "engine/graph/graph.h"
#include "tests/kernels/test_matmul_reference.h"

/* How a backend comes to be, and how close it has to be. */
typedef struct backend_kind {
    const char *name;
    /* *out NULL: this machine has none. */
    mr_status (*create)(mr_backend **out, mr_err *err);
    bool runs_all;   /* no case may be refused; else those that it does not support are left out */
    double max_nmse; /* of a case's result against the reference; 0: the same bits */
    /* The same where the reference rounds activations and this backend takes floats; 0: max_nmse. */
    double max_nmse_rounded;
    /* Bit t set: no case of mr_type t may be refused, but for matrices in FILE storage. */
    uint64_t types;
} backend_kind;

enum { SCENE_MAX_TENSORS = 16 };

/* A graph on one backend, its tensors and what its inputs hold. */
typedef struct scene {
    mr_backend *be;
    mr_graph *g;
    rng r;
    mr_buffer *buffers[SCENE_MAX_TENSORS]; /* of tensors that live outside the graph, and the work buffer */
    int n_buffers;
    struct {
        int32_t id, columns;
        mr_type type;
        mr_row_count rows;
        void *data; /* [max rows][columns] */
    } inputs[SCENE_MAX_TENSORS];
    int n_inputs;
    int32_t max_rows[MR_ROWS_KINDS];
} scene;

/* Inputs: random floats, or integers that the caller gives, as many as the kind has rows at most. */
int32_t scene_floats(scene *s, int32_t columns, mr_row_count rows);
int32_t scene_ints(scene *s, const int32_t *data, mr_row_count rows);
/* Gives an input other values, for a second run. */
void scene_refill(scene *s, int32_t input, const int32_t *data);
/* A random matrix [k, n] in the backend's layout (WEIGHT) or the file's (FILE); a random vector, or several of them; a
 * constant; zeroed state. */
int32_t scene_matrix(scene *s, mr_type type, int32_t k, int32_t n, mr_storage storage);
int32_t scene_vector(scene *s, int32_t n);
int32_t scene_vectors(scene *s, int32_t n, int32_t count);
int32_t scene_angles(scene *s, int32_t half);
int32_t scene_state(scene *s, const mr_tensor *t, const int32_t *data);
/* What a case is made of; each reads what it needs. */
typedef struct shape {
    mr_type type;       /* of a matrix, a table, keys */
    mr_storage storage; /* of a matrix */
    int32_t k, n, rows;
    bool bias, add;
    int32_t heads, kv_heads, head_dim, rope_first, n_rot;
    int32_t v_dim; /* attention: of values; 0: head_dim */
    mr_rope_pairs pairs;
    int32_t length; /* attention: positions before those of the last run */
    int32_t window; /* 0: none */
    float soft_cap; /* 0: none */
    mr_temperature temperature;
    bool sinks;
    int32_t experts, used;
    mr_routing routing;
    mr_glu glu;
} shape;

/* p->experts random matrices of p->n rows, one behind the other, each loaded by itself. */
int32_t scene_matrices(scene *s, const shape *p);

/* Builds the graph; returns the tensor to compare. */
typedef int32_t build_fn(scene *s, const shape *p);
/* Called before the second run, where a case has one, to change its inputs. */
typedef void change_fn(scene *s, const shape *p);

/* Runs the case on the reference and on all kinds, and compares. */
void expect_same(const char *what, build_fn *build, change_fn *change, const shape *p);

/* The backend of kind i, or NULL; made once for all cases. */
mr_backend *backend_at(int i);
const backend_kind *backend_kind_at(int i); /* NULL at the end of the list */

/* Cases, in files of their own. */
void test_matmul(void **state);
void test_matmul_shapes(void **state);
void test_rows(void **state);
void test_top(void **state);
void test_experts(void **state);
void test_heads(void **state);
void test_sparse(void **state);
void test_rope(void **state);
void test_embed(void **state);
void test_attention(void **state);
void test_state(void **state);
void test_queue(void **state);

#endif
