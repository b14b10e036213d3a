/* tests/bench/bench_grammar.c - microseconds for one token mask. Follows texts of a grammar token by token, as a
 * sequence would, and measures mask and accept in CPU time of the thread. Usage: bench_grammar VOCABULARY.gguf */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordinator/serving/schema/schema.h"
#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/vocab/vocab.h"

static void stop(const mr_err *err) {
    fprintf(stderr, "bench_grammar: %s\n", err->text);
    exit(1);
}

/* CPU time of this thread, so that other processes on the machine do not count. */
static int64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

typedef struct bench {
    const char *name;
    const char *gbnf; /* NULL: a grammar of any JSON object */
    const char *schema;
    const char *text;
} bench;

enum { MAX_IDS = 4096, ROUNDS = 8 };

static double us(int64_t ns) {
    return (double)ns / 1000.0;
}

/* From the second round on, the grammar state has the memory of the first round, as in a sequence that continues. */
static void run(const bench *b, const mr_tokenizer *tok, const mr_grammar_vocab *v) {
    mr_err err = {0};
    mr_grammar *g = NULL;
    mr_grammar_state *s = NULL;
    mr_token_buf ids = {0};
    static int64_t first[MAX_IDS], later[MAX_IDS * ROUNDS];
    size_t n_later = 0;
    int64_t accept_ns = 0, begin = cpu_ns();
    uint64_t *bits = mr_alloc(mr_grammar_vocab_mask_words(v) * sizeof *bits);
    mr_status status = b->gbnf     ? mr_grammar_parse(mr_str_from(b->gbnf), &g, &err)
                       : b->schema ? mr_grammar_from_schema(mr_str_from(b->schema), true, &g, &err)
                                   : mr_grammar_any_object(&g, &err);
    int64_t compile_ns = cpu_ns() - begin;
    if (status || mr_tokenizer_encode(tok, mr_str_from(b->text), MR_ENCODE_CONTINUES, &ids, &err) || ids.n > MAX_IDS)
        stop(&err);
    begin = cpu_ns();
    if (mr_grammar_state_create(g, v, &s, &err))
        stop(&err);
    int64_t create_ns = cpu_ns() - begin;
    for (int round = 0; round < ROUNDS; round++) {
        mr_grammar_state_reset(s);
        for (size_t i = 0; i < ids.n; i++) {
            int64_t at = cpu_ns();
            if (mr_grammar_state_mask(s, bits, &err))
                stop(&err);
            int64_t masked = cpu_ns();
            if (!(bits[ids.ids[i] / 64] >> (ids.ids[i] % 64) & 1) || mr_grammar_state_accept(s, ids.ids[i], &err))
                stop(&err);
            accept_ns += cpu_ns() - masked;
            if (round == 0)
                first[i] = masked - at;
            else
                later[n_later++] = masked - at;
        }
    }
    int64_t sum = 0, later_sum = 0;
    for (size_t i = 0; i < ids.n; i++)
        sum += first[i];
    for (size_t i = 0; i < n_later; i++)
        later_sum += later[i];
    qsort(first, ids.n, sizeof *first, compare);
    qsort(later, n_later, sizeof *later, compare);
    printf("%-14s %5zu tokens; compile %7.0f us, open %4.0f us; mask first round mean %6.1f p50 %6.1f max %7.1f us; "
           "later mean %5.1f p50 %5.1f max %6.1f us; accept %4.2f us\n",
           b->name, ids.n, us(compile_ns), us(create_ns), us(sum) / (double)ids.n, us(first[ids.n / 2]),
           us(first[ids.n - 1]), us(later_sum) / (double)n_later, us(later[n_later / 2]), us(later[n_later - 1]),
           us(accept_ns) / (double)(ids.n * ROUNDS));
    mr_grammar_state_destroy(s);
    mr_grammar_destroy(g);
    mr_token_buf_deinit(&ids);
    mr_free(bits);
}

static const char record[] =
    "{\"name\": \"Ada Lovelace\", \"age\": 36, \"email\": \"ada@example.org\", \"tags\": [\"mathematics\", \"poetry\", "
    "\"engines\"], \"address\": {\"street\": \"12 St James's Square\", \"city\": \"London\", \"zip\": \"SW1Y\"}, "
    "\"notes\": \"She wrote the first program, for a machine that was never built, and saw further than its maker.\"}";

static const char record_schema[] = "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, "
                                    "\"age\": {\"type\": \"integer\", \"minimum\": 0, "
                                    "\"maximum\": 150}, \"email\": {\"type\": \"string\", \"format\": \"email\"}, "
                                    "\"tags\": {\"type\": \"array\", \"items\": "
                                    "{\"type\": \"string\"}, \"maxItems\": 8}, \"address\": {\"type\": \"object\", "
                                    "\"properties\": {\"street\": {\"type\": \"string\", "
                                    "\"maxLength\": 40}, \"city\": {\"type\": \"string\"}, \"zip\": {\"type\": "
                                    "\"string\", \"pattern\": \"^[A-Z0-9]{3,8}$\"}}, "
                                    "\"required\": [\"street\"]}, \"notes\": {\"type\": \"string\", \"maxLength\": "
                                    "400}}, \"required\": [\"name\", \"age\"], "
                                    "\"additionalProperties\": false}";

int main(int argc, char **argv) {
    static const bench benches[] = {
        {.name = "any object", .text = record},
        {.name = "schema", .schema = record_schema, .text = record},
        {.name = "list",
         .gbnf = "root ::= (\"- \" [^\\n]+ \"\\n\")+",
         .text = "- one thing\n- another thing, longer\n- \xC3\xA9t\xC3\xA9\n"},
        {.name = "bounded",
         .gbnf = "root ::= \"\\\"\" [^\"\\x00-\\x1F]{1,200} \"\\\"\"",
         .text =
             "\"She wrote the first program, for a machine that was never built, and saw further than its maker.\""},
    };
    mr_err err = {0};
    mr_gguf *file = NULL;
    mr_tokenizer *tok = NULL;
    mr_grammar_vocab *v = NULL;
    if (argc != 2) {
        fprintf(stderr, "usage: bench_grammar VOCABULARY.gguf\n");
        return 2;
    }
    if (mr_gguf_open(argv[1], &file, &err) || mr_vocab_load(file, &tok, &err))
        stop(&err);
    int64_t begin = cpu_ns();
    if (mr_grammar_vocab_create(tok, mr_tokenizer_n_tokens(tok), &v, &err))
        stop(&err);
    printf("%d tokens; tree %.0f us\n", mr_tokenizer_n_tokens(tok), us(cpu_ns() - begin));
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        run(&benches[i], tok, v);
    mr_grammar_vocab_destroy(v);
    mr_tokenizer_destroy(tok);
    mr_gguf_close(file);
    return 0;
}
