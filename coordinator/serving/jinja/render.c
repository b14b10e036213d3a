/* coordinator/serving/jinja/render.c - renders a parsed template: sets up the context with its limits, runs the
 * statements, and hands the text over only when all of them have succeeded. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/interp.h"

enum { MAX_STEPS = 20000000, MAX_OUTPUT_BYTES = 16 << 20, MAX_MEMORY_BYTES = 64 << 20 };

static bool render(jx *x, mr_text_buf *out) {
    jflow flow = FLOW_ON;
    x->globals = jx_alloc(x, (size_t)x->template->n_symbols, sizeof *x->globals); /* zero is J_MISSING */
    x->scope = jscope_new(x, NULL);
    if (!x->globals || !x->scope || !jx_exec(x, x->template->root, &flow))
        return false;
    return mr_text_buf_append(out, x->out->data, x->out->len) || jx_fail(x, MR_E_NO_MEMORY, "no memory for the text");
}

mr_status mr_jinja_render(const mr_jinja *t, const json_t *variables, const mr_jinja_limits *limits, int64_t now_unix_s,
                          mr_text_buf *out, mr_err *err) {
    mr_jinja_limits l = limits ? *limits : (mr_jinja_limits){0};
    if (variables && !json_is_object(variables))
        return mr_err_set(err, MR_E_INVALID, "the variables of a template must be an object");
    jtext text = {0};
    jx x = {.err = err,
            .out = &text,
            .template = t,
            .variables = variables,
            .now_unix_s = now_unix_s,
            .line = 1,
            .steps_left = l.max_steps ? l.max_steps : MAX_STEPS,
            .max_output_bytes = l.max_output_bytes ? l.max_output_bytes : MAX_OUTPUT_BYTES,
            .depth_left = l.max_depth > 0 && l.max_depth < MR_JINJA_MAX_DEPTH ? l.max_depth : MR_JINJA_MAX_DEPTH};
    mr_status status = mr_arena_create(0, l.max_memory_bytes ? l.max_memory_bytes : MAX_MEMORY_BYTES, &x.arena, err);
    if (status != MR_OK)
        return status;
    if (!render(&x, out))
        status = x.status;
    mr_arena_destroy(x.arena);
    return status;
}
