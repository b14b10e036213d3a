/* cmd_profile.c - `millrace profile`: counts how often a text uses each expert of a model, or each neuron of its sparse
 * feed-forward parts. The text is cut into windows of --ctx tokens that run as sequences of their own, without the
 * prefix cache, so that every token is computed once. The stages count, and report at the end. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "coordinator/cli/cmd.h"
#include "coordinator/console/output.h"
#include "coordinator/console/output_table.h"
#include "coordinator/console/prompt_file.h"
#include "coordinator/session/output_json.h"
#include "coordinator/session/profile_file.h"
#include "coordinator/session/session.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/text/text_file.h"
#include "engine/vocab/vocab.h"

enum { DEFAULT_WINDOW = 512 };
static const int64_t NOTE_NS = MR_NS_PER_S;    /* least time between two progress lines */
static const int32_t HOTTEST[] = {10, 25, 50}; /* percent */
enum { N_HOTTEST = sizeof HOTTEST / sizeof HOTTEST[0] };

typedef struct profile_run {
    mr_session session;
    mr_token_buf ids;
    int32_t n_windows, n_done;
    mr_profile profile;
    mr_profile_model model;
    char *path; /* of the file that is written */
    int64_t start_ns, noted_ns;
} profile_run;

/* --- Windows ----------------------------------------------------------------------------------------------------- */

static mr_status read_text(profile_run *r, const mr_tokenizer *tok, const char *path, mr_err *err) {
    mr_text_buf text = {0};
    int32_t ctx = r->session.ctx;
    mr_status status = mr_text_file_read(path, PROMPT_FILE_MAX_BYTES, &text, err);
    if (status == MR_OK)
        status = mr_tokenizer_encode(tok, (mr_str){text.data, text.len}, MR_ENCODE_BOS, &r->ids, err);
    mr_text_buf_deinit(&text);
    r->n_windows = (int32_t)((r->ids.n + (size_t)ctx - 1) / (size_t)ctx);
    if (status == MR_OK && r->n_windows == 0)
        status = mr_err_set(err, MR_E_INVALID, "%.160s: the text is empty; hint: some thousand words", path);
    return status;
}

/* Called with the hidden row of the last position of a window. */
static void on_window(void *ctx, int32_t first_position, int32_t n_rows, const float *rows) {
    profile_run *r = ctx;
    (void)first_position, (void)n_rows, (void)rows;
    r->n_done++;
    int64_t now = mr_clock_now_ns();
    if (now - r->noted_ns < NOTE_NS || r->n_done == r->n_windows)
        return;
    r->noted_ns = now;
    mr_output_note("window %" PRId32 " of %" PRId32, r->n_done, r->n_windows);
}

static mr_status open_session(profile_run *r, const mr_options *options, mr_err *err) {
    mr_session *s = &r->session;
    mr_status status = mr_session_open(options, s, err);
    if (status != MR_OK)
        return status;
    if (s->info.n_experts == 0 && !s->info.is_sparse)
        return mr_err_set(
            err, MR_E_UNSUPPORTED,
            "%.160s: this model has neither experts nor predictors of active neurons, so every token uses "
            "all of its weights; hint: millrace inspect shows what a model has",
            s->model_path);
    if (!mr_options_given(options, MR_OPTION_CTX) && s->ctx > DEFAULT_WINDOW)
        s->ctx = DEFAULT_WINDOW;
    s->counts_uses = true;
    return MR_OK;
}

/* Sizes and starts the session. One window more than stages runs at the same time, so that all stages have work. */
static mr_status start(profile_run *r, mr_err *err) {
    mr_session *s = &r->session;
    int32_t n = s->plan.n_stages + 1 < r->n_windows ? s->plan.n_stages + 1 : r->n_windows;
    int64_t kv = mr_session_whole_blocks(s->ctx);
    mr_session_needs needs = {.max_rows = s->ctx, .max_sequences = n, .kv_tokens = n * kv, .min_kv_tokens = kv};
    mr_status status = mr_session_size(s, &needs, err);
    return status == MR_OK ? mr_session_start(s, err) : status;
}

/* Submits all windows; the last one may be shorter. bos_id, unless negative, replaces the first token of each. */
static mr_status submit(profile_run *r, int32_t bos_id, mr_err *err) {
    size_t ctx = (size_t)r->session.ctx;
    int64_t number;
    mr_status status = MR_OK;
    for (size_t at = 0; at < r->ids.n && status == MR_OK; at += ctx) {
        size_t n = r->ids.n - at < ctx ? r->ids.n - at : ctx;
        if (bos_id >= 0)
            r->ids.ids[at] = bos_id;
        mr_sequence_desc desc = {.prompt_ids = r->ids.ids + at,
                                 .n_prompt = (int32_t)n,
                                 .fresh = true,
                                 .on_hidden = on_window,
                                 .last_hidden = true,
                                 .ctx = r};
        status = mr_job_submit(r->session.job, &desc, &number, err);
    }
    return status;
}

/* --- Result ------------------------------------------------------------------------------------------------------ */

/* The share of all uses that the hottest experts or neurons have, for each of HOTTEST. */
static mr_status hottest_shares(const mr_profile_layer *l, double out[N_HOTTEST], mr_err *err) {
    int32_t *order = mr_alloc_array((size_t)l->n, sizeof *order);
    uint64_t sum = 0, all = mr_profile_sum(l);
    int32_t next = 0;
    if (!order)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to order the counts of layer %" PRId32, l->layer);
    mr_status status = mr_profile_order(l, order, err);
    for (int32_t i = 0; i < N_HOTTEST && status == MR_OK; i++) {
        for (; next < mr_profile_n_hottest(l, HOTTEST[i]); next++)
            sum += l->counts[order[next]];
        out[i] = all > 0 ? (double)sum / (double)all : 0;
    }
    mr_free(order);
    return status;
}

/* The part of the layer's experts or neurons that a row uses on average. */
static double active_share(const profile_run *r, const mr_profile_layer *l) {
    return (double)mr_profile_sum(l) / ((double)r->profile.n_rows * (double)l->n);
}

static mr_status print_table(const profile_run *r, mr_err *err) {
    const mr_profile *p = &r->profile;
    mr_output_table table = {.align = "rrrrrr"};
    mr_text_buf text = {0};
    mr_status status = MR_OK;
    mr_output_table_cell(&table, "layer");
    mr_output_table_cell(&table, p->is_neurons ? "neurons" : "experts");
    mr_output_table_cell(&table, "used by a token");
    for (int32_t i = 0; i < N_HOTTEST; i++)
        mr_output_table_cell(&table, "hottest %" PRId32 " %%", HOTTEST[i]);
    for (int32_t k = 0; k < p->n_layers && status == MR_OK; k++) {
        double shares[N_HOTTEST] = {0};
        const mr_profile_layer *l = &p->layers[k];
        status = hottest_shares(l, shares, err);
        mr_output_table_cell(&table, "%" PRId32, l->layer);
        mr_output_table_cell(&table, "%" PRId32, l->n);
        mr_output_table_cell(&table, "%.1f %%", 100 * active_share(r, l));
        for (int32_t i = 0; i < N_HOTTEST; i++)
            mr_output_table_cell(&table, "%.1f %%", 100 * shares[i]);
    }
    if (status == MR_OK &&
        !mr_output_printf(&text, "%" PRIu64 " tokens; shares of all uses that the hottest %s of a layer have:\n",
                          p->n_rows, p->is_neurons ? "neurons" : "experts"))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for the table");
    if (status == MR_OK)
        status = mr_output_table_print(&table, &text, err);
    if (status == MR_OK)
        status = mr_output_write(text.data, text.len, err);
    mr_output_table_deinit(&table);
    mr_text_buf_deinit(&text);
    return status;
}

static mr_status print_json(const profile_run *r, double seconds, mr_err *err) {
    const mr_session *s = &r->session;
    const mr_profile *p = &r->profile;
    json_t *layers = json_array();
    for (int32_t k = 0; k < p->n_layers; k++) {
        double shares[N_HOTTEST] = {0};
        mr_status status = hottest_shares(&p->layers[k], shares, err);
        if (status != MR_OK) {
            json_decref(layers);
            return status;
        }
        json_t *layer = json_pack("{s:i, s:i, s:f, s:f, s:f, s:f}", "layer", p->layers[k].layer, "n", p->layers[k].n,
                                  "active", active_share(r, &p->layers[k]), "hottest_10", shares[0], "hottest_25",
                                  shares[1], "hottest_50", shares[2]);
        json_array_append_new(layers, layer);
    }
    return mr_output_json_print(json_pack("{s:o, s:s, s:I, s:i, s:i, s:f, s:o, s:o, s:o}", "model",
                                          mr_output_json_text(mr_str_from(s->model_path)), "kind",
                                          p->is_neurons ? "neurons" : "experts", "rows", (json_int_t)p->n_rows,
                                          "windows", r->n_windows, "context", s->ctx, "seconds", seconds, "file",
                                          mr_output_json_text(mr_str_from(r->path)), "layers", layers, "plan",
                                          mr_output_json_plan(&s->plan, s->sizes, &s->cluster)),
                                err);
}

/* Chooses the file that gets the profile, and makes the cache folder before the run. */
static mr_status choose_path(profile_run *r, const mr_options *options, mr_err *err) {
    const char *wish = mr_options_text(options, MR_OPTION_PROFILE_OUT), *model_path = r->session.model_path;
    const char *name = strrchr(model_path, '/');
    r->model.digest = mr_session_model_digest(&r->session);
    snprintf(r->model.name, sizeof r->model.name, "%.255s", name ? name + 1 : model_path);
    if (!wish)
        return mr_profile_path(mr_options_text(options, MR_OPTION_CACHE_DIR), r->model.digest, &r->path, err);
    r->path = mr_strdup(wish);
    return r->path ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a path");
}

/* Collects the counts from the stages, writes and prints them. */
static mr_status finish(profile_run *r, mr_err *err) {
    double seconds = (double)(mr_clock_now_ns() - r->start_ns) / (double)MR_NS_PER_S;
    mr_status status = mr_job_collect_profile(r->session.job, &r->profile, err);
    if (status == MR_OK)
        status = mr_profile_check_model(&r->profile, &r->session.info, err);
    if (status == MR_OK && r->profile.n_rows != r->ids.n)
        status = mr_err_set(err, MR_E_PROTOCOL, "the stages have counted %" PRIu64 " rows of %zu tokens",
                            r->profile.n_rows, r->ids.n);
    if (status == MR_OK)
        status = mr_session_stop(&r->session, err);
    if (status == MR_OK)
        status = mr_profile_write(r->path, &r->model, &r->profile, err);
    if (status != MR_OK)
        return status;
    mr_output_note("%zu tokens in %" PRId32 " windows of %" PRId32 ", in %.2f s; %.1f tokens/s", r->ids.n, r->n_windows,
                   r->session.ctx, seconds, (double)r->ids.n / seconds);
    mr_output_note("the counts are in %s", r->path);
    return mr_options_number(r->session.options, MR_OPTION_JSON) ? print_json(r, seconds, err) : print_table(r, err);
}

mr_status cmd_profile(const mr_options *options, mr_err *err) {
    profile_run r = {0};
    mr_tokenizer *tok = NULL;
    const char *path = mr_options_text(options, MR_OPTION_PROFILED_FILE);
    mr_status status = path ? open_session(&r, options, err) : mr_err_set(err, MR_E_INVALID, "profile needs -f FILE");
    if (status == MR_OK && (status = mr_vocab_load(r.session.gguf, &tok, err)) != MR_OK)
        mr_err_prefix(err, "%.160s", r.session.model_path);
    if (status == MR_OK)
        status = read_text(&r, tok, path, err);
    if (status == MR_OK)
        status = choose_path(&r, options, err);
    if (status == MR_OK)
        status = start(&r, err);
    r.start_ns = r.noted_ns = mr_clock_now_ns();
    if (status == MR_OK)
        status = submit(&r, mr_tokenizer_adds_bos(tok) ? mr_tokenizer_bos_id(tok) : -1, err);
    if (status == MR_OK)
        status = mr_job_run(r.session.job, err);
    if (status == MR_OK)
        status = finish(&r, err);
    mr_session_close(&r.session);
    mr_tokenizer_destroy(tok);
    mr_token_buf_deinit(&r.ids);
    mr_profile_deinit(&r.profile);
    mr_free(r.path);
    return status;
}
