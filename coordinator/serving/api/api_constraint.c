/* coordinator/serving/api/api_constraint.c - reads the fields of a request that restrict the output: response_format,
 * grammar, schema, regular expression or list of choices. At most one of these fields may be given; it becomes a packed
 * grammar. */
// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>
#include <stdlib.h>

#include "coordinator/serving/api/api_fields.h"
#include "coordinator/serving/api/api_request.h"
#include "coordinator/serving/json/json.h"
#include "coordinator/serving/schema/schema.h"
#include "coordinator/serving/wire/api_json.h"
#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/text/text_file.h"
#include "proto/limits.h"

/* Any failure of the grammar compiler but no memory is an error in the client's text, whatever its status: 400. */
static bool refuse(const char *name, mr_status status, const mr_err *err, mr_api_error *e) {
    if (status == MR_E_NO_MEMORY)
        return mr_api_error_from(e, status, err);
    return mr_api_error_set(e, 400, "invalid_value", name, "%s: %s", name, err->text);
}

static bool pack(api_request *r, mr_grammar *grammar, mr_status status, const char *name, mr_err *err,
                 mr_api_error *e) {
    if (status == MR_OK)
        status = mr_grammar_pack(grammar, &r->grammar, &r->n_grammar_bytes, err);
    mr_grammar_destroy(grammar);
    if (status == MR_OK && r->n_grammar_bytes > MR_MAX_GRAMMAR_BYTES)
        status = mr_err_set(err, MR_E_TOO_LONG, "the grammar has %zu bytes, allowed are %d", r->n_grammar_bytes,
                            MR_MAX_GRAMMAR_BYTES);
    return status == MR_OK || refuse(name, status, err, e);
}

/* Clients read grammars and schemas from files, and Python's open() keeps a byte order mark. */
bool api_constrain(api_request *r, mr_str gbnf, const char *name, mr_api_error *e) {
    mr_err err = {0};
    mr_grammar *grammar = NULL;
    mr_status status = mr_grammar_parse(mr_text_skip_mark(gbnf), &grammar, &err);
    return pack(r, grammar, status, name, &err, e);
}

static bool constrain_to_schema_text(api_request *r, mr_str text, bool strict, const char *name, mr_api_error *e) {
    mr_err err = {0};
    mr_grammar *grammar = NULL;
    mr_status status = mr_grammar_from_schema(mr_text_skip_mark(text), strict, &grammar, &err);
    return pack(r, grammar, status, name, &err, e);
}

static bool constrain_to_schema(api_request *r, const json_t *schema, bool strict, const char *name, mr_api_error *e) {
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return mr_api_error_set(e, 400, "invalid_type", name, "%s is %s, where a JSON schema is expected", name,
                                schema ? mr_api_json_kind(schema) : "missing");
    char *text = mr_json_dump(schema, JSON_COMPACT);
    if (!text)
        return api_no_memory(e);
    bool ok = constrain_to_schema_text(r, mr_str_from(text), strict, name, e);
    free(text);
    return ok;
}

static bool constrain_to_any_object(api_request *r, const char *name, mr_api_error *e) {
    mr_err err = {0};
    mr_grammar *grammar = NULL;
    mr_status status = mr_grammar_any_object(&grammar, &err);
    return pack(r, grammar, status, name, &err, e);
}

static bool constrain_to_regex(api_request *r, const char *name, mr_api_error *e) {
    mr_err err = {0};
    mr_grammar *grammar = NULL;
    mr_status status = mr_grammar_from_regex(r->guided_regex, &grammar, &err);
    return pack(r, grammar, status, name, &err, e);
}

static bool constrain_to_choice(api_request *r, const char *name, mr_api_error *e) {
    size_t n = json_array_size(r->guided_choice);
    mr_err err = {0};
    mr_grammar *grammar = NULL;
    if (n == 0)
        return mr_api_error_set(e, 400, "invalid_value", name, "%s is empty", name);
    mr_str *texts = mr_alloc_array(n, sizeof *texts);
    if (!texts)
        return api_no_memory(e);
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) {
        const json_t *text = json_array_get(r->guided_choice, i);
        texts[i] = (mr_str){json_string_value(text), json_string_length(text)};
        ok = json_is_string(text) ||
             mr_api_error_set(e, 400, "invalid_type", name, "%s[%zu] is %s, where a string is expected", name, i,
                              mr_api_json_kind(text));
    }
    if (ok) {
        mr_status status = mr_grammar_from_choice(texts, n, &grammar, &err);
        ok = pack(r, grammar, status, name, &err, e);
    }
    mr_free(texts);
    return ok;
}

static bool read_response_format(api_request *r, mr_api_error *e) {
    const json_t *format = r->response_format, *described = json_object_get(format, "json_schema");
    const char *type = json_string_value(json_object_get(format, "type"));
    mr_str kind = mr_str_from(type ? type : "");
    if (mr_str_is(kind, "json_schema"))
        return constrain_to_schema(r, json_object_get(described, "schema"),
                                   json_is_true(json_object_get(described, "strict")),
                                   "response_format.json_schema.schema", e);
    if (!mr_str_is(kind, "json_object"))
        return mr_api_error_set(e, 400, "invalid_value", "response_format.type",
                                "response_format.type is none of text, json_object, json_schema");
    if (json_object_get(format, "schema"))
        return constrain_to_schema(r, json_object_get(format, "schema"), false, "response_format.schema", e);
    return constrain_to_any_object(r, "response_format", e);
}

/* structured_outputs of vLLM: its members are stored where the older guided_ fields are stored. */
static bool read_structured_outputs(api_request *r, mr_api_error *e) {
    static const api_field fields[] = {
        {"json", API_FIELD_ANY, offsetof(api_request, guided_json), 0, 0},
        {"regex", API_FIELD_TEXT, offsetof(api_request, guided_regex), 0, MR_GRAMMAR_MAX_TEXT_BYTES},
        {"choice", API_FIELD_ARRAY, offsetof(api_request, guided_choice), 0, API_MAX_GUIDED_CHOICES},
        {"grammar", API_FIELD_TEXT, offsetof(api_request, guided_grammar), 0, MR_GRAMMAR_MAX_TEXT_BYTES},
        {"json_object", API_FIELD_BOOL, offsetof(api_request, guided_any_json), 0, 0},
        {"structural_tag", API_FIELD_REFUSED, 0, 0, 0},
        {"whitespace_pattern", API_FIELD_REFUSED, 0, 0, 0},
        {"disable_any_whitespace", API_FIELD_REFUSED, 0, 0, 0},
    };
    if (!r->structured_outputs)
        return true;
    if (r->guided_json || r->guided_choice || r->guided_regex.len > 0 || r->guided_grammar.len > 0)
        return mr_api_error_set(e, 400, "invalid_value", "structured_outputs",
                                "only one of structured_outputs and the guided fields can be given");
    return api_fields_read(fields, sizeof fields / sizeof fields[0], "structured_outputs.", r->structured_outputs, r,
                           e);
}

typedef enum constraint { GRAMMAR, SCHEMA, FORMAT, GUIDED_JSON, REGEX, CHOICE, GUIDED_GRAMMAR, ANY_JSON } constraint;

static bool constrain(api_request *r, constraint which, const char *name, mr_api_error *e) {
    switch (which) {
    case GRAMMAR:
        return api_constrain(r, r->grammar_text, name, e);
    case SCHEMA:
        return constrain_to_schema(r, r->json_schema, false, name, e);
    case FORMAT:
        return read_response_format(r, e);
    case GUIDED_JSON:
        if (json_is_string(r->guided_json))
            return constrain_to_schema_text(
                r, (mr_str){json_string_value(r->guided_json), json_string_length(r->guided_json)}, false, name, e);
        return constrain_to_schema(r, r->guided_json, false, name, e);
    case REGEX:
        return constrain_to_regex(r, name, e);
    case CHOICE:
        return constrain_to_choice(r, name, e);
    case GUIDED_GRAMMAR:
        return api_constrain(r, r->guided_grammar, name, e);
    case ANY_JSON:
        return constrain_to_any_object(r, name, e);
    }
    return true;
}

bool api_read_constraint(api_request *r, mr_api_error *e) {
    if (!read_structured_outputs(r, e))
        return false;
    const char *type = json_string_value(json_object_get(r->response_format, "type"));
    bool guided = r->structured_outputs == NULL;
    const struct {
        const char *name;
        bool given;
    } all[] = {
        [GRAMMAR] = {"grammar", r->grammar_text.len > 0},
        [SCHEMA] = {"json_schema", r->json_schema},
        [FORMAT] = {"response_format", r->response_format && !(type && mr_str_is(mr_str_from(type), "text"))},
        [GUIDED_JSON] = {guided ? "guided_json" : "structured_outputs.json", r->guided_json},
        [REGEX] = {guided ? "guided_regex" : "structured_outputs.regex", r->guided_regex.len > 0},
        [CHOICE] = {guided ? "guided_choice" : "structured_outputs.choice", r->guided_choice},
        [GUIDED_GRAMMAR] = {guided ? "guided_grammar" : "structured_outputs.grammar", r->guided_grammar.len > 0},
        [ANY_JSON] = {"structured_outputs.json_object", r->guided_any_json},
    };
    int which = -1;
    for (int i = 0; i < (int)(sizeof all / sizeof all[0]); i++) {
        if (all[i].given && which >= 0)
            return mr_api_error_set(e, 400, "invalid_value", all[which].name, "only one of %s and %s can be given",
                                    all[which].name, all[i].name);
        which = all[i].given ? i : which;
    }
    if (which < 0 && r->structured_outputs)
        return mr_api_error_set(e, 400, "invalid_value", "structured_outputs",
                                "structured_outputs has none of json, regex, choice, grammar, json_object");
    return which < 0 || constrain(r, (constraint)which, all[which].name, e);
}
