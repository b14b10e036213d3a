/* coordinator/serving/batch/batch_input.h - the input file of a batch: the place, the custom_id and the kind of each
 * line, and the best order to run the lines in. A file holds requests or prompts; the first line that is not blank
 * decides. Where this line begins with a brace, every line is
 *   {"custom_id": ..., "method": "POST", "url": ..., "body": {...}}   a request, as OpenAI's batch files have it
 * and otherwise
 *   "..."                                                             a JSON string: a prompt
 *   anything else that is not blank                                   a prompt, as it stands
 * A byte order mark in front of the first line is skipped, and so is white space in front of a request. A file whose
 * first line is no text (engine/text/text_file.h), or begins JSON that goes on over lines, is refused as a whole.
 * Prompts have the custom_id "line-N". A wrong line makes no function fail: the kind of the line says what is wrong.
 * The file is read into memory as a whole; a line takes 40 bytes more, and an entry of an index. What happens to the
 * file afterwards changes nothing: mr_batch_input_check says it at the end.
 * Owns:    the copy of the file, the lines.
 * Threads: caller serialises.
 * Errors:  MR_E_NOT_FOUND, MR_E_IO, MR_E_NO_MEMORY, MR_E_TOO_LONG, MR_E_FORMAT. Error texts name the file. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_INPUT_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"

enum { BATCH_MAX_LINE_BYTES = 64 << 20, BATCH_MAX_ID_BYTES = 512 };
#define BATCH_MAX_LINES 100000000u
#define BATCH_MAX_INPUT_BYTES ((uint64_t)4 << 30)

typedef enum batch_line_kind {
    BATCH_REQUEST,
    BATCH_JSON_PROMPT, /* a JSON string */
    BATCH_PLAIN_PROMPT,
    /* Kinds of wrong lines: */
    BATCH_TOO_LONG,
    BATCH_NOT_JSON,
    BATCH_STRAY,     /* a request in a file of prompts */
    BATCH_NO_ID,     /* custom_id is missing, empty, too long or no string */
    BATCH_DUPLICATE, /* has the custom_id of an earlier line */
} batch_line_kind;

typedef struct batch_line {
    size_t at; /* in the file */
    uint64_t hash;
    uint32_t n_bytes;           /* without the newline */
    uint32_t number;            /* in the file, from 1 */
    uint32_t id_at, n_id_bytes; /* in the line: custom_id as JSON with its quotes; 0 bytes: none */
    uint32_t key_at;            /* in the line: where the prompt begins; lines are sorted by the bytes from here on */
    uint8_t kind;               /* batch_line_kind */
    bool is_done;               /* the line has a result (batch_results.h) */
} batch_line;

/* Which file was read, and when it was changed last. */
typedef struct batch_file_stamp {
    uint64_t device, inode, n_bytes;
    int64_t changed_s, changed_ns;
} batch_file_stamp;

typedef struct mr_batch_input {
    char *data; /* may be NULL where n_bytes is 0 */
    size_t n_bytes;
    batch_file_stamp seen;
    batch_line *lines; /* [n], in the order of the file */
    uint32_t n, cap;
    bool has_requests; /* false: the lines are prompts */
} mr_batch_input;

MR_MUST_USE mr_status mr_batch_input_open(const char *path, mr_batch_input *out, mr_err *err);
/* {0} is accepted. */
void mr_batch_input_close(mr_batch_input *in);
/* At the end of a batch: whether the file at path is still the one that was read. A file that was removed, or written
 * anew with the same bytes, is fine. MR_E_FORMAT: the file has grown, so that new lines have no results, or it was
 * changed. MR_E_IO, MR_E_NO_MEMORY. */
MR_MUST_USE mr_status mr_batch_input_check(const mr_batch_input *in, const char *path, mr_err *err);

static inline mr_str batch_line_text(const mr_batch_input *in, const batch_line *l) {
    return (mr_str){in->data + l->at, l->n_bytes};
}
static inline bool batch_line_is_bad(const batch_line *l) {
    return l->kind >= BATCH_TOO_LONG;
}
/* Of bytes of any length. Against accidents, not against somebody who wants two texts with the same hash. */
uint64_t batch_hash(mr_str s);
/* Appends the custom_id as JSON; "null" where there is none. false: no memory. */
MR_MUST_USE bool batch_line_put_id(const mr_batch_input *in, const batch_line *l, mr_text_buf *out);
/* The line with this number, or NULL. */
batch_line *batch_input_find(const mr_batch_input *in, uint32_t number);
/* The order to run the lines in: indices of the lines that are not done. Wrong lines come first. Prompts with equal
 * beginnings stand together, for the prefix cache. The caller frees the array with mr_free. */
MR_MUST_USE mr_status batch_input_order(const mr_batch_input *in, uint32_t **out_order, uint32_t *out_n, mr_err *err);

/* batch_input_file.c: reads the file into data, and sets n_bytes and seen. in is {0}. */
MR_MUST_USE mr_status batch_input_read(const char *path, mr_batch_input *in, mr_err *err);

/* batch_json.c: the value of a member of the JSON object that begins the text. Only brackets and strings are looked at,
 * so a member may be found in text that is not valid JSON. false: there is no such member. */
bool batch_json_member(mr_str object, const char *key, mr_str *out_value);

#endif
