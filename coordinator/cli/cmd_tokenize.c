/* cmd_tokenize.c - `millrace tokenize`: turns text into token ids, and back. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <unistd.h>

#include "coordinator/cli/cmd.h"
#include "coordinator/console/output.h"
#include "coordinator/console/prompt_file.h"
#include "coordinator/session/session.h"
#include "engine/base/mem.h"
#include "engine/text/text_file.h"
#include "engine/vocab/vocab.h"

/* Reads the input: TEXT, the file of -f, or standard input. *out_name: what error texts call the input. */
static mr_status read_input(const mr_options *o, mr_text_buf *buf, mr_str *out, const char **out_name, mr_err *err) {
    const char *text = mr_session_text_argument(o), *file = mr_options_text(o, MR_OPTION_TEXT_FILE);
    if (text && file)
        return mr_err_set(err, MR_E_INVALID, "both TEXT and -f were given; hint: give one of the two");
    if (!text && !file && isatty(STDIN_FILENO))
        return mr_err_set(err, MR_E_INVALID, "tokenize needs TEXT or -f FILE; hint: -f - reads from the terminal");
    *out_name = text ? "TEXT" : file ? file : "standard input";
    if (text) {
        *out = mr_str_from(text);
        return MR_OK;
    }
    mr_status status = mr_text_file_read(file ? file : "-", PROMPT_FILE_MAX_BYTES, buf, err);
    *out = (mr_str){buf->data, buf->len};
    return status;
}

static mr_status encode(const mr_options *o, const mr_tokenizer *tok, mr_str text, mr_text_buf *out, mr_err *err) {
    mr_token_buf ids = {0};
    unsigned flags = 0;
    bool ok = true;
    if (mr_options_number(o, MR_OPTION_BOS))
        flags |= MR_ENCODE_BOS;
    if (!mr_options_number(o, MR_OPTION_NO_SPECIAL))
        flags |= MR_ENCODE_PARSE_SPECIAL;
    mr_status status = mr_tokenizer_encode(tok, text, flags, &ids, err);
    for (size_t i = 0; i < ids.n && ok; i++)
        ok = mr_output_printf(out, "%s%" PRId32, i ? " " : "", ids.ids[i]);
    if (status == MR_OK && (!ok || !mr_text_buf_append(out, "\n", 1)))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu token ids", ids.n);
    mr_token_buf_deinit(&ids);
    return status;
}

static mr_status decode(const mr_options *o, const mr_tokenizer *tok, mr_str text, const char *name, mr_text_buf *out,
                        mr_err *err) {
    mr_token_buf ids = {0};
    unsigned flags = mr_options_number(o, MR_OPTION_NO_SPECIAL) ? 0 : MR_DECODE_SPECIAL;
    mr_status status = mr_prompt_ids_parse(text, name, mr_tokenizer_n_tokens(tok), &ids, err);
    if (status == MR_OK)
        status = mr_tokenizer_decode(tok, ids.ids, ids.n, flags, out, err);
    /* At a terminal, end the text with a newline, so that the prompt of the shell begins on its own line. */
    if (status == MR_OK && isatty(STDOUT_FILENO) && !mr_text_buf_append(out, "\n", 1))
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a text");
    mr_token_buf_deinit(&ids);
    return status;
}

mr_status cmd_tokenize(const mr_options *options, mr_err *err) {
    char *path = NULL;
    mr_gguf *gguf = NULL;
    mr_tokenizer *tok = NULL;
    mr_text_buf buf = {0}, out = {0};
    mr_str input = {0};
    const char *name = NULL;
    mr_status status = mr_session_model_open(options, &path, &gguf, err);
    if (status != MR_OK)
        goto out;
    status = mr_vocab_load(gguf, &tok, err);
    if (status != MR_OK) {
        mr_err_prefix(err, "%.160s", path);
        goto out;
    }
    status = read_input(options, &buf, &input, &name, err);
    if (status == MR_OK)
        status = mr_options_number(options, MR_OPTION_DECODE) ? decode(options, tok, input, name, &out, err)
                                                              : encode(options, tok, input, &out, err);
    if (status == MR_OK)
        status = mr_output_write(out.data, out.len, err);
out:
    mr_text_buf_deinit(&buf);
    mr_text_buf_deinit(&out);
    mr_tokenizer_destroy(tok);
    mr_gguf_close(gguf);
    mr_free(path);
    return status;
}
