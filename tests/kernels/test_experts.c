/* tests/kernels/test_experts.c - experts by rule X, to the bit, against the rule said plainly: kinds of routing, ties,
 * rows that no expert or every expert has, matrices that end inside a panel, both layouts, threads, instruction
 * sets. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/kernels.h"
#include "engine/base/fmath.h"
#include "engine/base/thread.h"
#include "engine/graph/graph.h"
#include "test_matmul_reference.h"
#include "tests/support/isa_env.h"
#include "tests/support/test.h"

enum {
    WIDTH = 24,
    FF = 20,
    EXPERTS = 8,
    USED = 3,
    ROWS = 19,
    TIED_A = 2,
    TIED_B = 5,
    ZERO_ROW = 4,
    LARGE_ROW = 8,
    NAN_ROW = 11,
    NAN_CHOICE = 6
};

/* How experts are chosen. */
typedef struct variant {
    const char *name;
    mr_routing routing;
    bool has_biases; /* and a shared expert */
    mr_glu glu;
} variant;

static const variant VARIANTS[] = {
    {.name = "softmax of the chosen"},
    {.name = "the same, biased and scaled", .routing = {.scale = 0.7f}, .has_biases = true},
    {.name = "softmax", .routing = {.score = MR_ROUTE_SOFTMAX}},
    {.name = "softmax in groups", .routing = {MR_ROUTE_SOFTMAX, false, 16.0f, 4, 2, 1}},
    {.name = "softmax, biased", .routing = {MR_ROUTE_SOFTMAX, true, 0.0f, 1, 0, 0}, .has_biases = true},
    {.name = "sigmoid", .routing = {.score = MR_ROUTE_SIGMOID}},
    {.name = "sigmoid, biased", .routing = {MR_ROUTE_SIGMOID, true, 1.5f, 0, 0, 0}, .has_biases = true},
    {.name = "sigmoid in groups", .routing = {MR_ROUTE_SIGMOID, true, 2.5f, 4, 3, 2}, .has_biases = true},
    {.name = "as gpt-oss", .has_biases = true, .glu = {MR_GLU_GPT_OSS, 0.5f}},
    {.name = "sigmoid in two groups", .routing = {MR_ROUTE_SIGMOID, true, 0.0f, 2, 1, 2}},
};

typedef struct problem {
    const variant *v;
    float choice[EXPERTS], router_bias[EXPERTS], gate_bias[EXPERTS][FF], up_bias[EXPERTS][FF];
    float down_bias[EXPERTS][WIDTH];
    float router[EXPERTS][WIDTH], gate[EXPERTS][FF][WIDTH], up[EXPERTS][FF][WIDTH], down[EXPERTS][WIDTH][FF];
    float x[ROWS][WIDTH], add[ROWS][WIDTH], shared[ROWS][WIDTH], want[ROWS][WIDTH];
    bool is_tied; /* some row uses one of two experts that it likes alike */
} problem;

static void fill(rng *r, void *out, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ((float *)out)[i] = rng_unit(r);
}

static float dot(const float *w, const float *x, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum = fmaf(w[i], x[i], sum);
    return sum;
}

/* The unit of one element: the kinds that VARIANTS has. */
static float unit(mr_glu glu, float g, float u) {
    if (glu.kind == MR_GLU_SILU)
        return mr_siluf(g) * u;
    g = g > glu.limit ? glu.limit : g;
    u = u > glu.limit ? glu.limit : u < -glu.limit ? -glu.limit : u;
    return g / (1.0f + mr_expf(-(g * 1.702f))) * (u + 1.0f);
}

/* What expert e makes of x. */
static void run_expert(const problem *p, int e, const float x[WIDTH], float y[WIDTH]) {
    float h[FF];
    for (int i = 0; i < FF; i++) {
        float gate = dot(p->gate[e][i], x, WIDTH), up = dot(p->up[e][i], x, WIDTH);
        h[i] = p->v->has_biases ? unit(p->v->glu, gate + p->gate_bias[e][i], up + p->up_bias[e][i])
                                : unit(p->v->glu, gate, up);
    }
    for (int i = 0; i < WIDTH; i++) {
        y[i] = dot(p->down[e][i], h, FF);
        y[i] = p->v->has_biases ? y[i] + p->down_bias[e][i] : y[i];
    }
}

static float lane_sum(const float x[EXPERTS]) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); /* rule S1 with eight absent lanes */
}

static void score_row(const problem *p, int row, float score[EXPERTS]) {
    mr_route_score kind = p->v->routing.score;
    float max = -INFINITY;
    for (int i = 0; i < EXPERTS; i++) {
        float l = dot(p->router[i], p->x[row], WIDTH);
        l = p->v->has_biases ? l + p->router_bias[i] : l;
        score[i] = kind == MR_ROUTE_SIGMOID ? 1.0f / (1.0f + (isnan(l) ? l : mr_expf(-l))) : l;
        max = l > max ? l : max;
    }
    if (kind != MR_ROUTE_SOFTMAX)
        return;
    for (int i = 0; i < EXPERTS; i++)
        score[i] = isnan(score[i] - max) ? NAN : mr_expf(score[i] - max);
    float sum = lane_sum(score);
    for (int i = 0; i < EXPERTS; i++)
        score[i] = score[i] / sum;
}

/* The first of those that are not taken. */
static int first_of(const float *score, const bool *is_taken, int n) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!is_taken[i] && (best < 0 || (isnan(score[i]) && !isnan(score[best])) || score[i] > score[best]))
            best = i;
    return best;
}

/* Leaves the choice of all but the best groups at -inf. */
static void keep_groups(const mr_routing *r, float choice[EXPERTS]) {
    float group[EXPERTS];
    bool stays[EXPERTS] = {false};
    int size = EXPERTS / r->n_groups;
    for (int g = 0; g < r->n_groups; g++) {
        bool is_taken[EXPERTS] = {false};
        int first = first_of(choice + g * size, is_taken, size);
        is_taken[first] = true;
        int second = first_of(choice + g * size, is_taken, size);
        group[g] = choice[g * size + first];
        if (r->n_group_best == 2)
            group[g] = group[g] + choice[g * size + second];
    }
    for (int i = 0; i < r->n_groups_used; i++)
        stays[first_of(group, stays, r->n_groups)] = true;
    for (int i = 0; i < EXPERTS; i++)
        if (!stays[i / size])
            choice[i] = -INFINITY;
}

/* The experts of a row, and their weights. */
static void route_row(const problem *p, int row, int experts[USED], float w[USED]) {
    const mr_routing *r = &p->v->routing;
    float score[EXPERTS], choice[EXPERTS], sum = 0.0f, max = -INFINITY;
    bool is_taken[EXPERTS] = {false};
    score_row(p, row, score);
    for (int i = 0; i < EXPERTS; i++)
        choice[i] = p->v->has_biases ? score[i] + p->choice[i] : score[i];
    if (r->n_groups > 1)
        keep_groups(r, choice);
    for (int u = 0; u < USED; u++) {
        experts[u] = first_of(choice, is_taken, EXPERTS);
        is_taken[experts[u]] = true;
        w[u] = score[experts[u]];
        max = isnan(w[0]) ? w[0] : w[u] > max ? w[u] : max;
    }
    for (int u = 0; u < USED; u++) {
        w[u] = r->score != MR_ROUTE_LOGIT ? w[u] : isnan(w[u] - max) ? NAN : mr_expf(w[u] - max);
        sum = sum + w[u];
    }
    for (int u = 0; u < USED; u++) {
        w[u] = r->score == MR_ROUTE_LOGIT ? w[u] / sum : r->is_normalised ? w[u] / (sum + 1e-20f) : w[u];
        w[u] = r->scale != 0.0f ? w[u] * r->scale : w[u];
    }
}

static void want_row(problem *p, int row) {
    float w[USED], y[USED][WIDTH];
    int experts[USED];
    bool is_taken[EXPERTS] = {false};
    route_row(p, row, experts, w);
    for (int u = 0; u < USED; u++) {
        is_taken[experts[u]] = true;
        run_expert(p, experts[u], p->x[row], y[u]);
    }
    p->is_tied = p->is_tied || (row != ZERO_ROW && is_taken[TIED_A] && !is_taken[TIED_B]);
    for (int i = 0; i < WIDTH; i++) {
        float s = 0.0f;
        for (int u = 0; u < USED; u++)
            s = s + w[u] * y[u][i];
        p->want[row][i] = p->add[row][i] + s;
        if (p->v->has_biases)
            p->want[row][i] = p->want[row][i] + p->shared[row][i];
    }
}

static problem *problem_create(const variant *v) {
    problem *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->v = v;
    rng r = {31};
    fill(&r, p->router, sizeof p->router);
    fill(&r, p->gate, sizeof p->gate);
    fill(&r, p->up, sizeof p->up);
    fill(&r, p->down, sizeof p->down);
    fill(&r, p->x, sizeof p->x);
    fill(&r, p->add, sizeof p->add);
    fill(&r, p->shared, sizeof p->shared);
    fill(&r, p->choice, sizeof p->choice);
    fill(&r, p->router_bias, sizeof p->router_bias);
    fill(&r, p->gate_bias, sizeof p->gate_bias);
    fill(&r, p->up_bias, sizeof p->up_bias);
    fill(&r, p->down_bias, sizeof p->down_bias);
    p->choice[TIED_B] = p->choice[TIED_A];
    p->router_bias[TIED_B] = p->router_bias[TIED_A];
    p->choice[NAN_CHOICE] = v->routing.scale == 1.5f ? NAN : p->choice[NAN_CHOICE];
    memcpy(p->router[TIED_B], p->router[TIED_A], sizeof p->router[0]);
    memset(p->x[ZERO_ROW], 0, sizeof p->x[0]); /* likes all experts alike */
    for (int row = 0; row < ROWS; row++)
        p->x[row][0] = row == LARGE_ROW ? 3e38f : row == NAN_ROW ? NAN : 0.0f;
    p->router[0][0] = 3e38f; /* an infinite logit */
    for (int row = 0; row < ROWS; row++)
        want_row(p, row);
    assert_true(p->is_tied && isnan(p->want[NAN_ROW][0]));
    return p;
}

/* --- The graph --------------------------------------------------------------------------------------------------- */

typedef struct setting {
    bool in_file;
    int n_threads;
    const char *isa;
} setting;

enum { N_WEIGHTS = 9 };

/* n matrices of rows rows, in a buffer of their own. */
static mr_buffer *load(mr_backend *be, const setting *s, mr_graph *g, const float *data, const int32_t shape[3],
                       int32_t *out_id) {
    mr_tensor t;
    mr_buffer *buffer = NULL;
    mr_fence fence;
    int32_t columns = shape[0], rows = shape[1], n = shape[2];
    mr_storage storage = s->in_file ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT;
    assert_true(mr_tensor_init(&t, "matrices", MR_TYPE_F32, columns, rows * n, storage, MR_ROWS_FIXED));
    t.home = be;
    if (s->in_file) {
        assert_int_equal(be->ops->buffer_wrap(be, data, t.bytes, &buffer, NULL), MR_OK);
        t.buffer = buffer;
    } else {
        assert_int_equal(be->ops->weight_bytes(be, t.type, columns, rows, &t.bytes, NULL), MR_OK);
        mr_tensor one = t;
        t.bytes *= (size_t)n;
        one.ne[1] = rows;
        assert_int_equal(be->ops->buffer_create(be, t.bytes, &buffer, NULL), MR_OK);
        one.buffer = t.buffer = buffer;
        for (int32_t i = 0; i < n; i++, one.offset += one.bytes)
            assert_int_equal(be->ops->weight_load(be, &one, (const uint8_t *)(data + i * rows * columns), &fence, NULL),
                             MR_OK);
    }
    *out_id = mr_graph_use(g, &t);
    return buffer;
}

/* n vectors in the layout of the file. */
static mr_buffer *load_vectors(mr_backend *be, mr_graph *g, const float *data, int32_t columns, int32_t n,
                               int32_t *out_id) {
    mr_tensor t;
    mr_buffer *buffer = NULL;
    assert_true(mr_tensor_init(&t, "vectors", MR_TYPE_F32, columns, n, MR_STORAGE_FILE, MR_ROWS_FIXED));
    t.home = be;
    assert_int_equal(be->ops->buffer_wrap(be, data, t.bytes, &buffer, NULL), MR_OK);
    t.buffer = buffer;
    *out_id = mr_graph_use(g, &t);
    return buffer;
}

static void compare(const problem *p, const float *got, int32_t n_rows, const setting *s) {
    for (int32_t row = 0; row < n_rows; row++)
        for (int i = 0; i < WIDTH; i++) {
            float a = got[row * WIDTH + i], b = p->want[row][i];
            if (memcmp(&a, &b, sizeof a) != 0 && !(isnan(a) && isnan(b)))
                fail_msg("%s: %d rows, %s, %d threads, in file %d: [%d][%d] is %a, not %a", p->v->name, n_rows, s->isa,
                         s->n_threads, s->in_file, row, i, (double)a, (double)b);
        }
}

static void check(const problem *p, const setting *s) {
    static const int32_t counts[] = {ROWS, 1, 2, ROWS - 1};
    mr_backend *be = NULL;
    mr_graph *g = NULL;
    mr_graph_stats stats;
    mr_err err = {0};
    mr_buffer *buffers[N_WEIGHTS], *work = NULL;
    float got[ROWS * WIDTH];
    char *saved = isa_env_set(s->isa);
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = s->n_threads}, &be, &err), &err);
    isa_env_restore(saved);
    expect_ok(mr_graph_create(ROWS, 1, &g, &err), &err);
    mr_expert_biases biases;
    mr_experts_desc desc = {.n = EXPERTS, .n_used = USED, .routing = p->v->routing, .glu = p->v->glu};
    desc.biases = p->v->has_biases ? &biases : NULL;
    buffers[0] = load(be, s, g, p->router[0], (const int32_t[]){WIDTH, EXPERTS, 1}, &desc.router);
    buffers[1] = load(be, s, g, p->gate[0][0], (const int32_t[]){WIDTH, FF, EXPERTS}, &desc.gate);
    buffers[2] = load(be, s, g, p->up[0][0], (const int32_t[]){WIDTH, FF, EXPERTS}, &desc.up);
    buffers[3] = load(be, s, g, p->down[0][0], (const int32_t[]){FF, WIDTH, EXPERTS}, &desc.down);
    buffers[4] = load_vectors(be, g, p->choice, EXPERTS, 1, &biases.choice);
    buffers[5] = load_vectors(be, g, p->router_bias, EXPERTS, 1, &biases.router);
    buffers[6] = load_vectors(be, g, p->gate_bias[0], FF, EXPERTS, &biases.gate);
    buffers[7] = load_vectors(be, g, p->up_bias[0], FF, EXPERTS, &biases.up);
    buffers[8] = load_vectors(be, g, p->down_bias[0], WIDTH, EXPERTS, &biases.down);
    int32_t x = mr_graph_input(g, "x", MR_TYPE_F32, WIDTH, MR_ROWS_STEP);
    int32_t add = mr_graph_input(g, "add", MR_TYPE_F32, WIDTH, MR_ROWS_STEP);
    int32_t shared = p->v->has_biases ? mr_graph_input(g, "shared", MR_TYPE_F32, WIDTH, MR_ROWS_STEP) : MR_NO_TENSOR;
    desc.shared = shared;
    int32_t y = mr_graph_experts(g, x, add, &desc);
    mr_graph_output(g, y);
    expect_ok(mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, &err), &err);
    expect_ok(be->ops->buffer_create(be, stats.work_bytes[0], &work, &err), &err);
    expect_ok(mr_graph_place(g, &work, &err), &err);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        mr_run run = {.n_rows = {[MR_ROWS_STEP] = counts[i]}};
        expect_ok(mr_graph_set_rows(g, x, p->x, sizeof p->x[0], counts[i], &err), &err);
        expect_ok(mr_graph_set_rows(g, add, p->add, sizeof p->add[0], counts[i], &err), &err);
        if (shared != MR_NO_TENSOR)
            expect_ok(mr_graph_set_rows(g, shared, p->shared, sizeof p->shared[0], counts[i], &err), &err);
        expect_ok(mr_graph_run(g, &run, &err), &err);
        expect_ok(mr_graph_get_rows(g, y, 0, counts[i], got, sizeof p->x[0], &err), &err);
        compare(p, got, counts[i], s);
    }
    mr_graph_destroy(g);
    be->ops->buffer_destroy(be, work);
    for (int i = 0; i < N_WEIGHTS; i++)
        be->ops->buffer_destroy(be, buffers[i]);
    mr_backend_destroy(be);
}

static void test_rule_x(void **state) {
    (void)state;
    for (size_t v = 0; v < sizeof VARIANTS / sizeof *VARIANTS; v++) {
        problem *p = problem_create(&VARIANTS[v]);
        for (int isa = 0; isa < MR_ISA_COUNT; isa++)
            for (int n_threads = 1; n_threads <= 3; n_threads++)
                for (int in_file = 0; in_file < 2; in_file++)
                    check(p, &(setting){in_file != 0, n_threads, mr_isa_name((mr_isa)isa)});
        free(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rule_x)};
    mr_thread_set_denormals_flushed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
