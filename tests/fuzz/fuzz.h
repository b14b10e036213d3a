/* tests/fuzz/fuzz.h - the fuzz targets. Each takes any bytes, returns 0, and ends the process only for a bug of ours.
 * fuzz_main.c gives a target to libFuzzer; replay_main.c runs it over the committed corpus as a test.
 * A new target is a function here, a file fuzz_NAME.c, files in corpus/NAME, and one line in CMakeLists.txt. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_FUZZ_FUZZ_H
#define MR_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Opens the bytes as a model file, walks keys, arrays and tensors, and reads the model's information. */
int mr_fuzz_gguf(const uint8_t *data, size_t size);

#endif
