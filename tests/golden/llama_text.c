/* tests/golden/llama_text.c - what llama.cpp makes of texts: llama_text MODEL perplexity FILE
 * or llama_text MODEL greedy PROMPT. make_gemma_reference.py builds and calls this program.
 * llama_text MODEL widen FILE writes the model with all matrices in float32: their values stay the same, but llama.cpp
 * does not round the activations that they are multiplied by.
 * perplexity: windows of 512 tokens and scores as `millrace perplexity --help` says. Prints the value and the windows.
 * greedy: prints 16 lines, each the most likely token and how far its logit is above the second one.
 * The KV cache is in F16. */
// SPDX-License-Identifier: Apache-2.0
#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 512, MAX_BYTES = 1 << 16, N_GREEDY = 16 };

static void fail(const char *what) {
    fprintf(stderr, "llama_text: %s\n", what);
    exit(1);
}

static void compute(struct llama_context *context, const llama_token *ids, int32_t n_ids, int32_t first) {
    struct llama_batch batch = llama_batch_init(n_ids, 0, 1);
    batch.n_tokens = n_ids;
    for (int32_t i = 0; i < n_ids; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = first + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(context, batch))
        fail("llama.cpp does not compute the batch");
    llama_batch_free(batch);
}

static double surprise(const float *logits, int32_t n_vocab, llama_token id) {
    double most = logits[0], sum = 0;
    for (int32_t i = 1; i < n_vocab; i++)
        most = fmax(most, logits[i]);
    for (int32_t i = 0; i < n_vocab; i++)
        sum += exp(logits[i] - most);
    return log(sum) + most - logits[id];
}

static void print_perplexity(struct llama_context *context, const struct llama_vocab *vocab, llama_token *ids,
                             int32_t n) {
    double sum = 0;
    int32_t n_windows = n / CONTEXT, n_scores = 0;
    for (int32_t w = 0; w < n_windows; w++) {
        llama_token *window = ids + (size_t)w * CONTEXT;
        window[0] = llama_vocab_bos(vocab);
        llama_memory_clear(llama_get_memory(context), true);
        compute(context, window, CONTEXT, 0);
        for (int32_t p = CONTEXT / 2; p + 1 < CONTEXT; p++, n_scores++)
            sum += surprise(llama_get_logits_ith(context, p), llama_vocab_n_tokens(vocab), window[p + 1]);
    }
    if (n_scores == 0)
        fail("the text does not fill a window");
    printf("%.6f %d\n", exp(sum / n_scores), n_windows);
}

static void print_greedy(struct llama_context *context, const struct llama_vocab *vocab, llama_token *ids, int32_t n) {
    compute(context, ids, n, 0);
    for (int32_t step = 0; step < N_GREEDY; step++) {
        const float *logits = llama_get_logits_ith(context, -1);
        llama_token best = 0;
        float second = -INFINITY;
        for (llama_token i = 1; i < llama_vocab_n_tokens(vocab); i++) {
            if (logits[i] > logits[best]) {
                second = logits[best];
                best = i;
            } else if (logits[i] > second) {
                second = logits[i];
            }
        }
        printf("%d %.4f\n", best, logits[best] - second);
        compute(context, &best, 1, n + step);
    }
}

static void widen(const char *from, const char *to) {
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = LLAMA_FTYPE_ALL_F32;
    params.allow_requantize = true;
    if (llama_model_quantize(from, to, &params))
        fail("llama.cpp does not write the model in float32");
}

static struct llama_context *make_context(struct llama_model *model) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT;
    params.n_threads = params.n_threads_batch = 2;
    struct llama_context *context = llama_init_from_model(model, params);
    if (!context)
        fail("no context for the model");
    return context;
}

int main(int argc, char **argv) {
    if (argc != 4)
        fail("usage: llama_text MODEL perplexity FILE | greedy PROMPT | widen FILE");
    if (strcmp(argv[2], "widen") == 0) {
        widen(argv[1], argv[3]);
        return 0;
    }
    static char file[MAX_BYTES];
    const char *text = argv[3];
    int32_t n_bytes = (int32_t)strlen(text);
    if (strcmp(argv[2], "perplexity") == 0) {
        FILE *f = fopen(argv[3], "rb");
        if (!f)
            fail("cannot read the text");
        n_bytes = (int32_t)fread(file, 1, MAX_BYTES, f);
        fclose(f);
        text = file;
    }
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model)
        fail("llama.cpp does not load the model");
    static llama_token ids[MAX_BYTES];
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    int32_t n = llama_tokenize(vocab, text, n_bytes, ids, MAX_BYTES, true, false);
    if (n <= 0)
        fail("the text has no tokens, or too many");
    struct llama_context *context = make_context(model);
    (text == file ? print_perplexity : print_greedy)(context, vocab, ids, n);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
