/* A model with a sliding window against a forward pass of its own in doubles: every position by itself, straight from
 * the formulas. Windows around the tile, and longer than a partition of attention. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test_golden_run.h"
#include "tests/support/tiny_model.h"

enum { N_TOKENS = 620 };
static const double LIMIT = 1e-9;

typedef struct reference {
    const tiny_model *m;
    const mr_layer_info *layer; /* the one that runs */
    int32_t d, head_dim, n_heads, n_kv_heads;
    double *x;             /* [position][d] */
    double *q, *k, *v, *a; /* [position][heads * head_dim] */
} reference;

static const float *weights(const reference *r, int32_t layer, const char *name) {
    char full[64];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    const mr_gguf_tensor *t = mr_gguf_find_tensor(r->m->gguf, full);
    if (!t || t->type != MR_TYPE_F32) {
        fprintf(stderr, "no F32 tensor %s\n", full);
        exit(1);
    }
    return (const float *)(const void *)t->data;
}

/* out[n] = w[n][k] x[k] */
static void multiply(const float *w, const double *x, double *out, int32_t k, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        double sum = 0;
        for (int32_t j = 0; j < k; j++)
            sum += (double)w[(size_t)i * (size_t)k + (size_t)j] * x[j];
        out[i] = sum;
    }
}

static void norm(const reference *r, const float *w, const double *x, double *out) {
    double sum = 0;
    for (int32_t i = 0; i < r->d; i++)
        sum += x[i] * x[i];
    for (int32_t i = 0; i < r->d; i++)
        out[i] = x[i] / sqrt(sum / r->d + (double)r->m->info.norm_eps) * (double)w[i];
}

static void turn(const reference *r, double *x, int32_t n_heads, int32_t position) {
    for (int32_t h = 0; h < n_heads; h++, x += r->head_dim)
        for (int32_t i = 0; i < r->head_dim / 2; i++) {
            double angle = position * pow((double)r->m->info.ropes[r->layer->rope].freq_base, -2.0 * i / r->head_dim);
            double x0 = x[2 * i], x1 = x[2 * i + 1];
            x[2 * i] = x0 * cos(angle) - x1 * sin(angle);
            x[2 * i + 1] = x0 * sin(angle) + x1 * cos(angle);
        }
}

static void attend(const reference *r, int32_t position, int32_t head, double *out) {
    int32_t dim = r->head_dim, kv_head = head / (r->n_heads / r->n_kv_heads), window = r->layer->window;
    const double *q = r->q + (size_t)(position * r->n_heads + head) * (size_t)dim;
    double sum = 0;
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int32_t p = 0; p <= position; p++) {
        const double *k = r->k + (size_t)(p * r->n_kv_heads + kv_head) * (size_t)dim;
        const double *v = r->v + (size_t)(p * r->n_kv_heads + kv_head) * (size_t)dim;
        if (window > 0 && position - p >= window)
            continue;
        double s = 0;
        for (int32_t i = 0; i < dim; i++)
            s += q[i] * k[i];
        double w = exp(s / sqrt(dim));
        sum += w;
        for (int32_t i = 0; i < dim; i++)
            out[i] += w * v[i];
    }
    for (int32_t i = 0; i < dim; i++)
        out[i] /= sum;
}

static void run_layer(reference *r, int32_t l) {
    r->layer = mr_model_layer(&r->m->info, l);
    r->n_kv_heads = r->layer->n_kv_heads;
    int32_t q_width = r->n_heads * r->head_dim, kv_width = r->n_kv_heads * r->head_dim, n_ff = r->layer->n_ff;
    double h[512], gate[1024], up[1024];
    for (int32_t p = 0; p < N_TOKENS; p++) {
        norm(r, weights(r, l, "attn_norm.weight"), r->x + p * r->d, h);
        multiply(weights(r, l, "attn_q.weight"), h, r->q + p * q_width, r->d, q_width);
        multiply(weights(r, l, "attn_k.weight"), h, r->k + p * kv_width, r->d, kv_width);
        multiply(weights(r, l, "attn_v.weight"), h, r->v + p * kv_width, r->d, kv_width);
        turn(r, r->q + p * q_width, r->n_heads, p);
        turn(r, r->k + p * kv_width, r->n_kv_heads, p);
    }
    for (int32_t p = 0; p < N_TOKENS; p++) {
        double *x = r->x + p * r->d;
        for (int32_t head = 0; head < r->n_heads; head++)
            attend(r, p, head, r->a + p * q_width + head * r->head_dim);
        multiply(weights(r, l, "attn_output.weight"), r->a + p * q_width, h, q_width, r->d);
        for (int32_t i = 0; i < r->d; i++)
            x[i] += h[i];
        norm(r, weights(r, l, "ffn_norm.weight"), x, h);
        multiply(weights(r, l, "ffn_gate.weight"), h, gate, r->d, n_ff);
        multiply(weights(r, l, "ffn_up.weight"), h, up, r->d, n_ff);
        for (int32_t i = 0; i < n_ff; i++)
            gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        multiply(weights(r, l, "ffn_down.weight"), gate, h, n_ff, r->d);
        for (int32_t i = 0; i < r->d; i++)
            x[i] += h[i];
    }
}

/* Logits [N_TOKENS][vocabulary]. */
static void run_reference(const tiny_model *m, const int32_t *ids, float *out) {
    const mr_layer_info *l = mr_model_layer(&m->info, 0);
    reference r = {.m = m, .layer = l, .d = m->info.d_model, .head_dim = l->k_dim, .n_heads = l->n_heads};
    double **parts[] = {&r.x, &r.q, &r.k, &r.v, &r.a}, *memory = calloc(5 * N_TOKENS * 512, sizeof *memory), h[512];
    int32_t vocab = m->info.vocab_size;
    double *logits = calloc((size_t)vocab, sizeof *logits);
    if (!memory || !logits || r.d > 512 || r.n_heads * r.head_dim > 512 || l->n_ff > 1024)
        exit(1);
    for (int i = 0; i < 5; i++)
        *parts[i] = memory + i * N_TOKENS * 512;
    for (int32_t p = 0; p < N_TOKENS; p++)
        for (int32_t i = 0; i < r.d; i++)
            r.x[p * r.d + i] = (double)weights(&r, -1, "token_embd.weight")[ids[p] * r.d + i];
    for (int32_t i = 0; i < m->info.n_layers; i++)
        run_layer(&r, i);
    for (int32_t p = 0; p < N_TOKENS; p++) {
        norm(&r, weights(&r, -1, "output_norm.weight"), r.x + p * r.d, h);
        multiply(weights(&r, -1, "output.weight"), h, logits, r.d, vocab);
        for (int32_t i = 0; i < vocab; i++)
            out[p * vocab + i] = (float)logits[i];
    }
    free(memory);
    free(logits);
}

/* Takes the writer over. */
static bool check_file(gguf_writer *w, const char *what) {
    char path[] = "/tmp/millrace-window-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || !gguf_writer_save(w, path)) {
        perror(path);
        exit(1);
    }
    close(fd);
    tiny_model *m = tiny_model_open(w);
    int32_t ids[N_TOKENS];
    size_t n = (size_t)N_TOKENS * (size_t)m->info.vocab_size;
    for (int32_t i = 0; i < N_TOKENS; i++)
        ids[i] = i * 7 % m->info.vocab_size;
    float *want = malloc(n * sizeof *want);
    golden_logits got = {0};
    mr_err err = {0};
    if (!want || golden_run(path, MR_TYPE_F32, ids, N_TOKENS, N_TOKENS, &got, &err) != MR_OK) {
        fprintf(stderr, "%s: %s\n", what, err.text);
        exit(1);
    }
    run_reference(m, ids, want);
    double error = golden_nmse(got.values, want, n);
    bool ok = error <= LIMIT;
    printf("%s: %.3e, limit %.3e%s\n", what, error, LIMIT, ok ? "" : "  FAILED");
    unlink(path);
    free(want);
    free(got.values);
    tiny_model_destroy(m);
    return ok;
}

static bool check(uint32_t window) {
    char what[32];
    tiny_desc d = tiny_default("llama", MR_TYPE_F32);
    d.context_length = N_TOKENS;
    d.seed = window;
    gguf_writer *w = tiny_model_write(&d);
    gguf_writer_u32(w, "llama.attention.sliding_window", window);
    snprintf(what, sizeof what, "window %u", window);
    return check_file(w, what);
}

/* Layers that differ in KV heads, width, window and frequencies. */
static bool check_layers_that_differ(void) {
    static const uint32_t kv_heads[] = {4, 1, 2, 1, 4}, ffs[] = {96, 160, 96, 32, 160};
    tiny_desc d = tiny_default("llama", MR_TYPE_F32);
    d.context_length = N_TOKENS;
    d.n_layers = 5;
    d.n_kv_heads_of = kv_heads;
    d.n_ff_of = ffs;
    gguf_writer *w = tiny_model_write(&d);
    gguf_writer_u32(w, "llama.attention.sliding_window", 77);
    gguf_writer_u32(w, "llama.attention.sliding_window_pattern", 3);
    gguf_writer_f32(w, "llama.rope.freq_base_swa", 500);
    return check_file(w, "layers that differ");
}

int main(void) {
    bool ok = check(1);
    ok = check(77) && ok;
    ok = check(530) && ok;
    ok = check_layers_that_differ() && ok;
    return check(4096) && ok ? 0 : 1;
}
