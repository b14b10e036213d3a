/* coordinator/cli/cmd_generate.h - internal to `millrace generate`: its sequences, and the functions that print them.
 * Threads: bound to the main thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_CMD_GENERATE_H
#define MR_COORDINATOR_CLI_CMD_GENERATE_H

#include "coordinator/serving/text/output_text.h"
#include "coordinator/session/session.h"
#include "coordinator/session/session_sampling.h"

typedef enum gen_finish {
    GEN_RUNNING,
    GEN_STOP,        /* an end token or a stop text */
    GEN_LENGTH,      /* -n or the context */
    GEN_INTERRUPTED, /* Ctrl-C, or the reader of the output closed its pipe */
    GEN_ERROR,       /* gen_fail() printed the reason */
} gen_finish;

struct generation;

/* One choice of a prompt, and its generated text. */
typedef struct gen_sequence {
    struct generation *all;
    int32_t prompt_idx, choice;
    mr_str prompt;
    mr_text_buf file; /* the bytes of a prompt from a file; only in choice 0 */
    mr_token_buf prompt_ids, ids;
    mr_logprobs *logprobs; /* [ids.n] with --logprobs, else NULL */
    int32_t max_tokens;
    mr_output_text text;
    size_t n_printed; /* bytes of text that were printed */
    gen_finish finish;
    mr_err err;
} gen_sequence;

typedef struct generation {
    const mr_options *options;
    mr_session session;
    mr_tokenizer *tok;
    uint8_t *grammar; /* [grammar_bytes] packed; NULL: none */
    size_t grammar_bytes;
    mr_session_sampling sampling;
    gen_sequence *sequences; /* [n], the choices of each prompt together */
    int32_t n, n_choices;
    bool json, echo, ignore_eos, logprobs;
    int32_t printing; /* index of the sequence that is being printed; later sequences wait */
    bool begun;       /* the header of that sequence was printed */
    mr_err out_err;   /* the error of writing standard output; status MR_OK until then */
} generation;

/* Reads the prompts of -p and -f. MR_E_INVALID: there is no prompt. */
MR_MUST_USE mr_status gen_prompts_read(generation *g, mr_err *err);
/* Turns the prompts into token ids, and reports prompts that cannot be used. Returns the number of usable prompts. */
int32_t gen_prompts_encode(generation *g);
void gen_prompts_deinit(generation *g);

/* Ends a sequence with an error, which is printed once. */
void gen_fail(gen_sequence *s, const mr_err *err);

/* Prints the texts that can be printed now, in the order of the prompts. */
void gen_print(generation *g);
/* Prints the JSON object of --json. */
MR_MUST_USE mr_status gen_print_json(const generation *g, mr_err *err);
/* Prints the statistics as notes. */
void gen_note_statistics(const generation *g);

#endif
