/* tests/golden/arch/llama_logits.c - runs llama.cpp on a GGUF file and fixed ids:
 * llama_logits MODEL IDS OUT [FAST SLOW].
 * IDS: int32, little-endian. OUT: float32 [n_ids, n_vocab]; for a model with pooling, [1, n_embd] as llama.cpp pools.
 * FAST SLOW: the betas of YaRN, where llama.cpp does not read those of the file.
 * One batch, one thread, keys and values in float32. make_arch_reference.py builds and calls this program. */
// SPDX-License-Identifier: Apache-2.0
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_IDS = 512 };

static void fail(const char *what) {
    fprintf(stderr, "llama_logits: %s\n", what);
    exit(1);
}

static int32_t read_ids(const char *path, llama_token *ids) {
    FILE *f = fopen(path, "rb");
    if (!f)
        fail("cannot read the ids");
    size_t n = fread(ids, sizeof *ids, MAX_IDS, f);
    fclose(f);
    if (n == 0)
        fail("there are no ids");
    return (int32_t)n;
}

static void write_floats(const char *path, const float *values, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!values || !f || fwrite(values, sizeof *values, n, f) != n || fclose(f))
        fail("there are no results, or they cannot be written");
}

/* betas: YaRN's two, or NULL. */
static struct llama_context *make_context(struct llama_model *model, char **betas) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = MAX_IDS;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    if (betas) {
        params.yarn_beta_fast = strtof(betas[0], NULL);
        params.yarn_beta_slow = strtof(betas[1], NULL);
    }
    struct llama_context *context = llama_init_from_model(model, params);
    if (!context)
        fail("no context for the model");
    return context;
}

int main(int argc, char **argv) {
    if (argc != 4 && argc != 6)
        fail("usage: llama_logits MODEL IDS OUT [FAST SLOW]");
    llama_token ids[MAX_IDS];
    int32_t n_ids = read_ids(argv[2], ids);
    struct llama_model_params model_params = llama_model_default_params();
    model_params.use_extra_bufts = false; /* no repacking */
    struct llama_model *model = llama_model_load_from_file(argv[1], model_params);
    if (!model)
        fail("llama.cpp does not load the model");
    struct llama_context *context = make_context(model, argc == 6 ? argv + 4 : NULL);
    bool is_pooled = llama_pooling_type(context) != LLAMA_POOLING_TYPE_NONE;
    llama_set_embeddings(context, is_pooled);
    struct llama_batch batch = llama_batch_init(n_ids, 0, 1);
    batch.n_tokens = n_ids;
    for (int32_t i = 0; i < n_ids; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(context, batch))
        fail("llama.cpp does not compute the batch");
    if (is_pooled)
        write_floats(argv[3], llama_get_embeddings_seq(context, 0), (size_t)llama_model_n_embd(model));
    else
        write_floats(argv[3], llama_get_logits(context),
                     (size_t)n_ids * (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model)));
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
