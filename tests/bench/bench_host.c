/* tests/bench/bench_host.c - what a step costs the host when a device does the work: the parts of a step on a device
 * that is done at once and computes nothing.
 *   bench_host MODEL [repetitions]
 * Before a stage could have two steps under way, the device was idle for the sum of these times and for the messages
 * and the sampling of the step. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "worker/stage/stage.h"

enum { MAX_REPETITIONS = 100000, MAX_ROWS = 16, CONTEXT = 256, BLOCKS = CONTEXT / MR_KV_BLOCK };

/* --- A device without work --------------------------------------------------------------------------------------- */

static mr_fence last_fence;
static int n_calls, n_waits;

static mr_status done(mr_fence *out) {
    n_calls++;
    *out = ++last_fence;
    return MR_OK;
}

static void no_destroy(mr_backend *be) {
    (void)be;
}
static void describe(const mr_backend *be, mr_device_info *out) {
    (void)be;
    *out = (mr_device_info){.name = "nothing", .alignment = 256};
}
static bool supports(const mr_backend *be, const mr_tensor *tensors, const mr_node *node) {
    (void)be;
    (void)tensors;
    (void)node;
    return true;
}
static mr_status buffer_create(mr_backend *be, size_t bytes, mr_buffer **out, mr_err *err) {
    (void)be;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory");
    (*out)->bytes = bytes;
    return MR_OK;
}
static mr_status buffer_wrap(mr_backend *be, const void *host, size_t bytes, mr_buffer **out, mr_err *err) {
    (void)be;
    (void)host;
    (void)bytes;
    (void)out;
    return mr_err_set(err, MR_E_UNSUPPORTED, "no memory of the host");
}
static void buffer_destroy(mr_backend *be, mr_buffer *buffer) {
    (void)be;
    free(buffer);
}
static mr_status set(mr_backend *be, mr_buffer *buffer, size_t offset, const void *src, size_t bytes, mr_fence *out,
                     mr_err *err) {
    (void)be;
    (void)buffer;
    (void)offset;
    (void)src;
    (void)bytes;
    (void)err;
    return done(out);
}
static mr_status get(mr_backend *be, const mr_buffer *buffer, size_t offset, void *dst, size_t bytes, mr_fence *out,
                     mr_err *err) {
    (void)be;
    (void)buffer;
    (void)offset;
    (void)dst;
    (void)bytes;
    (void)err;
    return done(out);
}
static mr_status weight_bytes(const mr_backend *be, mr_type type, int32_t columns, int32_t rows, size_t *out,
                              mr_err *err) {
    (void)be;
    (void)type;
    (void)err;
    *out = mr_round_up((size_t)rows, MR_PANEL) * (size_t)columns * 4;
    return MR_OK;
}
static mr_status weight_load(mr_backend *be, const mr_tensor *tensor, const uint8_t *src, mr_fence *out, mr_err *err) {
    (void)be;
    (void)tensor;
    (void)src;
    (void)err;
    return done(out);
}
static mr_status program_create(mr_backend *be, const mr_program_desc *desc, mr_program **out, mr_err *err) {
    (void)desc;
    (void)err;
    *out = (mr_program *)be;
    return MR_OK;
}
static void program_destroy(mr_backend *be, mr_program *program) {
    (void)be;
    (void)program;
}
static mr_status submit(mr_backend *be, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err) {
    (void)be;
    (void)program;
    (void)run;
    (void)err;
    return done(out);
}
static mr_status no_wait(mr_backend *be, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    (void)be;
    (void)fence;
    (void)deadline_ns;
    (void)err;
    n_waits++;
    return MR_OK;
}
static mr_status mark(mr_backend *be, mr_fence *out, mr_err *err) {
    (void)be;
    (void)err;
    return done(out);
}
static mr_status fence_ns(mr_backend *be, mr_fence fence, int64_t *out_ns, mr_err *err) {
    (void)be;
    (void)err;
    *out_ns = (int64_t)fence;
    return MR_OK;
}
static mr_status pin(mr_backend *be, void *host, size_t bytes, mr_err *err) {
    (void)be;
    (void)host;
    (void)bytes;
    (void)err;
    return MR_OK;
}
static void unpin(mr_backend *be, void *host) {
    (void)be;
    (void)host;
}

static const mr_backend_ops NOTHING = {
    .destroy = no_destroy,
    .describe = describe,
    .supports = supports,
    .buffer_create = buffer_create,
    .buffer_wrap = buffer_wrap,
    .buffer_destroy = buffer_destroy,
    .set = set,
    .get = get,
    .weight_bytes = weight_bytes,
    .weight_load = weight_load,
    .program_create = program_create,
    .program_destroy = program_destroy,
    .submit = submit,
    .wait = no_wait,
    .mark = mark,
    .fence_ns = fence_ns,
    .pin = pin,
    .unpin = unpin,
};

/* --- Measuring --------------------------------------------------------------------------------------------------- */

typedef enum part { PART_BLOCKS, PART_START, PART_END, PART_COUNT } part;

static void check(mr_status status, const mr_err *err) {
    if (status == MR_OK)
        return;
    fprintf(stderr, "bench_host: %s\n", err->text);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* One decode step. Each row has a sequence of its own. */
static void step(mr_stage *s, int32_t n_rows, bool new_blocks, int64_t ns[PART_COUNT]) {
    mr_err err;
    bool ended;
    mr_step_rows *rows = mr_stage_rows(s);
    int64_t at[PART_COUNT + 1] = {mr_clock_now_ns()};
    for (int32_t r = 0; r < n_rows && new_blocks; r++)
        check(mr_stage_set_blocks(s, r, 1, &r, 1, &err), &err);
    at[1] = mr_clock_now_ns();
    rows->n_rows = rows->n_out = n_rows;
    for (int32_t r = 0; r < n_rows; r++) {
        rows->ids[r] = 1;
        rows->positions[r] = 16;
        rows->slots[r] = 16 * r;
        rows->row_seq[r] = rows->out_rows[r] = r;
    }
    check(mr_stage_start(s, &(mr_stage_step){0}, &err), &err);
    at[2] = mr_clock_now_ns();
    check(mr_stage_poll(s, MR_NEVER, &ended, &err), &err);
    for (int32_t r = 0; r < n_rows; r++)
        if (!mr_stage_logits(s, r))
            exit(1);
    at[3] = mr_clock_now_ns();
    for (int p = 0; p < PART_COUNT; p++)
        ns[p] = at[p + 1] - at[p];
}

static void measure(mr_stage *s, int32_t n_rows, bool new_blocks, int n) {
    static int64_t ns[PART_COUNT][MAX_REPETITIONS];
    static const char *const NAMES[PART_COUNT] = {"block tables", "start", "end"};
    n_calls = n_waits = 0;
    for (int i = 0; i < n; i++) {
        int64_t one[PART_COUNT];
        step(s, n_rows, new_blocks, one);
        for (int p = 0; p < PART_COUNT; p++)
            ns[p][i] = one[p];
    }
    printf("%2d rows%s:", n_rows, new_blocks ? ", each with a new block" : "");
    for (int p = 0; p < PART_COUNT; p++) {
        qsort(ns[p], (size_t)n, sizeof ns[p][0], by_value);
        printf("  %s %.2f us", NAMES[p], (double)ns[p][n / 2] / 1e3);
    }
    printf("; %d calls, %d waits\n", n_calls / n, n_waits / n);
}

int main(int argc, char **argv) {
    mr_err err;
    mr_gguf *gguf = NULL;
    mr_model_info info;
    mr_backend *cpu = NULL, nothing = {.ops = &NOTHING};
    mr_stage *s = NULL;
    int n = argc > 2 ? atoi(argv[2]) : 5000;
    if (argc < 2 || n < 1 || n > MAX_REPETITIONS) {
        fprintf(stderr, "bench_host MODEL [repetitions]\n");
        return 2;
    }
    check(mr_gguf_open(argv[1], &gguf, &err), &err);
    check(mr_model_info_read(gguf, &info, &err), &err);
    check(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &cpu, &err), &err);
    mr_stage_config config = {.gguf = gguf,
                              .info = &info,
                              .range = {0, info.n_layers},
                              .max_rows = MAX_ROWS,
                              .max_out_rows = MAX_ROWS,
                              .max_sequences = MAX_ROWS,
                              .max_context = CONTEXT,
                              .n_kv_blocks = MAX_ROWS * BLOCKS,
                              .kv_type = MR_TYPE_F16,
                              .devices = {.at = {&nothing}, .n = 1, .whole_layers = {info.n_layers}}};
    check(mr_stage_create(&config, cpu, NULL, NULL, &s, &err), &err);
    for (int32_t rows = 1; rows <= MAX_ROWS; rows += MAX_ROWS - 1) {
        measure(s, rows, false, n);
        measure(s, rows, true, n);
    }
    mr_stage_destroy(s);
    mr_backend_destroy(cpu);
    mr_gguf_close(gguf);
    return 0;
}
