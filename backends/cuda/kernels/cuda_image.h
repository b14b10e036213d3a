/* backends/cuda/kernels/cuda_image.h - the compiled kernels, which are a part of the program.
 * nvcc makes one image of each .cu file. An image holds the machine code for every architecture of
 * CMAKE_CUDA_ARCHITECTURES, and PTX, which the driver translates for newer GPUs. The driver's function for images is
 * cuModuleLoadData; each image becomes a module of its own.
 * MILLRACE_WITH_CUDA is defined for targets that link mr_cuda_images if there are images.
 * Threads: the list is constant. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_IMAGE_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_IMAGE_H

typedef struct cuda_image {
    const char *name; /* of the file, without .cu */
    const void *data; /* a fatbin */
} cuda_image;

/* Ends with an image whose name and data are NULL. Without a CUDA toolkit, this is the only one. */
extern const cuda_image mr_cuda_images[];

#endif
