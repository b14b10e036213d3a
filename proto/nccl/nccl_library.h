/* proto/nccl/nccl_library.h - the functions of NCCL that links call, as a table. The library is loaded at run time, so
 * that one program runs with and without it, and no header of it is needed to build. Tests have a table of their own
 * (tests/cuda_emulation/fake_nccl.h).
 * Names, types and numbers are those of NCCL 2.18; later versions take the same structures.
 * Threads: as NCCL's functions. The table is constant once it is loaded. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_NCCL_NCCL_LIBRARY_H
#define MR_PROTO_NCCL_NCCL_LIBRARY_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { NCCL_NEEDED_VERSION = 21800 }; /* as get_version counts: 10000 * major + 100 * minor + patch */

typedef int nccl_result; /* ncclResult_t */
typedef int nccl_type;   /* ncclDataType_t */
typedef struct ncclComm *nccl_comm;
typedef struct CUstream_st *nccl_stream;
enum { NCCL_OK = 0, NCCL_SYSTEM_ERROR = 2, NCCL_INVALID_ARGUMENT = 4, NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7 };
enum { NCCL_INT8 = 0 };

typedef struct nccl_id { /* ncclUniqueId */
    char internal[128];
} nccl_id;

/* The first members of ncclConfig_t, which are those of 2.18. The library reads as many bytes as size says. */
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
    int cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
} nccl_config;
enum { NCCL_CONFIG_MAGIC = (int)0xcafebeef, NCCL_NOT_SET = INT_MIN };

typedef struct nccl_library {
#define FUNCTION(member, symbol, ...) nccl_result (*member)(__VA_ARGS__);
#include "proto/nccl/nccl_library.def"
#undef FUNCTION
    const char *(*get_error_string)(nccl_result result);
    int version;
} nccl_library;

/* Loads the library, looks up every function, and asks for the version. Calls after the first return the same.
 * MR_E_UNSUPPORTED with a hint: there is no library, or it is too old. Thread-safe. */
MR_MUST_USE mr_status nccl_library_load(const nccl_library **out, mr_err *err);
/* The same for the library of this name, each time anew. */
MR_MUST_USE mr_status nccl_library_open(const char *name, nccl_library *out, mr_err *err);

#endif
