/* Runs a fuzz target over the given files, or over all files of its corpus. The build defines MR_FUZZ_TARGET and
 * MR_FUZZ_CORPUS. Fails if there is no file. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

/* Copies the file into memory of exactly its size, so that a sanitizer detects reads behind the end. */
static int replay_file(const char *path) {
    int result = 1;
    uint8_t *data = NULL;
    long size;
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET) != 0)
        goto out;
    data = malloc(size ? (size_t)size : 1);
    if (!data || fread(data, 1, (size_t)size, f) != (size_t)size)
        goto out;
    result = MR_FUZZ_TARGET(data, (size_t)size);
out:
    if (result)
        fprintf(stderr, "%s: cannot be read, or the target returned %d\n", path, result);
    free(data);
    if (f)
        fclose(f);
    return result;
}

static int replay_directory(const char *path, int *n_files) {
    int result = 0;
    DIR *dir = opendir(path);
    if (!dir) {
        fprintf(stderr, "%s: no such directory\n", path);
        return 1;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char file[4096];
        if (e->d_name[0] == '.')
            continue;
        if (snprintf(file, sizeof file, "%s/%s", path, e->d_name) >= (int)sizeof file)
            result = 1;
        else
            result |= replay_file(file);
        ++*n_files;
    }
    closedir(dir);
    return result;
}

int main(int argc, char **argv) {
    int result = 0, n_files = argc - 1;
    for (int i = 1; i < argc; i++)
        result |= replay_file(argv[i]);
    if (argc == 1)
        result = replay_directory(MR_FUZZ_CORPUS, &n_files);
    printf("%d files\n", n_files);
    return result || n_files == 0;
}
