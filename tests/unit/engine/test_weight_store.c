/* Weights that outlive their stage: a later stage takes the layers that fit, loads the others, and has the same bytes
 * as a stage that loads all of them. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "engine/model/weights_internal.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/support/tiny_model.h"

enum { N_LAYERS = 6 };

static mr_backend *backend;
static tiny_model *model;
static mr_weight_store *store;

static int open_all(void **state) {
    (void)state;
    tiny_desc d = tiny_default("qwen2", MR_TYPE_Q8_0);
    d.n_layers = N_LAYERS;
    model = tiny_model_create(&d);
    return mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 2}, &backend, NULL) == MR_OK &&
                   mr_weight_store_create(&store, NULL) == MR_OK
               ? 0
               : -1;
}

static int close_all(void **state) {
    (void)state;
    mr_weight_store_destroy(store);
    tiny_model_destroy(model);
    mr_backend_destroy(backend);
    return 0;
}

typedef struct wish {
    int32_t first, last;
    bool map;
    mr_weight_store *store;
    int32_t max_context;
} wish;

static mr_status create(const tiny_model *m, wish want, mr_weights **out, mr_err *err) {
    mr_weights_desc desc = {.gguf = m->gguf,
                            .info = &m->info,
                            .range = {want.first, want.last},
                            .map = want.map,
                            .max_context = want.max_context,
                            .store = want.store};
    return mr_weights_create(&desc, &(mr_backends){.at = {backend}, .n = 1}, out, err);
}

/* What the progress of a load has said. */
typedef struct seen {
    size_t done, total;
    int n, stop_at; /* the call that stops the load; 0: none */
} seen;

static bool note_progress(void *ctx, size_t done, size_t total) {
    seen *s = ctx;
    assert_true(done >= s->done && done <= total && (s->n == 0 || total == s->total));
    *s = (seen){.done = done, .total = total, .n = s->n + 1, .stop_at = s->stop_at};
    return s->n != s->stop_at;
}

static mr_weights *load(const tiny_model *m, wish want, seen *out_seen) {
    mr_weights *w = NULL;
    mr_err err = {0};
    expect_ok(create(m, want, &w, &err), &err);
    *out_seen = (seen){0};
    expect_ok(mr_weights_load(w, note_progress, out_seen, &err), &err);
    assert_int_equal(out_seen->done, out_seen->total);
    return w;
}

typedef struct expected {
    const mr_weights *all;
    int n;
} expected;

static const weight *same_tensor(const mr_weights *all, const mr_weights *ws, const weight *w) {
    if (w == &ws->token_embd)
        return &all->token_embd;
    if (w == &ws->output_norm || w == &ws->output)
        return w == &ws->output ? &all->output : &all->output_norm;
    if (w >= ws->rope_angles && w < ws->rope_angles + MR_MODEL_MAX_ROPES)
        return &all->rope_angles[w - ws->rope_angles];
    int32_t at = (int32_t)(w - &ws->layers[0][0]) + (ws->range.first - all->range.first) * LAYER_SLOTS;
    return &all->layers[0][0] + at;
}

static mr_status compare(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    expected *e = ctx;
    const weight *other = same_tensor(e->all, ws, w);
    (void)err;
    assert_string_equal(w->tensor.name, other->tensor.name);
    assert_int_equal(w->is_mapped, other->is_mapped);
    if (w->is_mapped)
        return MR_OK;
    mr_tensor a = weight_instance(ws, w, 0), b = weight_instance(e->all, other, 0);
    assert_int_equal(a.bytes, b.bytes);
    assert_memory_equal(a.buffer->base + a.offset, b.buffer->base + b.offset, a.bytes);
    e->n++;
    return MR_OK;
}

/* Compares all tensors with those of the whole model, loaded without a store. */
static void check_bytes(const tiny_model *m, mr_weights *w) {
    seen s;
    mr_weights *all = load(m, (wish){0, N_LAYERS, w->map, NULL, w->max_context}, &s);
    expected e = {.all = all};
    assert_int_equal(weights_visit(w, compare, &e, NULL), MR_OK);
    assert_true(e.n > w->range.last - w->range.first);
    mr_weights_destroy(all);
}

static size_t bytes_of(wish want) {
    mr_weights *w = NULL;
    mr_err err = {0};
    want.store = NULL;
    expect_ok(create(model, want, &w, &err), &err);
    size_t bytes = mr_weights_bytes(w);
    mr_weights_destroy(w);
    return bytes;
}

/* --- Tests ------------------------------------------------------------------------------------------------------- */

/* Each stage of a row of plans loads what the one before it did not have. */
static void test_layers_are_kept(void **state) {
    (void)state;
    static const struct {
        int32_t first, last, kept;
    } plans[] = {{1, 3, 0}, {1, 3, 2}, {2, 5, 1}, {0, 6, 3}, {0, 6, 6}, {3, 6, 3}, {0, 3, 0}, {5, 6, 0}, {0, 6, 1}};
    mr_weight_store_clear(store);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        seen s;
        wish want = {plans[i].first, plans[i].last, false, store, 0};
        mr_weights *w = load(model, want, &s);
        assert_int_equal(mr_weight_store_bytes(store), 0); /* what is not wanted is freed */
        assert_int_equal(mr_weights_kept_layers(w), plans[i].kept);
        assert_int_equal(s.total, mr_weights_bytes(w) - mr_weights_kept_bytes(w));
        assert_int_equal(mr_weights_kept_bytes(w) > 0, plans[i].kept > 0);
        check_bytes(model, w);
        mr_weights_destroy(w);
        assert_in_range(mr_weight_store_bytes(store), 1, bytes_of(want)); /* constants are not kept */
    }
}

/* A buffer with other tensors, or for another context, is loaded. */
static void test_what_does_not_fit(void **state) {
    (void)state;
    seen s;
    mr_weight_store_clear(store);
    mr_weights_destroy(load(model, (wish){0, N_LAYERS, false, store, 100}, &s));
    mr_weights *w = load(model, (wish){0, N_LAYERS, true, store, 100}, &s); /* vectors alone */
    assert_int_equal(mr_weights_kept_layers(w), 0);
    check_bytes(model, w);
    mr_weights_destroy(w);
    w = load(model, (wish){0, N_LAYERS, true, store, 3000}, &s);
    assert_int_equal(mr_weights_kept_layers(w), N_LAYERS);
    check_bytes(model, w);
    mr_weights_destroy(w);
    tiny_desc d = tiny_default("qwen2", MR_TYPE_Q8_0);
    d.n_layers = N_LAYERS + 1; /* another file */
    tiny_model *other = tiny_model_create(&d);
    w = load(other, (wish){0, 3, true, store, 3000}, &s);
    assert_int_equal(mr_weights_kept_bytes(w), 0);
    mr_weights_destroy(w);
    tiny_model_destroy(other);
    mr_weight_store_clear(store);
}

/* A load that is stopped anywhere leaves whole layers in the store, and the next one loads the rest. */
static void test_a_load_is_stopped(void **state) {
    (void)state;
    const wish want = {0, N_LAYERS, false, store, 0};
    int32_t most = 0;
    seen whole, s;
    mr_weight_store_clear(store);
    mr_weights_destroy(load(model, want, &whole));
    for (int stop_at = 1; stop_at < whole.n; stop_at += 3) {
        mr_weights *w = NULL;
        mr_err err = {0};
        mr_weight_store_clear(store);
        expect_ok(create(model, want, &w, &err), &err);
        s = (seen){.stop_at = stop_at};
        assert_int_equal(mr_weights_load(w, note_progress, &s, &err), MR_E_CANCELLED);
        assert_int_equal(s.n, stop_at);
        mr_weights_destroy(w);
        w = load(model, want, &s);
        int32_t kept = mr_weights_kept_layers(w);
        assert_true(kept >= most && kept < N_LAYERS && s.total == mr_weights_bytes(w) - mr_weights_kept_bytes(w));
        most = kept;
        check_bytes(model, w);
        mr_weights_destroy(w);
    }
    assert_int_equal(most, N_LAYERS - 1);
    mr_weight_store_clear(store);
}

enum { N_MOE_LAYERS = 2, N_HELD = 3, N_MATRICES = 3 };

/* Weights whose experts are on the CPU, and N_HELD of each layer on the device, too. */
static mr_weights *create_held(const tiny_model *m, mr_backend *device) {
    mr_weights *w = NULL;
    mr_err err = {0};
    const mr_weights_desc desc = {.gguf = m->gguf, .info = &m->info, .range = {0, N_MOE_LAYERS}, .store = store};
    const mr_backends both = {.at = {device, backend},
                              .n = 2,
                              .whole_layers = {N_MOE_LAYERS},
                              .host_experts = {N_MOE_LAYERS},
                              .device_experts = {N_HELD}};
    expect_ok(mr_weights_create(&desc, &both, &w, &err), &err);
    assert_int_equal(mr_weights_held_experts(w, 0), N_HELD);
    return w;
}

/* A load that is stopped among the experts of a device loads no further one, and leaves nothing in the device's queue
 * that reads the file. */
static void test_a_load_of_experts_is_stopped(void **state) {
    (void)state;
    tiny_desc d = tiny_default("qwen3moe", MR_TYPE_Q8_0);
    d.n_layers = N_MOE_LAYERS;
    d.n_experts = 4;
    d.n_experts_used = 2;
    tiny_model *m = tiny_model_create(&d);
    mr_backend *device = NULL;
    mr_err err = {0};
    seen whole = {0};
    const test_device_options options = {.ops = TEST_DEVICE_ALL_OPS, .seed = 3, .max_delay_us = 300};
    expect_ok(test_device_create(&options, &device, &err), &err);
    mr_weight_store_clear(store);
    mr_weights *w = create_held(m, device);
    expect_ok(mr_weights_load(w, note_progress, &whole, &err), &err);
    int n_loads = test_device_get_stats(device).n_loads;
    mr_weights_destroy(w);
    for (int left = 1; left < N_MOE_LAYERS * N_HELD; left++) {
        seen s = {.stop_at = whole.n - 1 - left}; /* the last call is behind all experts */
        mr_weight_store_clear(store);
        test_device_reset(device, 0);
        w = create_held(m, device);
        assert_int_equal(mr_weights_load(w, note_progress, &s, &err), MR_E_CANCELLED);
        assert_int_equal(test_device_get_stats(device).n_loads, n_loads - left * N_MATRICES);
        for (int32_t l = 0; l < N_MOE_LAYERS; l++)
            expect_ok(device->ops->wait(device, w->held[l].fence, 0, &err), &err);
        mr_weights_destroy(w);
        w = create_held(m, device); /* all layers are in the store; their experts are loaded again */
        s = (seen){0};
        expect_ok(mr_weights_load(w, note_progress, &s, &err), &err);
        assert_int_equal(mr_weights_kept_layers(w), N_MOE_LAYERS);
        assert_true(s.total > N_MOE_LAYERS * N_HELD * mr_weights_held_bytes(w, 0));
        mr_weights_destroy(w);
    }
    mr_weight_store_clear(store);
    mr_backend_destroy(device);
    tiny_model_destroy(m);
}

static void test_failing_allocations(void **state) {
    (void)state;
    mr_status status = MR_E_NO_MEMORY;
    mr_weight_store_clear(store);
    size_t before = mr_mem_get_stats().live_bytes;
    for (int n = 0; status != MR_OK; n++) {
        mr_weights *w = NULL;
        mr_err err = {0};
        seen s;
        mr_weights_destroy(load(model, (wish){1, 3, false, store, 0}, &s));
        mr_mem_fail_at(n);
        status = create(model, (wish){2, 5, false, store, 0}, &w, &err);
        if (status == MR_OK)
            status = mr_weights_load(w, NULL, NULL, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        mr_weights_destroy(w);
        w = load(model, (wish){1, 5, false, store, 0}, &s);
        check_bytes(model, w);
        mr_weights_destroy(w);
        mr_weight_store_clear(store);
        assert_int_equal(mr_mem_get_stats().live_bytes, before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_are_kept),     cmocka_unit_test(test_what_does_not_fit),
        cmocka_unit_test(test_a_load_is_stopped),   cmocka_unit_test(test_a_load_of_experts_is_stopped),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests_name("weight_store", tests, open_all, close_all);
}
