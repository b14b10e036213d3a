/* engine/gguf/part_files.h - a model file, whole or in parts, as one virtual file. A name that ends in
 * -00002-of-00005.gguf is that of one part of five, as llama.cpp's gguf-split writes them; the parts stand in one
 * folder. Symbolic links are not resolved: the names in Hugging Face's cache are links to files without such names.
 *
 * Part p begins in the virtual file at the sum of the sizes of the parts before it, each rounded up to
 * MR_GGUF_PART_ALIGN. So a part begins at a page, and a block that is sent to another host lies in one part.
 * A host may have some of the parts only. The others are read from a cache: one file with the offsets of the virtual
 * file.
 * Owns:    the descriptors, from open to close.
 * Threads: open and close by one thread; the other functions from any.
 * Errors:  MR_E_NOT_FOUND, MR_E_IO, MR_E_FORMAT. Texts of open and read begin with the path of the part. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GGUF_PART_FILES_H
#define MR_ENGINE_GGUF_PART_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

enum {
    MR_GGUF_PART_ALIGN = 1 << 20,
    MR_GGUF_MAX_PARTS = 512,
};

typedef struct mr_part_file {
    int fd;             /* -1: the part is neither here nor in a cache */
    uint64_t at, bytes; /* in the virtual file */
    uint64_t fd_at;     /* of the part in its file: 0, or `at` in a cache */
} mr_part_file;

/* What is known of a part before it is opened. */
typedef struct mr_part_place {
    uint64_t bytes;
    bool is_here; /* beside the other parts, not in a cache */
} mr_part_place;

typedef struct mr_part_files {
    char *path;           /* that was given to open: of any part */
    int32_t n;            /* 1 for a file that is whole */
    int32_t first, total; /* the number of the first one, and of all parts of the model: 0 and n, but for open_one */
    mr_part_file *parts;
    uint64_t bytes; /* of the virtual file */
} mr_part_files;

/* How many parts the file has by its name: 1 to MR_GGUF_MAX_PARTS. out_idx: which of them it is, from 0. */
int32_t mr_part_files_count(const char *path, int32_t *out_idx);
/* The path of part idx of the file that path is one part of; path itself where the file is whole. mr_free; NULL: no
 * memory. */
char *mr_part_files_path(const char *path, int32_t idx);
/* Puts that path, or the end of a long one, in front of the text of err. */
void mr_part_files_prefix(const char *path, int32_t idx, mr_err *err);
/* Whether part idx of the file is a file on this host. */
bool mr_part_files_exists(const char *path, int32_t idx);
/* Lays parts of these sizes out: writes their offsets to out_at, and returns the bytes of the virtual file. */
uint64_t mr_part_files_layout(const mr_part_place *places, int32_t n, uint64_t *out_at);

/* Opens all parts. */
MR_MUST_USE mr_status mr_part_files_open(const char *path, mr_part_files *out, mr_err *err);
/* Opens the n parts at these places. cache_path: the cache, of the size of the virtual file; NULL: parts that are not
 * here cannot be read. MR_E_IO: a part that is here has another size. MR_E_FORMAT: the cache has another size. */
MR_MUST_USE mr_status mr_part_files_open_places(const char *path, const mr_part_place *places, int32_t n,
                                                const char *cache_path, mr_part_files *out, mr_err *err);
/* Opens one part alone. */
MR_MUST_USE mr_status mr_part_files_open_one(const char *path, int32_t idx, mr_part_files *out, mr_err *err);
void mr_part_files_close(mr_part_files *f);

/* Whether the part in which byte `at` of the virtual file lies can be read. */
bool mr_part_files_has(const mr_part_files *f, uint64_t at);
/* Reads bytes [at, at + bytes) of the virtual file; between parts it has zeros. MR_E_NOT_FOUND: a part can be read
 * nowhere. */
MR_MUST_USE mr_status mr_part_files_read(const mr_part_files *f, uint64_t at, void *out, size_t bytes, mr_err *err);
/* Maps the virtual file for reading: one range of addresses, of which those between parts must not be touched. It stays
 * when f is closed; munmap of f->bytes ends it. */
MR_MUST_USE mr_status mr_part_files_map(const mr_part_files *f, const uint8_t **out_data, mr_err *err);

#endif
