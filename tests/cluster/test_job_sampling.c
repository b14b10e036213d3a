/* Grammars and log-probabilities from the description of a sequence to its events, over any number of stages, also
 * for sequences that are preempted and computed again. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>
#include <math.h>
#include <string.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/test.h"

enum { N = 12, VOCAB = 90, END = 2, FIRST_CHARACTER = 3 };

#define KEY(name) "tokenizer.ggml." name

static job_model model, model_without_text;

/* A model whose tokens are "<unk>", "<s>", "</s>", then the characters from '!' on. */
static gguf_writer *write_with_vocabulary(tiny_desc desc) {
    static char texts[VOCAB][2];
    const char *tokens[VOCAB] = {"<unk>", "<s>", "</s>"};
    float scores[VOCAB] = {0};
    int32_t types[VOCAB] = {2, 3, 3};
    for (int i = FIRST_CHARACTER; i < VOCAB; i++) {
        texts[i][0] = (char)('!' + i - FIRST_CHARACTER);
        tokens[i] = texts[i];
        types[i] = 1;
    }
    desc.tokens = tokens;
    gguf_writer *w = tiny_model_write(&desc);
    gguf_writer_str(w, KEY("model"), "llama");
    gguf_writer_f32s(w, KEY("scores"), scores, VOCAB);
    gguf_writer_i32s(w, KEY("token_type"), types, VOCAB);
    gguf_writer_u32(w, KEY("bos_token_id"), 1);
    gguf_writer_u32(w, KEY("eos_token_id"), END);
    gguf_writer_u32(w, KEY("unknown_token_id"), 0);
    return w;
}

typedef struct packed {
    uint8_t *bytes;
    size_t n;
} packed;

static packed pack(const char *gbnf) {
    mr_grammar *g = NULL;
    packed p = {0};
    mr_err err;
    if (mr_grammar_parse(mr_str_from(gbnf), &g, &err) != MR_OK || mr_grammar_pack(g, &p.bytes, &p.n, &err) != MR_OK)
        fail_msg("%s", err.text);
    mr_grammar_destroy(g);
    return p;
}

/* --- Grammars ---------------------------------------------------------------------------------------------------- */

static const char SENTENCES[] = "root ::= sentence+\nsentence ::= \"ab\" [c-k]{1,4} (\".\" | \"(\" sentence \")\")\n";

/* A sentence from text[at] on, all of it or as much as there is; the place behind it, or -1. */
static int read_sentence(const char *text, int at) {
    static const char begin[] = "ab";
    for (int i = 0; i < 2; i++, at++) {
        if (!text[at])
            return at;
        if (text[at] != begin[i])
            return -1;
    }
    int n = 0;
    for (; text[at] >= 'c' && text[at] <= 'k'; at++)
        n++;
    if (n > 4 || (n == 0 && text[at]))
        return -1;
    if (!text[at])
        return at;
    if (text[at] == '.')
        return at + 1;
    if (text[at] != '(')
        return -1;
    at = read_sentence(text, at + 1);
    if (at < 0 || !text[at])
        return at;
    return text[at] == ')' ? at + 1 : -1;
}

/* The text of a sequence follows the grammar. The sequence ends behind whole sentences only. */
static void check_text(const listener *l) {
    char text[MAX_HEARD + 1] = "";
    int n = 0, at = 0;
    for (; n < l->n_ids && l->ids[n] != END; n++) {
        assert_true(l->ids[n] >= FIRST_CHARACTER);
        text[n] = (char)('!' + l->ids[n] - FIRST_CHARACTER);
    }
    text[n] = 0;
    while (at >= 0 && text[at])
        at = read_sentence(text, at);
    if (at < 0)
        fail_msg("\"%s\" is no text of the grammar", text);
    if (n < l->n_ids)
        assert_true(n > 0 && (text[n - 1] == '.' || text[n - 1] == ')'));
}

static bool stop_at_end(void *ctx, const mr_token_event *event) {
    bool stop = listener_token(ctx, event);
    return stop || (event->finish != MR_FINISH_ERROR && event->id == END);
}

static mr_sequence_desc sentences(int32_t number, const void *packed_grammar, listener *l, int32_t ids[64]) {
    const packed *grammar = packed_grammar;
    static const int32_t end_id[] = {END};
    static const float end_biases[] = {12, -12}; /* the end is likely for half of the sequences, which end early */
    mr_sequence_desc desc = job_sequence(number, l);
    desc.on_token = stop_at_end;
    desc.prompt_ids = ids;
    desc.n_prompt = 1 + number * 7 % 14;
    desc.max_tokens = 45;
    desc.grammar = grammar->bytes;
    desc.grammar_bytes = grammar->n;
    desc.sampling.temperature = 1.5f;
    desc.sampling.top_k = 0;
    desc.sampling.bias_ids = end_id;
    desc.sampling.biases = &end_biases[number % 2];
    desc.sampling.n_biases = 1;
    job_prompt(number, desc.n_prompt, VOCAB, ids);
    return desc;
}

static void submit(job_rig *rig, const mr_sequence_desc *desc) {
    int64_t sequence;
    mr_err err;
    expect_ok(mr_job_submit(rig->job, desc, &sequence, &err), &err);
}

/* Alone on one stage, and together over one to three with blocks for little more than one: the same ids. Returns
 * how many end tokens there were. */
static int32_t run_all_ways(mr_sequence_desc describe(int32_t number, const void *what, listener *l, int32_t ids[64]),
                            const void *what, void check(const listener *l), int32_t *out_preempted) {
    static listener alone[N], together[N];
    int32_t ids[64], n_ended = 0;
    job_rig rig;
    for (int32_t n_stages = 0; n_stages <= 3; n_stages++) {
        bool is_alone = n_stages == 0;
        listener *heard = is_alone ? alone : together;
        job_rig_must_start(&rig, &(job_rig_config){.model = &model,
                                                   .n_stages = is_alone ? 1 : n_stages,
                                                   .max_rows = is_alone ? 64 : 5,
                                                   .max_sequences = is_alone ? 1 : 6,
                                                   .n_kv_blocks = is_alone ? 16 : 6,
                                                   .grammars = true});
        for (int32_t i = 0; i < N; i++) {
            heard[i] = (listener){0};
            mr_sequence_desc desc = describe(i, what, &heard[i], ids);
            submit(&rig, &desc);
        }
        job_rig_run(&rig);
        *out_preempted += (int32_t)rig.job->stats.n_preempted;
        job_rig_stop(&rig);
        for (int32_t i = 0; i < N; i++) {
            check(&heard[i]);
            n_ended += heard[i].ids[heard[i].n_ids - 1] == END;
            assert_int_equal(heard[i].n_ids, alone[i].n_ids);
            assert_memory_equal(heard[i].ids, alone[i].ids, (size_t)alone[i].n_ids * sizeof *alone[i].ids);
        }
    }
    return n_ended;
}

static void test_grammars_over_stages_and_preemption(void **state) {
    (void)state;
    packed grammar = pack(SENTENCES);
    int32_t n_preempted = 0, n_ended = run_all_ways(sentences, &grammar, check_text, &n_preempted);
    print_message("%d ends, %d preempted\n", n_ended, n_preempted);
    assert_true(n_ended > 4 && n_preempted > 0);
    mr_free(grammar.bytes);
}

/* An end is likely, but late; the tokens 20 to 39 cannot come at all, nor 41 behind 40, nor 42 behind 43 and 44. */
enum { LATE = 26 };
static int32_t bad_words[2 * 20 + 3 + 4];

static mr_sequence_desc restrained(int32_t number, const void *nothing, listener *l, int32_t ids[64]) {
    (void)nothing;
    static const int32_t late[] = {END}, liked[] = {END, 40, 41, 43, 44, 42}, pairs[] = {2, 40, 41, 3, 43, 44, 42};
    static const float likes[] = {2, 3, 3, 3, 3, 3};
    mr_sequence_desc desc = job_sequence(number, l);
    for (int32_t i = 0; i < 20; i++) {
        bad_words[2 * i] = 1;
        bad_words[2 * i + 1] = 20 + i;
    }
    memcpy(bad_words + 40, pairs, sizeof pairs);
    desc.on_token = stop_at_end;
    desc.prompt_ids = ids;
    desc.n_prompt = 1 + number * 7 % 14;
    desc.max_tokens = 45;
    desc.sampling.temperature = 1.2f;
    desc.sampling.top_k = 0;
    desc.sampling.bias_ids = liked;
    desc.sampling.biases = likes;
    desc.sampling.n_biases = 6;
    desc.sampling.min_tokens = LATE;
    desc.sampling.late_ids = late;
    desc.sampling.n_late_ids = 1;
    desc.sampling.bad_words = bad_words;
    desc.sampling.n_bad_words = sizeof bad_words / sizeof *bad_words;
    job_prompt(number, desc.n_prompt, VOCAB, ids);
    return desc;
}

static int32_t n_near; /* times that a sequence could have been completed */

static void check_restrained(const listener *l) {
    for (int32_t i = 0; i < l->n_ids; i++) {
        assert_false(l->ids[i] >= 20 && l->ids[i] < 40);
        assert_false(l->ids[i] == END && i < LATE);
        n_near += i > 0 && l->ids[i - 1] == 40;
        assert_false(i > 0 && l->ids[i - 1] == 40 && l->ids[i] == 41);
        assert_false(i > 1 && l->ids[i - 2] == 43 && l->ids[i - 1] == 44 && l->ids[i] == 42);
    }
}

static void test_bans_over_stages_and_preemption(void **state) {
    (void)state;
    int32_t n_preempted = 0, n_ended = run_all_ways(restrained, NULL, check_restrained, &n_preempted);
    print_message("%d ends, %d preempted, %d times near a bad word\n", n_ended, n_preempted, n_near);
    assert_true(n_ended > 4 && n_preempted > 0 && n_near > 20);
}

/* If the grammar of a sequence cannot be followed, only that sequence ends, with an error that says why. */
static void test_grammars_that_cannot_be_followed(void **state) {
    (void)state;
    static const uint8_t junk[] = "root ::= ";
    int32_t ids[64];
    listener good = {0}, stuck = {0}, bad = {0}, greedy = {0};
    packed sentence = pack(SENTENCES), beyond = pack("root ::= \"ab\" \"~\""); /* no token contains a tilde */
    const packed malformed = {(uint8_t *)(uintptr_t)junk, sizeof junk - 1};
    job_rig rig;
    mr_err err;
    int64_t sequence;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 2, .grammars = true});
    mr_sequence_desc desc = sentences(0, &sentence, &good, ids);
    submit(&rig, &desc);
    desc = sentences(1, &beyond, &stuck, ids);
    submit(&rig, &desc);
    desc = sentences(2, &malformed, &bad, ids);
    submit(&rig, &desc);
    desc = sentences(3, &sentence, &greedy, ids);
    desc.sampling.temperature = 0;
    submit(&rig, &desc);
    desc.grammar_bytes = MR_MAX_GRAMMAR_BYTES + 1;
    assert_int_equal(mr_job_submit(rig.job, &desc, &sequence, &err), MR_E_TOO_LONG);
    job_rig_run(&rig);
    check_text(&good);
    check_text(&greedy);
    assert_int_equal(stuck.n_ids, 2);
    assert_int_equal(stuck.status, MR_E_INVALID);
    expect_says(stuck.text, "no token is possible: grammar");
    assert_int_equal(bad.n_ids, 0);
    assert_int_equal(bad.finish, MR_FINISH_ERROR);
    expect_says(bad.text, "could not follow the grammar");
    job_rig_stop(&rig);
    /* A model without token texts, and a job without grammars. */
    good = (listener){0};
    job_rig_must_start(&rig, &(job_rig_config){.model = &model_without_text, .n_stages = 1, .grammars = true});
    desc = sentences(0, &sentence, &good, ids);
    submit(&rig, &desc);
    job_rig_run(&rig);
    assert_int_equal(good.status, MR_E_UNSUPPORTED);
    job_rig_stop(&rig);
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1});
    assert_int_equal(mr_job_submit(rig.job, &desc, &sequence, &err), MR_E_UNSUPPORTED);
    job_rig_stop(&rig);
    mr_free(sentence.bytes);
    mr_free(beyond.bytes);
}

/* --- Log-probabilities ------------------------------------------------------------------------------------------- */

typedef struct lp_listener {
    int32_t ids[64], n_ids;
    mr_logprobs logprobs[64];
} lp_listener;

static bool take_logprobs(void *ctx, const mr_token_event *event) {
    lp_listener *l = ctx;
    mr_logprobs *p = &l->logprobs[l->n_ids];
    assert_int_equal(event->status, MR_OK);
    *p = (mr_logprobs){.logprob = event->logprob, .n_top = event->n_top};
    for (int32_t i = 0; i < event->n_top; i++) {
        p->top_ids[i] = event->top_ids[i];
        p->top[i] = event->top_logprobs[i];
    }
    l->ids[l->n_ids++] = event->id;
    return false;
}

typedef struct all_logits {
    float rows[64][VOCAB];
} all_logits;

static void take_logits(void *ctx, int32_t first, int32_t n_rows, const float *logits) {
    memcpy(((all_logits *)ctx)->rows[first], logits, (size_t)n_rows * VOCAB * sizeof *logits);
}

/* The log-probabilities equal those of the logits of the same ids as a prompt, to the bit. */
static void test_logprobs(void **state) {
    (void)state;
    enum { N_PROMPT = 9, N_TOKENS = 20 };
    static all_logits logits;
    int32_t ids[64];
    mr_sampler_scratch *scratch = NULL;
    job_rig rig;
    mr_err err;
    expect_ok(mr_sampler_scratch_create(VOCAB, &scratch, &err), &err);
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++) {
        lp_listener heard[4] = {0};
        job_rig_must_start(
            &rig, &(job_rig_config){.model = &model, .n_stages = n_stages, .max_sequences = 4, .max_rows = 10});
        for (int32_t i = 0; i < 4; i++) { /* one of the sequences wants no log-probabilities */
            mr_sequence_desc desc = job_sequence(i, NULL);
            desc.on_token = take_logprobs;
            desc.ctx = &heard[i];
            desc.prompt_ids = ids;
            desc.n_prompt = N_PROMPT;
            desc.max_tokens = N_TOKENS;
            desc.logprobs = i != 1;
            desc.n_top_logprobs = i == 0 ? MR_SAMPLER_MAX_TOP : i == 2 ? 0 : 3;
            job_prompt(i, N_PROMPT, VOCAB, ids);
            submit(&rig, &desc);
        }
        job_rig_run(&rig);
        for (int32_t i = 0; i < 4; i++) {
            job_prompt(i, N_PROMPT, VOCAB, ids);
            memcpy(ids + N_PROMPT, heard[i].ids, N_TOKENS * sizeof *ids);
            mr_sequence_desc desc = {
                .prompt_ids = ids, .n_prompt = N_PROMPT + N_TOKENS, .on_logits = take_logits, .ctx = &logits};
            submit(&rig, &desc);
            job_rig_run(&rig);
            assert_int_equal(heard[i].n_ids, N_TOKENS);
            for (int32_t t = 0; t < N_TOKENS; t++) {
                mr_logprobs want = {0};
                if (i != 1)
                    assert_int_equal(mr_logprobs_get(scratch, logits.rows[N_PROMPT + t - 1], VOCAB, heard[i].ids[t],
                                                     i == 0   ? MR_SAMPLER_MAX_TOP
                                                     : i == 2 ? 0
                                                              : 3,
                                                     &want),
                                     MR_OK);
                assert_memory_equal(&heard[i].logprobs[t], &want, sizeof want);
            }
        }
        job_rig_stop(&rig);
    }
    mr_sampler_scratch_destroy(scratch);
}

static void test_what_is_refused(void **state) {
    (void)state;
    static const int32_t outside[] = {VOCAB};
    static const float bias[] = {1};
    int32_t ids[] = {1, 2, 3};
    int64_t sequence;
    mr_err err;
    job_rig rig;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1});
    mr_sequence_desc good = job_sequence(0, NULL), desc = good;
    good.prompt_ids = ids;
    good.n_prompt = 3;
    good.max_tokens = 1;
    desc = good;
    desc.sampling.typical_p = 2;
    expect_fails(mr_job_submit(rig.job, &desc, &sequence, &err), MR_E_INVALID, &err, "typical_p 2");
    desc = good;
    desc.sampling.bias_ids = outside;
    desc.sampling.biases = bias;
    desc.sampling.n_biases = 1;
    expect_fails(mr_job_submit(rig.job, &desc, &sequence, &err), MR_E_INVALID, &err, "token id 90 of the logit biases");
    desc = good;
    desc.sampling.dry_breakers = outside;
    desc.sampling.n_dry_breakers = 1;
    assert_int_equal(mr_job_submit(rig.job, &desc, &sequence, &err), MR_E_INVALID);
    desc = good;
    desc.sampling.late_ids = outside;
    desc.sampling.n_late_ids = 1;
    assert_int_equal(mr_job_submit(rig.job, &desc, &sequence, &err), MR_E_INVALID);
    static const int32_t word[] = {1, VOCAB};
    desc = good;
    desc.sampling.bad_words = word;
    desc.sampling.n_bad_words = 2;
    expect_fails(mr_job_submit(rig.job, &desc, &sequence, &err), MR_E_INVALID, &err, "token id 90 of the bad words");
    desc = good;
    desc.n_top_logprobs = 21;
    assert_int_equal(mr_job_submit(rig.job, &desc, &sequence, &err), MR_E_INVALID);
    job_rig_run(&rig);
    job_rig_stop(&rig);
}

/* What the check of parameters lets through gets through to the tail, too: one that did not would end the job. */
static void test_the_farthest_parameters(void **state) {
    (void)state;
    enum { N_BOTH = 2, N_TOKENS = 3 };
    static const int32_t bias_ids[] = {3, 4};
    static const float biases[] = {-INFINITY, FLT_MAX};
    int32_t ids[] = {1, 5, 6};
    listener heard[N_BOTH] = {0};
    job_rig rig;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1, .max_sequences = N_BOTH});
    for (int32_t i = 0; i < N_BOTH; i++) {
        mr_sequence_desc desc = job_sequence(i, &heard[i]);
        desc.prompt_ids = ids;
        desc.n_prompt = 3;
        desc.max_tokens = N_TOKENS;
        desc.choice = MR_MAX_SEQUENCES - 1;
        desc.sampling = (mr_sampling_params){.temperature = 100,
                                             .top_k = INT32_MAX,
                                             .top_p = (float)i,
                                             .min_p = (float)i,
                                             .typical_p = (float)i,
                                             .top_n_sigma = 1000,
                                             .xtc_probability = 1,
                                             .xtc_threshold = (float)i,
                                             .repeat_penalty = 100,
                                             .repeat_last_n = INT32_MAX,
                                             .presence_penalty = 100,
                                             .frequency_penalty = -100,
                                             .dry_multiplier = 100,
                                             .dry_base = 100,
                                             .dry_allowed_length = i * INT32_MAX,
                                             .dry_last_n = INT32_MAX,
                                             .mirostat = 2 * i,
                                             .mirostat_tau = 100,
                                             .mirostat_eta = 10,
                                             .seed = UINT64_MAX,
                                             .bias_ids = bias_ids,
                                             .biases = biases,
                                             .n_biases = 2,
                                             .min_tokens = INT32_MAX};
        submit(&rig, &desc);
    }
    job_rig_run(&rig);
    for (int32_t i = 0; i < N_BOTH; i++)
        assert_int_equal(heard[i].n_ids, N_TOKENS);
    job_rig_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grammars_over_stages_and_preemption),
        cmocka_unit_test(test_bans_over_stages_and_preemption),
        cmocka_unit_test(test_grammars_that_cannot_be_followed),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_the_farthest_parameters),
    };
    tiny_desc desc = job_model_desc();
    job_model_init(&model, write_with_vocabulary(desc));
    job_model_init(&model_without_text, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    job_model_deinit(&model_without_text);
    return failed;
}
