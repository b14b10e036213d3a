/* The cached part of a model file with its list of blocks, and the stored hashes of a model file: over restarts,
 * kills, damage, and several users at the same time. */
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "tests/support/test.h"
#include "worker/files/file_cache.h"
#include "worker/files/file_hashes.h"

enum { N_BLOCKS = 5, LAST_BYTES = 1000, FILE_BYTES = (N_BLOCKS - 1) * MR_FILE_BLOCK_BYTES + LAST_BYTES, LIST_AT = 64 };

static char folder[] = "/tmp/millrace-blocks-XXXXXX";
static uint8_t *content; /* [FILE_BYTES] */
static mr_file_hash hashes[N_BLOCKS];

static const uint8_t *block(uint64_t idx) {
    return content + mr_file_block_at(idx);
}

static mr_file_cache *open_cache(uint64_t digest) {
    mr_err err;
    mr_file_cache *c = NULL;
    expect_ok(mr_file_cache_open(folder, FILE_BYTES, digest, &c, &err), &err);
    return c;
}

static void put(mr_file_cache *c, uint64_t idx) {
    mr_err err;
    expect_ok(mr_file_cache_put(c, idx, block(idx), &hashes[idx], &err), &err);
}

static void seal(mr_file_cache *c) {
    mr_err err;
    expect_ok(mr_file_cache_seal(c, &err), &err);
}

/* The path of the cached file, or of its list. */
static const char *path_of(uint64_t digest, const char *ending) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%016llx-%d.%s", folder, (unsigned long long)digest, FILE_BYTES, ending);
    return path;
}

static void write_at(const char *path, long at, const void *data, size_t bytes) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

/* Writes a byte and leaves the time of change as it was. */
static void write_unseen(const char *path, long at, const char *byte) {
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    write_at(path, at, byte, 1);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void test_hash(void **state) {
    (void)state;
    /* From FIPS 180-4, the hash of "abc". */
    char text[MR_FILE_HASH_TEXT];
    mr_file_hash h;
    mr_file_hash_of("abc", 3, &h);
    assert_string_equal(mr_file_hash_text(&h, text), "ba7816bf8f01cfea");
    assert_true(mr_file_hash_known(&h));
    assert_int_equal(mr_file_n_blocks(FILE_BYTES), N_BLOCKS);
    assert_int_equal(mr_file_n_blocks(FILE_BYTES - LAST_BYTES), N_BLOCKS - 1);
    assert_int_equal(mr_file_block_bytes(FILE_BYTES, 4), LAST_BYTES);
    assert_int_equal(mr_file_block_bytes(FILE_BYTES - LAST_BYTES, 3), MR_FILE_BLOCK_BYTES);
}

/* Blocks that were put into the cache are there after a restart, at their place. The rest of the file is a hole. */
static void test_restart(void **state) {
    (void)state;
    mr_file_cache *c = open_cache(1);
    struct stat st;
    assert_false(mr_file_cache_has(c, 1, &hashes[1]) || mr_file_cache_lists(c, 1));
    put(c, 1);
    put(c, 4);
    assert_true(mr_file_cache_has(c, 1, &hashes[1]) && mr_file_cache_lists(c, 1));
    assert_false(mr_file_cache_has(c, 1, &hashes[2]));
    seal(c);
    bool done = false;
    mr_err err;
    while (!done)
        expect_ok(mr_file_cache_sealed(c, &done, &err), &err);
    mr_file_cache_close(c);
    c = open_cache(1);
    assert_string_equal(mr_file_cache_path(c), path_of(1, "gguf"));
    for (uint64_t i = 0; i < N_BLOCKS; i++)
        assert_int_equal(mr_file_cache_has(c, i, &hashes[i]), i == 1 || i == 4);
    assert_int_equal(stat(path_of(1, "gguf"), &st), 0);
    assert_int_equal(st.st_size, FILE_BYTES);
    assert_true(st.st_blocks * 512 < 2 * MR_FILE_BLOCK_BYTES);
    uint8_t *back = mr_alloc(FILE_BYTES);
    FILE *f = fopen(mr_file_cache_path(c), "rb");
    assert_true(back && f && fread(back, 1, FILE_BYTES, f) == FILE_BYTES);
    fclose(f);
    assert_memory_equal(back + mr_file_block_at(1), block(1), MR_FILE_BLOCK_BYTES);
    assert_memory_equal(back + mr_file_block_at(4), block(4), LAST_BYTES);
    for (size_t i = 0; i < MR_FILE_BLOCK_BYTES; i++)
        assert_true(back[i] == 0 && back[mr_file_block_at(2) + i] == 0);
    mr_free(back);
    mr_file_cache_close(c);
}

/* Without a seal, a block is checked when it is asked for. A damaged block does not count as present, neither then nor
 * later. Sealing does not check the other blocks, which stay unchecked. */
static void test_killed(void **state) {
    (void)state;
    mr_file_cache *c = open_cache(2);
    put(c, 0);
    put(c, 2);
    put(c, 3);
    mr_file_cache_close(c);
    write_at(path_of(2, "gguf"), (long)mr_file_block_at(2) + 7, "x", 1);
    c = open_cache(2);
    assert_true(mr_file_cache_has(c, 0, &hashes[0]));
    assert_true(mr_file_cache_lists(c, 2));
    seal(c);
    mr_file_cache_close(c);
    write_unseen(path_of(2, "gguf"), 5, "x"); /* changes block 0, which a sealed cache does not check again */
    c = open_cache(2);
    assert_true(mr_file_cache_lists(c, 2));
    for (uint64_t i = 0; i < N_BLOCKS; i++)
        assert_int_equal(mr_file_cache_has(c, i, &hashes[i]), i == 0 || i == 3);
    put(c, 2);
    assert_true(mr_file_cache_has(c, 2, &hashes[2]));
    mr_file_cache_close(c);
}

/* A change after the seal, with a later time of change. */
static void test_changed(void **state) {
    (void)state;
    mr_file_cache *c = open_cache(3);
    put(c, 0);
    put(c, 1);
    seal(c);
    mr_file_cache_close(c);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 2000000000}};
    write_at(path_of(3, "gguf"), 100, "x", 1);
    assert_int_equal(utimensat(AT_FDCWD, path_of(3, "gguf"), times, 0), 0);
    c = open_cache(3);
    assert_false(mr_file_cache_has(c, 0, &hashes[0]));
    assert_true(mr_file_cache_has(c, 1, &hashes[1]));
    mr_file_cache_close(c);
}

static void test_damaged_list(void **state) {
    (void)state;
    mr_err err;
    mr_file_cache *c = open_cache(4);
    put(c, 0);
    put(c, 1);
    seal(c);
    mr_file_cache_close(c);
    /* Overwrites a part of the hash of block 1. */
    write_at(path_of(4, "blocks"), LIST_AT + MR_FILE_HASH_BYTES, "xyz", 3);
    c = open_cache(4);
    assert_true(mr_file_cache_has(c, 0, &hashes[0]));
    assert_false(mr_file_cache_has(c, 1, &hashes[1]));
    mr_file_cache_close(c);
    write_at(path_of(4, "blocks"), 0, "????", 4); /* the list is malformed, so the blocks are checked by their hashes */
    c = open_cache(4);
    assert_true(mr_file_cache_has(c, 0, &hashes[0]));
    mr_file_cache_close(c);
    assert_int_equal(truncate(path_of(4, "blocks"), 70), 0);
    expect_fails(mr_file_cache_open(folder, FILE_BYTES, 4, &c, &err), MR_E_IO, &err, path_of(4, "blocks"));
    assert_int_equal(unlink(path_of(4, "blocks")), 0);
    assert_int_equal(truncate(path_of(4, "gguf"), 70), 0);
    expect_fails(mr_file_cache_open(folder, FILE_BYTES, 4, &c, &err), MR_E_IO, &err, path_of(4, "gguf"));
}

/* Two processes of a host use the same cache. The process that ends first does not seal blocks that the other process
 * writes later. */
static void test_two_users(void **state) {
    (void)state;
    mr_file_cache *a = open_cache(5), *b = open_cache(5);
    put(a, 0);
    put(b, 0);
    put(b, 1);
    seal(a);
    mr_file_cache_close(a);
    put(b, 2);
    seal(b);
    mr_file_cache_close(b);
    a = open_cache(5);
    for (uint64_t i = 0; i < N_BLOCKS; i++)
        assert_int_equal(mr_file_cache_has(a, i, &hashes[i]), i < 3);
    mr_file_cache_close(a);
}

static void test_no_room(void **state) {
    (void)state;
    mr_err err;
    mr_file_cache *c = open_cache(6);
    expect_ok(mr_file_cache_check_room(c, 1, &err), &err);
    expect_fails(mr_file_cache_check_room(c, UINT64_MAX, &err), MR_E_IO, &err, "18446744073709551615 bytes more");
    expect_says(err.text, path_of(6, "gguf"));
    struct rlimit old, small = {2 * MR_FILE_BLOCK_BYTES, RLIM_INFINITY}; /* block 2 lies behind this limit */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(mr_file_cache_put(c, 2, block(2), &hashes[2], &err), MR_E_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    expect_says(err.text, "cannot be written: File too large");
    assert_false(mr_file_cache_has(c, 2, &hashes[2]));
    mr_file_cache_close(c);
    assert_int_equal(mr_file_cache_open("/nowhere/at/all", FILE_BYTES, 6, &c, &err), MR_E_IO);
}

static void test_no_memory(void **state) {
    (void)state;
    mr_err err;
    mr_status status = MR_E_NO_MEMORY;
    for (int n = 0; status != MR_OK; n++) {
        mr_file_cache *c = NULL;
        mr_mem_fail_at(n);
        status = mr_file_cache_open(folder, FILE_BYTES, 7, &c, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK ? n == 6 : status == MR_E_NO_MEMORY && !c);
        mr_file_cache_close(c);
    }
}

/* --- Hashes of a file that is here ------------------------------------------------------------------------------- */

typedef struct bell {
    mr_mutex lock;
    mr_cond rung;
    int n;
} bell;

static void ring(void *ctx) {
    bell *b = ctx;
    mr_mutex_lock(&b->lock);
    b->n++;
    mr_cond_signal(&b->rung);
    mr_mutex_unlock(&b->lock);
}

static int rung(bell *b) {
    mr_mutex_lock(&b->lock);
    int n = b->n;
    mr_mutex_unlock(&b->lock);
    return n;
}

/* kept_in: a folder, whose name may be long. */
static mr_file_hashes *open_hashes(bell *b, const char *kept_in) {
    mr_err err;
    char path[256];
    mr_file_hashes *h = NULL;
    snprintf(path, sizeof path, "%s/model", folder);
    const mr_part_place whole = {FILE_BYTES, true};
    const mr_file_hashes_config config = {path, &whole, 1, 0, kept_in, 2, ring, b};
    expect_ok(mr_file_hashes_open(&config, &h, &err), &err);
    return h;
}

/* Asks until they are known. */
static void expect_hashes(mr_file_hashes *h, bell *b, uint64_t first, uint32_t n) {
    mr_file_hash found[N_BLOCKS];
    bool known = false;
    mr_err err;
    for (;;) {
        int n_rung = rung(b);
        expect_ok(mr_file_hashes_get(h, first, n, found, &known, &err), &err);
        if (known)
            break;
        mr_mutex_lock(&b->lock);
        while (b->n == n_rung)
            mr_cond_wait_until(&b->rung, &b->lock, MR_NEVER);
        mr_mutex_unlock(&b->lock);
    }
    assert_memory_equal(found, hashes + first, n * sizeof *found);
}

static void save_model(uint64_t bytes) {
    char path[256];
    snprintf(path, sizeof path, "%s/model", folder);
    FILE *f = fopen(path, "wb");
    assert_true(f && fwrite(content, 1, (size_t)bytes, f) == bytes);
    assert_int_equal(fclose(f), 0);
}

static void test_hashes_are_kept(void **state) {
    (void)state;
    bell b = {0};
    mr_err err;
    mr_mutex_init(&b.lock);
    mr_cond_init(&b.rung);
    save_model(FILE_BYTES);
    mr_file_hashes *h = open_hashes(&b, folder);
    expect_hashes(h, &b, 1, 2);
    mr_file_hashes_close(h);
    int n = rung(&b);
    h = open_hashes(&b, folder);
    mr_file_hashes *other = open_hashes(&b, folder); /* another rank of the same host, which needs other blocks */
    expect_hashes(h, &b, 1, 2);
    assert_int_equal(rung(&b), n);
    expect_hashes(h, &b, 0, 1);
    expect_hashes(other, &b, 3, 2);
    mr_file_hashes_close(h);
    mr_file_hashes_close(other);
    n = rung(&b);
    h = open_hashes(&b, folder);
    expect_hashes(h, &b, 0, N_BLOCKS);
    assert_int_equal(rung(&b), n);
    mr_file_hashes_close(h);
    char deep[800], part[256];
    memset(part, 'd', sizeof part);
    snprintf(deep, sizeof deep, "%s/%.250s", folder, part);
    assert_int_equal(mkdir(deep, 0700), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(deep + strlen(deep), sizeof deep - strlen(deep), "/%.250s", part);
        assert_int_equal(mkdir(deep, 0700), 0);
    }
    for (int i = 0; i < 2; i++) {
        h = open_hashes(&b, deep);
        expect_hashes(h, &b, 0, N_BLOCKS);
        mr_file_hashes_close(h);
    }
    n += N_BLOCKS;
    assert_int_equal(rung(&b), n);
    h = open_hashes(&b, NULL); /* without a folder, hashes are computed again */
    expect_hashes(h, &b, 0, N_BLOCKS);
    assert_int_equal(rung(&b), n + N_BLOCKS);
    uint8_t *read = mr_alloc(MR_FILE_BLOCK_BYTES);
    expect_ok(mr_file_hashes_read(h, 4, read, &err), &err);
    assert_memory_equal(read, block(4), LAST_BYTES);
    mr_free(read);
    mr_file_hashes_close(h);
    mr_cond_deinit(&b.rung);
    mr_mutex_deinit(&b.lock);
}

/* A file that was changed is hashed again. A file that was truncated is an error. */
static void test_changed_file(void **state) {
    (void)state;
    bell b = {0};
    bool known = false;
    mr_err err;
    mr_file_hash found[N_BLOCKS];
    char path[256];
    mr_mutex_init(&b.lock);
    mr_cond_init(&b.rung);
    save_model(FILE_BYTES);
    mr_file_hashes *h = open_hashes(&b, folder);
    expect_hashes(h, &b, 0, N_BLOCKS);
    mr_file_hashes_close(h);
    snprintf(path, sizeof path, "%s/model", folder);
    write_at(path, 5, "x", 1);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 2000000000}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    h = open_hashes(&b, folder);
    while (mr_file_hashes_get(h, 0, 1, found, &known, &err) == MR_OK && !known)
        continue;
    assert_true(known && !mr_file_hash_equal(&found[0], &hashes[0]));
    assert_int_equal(truncate(path, 2 * MR_FILE_BLOCK_BYTES), 0);
    mr_status status = MR_OK;
    for (known = false; status == MR_OK && !known;)
        status = mr_file_hashes_get(h, 2, 1, found, &known, &err);
    assert_int_equal(status, MR_E_IO);
    expect_says(err.text, "cut short");
    mr_file_hashes_close(h);
    const mr_part_place whole = {FILE_BYTES, true};
    const mr_file_hashes_config config = {path, &whole, 1, 0, folder, 2, ring, &b};
    assert_int_equal(mr_file_hashes_open(&config, &h, &err), MR_E_IO);
    mr_cond_deinit(&b.rung);
    mr_mutex_deinit(&b.lock);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_damaged_list),
        cmocka_unit_test(test_two_users),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_hashes_are_kept),
        cmocka_unit_test(test_changed_file),
    };
    char command[128];
    content = mr_alloc(FILE_BYTES);
    if (!content || !mkdtemp(folder))
        return 1;
    for (size_t i = 0; i < FILE_BYTES; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 13);
    for (uint64_t i = 0; i < N_BLOCKS; i++)
        mr_file_hash_of(block(i), mr_file_block_bytes(FILE_BYTES, i), &hashes[i]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mr_free(content);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return failed + (system(command) != 0);
}
