/* tests/cuda_emulation/driver_graph.c - the emulated driver's modules, launches and graphs. A graph's nodes can only
 * hang on nodes that were added before, so a graph has no cycle. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "engine/base/rng.h"
#include "tests/cuda_emulation/driver_internal.h"

enum { MAX_GRID_Y = 65535 };

/* Alive until the reset. */
typedef struct function {
    module *module;
    const emulator_kernel *kernel;
    size_t max_shared_bytes;
} function;

typedef struct node {
    launch launch;
    int32_t n_dependencies, n_successors;
    int32_t *successors; /* owned: indices of nodes */
} node;

typedef struct graph {
    uint64_t id; /* no other graph has it */
    node *nodes;
    int32_t n_nodes;
} graph;

/* What the handle of a node refers to. Alive until the reset. */
typedef struct node_place {
    uint64_t graph_id;
    int32_t i;
} node_place;

struct exec {
    int32_t n_references; /* the handle, and queued launches */
    mr_mutex runs;        /* launches of it do not overlap */
    graph graph;
};

static emulated *const e = &emulated_state;
static module *modules;
static uint64_t n_graphs;

/* --- Modules ----------------------------------------------------------------------------------------------------- */

cuda_result emulated_module_load_data(cuda_module *out, const void *image) {
    call c = emulated_begin(CALL_module_load_data);
    if (c.result == CUDA_OK && !image)
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result == CUDA_OK) {
        module *m = emulated_alloc(sizeof *m);
        m->next = modules;
        m->is_loaded = true;
        modules = m;
        *out = emulated_add(OBJECT_MODULE, c.context, m);
    }
    return emulated_end(&c);
}

static void unload(void *object) {
    ((module *)object)->is_loaded = false;
}

cuda_result emulated_module_unload(cuda_module handle) {
    call c = emulated_begin(CALL_module_unload);
    module *m = emulated_remove(&c, OBJECT_MODULE, handle);
    if (m && m->n_queued > 0)
        emulated_stop("a module is unloaded while its kernels are queued", NULL);
    if (m)
        unload(m);
    return emulated_end(&c);
}

cuda_result emulated_module_get_function(cuda_function *out, cuda_module handle, const char *name) {
    call c = emulated_begin(CALL_module_get_function);
    module *m = c.result == CUDA_OK ? emulated_find(&c, OBJECT_MODULE, handle) : NULL;
    const emulator_kernel *kernel = m ? emulator_find(name) : NULL;
    if (kernel) {
        function *f = emulated_alloc(sizeof *f);
        *f = (function){m, kernel, EMULATED_SHARED_BYTES};
        *out = emulated_add(OBJECT_FUNCTION, c.context, f);
    } else if (m) {
        c.result = CUDA_NOT_FOUND;
    }
    return emulated_end(&c);
}

static function *find_function(call *c, cuda_function handle) {
    function *f = emulated_find(c, OBJECT_FUNCTION, handle);
    if (f && !f->module->is_loaded)
        emulated_refuse(c, CUDA_INVALID_HANDLE);
    return f && f->module->is_loaded ? f : NULL;
}

cuda_result emulated_func_set_attribute(cuda_function handle, int attribute, int value) {
    call c = emulated_begin(CALL_func_set_attribute);
    function *f = c.result == CUDA_OK ? find_function(&c, handle) : NULL;
    if (f && (attribute != CUDA_FUNCTION_DYNAMIC_SHARED_BYTES || value < 0 || value > emulated_shared_bytes()))
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    else if (f)
        f->max_shared_bytes = (size_t)value;
    return emulated_end(&c);
}

/* --- Launches ---------------------------------------------------------------------------------------------------- */

/* The launch with its arguments copied, or a refused call. */
static launch make_launch(call *c, const cuda_kernel_node *n) {
    launch l = {0};
    const function *f = c->result == CUDA_OK ? find_function(c, n->function) : NULL;
    if (!f)
        return l;
    if (n->grid_x == 0 || n->grid_y == 0 || n->grid_y > MAX_GRID_Y || n->grid_z != 1 || n->block_x == 0 ||
        n->block_y != 1 || n->block_z != 1 || !n->kernel_params || n->extra || n->kernel ||
        n->dynamic_shared_bytes > f->max_shared_bytes)
        emulated_refuse(c, CUDA_INVALID_VALUE);
    else if (n->block_x > emulator_max_threads(f->kernel))
        emulated_refuse(c, CUDA_LAUNCH_OUT_OF_RESOURCES);
    else
        l = (launch){f->kernel,
                     f->module,
                     {n->grid_x, n->grid_y, n->dynamic_shared_bytes},
                     n->block_x,
                     emulated_alloc(emulator_args_bytes(f->kernel))};
    if (l.args)
        memcpy(l.args, n->kernel_params[0], emulator_args_bytes(f->kernel));
    return l;
}

cuda_result emulated_launch_kernel(cuda_function handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_shared_bytes,
                                   cuda_stream stream_handle, void **params, void **extra) {
    call c = emulated_begin(CALL_launch_kernel);
    stream *s = c.result == CUDA_OK ? emulated_find(&c, OBJECT_STREAM, stream_handle) : NULL;
    const cuda_kernel_node n = {.function = handle,
                                .grid_x = grid_x,
                                .grid_y = grid_y,
                                .grid_z = grid_z,
                                .block_x = block_x,
                                .block_y = block_y,
                                .block_z = block_z,
                                .dynamic_shared_bytes = dynamic_shared_bytes,
                                .kernel_params = params,
                                .extra = extra};
    launch l = make_launch(&c, &n);
    if (l.args) {
        l.module->n_queued++;
        e->counts.n_launches++;
        emulated_give(s, &(work){.kind = WORK_LAUNCH, .launch = l});
    }
    return emulated_end(&c);
}

/* --- Graphs ------------------------------------------------------------------------------------------------------ */

cuda_result emulated_graph_create(cuda_graph *out, unsigned flags) {
    call c = emulated_begin(CALL_graph_create);
    if (c.result == CUDA_OK && flags != 0)
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result == CUDA_OK) {
        graph *g = emulated_alloc(sizeof *g);
        g->id = ++n_graphs;
        *out = emulated_add(OBJECT_GRAPH, c.context, g);
    }
    return emulated_end(&c);
}

static void clear_graph(graph *g) {
    for (int32_t i = 0; i < g->n_nodes; i++) {
        free(g->nodes[i].launch.args);
        free(g->nodes[i].successors);
    }
    free(g->nodes);
}

static void destroy_graph(void *object) {
    clear_graph(object);
    free(object);
}

cuda_result emulated_graph_destroy(cuda_graph handle) {
    call c = emulated_begin(CALL_graph_destroy);
    graph *g = emulated_remove(&c, OBJECT_GRAPH, handle);
    if (g)
        destroy_graph(g);
    return emulated_end(&c);
}

static void *grow(void *at, size_t bytes) {
    void *grown = realloc(at, bytes);
    if (!grown)
        emulated_stop("no memory", NULL);
    return grown;
}

/* Refuses nodes of other graphs, and the same one twice. */
static bool check_dependencies(call *c, const graph *g, const cuda_graph_node *dependencies, size_t n) {
    for (size_t i = 0; i < n && c->result == CUDA_OK; i++) {
        const node_place *p = emulated_find(c, OBJECT_NODE, dependencies[i]);
        bool wrong = !p || p->graph_id != g->id;
        for (size_t j = 0; j < i; j++)
            wrong |= dependencies[j] == dependencies[i];
        if (wrong)
            emulated_refuse(c, CUDA_INVALID_VALUE);
    }
    return c->result == CUDA_OK;
}

cuda_result emulated_graph_add_kernel_node(cuda_graph_node *out, cuda_graph handle, const cuda_graph_node *dependencies,
                                           size_t n_dependencies, const cuda_kernel_node *kernel) {
    call c = emulated_begin(CALL_graph_add_kernel_node);
    graph *g = c.result == CUDA_OK ? emulated_find(&c, OBJECT_GRAPH, handle) : NULL;
    launch l = {0};
    if (g && check_dependencies(&c, g, dependencies, n_dependencies))
        l = make_launch(&c, kernel);
    if (!l.args)
        return emulated_end(&c);
    int32_t i = g->n_nodes++;
    g->nodes = grow(g->nodes, (size_t)g->n_nodes * sizeof *g->nodes);
    g->nodes[i] = (node){.launch = l, .n_dependencies = (int32_t)n_dependencies};
    for (size_t d = 0; d < n_dependencies; d++) {
        const node_place *p = emulated_find(&c, OBJECT_NODE, dependencies[d]);
        node *before = &g->nodes[p->i];
        before->successors = grow(before->successors, (size_t)(before->n_successors + 1) * sizeof(int32_t));
        before->successors[before->n_successors++] = i;
    }
    node_place *place = emulated_alloc(sizeof *place);
    *place = (node_place){g->id, i};
    *out = emulated_add(OBJECT_NODE, c.context, place);
    return emulated_end(&c);
}

static void *copy_bytes(const void *from, size_t bytes) {
    return memcpy(emulated_alloc(bytes + 1), from ? from : "", from ? bytes : 0);
}

cuda_result emulated_graph_instantiate(cuda_graph_exec *out, cuda_graph handle, unsigned long long flags) {
    call c = emulated_begin(CALL_graph_instantiate);
    const graph *g = c.result == CUDA_OK ? emulated_find(&c, OBJECT_GRAPH, handle) : NULL;
    if (g && flags != 0)
        emulated_refuse(&c, CUDA_INVALID_VALUE);
    if (c.result != CUDA_OK)
        return emulated_end(&c);
    exec *x = emulated_alloc(sizeof *x);
    x->n_references = 1;
    mr_mutex_init(&x->runs);
    x->graph.n_nodes = g->n_nodes;
    x->graph.nodes = copy_bytes(g->nodes, (size_t)g->n_nodes * sizeof *g->nodes);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        node *n = &x->graph.nodes[i];
        n->launch.args = copy_bytes(n->launch.args, emulator_args_bytes(n->launch.kernel));
        n->successors = copy_bytes(n->successors, (size_t)n->n_successors * sizeof *n->successors);
    }
    *out = emulated_add(OBJECT_EXEC, c.context, x);
    return emulated_end(&c);
}

static void queue_modules(exec *x, int32_t n) {
    for (int32_t i = 0; i < x->graph.n_nodes; i++)
        x->graph.nodes[i].launch.module->n_queued += n;
}

static void release(void *object) {
    exec *x = object;
    if (--x->n_references == 0) {
        clear_graph(&x->graph);
        mr_mutex_deinit(&x->runs);
        free(x);
    }
}

void emulated_exec_release(exec *x) {
    queue_modules(x, -1);
    release(x);
}

cuda_result emulated_graph_exec_destroy(cuda_graph_exec handle) {
    call c = emulated_begin(CALL_graph_exec_destroy);
    exec *x = emulated_remove(&c, OBJECT_EXEC, handle);
    if (x)
        release(x);
    return emulated_end(&c);
}

cuda_result emulated_graph_upload(cuda_graph_exec handle, cuda_stream stream_handle) {
    call c = emulated_begin(CALL_graph_upload);
    if (c.result == CUDA_OK && emulated_find(&c, OBJECT_EXEC, handle))
        (void)emulated_find(&c, OBJECT_STREAM, stream_handle);
    return emulated_end(&c);
}

cuda_result emulated_graph_launch(cuda_graph_exec handle, cuda_stream stream_handle) {
    call c = emulated_begin(CALL_graph_launch);
    exec *x = c.result == CUDA_OK ? emulated_find(&c, OBJECT_EXEC, handle) : NULL;
    stream *s = x ? emulated_find(&c, OBJECT_STREAM, stream_handle) : NULL;
    for (int32_t i = 0; x && i < x->graph.n_nodes && !c.refused; i++)
        if (!x->graph.nodes[i].launch.module->is_loaded)
            emulated_refuse(&c, CUDA_INVALID_HANDLE);
    if (c.result == CUDA_OK) {
        x->n_references++;
        queue_modules(x, 1);
        e->counts.n_graph_launches++;
        e->counts.n_nodes += x->graph.n_nodes;
        emulated_give(s, &(work){.kind = WORK_GRAPH, .exec = x});
    }
    return emulated_end(&c);
}

void emulated_exec_run(exec *x, uint64_t seed) {
    const graph *g = &x->graph;
    int32_t *ready = emulated_alloc((size_t)(2 * g->n_nodes + 1) * sizeof *ready), *missing = ready + g->n_nodes;
    int32_t n_ready = 0;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        missing[i] = g->nodes[i].n_dependencies;
        if (missing[i] == 0)
            ready[n_ready++] = i;
    }
    mr_mutex_lock(&x->runs);
    for (uint64_t turn = 0; n_ready > 0; turn++) {
        int32_t at = (int32_t)(mr_rng_u64(seed, 0, turn) % (uint64_t)n_ready);
        const node *n = &g->nodes[ready[at]];
        ready[at] = ready[--n_ready];
        emulator_launch(n->launch.kernel, n->launch.grid, n->launch.n_threads, n->launch.args);
        for (int32_t i = 0; i < n->n_successors; i++)
            if (--missing[n->successors[i]] == 0)
                ready[n_ready++] = n->successors[i];
    }
    mr_mutex_unlock(&x->runs);
    free(ready);
}

void emulated_graphs_reset(void) {
    emulated_remove_all(OBJECT_EXEC, release);
    emulated_remove_all(OBJECT_NODE, free);
    emulated_remove_all(OBJECT_GRAPH, destroy_graph);
    emulated_remove_all(OBJECT_FUNCTION, free);
    emulated_remove_all(OBJECT_MODULE, unload);
    while (modules) {
        module *m = modules;
        modules = m->next;
        free(m);
    }
}
