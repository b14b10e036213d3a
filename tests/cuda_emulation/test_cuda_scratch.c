/* tests/cuda_emulation/test_cuda_scratch.c - scratch memory of programs: what nodes share and how that orders them, and
 * that a stage takes no memory of the device which it has not counted. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_backend.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/cuda_scratch.h"
#include "tests/cuda_emulation/driver.h"
#include "tests/support/test.h"
#include "tests/support/tiny_model.h"
#include "worker/stage/stage.h"

/* --- The layout -------------------------------------------------------------------------------------------------- */

enum { NODES = 4, ADDRESS = 1 << 20 };
static const cuda_shared_key LIST = {{1, 7}}, STATES = {{2, 7}};

/* Plans the nodes. Nodes 0 and 1 are one group. 0 and 2 share LIST; 1 and 3 share STATES, of which 3 needs more. */
static void plan(cuda_scratch_layout *s, void *own[NODES], void *shared[NODES], bool is_first[NODES]) {
    static const size_t own_bytes[NODES] = {1000, 300, 100, 0}, shared_bytes[NODES] = {10, 20, 10, 5000};
    mr_err err = {0};
    for (int32_t i = 0; i < NODES; i++) {
        cuda_scratch_begin(s, i, i != 1);
        own[i] = NULL;
        if (own_bytes[i] > 0)
            expect_ok(cuda_scratch_take(s, own_bytes[i], &own[i], &err), &err);
        expect_ok(cuda_scratch_share(s, i % 2 ? &STATES : &LIST, shared_bytes[i], &shared[i], &is_first[i], &err),
                  &err);
    }
}

static void test_layout(void **state) {
    (void)state;
    cuda_scratch_layout s;
    void *own[NODES], *shared[NODES];
    bool is_first[NODES];
    size_t bytes = 0;
    mr_err err = {0};
    expect_ok(cuda_scratch_init(&s, NODES, &err), &err);
    plan(&s, own, shared, is_first);
    expect_ok(cuda_scratch_bytes(&s, &bytes, &err), &err);
    assert_int_equal(bytes, 1024 + 512 + 256 + 5120);
    cuda_scratch_place(&s, ADDRESS);
    plan(&s, own, shared, is_first);
    const uintptr_t at[NODES] = {ADDRESS, ADDRESS + 1024, ADDRESS, 0};
    for (int i = 0; i < NODES; i++) {
        assert_int_equal((uintptr_t)own[i], at[i]);
        assert_int_equal((uintptr_t)shared[i], ADDRESS + 1536 + (i % 2 ? 256 : 0));
        assert_int_equal(is_first[i], i < 2);
    }

    cuda_order *order = NULL;
    cuda_use uses[CUDA_MAX_USES];
    int32_t before[NODES], n_before[NODES];
    expect_ok(cuda_order_create(NODES, &order, &err), &err);
    for (int32_t i = 0; i < NODES; i++)
        n_before[i] = cuda_order_add(order, uses, cuda_scratch_uses(&s, i, uses), before);
    assert_int_equal(n_before[0], 0);
    assert_int_equal(n_before[1], 0); /* beside node 0 */
    assert_int_equal(n_before[2], 1); /* behind node 0, but not behind node 1 */
    assert_int_equal(n_before[3], 1);
    assert_int_equal(before[0], 1);
    cuda_order_destroy(order);

    void *none;
    s.is_placed = false;
    cuda_scratch_begin(&s, 0, true);
    expect_fails(cuda_scratch_take(&s, SIZE_MAX - 100, &none, &err), MR_E_TOO_LONG, &err, "scratch memory of");
    cuda_scratch_deinit(&s);
}

/* --- A stage ----------------------------------------------------------------------------------------------------- */

enum { LAYERS = 6, ROWS = 4, VOCABULARY = 90 };

/* Six layers: four with a window, two without. */
static tiny_model *make_model(void) {
    static const bool windows[LAYERS] = {true, true, false, true, true, false};
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    d.n_layers = LAYERS;
    d.vocab_size = VOCABULARY;
    gguf_writer *w = tiny_model_write(&d);
    gguf_writer_u32(w, "llama.attention.sliding_window", 32);
    gguf_writer_bools(w, "llama.attention.sliding_window_pattern", windows, LAYERS);
    return tiny_model_open(w);
}

/* The driver's table, with counts of the nodes that make work lists. */
static cuda_driver counting;
static cuda_function list_kernel;
static int32_t n_graphs, n_lists;

static cuda_result find_function(cuda_function *out, cuda_module module, const char *name) {
    cuda_result result = emulated_driver()->module_get_function(out, module, name);
    if (result == CUDA_OK && strcmp(name, "cuda_attention_list") == 0)
        list_kernel = *out;
    return result;
}

static cuda_result add_kernel(cuda_graph_node *node, cuda_graph graph, const cuda_graph_node *dependencies, size_t n,
                              const cuda_kernel_node *kernel) {
    n_lists += kernel->function == list_kernel;
    return emulated_driver()->graph_add_kernel_node(node, graph, dependencies, n, kernel);
}

static cuda_result instantiate(cuda_graph_exec *exec, cuda_graph graph, unsigned long long flags) {
    n_graphs++;
    return emulated_driver()->graph_instantiate(exec, graph, flags);
}

static mr_backend *create_gpu(void) {
    static const cuda_image images[] = {{"kernels", "all of them"}, {NULL, NULL}};
    mr_backend *be = NULL;
    mr_err err = {0};
    emulated_driver_reset(NULL);
    counting = *emulated_driver();
    counting.module_get_function = find_function;
    counting.graph_add_kernel_node = add_kernel;
    counting.graph_instantiate = instantiate;
    n_graphs = n_lists = 0;
    expect_ok(mr_cuda_backend_create(&(mr_cuda_options){.driver = &counting, .images = images}, &be, &err), &err);
    return be;
}

/* Runs a prompt that is longer than the window, in steps of ROWS. */
static void run_stage(mr_stage *s, float out[VOCABULARY]) {
    static const int32_t blocks[] = {2, 0, 1};
    mr_err err = {0};
    expect_ok(mr_stage_set_blocks(s, 0, 0, blocks, 3, &err), &err);
    for (int32_t first = 0; first < 40; first += ROWS) {
        mr_step_rows *r = mr_stage_rows(s);
        r->n_rows = ROWS;
        r->n_out = 1;
        for (int32_t i = 0; i < ROWS; i++) {
            int32_t p = r->positions[i] = first + i;
            r->ids[i] = 7 + p;
            r->slots[i] = blocks[p / MR_KV_BLOCK] * MR_KV_BLOCK + p % MR_KV_BLOCK;
            r->row_seq[i] = 0;
        }
        r->out_rows[0] = ROWS - 1;
        expect_ok(mr_stage_run(s, &(mr_stage_step){0}, &err), &err);
    }
    memcpy(out, mr_stage_logits(s, 0), VOCABULARY * sizeof *out);
}

/* Layers of one kind share a work list, and the device has no memory that the stage's sizes do not have. */
static void test_stage(void **state) {
    (void)state;
    tiny_model *model = make_model();
    mr_backend *cpu = NULL;
    mr_err err = {0};
    float want[VOCABULARY], got[VOCABULARY];
    mr_stage_config config = {.gguf = model->gguf,
                              .info = &model->info,
                              .range = {0, LAYERS},
                              .max_rows = ROWS,
                              .max_out_rows = 1,
                              .max_sequences = 1,
                              .max_context = 1100, /* long enough for states of split runs */
                              .n_kv_blocks = 3,
                              .kv_type = MR_TYPE_F16};
    mr_stage *s = NULL;
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &cpu, &err), &err);
    expect_ok(mr_stage_create(&config, cpu, NULL, NULL, &s, &err), &err);
    run_stage(s, want);
    mr_stage_destroy(s);

    config.devices = (mr_backends){.n = 1, .at = {create_gpu()}, .whole_layers = {LAYERS}};
    const size_t before = emulated_driver_counts().live_bytes;
    mr_stage_sizes sizes;
    expect_ok(mr_stage_measure(&config, cpu, &sizes, &err), &err);
    assert_int_equal(emulated_driver_counts().live_bytes, before);
    expect_ok(mr_stage_create(&config, cpu, NULL, NULL, &s, &err), &err);
    const mr_stage_bytes *b = &sizes.devices[0];
    assert_int_equal(emulated_driver_counts().live_bytes - before, b->weights + b->kv + b->tables + b->work);
    assert_true(b->work > 0);
    assert_int_equal(n_graphs, 4); /* of 1, 2 and 4 rows, and of state */
    assert_int_equal(n_lists, 3 * 2);
    run_stage(s, got);
    assert_memory_equal(got, want, sizeof got);
    mr_stage_destroy(s);
    mr_backend_destroy(config.devices.at[0]);
    assert_int_equal(emulated_driver_counts().n_live, 0);
    mr_backend_destroy(cpu);
    tiny_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
