/* tests/cuda_build/nccl_check.c - compares proto/nccl/nccl_library.h with the header of NCCL: it compiles only if
 * types, sizes, numbers and the parameters of all functions are the same. A new number or structure of nccl_library.h
 * needs a line here; a new function does not. */
// SPDX-License-Identifier: Apache-2.0
#include <nccl.h>
#include <stddef.h>

#include "proto/nccl/nccl_library.h"

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
SAME_SIZE(nccl_result, ncclResult_t);
SAME_SIZE(nccl_type, ncclDataType_t);
SAME_SIZE(nccl_id, ncclUniqueId);
SAME_SIZE(((nccl_id *)0)->internal, ((ncclUniqueId *)0)->internal);

#define SAME_TYPE(ours, theirs) _Static_assert(__builtin_types_compatible_p(ours, theirs), #ours)
SAME_TYPE(nccl_comm, ncclComm_t);
SAME_TYPE(nccl_stream, cudaStream_t);

#define SAME_NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
SAME_NUMBER(NCCL_OK, ncclSuccess);
SAME_NUMBER(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME_NUMBER(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME_NUMBER(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME_NUMBER(NCCL_IN_PROGRESS, ncclInProgress);
SAME_NUMBER(NCCL_INT8, ncclInt8);
SAME_NUMBER(NCCL_NOT_SET, NCCL_CONFIG_UNDEF_INT);
_Static_assert(NCCL_VERSION_CODE >= NCCL_NEEDED_VERSION, "the header is older than what links need");
_Static_assert(NCCL_VERSION(2, 18, 0) == NCCL_NEEDED_VERSION, "a version is counted as the library counts");

/* The members are the first ones of the library's structure, which later versions only make longer. */
#define SAME_MEMBER(ours, theirs)                                                                                      \
    _Static_assert(offsetof(nccl_config, ours) == offsetof(ncclConfig_t, theirs), #ours);                              \
    SAME_SIZE(((nccl_config *)0)->ours, ((ncclConfig_t *)0)->theirs)
SAME_MEMBER(size, size);
SAME_MEMBER(magic, magic);
SAME_MEMBER(version, version);
SAME_MEMBER(blocking, blocking);
SAME_MEMBER(cga_cluster_size, cgaClusterSize);
SAME_MEMBER(min_ctas, minCTAs);
SAME_MEMBER(max_ctas, maxCTAs);
SAME_MEMBER(net_name, netName);
SAME_MEMBER(split_share, splitShare);

/* The list of functions once more, with the types of the header for those that are integers or structures here. */
#define nccl_result ncclResult_t
#define nccl_type ncclDataType_t
#define nccl_id ncclUniqueId
#define nccl_config ncclConfig_t
#define FUNCTION(member, symbol, ...) SAME_TYPE(__typeof__(&symbol), ncclResult_t (*)(__VA_ARGS__));
#include "proto/nccl/nccl_library.def"
SAME_TYPE(__typeof__(&ncclGetErrorString), const char *(*)(ncclResult_t));
