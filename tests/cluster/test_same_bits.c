/* tests/cluster/test_same_bits.c - invariant I1: logits and sampled ids are the same to the bit for a pairwise list of
 * stages, cuts, orders of ranks, threads, instruction sets, chunks, KV types and company in the micro-batch, through
 * coordinator, channels and stages. A long run has the whole list with every KV type; of the demo model, every
 * combination there is, where N is 1 (sanitizers would take days).
 * Arguments: "demo", or the name of a model of the test vectors; and N, to take every Nth combination only. */
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
#include "tests/support/isa_env.h"
#include "tests/support/pairwise.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

enum { N_POSITIONS = 160, N_GENERATED = 24, N_COMPANY = 3, N_HIDDEN = 21, MAX_COMBINATIONS = 60, SKIPPED = 77 };

/* The factors and their levels. */
enum { STAGES, CUT, THREADS, ISA, CHUNK, COMPANY, MAPPED, RANKS };
static const pairwise_factors FACTORS = {8, {5, 2, 3, MR_ISA_COUNT, 4, 2, 2, 3}};
static const int STAGE_COUNTS[] = {1, 2, 3, 5, 8};
static const int CHUNKS[] = {1, 7, 48, 160};

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

static void submit(mr_job *job, listener *l, bool wants_logits) {
    int32_t ids[N_POSITIONS], n = wants_logits ? N_POSITIONS : 5 + 9 * l->idx;
    int64_t sequence;
    mr_err err;
    for (int i = 0; i < n; i++)
        ids[i] = prompt_id(wants_logits ? 0 : 1 + l->idx, i);
    mr_sequence_desc desc = {
        .prompt_ids = ids,
        .n_prompt = n,
        .max_tokens = N_GENERATED,
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

static void make_plan(const combination *c, mr_plan *plan) {
    int n_stages = STAGE_COUNTS[c->level[STAGES]];
    int32_t cuts[8];
    mr_err err;
    n_stages = n_stages > info.n_layers ? info.n_layers : n_stages;
    for (int i = 0; i + 1 < n_stages; i++)
        cuts[i] = i + 1; /* one layer in each stage, the rest in the last stage */
    mr_status status = c->level[CUT] == 0 ? mr_plan_balance(gguf, &info, n_stages, plan, &err)
                                          : mr_plan_cut(gguf, &info, cuts, n_stages - 1, plan, &err);
    if (status != MR_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < n_stages; i++) /* in order, in order from the second rank on, or in reverse order */
        plan->stages[i].rank = c->level[RANKS] == 2 ? n_stages - 1 - i : (i + c->level[RANKS]) % n_stages;
}

/* Runs one combination. Company 0: hidden rows alone, then the logits sequence, then the others one by one; 1: all
 * together. */
static void run_combination(const combination *c, mr_type kv_type, results *out) {
    static mr_plan plan;
    mr_err err;
    mr_local_cluster *cluster = NULL;
    mr_job *job = NULL;
    listener listeners[N_COMPANY + 1];
    char *saved = isa_env_set(mr_isa_name((mr_isa)c->level[ISA]));
    make_plan(c, &plan);
    mr_local_cluster_config local = {
        .model_path = model_path, .n_stages = plan.n_stages, .threads_per_stage = 1 + c->level[THREADS], .epoch = 1};
    int chunk = CHUNKS[c->level[CHUNK]];
    bool together = c->level[COMPANY] == 1;
    expect_ok(mr_local_cluster_create(&local, &cluster, &err), &err);
    isa_env_restore(saved);
    mr_job_config config = {.info = &info,
                            .plan = &plan,
                            .channel = mr_local_cluster_channel(cluster),
                            .epoch = 1,
                            .max_rows = chunk,
                            .max_out_rows = chunk,
                            .max_sequences = N_COMPANY + 2,
                            .max_context = 256,
                            .n_kv_blocks = 16 * (N_COMPANY + 2),
                            .kv_type = kv_type,
                            .grammars = grammar != NULL,
                            .map_weights = c->level[MAPPED] == 1};
    expect_ok(mr_job_create(&config, &job, &err), &err);
    out->n_rows = out->n_hidden = 0;
    submit_hidden(job, out);
    if (!together && mr_job_run(job, &err) != MR_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i <= N_COMPANY; i++) {
        /* Together, the sequence with logits comes last, and its prompt runs beside decode rows. */
        int idx = together ? (i + 1) % (N_COMPANY + 1) : i;
        listeners[idx] = (listener){.out = out, .idx = idx - 1};
        if (idx > 0)
            out->n_ids[idx - 1] = 0;
        submit(job, &listeners[idx], idx == 0);
        if ((!together || i == N_COMPANY) && mr_job_run(job, &err) != MR_OK)
            fail_msg("%s", err.text);
    }
    mr_job_destroy(job);
    mr_local_cluster_destroy(cluster);
    assert_int_equal(out->n_rows, N_POSITIONS);
    assert_int_equal(out->n_hidden, N_HIDDEN);
}

static void compare(const combination *c, const results *want, const results *got) {
    char what[160];
    snprintf(what, sizeof what, "%d stages, cut %d, ranks %d, %d threads, %s, chunk %d, %s%s",
             STAGE_COUNTS[c->level[STAGES]], c->level[CUT], c->level[RANKS], 1 + c->level[THREADS],
             mr_isa_name((mr_isa)c->level[ISA]), CHUNKS[c->level[CHUNK]], c->level[COMPANY] ? "together" : "alone",
             c->level[MAPPED] ? ", matrices in the file" : "");
    for (int p = 0; p < N_POSITIONS; p++) {
        size_t at = (size_t)p * (size_t)want->n_vocab;
        if (memcmp(want->logits + at, got->logits + at, (size_t)want->n_vocab * sizeof(float)) != 0)
            fail_msg("logits of position %d differ: %s", p, what);
    }
    if (memcmp(want->hidden, got->hidden, N_HIDDEN * (size_t)info.d_model * sizeof(float)) != 0)
        fail_msg("hidden rows differ: %s", what);
    for (int i = 0; i < N_COMPANY; i++)
        if (got->n_ids[i] != N_GENERATED || memcmp(want->ids[i], got->ids[i], sizeof want->ids[i]) != 0)
            fail_msg("sampled ids of sequence %d differ: %s", i, what);
}

/* --- The list of combinations ------------------------------------------------------------------------------------ */

static bool isa_is_here(int level) {
    char *saved = isa_env_set(NULL);
    bool is_here = level <= (int)mr_isa_detect();
    isa_env_restore(saved);
    return is_here;
}

static void run_list(mr_type kv_type, int every) {
    combination list[MAX_COMBINATIONS], first = {.level = {0, 0, 0, 0, 3, 0}};
    results want = {.n_vocab = info.vocab_size}, got = want;
    size_t n = (size_t)N_POSITIONS * (size_t)info.vocab_size;
    want.logits = mr_alloc_array(n, sizeof(float));
    got.logits = mr_alloc_array(n, sizeof(float));
    want.hidden = mr_alloc_array((size_t)N_HIDDEN * (size_t)info.d_model, sizeof(float));
    got.hidden = mr_alloc_array((size_t)N_HIDDEN * (size_t)info.d_model, sizeof(float));
    assert_true(want.logits && got.logits && want.hidden && got.hidden);
    for (first.level[ISA] = MR_ISA_COUNT - 1; !isa_is_here(first.level[ISA]);)
        first.level[ISA]--;
    run_combination(&first, kv_type, &want);
    bool all = runs_product && kv_type == MR_TYPE_F16;
    int n_run = 0, n_chosen = 0, n_list = pairwise_list(&FACTORS, list, MAX_COMBINATIONS);
    int n_all = all ? pairwise_count_all(&FACTORS) : n_list;
    for (int i = start % every; i < n_all; i += every) {
        combination c = all ? pairwise_at(&FACTORS, i) : list[i];
        if (!isa_is_here(c.level[ISA]) || share_skips(&n_chosen))
            continue;
        run_combination(&c, kv_type, &got);
        compare(&c, &want, &got);
        n_run++;
    }
    print_message("%d combinations with %s keys and values: the same bits\n", n_run, mr_type_name(kv_type));
    mr_free(want.hidden);
    mr_free(got.hidden);
    mr_free(want.logits);
    mr_free(got.logits);
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
    mr_err err;
    find_model(argc > 1 ? argv[1] : "demo");
    stride = argc > 2 && atoi(argv[2]) > 0 && !share_is_long() ? atoi(argv[2]) : 1;
    runs_product = share_is_long() && argc > 2 && strcmp(argv[1], "demo") == 0 && strcmp(argv[2], "1") == 0;
    start = argc > 3 && atoi(argv[3]) > 0 ? atoi(argv[3]) : 0;
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
