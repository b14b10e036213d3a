/* cmd_chat.c - `millrace chat`: a conversation in the terminal. A model without a chat template has not learned to
 * answer. With such a model, the user and the model write one text in turns, which is kept as the only message of the
 * user. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/cli/chat_input.h"
#include "coordinator/cli/cmd.h"
#include "coordinator/console/interrupt.h"
#include "coordinator/console/output.h"
#include "coordinator/serving/chat/chat_output.h"
#include "coordinator/serving/chat/chat_template.h"
#include "coordinator/serving/jinja/jinja.h"
#include "coordinator/serving/text/output_text.h"
#include "coordinator/session/session.h"
#include "coordinator/session/session_sampling.h"
#include "engine/base/cache_dir.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/text/text_file.h"
#include "engine/vocab/vocab.h"

static const int64_t LOOK_NS = 50 * MR_NS_PER_MS; /* interval of the checks for Ctrl-C while a prompt is computed */
enum { LEAST_ROOM = 16 };                         /* tokens of the context that are kept free for the answer */

typedef struct chat {
    const mr_options *options;
    mr_session session;
    mr_tokenizer *tok;
    mr_chat_template *template;
    mr_chat_format format;
    unsigned decode_flags;
    mr_session_sampling sampling;
    chat_input *input;
    json_t *messages;
    int32_t capacity; /* tokens of prompt and answer */
    bool shows_reasoning;
    bool is_one_text; /* there is no chat template */
    size_t n_typed;   /* bytes at the end of the one text that the model has not continued yet */
    /* State of the current answer. */
    mr_output_text text;
    mr_chat_output *parts;
    mr_text_buf content, reasoning;
    size_t n_taken; /* bytes of text that were given to parts */
    bool is_over, is_dim;
    mr_status status;
    mr_err *err;
} chat;

static const char COMMANDS[] = "/new starts a new conversation, /exit quits, /help shows this";

/* Set when the model is loaded. From then on, Ctrl-C ends an answer, not the program. Global, because is_ended has no
 * context. */
static bool is_loaded;

static bool is_ended(void) {
    return is_loaded ? mr_rank_loss_reported() || strcmp(mr_interrupt_name(), "SIGTERM") == 0
                     : mr_session_cluster_ended();
}

static mr_status no_memory(mr_err *err) {
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a conversation");
}

/* --- The start --------------------------------------------------------------------------------------------------- */

static mr_status load_template(chat *c, mr_err *err) {
    const char *path = mr_options_text(c->options, MR_OPTION_CHAT_TEMPLATE_FILE);
    mr_text_buf text = {0};
    bool needs_special = false;
    mr_status status = path ? mr_text_file_read(path, MR_JINJA_MAX_SOURCE_BYTES, &text, err) : MR_OK;
    if (status == MR_OK)
        status = mr_chat_template_load(c->session.gguf, c->tok, path ? text.data : NULL, &c->template, err);
    mr_text_buf_deinit(&text);
    if (status != MR_OK)
        return status;
    mr_chat_template_origin origin = mr_chat_template_get_origin(c->template);
    c->is_one_text = origin == CHAT_TEMPLATE_PLAIN;
    if (c->is_one_text)
        mr_output_note(
            "chat: the model file has no chat template, so the model does not answer: it continues your text");
    else if (origin != CHAT_TEMPLATE_FILE)
        mr_output_note("chat: %s", mr_chat_template_origin_text(origin));
    c->format = mr_chat_template_format(c->template, false);
    status = mr_chat_format_needs_special(c->format, c->tok, &needs_special, err);
    c->decode_flags = MR_DECODE_CONTINUES | (needs_special ? MR_DECODE_SPECIAL : 0u);
    return status;
}

static mr_status start_session(chat *c, mr_err *err) {
    const mr_session_needs needs = {.max_rows = c->session.ctx,
                                    .max_sequences = 1,
                                    .kv_tokens = mr_session_whole_blocks(c->session.ctx),
                                    .min_kv_tokens = MR_WIRE_BLOCK_TOKENS * 4,
                                    .half_of_free = true};
    mr_status status = mr_session_size(&c->session, &needs, err);
    c->session.interrupted = is_ended;
    if (status == MR_OK)
        status = mr_session_start(&c->session, err);
    if (status != MR_OK)
        return status;
    int64_t kept = (int64_t)c->session.n_kv_blocks * MR_WIRE_BLOCK_TOKENS;
    c->capacity = kept < c->session.ctx ? (int32_t)kept : c->session.ctx;
    is_loaded = true;
    mr_session_sampling_note(&c->sampling.params);
    return MR_OK;
}

static mr_status open_input(chat *c, mr_err *err) {
    char *folder = NULL;
    mr_text_buf path = {0};
    mr_err ignored;
    if (mr_cache_dir_make(NULL, &folder, &ignored) == MR_OK && !mr_output_printf(&path, "%s/chat-history", folder))
        mr_text_buf_clear(&path);
    mr_free(folder);
    mr_status status = chat_input_open(path.len ? path.data : NULL, &c->input, err);
    mr_text_buf_deinit(&path);
    c->shows_reasoning = isatty(STDOUT_FILENO);
    if (status == MR_OK && chat_input_at_terminal(c->input))
        mr_output_note(
            "chat: Ctrl-C stops an answer, Ctrl-D quits; a \\ at the end of a line continues it on the next line, a "
            "line of \"\"\" begins and ends a message of several lines; %s%s",
            c->is_one_text ? "an empty line lets the model continue; " : "", COMMANDS);
    return status;
}

/* Empties the conversation, and adds the system message of --system. */
static mr_status begin_messages(chat *c, mr_err *err) {
    const char *system = mr_options_text(c->options, MR_OPTION_SYSTEM);
    json_decref(c->messages);
    c->messages = json_array();
    if (!c->messages)
        return no_memory(err);
    if (!system)
        return MR_OK;
    json_t *message = json_pack("{s:s, s:s}", "role", "system", "content", system);
    if (!message)
        return mr_err_set(err, MR_E_INVALID, "--system: the text is not UTF-8");
    return json_array_append_new(c->messages, message) == 0 ? MR_OK : no_memory(err);
}

/* --- An answer --------------------------------------------------------------------------------------------------- */

static mr_status show(chat *c, mr_str text, bool dim, mr_err *err) {
    static const char on[] = "\033[2m", off[] = "\033[0m\n\n";
    mr_status status = MR_OK;
    if (dim != c->is_dim)
        status = dim ? mr_output_write(on, strlen(on), err) : mr_output_write(off, strlen(off), err);
    c->is_dim = dim;
    return status == MR_OK ? mr_output_write(text.data, text.len, err) : status;
}

/* Shows a part of the answer. Reasoning is shown at a terminal only, so that a file gets the answer alone. */
static mr_status on_delta(void *ctx, const mr_chat_delta *delta, mr_err *err) {
    chat *c = ctx;
    bool reasoning = delta->kind == CHAT_REASONING;
    if (!reasoning && delta->kind != CHAT_CONTENT)
        return MR_OK;
    if (!mr_text_buf_append(reasoning ? &c->reasoning : &c->content, delta->text.data, delta->text.len))
        return no_memory(err);
    return reasoning && !c->shows_reasoning ? MR_OK : show(c, delta->text, reasoning, err);
}

static mr_status take_ready(chat *c, mr_err *err) {
    size_t ready = mr_output_text_ready(&c->text), from = c->n_taken;
    c->n_taken = ready;
    return ready > from ? mr_chat_output_push(c->parts, (mr_str){c->text.text.data + from, ready - from}, err) : MR_OK;
}

static bool on_token(void *ctx, const mr_token_event *event) {
    chat *c = ctx;
    bool is_end = event->finish != MR_FINISH_ERROR && mr_tokenizer_is_end(c->tok, event->id);
    if (event->finish == MR_FINISH_ERROR)
        c->status = mr_err_set(c->err, event->status, "%s", event->text);
    else if (!is_end)
        c->status = mr_output_text_push(&c->text, event->id, c->err);
    if (c->status == MR_OK && !is_end)
        c->status = take_ready(c, c->err);
    c->is_over =
        is_end || c->status != MR_OK || event->finish != MR_FINISH_NONE || c->text.stopped || mr_interrupt_seen();
    return c->is_over;
}

static mr_status run_answer(chat *c, const mr_token_buf *prompt, mr_err *err) {
    int64_t wanted = mr_options_number(c->options, MR_OPTION_CHAT_N_PREDICT);
    int32_t room = c->capacity - (int32_t)prompt->n;
    mr_sequence_desc desc = {.prompt_ids = prompt->ids,
                             .n_prompt = (int32_t)prompt->n,
                             .max_tokens = wanted < 0 || wanted > room ? room : (int32_t)wanted,
                             .sampling = c->sampling.params,
                             .on_token = on_token,
                             .ctx = c};
    int64_t sequence;
    mr_status status = mr_job_submit(c->session.job, &desc, &sequence, err);
    while (status == MR_OK && !c->is_over) {
        status = mr_job_turn(c->session.job, mr_clock_now_ns() + LOOK_NS, err);
        if (mr_interrupt_seen() && !c->is_over) {
            mr_job_cancel(c->session.job, sequence);
            c->is_over = true;
        }
    }
    return status == MR_OK ? c->status : status;
}

static mr_status end_answer(chat *c, mr_err *err) {
    mr_status status = mr_output_text_end(&c->text, err);
    if (status == MR_OK)
        status = take_ready(c, err);
    if (status == MR_OK)
        status = mr_chat_output_end(c->parts, err);
    if (status == MR_OK)
        status = show(c, (mr_str){"\n", 1}, false, err);
    return status;
}

static bool is_system(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, "system") == 0;
}

/* The one text that user and model write in turns; empty at first. */
static mr_str one_text(const chat *c) {
    const json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
    const json_t *content = last && !is_system(last) ? json_object_get(last, "content") : NULL;
    return content ? (mr_str){json_string_value(content), json_string_length(content)} : (mr_str){"", 0};
}

/* Replaces the one text by begin and end together. Both may point into the old text. */
static mr_status set_one_text(chat *c, mr_str begin, mr_str end, mr_err *err) {
    mr_text_buf text = {0};
    bool has_one = one_text(c).len > 0;
    if (!mr_text_buf_append(&text, begin.data, begin.len) || !mr_text_buf_append(&text, end.data, end.len)) {
        mr_text_buf_deinit(&text);
        return no_memory(err);
    }
    json_t *message = json_pack("{s:s, s:s%}", "role", "user", "content", text.data ? text.data : "", text.len);
    mr_text_buf_deinit(&text);
    if (!message)
        return mr_err_set(err, MR_E_INVALID, "the text is not UTF-8");
    if (has_one)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return json_array_append_new(c->messages, message) == 0 ? MR_OK : no_memory(err);
}

/* Adds the answer to the conversation. Reasoning and content are kept apart, because templates leave out the reasoning
 * of earlier answers. */
static mr_status keep_answer(chat *c, mr_err *err) {
    if (c->is_one_text)
        return set_one_text(c, one_text(c), (mr_str){c->content.data, c->content.len}, err);
    json_t *message =
        json_pack("{s:s, s:s%}", "role", "assistant", "content", c->content.len ? c->content.data : "", c->content.len);
    if (message && c->reasoning.len)
        json_object_set_new(message, "reasoning_content", json_stringn(c->reasoning.data, c->reasoning.len));
    return json_array_append_new(c->messages, message) == 0 ? MR_OK : no_memory(err);
}

static mr_status answer(chat *c, const mr_token_buf *prompt, mr_str prompt_text, mr_err *err) {
    const mr_option_value *stops = &c->options->values[MR_OPTION_STOP];
    const mr_chat_output_desc desc = {.format = c->format, .prompt = prompt_text, .on_delta = on_delta, .ctx = c};
    mr_text_buf_clear(&c->content);
    mr_text_buf_clear(&c->reasoning);
    c->n_taken = 0;
    c->is_over = c->is_dim = false;
    c->status = MR_OK;
    c->err = err;
    mr_output_text_init(&c->text, c->tok, c->decode_flags, stops->list, stops->n);
    mr_status status = mr_chat_output_create(&desc, &c->parts, err);
    if (status == MR_OK)
        status = run_answer(c, prompt, err);
    if (status == MR_OK)
        status = end_answer(c, err);
    if (status == MR_OK)
        status = keep_answer(c, err);
    mr_chat_output_destroy(c->parts);
    c->parts = NULL;
    mr_output_text_deinit(&c->text);
    return status;
}

/* --- A turn ------------------------------------------------------------------------------------------------------ */

/* Removes the first half of the one text, up to the end of a word. false: nothing can be removed, because only the text
 * that was typed last is left. */
static bool forget_half(chat *c) {
    mr_err ignored;
    mr_str text = one_text(c);
    size_t most = text.len - c->n_typed, n = text.len / 2;
    while (n < most && text.data[n] != ' ' && text.data[n] != '\n')
        n++;
    n = n < most ? n : most;
    return n > 0 && set_one_text(c, (mr_str){text.data + n, text.len - n}, (mr_str){0}, &ignored) == MR_OK;
}

/* Removes the oldest question and its answer. false: only the last question is left. */
static bool forget_oldest(chat *c) {
    if (c->is_one_text)
        return forget_half(c);
    size_t first = is_system(json_array_get(c->messages, 0)) ? 1 : 0;
    if (json_array_size(c->messages) < first + 3)
        return false;
    return json_array_remove(c->messages, first) == 0 && json_array_remove(c->messages, first) == 0;
}

/* Makes the prompt of the conversation. Removes the oldest messages while the prompt does not fit the context. */
static mr_status make_prompt(chat *c, mr_text_buf *text, mr_token_buf *ids, mr_err *err) {
    bool forgot = false;
    for (;;) {
        mr_text_buf_clear(text);
        mr_token_buf_clear(ids);
        mr_status status = mr_chat_template_render(c->template, c->messages, NULL, NULL, true, text, err);
        if (status == MR_OK)
            status = mr_tokenizer_encode(c->tok, (mr_str){text->data, text->len},
                                         MR_ENCODE_PARSE_SPECIAL | MR_ENCODE_BOS, ids, err);
        if (status != MR_OK)
            return status;
        if (ids->n == 0)
            return mr_err_set(err, MR_E_INVALID, "there is nothing to answer");
        if ((int64_t)ids->n + LEAST_ROOM <= c->capacity)
            break;
        if (!forget_oldest(c))
            return mr_err_set(err, MR_E_TOO_LONG, "the text has %zu tokens, but the context has only %" PRId32, ids->n,
                              c->capacity);
        forgot = true;
    }
    if (forgot)
        mr_output_note("chat: the %s is longer than the context, so its beginning is forgotten",
                       c->is_one_text ? "text" : "conversation");
    return MR_OK;
}

/* Whether an error concerns this text alone. Such an error is printed, and the conversation continues. */
static bool is_of_the_text(mr_status status) {
    return status == MR_E_INVALID || status == MR_E_TOO_LONG || status == MR_E_UNSUPPORTED;
}

static mr_status add_message(chat *c, mr_str said, mr_err *err) {
    json_t *message = json_pack("{s:s, s:s%}", "role", "user", "content", said.data, said.len);
    if (!message)
        return mr_err_set(err, MR_E_INVALID, "the text is not UTF-8");
    return json_array_append_new(c->messages, message) == 0 ? MR_OK : no_memory(err);
}

/* Adds the typed text to the one text as a new paragraph. Where nothing was typed, the text stays as it is, for the
 * model to continue. */
static mr_status add_paragraph(chat *c, mr_str typed, mr_err *err) {
    static const mr_str between = {"\n\n", 2};
    mr_status status = MR_OK;
    c->n_typed = typed.len;
    if (typed.len && one_text(c).len)
        status = set_one_text(c, one_text(c), between, err);
    return status == MR_OK && typed.len ? set_one_text(c, one_text(c), typed, err) : status;
}

/* Shows the paragraph that was typed. The last line of the answer before it has ended already. */
static mr_status show_paragraph(chat *c, mr_str typed, bool is_first, mr_err *err) {
    mr_status status = is_first || !typed.len ? MR_OK : show(c, (mr_str){"\n", 1}, false, err);
    return status == MR_OK ? show(c, typed, false, err) : status;
}

/* Adds a text to the conversation and answers it. On failure, restores the conversation. */
static mr_status take_text(chat *c, mr_str said, mr_err *err) {
    mr_text_buf text = {0};
    mr_token_buf ids = {0};
    json_t *before = json_copy(c->messages);
    bool is_first = one_text(c).len == 0;
    mr_status status = !before          ? no_memory(err)
                       : c->is_one_text ? add_paragraph(c, said, err)
                                        : add_message(c, said, err);
    if (status == MR_OK)
        status = make_prompt(c, &text, &ids, err);
    if (status == MR_OK && c->is_one_text)
        status = show_paragraph(c, said, is_first, err);
    if (status == MR_OK)
        status = answer(c, &ids, (mr_str){text.data, text.len}, err);
    if (status != MR_OK && before) {
        json_decref(c->messages);
        c->messages = json_incref(before);
    }
    json_decref(before);
    mr_text_buf_deinit(&text);
    mr_token_buf_deinit(&ids);
    if (is_of_the_text(status)) {
        mr_output_error(err);
        return MR_OK;
    }
    return status;
}

/* Whether a line is a command: a slash and letters, alone or before a space. */
static bool is_command(mr_str line) {
    size_t n = 1;
    while (n < line.len && line.data[n] >= 'a' && line.data[n] <= 'z')
        n++;
    return line.len > 1 && line.data[0] == '/' && n > 1 && (n == line.len || line.data[n] == ' ') &&
           !memchr(line.data, '\n', line.len);
}

static mr_status take_command(chat *c, mr_str line, bool *out_end, mr_err *err) {
    *out_end = mr_str_is(line, "/exit") || mr_str_is(line, "/quit") || mr_str_is(line, "/bye");
    if (mr_str_is(line, "/new"))
        return begin_messages(c, err);
    if (mr_str_is(line, "/help"))
        mr_output_note("chat: %s", COMMANDS);
    else if (!*out_end)
        mr_output_warning("%.*s is not a command: %s; hint: put a space in front of the line to send it to the model",
                          line.len < 40 ? (int)line.len : 40, line.data, COMMANDS);
    return MR_OK;
}

/* Handles a line: a command, or a text to answer. *out_end: the line ends the conversation. */
static mr_status take_line(chat *c, mr_str line, bool *out_end, mr_err *err) {
    *out_end = false;
    if (is_command(line))
        return take_command(c, line, out_end, err);
    bool goes_on = c->is_one_text && chat_input_at_terminal(c->input) && one_text(c).len > 0;
    return line.len > 0 || goes_on ? take_text(c, line, err) : MR_OK;
}

static mr_status converse(chat *c, mr_err *err) {
    mr_text_buf line = {0};
    mr_status status = MR_OK;
    for (bool end = false; status == MR_OK && !end;) {
        chat_typed what = CHAT_TYPED_END;
        status = chat_input_read(c->input, &what, &line, err);
        end = what == CHAT_TYPED_END || is_ended() || (mr_interrupt_seen() && !chat_input_at_terminal(c->input));
        if (status == MR_OK && what == CHAT_TYPED_TEXT)
            status = take_line(c, (mr_str){line.data, line.len}, &end, err);
        end |= is_ended() || (mr_interrupt_seen() && !chat_input_at_terminal(c->input));
        if (!end)
            mr_interrupt_forget();
    }
    mr_text_buf_deinit(&line);
    if (status == MR_OK && mr_interrupt_seen())
        status = mr_err_set(err, MR_E_CANCELLED, "%s", "");
    return status;
}

mr_status cmd_chat(const mr_options *options, mr_err *err) {
    chat c = {.options = options};
    mr_status status = mr_session_sampling_init(&c.sampling, options, err);
    if (status == MR_OK)
        status = begin_messages(&c, err);
    if (status == MR_OK)
        status = mr_session_open(options, &c.session, err);
    if (status == MR_OK)
        status = mr_vocab_load(c.session.gguf, &c.tok, err);
    if (status == MR_OK)
        status = mr_session_sampling_set_tokenizer(&c.sampling, options, c.tok, err);
    if (status == MR_OK)
        status = load_template(&c, err);
    if (status == MR_OK)
        status = start_session(&c, err);
    if (status == MR_OK)
        status = open_input(&c, err);
    if (status == MR_OK)
        status = converse(&c, err);
    if (status == MR_OK)
        status = mr_session_stop(&c.session, err);
    chat_input_close(c.input);
    mr_session_close(&c.session);
    json_decref(c.messages);
    mr_text_buf_deinit(&c.content);
    mr_text_buf_deinit(&c.reasoning);
    mr_chat_template_destroy(c.template);
    mr_session_sampling_deinit(&c.sampling);
    mr_tokenizer_destroy(c.tok);
    return status;
}
