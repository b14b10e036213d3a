/* engine/base/cache_dir.c - chooses the cache folder by the XDG Base Directory Specification, and makes it. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/cache_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"

/* The specification says that relative paths in these variables are to be ignored. */
static const char *absolute_folder(const char *variable) {
    const char *path = getenv(variable);
    return path && path[0] == '/' ? path : NULL;
}

static char *choose(const char *wish) {
    static const char APP[] = "/millrace", HIDDEN[] = "/.cache/millrace";
    const char *base = absolute_folder("XDG_CACHE_HOME"), *tail = APP;
    if (wish)
        return mr_strdup(wish);
    if (!base) {
        base = absolute_folder("HOME");
        tail = HIDDEN;
    }
    size_t size = base ? strlen(base) + strlen(tail) + 1 : 0;
    char *path = base ? mr_alloc(size) : NULL;
    if (path)
        snprintf(path, size, "%s%s", base, tail);
    return path;
}

static mr_status make_one(const char *path, mr_err *err) {
    struct stat st;
    if (mkdir(path, 0700) == 0)
        return MR_OK;
    int why = errno;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return MR_OK;
    return mr_err_set(err, MR_E_IO, "the cache folder %.200s cannot be made: %s; hint: name another with --cache-dir",
                      path, strerror(why));
}

mr_status mr_cache_dir_make(const char *wish, char **out_path, mr_err *err) {
    if (!wish && !absolute_folder("XDG_CACHE_HOME") && !absolute_folder("HOME"))
        return mr_err_set(err, MR_E_NOT_FOUND, "no folder for the cache: HOME is not set; hint: set --cache-dir");
    char *path = choose(wish);
    if (!path)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a path");
    mr_status status = MR_OK;
    for (char *slash = path[0] ? strchr(path + 1, '/') : NULL; slash && status == MR_OK;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        status = make_one(path, err);
        *slash = '/';
    }
    if (status == MR_OK)
        status = make_one(path, err);
    if (status != MR_OK) {
        mr_free(path);
        return status;
    }
    *out_path = path;
    return MR_OK;
}
