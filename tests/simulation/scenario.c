// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/grammar/grammar.h"
#include "proto/limits.h"

enum { END = 2, FIRST_CHARACTER = 6, N_SHARED = 34 };
enum { PREFILL, DECODE, PREEMPTED, SHARED, GRAMMAR, MIROSTAT, LOGPROBS, LOGITS, HIDDEN, CHOICES, MIXED };

/* Blocks of 16 tokens: the few of "preempted" hold two of its five sequences at full length. */
static const scenario SCENARIOS[N_SCENARIOS] = {
    [PREFILL] = {"prefill", 3, 8, 3, 24, false},     [DECODE] = {"decode", 4, 16, 4, 24, false},
    [PREEMPTED] = {"preempted", 5, 16, 5, 6, false}, [SHARED] = {"shared", 4, 8, 4, 20, false},
    [GRAMMAR] = {"grammar", 3, 16, 3, 24, true},     [MIROSTAT] = {"mirostat", 4, 16, 4, 24, false},
    [LOGPROBS] = {"logprobs", 4, 16, 4, 24, false},  [LOGITS] = {"logits", 3, 12, 3, 24, false},
    [HIDDEN] = {"hidden", 4, 12, 4, 24, false},      [CHOICES] = {"choices", 4, 16, 4, 24, false},
    [MIXED] = {"mixed", 6, 16, 5, 8, true},
};

static char path[] = "/tmp/millrace-simulation-XXXXXX";
static tiny_model *model;
static uint8_t *grammar;
static size_t grammar_bytes;

const scenario *scenario_at(int32_t number) {
    return &SCENARIOS[number];
}

const char *scenarios_path(void) {
    return path;
}

const tiny_model *scenarios_model(void) {
    return model;
}

/* --- The model --------------------------------------------------------------------------------------------------- */

static void stop(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* Three layers, so that there is a stage which is neither the first nor the last; every token is a text. */
static gguf_writer *write_model(void) {
    static char texts[SCENARIO_VOCAB][8];
    static const char *tokens[SCENARIO_VOCAB] = {"<unk>", "<s>", "</s>", "<a>", "<b>", "<c>"};
    static float scores[SCENARIO_VOCAB];
    static int32_t types[SCENARIO_VOCAB] = {2, 3, 3, 3, 3, 3};
    for (int32_t i = FIRST_CHARACTER; i < SCENARIO_VOCAB; i++) {
        texts[i][0] = (char)('!' + i - FIRST_CHARACTER);
        tokens[i] = texts[i];
        types[i] = 1;
    }
    tiny_desc desc = tiny_default("llama", MR_TYPE_Q8_0);
    desc.n_layers = 3;
    desc.vocab_size = SCENARIO_VOCAB;
    desc.tokens = tokens;
    gguf_writer *w = tiny_model_write(&desc);
    gguf_writer_str(w, "tokenizer.ggml.model", "llama");
    gguf_writer_f32s(w, "tokenizer.ggml.scores", scores, SCENARIO_VOCAB);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, SCENARIO_VOCAB);
    gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", END);
    gguf_writer_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    return w;
}

void scenarios_init(void) {
    size_t n;
    mr_grammar *g = NULL;
    mr_err err;
    gguf_writer *w = write_model();
    const uint8_t *bytes = gguf_writer_bytes(w, &n);
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n || close(fd) != 0)
        stop("the model cannot be written");
    model = tiny_model_open(w);
    static const char SENTENCES[] =
        "root ::= sentence+\nsentence ::= \"ab\" [c-k]{1,4} (\".\" | \"(\" sentence \")\")\n";
    if (mr_grammar_parse(mr_str_from(SENTENCES), &g, &err) != MR_OK ||
        mr_grammar_pack(g, &grammar, &grammar_bytes, &err) != MR_OK)
        stop(err.text);
    mr_grammar_destroy(g);
}

void scenarios_deinit(void) {
    unlink(path);
    tiny_model_destroy(model);
    mr_free(grammar);
}

/* --- Requests ---------------------------------------------------------------------------------------------------- */

static void fill_sampling(int32_t kind, int32_t i, mr_sampling_params *p) {
    *p = mr_sampling_params_default();
    p->temperature = i == 0 ? 0 : 1.2f;
    p->top_k = 0;
    p->seed = 1000 + (uint64_t)(kind == CHOICES ? 0 : i);
    p->repeat_penalty = 1.1f;
    p->repeat_last_n = 32;
    if (kind == MIROSTAT || (kind == MIXED && i < 2)) {
        p->temperature = 0.9f;
        p->mirostat = 1 + i % 2;
        p->mirostat_tau = 3;
        p->mirostat_eta = 0.2f;
    }
    if (kind == CHOICES)
        p->temperature = 1;
    if (kind == DECODE && i == 2) {
        p->dry_multiplier = 0.8f;
        p->dry_base = 1.75f;
        p->dry_allowed_length = 1;
        p->dry_last_n = -1;
    }
}

/* The first n ids of all prompts of a group are the same. */
static int32_t fill_prompt(int32_t kind, int32_t i, int32_t ids[SCENARIO_CONTEXT]) {
    static const int32_t LENGTHS[N_SCENARIOS] = {44, 5, 9, N_SHARED + 1, 4, 6, 7, 36, 36, 12, 20};
    int32_t n = LENGTHS[kind] + (kind == CHOICES ? 0 : 2 * i);
    int32_t n_same = kind == CHOICES ? n : kind == SHARED ? N_SHARED : kind == MIXED && i < 2 ? 20 : 0;
    n = kind == LOGITS || kind == HIDDEN ? SCENARIO_ROWS - i : kind == SHARED && i == 3 ? N_SHARED - 1 : n;
    for (int32_t k = 0; k < n; k++)
        ids[k] =
            (int32_t)(mr_rng_u64((uint64_t)kind + 50, k < n_same ? 99 : (uint64_t)i, (uint64_t)k) % SCENARIO_VOCAB);
    return n;
}

static int32_t most_tokens(int32_t kind, int32_t i) {
    static const int32_t TOKENS[N_SCENARIOS] = {3, 24, 36, 8, 30, 20, 16, 6, 6, 16, 30};
    return TOKENS[kind] - i % 3;
}

static void check_callback(scenario_client *c, bool is_due) {
    if (c->is_cancelled)
        world_fail(c->world, "a callback of a sequence that was cancelled");
    if (c->heard.finish != MR_FINISH_NONE || !is_due)
        world_fail(c->world, "a callback that was not due: token %d, row %d", (int)c->heard.n, (int)c->heard.n_rows);
}

static bool hear_token(void *ctx, const mr_token_event *event) {
    scenario_client *c = ctx;
    scenario_heard *h = &c->heard;
    if (event->status != MR_OK)
        world_fail(c->world, "a sequence failed: %s", event->text);
    check_callback(c, event->n_generated == h->n + 1 && h->n < SCENARIO_TOKENS && event->n_top <= SCENARIO_TOP);
    h->ids[h->n] = event->id;
    h->logprobs[h->n] = event->logprob;
    for (int32_t k = 0; k < event->n_top; k++) {
        h->top_ids[h->n][k] = event->top_ids[k];
        h->top_logprobs[h->n][k] = event->top_logprobs[k];
    }
    h->n++;
    bool stops = c->end_id >= 0 && event->id == c->end_id;
    h->finish = stops ? MR_FINISH_STOP : event->finish;
    if (h->n == c->cancels_at && c->other->sequence >= 0 && c->other->heard.finish == MR_FINISH_NONE) {
        world_note(c->world, "a callback cancels sequence %lld", (long long)c->other->sequence);
        c->other->is_cancelled = true;
        mr_job_cancel(c->job, c->other->sequence);
    }
    return stops;
}

static void hear_rows(void *ctx, int32_t first, int32_t n, const float *rows, int32_t columns) {
    scenario_client *c = ctx;
    check_callback(c, first == c->heard.n_rows && first + n <= c->n_prompt);
    for (int32_t i = 0; i < n; i++)
        memcpy(c->heard.rows[first + i], rows + (size_t)i * (size_t)columns, (size_t)columns * sizeof *rows);
    c->heard.n_rows += n;
    if (c->heard.n_rows == c->n_prompt)
        c->heard.finish = MR_FINISH_LENGTH;
}

static void hear_logits(void *ctx, int32_t first, int32_t n, const float *rows) {
    hear_rows(ctx, first, n, rows, SCENARIO_VOCAB);
}

static void hear_hidden(void *ctx, int32_t first, int32_t n, const float *rows) {
    hear_rows(ctx, first, n, rows, SCENARIO_WIDTH);
}

static void hear_last(void *ctx, int32_t first, int32_t n, const float *rows) {
    scenario_client *c = ctx;
    check_callback(c, first == c->n_prompt - 1 && n == 1);
    memcpy(c->heard.rows[0], rows, SCENARIO_WIDTH * sizeof *rows);
    c->heard.n_rows = c->n_prompt;
    c->heard.finish = MR_FINISH_LENGTH;
}

static void fill_desc(int32_t kind, int32_t i, scenario_client *c, mr_sequence_desc *d) {
    bool logits = (kind == LOGITS && i < 2) || (kind == MIXED && i == 4);
    bool hidden = (kind == HIDDEN && i < 2) || (kind == MIXED && i == 5), last = kind == HIDDEN && i == 2;
    bool follows = kind == GRAMMAR || (kind == MIXED && i == 2);
    *d = (mr_sequence_desc){.ctx = c, .priority = kind != CHOICES && i == 3};
    c->end_id = -1;
    if (logits) {
        d->on_logits = hear_logits;
    } else if (hidden || last) {
        d->on_hidden = hidden ? hear_hidden : hear_last;
        d->last_hidden = last;
        d->fresh = true;
    } else {
        d->on_token = hear_token;
        d->max_tokens = most_tokens(kind, i);
        fill_sampling(kind, i, &d->sampling);
        d->logprobs = kind == LOGPROBS || kind == MIXED;
        d->n_top_logprobs = d->logprobs ? SCENARIO_TOP : 0;
        d->choice = kind == CHOICES ? (uint32_t)i : 0;
    }
    if (follows) {
        d->grammar = grammar;
        d->grammar_bytes = grammar_bytes;
        c->end_id = END;
    }
}

void scenario_submit(int32_t number, int32_t i, mr_job *job, scenario_client *c) {
    int32_t ids[SCENARIO_CONTEXT];
    mr_sequence_desc desc;
    mr_err err;
    fill_desc(number, i, c, &desc);
    desc.prompt_ids = ids;
    desc.n_prompt = c->n_prompt = fill_prompt(number, i, ids);
    c->job = job;
    mr_status status = mr_job_submit(job, &desc, &c->sequence, &err);
    if (status != MR_OK && !(status == MR_E_NO_MEMORY && c->may_lack_memory)) /* else it is submitted again */
        world_fail(c->world, "a sequence was refused: %s", err.text);
}

bool scenario_has_ended(const scenario_client *c) {
    return c->is_cancelled || c->heard.finish != MR_FINISH_NONE;
}

/* --- Checks ------------------------------------------------------------------------------------------------------ */

void scenario_check(world *w, int32_t i, const scenario_client *c, const scenario_heard *due) {
    const scenario_heard *h = &c->heard;
    if (!c->is_cancelled && memcmp(h, due, sizeof *h) == 0)
        return;
    size_t n = (size_t)h->n;
    bool begins_alike = h->n <= due->n && h->n_rows <= due->n_rows &&
                        memcmp(h->ids, due->ids, n * sizeof *h->ids) == 0 &&
                        memcmp(h->logprobs, due->logprobs, n * sizeof *h->logprobs) == 0 &&
                        memcmp(h->top_ids, due->top_ids, n * sizeof *h->top_ids) == 0 &&
                        memcmp(h->top_logprobs, due->top_logprobs, n * sizeof *h->top_logprobs) == 0 &&
                        memcmp(h->rows, due->rows, (size_t)h->n_rows * sizeof *h->rows) == 0;
    if (!c->is_cancelled || !begins_alike)
        world_fail(w,
                   "client %d heard %d tokens and %d rows, other ones than the %d tokens and %d rows of the "
                   "undisturbed run",
                   (int)i, (int)h->n, (int)h->n_rows, (int)due->n, (int)due->n_rows);
}
