/* coordinator/serving/api/api_request.h - the fields of a request, read and checked, before anything is submitted.
 * Owns:    the body, and all lists made from it.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_API_API_REQUEST_H
#define MR_COORDINATOR_SERVING_API_API_REQUEST_H

#include <jansson.h>

#include "coordinator/serving/api/api.h"
#include "coordinator/serving/chat/chat_output.h"
#include "coordinator/serving/service/service.h"

/* The form in which a model writes tool calls and reasoning. */
typedef struct api_form {
    mr_chat_format format;
    bool is_special; /* the marks of the format are control tokens */
} api_form;

struct mr_api {
    mr_api_config config;
    size_t longest_token_bytes;
    mr_token_buf end_ids;       /* of the vocabulary */
    api_form plain, with_tools; /* forms of chats without and with tools, by the template for each */
};

typedef enum api_tool_choice { API_TOOLS_AUTO, API_TOOLS_NONE, API_TOOLS_REQUIRED } api_tool_choice;

typedef enum api_switch { API_UNSET, API_OFF, API_ON } api_switch;

/* A prompt for the service. */
typedef struct api_prompt {
    mr_token_buf ids;
    mr_str text; /* as the client wrote it; data NULL: the client sent ids, or the prompt was truncated */
} api_prompt;

/* {0} may be deinitialised. Values and texts point into the body. */
typedef struct api_request {
    mr_api_endpoint endpoint;
    json_t *body;
    mr_sampling_params sampling;
    int64_t seed; /* -1: any */
    int32_t n, best_of, max_tokens, priority;
    int32_t n_logprobs;   /* -1: none */
    int32_t top_logprobs; /* of chats: counts where want_logprobs, which is the field "logprobs" of chats */
    bool want_logprobs;
    int32_t truncate_prompt_tokens; /* 0: no truncation; -1: to what fits the context */
    bool usage_in_chunks;           /* stream_options.continuous_usage_stats */
    bool stream, include_usage, echo, ignore_end, parallel_tool_calls, add_generation_prompt, continue_final_message;
    bool add_special, parse_special, with_pieces; /* of /tokenize */
    int32_t dimensions;                           /* of embeddings; 0: those of the model */
    int32_t top_n;                                /* of reranking: results at most; 0: all documents */
    bool return_documents;
    mr_str query;
    mr_str grammar_text, encoding_format, pooling_name, reasoning_effort, reasoning_format, content;
    const json_t *prompt, *messages, *tools, *tool_choice, *stop, *logit_bias, *response_format, *json_schema;
    const json_t *stream_options, *template_kwargs, *dry_sequence_breakers, *tokens, *documents, *modalities;
    const json_t *stop_token_ids, *bad_words, *samplers;
    mr_str guided_regex, guided_grammar; /* like guided_json and guided_choice, also for structured_outputs */
    const json_t *guided_json, *guided_choice, *structured_outputs;
    const json_t *thinking_field, *reasoning_field;
    const json_t *clear_thinking; /* a member of thinking, which templates of GLM read */
    bool guided_any_json;

    /* Made from the fields above. */
    const char **stops; /* [n_stops] */
    int32_t n_stops;
    mr_token_buf stop_ids, late_ids, bad_word_ids;
    mr_token_buf bias_ids;
    float *biases; /* [bias_ids.n] */
    mr_token_buf breakers;
    uint8_t *grammar;
    size_t n_grammar_bytes;
    api_prompt *prompts; /* [n_prompts] */
    int32_t n_prompts;
    mr_pooling pooling;
    api_switch thinking; /* what thinking, reasoning or reasoning_effort says */
    api_tool_choice tool_choice_kind;
    const char *tool_chosen; /* the only function that may be called; NULL: any */
    bool parses;             /* reasoning and tool calls are looked for in the output */
    bool with_special;       /* control tokens become text, because they mark tool calls and reasoning */
} api_request;

typedef struct api_field_table {
    const struct api_field *fields;
    size_t n;
} api_field_table;
enum { API_FIELD_TABLES = 5 };
/* The fields that an endpoint knows: table i, below API_FIELD_TABLES; a table may be empty (api_request_fields.c). */
api_field_table api_request_fields(mr_api_endpoint endpoint, size_t i);

/* Reads fields and checks their types and ranges. The functions below make lists, prompts and grammars from the fields.
 * Here and below, false means that e says why. out has to be deinitialised in any case. */
MR_MUST_USE bool api_request_read(const mr_api *a, mr_api_endpoint endpoint, mr_str body, api_request *out,
                                  mr_api_error *e);
void api_request_deinit(api_request *r);
/* Sets the error "no memory for the request". Returns false. */
bool api_no_memory(mr_api_error *e);

/* Reads the fields about reasoning of chats into r->thinking and r->reasoning_effort (api_thinking.c). */
MR_MUST_USE bool api_read_thinking(api_request *r, mr_api_error *e);
/* Reads the list of samplers to run; samplers that are not named are turned off (api_samplers.c). */
MR_MUST_USE bool api_read_samplers(api_request *r, mr_api_error *e);
/* Read stop texts and stop ids (api_lists.c), and bad words, biases of tokens and sequence breakers of DRY, which go
 * into r->sampling (api_tokens.c). */
MR_MUST_USE bool api_read_stops(api_request *r, mr_api_error *e);
MR_MUST_USE bool api_read_stop_ids(const mr_api *a, api_request *r, mr_api_error *e);
MR_MUST_USE bool api_read_bad_words(const mr_api *a, api_request *r, mr_api_error *e);
MR_MUST_USE bool api_read_biases(const mr_api *a, api_request *r, mr_api_error *e);
MR_MUST_USE bool api_read_breakers(const mr_api *a, api_request *r, mr_api_error *e);
/* Reads a text, a list of texts, a list of ids, or a list of lists of ids into r->prompts. name: of the field. */
MR_MUST_USE bool api_read_prompts(const mr_api *a, api_request *r, const json_t *value, const char *name,
                                  mr_api_error *e);
/* Appends the ids of a prompt, with bos, and with eos if the prompt is to be embedded; the template of a reranker has
 * written both. The prompt may be longer than the context, but not far longer unless it will be truncated. */
MR_MUST_USE bool api_encode_prompt(const mr_api *a, const api_request *r, mr_str text, mr_token_buf *out,
                                   mr_api_error *e);
/* Does what truncate_prompt_tokens asks for: keeps the last ids, and the bos where there was one. true: ids were
 * removed. */
bool api_truncate_prompt(const mr_api *a, const api_request *r, mr_token_buf *ids);
/* Appends the ids of a text. flags: MR_ENCODE_*. */
MR_MUST_USE bool api_encode(const mr_api *a, mr_str text, unsigned flags, mr_token_buf *out, mr_api_error *e);
bool api_is_token(const mr_api *a, double id);
/* Appends a list of token ids, and checks that each is in the vocabulary. name: of the field. */
MR_MUST_USE bool api_read_ids(const mr_api *a, const json_t *list, const char *name, mr_token_buf *out,
                              mr_api_error *e);

/* Makes the packed grammar from grammar, json_schema, response_format, structured_outputs or a guided field, where one
 * of these is given (api_constraint.c). */
MR_MUST_USE bool api_read_constraint(api_request *r, mr_api_error *e);
/* Makes the packed grammar from GBNF. name: of the field that the grammar comes from. */
MR_MUST_USE bool api_constrain(api_request *r, mr_str gbnf, const char *name, mr_api_error *e);

#endif
