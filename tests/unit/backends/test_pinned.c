/* Host memory that is pinned for the backends that can pin it, and unpinned for the same ones. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/pinned.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

/* A backend that remembers what is pinned. */
typedef struct fake {
    mr_backend base;
    bool can_pin;
    void *host;
    size_t bytes;
} fake;

static mr_status pin(mr_backend *base, void *host, size_t bytes, mr_err *err) {
    fake *f = (fake *)base;
    if (!f->can_pin)
        return mr_err_set(err, MR_E_NO_MEMORY, "pins nothing");
    assert_null(f->host);
    f->host = host;
    f->bytes = bytes;
    return MR_OK;
}

static void unpin(mr_backend *base, void *host) {
    fake *f = (fake *)base;
    assert_ptr_equal(f->host, host);
    memset(host, 1, f->bytes); /* still there */
    f->host = NULL;
}

static const mr_backend_ops OPS = {.pin = pin, .unpin = unpin};

static void test_backends_that_can(void **state) {
    (void)state;
    enum { BYTES = 1000 };
    fake f[3] = {{{&OPS}, .can_pin = true}, {{&OPS}, .can_pin = false}, {{&OPS}, .can_pin = true}};
    mr_backends list = {.at = {&f[0].base, &f[1].base, &f[2].base}, .n = 3};
    mr_pinned p = {0};
    mr_err err = {0};
    mr_pinned_destroy(&p);
    expect_ok(mr_pinned_create(&list, BYTES, &p, &err), &err);
    assert_int_equal((uintptr_t)p.data % 64, 0);
    for (int i = 0; i < BYTES; i++)
        assert_int_equal(p.data[i], 0);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(f[i].host, f[i].can_pin ? p.data : NULL);
        assert_int_equal(f[i].bytes, f[i].can_pin ? BYTES : 0);
    }
    mr_pinned_destroy(&p);
    for (int i = 0; i < 3; i++)
        assert_null(f[i].host);
    mr_mem_fail_at(0);
    expect_fails(mr_pinned_create(&list, BYTES, &p, &err), MR_E_NO_MEMORY, &err, "1000 bytes");
    mr_mem_fail_at(-1);
    assert_null(p.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backends_that_can),
    };
    return cmocka_run_group_tests_name("pinned", tests, NULL, NULL);
}
