// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "coordinator/api/api_json.h"
#include "coordinator/api/api_request.h"
#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "proto/limits.h"

/* What a failure of the compiler says is about the client's text, whatever else it may mean. */
static bool refuse(const char *name, mr_status status, const mr_err *err, api_error *e) {
    if (status == MR_E_NO_MEMORY)
        return api_error_from(e, status, err);
    return api_error_set(e, 400, "invalid_value", name, "%s: %s", name, err->text);
}

static bool pack(api_request *r, mr_grammar *grammar, mr_status status, const char *name, mr_err *err, api_error *e) {
    if (status == MR_OK)
        status = mr_grammar_pack(grammar, &r->grammar, &r->n_grammar_bytes, err);
    mr_grammar_destroy(grammar);
    if (status == MR_OK && r->n_grammar_bytes > MR_MAX_GRAMMAR_BYTES)
        status = mr_err_set(err, MR_E_TOO_LONG, "the grammar has %zu bytes, allowed are %d", r->n_grammar_bytes,
                            MR_MAX_GRAMMAR_BYTES);
    return status == MR_OK || refuse(name, status, err, e);
}

bool api_constrain(api_request *r, mr_str gbnf, const char *name, api_error *e) {
    mr_err err = {0};
    mr_grammar *grammar = NULL;
    mr_status status = mr_grammar_parse(gbnf, &grammar, &err);
    return pack(r, grammar, status, name, &err, e);
}

static bool constrain_to_schema(api_request *r, const json_t *schema, const char *name, api_error *e) {
    mr_err err = {0};
    mr_grammar *grammar = NULL;
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return api_error_set(e, 400, "invalid_type", name, "%s is %s, where a JSON schema is expected", name,
                             schema ? api_json_kind(schema) : "missing");
    char *text = json_dumps(schema, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text)
        return api_error_set(e, 503, NULL, NULL, "no memory for the request");
    mr_status status = mr_grammar_from_schema(mr_str_from(text), &grammar, &err);
    free(text);
    return pack(r, grammar, status, name, &err, e);
}

static bool read_response_format(api_request *r, api_error *e) {
    const json_t *format = r->response_format;
    const char *type = json_string_value(json_object_get(format, "type"));
    mr_str kind = mr_str_from(type ? type : "");
    if (mr_str_is(kind, "json_schema"))
        return constrain_to_schema(r, json_object_get(json_object_get(format, "json_schema"), "schema"),
                                   "response_format.json_schema.schema", e);
    if (!mr_str_is(kind, "json_object"))
        return api_error_set(e, 400, "invalid_value", "response_format.type",
                             "response_format.type is none of text, json_object, json_schema");
    if (json_object_get(format, "schema"))
        return constrain_to_schema(r, json_object_get(format, "schema"), "response_format.schema", e);
    mr_err err = {0};
    mr_grammar *grammar = NULL;
    mr_status status = mr_grammar_any_object(&grammar, &err);
    return pack(r, grammar, status, "response_format", &err, e);
}

bool api_read_constraint(api_request *r, api_error *e) {
    const char *type = json_string_value(json_object_get(r->response_format, "type"));
    bool has_format = r->response_format && !(type && mr_str_is(mr_str_from(type), "text"));
    if ((r->grammar_text.len > 0) + (r->json_schema != NULL) + has_format > 1)
        return api_error_set(e, 400, "invalid_value", r->grammar_text.len > 0 ? "grammar" : "json_schema",
                             "only one of grammar, json_schema and response_format can be given");
    if (r->grammar_text.len > 0)
        return api_constrain(r, r->grammar_text, "grammar", e);
    if (r->json_schema)
        return constrain_to_schema(r, r->json_schema, "json_schema", e);
    return !has_format || read_response_format(r, e);
}
