/* Reads the prompts of `millrace generate` from options and files, and turns them into token ids. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "coordinator/cli/cmd_generate.h"
#include "coordinator/console/output.h"
#include "coordinator/console/prompt_file.h"
#include "engine/base/mem.h"
#include "engine/text/text_file.h"

mr_status gen_prompts_read(generation *g, mr_err *err) {
    const mr_option_value *texts = &g->options->values[MR_OPTION_PROMPT];
    const mr_option_value *files = &g->options->values[MR_OPTION_PROMPT_FILE];
    int32_t n_prompts = texts->n + files->n;
    g->n_choices = (int32_t)mr_options_number(g->options, MR_OPTION_CHOICES);
    if (n_prompts > INT32_MAX / g->n_choices)
        return mr_err_set(err, MR_E_TOO_LONG,
                          "--choices: %" PRId32 " texts for each of %" PRId32 " prompts are too many", g->n_choices,
                          n_prompts);
    g->n = n_prompts * g->n_choices;
    if (g->n == 0)
        return mr_err_set(err, MR_E_INVALID,
                          "generate needs a prompt; hint: -p TEXT, -f FILE, or -f - for standard input");
    g->sequences = mr_alloc_array((size_t)g->n, sizeof *g->sequences);
    if (!g->sequences)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRId32 " texts", g->n);
    for (int32_t i = 0; i < g->n; i++) {
        gen_sequence *s = &g->sequences[i];
        int32_t prompt = i / g->n_choices;
        s->all = g;
        s->prompt_idx = prompt;
        s->choice = i % g->n_choices;
        if (prompt < texts->n || s->choice > 0) {
            s->prompt = s->choice > 0 ? s[-s->choice].prompt : mr_str_from(texts->list[prompt]);
            continue;
        }
        mr_status status = mr_text_file_read(files->list[prompt - texts->n], PROMPT_FILE_MAX_BYTES, &s->file, err);
        if (status != MR_OK)
            return status;
        s->prompt = (mr_str){s->file.data, s->file.len};
        /* Editors end a file with a newline, which is not meant as a part of the prompt. */
        if (s->prompt.len && s->prompt.data[s->prompt.len - 1] == '\n')
            s->prompt.len--;
        if (s->prompt.len < s->file.len && s->prompt.len && s->prompt.data[s->prompt.len - 1] == '\r')
            s->prompt.len--;
    }
    return MR_OK;
}

static mr_status encode(gen_sequence *s, mr_err *err) {
    const generation *g = s->all;
    unsigned flags = 0;
    if (!mr_options_number(g->options, MR_OPTION_NO_BOS))
        flags |= MR_ENCODE_BOS;
    if (!mr_options_number(g->options, MR_OPTION_NO_SPECIAL))
        flags |= MR_ENCODE_PARSE_SPECIAL;
    mr_status status = mr_tokenizer_encode(g->tok, s->prompt, flags, &s->prompt_ids, err);
    if (status == MR_OK && s->prompt_ids.n == 0)
        status = mr_err_set(err, MR_E_FORMAT,
                            "the prompt is empty, and this model has no begin-of-sequence token to start from");
    if (status == MR_OK)
        status = mr_session_check_length(&g->session, (int64_t)s->prompt_ids.n, 1, err);
    if (status != MR_OK)
        return status;
    int64_t wanted = mr_options_number(g->options, MR_OPTION_N_PREDICT);
    int32_t room = g->session.ctx - (int32_t)s->prompt_ids.n;
    s->max_tokens = wanted < 0 || wanted > room ? room : (int32_t)wanted;
    return MR_OK;
}

int32_t gen_prompts_encode(generation *g) {
    const mr_option_value *stops = &g->options->values[MR_OPTION_STOP];
    int32_t n_good = 0;
    for (int32_t i = 0; i < g->n; i++) {
        gen_sequence *s = &g->sequences[i];
        mr_err err;
        /* The text continues the prompt. Without prompt text, the text begins here, and its first word has no space. */
        mr_output_text_init(&s->text, g->tok, s->prompt.len ? MR_DECODE_CONTINUES : 0, stops->list, stops->n);
        const gen_sequence *first = s - s->choice;
        if (first->finish == GEN_ERROR) {
            s->finish = GEN_ERROR; /* the first choice of the prompt reported the error */
            s->err = first->err;
        } else if (encode(s, &err) == MR_OK) {
            n_good++;
        } else {
            gen_fail(s, &err);
        }
    }
    return n_good;
}

void gen_prompts_deinit(generation *g) {
    for (int32_t i = 0; g->sequences && i < g->n; i++) {
        gen_sequence *s = &g->sequences[i];
        mr_text_buf_deinit(&s->file);
        mr_token_buf_deinit(&s->prompt_ids);
        mr_token_buf_deinit(&s->ids);
        mr_free(s->logprobs);
        mr_output_text_deinit(&s->text);
    }
    mr_free(g->sequences);
    g->sequences = NULL;
}

void gen_fail(gen_sequence *s, const mr_err *err) {
    mr_err shown = *err;
    s->finish = GEN_ERROR;
    s->err = *err;
    if (s->all->n > s->all->n_choices)
        mr_err_prefix(&shown, "prompt %" PRId32, s->prompt_idx + 1);
    mr_output_error(&shown);
}
