/* backends/kinds.c - the list of the backends of the product. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/registry.h"

const mr_backend_kind *const mr_backend_kinds[] = {&mr_backend_kind_cpu, &mr_backend_kind_cuda, &mr_backend_kind_blas,
                                                   NULL};
