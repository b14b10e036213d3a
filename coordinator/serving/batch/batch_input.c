/* coordinator/serving/batch/batch_input.c - indexes the lines of a batch, marks wrong lines and duplicates, and sorts
 * the lines for execution. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/batch/batch_input.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "coordinator/serving/json/json.h"
#include "engine/base/mem.h"
#include "engine/text/text_file.h"

enum { KEY_BYTES = 4096 }; /* at the beginning of prompts, by which lines are sorted */

uint64_t batch_hash(mr_str s) {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, and a last mix (of splitmix64) */
    for (size_t i = 0; i < s.len; i++)
        h = (h ^ (uint8_t)s.data[i]) * 0x100000001b3u;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return h ^ h >> 31;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* A line without white space around it. */
static mr_str trimmed(mr_str s) {
    while (s.len && is_space(s.data[s.len - 1]))
        s.len--;
    while (s.len && is_space(s.data[0]))
        s = (mr_str){s.data + 1, s.len - 1};
    return s;
}

/* Kind, custom_id and key of a line that begins with a brace. */
static void read_request(mr_str text, batch_line *l) {
    mr_str id, body, prompt;
    l->kind = BATCH_NO_ID;
    if (!batch_json_member(text, "custom_id", &id)) {
        char end = text.data[text.len - 1];
        l->kind = end == '}' ? BATCH_NO_ID : BATCH_NOT_JSON;
        return;
    }
    if (id.len < 3 || id.data[0] != '"' || id.data[id.len - 1] != '"' || id.len > BATCH_MAX_ID_BYTES)
        return;
    l->id_at = (uint32_t)(id.data - text.data);
    l->n_id_bytes = (uint32_t)id.len;
    l->kind = BATCH_REQUEST;
    if (!batch_json_member(text, "body", &body))
        return;
    l->key_at = (uint32_t)(body.data - text.data);
    if (batch_json_member(body, "messages", &prompt) || batch_json_member(body, "prompt", &prompt) ||
        batch_json_member(body, "input", &prompt))
        l->key_at = (uint32_t)(prompt.data - text.data);
}

/* Sets the kind of a line. has_requests is known from the first line. */
static void read_line(const mr_batch_input *in, mr_str text, batch_line *l) {
    bool is_object = text.data[0] == '{';
    if (in->has_requests && !is_object) {
        l->kind = BATCH_NOT_JSON;
        return;
    }
    if (is_object)
        read_request(text, l);
    if (in->has_requests)
        return;
    bool is_request = is_object && l->kind == BATCH_REQUEST;
    uint8_t kind = is_request ? BATCH_STRAY : text.data[0] == '"' ? BATCH_JSON_PROMPT : BATCH_PLAIN_PROMPT;
    *l = (batch_line){.at = l->at, .number = l->number, .hash = l->hash, .n_bytes = l->n_bytes, .kind = kind};
}

static mr_status add_line(mr_batch_input *in, size_t at, size_t n, uint32_t number, mr_err *err) {
    mr_str text = {in->data + at, n};
    if (n && text.data[n - 1] == '\r')
        text.len--;
    if (trimmed(text).len == 0)
        return MR_OK;
    size_t indent = 0;
    while (text.data[indent] == ' ' || text.data[indent] == '\t')
        indent++;
    if (text.data[indent] == '{') { /* spaces in front of JSON are skipped; in a prompt they are text */
        at += indent;
        text = (mr_str){text.data + indent, text.len - indent};
    }
    if (in->n == in->cap) {
        uint32_t cap = in->cap ? 2 * in->cap : 1024;
        batch_line *lines = mr_realloc(in->lines, cap * sizeof *lines);
        if (!lines)
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the places of %" PRIu32 " lines", cap);
        in->lines = lines;
        in->cap = cap;
    }
    batch_line *l = &in->lines[in->n++];
    *l = (batch_line){.at = at, .number = number, .hash = batch_hash(text)};
    if (in->n == 1)
        in->has_requests = text.data[0] == '{';
    if (text.len > BATCH_MAX_LINE_BYTES) {
        l->kind = BATCH_TOO_LONG;
        return MR_OK;
    }
    l->n_bytes = (uint32_t)text.len;
    read_line(in, text, l);
    return MR_OK;
}

/* Whether a line is a JSON array, or the beginning of one that goes on. */
static bool begins_array(mr_str line) {
    size_t i = 1;
    if (!line.len || line.data[0] != '[')
        return false;
    while (i < line.len && (line.data[i] == ' ' || line.data[i] == '\t'))
        i++;
    if (i == line.len || line.data[i] == '{')
        return true;
    json_t *value = line.data[line.len - 1] == ']' ? mr_json_read(line, 0, NULL) : NULL;
    bool is_array = value != NULL;
    json_decref(value);
    return is_array;
}

/* The first line that is not blank says what a file is. Refuses files that hold no lines of text, and JSON that is not
 * one value on each line: each of their lines would be a prompt or an error of its own. */
static mr_status check_first_line(mr_str text, const char *path, mr_err *err) {
    const char *other = mr_text_other_encoding(text);
    mr_str line, head = {text.data, 0}, ignored; /* head: from the start of the file up to the end of this line */
    size_t number = 0;
    do {
        size_t at = head.len;
        const char *end = at < text.len ? memchr(text.data + at, '\n', text.len - at) : NULL;
        head.len = end ? (size_t)(end - text.data) + 1 : text.len;
        line = trimmed((mr_str){text.data + at, head.len - at});
        number++;
    } while (line.len == 0 && head.len < text.len);
    mr_status status = mr_text_check(other ? text : head, path, &ignored, err);
    if (status == MR_OK && begins_array(line))
        status = mr_err_set(err, MR_E_FORMAT,
                            "%.160s, line %zu: the file is a JSON array, and a batch has one request or prompt on each "
                            "line; hint: jq -c '.[]'",
                            path, number);
    if (status == MR_OK && mr_str_is(line, "{"))
        status = mr_err_set(err, MR_E_FORMAT,
                            "%.160s, line %zu: a JSON object goes on over the next lines, and a batch has one request "
                            "on each line; hint: jq -c .",
                            path, number);
    return status;
}

static mr_status add_lines(mr_batch_input *in, size_t start, mr_err *err) {
    uint32_t number = 0;
    mr_status status = MR_OK;
    for (size_t at = start; at < in->n_bytes && status == MR_OK;) {
        const char *end = memchr(in->data + at, '\n', in->n_bytes - at);
        size_t n = end ? (size_t)(end - in->data) - at : in->n_bytes - at;
        if (number == BATCH_MAX_LINES)
            return mr_err_set(err, MR_E_TOO_LONG, "it has more than %u lines", BATCH_MAX_LINES);
        status = add_line(in, at, n, ++number, err);
        at += n + 1;
    }
    return status;
}

/* Writes the custom_id without quotes and escapes. A custom_id that is no JSON is copied as it stands. */
static bool id_of(const mr_batch_input *in, const batch_line *l, mr_text_buf *out) {
    mr_text_buf_clear(out);
    if (!l->n_id_bytes) {
        char text[24];
        int n = snprintf(text, sizeof text, "line-%" PRIu32, l->number);
        return mr_text_buf_append(out, text, (size_t)n);
    }
    mr_str id = {in->data + l->at + l->id_at, l->n_id_bytes};
    if (!memchr(id.data, '\\', id.len))
        return mr_text_buf_append(out, id.data + 1, id.len - 2);
    json_t *value = mr_json_read(id, 0, NULL);
    bool ok = value ? mr_text_buf_append(out, json_string_value(value), json_string_length(value))
                    : mr_text_buf_append(out, id.data, id.len);
    json_decref(value);
    return ok;
}

/* Marks lines whose custom_id an earlier one has. slots: [mask + 1], index + 1 of a line, 0 for none. */
static bool mark_duplicates(mr_batch_input *in, uint32_t *slots, size_t mask) {
    mr_text_buf mine = {0}, other = {0};
    bool ok = true;
    for (uint32_t i = 0; i < in->n && ok; i++) {
        batch_line *l = &in->lines[i];
        if (batch_line_is_bad(l))
            continue;
        ok = id_of(in, l, &mine);
        mr_str id = {mine.data, mine.len};
        size_t slot = ok ? batch_hash(id) & mask : 0;
        for (; ok && slots[slot]; slot = (slot + 1) & mask) {
            ok = id_of(in, &in->lines[slots[slot] - 1], &other);
            if (ok && mr_str_equal(id, (mr_str){other.data, other.len})) {
                l->kind = BATCH_DUPLICATE;
                break;
            }
        }
        if (ok && l->kind != BATCH_DUPLICATE)
            slots[slot] = i + 1;
    }
    mr_text_buf_deinit(&mine);
    mr_text_buf_deinit(&other);
    return ok;
}

static mr_status find_duplicates(mr_batch_input *in, mr_err *err) {
    size_t n_slots = 16;
    while (n_slots < 2 * (size_t)in->n)
        n_slots *= 2;
    uint32_t *slots = mr_alloc_array(n_slots, sizeof *slots);
    bool ok = slots && mark_duplicates(in, slots, n_slots - 1);
    mr_free(slots);
    return ok ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the ids of %" PRIu32 " lines", in->n);
}

mr_status mr_batch_input_open(const char *path, mr_batch_input *out, mr_err *err) {
    mr_batch_input in = {0};
    mr_status status = batch_input_read(path, &in, err);
    mr_str all = {in.data, in.n_bytes}, text = mr_text_skip_mark(all);
    if (status == MR_OK && text.len > 0)
        status = check_first_line(text, path, err);
    if (status == MR_OK) {
        status = add_lines(&in, all.len - text.len, err);
        if (status == MR_OK)
            status = find_duplicates(&in, err);
        if (status != MR_OK)
            mr_err_prefix(err, "%.160s", path);
    }
    if (status != MR_OK) {
        mr_batch_input_close(&in);
        return status;
    }
    *out = in;
    return MR_OK;
}

void mr_batch_input_close(mr_batch_input *in) {
    mr_free(in->data);
    mr_free(in->lines);
    *in = (mr_batch_input){0};
}

bool batch_line_put_id(const mr_batch_input *in, const batch_line *l, mr_text_buf *out) {
    char text[32];
    if (l->n_id_bytes && l->kind != BATCH_NOT_JSON) {
        json_t *value = mr_json_read((mr_str){in->data + l->at + l->id_at, l->n_id_bytes}, 0, NULL);
        char *id = value ? mr_json_dump(value, 0) : NULL;
        json_decref(value);
        if (id) {
            bool ok = mr_text_buf_append(out, id, strlen(id));
            free(id);
            return ok;
        }
    }
    int n = l->kind == BATCH_JSON_PROMPT || l->kind == BATCH_PLAIN_PROMPT || l->kind == BATCH_DUPLICATE
                ? snprintf(text, sizeof text, "\"line-%" PRIu32 "\"", l->number)
                : snprintf(text, sizeof text, "null");
    return mr_text_buf_append(out, text, (size_t)n);
}

batch_line *batch_input_find(const mr_batch_input *in, uint32_t number) {
    uint32_t low = 0, high = in->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (in->lines[mid].number < number)
            low = mid + 1;
        else
            high = mid;
    }
    return low < in->n && in->lines[low].number == number ? &in->lines[low] : NULL;
}

static int compare(const void *left, const void *right, void *ctx) {
    const mr_batch_input *in = ctx;
    const batch_line *a = &in->lines[*(const uint32_t *)left], *b = &in->lines[*(const uint32_t *)right];
    mr_str x = {in->data + a->at + a->key_at, a->n_bytes - a->key_at};
    mr_str y = {in->data + b->at + b->key_at, b->n_bytes - b->key_at};
    int order = batch_line_is_bad(b) - batch_line_is_bad(a);
    if (!order && !batch_line_is_bad(a)) {
        x.len = x.len < KEY_BYTES ? x.len : KEY_BYTES;
        y.len = y.len < KEY_BYTES ? y.len : KEY_BYTES;
        order = mr_str_compare(x, y);
    }
    return order ? order : (a->number > b->number) - (a->number < b->number);
}

mr_status batch_input_order(const mr_batch_input *in, uint32_t **out_order, uint32_t *out_n, mr_err *err) {
    uint32_t n = 0, *order = mr_alloc_array(in->n ? in->n : 1, sizeof *order);
    if (!order)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the order of %" PRIu32 " lines", in->n);
    for (uint32_t i = 0; i < in->n; i++)
        if (!in->lines[i].is_done)
            order[n++] = i;
    qsort_r(order, n, sizeof *order, compare, (void *)in);
    *out_order = order;
    *out_n = n;
    return MR_OK;
}
