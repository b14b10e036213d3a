/* tests/cuda_build/test_cuda_images.c - the kernels in the program are the files that nvcc made, or there are none. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_image.h"
#include "tests/support/test.h"

/* The list ends where the program was built without a toolkit, too. */
static int count_images(void) {
    int n = 0;
    while (mr_cuda_images[n].data)
        n++;
    return n;
}

static void test_list(void **state) {
    (void)state;
#ifdef MILLRACE_WITH_CUDA
    assert_true(count_images() > 0);
#else
    assert_int_equal(count_images(), 0);
#endif
    assert_null(mr_cuda_images[count_images()].name);
}

/* A fatbin begins with this number, and the driver reads it with 8 bytes at once. */
static void test_images_are_fatbins(void **state) {
    (void)state;
    for (const cuda_image *image = mr_cuda_images; image->data; image++) {
        uint32_t magic;
        memcpy(&magic, image->data, sizeof magic);
        assert_int_equal(magic, 0xba55ed50);
        assert_int_equal((uintptr_t)image->data % 8, 0);
        for (const cuda_image *other = image + 1; other->data; other++)
            assert_string_not_equal(image->name, other->name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_list), cmocka_unit_test(test_images_are_fatbins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
