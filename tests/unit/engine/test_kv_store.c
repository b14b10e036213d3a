/* The KV store: sizes, layout of layers, copies of blocks, and invalid descriptions. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "engine/kv/kv_store.h"
#include "tests/support/test.h"

static const mr_kv_shape SHAPES[] = {{2, 32, 32}, {2, 32, 32}, {2, 32, 32}};
static const mr_kv_desc DESC = {.n_layers = 3, .n_blocks = 5, .shapes = SHAPES, .type = MR_TYPE_F16};
/* Layers that differ, and keys that are wider than values. */
static const mr_kv_shape MIXED[] = {{2, 32, 32}, {1, 96, 64}, {4, 32, 64}};

static mr_backend *backend_make(void) {
    mr_backend *be = NULL;
    assert_int_equal(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &be, NULL), MR_OK);
    return be;
}

static void test_bytes(void **state) {
    (void)state;
    mr_kv_desc d = DESC;
    size_t bytes = 0;
    assert_int_equal(mr_kv_store_bytes(&d, &bytes, NULL), MR_OK);
    assert_int_equal(bytes, 2 * 3 * 5 * (2 * 32 * MR_KV_BLOCK) * 2);
    d.type = MR_TYPE_F32;
    assert_int_equal(mr_kv_store_bytes(&d, &bytes, NULL), MR_OK);
    assert_int_equal(bytes, 2 * 3 * 5 * (2 * 32 * MR_KV_BLOCK) * 4);
    d.type = MR_TYPE_Q8_0;
    assert_int_equal(mr_kv_store_bytes(&d, &bytes, NULL), MR_OK);
    assert_int_equal(bytes, 2 * 3 * 5 * (2 * 32 * MR_KV_BLOCK) / 32 * 34);
    d.shapes = MIXED;
    d.type = MR_TYPE_F16;
    assert_int_equal(mr_kv_store_bytes(&d, &bytes, NULL), MR_OK);
    assert_int_equal(bytes, 5 * (2 * 64 + 96 + 64 + 4 * (32 + 64)) * MR_KV_BLOCK * 2);
    d.n_layers = 0;
    assert_int_equal(mr_kv_store_bytes(&d, &bytes, NULL), MR_OK);
    assert_int_equal(bytes, 0);
}

/* An impossible description is refused with a status, and no sum or product overflows. */
static void test_descriptions_that_cannot_be(void **state) {
    (void)state;
    enum { MAX_LAYERS = 1000 };
    static mr_kv_shape shapes[MAX_LAYERS];
    const struct {
        int32_t n_layers, n_blocks;
        mr_kv_shape shape; /* of the last layer */
        mr_type type;
        mr_status want;
        const char *text;
    } cases[] = {
        {-1, 1, {1, 16, 16}, MR_TYPE_F16, MR_E_INVALID, "-1 layers"},
        {1, 0, {1, 16, 16}, MR_TYPE_F16, MR_E_INVALID, "0 blocks"},
        {1, -5, {1, 16, 16}, MR_TYPE_F16, MR_E_INVALID, "-5 blocks"},
        {1, 1, {0, 16, 16}, MR_TYPE_F16, MR_E_INVALID, "0 heads"},
        {1, 1, {1, 0, 0}, MR_TYPE_F16, MR_E_INVALID, "heads of 0"},
        {1, 1, {1, 16, 16}, MR_TYPE_Q8_0, MR_E_UNSUPPORTED, "heads of 16"},
        {1, 1, {1, 80, 80}, MR_TYPE_Q8_0, MR_E_UNSUPPORTED, "--kv-type f16"},
        {1, 1, {1, 32, 32}, MR_TYPE_Q4_0, MR_E_UNSUPPORTED, "Q4_0"},
        {1, 1, {1, 16, 16}, MR_TYPE_BF16, MR_E_UNSUPPORTED, "BF16"},
        {1, 1, {INT32_MAX, INT32_MAX, INT32_MAX}, MR_TYPE_F32, MR_E_TOO_LONG, "too large"},
        {1, 1, {1 << 15, 1 << 13, 1 << 13}, MR_TYPE_F32, MR_E_TOO_LONG, "too large"},
        {MAX_LAYERS, INT32_MAX, {1 << 13, 1 << 13, 1 << 13}, MR_TYPE_F32, MR_E_TOO_LONG, "too large"},
        {1, INT32_MAX, {(1 << 23) - 1, 16, 16}, MR_TYPE_F32, MR_E_TOO_LONG, "too large"},
        {2, 1, {1, 16, 0}, MR_TYPE_F16, MR_E_INVALID, "1 heads of 16 and 0"},
        {2, 1, {1, 32, 80}, MR_TYPE_Q8_0, MR_E_UNSUPPORTED, "heads of 80"},
        {MAX_LAYERS, INT32_MAX / 2, {1 << 12, 1 << 9, 1 << 9}, MR_TYPE_F32, MR_E_TOO_LONG, "layers is too large"},
        {5, INT32_MAX, {1 << 12, 1 << 12, 1 << 12}, MR_TYPE_F32, MR_E_TOO_LONG, "too large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes = 77;
        mr_err err = {0};
        for (int32_t l = 0; l < cases[i].n_layers; l++)
            shapes[l] = cases[i].type == MR_TYPE_Q8_0 && l < cases[i].n_layers - 1 ? SHAPES[0] : cases[i].shape;
        const mr_kv_desc desc = {cases[i].n_layers, cases[i].n_blocks, shapes, cases[i].type};
        mr_status status = mr_kv_store_bytes(&desc, &bytes, &err);
        if (status != cases[i].want || !strstr(err.text, cases[i].text))
            fail_msg("case %zu: %s: '%s', expected '%s'", i, mr_status_name(status), err.text, cases[i].text);
        assert_int_equal(bytes, 77);
        mr_kv_store *kv = NULL;
        assert_int_equal(mr_kv_store_create(NULL, &desc, &kv, &err), cases[i].want);
        assert_null(kv);
    }
}

static void check_layers(const mr_kv_desc *d) {
    mr_backend *be = backend_make();
    mr_kv_store *kv = NULL;
    size_t bytes = 0, at = 0;
    assert_int_equal(mr_kv_store_create(be, d, &kv, NULL), MR_OK);
    assert_int_equal(mr_kv_store_bytes(d, &bytes, NULL), MR_OK);
    for (int32_t l = 0; l < d->n_layers; l++) {
        mr_tensor t[2], described[2];
        mr_kv_store_layer(kv, l, &t[0], &t[1]);
        assert_int_equal(mr_kv_layer_describe(d, l, &described[0], &described[1], NULL), MR_OK);
        for (int i = 0; i < 2; i++) {
            int32_t width = d->shapes[l].n_kv_heads * (i == 0 ? d->shapes[l].k_dim : d->shapes[l].v_dim);
            assert_int_equal(t[i].offset, at);
            assert_int_equal(t[i].storage, MR_STORAGE_STATE);
            assert_int_equal(t[i].type, MR_TYPE_F16);
            assert_int_equal(t[i].ne[0], width * MR_KV_BLOCK);
            assert_int_equal(t[i].ne[1], d->n_blocks);
            /* The kernels step from one block to the next one without padding. */
            assert_int_equal(t[i].row_bytes, (size_t)width * MR_KV_BLOCK * 2);
            assert_non_null(t[i].buffer);
            assert_null(described[i].buffer);
            assert_int_equal(described[i].bytes, t[i].bytes);
            at += t[i].bytes;
        }
        assert_string_not_equal(t[0].name, t[1].name);
    }
    assert_int_equal(at, bytes);
    mr_kv_store_destroy(kv);
    mr_backend_destroy(be);
}

/* Layers lie one after the other, keys before values, and fill the store exactly. */
static void test_layers_do_not_overlap(void **state) {
    (void)state;
    mr_kv_desc mixed = DESC;
    mixed.shapes = MIXED;
    check_layers(&DESC);
    check_layers(&mixed);
}

/* The whole store as one tensor: its parts are the keys and values of all layers, in the order of their places. */
static void test_the_whole_store(void **state) {
    (void)state;
    const mr_type types[] = {MR_TYPE_F16, MR_TYPE_F32, MR_TYPE_Q8_0};
    for (size_t i = 0; i < 3; i++) {
        mr_backend *be = backend_make();
        mr_kv_desc d = DESC;
        mr_kv_store *kv = NULL;
        mr_tensor whole, t[2];
        int32_t parts[6];
        size_t bytes, at = 0;
        d.type = types[i];
        d.shapes = i == 0 ? MIXED : DESC.shapes;
        assert_int_equal(mr_kv_store_bytes(&d, &bytes, NULL), MR_OK);
        assert_int_equal(mr_kv_whole_describe(&d, &whole, parts, NULL), MR_OK);
        assert_int_equal(whole.bytes, bytes);
        assert_int_equal(whole.ne[1], d.n_blocks);
        assert_int_equal(mr_kv_store_create(be, &d, &kv, NULL), MR_OK);
        for (int32_t p = 0; p < 6; p++) {
            mr_kv_store_layer(kv, p / 2, &t[0], &t[1]);
            assert_int_equal(t[p % 2].row_bytes, parts[p]);
            assert_int_equal(t[p % 2].offset, at);
            at += (size_t)parts[p] * (size_t)whole.ne[1];
        }
        assert_int_equal(at, bytes);
        mr_kv_store_destroy(kv);
        mr_backend_destroy(be);
    }
}

static void test_a_new_store_is_zero(void **state) {
    (void)state;
    mr_backend *be = backend_make();
    mr_kv_store *kv = NULL;
    mr_tensor k, v;
    mr_fence fence;
    assert_int_equal(mr_kv_store_create(be, &DESC, &kv, NULL), MR_OK);
    mr_kv_store_layer(kv, 2, &k, &v);
    uint8_t last[64], zeros[64] = {0};
    size_t end = v.offset + v.bytes;
    assert_int_equal(be->ops->get(be, v.buffer, end - sizeof last, last, sizeof last, &fence, NULL), MR_OK);
    assert_memory_equal(last, zeros, sizeof last);
    assert_int_equal(be->ops->get(be, v.buffer, end - sizeof last + 1, last, sizeof last, &fence, NULL), MR_E_INTERNAL);
    mr_kv_store_destroy(kv);
    mr_backend_destroy(be);
}

/* A block that was read from one store and written to another one is there, and nothing else is. */
static void test_blocks_move(void **state) {
    (void)state;
    mr_kv_desc d = DESC;
    d.shapes = MIXED;
    mr_backend *be = backend_make();
    mr_kv_store *a = NULL, *b = NULL;
    assert_int_equal(mr_kv_store_create(be, &d, &a, NULL), MR_OK);
    assert_int_equal(mr_kv_store_create(be, &d, &b, NULL), MR_OK);
    size_t n = mr_kv_store_block_bytes(a), total = 0;
    assert_int_equal(mr_kv_store_bytes(&d, &total, NULL), MR_OK);
    assert_int_equal(n * (size_t)d.n_blocks, total);
    assert_int_equal(mr_kv_store_n_blocks(a), d.n_blocks);
    uint8_t *block = malloc(n), *out = malloc(n), *zeros = calloc(1, n);
    for (size_t i = 0; i < n; i++)
        block[i] = (uint8_t)(i * 7 + i / 256 + 1);
    mr_tensor k, v;
    mr_fence fence;
    bool is_here = false;
    assert_int_equal(mr_kv_store_set_block(a, 3, block, NULL), MR_OK);
    for (int32_t i = 0; i < d.n_blocks; i++) {
        assert_int_equal(mr_kv_store_get_block(a, i, out, &fence, NULL), MR_OK);
        assert_int_equal(mr_kv_store_has_got(a, fence, 0, &is_here, NULL), MR_OK);
        assert_true(is_here);
        assert_memory_equal(out, i == 3 ? block : zeros, n);
        assert_int_equal(mr_kv_store_set_block(b, d.n_blocks - 1 - i, out, NULL), MR_OK);
    }
    mr_kv_store_layer(b, 1, &k, &v); /* where the kernels look for it */
    assert_int_equal(be->ops->get(be, v.buffer, v.offset + v.row_bytes, out, v.row_bytes, &fence, NULL), MR_OK);
    mr_tensor k0, v0;
    mr_kv_store_layer(b, 0, &k0, &v0);
    assert_memory_equal(out, block + k0.row_bytes + v0.row_bytes + k.row_bytes, v.row_bytes);
    assert_int_equal(mr_kv_store_move(a, b, NULL), MR_OK);
    assert_int_equal(mr_kv_store_get_block(a, d.n_blocks - 4, out, &fence, NULL), MR_OK);
    assert_memory_equal(out, block, n);
    assert_int_equal(mr_kv_store_get_block(a, 3, out, &fence, NULL), MR_OK);
    assert_memory_equal(out, zeros, n);
    assert_ptr_equal(mr_kv_store_backend(a), be);
    assert_true(mr_kv_store_is(a, &d));
    assert_false(mr_kv_store_is(a, &DESC));
    d.type = MR_TYPE_F32;
    assert_false(mr_kv_store_is(a, &d));
    free(block);
    free(out);
    free(zeros);
    mr_kv_store_destroy(a);
    mr_kv_store_destroy(b);
    mr_backend_destroy(be);
}

static void test_a_store_of_no_layers(void **state) {
    (void)state;
    mr_backend *be = backend_make();
    mr_kv_store *kv = NULL;
    mr_kv_desc d = DESC;
    d.n_layers = 0;
    assert_int_equal(mr_kv_store_create(be, &d, &kv, NULL), MR_OK);
    mr_kv_store_destroy(kv);
    mr_kv_store_destroy(NULL);
    mr_backend_destroy(be);
}

static void test_no_memory(void **state) {
    (void)state;
    mr_backend *be = backend_make();
    size_t before = mr_mem_get_stats().live_bytes;
    mr_status status = MR_E_NO_MEMORY;
    for (int n = 0; status != MR_OK; n++) {
        mr_kv_store *kv = NULL;
        mr_err err = {0};
        assert_true(n < 10);
        mr_mem_fail_at(n);
        status = mr_kv_store_create(be, &DESC, &kv, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || (status == MR_E_NO_MEMORY && strstr(err.text, "KV")));
        mr_kv_store_destroy(kv);
    }
    mr_kv_store *kv = NULL;
    mr_err err = {0};
    mr_mem_set_budget(before + 1);
    expect_fails(mr_kv_store_create(be, &DESC, &kv, &err), MR_E_NO_MEMORY, &err, "KV cache of 5 blocks in 3 layers");
    expect_says(err.text, "budget");
    mr_mem_set_budget(0);
    assert_int_equal(mr_mem_get_stats().live_bytes, before);
    mr_backend_destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_descriptions_that_cannot_be),
        cmocka_unit_test(test_layers_do_not_overlap),
        cmocka_unit_test(test_the_whole_store),
        cmocka_unit_test(test_a_new_store_is_zero),
        cmocka_unit_test(test_blocks_move),
        cmocka_unit_test(test_a_store_of_no_layers),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests_name("kv_store", tests, NULL, NULL);
}
