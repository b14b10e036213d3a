/* The hello of a rank, and when two model files count as the same file. */
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/gguf/gguf_digest.h"
#include "tests/support/test.h"
#include "tests/support/tiny_model.h"
#include "worker/lobby/hello.h"

typedef struct file {
    char path[64];
    uint8_t *bytes;
    size_t n;
} file;

static void file_save(const file *f) {
    FILE *out = fopen(f->path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(f->bytes, 1, f->n, out), f->n);
    assert_int_equal(fclose(out), 0);
}

static mr_gguf *file_open(const file *f) {
    mr_gguf *g = NULL;
    mr_err err;
    expect_ok(mr_gguf_open(f->path, &g, &err), &err);
    return g;
}

/* The digest of the file with one byte changed. */
static uint64_t digest_with(file *f, size_t at) {
    f->bytes[at] ^= 1;
    file_save(f);
    f->bytes[at] ^= 1;
    mr_gguf *g = file_open(f);
    uint64_t digest = mr_gguf_digest(g);
    mr_gguf_close(g);
    return digest;
}

static void file_init(file *f) {
    tiny_desc desc = tiny_default("llama", MR_TYPE_Q8_0);
    gguf_writer *w = tiny_model_write(&desc);
    gguf_writer_str(w, "general.description", "a name");
    const uint8_t *bytes = gguf_writer_bytes(w, &f->n);
    f->bytes = malloc(f->n);
    assert_non_null(f->bytes);
    memcpy(f->bytes, bytes, f->n);
    gguf_writer_destroy(w);
    strcpy(f->path, "/tmp/millrace-test-XXXXXX");
    int fd = mkstemp(f->path);
    assert_true(fd >= 0);
    close(fd);
    file_save(f);
}

static void file_deinit(file *f) {
    unlink(f->path);
    free(f->bytes);
}

static void test_digest(void **state) {
    (void)state;
    file f;
    file_init(&f);
    mr_gguf *g = file_open(&f);
    uint64_t digest = mr_gguf_digest(g);
    int32_t n = mr_gguf_n_tensors(g);
    size_t *middles = malloc((size_t)n * sizeof *middles);
    assert_non_null(middles);
    for (int32_t i = 0; i < n; i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        middles[i] = (size_t)((const uint8_t *)t->data - (const uint8_t *)mr_gguf_file_data(g)) + t->bytes / 2;
    }
    mr_gguf_close(g);
    for (int32_t i = 0; i < n; i++)
        if (digest_with(&f, middles[i]) == digest)
            fail_msg("the digest does not see the middle of tensor %d", (int)i);
    size_t name = 0;
    while (memcmp(f.bytes + name, "a name", 6) != 0)
        name++;
    assert_int_not_equal(digest_with(&f, name), digest);
    free(middles);
    file_deinit(&f);
}

static void test_the_same_file(void **state) {
    (void)state;
    file f;
    mr_hello a, b;
    file_init(&f);
    mr_hello_fill(&a, f.path, 3, NULL);
    mr_hello_fill(&b, f.path, 1, NULL);
    assert_int_equal(a.message.status, MR_OK);
    assert_int_equal(a.message.n_parts, 1);
    assert_int_equal(a.message.parts[0]->bytes, f.n);
    assert_true(a.message.parts[0]->header_bytes > 0 && a.message.parts[0]->header_bytes < f.n);
    assert_int_equal(a.message.parts[0]->digest, b.message.parts[0]->digest);
    assert_true(a.message.n_digest_of > 100 && a.message.n_digest_of == b.message.n_digest_of);
    assert_true(a.message.n_digest_bits == b.message.n_digest_bits);
    assert_memory_equal(a.message.digest_of, b.message.digest_of, a.message.n_digest_of * sizeof(uint32_t));
    assert_memory_equal(a.message.digest_bits, b.message.digest_bits, a.message.n_digest_bits * sizeof(uint64_t));
    assert_int_equal(a.message.threads, 3);
    assert_string_equal(a.message.text, "");
    file_deinit(&f);
}

static const uint8_t *root_of(mr_hello *h, const file *f, const char *folder) {
    mr_hello_fill(h, f->path, 1, NULL);
    mr_hello_add_roots(h, f->path, folder, 2);
    assert_int_equal(h->message.status, MR_OK);
    assert_int_equal(h->message.part_roots.len, MR_FILE_HASH_BYTES);
    return h->message.part_roots.data;
}

/* Saves the file, with this modification time. */
static void file_save_at(const file *f, time_t second) {
    const struct timespec times[2] = {{.tv_sec = second}, {.tv_sec = second}};
    file_save(f);
    assert_int_equal(utimensat(AT_FDCWD, f->path, times, 0), 0);
}

/* The hash of all bytes shows a changed byte that no sample of a tensor covers. A file with the same modification time
 * is not read again. */
static void test_roots(void **state) {
    (void)state;
    file f;
    static mr_hello a, b;
    char folder[] = "/tmp/millrace-hello-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    file_init(&f);
    const size_t places[] = {f.n - 1, f.n - 700, f.n / 2 + 1};
    file_save_at(&f, 1);
    (void)root_of(&a, &f, folder);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        f.bytes[places[i]] ^= 1;
        file_save_at(&f, 1);
        assert_memory_equal(root_of(&b, &f, folder), a.part_roots, MR_FILE_HASH_BYTES); /* kept */
        assert_memory_not_equal(root_of(&b, &f, NULL), a.part_roots, MR_FILE_HASH_BYTES);
        file_save_at(&f, 2);
        assert_memory_not_equal(root_of(&b, &f, folder), a.part_roots, MR_FILE_HASH_BYTES);
        f.bytes[places[i]] ^= 1;
        file_save_at(&f, 1);
        assert_memory_equal(root_of(&b, &f, folder), a.part_roots, MR_FILE_HASH_BYTES);
    }
    file_deinit(&f);
    mr_hello_add_roots(&b, "/nowhere/model.gguf", NULL, 1);
    assert_int_equal(b.message.status, MR_E_NOT_FOUND);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* Of a model in three parts, the second is not here, and then the third is cut short. */
static void test_parts(void **state) {
    (void)state;
    char path[2][64];
    mr_hello h;
    for (int i = 0; i < 2; i++) {
        gguf_writer *w = gguf_writer_create();
        const float row[8] = {0};
        gguf_writer_u32(w, "split.no", 2 * (uint32_t)i);
        gguf_writer_u32(w, "split.count", 3);
        gguf_writer_i32(w, "split.tensors.count", 7);
        gguf_writer_matrix(w, "t", MR_TYPE_F32, 8, 1, row);
        snprintf(path[i], sizeof path[i], "/tmp/millrace-%d-%05d-of-00003.gguf", (int)getpid(), 2 * i + 1);
        assert_true(gguf_writer_save(w, path[i]));
        gguf_writer_destroy(w);
    }
    mr_hello_fill(&h, path[1], 1, NULL);
    assert_int_equal(h.message.status, MR_OK);
    assert_int_equal(h.message.n_parts, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(h.message.parts[i]->n_tensors, i == 1 ? 0 : 7);
        assert_true((h.message.parts[i]->bytes > 0) == (i != 1) && (h.message.parts[i]->digest != 0) == (i != 1));
    }
    mr_hello_add_roots(&h, path[0], NULL, 1);
    assert_int_equal(h.message.status, MR_OK);
    assert_int_equal(h.message.part_roots.len, 3 * MR_FILE_HASH_BYTES);
    static const uint8_t none[MR_FILE_HASH_BYTES];
    const uint8_t *roots = h.message.part_roots.data;
    assert_memory_equal(roots + MR_FILE_HASH_BYTES, none, sizeof none);
    assert_memory_not_equal(roots, none, sizeof none);
    assert_memory_not_equal(roots + sizeof none * 2, none, sizeof none);
    assert_memory_not_equal(roots + sizeof none * 2, roots, sizeof none); /* split.no differs */
    assert_int_equal(truncate(path[1], (off_t)h.message.parts[2]->bytes - 1), 0);
    mr_hello_fill(&h, path[0], 1, NULL);
    assert_int_equal(h.message.status, MR_E_FORMAT);
    assert_non_null(strstr(h.message.text, path[1]));
    unlink(path[0]);
    unlink(path[1]);
}

static void test_problems(void **state) {
    (void)state;
    file f;
    mr_hello h;
    mr_err problem = {0};
    mr_hello_fill(&h, "/nowhere/model.gguf", 1, NULL);
    assert_int_equal(h.message.status, MR_OK); /* another rank may have the file */
    assert_int_equal(h.message.n_parts, 0);
    assert_string_equal(h.message.model_path, "/nowhere/model.gguf");
    file_init(&f);
    f.n /= 2;
    file_save(&f);
    mr_hello_fill(&h, f.path, 1, NULL);
    assert_int_equal(h.message.status, MR_E_FORMAT);
    assert_int_equal(h.message.n_parts, 0);
    file_deinit(&f);
    (void)mr_err_set(&problem, MR_E_NO_MEMORY, "no room");
    mr_hello_fill(&h, NULL, 0, &problem);
    assert_int_equal(h.message.status, MR_E_NO_MEMORY);
    assert_string_equal(h.message.text, "no room");
    assert_string_equal(h.message.model_path, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest), cmocka_unit_test(test_the_same_file), cmocka_unit_test(test_roots),
        cmocka_unit_test(test_parts),  cmocka_unit_test(test_problems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
