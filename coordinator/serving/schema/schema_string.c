/* coordinator/serving/schema/schema_string.c - the texts of JSON strings: patterns, formats and lengths together,
 * and the exceptions of "not". */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"
#include "coordinator/serving/schema/schema_regex.h"
#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"

static const char too_large[] = "with what stands beside it, it needs too large an automaton";

static uint32_t get_length(schema_writer *w, const json_t *keywords, const char *key, uint32_t absent) {
    const json_t *v = json_object_get(keywords, key);
    if (v && json_number_value(v) > MR_GRAMMAR_MAX_REPEAT) {
        schema_widen(w, key, "more than 32768");
        return absent;
    }
    return v ? (uint32_t)json_number_value(v) : absent;
}

/* The keywords that read_texts reads. */
typedef enum source { PATTERN, FORMAT, LOOSE_FORMAT } source;

/* The texts of a pattern or format; all texts if it is not honoured. */
static text_set read_text(schema_writer *w, source from, const json_t *value) {
    text_sets *p = &w->texts;
    text_set set = TEXT_ALL;
    mr_str text = {json_string_value(value), json_string_length(value)};
    const char *why = "it is not known";
    bool ok = from == PATTERN ? schema_read_regex(p, text, false, &set, &why)
                              : schema_read_format(p, text.data, from == LOOSE_FORMAT, &set);
    if (ok || !schema_can_go_on(w))
        return ok ? set : TEXT_ALL;
    if (from == PATTERN)
        schema_widen(w, "pattern", why);
    else if (from == FORMAT)
        schema_note(w, "format", why);
    return TEXT_ALL;
}

/* The set, or without memory or room for it the other set, which leaves out a keyword. */
static text_set kept(schema_writer *w, text_set set, text_set other, const char *keyword) {
    if (w->texts.problem == TEXT_FINE)
        return set;
    if (schema_can_go_on(w))
        schema_widen(w, keyword, too_large);
    return other;
}

/* What all texts of a keyword allow, which is one text or a list of texts. */
static text_set read_texts(schema_writer *w, const json_t *keywords, source from) {
    const char *key = from == PATTERN ? "pattern" : "format";
    const json_t *value = json_object_get(keywords, key);
    text_set set = json_is_string(value) ? read_text(w, from, value) : TEXT_ALL;
    size_t i;
    json_t *one;
    json_array_foreach(value, i, one) {
        text_set more = read_text(w, from, one);
        set = kept(w, text_both(&w->texts, set, more), set, key);
    }
    return set;
}

text_set schema_constants(schema_writer *w, const json_t *values) {
    mr_str *texts = mr_alloc_array(json_array_size(values), sizeof *texts);
    size_t i, n = 0;
    json_t *v;
    if (!texts) {
        schema_no_memory(w);
        return TEXT_NONE;
    }
    json_array_foreach(values, i, v) {
        if (json_is_string(v))
            texts[n++] = (mr_str){json_string_value(v), json_string_length(v)};
    }
    text_set set = text_one_of(&w->texts, texts, n);
    mr_free(texts);
    return set;
}

/* The strings that a schema inside "not" allows. Returns false if other keywords than those of strings decide. */
static bool excepted(schema_writer *w, json_t *schema, text_set *out) {
    static const char *const known[] = {"type", "enum", "pattern", "format", "minLength", "maxLength"};
    schema_all all = {0};
    bool ok = schema_flatten(w, schema, &all) == MR_OK && json_array_size(all.choices) == 0;
    const char *key;
    json_t *value;
    json_object_foreach(all.keywords, key, value) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known = is_known || strcmp(key, known[i]) == 0;
        ok = ok && is_known;
    }
    const json_t *types = json_object_get(all.keywords, "type"), *values = json_object_get(all.keywords, "enum");
    if (ok) {
        bool strings = !types || schema_has_type(types, "string");
        *out = all.never || !strings ? TEXT_NONE : schema_string_set(w, all.keywords).all;
        if (values && *out != TEXT_NONE)
            *out = text_both(&w->texts, *out, schema_constants(w, values));
    }
    schema_all_deinit(&all);
    return ok && w->status == MR_OK;
}

schema_strings schema_string_set(schema_writer *w, const json_t *keywords) {
    text_sets *p = &w->texts;
    schema_strings s = {TEXT_ALL, TEXT_ALL, TEXT_ALL, TEXT_ALL, TEXT_ALL, TEXT_ALL};
    size_t i;
    json_t *schema;
    if (!schema_can_go_on(w))
        return s;
    s.pattern = read_texts(w, keywords, PATTERN);
    text_set format = read_texts(w, keywords, FORMAT);
    uint32_t min = get_length(w, keywords, "minLength", 0), max = get_length(w, keywords, "maxLength", TEXT_UNLIMITED);
    json_array_foreach(json_object_get(keywords, "not"), i, schema) {
        text_set set = TEXT_NONE;
        if (excepted(w, schema, &set))
            s.pattern = kept(w, text_both(p, s.pattern, text_not(p, set)), s.pattern, "not");
        else
            schema_widen(w, "not", "not supported");
    }
    s.lengths = text_lengths(p, TEXT_ALL, min, max);
    s.without_lengths = kept(w, text_both(p, s.pattern, format), s.pattern, "format");
    s.all = kept(w, text_lengths(p, s.without_lengths, min, max), s.without_lengths, "maxLength");
    s.without_most = kept(w, text_lengths(p, s.without_lengths, min, TEXT_UNLIMITED), s.without_lengths, "minLength");
    s.loose = s.all;
    if (s.all != s.without_lengths && format != TEXT_ALL) {
        format = read_texts(w, keywords, LOOSE_FORMAT);
        s.loose = kept(w, text_lengths(p, text_both(p, s.pattern, format), min, max), s.all, "maxLength");
    }
    return s;
}

bool schema_text_fits(schema_writer *w, text_set set, const json_t *value) {
    mr_str text = {json_string_value(value), json_string_length(value)};
    return set == TEXT_ALL || !schema_can_go_on(w) || text_has(&w->texts, set, text) || w->texts.problem != TEXT_FINE;
}

/* The texts that hold no mark, also together with the first characters of the mark behind them. */
static text_set without_mark(text_sets *p, mr_str mark) {
    text_set inside = text_sequence(p, TEXT_ALL, text_sequence(p, text_of(p, mark), TEXT_ALL));
    for (size_t n = 1; n < mark.len; n++)
        if (memcmp(mark.data, mark.data + n, mark.len - n) == 0) /* the first n bytes, then the mark, begin with it */
            inside = text_choice(p, inside, text_sequence(p, TEXT_ALL, text_of(p, (mr_str){mark.data, n})));
    return text_not(p, inside);
}

/* Writes the texts with as many of the keywords as an automaton can hold. */
static void write_texts(schema_writer *w, schema_strings s, text_form form, text_set limit, const char *end) {
    const struct {
        text_set set;
        const char *left_out;
    } tries[] = {{s.all, NULL},
                 {s.loose, "maxLength"},
                 {s.without_most, "minLength"},
                 {s.without_lengths, "format"},
                 {s.pattern, "pattern"},
                 {s.lengths, "maxLength"},
                 {TEXT_ALL, NULL}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries && schema_can_go_on(w); i++) {
        if (i && tries[i - 1].left_out && tries[i].set != tries[i - 1].set &&
            !schema_widen(w, tries[i - 1].left_out, too_large))
            return;
        if (i && tries[i].set == tries[i - 1].set)
            continue;
        if (schema_write_set(w, &w->body, text_both(&w->texts, tries[i].set, limit), form, end))
            return;
    }
}

void schema_write_string(schema_writer *w, const json_t *keywords) {
    schema_strings s = schema_string_set(w, keywords);
    if (s.all == TEXT_ALL) {
        schema_put(w, &w->body, "%s-string ", w->name);
        return;
    }
    schema_put(w, &w->body, "\"\\\"\" ");
    write_texts(w, s, TEXT_JSON, TEXT_ALL, "");
    schema_put(w, &w->body, "\"\\\"\" ");
}

bool schema_write_bare(schema_writer *w, const json_t *keywords, mr_str lead, mr_str mark) {
    schema_strings s = schema_string_set(w, keywords);
    text_set limit = without_mark(&w->texts, mark);
    const json_t *values = json_object_get(keywords, "enum"), *v;
    mr_text_buf end = {0};
    size_t i;
    if (s.all == TEXT_ALL && !values)
        return false;
    schema_put_literal(w, &end, lead);
    schema_put_literal(w, &end, mark);
    if (!values)
        write_texts(w, s, TEXT_BARE, limit, end.data);
    schema_put(w, &w->body, values ? "([] " : "");
    json_array_foreach(values, i, v) {
        if (!json_is_string(v) || !schema_text_fits(w, s.all, v) || !schema_text_fits(w, limit, v))
            continue;
        schema_put(w, &w->body, "| ");
        schema_put_literal(w, &w->body, (mr_str){json_string_value(v), json_string_length(v)});
    }
    if (values)
        schema_put(w, &w->body, ") %s", end.data ? end.data : "");
    mr_text_buf_deinit(&end);
    return true;
}
