/* coordinator/serving/jinja/interp.h - the scopes, macros and loops of a render, which eval.c, exec.c and call.c share.
 * A lookup goes from the innermost scope to the outer ones. Assignments write to the innermost scope only. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_JINJA_INTERP_H
#define MR_COORDINATOR_SERVING_JINJA_INTERP_H

#include "coordinator/serving/jinja/ast.h"

typedef struct jbinding {
    int32_t symbol;
    jv value;
    struct jbinding *next;
} jbinding;

typedef struct jscope {
    struct jscope *parent;
    jbinding *first;
} jscope;

struct jmacro {
    const jnode *node; /* N_MACRO or N_CALL_BLOCK */
    jscope *scope;     /* where it was defined */
};

struct jloop {
    jlist *items;
    size_t at;
    int32_t depth0;
    const jnode *node; /* N_FOR */
    jscope *scope;     /* around it */
    jv changed;        /* what loop.changed was last asked about; J_MISSING: nothing yet */
};

typedef enum jflow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } jflow;

bool jx_eval(jx *x, const jnode *node, jv *out);
bool jx_exec(jx *x, const jnode *node, jflow *flow);
/* Runs body in a scope of its own, where `scope` is around it, and gives the text that it writes. */
bool jx_capture(jx *x, const jnode *body, jscope *scope, jv *out);
bool jx_call_recursive_loop(jx *x, const jloop *loop, const jargs *args, jv *out);

/* scope.c */
jscope *jscope_new(jx *x, jscope *parent);
bool jscope_set(jx *x, int32_t symbol, jv value); /* in the innermost */
bool jscope_get(jx *x, int32_t symbol, jv *out);  /* undefined where there is none */
bool jx_assign(jx *x, const jnode *target, jv value);

/* call.c */
bool jx_arguments(jx *x, const jnode *node, jargs *out);

#endif
