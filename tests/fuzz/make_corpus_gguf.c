/* Writes the hand-made files of corpus/gguf into the given folder: small valid files of each kind, and some broken
 * files. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf/gguf.h"
#include "tests/support/gguf_writer.h"

static const char *folder;

/* Saves the file of the writer and destroys the writer. */
static void save(gguf_writer *w, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!gguf_writer_save(w, path)) {
        fprintf(stderr, "%s: cannot be written\n", path);
        exit(1);
    }
    gguf_writer_destroy(w);
}

static void save_empty(void) {
    for (uint32_t version = 1; version <= 4; version++) {
        char name[32];
        snprintf(name, sizeof name, "empty-v%u.gguf", version);
        gguf_writer *w = gguf_writer_create();
        gguf_writer_version(w, version);
        save(w, name);
    }
    gguf_writer *w = gguf_writer_create();
    gguf_writer_version(w, 0x03000000);
    save(w, "big-endian.gguf");
}

static void save_all_types(void) {
    gguf_writer *w = gguf_writer_create();
    char key[8];
    for (uint32_t type = 0; type < MR_GGUF_TYPE_COUNT; type++) {
        static const char one[] = "\1\0\0\0\0\0\0\0x";
        static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 9, 0, 8, 8, 8};
        uint8_t array[32] = {(uint8_t)type, 0, 0, 0, 2};
        if (type == MR_GGUF_ARRAY)
            continue;
        snprintf(key, sizeof key, "v%u", type);
        gguf_writer_raw(w, key, type, one, bytes[type]);
        memcpy(array + 12, one, bytes[type]);
        memcpy(array + 12 + bytes[type], one, bytes[type]);
        key[0] = 'a';
        gguf_writer_raw(w, key, MR_GGUF_ARRAY, array, 12 + 2 * (size_t)bytes[type]);
    }
    gguf_writer_tensor(w, "t4", MR_TYPE_I8, 4, (const int64_t[]){1, 2, 1, 2}, NULL);
    gguf_writer_vector(w, "q", MR_TYPE_Q4_0, 32, NULL);
    save(w, "all-types.gguf");
}

static void save_model(const char *name, bool tied, bool extras) {
    const gguf_model_shape shape = {.type = MR_TYPE_F16,
                                    .n_layers = 2,
                                    .d_model = 4,
                                    .n_ff = 2,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .vocab_size = 3,
                                    .context_length = 16,
                                    .tied_output = tied};
    gguf_writer *w = gguf_writer_create();
    if (extras) {
        gguf_writer_alignment(w, 8);
        gguf_writer_u32(w, "llama.attention.key_length", 2);
        gguf_writer_u32(w, "llama.attention.value_length", 2);
        gguf_writer_u32(w, "llama.rope.dimension_count", 2);
        gguf_writer_f32(w, "llama.rope.freq_base", 1e4f);
        gguf_writer_str(w, "llama.rope.scaling.type", "yarn");
        gguf_writer_f32(w, "llama.rope.scaling.factor", 4);
        gguf_writer_u32(w, "llama.rope.scaling.original_context_length", 4);
        gguf_writer_f32(w, "llama.rope.scaling.yarn_beta_fast", 32);
        gguf_writer_u32(w, "llama.expert_count", 4);
        gguf_writer_u32(w, "llama.expert_used_count", 2);
        gguf_writer_u32s(w, "llama.expert_feed_forward_length", (const uint32_t[]){2, 2}, 2);
        gguf_writer_u32(w, "general.file_type", 1);
        gguf_writer_u32(w, "general.quantization_version", 2);
        gguf_writer_vector(w, "rope_freqs.weight", MR_TYPE_F32, 1, NULL);
    }
    gguf_writer_model_keys(w, &shape);
    gguf_writer_model_tensors(w, &shape);
    save(w, name);
}

/* With the magic of PowerInfer, its threshold, and the tensors of a predictor. */
static void save_sparse(void) {
    const gguf_model_shape shape = {.type = MR_TYPE_F16,
                                    .n_layers = 1,
                                    .d_model = 4,
                                    .n_ff = 2,
                                    .n_heads = 2,
                                    .n_kv_heads = 1,
                                    .vocab_size = 3,
                                    .context_length = 16};
    gguf_writer *w = gguf_writer_create();
    gguf_writer_sparse(w);
    gguf_writer_f32(w, "powerinfer.sparse_threshold", 0.5f);
    gguf_writer_model_keys(w, &shape);
    gguf_writer_model_tensors(w, &shape);
    gguf_writer_matrix(w, "blk.0.fc1.weight", MR_TYPE_F16, 4, 3, NULL);
    gguf_writer_matrix(w, "blk.0.fc2.weight", MR_TYPE_F16, 3, 2, NULL);
    gguf_writer_matrix(w, "blk.0.ffn_down_t.weight", MR_TYPE_F16, 4, 2, NULL);
    save(w, "sparse.gguf");
}

/* A GPU index of PowerInfer, as fuzz_gguf.c reads it. */
static void save_gpu_index(void) {
    static const int32_t marks[8] = {1, 1, 0, 1}, bucket[3] = {0, 1, 3};
    gguf_writer *w = gguf_writer_create();
    gguf_writer_str(w, "general.architecture", "generic.gpu_index");
    gguf_writer_u64(w, "split.vram_capacity", 1 << 20);
    gguf_writer_vector(w, "blk.0.gpu_idx", MR_TYPE_I32, 8, marks);
    gguf_writer_vector(w, "blk.0.gpu_bucket", MR_TYPE_I32, 3, bucket);
    save(w, "gpu-index.gguf");
}

static void save_broken(void) {
    gguf_writer *w = gguf_writer_create();
    gguf_writer_counts(w, 0xffffffffffffffff, 0xffffffffffffffff);
    save(w, "counts.gguf");
    w = gguf_writer_create();
    gguf_writer_raw(w, "k", MR_GGUF_ARRAY, "\11\0\0\0\1\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0\0\0\0\0", 24);
    save(w, "nested-array.gguf");
    w = gguf_writer_create();
    gguf_writer_raw(w, "k", MR_GGUF_ARRAY, "\10\0\0\0\xff\xff\xff\0\0\0\0\0", 12);
    save(w, "many-strings.gguf");
    w = gguf_writer_create();
    gguf_writer_raw(w, "split.count", MR_GGUF_U16, "\2\0", 2);
    save(w, "split.gguf");
    w = gguf_writer_create();
    gguf_writer_raw_tensor(w, &(gguf_raw_tensor){"a", 1, {16}, MR_TYPE_I8, 0});
    gguf_writer_raw_tensor(w, &(gguf_raw_tensor){"b", 1, {16}, MR_TYPE_I8, 0});
    gguf_writer_raw_data(w, "0123456789abcdef", 16);
    save(w, "overlap.gguf");
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus_gguf FOLDER\n");
        return 2;
    }
    folder = argv[1];
    save_empty();
    save_all_types();
    save_model("model.gguf", false, false);
    save_model("model-tied-yarn-experts.gguf", true, true);
    save_sparse();
    save_gpu_index();
    save_broken();
    return 0;
}
