/* tests/support/test.h - a test in C includes it in place of cmocka.h: cmocka, the headers that cmocka needs, and
 * checks of an mr_status that print the text of the mr_err when they fail.
 *
 *     mr_err err = {0};
 *     expect_ok(mr_gguf_open(path, &file, &err), &err);
 *     expect_fails(mr_gguf_open("none", &file, &err), MR_E_NOT_FOUND, &err, "none");
 *
 * Each check evaluates its call once. Threads: the main thread of a test, as with cmocka's own assertions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_TEST_H
#define MR_TESTS_SUPPORT_TEST_H

#include <setjmp.h> /* this header and the next three: cmocka.h needs them and does not include them */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/status.h"

/* The call returns MR_OK. err: the mr_err that the call writes into. */
#define expect_ok(call, err)                                                                                           \
    do {                                                                                                               \
        mr_status expect_got = (call);                                                                                 \
        if (expect_got != MR_OK)                                                                                       \
            fail_msg("%s: %s: %s", #call, mr_status_name(expect_got), (err)->text);                                    \
    } while (0)

/* The text contains the words. */
#define expect_says(whole, words)                                                                                      \
    do {                                                                                                               \
        const char *expect_whole = (whole), *expect_words = (words);                                                   \
        if (!strstr(expect_whole, expect_words))                                                                       \
            fail_msg("\"%s\" does not say \"%s\"", expect_whole, expect_words);                                        \
    } while (0)

/* The call returns the status want, and the text of the error contains the words. */
#define expect_fails(call, want, err, words)                                                                           \
    do {                                                                                                               \
        mr_status expect_got = (call);                                                                                 \
        if (expect_got != (want))                                                                                      \
            fail_msg("%s: %s, expected %s: %s", #call, mr_status_name(expect_got), mr_status_name(want),               \
                     expect_got == MR_OK ? "" : (err)->text);                                                          \
        expect_says((err)->text, words);                                                                               \
    } while (0)

#endif
