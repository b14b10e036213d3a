/* cmd_perplexity.c - `millrace perplexity`: measures how well a model predicts a text.
 * The text is cut into windows of --ctx tokens, and each window is run alone. Only the tokens of the second half are
 * scored, each by the logits of the position before it, so the model has seen at least half a window before each scored
 * token. llama.cpp's llama-perplexity does the same, so the values can be compared. The scores of the windows are added
 * in the order of the windows, whatever the order in which the windows end. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <math.h>

#include "coordinator/cli/cmd.h"
#include "coordinator/console/output.h"
#include "coordinator/console/prompt_file.h"
#include "coordinator/session/output_json.h"
#include "coordinator/session/session.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/text/text_file.h"
#include "engine/vocab/vocab.h"

enum {
    DEFAULT_WINDOW = 512,
    MIN_WINDOW = 8,
};
static const int64_t NOTE_NS = MR_NS_PER_S; /* least time between two progress lines */

struct perplexity;

typedef struct window {
    struct perplexity *all;
    const int32_t *ids;  /* [ctx], points into the ids of the text */
    double sum, squares; /* sums of -log(probability) and of its square over the scored tokens */
    int32_t n_rows;      /* positions whose logits have come */
} window;

typedef struct perplexity {
    mr_session session;
    mr_token_buf ids;
    window *windows;
    int32_t n_windows, n_done; /* the sums below contain the first n_done windows */
    double sum, squares;
    int64_t start_ns, noted_ns;
} perplexity;

typedef struct score {
    int64_t n_tokens;
    double value, error; /* perplexity and its standard error */
} score;

/* --- Scores ------------------------------------------------------------------------------------------------------ */

/* The score of the first n windows. The standard error is that of the mean, propagated through exp. */
static score score_of(const perplexity *p, int32_t n) {
    int32_t ctx = p->session.ctx;
    score s = {.n_tokens = (int64_t)n * (ctx - ctx / 2 - 1)};
    double count = (double)s.n_tokens, mean = p->sum / count, variance = p->squares / count - mean * mean;
    s.value = exp(mean);
    s.error = s.value * sqrt((variance > 0 ? variance : 0) / (count - 1));
    return s;
}

static double minus_log_probability(const float *logits, int32_t n, int32_t id) {
    float most = logits[0];
    double sum = 0;
    for (int32_t i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)most);
    return log(sum) + (double)most - (double)logits[id];
}

static void note(perplexity *p) {
    int64_t now = mr_clock_now_ns();
    if (now - p->noted_ns < NOTE_NS || p->n_done == p->n_windows)
        return;
    p->noted_ns = now;
    mr_output_note("window %" PRId32 " of %" PRId32 ": perplexity %.4f", p->n_done, p->n_windows,
                   score_of(p, p->n_done).value);
}

/* Adds the scores of complete windows, up to the first window that is not complete. */
static void add_up(perplexity *p) {
    int32_t before = p->n_done;
    while (p->n_done < p->n_windows && p->windows[p->n_done].n_rows == p->session.ctx) {
        p->sum += p->windows[p->n_done].sum;
        p->squares += p->windows[p->n_done].squares;
        p->n_done++;
    }
    if (p->n_done > before)
        note(p);
}

static void on_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits) {
    window *w = ctx;
    int32_t n_vocab = w->all->session.info.vocab_size, length = w->all->session.ctx;
    for (int32_t i = 0; i < n_rows; i++) {
        int32_t position = first_position + i;
        if (position < length / 2 || position == length - 1)
            continue;
        double v = minus_log_probability(logits + (size_t)i * (size_t)n_vocab, n_vocab, w->ids[position + 1]);
        w->sum += v;
        w->squares += v * v;
    }
    w->n_rows += n_rows;
    add_up(w->all);
}

/* --- Windows ----------------------------------------------------------------------------------------------------- */

static mr_status read_text(perplexity *p, const mr_tokenizer *tok, const char *path, mr_err *err) {
    mr_text_buf text = {0};
    mr_status status = mr_text_file_read(path, PROMPT_FILE_MAX_BYTES, &text, err);
    if (status == MR_OK)
        status = mr_tokenizer_encode(tok, (mr_str){text.data, text.len}, MR_ENCODE_BOS, &p->ids, err);
    mr_text_buf_deinit(&text);
    p->n_windows = (int32_t)(p->ids.n / (size_t)p->session.ctx);
    if (status == MR_OK && p->n_windows == 0)
        status = mr_err_set(err, MR_E_INVALID,
                            "%.160s: the text has %zu tokens, less than a window of %" PRId32 "; hint: a smaller --ctx",
                            path, p->ids.n, p->session.ctx);
    return status;
}

/* Sizes and starts the session. One window more than stages runs at the same time, so that all stages have work. */
static mr_status start(perplexity *p, mr_err *err) {
    mr_session *s = &p->session;
    int32_t n = s->plan.n_stages + 1 < p->n_windows ? s->plan.n_stages + 1 : p->n_windows;
    int64_t kv = mr_session_whole_blocks(s->ctx);
    mr_session_needs needs = {
        .max_rows = s->ctx, .max_sequences = n, .all_logits = true, .kv_tokens = n * kv, .min_kv_tokens = kv};
    p->windows = mr_alloc_array((size_t)p->n_windows, sizeof *p->windows);
    if (!p->windows)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRId32 " windows", p->n_windows);
    mr_status status = mr_session_size(s, &needs, err);
    return status == MR_OK ? mr_session_start(s, err) : status;
}

/* Submits all windows. bos_id, unless negative, replaces the first token of each window. */
static mr_status submit(perplexity *p, int32_t bos_id, mr_err *err) {
    int32_t ctx = p->session.ctx;
    int64_t number;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < p->n_windows && status == MR_OK; i++) {
        int32_t *ids = p->ids.ids + (size_t)i * (size_t)ctx;
        p->windows[i] = (window){.all = p, .ids = ids};
        if (bos_id >= 0)
            ids[0] = bos_id;
        mr_sequence_desc desc = {.prompt_ids = ids, .n_prompt = ctx, .on_logits = on_logits, .ctx = &p->windows[i]};
        status = mr_job_submit(p->session.job, &desc, &number, err);
    }
    return status;
}

/* --- Result ------------------------------------------------------------------------------------------------------ */

static mr_status print_result(const perplexity *p, mr_err *err) {
    const mr_session *s = &p->session;
    score z = score_of(p, p->n_windows);
    double seconds = (double)(mr_clock_now_ns() - p->start_ns) / (double)MR_NS_PER_S;
    if (!isfinite(z.value))
        return mr_err_set(err, MR_E_NUMERICS, "the model computed logits that are infinite or not numbers");
    mr_output_note("%" PRId64 " of %zu tokens scored, in %" PRId32 " windows of %" PRId32 ", in %.2f s; %.1f tokens/s",
                   z.n_tokens, p->ids.n, p->n_windows, s->ctx, seconds, (double)p->n_windows * s->ctx / seconds);
    if (mr_options_number(s->options, MR_OPTION_JSON)) {
        json_t *plan = mr_output_json_plan(&s->plan, s->sizes, &s->cluster);
        return mr_output_json_print(json_pack("{s:o, s:f, s:f, s:I, s:i, s:i, s:f, s:o}", "model",
                                              mr_output_json_text(mr_str_from(s->model_path)), "perplexity", z.value,
                                              "standard_error", z.error, "tokens", (json_int_t)z.n_tokens, "windows",
                                              p->n_windows, "context", s->ctx, "seconds", seconds, "plan", plan),
                                    err);
    }
    char line[96];
    int n = snprintf(line, sizeof line, "perplexity %.6g +/- %.3g\n", z.value, z.error);
    return mr_output_write(line, (size_t)n, err);
}

static mr_status open_session(perplexity *p, const mr_options *options, mr_err *err) {
    mr_session *s = &p->session;
    mr_status status = mr_session_open(options, s, err);
    if (status == MR_OK && !mr_options_given(options, MR_OPTION_CTX) && s->ctx > DEFAULT_WINDOW)
        s->ctx = DEFAULT_WINDOW;
    if (status == MR_OK && s->ctx < MIN_WINDOW)
        status = mr_err_set(err, MR_E_INVALID, "--ctx: a window needs at least %d tokens", MIN_WINDOW);
    return status;
}

mr_status cmd_perplexity(const mr_options *options, mr_err *err) {
    perplexity p = {0};
    mr_tokenizer *tok = NULL;
    const char *path = mr_options_text(options, MR_OPTION_SCORED_FILE);
    mr_status status =
        path ? open_session(&p, options, err) : mr_err_set(err, MR_E_INVALID, "perplexity needs -f FILE");
    if (status == MR_OK && (status = mr_vocab_load(p.session.gguf, &tok, err)) != MR_OK)
        mr_err_prefix(err, "%.160s", p.session.model_path);
    if (status == MR_OK)
        status = read_text(&p, tok, path, err);
    if (status == MR_OK)
        status = start(&p, err);
    p.start_ns = p.noted_ns = mr_clock_now_ns();
    if (status == MR_OK)
        status = submit(&p, mr_tokenizer_adds_bos(tok) ? mr_tokenizer_bos_id(tok) : -1, err);
    if (status == MR_OK)
        status = mr_job_run(p.session.job, err);
    if (status == MR_OK)
        status = print_result(&p, err);
    if (status == MR_OK)
        status = mr_session_stop(&p.session, err);
    mr_session_close(&p.session);
    mr_tokenizer_destroy(tok);
    mr_token_buf_deinit(&p.ids);
    mr_free(p.windows);
    return status;
}
