/* tests/cuda_emulation/test_cuda_experts.c - the choice of experts, the lists of their slots and the sums of what they
 * computed have the bits of the CPU backend. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "backends/cuda/kernels/cuda_experts.h"
#include "tests/cuda_emulation/node_case.h"
#include "tests/support/test.h"

static rng numbers = {.state = 3};

typedef struct expert_shape {
    int32_t n, n_used;
} expert_shape;

static void build_route(node_case *c, expert_shape s, fill how, bool has_bias, mr_routing routing) {
    node_case_begin(c, MR_OP_ROUTE, (node_rows){.bucket = 5, .real = 4, .used = s.n_used});
    c->node.in[0] = node_case_floats(c, &numbers, s.n, 0, how);
    if (has_bias)
        c->node.in[1] = node_case_floats(c, &numbers, s.n, 1, rng_next(&numbers) % 2 ? PLAIN : how);
    c->node.out = node_case_rows(c, MR_TYPE_I32, 2 * s.n_used);
    c->node.params.experts.n = s.n;
    c->node.params.experts.n_used = s.n_used;
    c->node.params.experts.routing = routing;
    for (int32_t e = 0; e < s.n; e++) /* rows of few numbers have many ties */
        ((float *)node_case_row(c, c->node.in[0], 1))[e] = (float)rng_below(&numbers, 3) - 1.0f;
}

static void check_route(expert_shape s, fill how, bool has_bias, mr_routing routing) {
    node_case c;
    build_route(&c, s, how, has_bias, routing);
    node_case_check(&c);
}

static void test_route(void **state) {
    (void)state;
    static const expert_shape SHAPES[] = {{1, 1},  {2, 2},   {8, 2},     {31, 31}, {32, 4},
                                          {33, 8}, {128, 8}, {1024, 40}, {4096, 3}};
    int i = 0;
    for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++)
        for (fill how = PLAIN; how < FILLS; how++)
            for (int score = 0; score < MR_ROUTE_SCORES; score++, i++)
                check_route(SHAPES[s], how, i % 2,
                            (mr_routing){.score = (mr_route_score)score,
                                         .is_normalised = i / 2 % 2,
                                         .scale = i % 3 ? 2.5f : 0.0f,
                                         .n_groups = i % 2});
}

static void test_route_by_groups(void **state) {
    (void)state;
    static const struct {
        expert_shape s;
        int32_t n_groups, n_groups_used;
    } SHAPES[] = {{{8, 2}, 2, 1},   {{8, 4}, 4, 2},     {{64, 6}, 8, 3},
                  {{256, 8}, 8, 4}, {{160, 6}, 40, 39}, {{6, 2}, 3, 1}};
    int i = 0;
    for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++)
        for (fill how = PLAIN; how < FILLS; how++)
            for (int score = 0; score < MR_ROUTE_SCORES; score++, i++)
                check_route(SHAPES[s].s, how, i % 2,
                            (mr_routing){.score = (mr_route_score)score,
                                         .is_normalised = i % 3 == 0,
                                         .scale = 0.5f,
                                         .n_groups = SHAPES[s].n_groups,
                                         .n_groups_used = SHAPES[s].n_groups_used,
                                         .n_group_best = 1 + i / 3 % 2});
}

/* A row that has only NaNs, or only infinities, still takes as many experts, and no expert twice. */
static void test_route_of_no_numbers(void **state) {
    (void)state;
    static const float VALUES[] = {NAN, -INFINITY, INFINITY, -0.0f};
    for (int i = 0; i < 4 * MR_ROUTE_SCORES; i++) {
        node_case c;
        build_route(&c, (expert_shape){40, 6}, PLAIN, false, (mr_routing){.score = (mr_route_score)(i / 4)});
        for (int32_t e = 0; e < 40; e++)
            ((float *)node_case_row(&c, c.node.in[0], 0))[e] = VALUES[i % 4];
        node_case_check(&c);
    }
}

/* More rows than the second dimension of a grid has blocks. */
static void test_many_rows(void **state) {
    (void)state;
    node_case c;
    node_case_begin(&c, MR_OP_ROUTE, (node_rows){.bucket = 65600, .real = 65590, .used = 1});
    c.node.in[0] = node_case_floats(&c, &numbers, 2, 0, PLAIN);
    c.node.out = node_case_rows(&c, MR_TYPE_I32, 2);
    c.node.params.experts.n = 2;
    c.node.params.experts.n_used = 1;
    node_case_check(&c);
}

/* Fills the experts of routes with numbers below limit. */
static int32_t add_routes(node_case *c, int32_t n_used, int32_t limit, fill weights) {
    int32_t id = node_case_rows(c, MR_TYPE_I32, 2 * n_used);
    for (int32_t row = 0; row < c->rows.bucket; row++) {
        int32_t *experts = node_case_row(c, id, row);
        for (int32_t u = 0; u < n_used; u++)
            experts[u] = rng_below(&numbers, limit);
        fill_floats(&numbers, (float *)(void *)(experts + n_used), n_used, weights);
    }
    return id;
}

/* Places 0 to n - 1 for so many of the experts below limit, the others have none. */
static int32_t add_places(node_case *c, int32_t limit, int32_t n) {
    int32_t id = node_case_tensor(c, MR_TYPE_I32, limit, 1, MR_STORAGE_STATE, MR_ROWS_FIXED);
    int32_t *places = node_case_row(c, id, 0);
    for (int32_t e = 0; e < limit; e++)
        places[e] = -1;
    for (int32_t place = 0; place < n && place < limit; place++) {
        int32_t e = rng_below(&numbers, limit);
        while (places[e] >= 0)
            e = (e + 1) % limit;
        places[e] = place;
    }
    return id;
}

/* limit: of the numbers of experts. has_places: s.n of them have a list; else all, s.n is not below limit. */
static void check_expert_rows(expert_shape s, int32_t n_rows, int32_t limit, bool has_places) {
    node_case c;
    node_case_begin(&c, MR_OP_EXPERT_ROWS, (node_rows){.bucket = n_rows + 2, .real = n_rows, .used = s.n_used});
    c.node.in[0] = add_routes(&c, s.n_used, limit, PLAIN);
    if (has_places)
        c.node.in[1] = add_places(&c, limit, s.n);
    c.node.out =
        node_case_tensor(&c, MR_TYPE_I32, s.n + 1 + 2 * s.n_used * c.rows.bucket, 1, MR_STORAGE_WORK, MR_ROWS_FIXED);
    c.node.params.experts.n = s.n;
    c.node.params.experts.n_used = s.n_used;
    node_case_check(&c);
}

static void test_expert_rows(void **state) {
    (void)state;
    static const expert_shape SHAPES[] = {{1, 1}, {4, 2}, {7, 7}, {8, 3}, {9, 8}, {60, 4}};
    static const int32_t ROWS[] = {0, 1, 2, 8, 31, 33};
    for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++)
        for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++)
            for (int32_t limit = 1; limit <= SHAPES[s].n; limit += SHAPES[s].n - 1 + (SHAPES[s].n == 1))
                check_expert_rows(SHAPES[s], ROWS[r], limit, false); /* all slots of one expert; of any */
    for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++)
        for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++)
            for (int32_t limit = 1; limit < 3 * SHAPES[s].n; limit += SHAPES[s].n)
                check_expert_rows(SHAPES[s], ROWS[r], limit, true); /* fewer experts than places; more */
}

/* What experts have computed: a row for each slot. */
static int32_t add_slots(node_case *c, int32_t n, int32_t n_used, fill how) {
    int32_t id = node_case_tensor(c, MR_TYPE_F32, n, 4 * n_used, MR_STORAGE_WORK, MR_ROWS_SLOTS);
    for (int32_t row = 0; row < 4 * n_used; row++)
        fill_floats(&numbers, node_case_row(c, id, row), n, how);
    return id;
}

static void check_expert_sum(int32_t n, int32_t n_used, fill how, bool in_place, unsigned more) {
    enum { SHARED = 1, OTHERS = 2 };
    node_case c;
    node_case_begin(&c, MR_OP_EXPERT_SUM, (node_rows){.bucket = 4, .real = 3, .used = n_used});
    c.node.in[0] = add_slots(&c, n, n_used, how);
    c.node.in[1] = add_routes(&c, n_used, 5, how % 2 ? how : PLAIN);
    c.node.in[2] = node_case_floats(&c, &numbers, n, 0, how);
    if (more & SHARED)
        c.node.in[3] = node_case_floats(&c, &numbers, n, 0, PLAIN);
    if (more & OTHERS) {
        c.node.in[4] = add_slots(&c, n, n_used, how);
        c.node.in[5] = add_places(&c, 5, rng_below(&numbers, 6));
    }
    c.node.out = in_place ? c.node.in[2] : node_case_rows(&c, MR_TYPE_F32, n);
    c.node.params.experts.n = 5;
    c.node.params.experts.n_used = n_used;
    node_case_check(&c);
}

static void test_expert_sum(void **state) {
    (void)state;
    static const int32_t SIZES[] = {1, 255, 256, 257, 700}, USED[] = {1, 2, 8};
    int i = 0;
    for (int s = 0; s < 5; s++)
        for (int u = 0; u < 3; u++)
            for (fill how = PLAIN; how < FILLS; how++, i++)
                check_expert_sum(SIZES[s], USED[u], how, i % 2, (unsigned)(i / 2 % 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route),
        cmocka_unit_test(test_route_by_groups),
        cmocka_unit_test(test_route_of_no_numbers),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_expert_rows),
        cmocka_unit_test(test_expert_sum),
    };
    return cmocka_run_group_tests(tests, NULL, node_case_teardown);
}
