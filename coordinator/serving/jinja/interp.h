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
    jscope *scope;     /* the scope in which the macro was defined */
};

struct jloop {
    jlist *items;
    size_t at;
    int32_t depth0;
    const jnode *node; /* N_FOR */
    jscope *scope;     /* the scope around the loop */
    jv changed;        /* the arguments of the last call of loop.changed; J_MISSING: no call yet */
};

typedef enum jflow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } jflow;

bool jx_eval(jx *x, const jnode *node, jv *out);
bool jx_exec(jx *x, const jnode *node, jflow *flow);
/* Runs body in a new scope inside `scope`. out: the text that body writes. */
bool jx_capture(jx *x, const jnode *body, jscope *scope, jv *out);
bool jx_call_recursive_loop(jx *x, const jloop *loop, const jargs *args, jv *out);

/* scope.c */
jscope *jscope_new(jx *x, jscope *parent);
bool jscope_set(jx *x, int32_t symbol, jv value); /* in the innermost scope */
bool jscope_get(jx *x, int32_t symbol, jv *out);  /* out: an undefined value if no scope has the symbol */
bool jx_assign(jx *x, const jnode *target, jv value);

/* call.c */
bool jx_arguments(jx *x, const jnode *node, jargs *out);

#endif
