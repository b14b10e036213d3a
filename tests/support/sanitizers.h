/* tests/support/sanitizers.h - MR_TEST_ASAN and MR_TEST_TSAN: 1 in builds with AddressSanitizer or ThreadSanitizer, of
 * gcc or clang, else 0. Also for C++. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_SANITIZERS_H
#define MR_TESTS_SUPPORT_SANITIZERS_H

#if defined(__has_feature) /* clang */
#define MR_TEST_ASAN __has_feature(address_sanitizer)
#define MR_TEST_TSAN __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define MR_TEST_ASAN 1
#define MR_TEST_TSAN 0
#elif defined(__SANITIZE_THREAD__)
#define MR_TEST_ASAN 0
#define MR_TEST_TSAN 1
#else
#define MR_TEST_ASAN 0
#define MR_TEST_TSAN 0
#endif

#endif
