/* tests/cluster/test_roll_call_hello.h - the hello of a rank that the test of the roll call plays.
 * Threads: one at a time, because the lists of a hello are shared: pack one before the next is made. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CLUSTER_TEST_ROLL_CALL_HELLO_H
#define MR_TESTS_CLUSTER_TEST_ROLL_CALL_HELLO_H

#include <string.h>

#include "backends/digest/digest.h"
#include "proto/millrace.pb-c.h"

enum { N_PARTS = 3 };

/* Of the hello that is made: one part, or N_PARTS. */
static Millrace__FilePart file_parts[N_PARTS];
static uint64_t digest_bits[2];

static inline void good_hello(Millrace__Hello *h) {
    static Millrace__FilePart *points[N_PARTS] = {&file_parts[0], &file_parts[1], &file_parts[2]};
    static char version[] = "1.2.3", host[] = "node", isa[] = "avx2", path[] = "/data/model.gguf";
    static uint32_t digest_of[] = {MR_OP_MATMUL << 8 | MR_TYPE_Q4_K, MR_OP_ROPE << 8 | MR_DIGEST_NO_TYPE};
    *h = (Millrace__Hello)MILLRACE__HELLO__INIT;
    h->version = version;
    h->host = host;
    h->isa = isa;
    h->model_path = path;
    h->numerics = 1;
    h->cores = 8;
    h->threads = 4;
    digest_bits[0] = digest_bits[1] = 0x1111;
    h->n_digest_of = h->n_digest_bits = 2;
    h->digest_of = digest_of;
    h->digest_bits = digest_bits;
    for (int i = 0; i < N_PARTS; i++) {
        millrace__file_part__init(&file_parts[i]);
        file_parts[i].bytes = 1000;
        file_parts[i].header_bytes = 100;
        file_parts[i].digest = 0x2222u + (unsigned)i;
    }
    h->n_parts = 1;
    h->parts = points;
}

/* --- Edits that make it strange ---------------------------------------------------------------------------------- */

static inline void unknown_field(Millrace__Hello *h) {
    static uint8_t data[] = {3, 'n', 'e', 'w'};
    static ProtobufCMessageUnknownField field = {
        .tag = 99, .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, .len = sizeof data, .data = data};
    h->base.n_unknown_fields = 1;
    h->base.unknown_fields = &field;
}

static inline void long_texts(Millrace__Hello *h) {
    static char text[401];
    memset(text, 'a', 400);
    memcpy(text + 400 - 5, "/file", 5);
    h->version = h->host = h->isa = h->text = h->model_path = text;
}

static inline void ugly_texts(Millrace__Hello *h) {
    h->host = (char *)(uintptr_t) "\x1b[31mred\n\xff";
    h->model_path = (char *)(uintptr_t) "\r";
    h->text = (char *)(uintptr_t) "a\tb";
}

#endif
