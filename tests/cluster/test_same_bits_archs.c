/* tests/cluster/test_same_bits_archs.c - invariant I1 for every architecture: what a sequence generates is the same to
 * the bit for a pairwise list of models, cuts, chunks, threads, instruction sets and disturbances, through coordinator,
 * channels and stages. A sequence is disturbed when it loses its KV blocks and is computed again, and when it begins
 * with blocks that another sequence has computed or is computing. A long run takes all combinations.
 * test_cuda_same_bits_archs is the same with layers on emulated GPUs (same_bits_places.h).
 * The models are those of tests/golden/arch that this version runs, and random ones of other architectures. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/kernels.h"
#include "coordinator/job/job_internal.h"
#include "tests/cluster/same_bits_places.h"
#include "tests/cluster/test_job_support.h"
#include "tests/golden/test_golden_run.h"
#include "tests/support/isa_env.h"
#include "tests/support/pairwise.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

#define FOLDER MILLRACE_SOURCE_DIR "/tests/golden/arch"

enum {
    N_PROMPT = 40, /* two whole KV blocks and a part of a third */
    N_GENERATED = 24,
    N_GENERATED_BY_DEVICES = 8, /* emulated devices are slow */
    N_TOP = 20,
    VOCAB = 288, /* more than the prompt's ids */
    MAX_WIDTH = 256,
    MAX_CONTEXT = 512,
    MIN_MODELS = 20,
    MAX_MODELS = PAIRWISE_MAX_LEVELS,
    MAX_COMBINATIONS = 1000,
    MAX_STAGES = 8,
};

/* The factors and their levels. */
enum { MODEL, CUT, CHUNK, THREADS, ISA, DISTURBANCE, PLACE, N_FACTORS };
enum { WHOLE, HALVES, FIRST_APART, SINGLE_LAYERS, N_CUTS };
enum { ALONE, PREEMPTED, BEGINNING_CACHED, BEGINNING_SHARED, N_DISTURBANCES };
enum { N_CHUNKS = 3, N_THREADS = 3 };
static const char *const CUTS[] = {"one stage", "two stages", "the first layer apart", "single layers"};
static const char *const DISTURBANCES[] = {"alone", "preempted", "the beginning cached", "the beginning shared"};
static const int32_t CHUNKS[N_CHUNKS] = {1, 3, 24};

/* The numbers of tokens behind which the sequence loses its blocks, in parts of 24 of all tokens. */
enum { N_PREEMPTIONS = 2 };
static const int32_t PREEMPTED_BEHIND[N_PREEMPTIONS] = {4, 15};

/* All bits that a sequence leaves behind. */
typedef struct results {
    int32_t n, ids[N_GENERATED], top_ids[N_GENERATED][N_TOP];
    float logprobs[N_GENERATED], top_logprobs[N_GENERATED][N_TOP];
    float hidden[MAX_WIDTH]; /* behind prompt and tokens, by the KV blocks that the sequence has left */
} results;

typedef struct model {
    char path[512], name[64];
    mr_gguf *gguf;
    mr_model_info info;
    results want; /* of one stage, alone, by the best instruction set */
} model;

/* A sequence in a job. */
typedef struct observer {
    mr_job *job;
    results *out;
    int32_t d_model, n_cached, n_hidden; /* n_hidden: positions up to the last hidden row */
    bool is_preempted;
    int64_t before; /* the sequence that keeps its blocks instead; ends with this one. -1: none */
} observer;

static model *models; /* [n_models] */
static int n_models;
static int32_t *prompt;
static int32_t n_generated;

/* --- One run ----------------------------------------------------------------------------------------------------- */

static int32_t preempted_behind(int i) {
    return PREEMPTED_BEHIND[i] * n_generated / N_GENERATED;
}

static bool take_token(void *ctx, const mr_token_event *event) {
    observer *l = ctx;
    results *out = l->out;
    assert_int_equal(event->status, MR_OK);
    assert_true(out->n < n_generated && event->n_top == N_TOP);
    out->ids[out->n] = event->id;
    out->logprobs[out->n] = event->logprob;
    memcpy(out->top_ids[out->n], event->top_ids, sizeof *out->top_ids);
    memcpy(out->top_logprobs[out->n], event->top_logprobs, sizeof *out->top_logprobs);
    l->n_cached = event->n_cached;
    out->n++;
    for (int i = 0; i < N_PREEMPTIONS && l->is_preempted; i++)
        if (out->n == preempted_behind(i))
            assert_true(job_preempt(l->job));
    if (event->finish != MR_FINISH_NONE && l->before >= 0)
        mr_job_cancel(l->job, l->before);
    return false;
}

static void take_hidden(void *ctx, int32_t first, int32_t n_rows, const float *rows) {
    observer *l = ctx;
    size_t width = (size_t)l->d_model;
    l->n_hidden = first + n_rows;
    memcpy(l->out->hidden, rows + (size_t)(n_rows - 1) * width, width * sizeof *rows);
}

static bool ignore_token(void *ctx, const mr_token_event *event) {
    (void)ctx;
    assert_int_equal(event->status, MR_OK);
    return false;
}

static int64_t submit(mr_job *job, const mr_sequence_desc *desc) {
    int64_t sequence;
    mr_err err;
    expect_ok(mr_job_submit(job, desc, &sequence, &err), &err);
    return sequence;
}

static void run_all(mr_job *job) {
    mr_err err;
    expect_ok(mr_job_run(job, &err), &err);
    expect_ok(mr_ledger_check(job->epoch.ledger, &err), &err);
}

/* Another sequence with the first n_prompt ids of the prompt. */
static int64_t submit_other(mr_job *job, int32_t n_prompt, int32_t max_tokens) {
    mr_sequence_desc desc = job_sequence(0, NULL);
    desc.prompt_ids = prompt;
    desc.n_prompt = n_prompt;
    desc.max_tokens = max_tokens;
    desc.on_token = ignore_token;
    return submit(job, &desc);
}

static void submit_main(observer *l) {
    mr_sequence_desc desc = job_sequence(4, NULL);
    desc.prompt_ids = prompt;
    desc.n_prompt = N_PROMPT;
    desc.max_tokens = n_generated;
    desc.logprobs = true;
    desc.n_top_logprobs = N_TOP;
    desc.fresh = l->is_preempted; /* computes all again, also what is still cached of it */
    desc.on_token = take_token;
    desc.ctx = l;
    submit(l->job, &desc);
}

/* One row behind all ids of the sequence. */
static void run_hidden(observer *l) {
    int32_t ids[N_PROMPT + N_GENERATED];
    memcpy(ids, prompt, N_PROMPT * sizeof *ids);
    memcpy(ids + N_PROMPT, l->out->ids, (size_t)n_generated * sizeof *ids);
    const mr_sequence_desc desc = {
        .prompt_ids = ids, .n_prompt = N_PROMPT + n_generated, .on_hidden = take_hidden, .ctx = l};
    submit(l->job, &desc);
    run_all(l->job);
    assert_int_equal(l->n_hidden, N_PROMPT + n_generated);
}

static void check_disturbance(const observer *l, int disturbance) {
    const mr_job_stats *stats = &l->job->stats;
    int64_t again = 0; /* rows of the sequence that were computed before */
    for (int i = 0; i < N_PREEMPTIONS; i++)
        again += N_PROMPT + preempted_behind(i);
    assert_int_equal(stats->n_preempted, l->is_preempted ? N_PREEMPTIONS : 0);
    assert_int_equal(l->n_cached, disturbance >= BEGINNING_CACHED ? N_PROMPT - 1 : 0);
    if (l->is_preempted)
        assert_true(stats->n_rows >= again + N_PROMPT + n_generated - 1);
}

static void run_disturbed(mr_job *job, int disturbance, int32_t d_model, results *out) {
    observer l = {.job = job, .out = out, .d_model = d_model, .is_preempted = disturbance == PREEMPTED, .before = -1};
    *out = (results){0};
    if (disturbance == PREEMPTED)
        l.before = submit_other(job, 5, MAX_CONTEXT - 5);
    else if (disturbance != ALONE)
        submit_other(job, N_PROMPT, n_generated);
    if (disturbance == BEGINNING_CACHED)
        run_all(job);
    submit_main(&l);
    run_all(job);
    assert_int_equal(out->n, n_generated);
    check_disturbance(&l, disturbance);
    run_hidden(&l);
}

static void make_plan(const model *m, int cut, mr_plan *plan) {
    int32_t n_layers = m->info.n_layers, firsts[MAX_STAGES];
    int32_t n_cuts = cut == FIRST_APART ? 1 : n_layers < MAX_STAGES ? n_layers - 1 : MAX_STAGES - 1;
    mr_err err;
    for (int32_t i = 0; i < n_cuts; i++)
        firsts[i] = i + 1;
    expect_ok(cut == WHOLE || cut == HALVES ? mr_plan_balance(m->gguf, &m->info, cut == WHOLE ? 1 : 2, plan, &err)
                                            : mr_plan_cut(m->gguf, &m->info, firsts, n_cuts, plan, &err),
              &err);
    for (int32_t i = 0; i < plan->n_stages; i++)
        plan->stages[i].rank = plan->n_stages - 1 - i;
}

static void describe(const model *m, const combination *c, int place, char *out, size_t n) {
    snprintf(out, n, "%s, %s, %s, chunks of %d, %d threads, %s, %s", m->name, CUTS[c->level[CUT]], places_name(place),
             CHUNKS[c->level[CHUNK]], 1 + c->level[THREADS], mr_isa_name((mr_isa)c->level[ISA]),
             DISTURBANCES[c->level[DISTURBANCE]]);
}

static void count_step(void *ctx, int32_t n_rows) {
    (void)n_rows;
    ++*(int64_t *)ctx;
}

/* MR_E_UNSUPPORTED: this version does not run the model. */
static mr_status run_combination(const model *m, const combination *c, int place, results *out) {
    static mr_plan plan;
    char what[200];
    int64_t n_steps = 0;
    mr_err err;
    mr_local_cluster *cluster = NULL;
    mr_job *job = NULL;
    int disturbance = c->level[DISTURBANCE];
    /* A row of the other sequence may stand beside each chunk. */
    int32_t max_rows = CHUNKS[c->level[CHUNK]] + (disturbance == PREEMPTED || disturbance == BEGINNING_SHARED);
    char *saved = isa_env_set(mr_isa_name((mr_isa)c->level[ISA]));
    make_plan(m, c->level[CUT], &plan);
    places_apply(place, mr_model_partitions(&m->info), &plan);
    const mr_local_cluster_config local = {.model_path = m->path,
                                           .n_stages = plan.n_stages,
                                           .threads_per_stage = 1 + c->level[THREADS],
                                           .devices = places_devices(place),
                                           .epoch = 1};
    expect_ok(mr_local_cluster_create(&local, &cluster, &err), &err);
    isa_env_restore(saved);
    places_begin();
    const mr_job_config config = {.info = &m->info,
                                  .epoch.plan = &plan,
                                  .channel = mr_local_cluster_channel(cluster),
                                  .epoch.number = 1,
                                  .max_rows = max_rows,
                                  .max_out_rows = max_rows,
                                  .max_sequences = 2,
                                  .max_context = MAX_CONTEXT,
                                  .epoch.n_kv_blocks = MAX_CONTEXT / MR_WIRE_BLOCK_TOKENS + 16,
                                  .kv_type = MR_TYPE_F16,
                                  .on_step = count_step,
                                  .on_step_ctx = &n_steps};
    mr_status status = mr_job_create(&config, &job, &err);
    if (status == MR_OK)
        run_disturbed(job, disturbance, m->info.d_model, out);
    else if (status != MR_E_UNSUPPORTED)
        fail_msg("%s: %s", m->name, err.text);
    describe(m, c, place, what, sizeof what);
    if (status == MR_OK)
        places_check(place, &plan, n_steps, what);
    mr_job_destroy(job);
    mr_local_cluster_destroy(cluster);
    return status;
}

/* --- The models -------------------------------------------------------------------------------------------------- */

static int best_isa(void) {
    char *saved = isa_env_set(NULL);
    int best = (int)mr_isa_detect();
    isa_env_restore(saved);
    return best;
}

/* Leaves out a model that this version does not run, which test_golden_archs looks at. */
static void add_model(const char *path, const char *name) {
    const combination plain = {.level = {[CHUNK] = N_CHUNKS - 1, [ISA] = best_isa()}};
    model *m = &models[n_models];
    mr_err err;
    assert_true(n_models < MAX_MODELS);
    *m = (model){0};
    snprintf(m->path, sizeof m->path, "%s", path);
    snprintf(m->name, sizeof m->name, "%s", name);
    expect_ok(mr_gguf_open(path, &m->gguf, &err), &err);
    mr_status status = mr_model_info_read(m->gguf, &m->info, &err);
    if (status == MR_OK) {
        assert_true(m->info.d_model <= MAX_WIDTH);
        status = run_combination(m, &plain, 0, &m->want);
    }
    if (status == MR_OK) {
        n_models++;
        return;
    }
    assert_int_equal(status, MR_E_UNSUPPORTED);
    print_message("%s is left out: this version does not run it\n", name);
    mr_gguf_close(m->gguf);
}

static tiny_desc random_model(const char *arch, mr_type type) {
    tiny_desc desc = tiny_default(arch, type);
    desc.n_layers = 4;
    desc.vocab_size = VOCAB;
    desc.context_length = MAX_CONTEXT;
    return desc;
}

/* The file is removed at the end, the name stays. */
static void add_random_model(const char *name, const tiny_desc *desc) {
    char path[64];
    size_t n;
    gguf_writer *w = tiny_model_write(desc);
    const uint8_t *bytes = gguf_writer_bytes(w, &n);
    job_save_bytes(path, bytes, n);
    gguf_writer_destroy(w);
    add_model(path, name);
}

static void add_random_models(void) {
    tiny_desc desc = random_model("llama", MR_TYPE_Q4_K);
    add_random_model("llama-Q4_K", &desc);
    desc = random_model("llama", MR_TYPE_Q8_0);
    desc.n_experts = 4;
    desc.n_experts_used = 2;
    add_random_model("llama-experts-Q8_0", &desc);
    desc = random_model("qwen2", MR_TYPE_F16);
    add_random_model("qwen2-F16", &desc);
    desc = random_model("bamboo", MR_TYPE_F16);
    desc.n_ff = 700; /* three partitions */
    desc.n_predictor = 32;
    desc.threshold = 0.5f;
    add_random_model("bamboo-F16", &desc);
    desc = random_model("llama", MR_TYPE_Q4_0);
    desc.n_ff = 545;
    desc.n_predictor = 32;
    desc.threshold = 0.8f;
    add_random_model("llama-sparse-Q4_0", &desc);
}

static int has_suffix(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return n > 5 && strcmp(e->d_name + n - 5, ".gguf") == 0;
}

static int open_models(void **state) {
    (void)state;
    struct dirent **files = NULL;
    int32_t n_ids = 0;
    int n_files = scandir(FOLDER, &files, has_suffix, alphasort);
    n_generated = PLACES_N > 0 ? N_GENERATED_BY_DEVICES : N_GENERATED;
    models = calloc(MAX_MODELS, sizeof *models);
    prompt = golden_read_ids(FOLDER "/ids.txt", &n_ids);
    if (!models || !prompt || n_ids < N_PROMPT || n_files < 0)
        return -1;
    add_random_models();
    for (int i = 0; i < n_files; i++) {
        char path[512];
        snprintf(path, sizeof path, FOLDER "/%.200s", files[i]->d_name);
        add_model(path, files[i]->d_name);
        free(files[i]);
    }
    free(files);
    return n_models >= MIN_MODELS ? 0 : -1;
}

static int close_models(void **state) {
    (void)state;
    for (int i = 0; i < n_models; i++) {
        mr_gguf_close(models[i].gguf);
        if (strncmp(models[i].path, FOLDER, strlen(FOLDER)) != 0)
            unlink(models[i].path);
    }
    free(models);
    free(prompt);
    return 0;
}

/* --- The test ---------------------------------------------------------------------------------------------------- */

static void compare(const model *m, const results *got, const char *what) {
    const results *want = &m->want;
    for (int i = 0; i < n_generated; i++)
        if (got->ids[i] != want->ids[i] || memcmp(&got->logprobs[i], &want->logprobs[i], sizeof(float)) != 0 ||
            memcmp(got->top_ids[i], want->top_ids[i], sizeof *want->top_ids) != 0 ||
            memcmp(got->top_logprobs[i], want->top_logprobs[i], sizeof *want->top_logprobs) != 0)
            fail_msg("token %d differs: %s", i, what);
    if (memcmp(got->hidden, want->hidden, sizeof want->hidden) != 0)
        fail_msg("the hidden row behind the last token differs: %s", what);
}

static void test_same_bits(void **state) {
    (void)state;
    static combination list[MAX_COMBINATIONS];
    pairwise_factors factors = {N_FACTORS - 1, {n_models, N_CUTS, N_CHUNKS, N_THREADS, MR_ISA_COUNT, N_DISTURBANCES}};
    if (PLACES_N > 0)
        factors = (pairwise_factors){N_FACTORS, {n_models, N_CUTS, N_CHUNKS, 1, 1, N_DISTURBANCES, PLACES_N}};
    bool is_long = share_is_long();
    int n = is_long ? pairwise_count_all(&factors) : pairwise_list(&factors, list, MAX_COMBINATIONS);
    int n_run = 0, n_chosen = 0, best = best_isa();
    for (int i = 0; i < n; i++) {
        combination c = is_long ? pairwise_at(&factors, i) : list[i];
        int place = PLACES_N > 0 ? 1 + c.level[PLACE] : 0;
        char what[200];
        results got;
        if (factors.n_levels[ISA] == 1)
            c.level[ISA] = best;
        if (c.level[ISA] > best || share_skips(&n_chosen))
            continue;
        const model *m = &models[c.level[MODEL]];
        assert_int_equal(run_combination(m, &c, place, &got), MR_OK);
        describe(m, &c, place, what, sizeof what);
        compare(m, &got, what);
        n_run++;
    }
    print_message("%d of %d combinations with %d models: the same bits\n", n_run, n, n_models);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits)};
    return cmocka_run_group_tests(tests, open_models, close_models);
}
