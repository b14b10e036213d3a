/* tests/fuzz/fuzz.h - the fuzz targets. Each target takes any bytes, returns 0, and ends the process only if it finds
 * a bug in Millrace. fuzz_main.c gives a target to libFuzzer. replay_main.c runs a target over the committed corpus as
 * a test. The corpus files named found-* were found by libFuzzer: each reaches code that the other files do not reach.
 * A new target is a function here, a file fuzz_NAME.c, files in corpus/NAME, and one line in CMakeLists.txt. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_FUZZ_FUZZ_H
#define MR_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Opens the bytes as a model file, walks keys, arrays and tensors, and reads the model's information. */
int mr_fuzz_gguf(const uint8_t *data, size_t size);
/* Sends the bytes to the API: the first byte selects the endpoint, the other bytes are the body. */
int mr_fuzz_api(const uint8_t *data, size_t size);
/* Opens the bytes as a frame, as the fields of a frame with a right checksum, and as messages of a link. */
int mr_fuzz_frame(const uint8_t *data, size_t size);
/* Unpacks the bytes as a message of one kind and uses a message that passes the checks. */
int mr_fuzz_messages(const uint8_t *data, size_t size);
/* Reads the bytes as a request file, with a result file behind the first empty line, and as an upload. */
int mr_fuzz_batch(const uint8_t *data, size_t size);
/* Parses the bytes as the answer of a model, in pieces of several sizes. The result must not depend on the sizes. */
int mr_fuzz_chat_output(const uint8_t *data, size_t size);
/* Compiles the bytes as a grammar and as a packed grammar, and follows the masks of an accepted grammar. */
int mr_fuzz_gbnf(const uint8_t *data, size_t size);
/* Compiles the bytes as a JSON schema. The rules of an accepted schema must parse as a grammar. */
int mr_fuzz_schema(const uint8_t *data, size_t size);
/* Parses the bytes as a chat template, and renders it. */
int mr_fuzz_jinja(const uint8_t *data, size_t size);
/* Reads the bytes as a profile of experts or neurons, and orders the counts of its layers. */
int mr_fuzz_profile(const uint8_t *data, size_t size);

#endif
