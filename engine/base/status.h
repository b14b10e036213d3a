/* engine/base/status.h - one status for every call that can fail, and a fixed-size text that says what went wrong. The
 * range of a code says what is broken. The caller's reaction follows from the range.
 * Threads: an mr_err belongs to one caller. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_STATUS_H
#define MR_ENGINE_BASE_STATUS_H

#include <stdarg.h>

#define MR_MUST_USE __attribute__((warn_unused_result))
#define MR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

typedef enum mr_status {
    MR_OK = 0,
    /* The request is broken: report it to the client or caller, go on with everything else. */
    MR_E_INVALID = 100, /* an argument, option or value is out of its range */
    MR_E_TOO_LONG,      /* does not fit the context or a stated limit */
    MR_E_UNSUPPORTED,   /* well formed, but this program does not do it */
    MR_E_NOT_FOUND,     /* a file, tensor or key is missing */
    MR_E_FORMAT,        /* the content of a file is malformed */
    MR_E_CANCELLED,     /* the operation was cancelled */
    MR_E_IO,            /* reading or writing failed */
    MR_E_NO_MEMORY,     /* the system or a budget has no memory left */
    MR_E_BUSY,          /* too much is queued already; a later try may succeed */
    MR_E_UNAVAILABLE,   /* not ready yet, or not any more */
    /* One sequence is broken: end it, go on with the other sequences. */
    MR_E_NUMERICS = 200, /* a value that is not a finite number appeared in its rows */
    /* A peer is broken: drop it and plan again. */
    MR_E_TIMEOUT = 300, /* the peer did not answer before the deadline */
    MR_E_PEER_LOST,     /* the connection to the peer is gone */
    MR_E_PROTOCOL,      /* the peer sent malformed data */
    /* This process is broken: shut down in good order. */
    MR_E_INTERNAL = 400, /* an invariant of this program does not hold */
    MR_E_DEVICE,         /* a device reported a permanent error */
} mr_status;

enum { MR_ERR_TEXT_BYTES = 512 };

/* The text states facts in lower case, with numbers and names, and then "hint:" where a hint helps. */
typedef struct mr_err {
    mr_status status;
    char text[MR_ERR_TEXT_BYTES];
} mr_err;

/* Writes status and text into err, which may be NULL, and returns status. Text that does not fit is cut. */
mr_status mr_err_set(mr_err *err, mr_status status, const char *fmt, ...) MR_PRINTF(3, 4);
mr_status mr_err_setv(mr_err *err, mr_status status, const char *fmt, va_list args);

/* Puts "where: " in front of the text in err. Returns the status in err. */
mr_status mr_err_prefix(mr_err *err, const char *fmt, ...) MR_PRINTF(2, 3);

/* A short name such as "no memory"; never NULL. */
const char *mr_status_name(mr_status status);

/* Ends the process. Only for invariants of this program, never for data from outside. */
#define MR_ASSERT(cond) ((cond) ? (void)0 : mr_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void mr_assert_failed(const char *cond, const char *file, int line);

#endif
