/* backends/cuda/kernels/cuda_image.c - takes the files that nvcc made into the program. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_image.h"

#include <stddef.h>

/* cuda_images.def is made by CMake: IMAGE(name, path) for each file. */
#define IMAGE(name, path)                                                                                              \
    extern const char cuda_image_##name[] __attribute__((visibility("hidden")));                                       \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".balign 16\n"                                                                                             \
            ".global cuda_image_" #name "\n"                                                                           \
            ".hidden cuda_image_" #name "\n"                                                                           \
            "cuda_image_" #name ":\n"                                                                                  \
            ".incbin \"" path "\"\n"                                                                                   \
            ".popsection\n");
#include "backends/cuda/kernels/cuda_images.def"
#undef IMAGE

const cuda_image mr_cuda_images[] = {
#define IMAGE(name, path) {#name, cuda_image_##name},
#include "backends/cuda/kernels/cuda_images.def"
#undef IMAGE
    {NULL, NULL}};
