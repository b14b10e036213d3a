/* The entry point for libFuzzer. The build defines MR_FUZZ_TARGET. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return MR_FUZZ_TARGET(data, size);
}
