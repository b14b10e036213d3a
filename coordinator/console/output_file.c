// SPDX-License-Identifier: Apache-2.0
#include "coordinator/console/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/mem.h"

/* The path that the signal handler removes; NULL: none. Changed only while the signals are blocked. */
static const char *volatile to_remove;

static const int SIGNALS[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_SIGNALS = sizeof SIGNALS / sizeof SIGNALS[0] };

/* SA_RESETHAND has reset the handler, so raising the signal again has the default action and ends the program. */
static void remove_and_end(int signal_number) {
    const char *path = to_remove;
    if (path)
        unlink(path);
    raise(signal_number);
}

static void block_signals(sigset_t *old) {
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < N_SIGNALS; i++)
        sigaddset(&set, SIGNALS[i]);
    pthread_sigmask(SIG_BLOCK, &set, old);
}

static void set_to_remove(const char *path) {
    sigset_t old;
    struct sigaction action = {.sa_handler = remove_and_end, .sa_flags = (int)SA_RESETHAND}, was;
    block_signals(&old);
    /* Signals that the program was told to ignore (nohup) stay ignored. */
    for (int i = 0; i < N_SIGNALS && path; i++)
        if (sigaction(SIGNALS[i], NULL, &was) == 0 && was.sa_handler == SIG_DFL)
            sigaction(SIGNALS[i], &action, NULL);
    to_remove = path;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static mr_status io_error(const mr_output_file *f, int error, mr_err *err) {
    return mr_err_set(err, MR_E_IO, "%.160s cannot be written: %s", f->path, strerror(error));
}

static mr_status open_directly(mr_output_file *f, mr_err *err) {
    f->fd = open(f->path, O_WRONLY | O_CLOEXEC);
    f->open = f->fd >= 0;
    return f->open ? MR_OK : io_error(f, errno, err);
}

/* A new file beside the place; it gets the mode of the file that it replaces, or that of any new file. */
static mr_status open_temporary(mr_output_file *f, const struct stat *existing, mr_err *err) {
    mode_t mask = umask(0);
    umask(mask);
    size_t bytes = strlen(f->place) + sizeof ".XXXXXX";
    f->temporary = mr_alloc(bytes);
    if (!f->temporary)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a path");
    snprintf(f->temporary, bytes, "%s.XXXXXX", f->place);
    sigset_t old;
    block_signals(&old); /* a signal between the two calls would leave the file */
    f->fd = mkostemp(f->temporary, O_CLOEXEC);
    f->open = f->fd >= 0;
    int error = errno;
    if (f->open)
        set_to_remove(f->temporary);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!f->open)
        return io_error(f, error, err);
    if (fchmod(f->fd, existing ? existing->st_mode & 0777 : 0666 & ~mask) != 0)
        return io_error(f, errno, err);
    return MR_OK;
}

static mr_status reserve(const mr_output_file *f, size_t bytes, mr_err *err) {
    if (bytes == 0 || bytes > INT64_MAX || fallocate(f->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0)
        return MR_OK;
    /* Other errors say that the file system cannot reserve. */
    bool full = errno == ENOSPC || errno == EFBIG || errno == EDQUOT;
    return full ? mr_err_set(err, MR_E_IO, "%.160s cannot be written: %zu bytes: %s", f->path, bytes, strerror(errno))
                : MR_OK;
}

mr_status mr_output_file_open(mr_output_file *f, const char *path, size_t expected_bytes, mr_err *err) {
    struct stat st;
    *f = (mr_output_file){.path = path, .fd = -1};
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return io_error(f, EISDIR, err);
    if (exists && !S_ISREG(st.st_mode))
        return open_directly(f, err);
    char *real = exists ? realpath(path, NULL) : NULL;
    f->place = mr_strdup(real ? real : path);
    free(real);
    mr_status status = f->place ? open_temporary(f, exists ? &st : NULL, err)
                                : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a path");
    if (status == MR_OK)
        status = reserve(f, expected_bytes, err);
    if (status != MR_OK)
        mr_output_file_abort(f);
    return status;
}

mr_status mr_output_file_write(mr_output_file *f, const void *data, size_t bytes, mr_err *err) {
    const char *p = data;
    while (bytes > 0) {
        ssize_t n = write(f->fd, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(f, errno, err);
        p += n;
        bytes -= (size_t)n;
    }
    return MR_OK;
}

mr_status mr_output_file_commit(mr_output_file *f, mr_err *err) {
    f->open = false;
    mr_status status = close(f->fd) == 0 || errno == EINTR ? MR_OK : io_error(f, errno, err);
    if (status == MR_OK && f->temporary && rename(f->temporary, f->place) != 0)
        status = io_error(f, errno, err);
    if (status == MR_OK && f->temporary) {
        set_to_remove(NULL);
        mr_free(f->temporary);
        f->temporary = NULL;
    }
    mr_output_file_abort(f);
    return status;
}

void mr_output_file_abort(mr_output_file *f) {
    if (f->open)
        close(f->fd);
    f->open = false;
    if (f->temporary)
        unlink(f->temporary);
    set_to_remove(NULL);
    mr_free(f->temporary);
    mr_free(f->place);
    f->temporary = f->place = NULL;
}
