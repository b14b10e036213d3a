/* tests/fuzz/fuzz.h - the fuzz targets. Each takes any bytes, returns 0, and ends the process only for a bug of ours.
 * fuzz_main.c gives a target to libFuzzer; replay_main.c runs it over the committed corpus as a test.
 * Files of a corpus named found-* are what libFuzzer kept because each reaches code that the others do not.
 * A new target is a function here, a file fuzz_NAME.c, files in corpus/NAME, and one line in CMakeLists.txt. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_FUZZ_FUZZ_H
#define MR_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Opens the bytes as a model file, walks keys, arrays and tensors, and reads the model's information. */
int mr_fuzz_gguf(const uint8_t *data, size_t size);
/* Asks the API for what the bytes are: the first says which endpoint, the rest is the body. */
int mr_fuzz_api(const uint8_t *data, size_t size);
/* Opens the bytes as a frame, as the fields of a frame whose checksum is right, and as the messages of a link. */
int mr_fuzz_frame(const uint8_t *data, size_t size);
/* Unpacks the bytes as a control, tokens or report message, and uses what passes the checks. */
int mr_fuzz_messages(const uint8_t *data, size_t size);
/* Reads the bytes as a batch: lines of requests, what they ask for, and results behind an empty line; and as an
 * upload. */
int mr_fuzz_batch(const uint8_t *data, size_t size);
/* Takes the bytes apart as the answer of a model, in pieces of several sizes, which have to agree. */
int mr_fuzz_chat_output(const uint8_t *data, size_t size);
/* Compiles the bytes as a grammar and as a packed one, and follows the masks of what passes. */
int mr_fuzz_gbnf(const uint8_t *data, size_t size);
/* Compiles the bytes as a JSON schema; whatever rules come of it are a grammar. */
int mr_fuzz_schema(const uint8_t *data, size_t size);
/* Parses the bytes as a chat template, and renders it. */
int mr_fuzz_jinja(const uint8_t *data, size_t size);

#endif
