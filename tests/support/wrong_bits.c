// SPDX-License-Identifier: Apache-2.0
#include "tests/support/wrong_bits.h"

static mr_backend *wrong;
static const mr_backend_ops *right; /* of the backend */
static mr_backend_ops ops;
static mr_op wrong_op;
static int32_t wrong_type;
static bool is_wrong;  /* of the last program */
static uint8_t *taken; /* where the last get writes; NULL: it has been waited for */

static mr_status program_create(mr_backend *be, const mr_program_desc *desc, mr_program **out, mr_err *err) {
    const mr_node *n = &desc->nodes[0];
    int of_type = n->op == MR_OP_KV_WRITE ? 3 : n->op == MR_OP_ATTENTION ? 1 : 0;
    is_wrong = n->op == wrong_op &&
               (wrong_type == MR_TYPE_FILE_COUNT || (int32_t)desc->tensors[n->in[of_type]].type == wrong_type);
    return right->program_create(be, desc, out, err);
}

static mr_status get(mr_backend *be, const mr_buffer *buffer, size_t offset, void *dst, size_t bytes, mr_fence *out,
                     mr_err *err) {
    taken = dst;
    return right->get(be, buffer, offset, dst, bytes, out, err);
}

static mr_status wait_for(mr_backend *be, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    mr_status status = right->wait(be, fence, deadline_ns, err);
    if (status == MR_OK && taken && is_wrong)
        taken[0] ^= 1;
    taken = status == MR_E_TIMEOUT ? taken : NULL;
    return status;
}

/* The device may be destroyed before the end. */
static void destroy(mr_backend *be) {
    be->ops = right;
    wrong = wrong == be ? NULL : wrong;
    right->destroy(be);
}

void wrong_bits_begin(mr_backend *be, mr_op op, int32_t type) {
    wrong = be;
    right = be->ops;
    wrong_op = op;
    wrong_type = type;
    ops = *right;
    ops.destroy = destroy;
    ops.program_create = program_create;
    ops.get = get;
    ops.wait = wait_for;
    be->ops = &ops;
}

void wrong_bits_end(void) {
    if (wrong)
        wrong->ops = right;
}
