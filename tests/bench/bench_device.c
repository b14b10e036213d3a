/* tests/bench/bench_device.c - what a device computes and how fast, beside the CPU: each case is one line of JSON.
 *
 *   bench_device BACKEND digest                                     every op, by its digest
 *   bench_device BACKEND corners                                    operations on awkward numbers
 *   bench_device BACKEND chain NODES COLUMNS ROWS                   sums, each of which needs the one before
 *   bench_device BACKEND product TYPE K N MATRICES ROWS[,ROWS...]   products, each of which needs the one before
 *   bench_device BACKEND attention TYPE HEADS KV_HEADS DIM POSITIONS SEQUENCES ROWS   the last rows of each sequence
 *
 * BACKEND is a name of backends/registry.h. "same": the result has the CPU's bits, where NaNs are equal; null: the
 * device or the CPU does not support it. MATRICES of the same content lie in memory one after the other, so that caches
 * do not hold a matrix until the next run. The exit status is 1 if a result differs. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/digest/digest.h"
#include "engine/base/cores.h"
#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "engine/tensor/f16.h"
#include "engine/tensor/quant.h"
#include "tests/bench/device_corners.h"
#include "tests/support/rng.h"

enum { KV_CHUNK = 256, MAX_MATRICES = RIG_TENSORS - 8 };
static const double SECONDS = 0.1; /* of timed runs */

typedef struct bench {
    rig device, cpu;
    int32_t n_differ;
} bench;

static void usage(void) {
    fputs("usage: bench_device BACKEND digest|corners|chain|product|attention ARGUMENTS\n", stderr);
    exit(2);
}

static int32_t number(const char *text) {
    long n = strtol(text, NULL, 10);
    if (n < 1 || n > INT32_MAX)
        usage();
    return (int32_t)n;
}

static mr_type type_of(const char *name) {
    for (int32_t t = 0; t < MR_TYPE_FILE_COUNT; t++)
        if (strcmp(mr_type_name(t), name) == 0)
            return (mr_type)t;
    usage();
    return MR_TYPE_FILE_COUNT;
}

/* Compares the tensor after a run of the CPU, if both ran, and returns a word of JSON. */
static const char *same(bench *b, int32_t tensor, int32_t n_rows, bool both_ran) {
    if (!both_ran)
        return "null";
    int32_t n = rig_count_different(&b->device, &b->cpu, tensor, n_rows);
    b->n_differ += n;
    return n ? "false" : "true";
}

static void run_digest(bench *b) {
    static mr_digest device, cpu;
    char names[1024] = "";
    mr_err err;
    if (mr_digest_compute(b->device.be, b->cpu.be, &device, &err) != MR_OK ||
        mr_digest_compute(b->cpu.be, b->device.be, &cpu, &err) != MR_OK) {
        fprintf(stderr, "error: %s\n", err.text);
        exit(1);
    }
    int32_t n = mr_digest_compare(&device, &cpu, names, sizeof names);
    b->n_differ += n;
    printf("{\"test\": \"digest\", \"parts\": %d, \"different\": %d, \"names\": \"%s\", \"same\": %s}\n", device.n, n,
           n ? names : "", n ? "false" : "true");
}

/* --- Chains of sums ---------------------------------------------------------------------------------------------- */

static int32_t build_chain(rig *r, int32_t n_nodes, int32_t columns, int32_t rows) {
    rig_clear(r);
    int32_t x = rig_floats(r, columns, rows, 1), y[2], last = x;
    for (int i = 0; i < 2; i++)
        y[i] = rig_tensor(r, MR_TYPE_F32, columns, rows, MR_STORAGE_OUTPUT);
    for (int32_t i = 0; i < n_nodes; i++) {
        mr_node *n = rig_node(r, MR_OP_ADD);
        n->in[0] = last;
        n->in[1] = x;
        last = n->out = y[i % 2];
    }
    return last;
}

static void run_chain(bench *b, int32_t n_nodes, int32_t columns, int32_t rows) {
    if (n_nodes > RIG_NODES)
        usage();
    int32_t out = build_chain(&b->device, n_nodes, columns, rows);
    build_chain(&b->cpu, n_nodes, columns, rows);
    double ns = rig_time(&b->device, rows, SECONDS) / n_nodes;
    bool both_ran = ns > 0 && rig_run(&b->cpu, rows);
    printf("{\"test\": \"chain\", \"nodes\": %d, \"columns\": %d, \"rows\": %d, \"node_ns\": %.1f, "
           "\"bytes_per_s\": %.4g, \"same\": %s}\n",
           n_nodes, columns, rows, ns, ns > 0 ? 12e9 * columns * rows / ns : 0, same(b, out, rows, both_ran));
}

/* --- Products ---------------------------------------------------------------------------------------------------- */

/* Rows of a matrix with random bits and finite scales. */
static uint8_t *make_file(mr_type type, int32_t k, int32_t n, size_t *out_bytes) {
    const mr_type_info *info = mr_type_get((int32_t)type);
    size_t block = (size_t)info->block_bytes, elems = (size_t)info->block_elems;
    size_t n_blocks = (size_t)k / elems * (size_t)n;
    uint8_t *file = mr_alloc(n_blocks * block);
    rng random = {.state = 5};
    if (!file || (size_t)k % elems != 0)
        usage();
    for (size_t i = 0; i < n_blocks; i++) {
        uint8_t *at = file + i * block;
        for (size_t j = 0; j < block; j++)
            at[j] = (uint8_t)(rng_next(&random) >> 24);
        float value = rng_unit(&random);
        if (type == MR_TYPE_F32)
            mr_store_le_f32(at, value);
        else
            mr_block_set_scale(type, at, mr_f32_to_f16(value * 0.02f), mr_f32_to_f16(value * 0.03f));
    }
    *out_bytes = n_blocks * block;
    return file;
}

typedef struct product {
    mr_type type;
    int32_t k, n, n_matrices;
    const uint8_t *file;
} product;

/* Makes the activations, and adds the nodes. Returns the last result; MR_NO_TENSOR: the backend cannot do it. */
static int32_t build_product(rig *r, const product *p, int32_t rows) {
    rig_clear(r);
    mr_type activation = mr_type_activation(p->type);
    int32_t w[MAX_MATRICES], y[2], x = rig_floats(r, p->k, rows, 1);
    for (int32_t i = 0; i < p->n_matrices; i++)
        if ((w[i] = rig_matrix(r, p->type, p->k, p->n, p->file)) == MR_NO_TENSOR)
            return MR_NO_TENSOR;
    for (int i = 0; i < 2; i++)
        y[i] = rig_tensor(r, MR_TYPE_F32, p->n, rows, MR_STORAGE_OUTPUT);
    if (activation != MR_TYPE_F32) {
        mr_node *n = rig_node(r, MR_OP_QUANTIZE);
        n->in[0] = x;
        n->out = x = rig_tensor(r, activation, p->k, rows, MR_STORAGE_OUTPUT);
        if (!rig_run(r, rows))
            return MR_NO_TENSOR;
    }
    for (int32_t i = 0; i < p->n_matrices; i++) {
        mr_node *n = rig_node(r, MR_OP_MATMUL);
        n->in[0] = w[i];
        n->in[1] = x;
        if (i > 0)
            n->in[3] = y[(i - 1) % 2];
        n->out = y[i % 2];
    }
    return y[(p->n_matrices - 1) % 2];
}

static void run_product(bench *b, mr_type type, int32_t k, int32_t n, int32_t n_matrices, const char *rows) {
    size_t bytes = 0;
    product p = {.type = type, .k = k, .n = n, .n_matrices = n_matrices};
    uint8_t *file = make_file(type, k, n, &bytes);
    p.file = file;
    if (n_matrices > MAX_MATRICES)
        usage();
    for (const char *at = rows; *at; at += strcspn(at, ","), at += *at == ',') {
        int32_t n_rows = number(at), out = build_product(&b->device, &p, n_rows);
        double ns = out == MR_NO_TENSOR ? 0 : rig_time(&b->device, n_rows, SECONDS) / n_matrices;
        bool both_ran = ns > 0 && build_product(&b->cpu, &p, n_rows) != MR_NO_TENSOR && rig_run(&b->cpu, n_rows);
        printf("{\"test\": \"product\", \"type\": \"%s\", \"k\": %d, \"n\": %d, \"rows\": %d, \"ns\": %.0f, "
               "\"file_bytes_per_s\": %.4g, \"products_per_s\": %.4g, \"same\": %s}\n",
               mr_type_name((int32_t)type), k, n, n_rows, ns, ns > 0 ? (double)bytes * 1e9 / ns : 0,
               ns > 0 ? 1e9 * k * n * n_rows / ns : 0, same(b, out, n_rows, both_ran));
        fflush(stdout);
    }
    mr_free(file);
}

/* --- Attention --------------------------------------------------------------------------------------------------- */

typedef struct attention {
    mr_type type;
    int32_t n_heads, n_kv_heads, dim;
    int32_t n_positions, n_sequences, n_rows; /* n_rows: of each sequence */
    int32_t n_blocks;                         /* of a sequence */
} attention;

static mr_op_params attention_params(const attention *a) {
    return (mr_op_params){
        .attention = {
            .n_heads = a->n_heads, .n_kv_heads = a->n_kv_heads, .k_dim = a->dim, .v_dim = a->dim, .scale = 0.125f}};
}

/* Block i of a sequence: blocks of the sequences take turns. */
static int32_t block_of(const attention *a, int32_t sequence, int32_t i) {
    return i * a->n_sequences + sequence;
}

/* Writes all positions of all sequences; store: keys and values. */
static bool write_store(rig *r, const attention *a, const int32_t store[2]) {
    int32_t width = a->n_kv_heads * a->dim, all = a->n_positions * a->n_sequences, slots[KV_CHUNK];
    int32_t k = rig_floats(r, width, KV_CHUNK, 1), v = rig_floats(r, width, KV_CHUNK, 2), tensor = MR_NO_TENSOR;
    for (int32_t done = 0; done < all; done += KV_CHUNK) {
        int32_t n_rows = all - done < KV_CHUNK ? all - done : KV_CHUNK;
        for (int32_t i = 0; i < KV_CHUNK; i++) {
            int32_t sequence = (done + i) % all / a->n_positions, p = (done + i) % all % a->n_positions;
            slots[i] = block_of(a, sequence, p / MR_KV_BLOCK) * MR_KV_BLOCK + p % MR_KV_BLOCK;
        }
        if (tensor == MR_NO_TENSOR)
            tensor = rig_ints(r, 1, KV_CHUNK, slots);
        else
            rig_set(r, tensor, slots);
        mr_node *n = rig_node(r, MR_OP_KV_WRITE);
        memcpy(n->in, (int32_t[]){k, v, tensor, store[0], store[1]}, 5 * sizeof *n->in);
        n->params = attention_params(a);
        if (!rig_run(r, n_rows))
            return false;
    }
    return true;
}

/* Adds the node. Returns its result; MR_NO_TENSOR: the backend cannot do it. */
static int32_t build_attention(rig *r, const attention *a) {
    int32_t all = a->n_sequences * a->n_rows, n_state = a->n_kv_heads * a->dim * MR_KV_BLOCK, store[2];
    int32_t *table = mr_alloc_array((size_t)a->n_sequences * (size_t)a->n_blocks, sizeof *table);
    int32_t *sequence = mr_alloc_array((size_t)all, sizeof *sequence);
    int32_t *position = mr_alloc_array((size_t)all, sizeof *position);
    MR_ASSERT(table && sequence && position);
    rig_clear(r);
    for (int i = 0; i < 2; i++)
        store[i] = rig_tensor(r, a->type, n_state, a->n_blocks * a->n_sequences, MR_STORAGE_STATE);
    for (int32_t i = 0; i < a->n_sequences * a->n_blocks; i++)
        table[i] = block_of(a, i / a->n_blocks, i % a->n_blocks);
    for (int32_t i = 0; i < all; i++) {
        sequence[i] = i / a->n_rows;
        position[i] = a->n_positions - a->n_rows + i % a->n_rows;
    }
    int32_t out = MR_NO_TENSOR;
    if (write_store(r, a, store)) {
        int32_t q = rig_floats(r, a->n_heads * a->dim, all, 3);
        int32_t in[] = {q,
                        store[0],
                        store[1],
                        rig_ints(r, 1, all, sequence),
                        rig_ints(r, 1, all, position),
                        rig_ints(r, a->n_blocks, a->n_sequences, table)};
        mr_node *n = rig_node(r, MR_OP_ATTENTION);
        memcpy(n->in, in, sizeof in);
        n->params = attention_params(a);
        n->out = out = rig_tensor(r, MR_TYPE_F32, a->n_heads * a->dim, all, MR_STORAGE_OUTPUT);
    }
    mr_free(table);
    mr_free(sequence);
    mr_free(position);
    return out;
}

static void run_attention(bench *b, const attention *a) {
    int32_t all = a->n_sequences * a->n_rows;
    int32_t out = build_attention(&b->device, a);
    double ns = out == MR_NO_TENSOR ? 0 : rig_time(&b->device, all, SECONDS);
    bool both_ran = ns > 0 && build_attention(&b->cpu, a) != MR_NO_TENSOR && rig_run(&b->cpu, all);
    double seen = (double)all * (a->n_positions - 0.5 * (a->n_rows - 1)); /* positions, by all rows together */
    double elems = 2.0 * a->n_positions * a->n_sequences * a->n_kv_heads * a->dim;
    printf("{\"test\": \"attention\", \"type\": \"%s\", \"heads\": %d, \"kv_heads\": %d, \"dim\": %d, "
           "\"positions\": %d, \"sequences\": %d, \"rows\": %d, \"ns\": %.0f, \"elements_per_s\": %.4g, "
           "\"products_per_s\": %.4g, \"same\": %s}\n",
           mr_type_name((int32_t)a->type), a->n_heads, a->n_kv_heads, a->dim, a->n_positions, a->n_sequences, a->n_rows,
           ns, ns > 0 ? elems * 1e9 / ns : 0, ns > 0 ? 2e9 * seen * a->n_heads * a->dim / ns : 0,
           same(b, out, all, both_ran));
}

int main(int argc, char **argv) {
    static bench b;
    static mr_cores cores;
    if (argc < 3)
        usage();
    mr_cores_get(&cores);
    rig_open(&b.device, argv[1], mr_cores_usable(&cores));
    rig_open(&b.cpu, "cpu", mr_cores_usable(&cores));
    if (strcmp(argv[2], "digest") == 0 && argc == 3)
        run_digest(&b);
    else if (strcmp(argv[2], "corners") == 0 && argc == 3)
        b.n_differ += run_corners(&b.device, &b.cpu);
    else if (strcmp(argv[2], "chain") == 0 && argc == 6)
        run_chain(&b, number(argv[3]), number(argv[4]), number(argv[5]));
    else if (strcmp(argv[2], "product") == 0 && argc == 8)
        run_product(&b, type_of(argv[3]), number(argv[4]), number(argv[5]), number(argv[6]), argv[7]);
    else if (strcmp(argv[2], "attention") == 0 && argc == 10) {
        attention a = {.type = type_of(argv[3]),
                       .n_heads = number(argv[4]),
                       .n_kv_heads = number(argv[5]),
                       .dim = number(argv[6]),
                       .n_positions = number(argv[7]),
                       .n_sequences = number(argv[8]),
                       .n_rows = number(argv[9])};
        a.n_blocks = (a.n_positions + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
        run_attention(&b, &a);
    } else {
        usage();
    }
    rig_close(&b.device);
    rig_close(&b.cpu);
    return b.n_differ > 0;
}
