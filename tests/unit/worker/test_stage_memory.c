/* The memory of a stage: as much as the stage reports, none allocated in a step, no file pages after loading, and a
 * clear status if there is too little. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"
#include "tests/unit/worker/test_stage_chain.h"

enum { MIB = 1 << 20, PAGE_BLOCK = 2 * MIB /* a huge page */ };

static mr_backend *backend;

static int open_backend(void **state) {
    (void)state;
    return mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 2}, &backend, NULL) == MR_OK ? 0 : -1;
}

static int close_backend(void **state) {
    (void)state;
    mr_backend_destroy(backend);
    return 0;
}

static mr_stage_config config_for(const tiny_model *m, int32_t first, int32_t last) {
    return (mr_stage_config){
        .gguf = m->gguf,
        .info = &m->info,
        .range = {first, last},
        .max_rows = 24,
        .max_out_rows = 4,
        .max_sequences = 3,
        .max_context = 100,
        .n_kv_blocks = 21,
        .kv_type = MR_TYPE_F16,
    };
}

/* --- Sizes ------------------------------------------------------------------------------------------------------- */

static void check_sizes(const mr_stage_config *c) {
    mr_stage_sizes measured, made;
    mr_stage *s = NULL;
    mr_err err = {0};
    size_t before = mr_mem_get_stats().live_bytes;
    if (mr_stage_measure(c, backend, &measured, &err) != MR_OK)
        fail_msg("measure: %s", err.text);
    assert_int_equal(mr_mem_get_stats().live_bytes, before); /* measuring loads no weights */
    if (mr_stage_create(c, backend, NULL, NULL, &s, &err) != MR_OK)
        fail_msg("create: %s", err.text);
    made = mr_stage_get_sizes(s);
    assert_int_equal(mr_mem_get_stats().live_bytes - before, made.page_bytes + mr_pages_bytes(made.kv_bytes));
    if (memcmp(&measured, &made, sizeof made) != 0)
        fail_msg("%s, %d rows, %d with logits: measured %zu + %zu + %zu, made %zu + %zu + %zu", c->info->arch,
                 c->max_rows, c->max_out_rows, measured.weight_bytes, measured.kv_bytes, measured.work_bytes,
                 made.weight_bytes, made.kv_bytes, made.work_bytes);
    mr_stage_destroy(s);
    assert_int_equal(mr_mem_get_stats().live_bytes, before);
}

/* Every row bucket's plan fits what the largest one was measured to need. */
static void test_a_stage_takes_what_was_measured(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    static const int32_t rows[] = {1, 2, 3, 7, 16, 33, 100};
    for (int i = 0; i < 12; i++) {
        tiny_desc d = tiny_default(archs[i % 3], i % 2 ? MR_TYPE_Q8_0 : MR_TYPE_F16);
        d.n_layers = 3;
        d.vocab_size = i % 4 == 3 ? 3000 : 90;
        d.n_ff = i % 5 == 4 ? 32 : 160;
        tiny_model *m = tiny_model_create(&d);
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            mr_stage_config c = config_for(m, i % 3 == 1 ? 1 : 0, i % 4 == 2 ? 2 : 3);
            c.max_rows = rows[r];
            c.max_out_rows = i % 2 ? 1 : rows[r];
            c.kv_type = i % 3 ? MR_TYPE_F16 : MR_TYPE_F32;
            c.map_weights = (i + r) % 2;
            check_sizes(&c);
        }
        tiny_model_destroy(m);
    }
}

static void test_sizes_that_cannot_be(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_F32);
    tiny_model *m = tiny_model_create(&d);
    for (int i = 0; i < 10; i++) {
        mr_stage_config c = config_for(m, 0, 2);
        int32_t *const fields[] = {&c.max_rows,    &c.max_rows,    &c.max_out_rows, &c.max_out_rows,  &c.max_sequences,
                                   &c.max_context, &c.n_kv_blocks, &c.range.last,   &c.max_sequences, &c.max_context};
        static const int32_t bad[] = {0, (1 << 15) + 1, 0, 25, 0, 0, 0, 3, -1, INT32_MIN};
        mr_stage *s = NULL;
        mr_stage_sizes sizes;
        mr_err err = {0};
        *fields[i] = bad[i];
        assert_int_equal(mr_stage_measure(&c, backend, &sizes, &err), MR_E_INVALID);
        assert_int_equal(mr_stage_create(&c, backend, NULL, NULL, &s, &err), MR_E_INVALID);
        assert_true(err.text[0] != 0);
        assert_null(s);
    }
    tiny_model_destroy(m);
}

/* --- Steps ------------------------------------------------------------------------------------------------------- */

static void check_allocations(bool map_weights) {
    static float logits[CHAIN_MAX_ROWS][90];
    tiny_desc d = tiny_default("qwen3", MR_TYPE_Q8_0);
    tiny_model *m = tiny_model_create(&d);
    chain_config config = {.n_stages = 2, .n_threads = 3, .kv_type = MR_TYPE_F16, .map_weights = map_weights};
    chain *p = chain_create(m, &config);
    chain_row rows[CHAIN_MAX_ROWS];
    int32_t position = 0;
    uint64_t all = mr_mem_get_stats().n_allocs, own = mr_mem_thread_allocs();
    for (int32_t n = 1; n <= 64; n *= 2) { /* in every row bucket */
        for (int32_t r = 0; r < n; r++, position++)
            rows[r] = (chain_row){.position = position, .id = r, .logits = r % 3 == 0 ? logits[r] : NULL};
        chain_step(p, rows, n);
    }
    rows[0] = (chain_row){.sequence = 1}; /* a step without logits */
    chain_step(p, rows, 1);
    assert_int_equal(mr_mem_thread_allocs() - own, 0);
    assert_int_equal(mr_mem_get_stats().n_allocs - all, 0);
    chain_destroy(p);
    assert_true(mr_mem_get_stats().n_allocs > all - 1 && own > 0);
    tiny_model_destroy(m);
}

static void test_a_step_allocates_nothing(void **state) {
    (void)state;
    check_allocations(false);
    check_allocations(true);
}

static void count(void *ctx) {
    ++*(int *)ctx;
}

/* The step thread gets its turns inside a step, on its own thread. */
static void test_progress_is_called_between_groups(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_F16);
    tiny_model *m = tiny_model_create(&d);
    chain *p = chain_create(m, &(chain_config){.n_stages = 1, .n_threads = 2, .kv_type = MR_TYPE_F32});
    chain_step(p, &(chain_row){.id = 5}, 1);
    int n_calls = 0;
    mr_step_rows *rows = mr_stage_rows(chain_stage(p, 0));
    rows->n_rows = 1;
    rows->ids[0] = 5;
    rows->positions[0] = rows->slots[0] = rows->row_seq[0] = 0;
    const mr_stage_step step = {.progress = count, .progress_ctx = &n_calls};
    assert_int_equal(mr_stage_run(chain_stage(p, 0), &step, NULL), MR_OK);
    assert_true(n_calls >= 2 * 9);
    chain_destroy(p);
    tiny_model_destroy(m);
}

/* Data that an earlier sequence left in a KV block does not change a later sequence. */
static void test_blocks_are_used_again(void **state) {
    (void)state;
    static float first[40][90], again[40][90];
    tiny_desc d = tiny_default("llama", MR_TYPE_F16);
    tiny_model *m = tiny_model_create(&d);
    chain *p = chain_create(m, &(chain_config){.n_stages = 1, .n_threads = 1, .kv_type = MR_TYPE_F16});
    chain_row rows[40];
    for (int round = 0; round < 3; round++) {
        for (int32_t r = 0; r < 40; r++)
            rows[r] = (chain_row){
                .position = r, .id = (r * 7 + (round == 1 ? 31 : 0)) % 90, .logits = round == 0 ? first[r] : again[r]};
        chain_step(p, rows, round == 1 ? 40 : 17);
        if (round == 1)
            assert_memory_not_equal(first[16], again[16], sizeof first[16]);
    }
    assert_memory_equal(first, again, 17 * sizeof first[0]);
    chain_destroy(p);
    tiny_model_destroy(m);
}

/* --- Too little memory ------------------------------------------------------------------------------------------- */

/* A budget that the weights, the KV cache or the work memory do not fit: one status each time, nothing is held, and
 * with room it works. */
static void test_a_budget_that_is_too_small(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_F32);
    tiny_model *m = tiny_model_create(&d);
    mr_stage_config c = config_for(m, 0, 2);
    size_t before = mr_mem_get_stats().live_bytes;
    int n_failed = 0;
    for (size_t budget = before + 1;; budget += MIB / 16) {
        mr_stage *s = NULL;
        mr_err err = {0};
        mr_mem_set_budget(budget);
        mr_status status = mr_stage_create(&c, backend, NULL, NULL, &s, &err);
        mr_mem_set_budget(0);
        if (status == MR_OK) {
            mr_stage_destroy(s);
            break;
        }
        if (status != MR_E_NO_MEMORY || !strstr(err.text, "budget") || !strstr(err.text, "hint:"))
            fail_msg("%s: %s", mr_status_name(status), err.text);
        assert_null(s);
        assert_int_equal(mr_mem_get_stats().live_bytes, before);
        n_failed++;
    }
    assert_true(n_failed > 4);
    assert_int_equal(mr_mem_get_stats().live_bytes, before);
    check_sizes(&c);
    tiny_model_destroy(m);
}

static void test_failing_allocations(void **state) {
    (void)state;
    static const int32_t ranges[][2] = {{0, 2}, {1, 2}, {0, 1}};
    for (int r = 0; r < 3; r++) {
        tiny_desc d = tiny_default("qwen2", MR_TYPE_Q8_0);
        tiny_model *m = tiny_model_create(&d);
        mr_stage_config c = config_for(m, ranges[r][0], ranges[r][1]);
        size_t before = mr_mem_get_stats().live_bytes;
        mr_status status = MR_E_NO_MEMORY;
        int n = 0;
        for (; status != MR_OK; n++) {
            mr_stage *s = NULL;
            mr_stage_sizes sizes;
            mr_err err = {0};
            assert_true(n < 1000);
            mr_mem_fail_at(n);
            status = mr_stage_measure(&c, backend, &sizes, &err);
            if (status == MR_OK)
                status = mr_stage_create(&c, backend, NULL, NULL, &s, &err);
            mr_mem_fail_at(-1);
            if (status != MR_OK && (status != MR_E_NO_MEMORY || !strstr(err.text, "no memory")))
                fail_msg("allocation %d: %s: '%s'", n, mr_status_name(status), err.text);
            mr_stage_destroy(s);
            assert_int_equal(mr_mem_get_stats().live_bytes, before);
        }
        print_message("%d allocations\n", n - 1);
        tiny_model_destroy(m);
    }
    mr_stage_destroy(NULL);
}

/* --- Pages of the file ------------------------------------------------------------------------------------------- */

/* Kilobytes of private memory and of mapped files, from /proc. */
typedef struct resident {
    long anonymous, file;
} resident;

static resident resident_now(void) {
    resident r = {0};
    char line[256];
    long v;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "RssAnon: %ld kB", &v) == 1)
            r.anonymous = v;
        else if (sscanf(line, "RssFile: %ld kB", &v) == 1 || sscanf(line, "RssShmem: %ld kB", &v) == 1)
            r.file += v; /* files in a tmpfs count as shared memory */
    }
    fclose(f);
    return r;
}

typedef struct peak {
    long file;
} peak;

static bool note_peak(void *ctx, size_t done, size_t total) {
    (void)done;
    (void)total;
    peak *p = ctx;
    long now = resident_now().file;
    p->file = now > p->file ? now : p->file;
    return true;
}

/* Loads layers [first, last) of the file and compares the resident memory of the process with the sizes of the
 * stage. */
static void check_resident(const char *path, int32_t first, int32_t last) {
    enum { SLACK_KB = 1024, AHEAD_KB = 8192 /* the kernel maps up to 2 MiB around a page that is read */ };
    resident before = resident_now();
    tiny_model *m = tiny_model_open_path(path);
    mr_stage_config c = config_for(m, first, last);
    mr_stage *s = NULL;
    mr_err err = {0};
    peak p = {.file = before.file};
    expect_ok(mr_stage_create(&c, backend, note_peak, &p, &s, &err), &err);
    resident after = resident_now();
    mr_stage_sizes sizes = mr_stage_get_sizes(s);
    long weights = (long)(sizes.weight_bytes >> 10), held = after.anonymous - before.anonymous;
    long most = weights + (long)((sizes.kv_bytes + sizes.work_bytes) >> 10) + 4 * PAGE_BLOCK / 1024;
    print_message("layers %d to %d: weights %ld KiB, own memory +%ld KiB, file pages +%ld KiB (at most +%ld)\n", first,
                  last, weights, held, after.file - before.file, p.file - before.file);
    if (!CHAIN_SANITIZED) {
        assert_true(held >= weights - SLACK_KB);
        assert_true(held <= most + SLACK_KB);
    }
    assert_true(after.file - before.file <= SLACK_KB);
    assert_true(p.file - before.file <= AHEAD_KB);
    mr_stage_destroy(s);
    tiny_model_destroy(m);
}

/* A file of 70 MB: a stage holds its own layers, and the pages of the file are given back as it goes. */
static void test_file_pages_are_given_back(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    char dir[512], path[600];
    snprintf(dir, sizeof dir, "%s/millrace-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/model.gguf", dir);
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    d.n_layers = 64;
    d.d_model = 256;
    d.n_ff = 1024;
    d.vocab_size = 2000;
    gguf_writer *w = tiny_model_write(&d);
    bool saved = gguf_writer_save(w, path);
    gguf_writer_destroy(w);
    assert_true(saved);
    check_resident(path, 0, 64);
    check_resident(path, 20, 40);
    check_resident(path, 63, 64);
    unlink(path);
    rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stage_takes_what_was_measured),
        cmocka_unit_test(test_sizes_that_cannot_be),
        cmocka_unit_test(test_a_step_allocates_nothing),
        cmocka_unit_test(test_progress_is_called_between_groups),
        cmocka_unit_test(test_blocks_are_used_again),
        cmocka_unit_test(test_a_budget_that_is_too_small),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_file_pages_are_given_back),
    };
    return cmocka_run_group_tests_name("stage_memory", tests, open_backend, close_backend);
}
