/* engine/graph/build_experts.c - adds the nodes of feed-forward parts with experts: rule X of engine/NUMERICS.md. Where
 * a device holds some of the experts, each side lists the slots of its own experts and computes these. The sum then
 * takes each slot from the side that has computed it, so its bits do not depend on the places of the experts. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>
#include <string.h>

#include "engine/graph/graph_internal.h"

static bool experts_desc_is_good(mr_graph *g, int32_t x, const mr_experts_desc *desc) {
    int64_t n_slots = (int64_t)g->max_rows[MR_ROWS_STEP] * desc->n_used;
    if (desc->n_used < 1 || desc->n_used > desc->n || n_slots > INT32_MAX / 4 || desc->n > INT32_MAX / 4 ||
        (g->n_experts_used && g->n_experts_used != desc->n_used)) {
        graph_fail(g, MR_E_INVALID, "experts: a wrong number of experts");
        return false;
    }
    if (g->tensors[x].row_count != MR_ROWS_STEP) {
        graph_fail(g, MR_E_INVALID, "experts: x must have the rows of the step");
        return false;
    }
    if (desc->held && (desc->held->n < 1 || desc->held->n > desc->n || desc->held->device_places == MR_NO_TENSOR ||
                       desc->held->host_places == MR_NO_TENSOR)) {
        graph_fail(g, MR_E_INVALID, "experts: a wrong number of experts on the device, or no places");
        return false;
    }
    g->n_experts_used = desc->n_used;
    g->max_rows[MR_ROWS_SLOTS] = (int32_t)n_slots;
    return true;
}

/* Whether the numbers of rule X's choice fit n experts. */
static bool routing_is_good(mr_graph *g, const mr_experts_desc *desc) {
    const mr_routing *r = &desc->routing;
    bool is_good = (unsigned)r->score < MR_ROUTE_SCORES && r->scale >= 0.0f && r->scale <= FLT_MAX && r->n_groups >= 0;
    if (is_good && r->n_groups > 1) {
        int32_t size = desc->n / r->n_groups;
        is_good = desc->n % r->n_groups == 0 && r->n_groups_used >= 1 && r->n_groups_used <= r->n_groups &&
                  (int64_t)r->n_groups_used * size >= desc->n_used && r->n_group_best >= 1 && r->n_group_best <= 2 &&
                  r->n_group_best <= size;
    }
    if (!is_good)
        graph_fail(g, MR_E_INVALID, "experts: the kind of scores, a scale or a number of groups is wrong");
    return is_good;
}

/* Adds a node with the parameters of n experts and the result out. */
static int32_t expert_node(mr_graph *g, mr_op op, const mr_experts_desc *desc, int32_t n, const int32_t in[4],
                           int32_t out) {
    mr_node *node = graph_add_node(g, op, out);
    if (!node)
        return MR_NO_TENSOR;
    memcpy(node->in, in, 4 * sizeof *in);
    node->params.experts.n = n;
    node->params.experts.n_used = desc->n_used;
    node->params.experts.routing = desc->routing;
    return out;
}

/* The experts whose matrices lie one behind the other: all of them, or those that a device holds. */
typedef struct unit {
    int32_t n, gate, up, down, gate_bias, up_bias, down_bias;
    int32_t places; /* as EXPERT_ROWS reads them; MR_NO_TENSOR: all experts in their order */
} unit;

/* Adds the product of each slot's row of x ([k, R] or [k, S]) and the matrix of its expert in w [k, n * E], plus
 * the bias of that expert: [n, S]. */
static int32_t expert_matmul(mr_graph *g, const mr_experts_desc *desc, const unit *part, const int32_t w_x_bias[3],
                             int32_t rows) {
    int32_t w = w_x_bias[0], x = w_x_bias[1], bias = w_x_bias[2];
    if (g->err.status != MR_OK)
        return MR_NO_TENSOR;
    if (w < 0 || w >= g->n_tensors || !graph_is_matrix(&g->tensors[w]) || g->tensors[w].ne[0] != g->tensors[x].ne[0] ||
        g->tensors[w].ne[1] % part->n != 0)
        return graph_fail(g, MR_E_INVALID, "experts: w needs a matrix for each expert, with as many columns as x");
    mr_type type = mr_type_activation(g->tensors[w].type);
    int32_t n_out = g->tensors[w].ne[1] / part->n;
    const mr_tensor *b = bias == MR_NO_TENSOR ? NULL : graph_want(g, bias, MR_TYPE_F32, n_out, "bias of experts");
    if (b && b->ne[1] != part->n)
        return graph_fail(g, MR_E_INVALID, "experts: not a bias for each of them");
    int32_t a = graph_activations(g, x, type);
    int32_t out = graph_result(g, MR_OP_EXPERT_MATMUL, n_out, MR_ROWS_SLOTS);
    return expert_node(g, MR_OP_EXPERT_MATMUL, desc, part->n, (const int32_t[]){w, a, rows, bias}, out);
}

/* Whether id is a list of the place of each expert. MR_NO_TENSOR is none and passes. */
static bool are_places(mr_graph *g, int32_t id, int32_t n) {
    if (id == MR_NO_TENSOR)
        return true;
    const mr_tensor *t = graph_want(g, id, MR_TYPE_I32, n, "places of experts");
    if (t && (t->ne[1] != 1 || t->storage != MR_STORAGE_STATE))
        graph_fail(g, MR_E_INVALID, "experts: their places are no state with one row");
    return g->err.status == MR_OK;
}

/* Adds what the experts of a part compute for their slots: [d, S]. Other slots have no values. */
static int32_t add_unit(mr_graph *g, const mr_experts_desc *desc, const unit *part, int32_t x, int32_t routes) {
    if (!are_places(g, part->places, desc->n))
        return MR_NO_TENSOR;
    int32_t n_lists = part->n + 1 + 2 * g->max_rows[MR_ROWS_SLOTS], width = g->tensors[x].ne[0];
    const int32_t of_routes[] = {routes, part->places, MR_NO_TENSOR, MR_NO_TENSOR};
    int32_t rows = graph_new_tensor(g, "expert rows", MR_TYPE_I32, n_lists, MR_ROWS_FIXED, MR_STORAGE_WORK);
    rows = expert_node(g, MR_OP_EXPERT_ROWS, desc, part->n, of_routes, rows);
    int32_t gate = expert_matmul(g, desc, part, (const int32_t[]){part->gate, x, part->gate_bias}, rows);
    int32_t up = expert_matmul(g, desc, part, (const int32_t[]){part->up, x, part->up_bias}, rows);
    int32_t h = mr_graph_glu(g, gate, up, desc->glu);
    int32_t y = expert_matmul(g, desc, part, (const int32_t[]){part->down, h, part->down_bias}, rows);
    return graph_want(g, y, MR_TYPE_F32, width, "result of experts") ? y : MR_NO_TENSOR;
}

/* Adds the choice of the experts of each row: [2U, R]. */
static int32_t add_routes(mr_graph *g, int32_t x, const mr_experts_desc *desc, const mr_expert_biases *b) {
    int32_t logits = mr_graph_matmul(g, desc->router, x, b->router, MR_NO_TENSOR);
    if (!graph_want(g, logits, MR_TYPE_F32, desc->n, "logits of experts"))
        return MR_NO_TENSOR;
    if (b->choice != MR_NO_TENSOR && !graph_want(g, b->choice, MR_TYPE_F32, desc->n, "bias of the choice of experts"))
        return MR_NO_TENSOR;
    const int32_t of_logits[] = {logits, b->choice, MR_NO_TENSOR, MR_NO_TENSOR};
    int32_t routes = graph_new_tensor(g, "routes", MR_TYPE_I32, 2 * desc->n_used, MR_ROWS_STEP, MR_STORAGE_WORK);
    return expert_node(g, MR_OP_ROUTE, desc, desc->n, of_logits, routes);
}

/* Adds the sum of the slots of each row. others: the slots that the device does not compute, or MR_NO_TENSOR. */
static int32_t add_sum(mr_graph *g, const mr_experts_desc *desc, const int32_t in[4], int32_t others) {
    int32_t out = graph_result(g, MR_OP_EXPERT_SUM, g->tensors[in[0]].ne[0], MR_ROWS_STEP);
    out = expert_node(g, MR_OP_EXPERT_SUM, desc, desc->n, in, out);
    if (out != MR_NO_TENSOR && desc->held) {
        g->nodes[g->n_nodes - 1].in[4] = others;
        g->nodes[g->n_nodes - 1].in[5] = desc->held->device_places;
    }
    return out;
}

int32_t mr_graph_experts(mr_graph *g, int32_t x, int32_t add, const mr_experts_desc *desc) {
    const mr_tensor *t = graph_want(g, x, MR_TYPE_F32, 0, "x of experts");
    if (!t || !graph_want_beside(g, add, x, MR_TYPE_F32, t->ne[0], "add of experts") ||
        !experts_desc_is_good(g, x, desc) || !routing_is_good(g, desc))
        return MR_NO_TENSOR;
    if (desc->shared != MR_NO_TENSOR && !graph_want_beside(g, desc->shared, x, MR_TYPE_F32, t->ne[0], "shared expert"))
        return MR_NO_TENSOR;
    const mr_expert_biases none = {MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR};
    const mr_expert_biases *b = desc->biases ? desc->biases : &none;
    const mr_experts_held *held = desc->held;
    int32_t routes = add_routes(g, x, desc, b), others = MR_NO_TENSOR;
    if (routes == MR_NO_TENSOR)
        return MR_NO_TENSOR;
    const unit all = {desc->n, desc->gate, desc->up, desc->down,
                      b->gate, b->up,      b->down,  held ? held->host_places : MR_NO_TENSOR};
    int32_t y = add_unit(g, desc, &all, x, routes);
    if (held) {
        const unit part = {held->n,         held->gate,    held->up,        held->down,
                           held->gate_bias, held->up_bias, held->down_bias, held->device_places};
        others = y;
        y = add_unit(g, desc, &part, x, routes);
    }
    return y == MR_NO_TENSOR ? y : add_sum(g, desc, (const int32_t[]){y, routes, add, desc->shared}, others);
}
