/* coordinator/serving/chat/chat_output.c - the outer loop of the parser: finds reasoning, content, marks and the
 * beginnings of tool calls, and decides what becomes of text that is no tool call. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_parse.h"

#include <string.h>

#include "coordinator/serving/chat/chat_schema.h"
#include "engine/base/mem.h"

static bool add_start(mr_chat_output *o, const char *mark) {
    if (mark && *mark)
        o->starts[(uint8_t)*mark] = true;
    return mark && *mark;
}

static const char *after_space(const char *p) {
    while (p && pat_is_space(*p))
        p++;
    return p;
}

static bool add_programs(mr_chat_output *o) {
    const chat_tool_calls *c = o->desc.format.calls;
    const char *section = c->section ? c->section : "";
    for (int i = 0; i < PAT_MAX_CALLS && c->calls[i]; i++) {
        for (int with = *section ? 1 : 0; with >= 0; with--) {
            char text[PAT_MAX_BYTES];
            size_t n = strlen(with ? section : ""), m = strlen(c->calls[i]);
            MR_ASSERT(n + m < sizeof text);
            memcpy(text, section, n);
            memcpy(text + n, c->calls[i], m + 1);
            char *copy = mr_strdup(text);
            if (!copy)
                return false;
            o->programs[o->n_programs++] = copy;
            if (pat_is_field(*copy))
                o->starts['{'] = true;
            else
                add_start(o, copy);
        }
    }
    add_start(o, after_space(c->section_end));
    return true;
}

static bool ends_in(mr_str text, const char *end) {
    size_t n = strlen(end);
    return text.len >= n && memcmp(text.data + text.len - n, end, n) == 0;
}

/* Finds the beginning of the output at the end of the prompt: a mark of reasoning, or prompt_end of the form. */
static bool take_prompt(mr_chat_output *o, mr_str prompt) {
    const mr_chat_format *f = &o->desc.format;
    mr_str words = prompt;
    while (words.len && chat_is_space(words.data[words.len - 1]))
        words.len--;
    if (!o->desc.keep_reasoning && ends_in(words, f->reasoning->open))
        o->in_reasoning = o->any = true;
    else if (ends_in(words, f->reasoning->close))
        o->any = true;
    else if (f->calls->prompt_end && ends_in(prompt, f->calls->prompt_end)) {
        o->n_given = strlen(f->calls->prompt_end);
        return mr_text_buf_append(&o->in, f->calls->prompt_end, o->n_given);
    }
    return true;
}

mr_status mr_chat_output_create(const mr_chat_output_desc *desc, mr_chat_output **out, mr_err *err) {
    mr_chat_output *o = mr_alloc(sizeof *o);
    if (!o)
        goto no_memory;
    o->desc = *desc;
    o->at_border = true;
    o->request_id = mr_strndup(desc->request_id.data ? desc->request_id.data : "", desc->request_id.len);
    if (!o->request_id || (desc->tools && !add_programs(o)) || !take_prompt(o, desc->prompt))
        goto no_memory;
    o->tools = desc->tools ? chat_tools_merged(desc->tools) : NULL;
    if (desc->tools && !o->tools)
        goto no_memory;
    if (!desc->keep_reasoning)
        add_start(o, desc->format.reasoning->open);
    for (int i = 0; i < PAT_MAX_DROPS; i++)
        add_start(o, desc->format.calls->drops[i]);
    *out = o;
    return MR_OK;
no_memory:
    mr_chat_output_destroy(o);
    return mr_err_set(err, MR_E_NO_MEMORY, "no memory to take an answer apart");
}

void mr_chat_output_destroy(mr_chat_output *o) {
    if (!o)
        return;
    for (int i = 0; i < o->n_programs; i++)
        mr_free(o->programs[i]);
    json_decref(o->tools);
    mr_free(o->request_id);
    mr_text_buf_deinit(&o->in);
    mr_text_buf_deinit(&o->run.value);
    mr_text_buf_deinit(&o->scratch);
    mr_free(o);
}

int32_t chat_output_n_tool_calls(const mr_chat_output *o) {
    return o->n_tool_calls;
}

/* Emits the text from pos to `to` as content. */
static chat_step give_content(mr_chat_output *o, size_t to) {
    size_t from = o->pos < o->n_given ? o->n_given : o->pos;
    bool is_of_a_call = o->ending && o->desc.only_calls; /* it was held back to the end, as what may begin a call */
    o->pos = to;
    return from < to && !is_of_a_call ? chat_emit(o, CHAT_CONTENT, (mr_str){o->in.data + from, to - from}) : STEP_ON;
}

/* Goes on at pos, behind text that is not content. */
static chat_step to_border(mr_chat_output *o, size_t pos) {
    o->pos = o->looked = pos;
    o->next_program = 0;
    o->at_border = o->any = true;
    return STEP_ON;
}

/* Looks for a tool call that begins at `at`. */
static chat_step call_marks(mr_chat_output *o, size_t at) {
    for (; o->next_program < o->n_programs; o->next_program++) {
        const char *p = o->programs[o->next_program];
        bool bare = pat_is_field(*p);
        chat_step s = !bare ? chat_match(o, at, p, pat_literal_bytes(p))
                      : o->at_border && o->in.data[at] == '{' && (!o->any || !o->n_tool_calls) ? STEP_ON
                                                                                               : STEP_NO;
        if (s == STEP_ON)
            chat_tool_call_begin(o, o->next_program, at);
        if (s == STEP_ON || (s == STEP_MORE && !o->ending))
            return s;
    }
    return STEP_NO;
}

/* Looks for a mark of structure at `at`; *out_end is the position behind the mark. */
static chat_step structure_marks(const mr_chat_output *o, size_t at, size_t *out_end) {
    const chat_tool_calls *c = o->desc.format.calls;
    const char *marks[PAT_MAX_DROPS + 1] = {o->after_tool_call && o->at_border ? after_space(c->section_end) : NULL};
    chat_step best = STEP_NO;
    memcpy(marks + 1, c->drops, sizeof c->drops);
    for (int i = 0; i <= PAT_MAX_DROPS; i++) {
        chat_step s = marks[i] && *marks[i] ? chat_match(o, at, marks[i], strlen(marks[i])) : STEP_NO;
        if (s == STEP_ON)
            *out_end = at + strlen(marks[i]);
        if (s == STEP_ON || best == STEP_NO)
            best = s;
    }
    return best;
}

/* Looks for a mark of reasoning at `at`, at the border of content; *out_end is the position behind the mark. An output
 * may begin with the closing mark: then it has no reasoning. */
static chat_step reasoning_marks(mr_chat_output *o, size_t at, size_t *out_end) {
    const chat_marks *m = o->desc.format.reasoning;
    chat_step open = chat_match(o, at, m->open, strlen(m->open));
    chat_step close = o->any ? STEP_NO : chat_match(o, at, m->close, strlen(m->close));
    if (open == STEP_ON) {
        o->in_reasoning = true;
        o->begun = false;
    }
    *out_end = at + strlen(open == STEP_ON ? m->open : m->close);
    return open == STEP_NO || close == STEP_ON ? close : open;
}

/* Looks for any mark at `at`. */
static chat_step mark_step(mr_chat_output *o, size_t at) {
    size_t end = at;
    chat_step calls = call_marks(o, at);
    if (calls != STEP_NO)
        return calls;
    chat_step think = o->at_border && !o->desc.keep_reasoning ? reasoning_marks(o, at, &end) : STEP_NO;
    if (think == STEP_ON)
        return to_border(o, end);
    chat_step other = structure_marks(o, at, &end);
    if (other == STEP_ON)
        return to_border(o, end);
    return (think == STEP_MORE || other == STEP_MORE) && !o->ending ? STEP_MORE : STEP_NO;
}

/* At the border of content: decides about white space by what follows the white space. */
static chat_step border_step(mr_chat_output *o) {
    size_t at = o->looked > o->pos ? o->looked : o->pos;
    while (at < o->end && chat_is_space(o->in.data[at]))
        at++;
    if (at != o->looked)
        o->next_program = 0;
    o->looked = at;
    if (at == o->end) {
        if (o->ending && !o->any)
            return give_content(o, at) == STEP_ERROR ? STEP_ERROR : STEP_MORE;
        return STEP_MORE;
    }
    chat_step s = mark_step(o, at);
    if (s != STEP_NO)
        return s;
    if (o->any)
        o->pos = at;
    o->next_program = 0;
    o->looked = at + 1;
    o->at_border = o->after_tool_call = false;
    o->any = true;
    return STEP_ON;
}

static chat_step content_step(mr_chat_output *o) {
    size_t at = o->looked > o->pos ? o->looked : o->pos;
    while (at < o->end && !o->starts[(uint8_t)o->in.data[at]])
        at++;
    if (at != o->looked)
        o->next_program = 0;
    o->looked = at;
    chat_step s = give_content(o, at);
    if (s != STEP_ON || at == o->end)
        return s == STEP_ON ? STEP_MORE : s;
    s = mark_step(o, at);
    if (s == STEP_NO) {
        o->looked = at + 1;
        o->next_program = 0;
        return STEP_ON;
    }
    return s;
}

/* Looks for the end of reasoning at `at`; *out_n is the number of its bytes that are a mark of reasoning. */
static chat_step reasoning_end(const mr_chat_output *o, size_t at, size_t *out_n) {
    const char *close = o->desc.format.reasoning->close, *call = o->desc.format.calls->ends_reasoning;
    chat_step s = chat_match(o, at, close, strlen(close));
    *out_n = strlen(close);
    if (s != STEP_NO || !call || !o->n_programs)
        return s;
    *out_n = 0;
    return chat_match(o, at, call, strlen(call));
}

/* Emits reasoning without white space at its beginning and end. */
static chat_step reasoning_step(mr_chat_output *o) {
    size_t n = 0, at = o->looked > o->pos ? o->looked : o->pos, solid = o->pos;
    chat_step s = STEP_NO;
    for (; at < o->end; at++) {
        s = reasoning_end(o, at, &n);
        if (s == STEP_ON || (s == STEP_MORE && !o->ending))
            break;
        if (chat_is_space(o->in.data[at]))
            continue;
        if (!o->begun)
            o->pos = at;
        o->begun = true;
        solid = at + 1;
    }
    o->looked = at;
    if (solid > o->pos) {
        if (chat_emit(o, CHAT_REASONING, (mr_str){o->in.data + o->pos, solid - o->pos}) == STEP_ERROR)
            return STEP_ERROR;
        o->pos = solid;
    }
    if (s != STEP_ON)
        return STEP_MORE;
    o->in_reasoning = false;
    return to_border(o, at + n);
}

static chat_step leave_call(mr_chat_output *o) {
    o->in_tool_call = false;
    o->after_tool_call = true;
    return to_border(o, o->pos);
}

/* The output ends inside a tool call: emits the incomplete value as it stands. */
static chat_step cut_open_call(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    chat_step s = STEP_ON;
    if (r->value_begun)
        s = chat_emit_arg_bytes(o, o->in.data + o->pos, o->end - o->pos);
    if (s == STEP_ON && r->value_begun && !r->escapes)
        s = chat_emit_arguments(o, r->value.data, r->value.len);
    o->pos = o->end;
    return s;
}

/* The text does not fit the pattern of the tool call at hand, or ends too early (is_cut). A tool call that was begun is
 * ended. Tentative text is read again as content or with the next pattern. */
static chat_step call_failed(mr_chat_output *o, bool is_cut) {
    tool_call_run *r = &o->run;
    if (r->open) {
        chat_step s = STEP_ON;
        if (is_cut)
            s = cut_open_call(o);
        else if (r->loop)
            s = chat_emit_arguments(o, r->n_args ? "}" : "{}", r->n_args ? 1 : 2);
        if (s == STEP_ON)
            s = chat_emit_end(o);
        return s == STEP_ON ? leave_call(o) : s;
    }
    if (r->done) {
        o->pos = is_cut && !pat_is_field(*r->at) ? o->end : o->start;
        return leave_call(o);
    }
    o->in_tool_call = false;
    o->pos = o->before;
    o->looked = o->start;
    o->next_program = o->program + 1;
    return STEP_ON;
}

/* A tentative tool call has become too long: emits the text so far as content. */
static chat_step call_overflowed(mr_chat_output *o) {
    if (o->run.done)
        o->before = o->start;
    o->in_tool_call = o->at_border = o->after_tool_call = false;
    o->any = true;
    o->pos = o->before;
    size_t to = chat_whole_characters(o->in.data, o->end);
    o->looked = to;
    o->next_program = 0;
    return give_content(o, to);
}

static chat_step next_step(mr_chat_output *o) {
    o->end = o->in.len;
    if (!o->in_tool_call)
        return o->in_reasoning ? reasoning_step(o) : o->at_border ? border_step(o) : content_step(o);
    size_t most = o->start + MAX_TENTATIVE_BYTES;
    bool limited = !o->run.open && most < o->in.len, ending = o->ending;
    if (limited) {
        o->end = most;
        o->ending = false;
    }
    chat_step s = chat_tool_call_step(o);
    o->ending = ending;
    if (s == STEP_MORE && limited)
        return call_overflowed(o);
    if (s == STEP_NO || (s == STEP_MORE && ending))
        return call_failed(o, s == STEP_MORE);
    return s == STEP_ON && !*o->run.at && o->run.done ? leave_call(o) : s;
}

/* Removes emitted text from the buffer. */
static void drop_used(mr_chat_output *o) {
    size_t used = o->in_tool_call && !o->run.open ? (o->run.done ? o->start : o->before) : o->pos;
    if (!used)
        return;
    o->in.len -= used;
    memmove(o->in.data, o->in.data + used, o->in.len + 1);
    o->pos -= used;
    o->looked -= o->looked < used ? o->looked : used;
    o->n_given -= o->n_given < used ? o->n_given : used;
    o->before -= o->before < used ? o->before : used;
    o->start -= o->start < used ? o->start : used;
    o->run.kept -= o->run.kept < used ? o->run.kept : used;
}

static mr_status run(mr_chat_output *o, mr_err *err) {
    chat_step s = STEP_ON;
    o->err = err;
    while (s == STEP_ON)
        s = next_step(o);
    drop_used(o);
    return s == STEP_ERROR ? o->status : MR_OK;
}

mr_status mr_chat_output_push(mr_chat_output *o, mr_str text, mr_err *err) {
    if (!text.len)
        return MR_OK;
    if (!mr_text_buf_append(&o->in, text.data, text.len))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to take an answer apart");
    return run(o, err);
}

mr_status mr_chat_output_end(mr_chat_output *o, mr_err *err) {
    o->ending = true;
    return o->in.len || o->in_tool_call ? run(o, err) : MR_OK;
}
