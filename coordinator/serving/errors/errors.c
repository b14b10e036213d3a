/* coordinator/serving/errors/errors.c - makes the table of error kinds, and the types of HTTP statuses, from
 * errors.def. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/errors/errors.h"

#include <stddef.h>

const mr_error_kind mr_error_kinds[MR_ERROR_COUNT] = {
#define MR_ERROR(id, status, code) {status, code},
#include "coordinator/serving/errors/errors.def"
#undef MR_ERROR
};

const char *mr_error_type(int status) {
    switch (status) {
#define MR_ERROR_TYPE(status, type)                                                                                    \
    case status:                                                                                                       \
        return type;
#include "coordinator/serving/errors/errors.def"
#undef MR_ERROR_TYPE
    default:
        return mr_error_type(status < 500 ? 400 : 500);
    }
}
