/* coordinator/serving/api/api_request.h - what a request asks for, read and checked: nothing has been started yet.
 * Owns:    the body, and all lists made from it.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_API_API_REQUEST_H
#define MR_COORDINATOR_SERVING_API_API_REQUEST_H

#include <jansson.h>

#include "coordinator/serving/api/api.h"
#include "coordinator/serving/chat/chat_output.h"
#include "coordinator/serving/service/service.h"

/* In which a model calls tools and reasons. */
typedef struct api_form {
    mr_chat_format format;
    bool is_special; /* its marks are control tokens */
} api_form;

struct mr_api {
    mr_api_config config;
    size_t longest_token_bytes;
    mr_token_buf end_ids;       /* of the vocabulary */
    api_form plain, with_tools; /* as the template for each says */
};

typedef enum api_tool_choice { API_TOOLS_AUTO, API_TOOLS_NONE, API_TOOLS_REQUIRED } api_tool_choice;

/* A prompt, as it goes to the service. */
typedef struct api_prompt {
    mr_token_buf ids;
    mr_str text; /* as it was written; data NULL: it came as ids */
} api_prompt;

/* {0} may be deinitialised. Values and texts point into the body. */
typedef struct api_request {
    mr_api_endpoint endpoint;
    json_t *body;
    mr_sampling_params sampling;
    int64_t seed; /* -1: any */
    int32_t n, best_of, max_tokens, priority;
    int32_t n_logprobs;   /* -1: none */
    int32_t top_logprobs; /* those of chats, where want_logprobs, which is their "logprobs" */
    bool want_logprobs;
    int32_t truncate_prompt_tokens; /* 0: no; -1: to what fits */
    bool stream, include_usage, echo, ignore_end, parallel_tool_calls, add_generation_prompt, continue_final_message;
    bool add_special, parse_special, with_pieces; /* of /tokenize */
    int32_t dimensions;                           /* of embeddings; 0: as they are */
    mr_str grammar_text, encoding_format, pooling_name, reasoning_effort, reasoning_format, content;
    const json_t *prompt, *messages, *tools, *tool_choice, *stop, *logit_bias, *response_format, *json_schema;
    const json_t *stream_options, *template_kwargs, *dry_sequence_breakers, *tokens, *documents, *modalities;
    const json_t *stop_token_ids, *bad_words, *samplers;
    mr_str guided_regex, guided_grammar; /* these also stand for the parts of structured_outputs */
    const json_t *guided_json, *guided_choice, *structured_outputs;
    bool guided_any_json;

    /* Made of these. */
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
    api_tool_choice tool_choice_kind;
    const char *tool_chosen; /* the only function that may be called; NULL: any */
    bool parses;             /* the answer may hold reasoning and calls */
    bool with_special;       /* control tokens come out as text: marks of calls and reasoning */
} api_request;

typedef struct api_field_table {
    const struct api_field *fields;
    size_t n;
} api_field_table;
enum { API_FIELD_TABLES = 5 };
/* The fields that an endpoint knows, in API_FIELD_TABLES tables, some of them empty (api_request_fields.c). */
api_field_table api_request_fields(mr_api_endpoint endpoint, size_t i);

/* Reads fields with their types and ranges; what is made of lists comes from the functions below. false: e says why.
 * out may be deinitialised in any case. */
MR_MUST_USE bool api_request_read(const mr_api *a, mr_api_endpoint endpoint, mr_str body, api_request *out,
                                  mr_api_error *e);
void api_request_deinit(api_request *r);
/* Says that there was no memory for the request. Always false. */
bool api_no_memory(mr_api_error *e);

/* The order of samplers as llama-server has it; those that are not named are turned off (api_samplers.c). */
MR_MUST_USE bool api_read_samplers(api_request *r, mr_api_error *e);
/* Stop texts and stop ids (api_lists.c); bad words, biases of tokens and what breaks sequences of DRY, go into sampling
 * (api_tokens.c). */
MR_MUST_USE bool api_read_stops(api_request *r, mr_api_error *e);
MR_MUST_USE bool api_read_stop_ids(const mr_api *a, api_request *r, mr_api_error *e);
MR_MUST_USE bool api_read_bad_words(const mr_api *a, api_request *r, mr_api_error *e);
MR_MUST_USE bool api_read_biases(const mr_api *a, api_request *r, mr_api_error *e);
MR_MUST_USE bool api_read_breakers(const mr_api *a, api_request *r, mr_api_error *e);
/* A text, a list of texts, ids, or a list of lists of ids; name: of the field. */
MR_MUST_USE bool api_read_prompts(const mr_api *a, api_request *r, const json_t *value, const char *name,
                                  mr_api_error *e);
/* Appends the ids of a prompt. */
MR_MUST_USE bool api_encode_prompt(const mr_api *a, const api_request *r, mr_str text, mr_token_buf *out,
                                   mr_api_error *e);
/* truncate_prompt_tokens: leaves the last ids, and a bos in front of them. true: some were left out. */
bool api_truncate_prompt(const mr_api *a, const api_request *r, mr_token_buf *ids);
/* Appends the ids of a text with MR_ENCODE_* flags; refuses at once what can never fit the context. */
MR_MUST_USE bool api_encode(const mr_api *a, mr_str text, unsigned flags, mr_token_buf *out, mr_api_error *e);
bool api_is_token(const mr_api *a, double id);
/* A list of token ids, each in the vocabulary. */
MR_MUST_USE bool api_read_ids(const mr_api *a, const json_t *list, const char *name, mr_token_buf *out,
                              mr_api_error *e);

/* One of grammar, json_schema, response_format, structured_outputs and the guided fields becomes the packed grammar, if
 * any is there (api_constraint.c). */
MR_MUST_USE bool api_read_constraint(api_request *r, mr_api_error *e);
/* A grammar in GBNF likewise; name: of the field that asked for it. */
MR_MUST_USE bool api_constrain(api_request *r, mr_str gbnf, const char *name, mr_api_error *e);

#endif
