/* tests/cluster/test_same_bits.c - invariant I1: logits and sampled ids are the same to the bit for a pairwise list of
 * stages, cuts, orders of ranks, threads, instruction sets, chunks, KV types and company in the micro-batch, through
 * coordinator, channels and stages. A long run has the whole list with every KV type; of the demo model, every
 * combination there is, where N is 1 (sanitizers would take days).
 * test_cuda_same_bits is the same with layers on emulated GPUs (same_bits_places.h). The reference is always the CPU.
 * Arguments: "demo", or the name of a model of the test vectors; N, to take every Nth combination only; and the first
 * of them. Without arguments: demo 1 0. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/kernels.h"
#include "coordinator/clusters/local_cluster.h"
#include "coordinator/job/job.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/grammar/grammar.h"
#include "engine/vocab/vocab.h"
#include "tests/cluster/same_bits_places.h"
#include "tests/support/isa_env.h"
#include "tests/support/pairwise.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

enum { N_POSITIONS = 160, N_GENERATED = 24, N_COMPANY = 3, N_HIDDEN = 21, MAX_COMBINATIONS = 60, SKIPPED = 77 };

/* The factors and their levels. Emulated devices are slow: with them, few rows are computed in small chunks. */
enum { STAGES, CUT, THREADS, ISA, CHUNK, COMPANY, MAPPED, RANKS, PLACE };
enum { MAX_LEVELS = 5 };
typedef struct levels {
    pairwise_factors factors;
    int stages[MAX_LEVELS], chunks[MAX_LEVELS];
    int positions[MAX_LEVELS]; /* whose logits are compared, for each chunk */
    int n_generated;
} levels;
static const levels ON_THE_CPU = {{8, {5, 2, 3, MR_ISA_COUNT, 4, 2, 2, 3}},
                                  {1, 2, 3, 5, 8},
                                  {1, 7, 48, N_POSITIONS},
                                  {N_POSITIONS, N_POSITIONS, N_POSITIONS, N_POSITIONS},
                                  N_GENERATED};
static const levels WITH_DEVICES = {
    {8, {4, 2, 1, 1, 3, 2, 2, 3}}, {1, 2, 3, 4}, {1, 7, N_POSITIONS}, {17, 40, N_POSITIONS}, 6};

/* What the levels of a combination mean. */
typedef struct setting {
    int n_stages, cut, ranks, n_threads, isa, chunk, place;
    bool together, mapped;
    int32_t n_positions, n_generated;
} setting;

/* The results of a run: the logits of one sequence, and the ids that N_COMPANY others generate. */
typedef struct results {
    float *logits; /* [N_POSITIONS, vocabulary], of the first sequence */
    float *hidden; /* [N_HIDDEN, d_model], of another sequence */
    int32_t ids[N_COMPANY][N_GENERATED];
    int32_t n_ids[N_COMPANY];
    int32_t n_rows; /* rows of logits received */
    int32_t n_hidden;
    int32_t n_vocab;
} results;

typedef struct listener {
    results *out;
    int idx;
} listener;

static char model_path[1024];
static int stride = 1;    /* of the combinations that are run */
static int start;         /* the first of them */
static bool runs_product; /* all combinations there are */
static levels in_use;
static mr_gguf *gguf;
static mr_model_info info;
static uint8_t *grammar; /* packed; NULL where the model has no tokenizer */
static size_t grammar_bytes;

static void on_logits(void *ctx, int32_t first, int32_t n_rows, const float *logits) {
    results *out = ((listener *)ctx)->out;
    assert_int_equal(first, out->n_rows);
    memcpy(out->logits + (size_t)first * (size_t)out->n_vocab, logits,
           (size_t)n_rows * (size_t)out->n_vocab * sizeof *logits);
    out->n_rows += n_rows;
}

static void on_hidden(void *ctx, int32_t first, int32_t n_rows, const float *rows) {
    results *out = ctx;
    size_t width = (size_t)info.d_model;
    assert_int_equal(first, out->n_hidden);
    memcpy(out->hidden + (size_t)first * width, rows, (size_t)n_rows * width * sizeof *rows);
    out->n_hidden += n_rows;
}

static bool on_token(void *ctx, const mr_token_event *event) {
    listener *l = ctx;
    assert_int_equal(event->status, MR_OK);
    l->out->ids[l->idx][l->out->n_ids[l->idx]++] = event->id;
    return false;
}

static int32_t prompt_id(int seed, int position) {
    return (int32_t)(mr_rng_u64(99, (uint32_t)seed, (uint64_t)position) % (uint64_t)info.vocab_size);
}

static void submit(mr_job *job, const setting *s, listener *l, bool wants_logits) {
    int32_t ids[N_POSITIONS], n = wants_logits ? s->n_positions : 5 + 9 * l->idx;
    int64_t sequence;
    mr_err err;
    for (int i = 0; i < n; i++)
        ids[i] = prompt_id(wants_logits ? 0 : 1 + l->idx, i);
    mr_sequence_desc desc = {
        .prompt_ids = ids,
        .n_prompt = n,
        .max_tokens = s->n_generated,
        .sampling =
            {.temperature = 0.9f, .top_k = 40, .top_p = 0.95f, .repeat_penalty = 1.1f, .repeat_last_n = 64, .seed = 17},
        .ctx = l};
    mr_sampling_params *p = &desc.sampling;
    p->mirostat = l->idx == 1 ? 2 : 0; /* three samplers: the usual chain, Mirostat, and all others with a grammar */
    p->mirostat_tau = 4;
    p->mirostat_eta = 0.1f;
    if (l->idx == 2) {
        p->typical_p = 0.95f;
        p->top_n_sigma = 2;
        p->xtc_probability = 0.5f;
        p->xtc_threshold = 0.1f;
        p->presence_penalty = p->frequency_penalty = 0.2f;
        p->dry_multiplier = 0.8f;
        p->dry_base = 1.75f;
        p->dry_allowed_length = 1;
        p->dry_last_n = -1;
        desc.grammar = grammar;
        desc.grammar_bytes = grammar_bytes;
    }
    if (wants_logits)
        desc.on_logits = on_logits;
    else
        desc.on_token = on_token;
    expect_ok(mr_job_submit(job, &desc, &sequence, &err), &err);
}

static void submit_hidden(mr_job *job, results *out) {
    int32_t ids[N_HIDDEN];
    int64_t sequence;
    mr_err err;
    for (int i = 0; i < N_HIDDEN; i++)
        ids[i] = prompt_id(2 + N_COMPANY, i);
    mr_sequence_desc desc = {
        .prompt_ids = ids, .n_prompt = N_HIDDEN, .fresh = true, .on_hidden = on_hidden, .ctx = out};
    expect_ok(mr_job_submit(job, &desc, &sequence, &err), &err);
}

static void make_plan(const setting *s, mr_plan *plan) {
    int n_stages = s->n_stages > info.n_layers ? info.n_layers : s->n_stages;
    int32_t cuts[8];
    mr_err err;
    for (int i = 0; i + 1 < n_stages; i++)
        cuts[i] = i + 1; /* one layer in each stage, the rest in the last stage */
    expect_ok(s->cut == 0 ? mr_plan_balance(gguf, &info, n_stages, plan, &err)
                          : mr_plan_cut(gguf, &info, cuts, n_stages - 1, plan, &err),
              &err);
    for (int i = 0; i < n_stages; i++) /* in order, in order from the second rank on, or in reverse order */
        plan->stages[i].rank = s->ranks == 2 ? n_stages - 1 - i : (i + s->ranks) % n_stages;
    places_apply(s->place, mr_model_partitions(&info), plan);
}

static void count_step(void *ctx, int32_t n_rows) {
    (void)n_rows;
    ++*(int64_t *)ctx;
}

/* Not together: hidden rows alone, then the logits sequence, then the others one by one. */
static void run_sequences(mr_job *job, const setting *s, results *out) {
    listener listeners[N_COMPANY + 1];
    mr_err err;
    out->n_rows = out->n_hidden = 0;
    submit_hidden(job, out);
    if (!s->together)
        expect_ok(mr_job_run(job, &err), &err);
    for (int i = 0; i <= N_COMPANY; i++) {
        /* Together, the sequence with logits comes last, and its prompt runs beside decode rows. */
        int idx = s->together ? (i + 1) % (N_COMPANY + 1) : i;
        listeners[idx] = (listener){.out = out, .idx = idx - 1};
        if (idx > 0)
            out->n_ids[idx - 1] = 0;
        submit(job, s, &listeners[idx], idx == 0);
        if (!s->together || i == N_COMPANY)
            expect_ok(mr_job_run(job, &err), &err);
    }
    assert_int_equal(out->n_rows, s->n_positions);
    assert_int_equal(out->n_hidden, N_HIDDEN);
}

static void describe(const setting *s, char *out, size_t n) {
    snprintf(out, n, "%d stages, cut %d, ranks %d, %s, %d threads, %s, chunk %d, %s%s", s->n_stages, s->cut, s->ranks,
             places_name(s->place), s->n_threads, mr_isa_name((mr_isa)s->isa), s->chunk,
             s->together ? "together" : "alone", s->mapped ? ", matrices in the file" : "");
}

static void run_setting(const setting *s, mr_type kv_type, results *out) {
    static mr_plan plan;
    char what[200];
    int64_t n_steps = 0;
    mr_err err;
    mr_local_cluster *cluster = NULL;
    mr_job *job = NULL;
    char *saved = isa_env_set(mr_isa_name((mr_isa)s->isa));
    make_plan(s, &plan);
    const mr_local_cluster_config local = {.model_path = model_path,
                                           .n_stages = plan.n_stages,
                                           .threads_per_stage = s->n_threads,
                                           .devices = places_devices(s->place),
                                           .epoch = 1};
    expect_ok(mr_local_cluster_create(&local, &cluster, &err), &err);
    isa_env_restore(saved);
    places_begin();
    const mr_job_config config = {.info = &info,
                                  .epoch.plan = &plan,
                                  .channel = mr_local_cluster_channel(cluster),
                                  .epoch.number = 1,
                                  .max_rows = s->chunk,
                                  .max_out_rows = s->chunk,
                                  .max_sequences = N_COMPANY + 2,
                                  .max_context = 256,
                                  .epoch.n_kv_blocks = 16 * (N_COMPANY + 2),
                                  .kv_type = kv_type,
                                  .grammars = grammar != NULL,
                                  .map_weights = s->mapped,
                                  .on_step = count_step,
                                  .on_step_ctx = &n_steps};
    expect_ok(mr_job_create(&config, &job, &err), &err);
    run_sequences(job, s, out);
    describe(s, what, sizeof what);
    places_check(s->place, &plan, n_steps, what);
    mr_job_destroy(job);
    mr_local_cluster_destroy(cluster);
}

static void compare(const setting *s, const results *want, const results *got) {
    char what[200];
    describe(s, what, sizeof what);
    for (int p = 0; p < s->n_positions; p++) {
        size_t at = (size_t)p * (size_t)want->n_vocab;
        if (memcmp(want->logits + at, got->logits + at, (size_t)want->n_vocab * sizeof(float)) != 0)
            fail_msg("logits of position %d differ: %s", p, what);
    }
    if (memcmp(want->hidden, got->hidden, N_HIDDEN * (size_t)info.d_model * sizeof(float)) != 0)
        fail_msg("hidden rows differ: %s", what);
    for (int i = 0; i < N_COMPANY; i++)
        if (got->n_ids[i] != s->n_generated ||
            memcmp(want->ids[i], got->ids[i], (size_t)s->n_generated * sizeof want->ids[i][0]) != 0)
            fail_msg("sampled ids of sequence %d differ: %s", i, what);
}

/* --- The list of combinations ------------------------------------------------------------------------------------ */

static bool isa_is_here(int level) {
    char *saved = isa_env_set(NULL);
    bool is_here = level <= (int)mr_isa_detect();
    isa_env_restore(saved);
    return is_here;
}

static int best_isa(void) {
    int isa = MR_ISA_COUNT - 1;
    while (!isa_is_here(isa))
        isa--;
    return isa;
}

static setting setting_of(const combination *c) {
    const int *level = c->level;
    bool has_isas = in_use.factors.n_levels[ISA] > 1;
    return (setting){.n_stages = in_use.stages[level[STAGES]],
                     .cut = level[CUT],
                     .ranks = level[RANKS],
                     .n_threads = 1 + level[THREADS],
                     .isa = has_isas ? level[ISA] : best_isa(),
                     .chunk = in_use.chunks[level[CHUNK]],
                     .place = PLACES_N > 0 ? 1 + level[PLACE] : 0,
                     .together = level[COMPANY] == 1,
                     .mapped = level[MAPPED] == 1,
                     .n_positions = in_use.positions[level[CHUNK]],
                     .n_generated = in_use.n_generated};
}

static void results_init(results *r) {
    *r = (results){.n_vocab = info.vocab_size};
    r->logits = mr_alloc_array((size_t)N_POSITIONS * (size_t)info.vocab_size, sizeof(float));
    r->hidden = mr_alloc_array((size_t)N_HIDDEN * (size_t)info.d_model, sizeof(float));
    assert_true(r->logits && r->hidden);
}

static void results_deinit(results *r) {
    mr_free(r->hidden);
    mr_free(r->logits);
}

static void run_list(mr_type kv_type, int every) {
    combination list[MAX_COMBINATIONS];
    const setting first = {.n_stages = 1,
                           .n_threads = 1,
                           .isa = best_isa(),
                           .chunk = N_POSITIONS,
                           .n_positions = N_POSITIONS,
                           .n_generated = in_use.n_generated};
    results want, got;
    results_init(&want);
    results_init(&got);
    run_setting(&first, kv_type, &want);
    bool all = runs_product && kv_type == MR_TYPE_F16;
    int n_run = 0, n_chosen = 0, n_list = pairwise_list(&in_use.factors, list, MAX_COMBINATIONS);
    int n_all = all ? pairwise_count_all(&in_use.factors) : n_list;
    for (int i = start % every; i < n_all; i += every) {
        combination c = all ? pairwise_at(&in_use.factors, i) : list[i];
        const setting s = setting_of(&c);
        if (!isa_is_here(s.isa) || share_skips(&n_chosen))
            continue;
        run_setting(&s, kv_type, &got);
        compare(&s, &want, &got);
        n_run++;
    }
    print_message("%d combinations with %s keys and values: the same bits\n", n_run, mr_type_name(kv_type));
    results_deinit(&want);
    results_deinit(&got);
}

static void test_f16_kv(void **state) {
    (void)state;
    run_list(MR_TYPE_F16, stride);
}

static void test_f32_kv(void **state) {
    (void)state;
    run_list(MR_TYPE_F32, share_is_long() ? 1 : 4 * stride);
}

static void test_q8_0_kv(void **state) {
    (void)state;
    run_list(MR_TYPE_Q8_0, share_is_long() ? 1 : 6 * stride);
}

static void make_grammar(void) {
    static const char letters[] = "root ::= ([a-z ]{1,9} [,.!?'])+";
    mr_tokenizer *tok = NULL;
    mr_grammar *g = NULL;
    mr_err err;
    if (mr_vocab_load(gguf, &tok, &err) != MR_OK)
        return;
    mr_tokenizer_destroy(tok);
    if (mr_grammar_parse(mr_str_from(letters), &g, &err) != MR_OK ||
        mr_grammar_pack(g, &grammar, &grammar_bytes, &err) != MR_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    mr_grammar_destroy(g);
}

static void find_model(const char *name) {
    const char *vectors = getenv("MILLRACE_TEST_VECTORS");
    if (strcmp(name, "demo") == 0)
        snprintf(model_path, sizeof model_path, "%s/deploy/demo/millrace-demo.gguf", MILLRACE_SOURCE_DIR);
    else
        snprintf(model_path, sizeof model_path, "%s/models/%s.gguf", vectors ? vectors : ".", name);
    if (strcmp(name, "demo") != 0 && access(model_path, R_OK) != 0) {
        printf("skipped: %s is not there\n", model_path);
        exit(SKIPPED);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_f16_kv), cmocka_unit_test(test_f32_kv),
                                       cmocka_unit_test(test_q8_0_kv)};
    const char *name = argc > 1 ? argv[1] : "demo";
    int every = argc > 2 && atoi(argv[2]) > 0 ? atoi(argv[2]) : 1;
    mr_err err;
    find_model(name);
    stride = share_is_long() ? 1 : every;
    runs_product = share_is_long() && every == 1 && strcmp(name, "demo") == 0;
    start = share_draw() + (argc > 3 && atoi(argv[3]) > 0 ? atoi(argv[3]) : 0);
    in_use = PLACES_N > 0 ? WITH_DEVICES : ON_THE_CPU;
    if (PLACES_N > 0)
        in_use.factors.n_levels[in_use.factors.n++] = PLACES_N;
    if (mr_gguf_open(model_path, &gguf, &err) != MR_OK || mr_model_info_read(gguf, &info, &err) != MR_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    make_grammar();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mr_free(grammar);
    mr_gguf_close(gguf);
    return failed;
}
