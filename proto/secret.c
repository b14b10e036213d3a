/* proto/secret.c - reads the secret of a launch and derives keys from it, with the HMAC of libnettle. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/text/text_file.h"

enum { DIGITS = 2 * MR_SECRET_BYTES };

static int hex_value(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads the digits; white space may follow. */
static bool digits_read(const char *text, mr_secret *out) {
    mr_secret s = {.is_set = true};
    if (strlen(text) < DIGITS || strspn(text + DIGITS, " \t\r\n") != strlen(text + DIGITS))
        return false;
    for (int i = 0; i < DIGITS; i++) {
        int digit = hex_value(text[i]);
        if (digit < 0)
            return false;
        s.bytes[i / 2] = (uint8_t)(s.bytes[i / 2] << 4 | digit);
    }
    *out = s;
    return true;
}

static mr_status file_read(const char *path, mr_secret *out, mr_err *err) {
    char text[DIGITS + 16] = "";
    const char *other = NULL;
    ssize_t n = -1;
    struct stat st;
    mr_status status = MR_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not stop the start */
    if (fd < 0 || fstat(fd, &st) != 0)
        status = mr_err_set(err, MR_E_IO,
                            "MILLRACE_SECRET_FILE %.200s cannot be read: %s; hint: the file has to be "
                            "on every host",
                            path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        status = mr_err_set(err, MR_E_INVALID, "MILLRACE_SECRET_FILE %.200s is not a file", path);
    else if ((st.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        status = mr_err_set(err, MR_E_INVALID,
                            "MILLRACE_SECRET_FILE %.200s has mode %03o, so that others may use it; hint: chmod 600",
                            path, (unsigned)(st.st_mode & 0777));
    else if ((n = read(fd, text, sizeof text - 1)) < 0)
        status = mr_err_set(err, MR_E_IO, "MILLRACE_SECRET_FILE %.200s cannot be read: %s", path, strerror(errno));
    else if ((other = mr_text_other_encoding((mr_str){text, (size_t)n})))
        status = mr_err_set(err, MR_E_INVALID, "MILLRACE_SECRET_FILE %.200s is text in %s; hint: save it as UTF-8",
                            path, other);
    else if (!digits_read(mr_text_skip_mark((mr_str){text, (size_t)n}).data, out))
        status =
            mr_err_set(err, MR_E_INVALID,
                       "MILLRACE_SECRET_FILE %.200s does not have %d hexadecimal digits; hint: openssl rand -hex 32",
                       path, DIGITS);
    if (fd >= 0)
        close(fd);
    return status;
}

mr_status mr_secret_find(mr_secret *out, mr_err *err) {
    const char *path = getenv("MILLRACE_SECRET_FILE"), *text = getenv("MILLRACE_SECRET");
    *out = (mr_secret){.is_set = false};
    if (path && path[0])
        return file_read(path, out, err);
    if (!text || !text[0] || digits_read(text, out))
        return MR_OK;
    return mr_err_set(
        err, MR_E_INVALID,
        "MILLRACE_SECRET has %zu characters that are not %d hexadecimal digits; hint: openssl rand -hex 32",
        strlen(text), DIGITS);
}

mr_secret mr_secret_derive(const mr_secret *secret, const char *label, const uint8_t *data, size_t n) {
    mr_secret out = {.is_set = secret->is_set};
    struct hmac_sha256_ctx hmac;
    hmac_sha256_set_key(&hmac, MR_SECRET_BYTES, secret->bytes);
    hmac_sha256_update(&hmac, strlen(label) + 1, (const uint8_t *)label);
    hmac_sha256_update(&hmac, n, data);
    hmac_sha256_digest(&hmac, MR_SECRET_BYTES, out.bytes);
    return out;
}

bool mr_secret_same_bytes(const uint8_t *a, const uint8_t *b, size_t n) {
    return memeql_sec(a, b, n) != 0;
}
