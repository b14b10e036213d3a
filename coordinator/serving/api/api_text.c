/* coordinator/serving/api/api_text.c - answers /tokenize, /detokenize and /apply-template, which need the tokenizer and
 * the chat template but not the model. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/api/api_internal.h"
#include "coordinator/serving/wire/api_json.h"

static bool say(mr_api_call *call, json_t *answer) {
    return mr_api_json_write(answer, &call->ready) ||
           mr_api_error_set(&call->error, 503, NULL, NULL, "no memory for the answer");
}

/* A token and its text; a token that is not valid UTF-8 gets a list of bytes. */
static json_t *token_with_piece(const mr_tokenizer *tok, int32_t id) {
    mr_str bytes = {"", 0};
    mr_tokenizer_piece(tok, id, &bytes);
    json_t *piece = json_stringn(bytes.data, bytes.len);
    if (!piece) {
        piece = json_array();
        for (size_t i = 0; i < bytes.len; i++)
            piece = mr_api_json_add(piece, json_integer((unsigned char)bytes.data[i]));
    }
    return json_pack("{s:i, s:o}", "id", id, "piece", piece);
}

static bool tokenize(mr_api_call *call) {
    const api_request *r = &call->request;
    const mr_tokenizer *tok = call->a->config.tokenizer;
    mr_token_buf ids = {0};
    mr_err err = {0};
    unsigned flags = (r->add_special ? MR_ENCODE_BOS | MR_ENCODE_EOS : 0U) |
                     (r->parse_special ? (unsigned)MR_ENCODE_PARSE_SPECIAL : 0U);
    mr_status status = mr_tokenizer_encode(tok, r->content, flags, &ids, &err);
    if (status != MR_OK)
        return mr_api_error_from(&call->error, status, &err);
    json_t *list = json_array();
    for (size_t i = 0; i < ids.n; i++)
        list = mr_api_json_add(list, r->with_pieces ? token_with_piece(tok, ids.ids[i]) : json_integer(ids.ids[i]));
    mr_token_buf_deinit(&ids);
    return say(call, json_pack("{s:o}", "tokens", list));
}

static bool detokenize(mr_api_call *call) {
    mr_token_buf ids = {0};
    mr_text_buf text = {0};
    mr_err err = {0};
    bool ok = api_read_ids(call->a, call->request.tokens, "tokens", &ids, &call->error);
    if (ok) {
        mr_status status =
            mr_tokenizer_decode(call->a->config.tokenizer, ids.ids, ids.n, MR_DECODE_SPECIAL, &text, &err);
        ok = status == MR_OK ? say(call, json_pack("{s:o}", "content", mr_api_json_text((mr_str){text.data, text.len})))
                             : mr_api_error_from(&call->error, status, &err);
    }
    mr_token_buf_deinit(&ids);
    mr_text_buf_deinit(&text);
    return ok;
}

static bool apply_template(mr_api_call *call) {
    mr_text_buf prompt = {0};
    bool ok = api_chat_render(call, &prompt) &&
              say(call, json_pack("{s:o}", "prompt", mr_api_json_text((mr_str){prompt.data, prompt.len})));
    mr_text_buf_deinit(&prompt);
    return ok;
}

bool api_text_answer(mr_api_call *call) {
    switch (call->request.endpoint) {
    case API_TOKENIZE:
        return tokenize(call);
    case API_DETOKENIZE:
        return detokenize(call);
    default:
        return apply_template(call);
    }
}
