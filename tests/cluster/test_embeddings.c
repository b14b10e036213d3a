/* Hidden rows of prompts, and the embeddings that the service makes of them. The output layer turns the hidden rows
 * into the logits. The service pools them as the request says. The bits are the same for any cut, and do not depend
 * on other sequences. Embeddings of a small random Qwen3 model are those that transformers computes, if
 * tests/golden/arch has the model. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/tensor/f16.h"
#include "proto/link.h"
#include "tests/cluster/test_service_support.h"
#include "tests/support/test.h"

enum { N_VOCAB = 90, WIDTH = 64, N_PROMPT = 37 };

static job_model model;

typedef struct rows_heard {
    float hidden[N_PROMPT][WIDTH], logits[N_PROMPT][N_VOCAB];
    int32_t n_hidden, n_logits;
} rows_heard;

static void on_hidden(void *ctx, int32_t first, int32_t n_rows, const float *rows) {
    rows_heard *h = ctx;
    assert_int_equal(first, h->n_hidden);
    memcpy(h->hidden[first], rows, (size_t)n_rows * sizeof h->hidden[0]);
    h->n_hidden += n_rows;
}

static void on_logits(void *ctx, int32_t first, int32_t n_rows, const float *logits) {
    rows_heard *h = ctx;
    memcpy(h->logits[first], logits, (size_t)n_rows * sizeof h->logits[0]);
    h->n_logits += n_rows;
}

static void run_rows(job_rig *rig, rows_heard *out) {
    int32_t ids[N_PROMPT];
    int64_t sequence;
    mr_err err;
    *out = (rows_heard){0};
    job_prompt(1, N_PROMPT, 80, ids);
    mr_sequence_desc desc = {
        .prompt_ids = ids, .n_prompt = N_PROMPT, .fresh = true, .on_hidden = on_hidden, .ctx = out};
    expect_ok(mr_job_submit(rig->job, &desc, &sequence, &err), &err);
    desc.on_hidden = NULL;
    desc.on_logits = on_logits;
    expect_ok(mr_job_submit(rig->job, &desc, &sequence, &err), &err);
    job_rig_run(rig);
    assert_int_equal(out->n_hidden, N_PROMPT);
    assert_int_equal(out->n_logits, N_PROMPT);
}

/* The output matrix times the hidden row is the row of logits, but for the rounding of activations. */
static void test_logits_are_products_of_them(void **state) {
    (void)state;
    static rows_heard heard;
    job_rig rig;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 2, .max_rows = 16});
    run_rows(&rig, &heard);
    const mr_gguf_tensor *t = mr_gguf_find_tensor(model.tiny->gguf, "output.weight");
    assert_int_equal(t->type, MR_TYPE_F16);
    double worst = 0, largest = 0;
    for (int p = 0; p < N_PROMPT; p++)
        for (int v = 0; v < N_VOCAB; v++) {
            double sum = 0;
            for (int k = 0; k < WIDTH; k++) {
                uint16_t half;
                memcpy(&half, (const uint8_t *)t->data + ((size_t)v * WIDTH + (size_t)k) * 2, 2);
                sum += (double)mr_f16_to_f32(half) * (double)heard.hidden[p][k];
            }
            double off = fabs(sum - (double)heard.logits[p][v]);
            worst = off > worst ? off : worst;
            largest = fabs(sum) > largest ? fabs(sum) : largest;
        }
    print_message("logits up to %.2f, off by %.4f at most\n", largest, worst);
    assert_true(largest > 1 && worst < 0.01 * largest);
    job_rig_stop(&rig);
}

typedef struct last_heard {
    int32_t n_calls, first, n_rows;
    float row[WIDTH];
} last_heard;

static void on_last(void *ctx, int32_t first, int32_t n_rows, const float *rows) {
    last_heard *h = ctx;
    h->n_calls++;
    h->first = first;
    h->n_rows += n_rows;
    memcpy(h->row, rows, sizeof h->row);
}

/* What the tail sends for the last row does not grow with the prompt, or with the number of its steps. A message brings
 * the rows that it has to one call. */
static void test_the_last_row_comes_alone(void **state) {
    (void)state;
    static rows_heard all;
    static const int32_t LENGTHS[] = {1, 5, 8, 9, 16, N_PROMPT};
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++) {
        job_rig rig;
        mr_err err;
        job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = n_stages, .max_rows = 8});
        for (size_t i = 0; i < 2 * (sizeof LENGTHS / sizeof *LENGTHS); i++) {
            int32_t ids[N_PROMPT], n = LENGTHS[i / 2];
            int64_t sequence;
            last_heard last = {0};
            all = (rows_heard){0};
            job_prompt(1, n, 80, ids);
            mr_sequence_desc desc = {.prompt_ids = ids,
                                     .n_prompt = n,
                                     .fresh = i % 2,
                                     .on_hidden = on_last,
                                     .last_hidden = true,
                                     .ctx = &last};
            expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
            desc = (mr_sequence_desc){
                .prompt_ids = ids, .n_prompt = n, .fresh = true, .on_hidden = on_hidden, .ctx = &all};
            expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
            job_rig_run(&rig);
            assert_int_equal(last.n_calls, 1);
            assert_int_equal(last.n_rows, 1);
            assert_int_equal(last.first, n - 1);
            assert_int_equal(all.n_hidden, n);
            assert_memory_equal(last.row, all.hidden[n - 1], sizeof last.row);
        }
        job_rig_stop(&rig);
    }
}

/* Short prompts ride in steps together, and get what each gets alone. */
static void test_many_in_a_step(void **state) {
    (void)state;
    enum { N = 40, SHORT = 5 };
    static rows_heard alone[N], together[N];
    job_rig rig;
    mr_err err;
    job_rig_must_start(
        &rig, &(job_rig_config){.model = &model, .n_stages = 2, .max_rows = 64, .max_sequences = N, .n_kv_blocks = N});
    for (int round = 0; round < 2; round++) {
        int64_t n_before = mr_job_get_stats(rig.job).n_steps;
        for (int32_t i = 0; i < N; i++) {
            rows_heard *to = round ? &together[i] : &alone[i];
            int32_t ids[SHORT];
            int64_t sequence;
            job_prompt(i, SHORT, 80, ids);
            mr_sequence_desc desc = {
                .prompt_ids = ids, .n_prompt = SHORT, .fresh = true, .on_hidden = on_hidden, .ctx = to};
            expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
            if (round == 0)
                job_rig_run(&rig);
        }
        job_rig_run(&rig);
        int64_t n_steps = mr_job_get_stats(rig.job).n_steps - n_before;
        print_message("%d prompts in %d steps\n", N, (int)n_steps);
        /* The job ends when its rows are there. The report of its last step may come later. */
        assert_true(round == 0 ? n_steps >= N - 1 : n_steps < N / 2);
    }
    assert_memory_equal(together, alone, sizeof alone);
    job_rig_stop(&rig);
}

/* As a reader of the rows would pool them. n: numbers of the embedding. */
static void pool(const rows_heard *h, mr_pooling pooling, int n, double out[WIDTH]) {
    double squares = 0;
    for (int k = 0; k < WIDTH; k++) {
        out[k] = 0;
        for (int p = 0; p < N_PROMPT; p++)
            out[k] += (double)h->hidden[p][k] / N_PROMPT;
        if (pooling != MR_POOLING_MEAN)
            out[k] = (double)h->hidden[pooling == MR_POOLING_CLS ? 0 : N_PROMPT - 1][k];
        squares += k < n ? out[k] * out[k] : 0;
    }
    for (int k = 0; k < WIDTH && pooling != MR_POOLING_RANK; k++)
        out[k] /= sqrt(squares);
}

/* n: numbers of the embedding that are asked for; 0: all. */
static void embed_ids(service_rig *rig, mr_generate_desc desc, mr_pooling pooling, int32_t n, float out[WIDTH]) {
    mr_request *request;
    mr_piece piece;
    mr_err err;
    desc.pooling = pooling;
    desc.n_embedding = n;
    expect_ok(mr_service_submit(rig->service, &desc, &request, &err), &err);
    while (!mr_request_take(request, &piece))
        ;
    assert_int_equal(piece.finish, MR_FINISH_STOP);
    assert_int_equal(piece.n_embedding, n ? n : model.tiny->info.d_model);
    assert_int_equal(piece.n_generated, 0);
    memcpy(out, piece.embedding, (size_t)piece.n_embedding * sizeof *out);
    assert_true(mr_request_ended(request));
    mr_request_release(request);
}

static void embed(service_rig *rig, mr_pooling pooling, int32_t n, float out[WIDTH]) {
    int32_t ids[N_PROMPT];
    embed_ids(rig, service_request(1, N_PROMPT, ids, 0), pooling, n, out);
}

static const struct {
    mr_pooling pooling;
    int32_t n;
} WISHES[] = {{MR_POOLING_MEAN, 0}, {MR_POOLING_CLS, 0},  {MR_POOLING_LAST, 0},
              {MR_POOLING_RANK, 0}, {MR_POOLING_MEAN, 5}, {MR_POOLING_LAST, WIDTH - 1}};
enum { N_WISHES = sizeof WISHES / sizeof WISHES[0] };

static void test_pooling(void **state) {
    (void)state;
    static float first[N_WISHES][WIDTH], got[N_WISHES][WIDTH];
    static rows_heard heard;
    job_rig job;
    job_rig_must_start(&job, &(job_rig_config){.model = &model, .n_stages = 1});
    run_rows(&job, &heard);
    job_rig_stop(&job);
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++) {
        service_rig rig;
        service_rig_start(&rig, &(job_rig_config){.model = &model, .n_stages = n_stages, .max_rows = 8 * n_stages},
                          NULL, 0);
        for (int i = 0; i < 2 * N_WISHES; i++) /* in the second round, the prefix cache has the prompt */
            embed(&rig, WISHES[i % N_WISHES].pooling, WISHES[i % N_WISHES].n, got[i % N_WISHES]);
        service_rig_stop(&rig);
        if (n_stages == 1)
            memcpy(first, got, sizeof got);
        assert_memory_equal(got, first, sizeof got);
    }
    for (int i = 0; i < N_WISHES; i++) {
        double want[WIDTH];
        int n = WISHES[i].n ? WISHES[i].n : WIDTH;
        pool(&heard, WISHES[i].pooling, n, want);
        for (int k = 0; k < n; k++)
            assert_true(fabs(want[k] - (double)got[i][k]) < 1e-6);
    }
    assert_memory_equal(first[3], heard.hidden[N_PROMPT - 1], sizeof first[3]);
}

/* --- What is sent back ------------------------------------------------------------------------------------------- */

static atomic_size_t sent_back; /* bytes of messages with logits or hidden rows */
static const mr_channel_ops *own_ops;

static mr_status count_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                            mr_channel_request *out, mr_err *err) {
    if (tag % 8 == mr_link_tag(MR_LINK_LOGITS, 0))
        atomic_fetch_add(&sent_back, bytes);
    return own_ops->post_send(ch, peer, tag, data, bytes, out, err);
}

/* Of mr_local_cluster_config. All channels of a cluster have the same functions, so the first one's are copied: stages
 * use the copy while the next channels open. */
static mr_status count_sends(void *ctx, mr_channel **channel, mr_err *err) {
    (void)err;
    mr_channel_ops *ops = ctx;
    if (!own_ops) {
        own_ops = (*channel)->ops;
        *ops = *own_ops;
        ops->post_send = count_send;
    }
    (*channel)->ops = ops;
    return MR_OK;
}

/* For the last row alone, the bytes do not grow with the prompt or with its steps; for the mean they do. */
static void test_bytes_sent_back(void **state) {
    (void)state;
    static const int32_t LENGTHS[] = {1, 5, 16, N_PROMPT};
    mr_channel_ops ops;
    service_rig rig;
    float embedding[WIDTH];
    int32_t ids[N_PROMPT];
    service_rig_start(
        &rig, &(job_rig_config){.model = &model, .n_stages = 2, .max_rows = 8, .wrap = count_sends, .wrap_ctx = &ops},
        NULL, 0);
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        static const mr_pooling POOLINGS[] = {MR_POOLING_LAST, MR_POOLING_RANK, MR_POOLING_MEAN};
        for (int k = 0; k < 3; k++) {
            atomic_store(&sent_back, 0);
            embed_ids(&rig, service_request(1, LENGTHS[i], ids, 0), POOLINGS[k], 0, embedding);
            size_t row = WIDTH * sizeof(float), bytes = atomic_load(&sent_back);
            if (POOLINGS[k] == MR_POOLING_MEAN)
                assert_true(bytes > (size_t)LENGTHS[i] * row);
            else
                assert_int_equal(bytes, MR_FRAME_BYTES + row);
        }
    }
    service_rig_stop(&rig);
}

/* --- A reference of transformers --------------------------------------------------------------------------------- */

#define GOLDEN MILLRACE_SOURCE_DIR "/tests/golden/arch/"

static int32_t read_ids(int32_t *out, int32_t cap) {
    FILE *file = fopen(GOLDEN "ids.txt", "r");
    int32_t n = 0;
    assert_non_null(file);
    while (n < cap && fscanf(file, "%d", &out[n]) == 1)
        n++;
    fclose(file);
    return n;
}

/* The file has the hidden row of the last id, in float64 rounded to float32, before it is scaled. */
static void test_golden(void **state) {
    (void)state;
    enum { MAX_IDS = 64 };
    job_model random_model = model;
    float want[WIDTH], got[WIDTH];
    int32_t ids[MAX_IDS];
    FILE *file = fopen(GOLDEN "qwen3-embedding.ref.f32", "rb");
    if (!file) {
        print_message("skipped: there is no " GOLDEN "qwen3-embedding.ref.f32\n");
        skip();
    }
    int32_t n = (int32_t)fread(want, sizeof *want, WIDTH, file), n_ids = read_ids(ids, MAX_IDS);
    fclose(file);
    snprintf(model.path, sizeof model.path, "/tmp/millrace-golden-%d", (int)getpid());
    unlink(model.path);
    assert_int_equal(symlink(GOLDEN "qwen3-embedding.gguf", model.path), 0);
    model.tiny = tiny_model_open_path(model.path);
    assert_non_null(model.tiny);
    assert_int_equal(n, model.tiny->info.d_model);
    double squares = 0, off = 0;
    for (int k = 0; k < n; k++)
        squares += (double)want[k] * (double)want[k];
    for (int32_t n_stages = 1; n_stages <= 2; n_stages++) {
        service_rig rig;
        mr_generate_desc desc = {.n_choices = 1};
        desc.sequence.prompt_ids = ids;
        desc.sequence.n_prompt = n_ids;
        desc.sequence.sampling = mr_sampling_params_default();
        service_rig_start(&rig, &(job_rig_config){.model = &model, .n_stages = n_stages, .max_rows = 16}, NULL, 0);
        embed_ids(&rig, desc, MR_POOLING_LAST, 0, got);
        service_rig_stop(&rig);
        for (int k = 0; k < n; k++)
            off = fmax(off, fabs((double)got[k] - (double)want[k] / sqrt(squares)));
    }
    job_model_deinit(&model);
    model = random_model;
    print_message("%d numbers, off by %.1e at most\n", n, off);
    assert_true(off < 2e-4); /* keys and values are in f16 */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits_are_products_of_them),
                                       cmocka_unit_test(test_many_in_a_step),
                                       cmocka_unit_test(test_the_last_row_comes_alone),
                                       cmocka_unit_test(test_pooling),
                                       cmocka_unit_test(test_bytes_sent_back),
                                       cmocka_unit_test(test_golden)};
    tiny_desc desc = job_model_desc();
    desc.type = MR_TYPE_F16;
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
