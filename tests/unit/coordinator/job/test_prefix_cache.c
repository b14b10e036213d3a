/* Keys of KV blocks, and the cache of blocks against a simple model of a cache. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/job/prefix_cache.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"

enum { N_BLOCKS = 12, N_KEYS = 30 };

static mr_prefix_key number(int32_t n) {
    const mr_prefix_base base = {0};
    mr_prefix_key key;
    mr_prefix_key_init(&base, &key);
    mr_prefix_key_extend(&key, &n, 1, &key);
    return key;
}

static bool same(const mr_prefix_key *a, const mr_prefix_key *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* Everything that the content of a block depends on changes the key. Nothing else changes the key. */
static void test_keys(void **state) {
    (void)state;
    const mr_prefix_base bases[] = {{7, 1, false}, {8, 1, false}, {7, 8, false}, {7, 1, true}};
    int32_t ids[4] = {1, 2, 3, 4};
    mr_prefix_key keys[8], again, parts;
    for (int i = 0; i < 4; i++) {
        mr_prefix_key_init(&bases[i], &again);
        mr_prefix_key_extend(&again, ids, 4, &keys[i]);
    }
    mr_prefix_key_init(&bases[0], &again);
    mr_prefix_key_extend(&again, ids, 3, &keys[4]);
    for (int i = 0; i < 3; i++) {
        ids[i + 1] ^= 1 << 20;
        mr_prefix_key_extend(&again, ids, 4, &keys[5 + i]);
        ids[i + 1] ^= 1 << 20;
    }
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < i; k++)
            assert_false(same(&keys[i], &keys[k]));
    mr_prefix_key_extend(&again, ids, 2, &parts);
    mr_prefix_key_extend(&again, ids, 4, &again);
    assert_true(same(&again, &keys[0]));
    mr_prefix_key_extend(&parts, ids + 2, 2, &parts);
    assert_false(same(&parts, &keys[0])); /* two links of the chain differ from one link with the same ids */
}

/* SHA-256 of 4 + 8 + 4 + 1 bytes: the numerics version, then zeros; by sha256sum. */
static void test_key_is_a_sha256(void **state) {
    (void)state;
    const mr_prefix_base base = {0};
    mr_prefix_key key;
    mr_prefix_key_init(&base, &key);
    static const uint8_t WANT[4] = {0x48, 0xb9, 0xb3, 0x4b};
    assert_memory_equal(key.bytes, WANT, sizeof WANT);
}

/* A plain model of the cache, with which the cache is compared. */
typedef struct model {
    int key[N_BLOCKS][MR_PREFIX_PARTS]; /* key of each block and part; -1: none */
    bool ready[N_BLOCKS][MR_PREFIX_PARTS];
    bool held[N_BLOCKS];
    int32_t cached[N_BLOCKS], n_cached; /* oldest block first */
} model;

static int32_t owner(const model *m, int key, bool *ready) {
    for (int32_t b = 0; b < N_BLOCKS; b++)
        for (int p = 0; p < MR_PREFIX_PARTS; p++)
            if (m->key[b][p] == key) {
                *ready = m->ready[b][p];
                return b;
            }
    return MR_NO_BLOCK;
}

static void remove_cached(model *m, int32_t block) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_cached; i++)
        if (m->cached[i] != block)
            m->cached[n++] = m->cached[i];
    m->n_cached = n;
}

static void check(const mr_prefix_cache *c, const model *m) {
    for (int k = 0; k < N_KEYS; k++) {
        bool want = false, got = false;
        mr_prefix_key key = number(k);
        assert_int_equal(mr_prefix_cache_find(c, &key, &got), owner(m, k, &want));
        assert_int_equal(got, want);
    }
    assert_int_equal(mr_prefix_cache_n_cached(c), m->n_cached);
    for (int32_t b = 0, n = 0; b < N_BLOCKS; b++, n = 0) {
        for (int32_t i = 0; i < m->n_cached; i++)
            n += m->cached[i] == b;
        assert_int_equal(mr_prefix_cache_is_cached(c, b), n);
    }
}

static void put(mr_prefix_cache *c, model *m, int32_t b) {
    bool want = m->ready[b][0] || m->ready[b][1];
    for (int p = 0; p < MR_PREFIX_PARTS; p++)
        m->key[b][p] = m->ready[b][p] ? m->key[b][p] : -1;
    m->held[b] = false;
    if (want)
        m->cached[m->n_cached++] = b;
    assert_int_equal(mr_prefix_cache_put(c, b), want);
}

static void evict(mr_prefix_cache *c, model *m) {
    int32_t want = m->n_cached > 0 ? m->cached[0] : MR_NO_BLOCK;
    assert_int_equal(mr_prefix_cache_evict(c), want);
    if (want == MR_NO_BLOCK)
        return;
    remove_cached(m, want);
    for (int p = 0; p < MR_PREFIX_PARTS; p++) {
        m->key[want][p] = -1;
        m->ready[want][p] = false;
    }
}

static void turn(mr_prefix_cache *c, model *m, uint64_t r) {
    int32_t b = (int32_t)(r % N_BLOCKS);
    mr_prefix_part p = (mr_prefix_part)(r >> 8 & 1);
    int k = (int)(r >> 16) % N_KEYS;
    k = k < 0 ? -k : k;
    bool ready;
    bool is_cached = mr_prefix_cache_is_cached(c, b);
    if ((r >> 40 & 7) == 0) {
        evict(c, m);
    } else if (!m->held[b]) {
        if (is_cached) {
            mr_prefix_cache_take(c, b);
            remove_cached(m, b);
        }
        m->held[b] = true;
    } else if ((r >> 48 & 3) == 0) {
        put(c, m, b);
    } else if (m->key[b][p] < 0) {
        mr_prefix_key key = number(k);
        mr_prefix_cache_promise(c, b, p, &key);
        m->key[b][p] = owner(m, k, &ready) == MR_NO_BLOCK ? k : -1;
    } else {
        mr_prefix_cache_fulfil(c, b, p);
        m->ready[b][p] = true;
    }
}

static void test_against_a_model(void **state) {
    (void)state;
    mr_prefix_cache *c;
    mr_err err;
    model m = {0};
    memset(m.key, -1, sizeof m.key);
    expect_ok(mr_prefix_cache_create(N_BLOCKS, &c, &err), &err);
    uint64_t before = mr_mem_thread_allocs();
    for (uint64_t i = 0; i < 5000; i++) {
        turn(c, &m, mr_rng_u64(3, 1, i));
        check(c, &m);
    }
    assert_int_equal(mr_mem_thread_allocs(), before);
    mr_prefix_cache_destroy(c);
}

static int count_woken(mr_prefix_cache *c) {
    int n = 0;
    while (mr_prefix_cache_take_woken(c))
        n++;
    return n;
}

/* A wait for a promised key ends when the key is ready, and when its block is released before. A wait does not end for
 * other keys, and an ended wait is not woken. */
static void test_waits(void **state) {
    (void)state;
    mr_prefix_cache *c;
    mr_err err;
    mr_prefix_wait w[6] = {0};
    const mr_prefix_key a = number(1), b = number(2);
    expect_ok(mr_prefix_cache_create(N_BLOCKS, &c, &err), &err);
    mr_prefix_cache_promise(c, 0, MR_PREFIX_WHOLE, &a);
    mr_prefix_cache_promise(c, 1, MR_PREFIX_BEGIN, &b);
    for (int i = 0; i < 6; i++)
        mr_prefix_cache_wait(c, i < 4 ? &a : &b, &w[i]);
    mr_prefix_cache_fulfil(c, 1, MR_PREFIX_WHOLE); /* this part was not promised, so nobody wakes up */
    assert_int_equal(count_woken(c), 0);
    mr_prefix_wait_end(&w[0]);
    mr_prefix_wait_end(&w[3]);
    assert_false(mr_prefix_wait_is_on(&w[3]));
    mr_prefix_cache_fulfil(c, 0, MR_PREFIX_WHOLE);
    assert_true(mr_prefix_wait_is_on(&w[2])); /* the wait is on until it is taken from the list */
    mr_prefix_wait_end(&w[2]);
    assert_ptr_equal(mr_prefix_cache_take_woken(c), &w[1]);
    assert_null(mr_prefix_cache_take_woken(c));
    assert_false(mr_prefix_cache_put(c, 1));
    assert_int_equal(count_woken(c), 2);
    mr_prefix_cache_destroy(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_key_is_a_sha256),
        cmocka_unit_test(test_against_a_model),
        cmocka_unit_test(test_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
