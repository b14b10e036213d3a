/* tests/cuda_emulation/test_cuda_driver.c - the emulated driver: work is done later and in order, wrong calls are
 * refused, chosen calls fail, and mistakes that no driver forgives end the process. */
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda_emulation/driver.h"
#include "tests/cuda_emulation/test_kernels.h"
#include "tests/support/test.h"

enum { N = 100, BYTES = N * 4 };

/* A device with a stream, memory and the kernel of the tests. */
typedef struct rig {
    const cuda_driver *d;
    cuda_context context;
    cuda_stream stream;
    cuda_module module;
    cuda_function append;
    cuda_address x, y;
    uint32_t *host; /* pinned and mapped, [N] */
} rig;

#define ok(call) assert_int_equal(call, CUDA_OK)

static rig begin(const emulated_options *options) {
    static const int image;
    rig r = {.d = emulated_driver()};
    emulated_driver_reset(options);
    ok(r.d->init(0));
    ok(r.d->device_primary_ctx_retain(&r.context, 0));
    ok(r.d->ctx_set_current(r.context));
    ok(r.d->stream_create(&r.stream, CUDA_STREAM_NON_BLOCKING));
    ok(r.d->module_load_data(&r.module, &image));
    ok(r.d->module_get_function(&r.append, r.module, "test_append"));
    ok(r.d->mem_alloc(&r.x, BYTES));
    ok(r.d->mem_alloc(&r.y, BYTES));
    ok(r.d->mem_host_alloc((void **)&r.host, BYTES, CUDA_HOST_ALLOC_MAPPED));
    return r;
}

static void end(rig *r) {
    ok(r->d->mem_free_host(r->host));
    ok(r->d->mem_free(r->x));
    ok(r->d->mem_free(r->y));
    ok(r->d->module_unload(r->module));
    ok(r->d->stream_destroy(r->stream));
    ok(r->d->device_primary_ctx_release(0));
    emulated_counts counts = emulated_driver_counts();
    assert_int_equal(counts.n_live, 0);
    assert_int_equal(counts.n_refused, 0);
    emulated_driver_reset(NULL);
}

static cuda_result launch(const rig *r, uint32_t factor, cuda_address x) {
    test_append_args args = {(const uint32_t *)(uintptr_t)x, (uint32_t *)(uintptr_t)r->y, factor, N};
    cuda_result result = r->d->launch_kernel(r->append, 2, 1, 1, 64, 1, 1, 0, r->stream, (void *[]){&args}, NULL);
    args = (test_append_args){0}; /* the launch has its own copy */
    return result;
}

static void fill(uint32_t *v, uint32_t value) {
    for (int i = 0; i < N; i++)
        v[i] = value;
}

static void expect_all(const uint32_t *v, uint32_t value) {
    for (int i = 0; i < N; i++)
        assert_int_equal(v[i], value);
}

static const emulated_options SLOW = {.max_delay_us = 300, .seed = 5};
/* Nothing queued is done within the 100 ms or so that the first delay takes. */
static const emulated_options LATE = {.max_delay_us = 200000, .seed = 3};

static void test_order(void **state) {
    (void)state;
    rig r = begin(&SLOW);
    uint32_t own[N], got[N];
    fill(own, 5);
    fill(r.host, 7);
    ok(r.d->memcpy_htod_async(r.y, own, BYTES, r.stream)); /* staged: own may change at once */
    fill(own, 0);
    ok(r.d->memcpy_htod_async(r.x, r.host, BYTES, r.stream));
    ok(launch(&r, 10, r.x));
    ok(launch(&r, 100, 0));
    ok(launch(&r, 1, r.x));
    ok(r.d->memcpy_dtoh_async(got, r.y, BYTES, r.stream));
    expect_all(got, (5 * 10 + 7) * 100 + 7);
    emulated_counts counts = emulated_driver_counts();
    assert_int_equal(counts.n_launches, 3);
    assert_int_equal(counts.n_copies_up, 2);
    assert_int_equal(counts.up_bytes, 2 * BYTES);
    assert_int_equal(counts.n_copies_down, 1);
    assert_int_equal(counts.down_bytes, BYTES);
    assert_int_equal(counts.n_not_pinned, 2);
    assert_int_equal(counts.n_waits, 1);
    assert_int_equal(counts.n_allocations, 2);
    assert_int_equal(counts.live_bytes, 2 * BYTES);
    end(&r);
}

/* Pinned memory is read when the copy's turn comes, and a destination holds rubbish until then. */
static void test_later(void **state) {
    (void)state;
    rig r = begin(&LATE);
    uint32_t *down;
    ok(r.d->mem_host_alloc((void **)&down, BYTES, 0));
    fill(r.host, 1);
    fill(down, 1);
    ok(r.d->memcpy_htod_async(r.y, r.host, BYTES, r.stream));
    ok(r.d->memcpy_dtoh_async(down, r.y, BYTES, r.stream));
    expect_all(down, 0xa5a5a5a5);
    fill(r.host, 2); /* too early */
    ok(r.d->stream_synchronize(r.stream));
    expect_all(down, 2);
    assert_int_equal(emulated_driver_counts().n_not_pinned, 0);
    ok(r.d->mem_free_host(down));
    end(&r);
}

static void test_memory(void **state) {
    (void)state;
    rig r = begin(&(emulated_options){.memory_bytes = 4096});
    size_t free_bytes, total_bytes;
    cuda_address at = 0, more = 0;
    uint32_t got[N];
    ok(r.d->memcpy_dtoh_async(got, r.x, BYTES, r.stream)); /* new memory */
    expect_all(got, 0xa5a5a5a5);
    ok(r.d->mem_get_info(&free_bytes, &total_bytes));
    assert_int_equal(total_bytes, 4096);
    assert_int_equal(free_bytes, 4096 - 2 * 512);
    assert_int_equal(r.d->mem_alloc(&at, free_bytes + 1), CUDA_OUT_OF_MEMORY);
    ok(r.d->mem_alloc(&at, free_bytes));
    assert_int_equal(at % 256, 0);
    assert_int_equal(r.d->mem_alloc(&more, 1), CUDA_OUT_OF_MEMORY);
    ok(r.d->mem_free(at));
    ok(r.d->mem_alloc(&more, 1));
    assert_true(more != at);
    ok(r.d->mem_free(more));
    assert_int_equal(emulated_driver_counts().most_bytes, 2 * BYTES + free_bytes);
    end(&r);
}

static void test_host_memory(void **state) {
    (void)state;
    rig r = begin(NULL);
    uint32_t own[N];
    cuda_address mapped = 0;
    fill(r.host, 3);
    ok(r.d->mem_host_get_device_pointer(&mapped, r.host, 0));
    ok(r.d->memcpy_htod_async(r.y, r.host, BYTES, r.stream));
    ok(launch(&r, 10, mapped)); /* a kernel reads memory of the host */
    ok(r.d->mem_host_register(own, BYTES, CUDA_HOST_REGISTER_PORTABLE));
    ok(r.d->memcpy_dtoh_async(own, r.y, BYTES, r.stream));
    ok(r.d->stream_synchronize(r.stream));
    expect_all(own, 33);
    assert_int_equal(emulated_driver_counts().n_not_pinned, 0);
    assert_int_equal(emulated_driver_counts().n_live_registered, 1);
    assert_int_equal(r.d->mem_host_register(own + 1, 4, 0), 712);
    assert_int_equal(r.d->mem_host_get_device_pointer(&mapped, own, 0), CUDA_INVALID_VALUE);
    ok(r.d->mem_host_unregister(own));
    assert_int_equal(r.d->mem_host_unregister(own), 713);
    assert_int_equal(emulated_driver_counts().n_refused, 3);
    assert_string_equal(emulated_driver_counts().refused, "mem_host_unregister");
    emulated_driver_reset(NULL);
}

static void test_events(void **state) {
    (void)state;
    rig r = begin(&LATE);
    cuda_event first, second;
    float ms = -1;
    ok(r.d->event_create(&first, CUDA_EVENT_DEFAULT));
    ok(r.d->event_create(&second, CUDA_EVENT_DEFAULT));
    ok(r.d->event_query(first)); /* never recorded */
    ok(r.d->event_record(first, r.stream));
    ok(launch(&r, 1, 0));
    ok(r.d->event_record(second, r.stream));
    assert_int_equal(r.d->event_query(second), CUDA_NOT_READY);
    assert_int_equal(r.d->event_elapsed_time(&ms, first, second), CUDA_NOT_READY);
    ok(r.d->event_synchronize(first));
    ok(r.d->event_query(first));
    ok(r.d->event_synchronize(second));
    ok(r.d->event_query(second));
    ok(r.d->event_elapsed_time(&ms, first, second));
    assert_true(ms > 1 && ms < 60000); /* the delays of the launch */
    assert_int_equal(emulated_driver_counts().n_polls, 1);
    assert_int_equal(emulated_driver_counts().n_waits, 2);
    ok(r.d->event_record(second, r.stream));
    ok(r.d->event_destroy(second)); /* before it is reached */
    ok(r.d->event_destroy(first));
    end(&r);
}

/* Adds y = y * factor + x behind the nodes. */
static cuda_graph_node add(const rig *r, cuda_graph graph, uint32_t factor, const cuda_graph_node *after, size_t n) {
    test_append_args args = {(const uint32_t *)(uintptr_t)r->x, (uint32_t *)(uintptr_t)r->y, factor, N};
    cuda_kernel_node node = {.function = r->append,
                             .grid_x = 2,
                             .grid_y = 1,
                             .grid_z = 1,
                             .block_x = 64,
                             .block_y = 1,
                             .block_z = 1,
                             .kernel_params = (void *[]){&args}};
    cuda_graph_node out = NULL;
    ok(r->d->graph_add_kernel_node(&out, graph, after, n, &node));
    args = (test_append_args){0};
    return out;
}

/* Runs y = 1 and then three nodes, each behind the one before or behind none. */
static uint32_t run_graph(rig *r, bool has_edges) {
    cuda_graph graph;
    cuda_graph_exec exec;
    uint32_t value;
    fill(r->host, 1);
    ok(r->d->graph_create(&graph, 0));
    cuda_graph_node first = add(r, graph, 10, NULL, 0), second = add(r, graph, 100, &first, has_edges);
    add(r, graph, 1000, (cuda_graph_node[]){first, second}, has_edges ? 2 : 0);
    ok(r->d->graph_instantiate(&exec, graph, 0));
    ok(r->d->graph_destroy(graph));
    ok(r->d->graph_upload(exec, r->stream));
    ok(r->d->memcpy_htod_async(r->y, r->host, BYTES, r->stream));
    ok(r->d->memcpy_htod_async(r->x, r->host, BYTES, r->stream));
    ok(r->d->graph_launch(exec, r->stream));
    ok(r->d->graph_exec_destroy(exec)); /* under way */
    ok(r->d->memcpy_dtoh_async(&value, r->y, sizeof value, r->stream));
    return value;
}

static void test_graph(void **state) {
    (void)state;
    rig r = begin(&SLOW);
    const uint32_t in_order = ((1 * 10 + 1) * 100 + 1) * 1000 + 1;
    int n_other = 0;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(run_graph(&r, true), in_order);
        n_other += run_graph(&r, false) != in_order;
    }
    assert_in_range(n_other, 1, 20); /* missing edges show */
    assert_int_equal(emulated_driver_counts().n_graph_launches, 40);
    assert_int_equal(emulated_driver_counts().n_nodes, 120);
    assert_int_equal(emulated_driver_counts().n_launches, 0);
    end(&r);
}

static void test_refusals(void **state) {
    (void)state;
    const cuda_driver *d = emulated_driver();
    emulated_driver_reset(&(emulated_options){.n_devices = 2, .capability = 80, .version = 11080, .name = "small"});
    int value;
    char name[8];
    cuda_context contexts[2];
    assert_int_equal(d->device_get_count(&value), 3); /* not initialised */
    ok(d->driver_get_version(&value));
    assert_int_equal(value, 11080);
    ok(d->init(0));
    ok(d->device_get_count(&value));
    assert_int_equal(value, 2);
    assert_int_equal(d->device_get_name(name, sizeof name, 2), 101);
    ok(d->device_get_name(name, sizeof name, 1));
    assert_string_equal(name, "small");
    ok(d->device_get_attribute(&value, CUDA_ATTRIBUTE_CAPABILITY_MAJOR, 1));
    assert_int_equal(value, 8);
    ok(d->device_primary_ctx_retain(&contexts[0], 0));
    ok(d->device_primary_ctx_retain(&contexts[1], 1));
    cuda_address at = 0;
    assert_int_equal(d->mem_alloc(&at, 4), 201); /* no current context */
    ok(d->ctx_set_current(contexts[0]));
    cuda_stream stream;
    ok(d->stream_create(&stream, 0));
    ok(d->mem_alloc(&at, 4));
    uint32_t number = 0;
    assert_int_equal(d->memcpy_htod_async(at, &number, 5, stream), CUDA_INVALID_VALUE); /* too many bytes */
    ok(d->ctx_set_current(contexts[1]));
    assert_int_equal(d->stream_synchronize(stream), 400); /* of another context */
    assert_int_equal(d->mem_free(at), CUDA_INVALID_VALUE);
    ok(d->ctx_set_current(contexts[0]));
    ok(d->stream_destroy(stream));
    assert_int_equal(d->stream_synchronize(stream), 400);
    assert_int_equal(d->event_query((cuda_event)(uintptr_t)stream), 400);
    assert_int_equal(d->stream_destroy(NULL), 400);
    ok(d->mem_free(at));
    assert_int_equal(d->mem_free(at), CUDA_INVALID_VALUE);
    ok(d->device_primary_ctx_release(0));
    ok(d->device_primary_ctx_release(1));
    assert_int_equal(d->mem_alloc(&at, 4), 201);
    assert_int_equal(emulated_driver_counts().n_refused, 11);
    emulated_driver_reset(&(emulated_options){.no_device = true});
    assert_int_equal(d->init(0), CUDA_NO_DEVICE);
    emulated_driver_reset(NULL);
}

static void test_launch_refusals(void **state) {
    (void)state;
    rig r = begin(NULL);
    test_append_args args = {0};
    void *params[] = {&args};
    cuda_function other;
    const cuda_driver *d = r.d;
    assert_int_equal(d->module_get_function(&other, r.module, "no_kernel"), CUDA_NOT_FOUND);
    assert_int_equal(d->launch_kernel(r.append, 0, 1, 1, 64, 1, 1, 0, r.stream, params, NULL), CUDA_INVALID_VALUE);
    assert_int_equal(d->launch_kernel(r.append, 1, 1, 1, 96, 1, 1, 0, r.stream, params, NULL), 701);
    const unsigned shared_bytes = 100 << 10;
    assert_int_equal(d->launch_kernel(r.append, 1, 1, 1, 64, 1, 1, shared_bytes, r.stream, params, NULL),
                     CUDA_INVALID_VALUE);
    ok(d->func_set_attribute(r.append, CUDA_FUNCTION_DYNAMIC_SHARED_BYTES, (int)shared_bytes));
    ok(d->launch_kernel(r.append, 1, 1, 1, 64, 1, 1, shared_bytes, r.stream, params, NULL));
    ok(d->stream_synchronize(r.stream));
    cuda_graph graph, second;
    cuda_graph_exec exec;
    ok(d->graph_create(&graph, 0));
    ok(d->graph_create(&second, 0));
    cuda_graph_node node = add(&r, graph, 1, NULL, 0), out;
    cuda_kernel_node kernel = {.function = r.append,
                               .grid_x = 1,
                               .grid_y = 1,
                               .grid_z = 1,
                               .block_x = 64,
                               .block_y = 1,
                               .block_z = 1,
                               .kernel_params = params};
    assert_int_equal(d->graph_add_kernel_node(&out, second, &node, 1, &kernel), CUDA_INVALID_VALUE);
    assert_int_equal(d->graph_add_kernel_node(&out, graph, (cuda_graph_node[]){node, node}, 2, &kernel),
                     CUDA_INVALID_VALUE);
    ok(d->graph_instantiate(&exec, graph, 0));
    ok(d->module_unload(r.module));
    assert_int_equal(d->launch_kernel(r.append, 1, 1, 1, 64, 1, 1, 0, r.stream, params, NULL), 400);
    assert_int_equal(d->graph_launch(exec, r.stream), 400);
    emulated_driver_reset(NULL); /* destroys what is left */
    assert_int_equal(emulated_driver_counts().n_live, 0);
}

static void test_failures(void **state) {
    (void)state;
    cuda_event event = NULL;
    rig r = begin(&(emulated_options){.fail = "event_create", .fail_at = 2, .result = CUDA_OUT_OF_MEMORY});
    ok(r.d->event_create(&event, 0));
    ok(r.d->event_destroy(event));
    assert_int_equal(r.d->event_create(&event, 0), CUDA_OUT_OF_MEMORY);
    assert_string_equal(emulated_driver_counts().failed, "event_create");
    ok(r.d->event_create(&event, 0)); /* the next one works */
    ok(r.d->event_destroy(event));
    end(&r);

    r = begin(&(emulated_options){.fail = "stream_synchronize", .fail_at = 1, .result = CUDA_LAUNCH_FAILED});
    assert_int_equal(r.d->stream_synchronize(r.stream), CUDA_LAUNCH_FAILED);
    assert_int_equal(r.d->event_create(&event, 0), CUDA_LAUNCH_FAILED); /* it stays */
    assert_int_equal(r.d->mem_free(r.x), CUDA_LAUNCH_FAILED);           /* but frees */
    assert_int_equal(emulated_driver_counts().n_live_memory, 1);
    assert_int_equal(emulated_driver_counts().n_refused, 0);

    const cuda_driver *d = r.d;
    emulated_driver_reset(&(emulated_options){.fail_at = 2});
    ok(d->init(0));
    assert_int_equal(d->device_primary_ctx_retain(&r.context, 0), 999);
    assert_int_equal(emulated_driver_counts().n_live, 0);
    emulated_driver_reset(NULL);
}

/* Work fails when its turn comes: the calls before it and the one that queues it succeed. */
static void test_break(void **state) {
    (void)state;
    rig r = begin(&(emulated_options){.break_at = 2, .max_delay_us = 100});
    cuda_event event;
    ok(r.d->event_create(&event, 0));
    ok(launch(&r, 1, 0));
    ok(r.d->stream_synchronize(r.stream));
    (void)launch(&r, 1, 0);
    (void)r.d->event_record(event, r.stream);
    while (r.d->event_query(event) == CUDA_NOT_READY)
        ;
    assert_int_equal(r.d->event_query(event), CUDA_LAUNCH_FAILED);
    assert_int_equal(r.d->event_synchronize(event), CUDA_LAUNCH_FAILED);
    assert_int_equal(r.d->stream_synchronize(r.stream), CUDA_LAUNCH_FAILED);
    assert_int_equal(r.d->event_destroy(event), CUDA_LAUNCH_FAILED);
    emulated_driver_reset(NULL);
}

static void test_environment(void **state) {
    (void)state;
    const cuda_driver *d = emulated_driver();
    int count, version;
    setenv("EMULATED_CUDA", "n_devices=3 version=13000 fail=device_get fail_at=1 result=2", 1);
    emulated_driver_reset(NULL);
    unsetenv("EMULATED_CUDA");
    ok(d->init(0));
    ok(d->device_get_count(&count));
    ok(d->driver_get_version(&version));
    assert_int_equal(count, 3);
    assert_int_equal(version, 13000);
    assert_int_equal(d->device_get(&count, 0), CUDA_OUT_OF_MEMORY);
    emulated_driver_reset(NULL);
}

/* --- What ends the process --------------------------------------------------------------------------------------- */

static void touch_device(rig *r) {
    *(volatile uint32_t *)(uintptr_t)r->x = 1;
}

static void free_under_copy(rig *r) {
    (void)r->d->memcpy_htod_async(r->x, r->host, BYTES, r->stream);
    (void)r->d->mem_free(r->x);
    (void)r->d->stream_synchronize(r->stream);
}

static void free_under_kernel(rig *r) {
    (void)launch(r, 1, r->x);
    (void)r->d->mem_free(r->x);
    (void)r->d->stream_synchronize(r->stream);
}

static void free_host_under_copy(rig *r) {
    (void)r->d->memcpy_dtoh_async(r->host, r->x, BYTES, r->stream);
    (void)r->d->mem_free_host(r->host);
    (void)r->d->stream_synchronize(r->stream);
}

static void overrun(rig *r) {
    (void)launch(r, 1, r->x + 256);
    (void)r->d->stream_synchronize(r->stream);
}

static void unload_under_kernel(rig *r) {
    (void)launch(r, 1, 0);
    (void)r->d->module_unload(r->module);
}

static void behave(rig *r) {
    (void)launch(r, 1, r->x);
    (void)r->d->stream_synchronize(r->stream);
}

/* Whether the function ends a process: by a signal, or by AddressSanitizer. The child makes its own threads. */
static bool ends_process(void (*function)(rig *r)) {
    int status = 0;
    emulated_driver_reset(NULL);
    pid_t child = fork();
    if (child == 0) {
        rig r = begin(&LATE);
        close(STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        function(&r);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void test_mistakes(void **state) {
    (void)state;
    assert_false(ends_process(behave));
    assert_true(ends_process(touch_device));
    assert_true(ends_process(free_under_copy));
    assert_true(ends_process(free_under_kernel));
    assert_true(ends_process(free_host_under_copy));
    assert_true(ends_process(overrun));
    assert_true(ends_process(unload_under_kernel));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),       cmocka_unit_test(test_later),           cmocka_unit_test(test_memory),
        cmocka_unit_test(test_host_memory), cmocka_unit_test(test_events),          cmocka_unit_test(test_graph),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_launch_refusals), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_break),       cmocka_unit_test(test_environment),     cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
