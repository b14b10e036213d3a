/* worker/files/file_cache.c - reads and writes the two files of the block cache; the header describes their format.
 * Sealing has a thread of its own, because fdatasync of many blocks takes seconds. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/files/file_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum {
    MAGIC = 0x3242524d, /* "MRB2" */
    AT_MAGIC = 0,
    AT_BLOCK_BYTES = 4,
    AT_FILE_BYTES = 8,
    AT_DIGEST = 16,
    AT_SEALED = 24,
    HEADER_BYTES = 64,
    SHOWN_BYTES = 200, /* most bytes of a path in an error text */
};

struct mr_file_cache {
    uint64_t file_bytes, digest, n_blocks;
    char *path, *list_path;
    int fd, list_fd;
    mr_file_hash *listed; /* [n_blocks]: the list as read at open, plus the blocks put since */
    uint8_t *in_doubt;    /* [n_blocks]: listed, perhaps not written to the disk, and not hashed yet */
    uint8_t *block;       /* buffer to hash a block in doubt */
    mr_thread *sealer;    /* NULL: no sealing is under way. The fields below are the result of the last sealing. */
    atomic_bool sealed;
    uint64_t changed; /* the modification time that sealing notes in the list */
    mr_status seal_status;
    mr_err seal_err;
};

static mr_status failed(const mr_file_cache *c, const char *what, mr_err *err) {
    const char *hint = errno == ENOSPC || errno == EDQUOT ? "; hint: --cache-dir names another folder" : "";
    return mr_err_set(err, MR_E_IO, "%.*s cannot be %s: %s%s", SHOWN_BYTES, c->path, what, strerror(errno), hint);
}

/* Reads or writes all bytes. A read beyond the end of the file fails. */
static bool move_all(int fd, bool writes, void *data, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = writes ? pwrite(fd, (char *)data + done, bytes - done, (off_t)(at + done))
                           : pread(fd, (char *)data + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n < 0 ? errno : EIO;
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

/* The modification time in nanoseconds; 0: not known. */
static uint64_t changed_at(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 ? (uint64_t)st.st_mtim.tv_sec * MR_NS_PER_S + (uint64_t)st.st_mtim.tv_nsec : 0;
}

static bool write_header(mr_file_cache *c, uint64_t sealed) {
    uint8_t header[HEADER_BYTES] = {0};
    mr_store_le32(header + AT_MAGIC, MAGIC);
    mr_store_le32(header + AT_BLOCK_BYTES, MR_FILE_BLOCK_BYTES);
    mr_store_le64(header + AT_FILE_BYTES, c->file_bytes);
    mr_store_le64(header + AT_DIGEST, c->digest);
    mr_store_le64(header + AT_SEALED, sealed);
    return move_all(c->list_fd, true, header, sizeof header, 0);
}

/* Opens one of the two files. A new file has the full size and reads as zeros. */
static mr_status open_file(mr_file_cache *c, const char *path, uint64_t bytes, int *out_fd, mr_err *err) {
    struct stat st;
    *out_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*out_fd < 0 || fstat(*out_fd, &st) != 0)
        return failed(c, "opened", err);
    if (st.st_size == 0 && ftruncate(*out_fd, (off_t)bytes) == 0)
        return MR_OK;
    if (st.st_size == 0)
        return failed(c, "made", err);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes)
        return mr_err_set(err, MR_E_IO, "%.*s is no file of %" PRIu64 " bytes; hint: remove it", SHOWN_BYTES, path,
                          bytes);
    return MR_OK;
}

/* The offset of the doubt bytes in the list file. */
static uint64_t doubts_at(const mr_file_cache *c) {
    return HEADER_BYTES + c->n_blocks * sizeof *c->listed;
}

static mr_status read_list(mr_file_cache *c, mr_err *err) {
    uint8_t header[HEADER_BYTES];
    uint64_t sealed = 0;
    if (!move_all(c->list_fd, false, header, sizeof header, 0) ||
        !move_all(c->list_fd, false, c->listed, (size_t)c->n_blocks * sizeof *c->listed, HEADER_BYTES))
        return failed(c, "read", err);
    if (mr_load_le32(header + AT_MAGIC) == MAGIC && mr_load_le32(header + AT_BLOCK_BYTES) == MR_FILE_BLOCK_BYTES &&
        mr_load_le64(header + AT_FILE_BYTES) == c->file_bytes && mr_load_le64(header + AT_DIGEST) == c->digest)
        sealed = mr_load_le64(header + AT_SEALED);
    else if (!write_header(c, 0))
        return failed(c, "written", err);
    if (sealed != 0 && sealed == changed_at(c->fd))
        return move_all(c->list_fd, false, c->in_doubt, (size_t)c->n_blocks, doubts_at(c)) ? MR_OK
                                                                                           : failed(c, "read", err);
    for (uint64_t i = 0; i < c->n_blocks; i++)
        c->in_doubt[i] = mr_file_hash_known(&c->listed[i]);
    return MR_OK;
}

static char *name_file(const char *folder, uint64_t file_bytes, uint64_t digest, const char *ending) {
    size_t size = strlen(folder) + 64;
    char *path = mr_alloc(size);
    if (path)
        snprintf(path, size, "%s/%016" PRIx64 "-%" PRIu64 ".%s", folder, digest, file_bytes, ending);
    return path;
}

char *mr_file_cache_name(const char *folder, uint64_t file_bytes, uint64_t digest) {
    return name_file(folder, file_bytes, digest, "gguf");
}

mr_status mr_file_cache_open(const char *folder, uint64_t file_bytes, uint64_t digest, mr_file_cache **out,
                             mr_err *err) {
    mr_file_cache *c = mr_alloc(sizeof *c);
    if (!c)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a cache");
    *c = (mr_file_cache){
        .file_bytes = file_bytes, .digest = digest, .n_blocks = mr_file_n_blocks(file_bytes), .fd = -1, .list_fd = -1};
    c->path = mr_file_cache_name(folder, file_bytes, digest);
    c->list_path = name_file(folder, file_bytes, digest, "blocks");
    c->listed = mr_alloc_array((size_t)c->n_blocks, sizeof *c->listed);
    c->in_doubt = mr_alloc_array((size_t)c->n_blocks, sizeof *c->in_doubt);
    c->block = mr_alloc(MR_FILE_BLOCK_BYTES);
    mr_status status =
        c->path && c->list_path && c->listed && c->in_doubt && c->block
            ? open_file(c, c->path, file_bytes, &c->fd, err)
            : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a cache of %" PRIu64 " blocks", c->n_blocks);
    if (status == MR_OK)
        status = open_file(c, c->list_path, doubts_at(c) + c->n_blocks, &c->list_fd, err);
    if (status == MR_OK)
        status = read_list(c, err);
    if (status != MR_OK) {
        mr_file_cache_close(c);
        return status;
    }
    *out = c;
    return MR_OK;
}

void mr_file_cache_close(mr_file_cache *c) {
    if (!c)
        return;
    mr_thread_join(c->sealer);
    if (c->fd >= 0)
        close(c->fd);
    if (c->list_fd >= 0)
        close(c->list_fd);
    mr_free(c->path);
    mr_free(c->list_path);
    mr_free(c->listed);
    mr_free(c->in_doubt);
    mr_free(c->block);
    mr_free(c);
}

const char *mr_file_cache_path(const mr_file_cache *c) {
    return c->path;
}

/* Hashes a block in doubt, and removes the block from the list if the hash differs. */
static void look_at(mr_file_cache *c, uint64_t idx) {
    mr_file_hash found = {{0}};
    size_t bytes = mr_file_block_bytes(c->file_bytes, idx);
    if (move_all(c->fd, false, c->block, bytes, mr_file_block_at(idx)))
        mr_file_hash_of(c->block, bytes, &found);
    if (!mr_file_hash_equal(&found, &c->listed[idx]))
        c->listed[idx] = (mr_file_hash){{0}};
    c->in_doubt[idx] = false;
}

bool mr_file_cache_has(mr_file_cache *c, uint64_t idx, const mr_file_hash *hash) {
    if (c->in_doubt[idx])
        look_at(c, idx);
    return mr_file_hash_equal(&c->listed[idx], hash);
}

bool mr_file_cache_lists(const mr_file_cache *c, uint64_t idx) {
    return mr_file_hash_known(&c->listed[idx]);
}

mr_status mr_file_cache_check_room(const mr_file_cache *c, uint64_t bytes, mr_err *err) {
    struct statvfs fs;
    if (fstatvfs(c->fd, &fs) != 0)
        return MR_OK; /* if there is no room, a later write fails */
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (room >= bytes)
        return MR_OK;
    return mr_err_set(err, MR_E_IO,
                      "%.*s needs %" PRIu64 " bytes more, but its file system has %" PRIu64
                      " left; hint: --cache-dir names another folder",
                      SHOWN_BYTES, c->path, bytes, room);
}

mr_status mr_file_cache_put(mr_file_cache *c, uint64_t idx, const void *data, const mr_file_hash *hash, mr_err *err) {
    mr_file_hash copy = *hash;
    size_t bytes = mr_file_block_bytes(c->file_bytes, idx);
    if (!move_all(c->fd, true, (void *)(uintptr_t)data, bytes, mr_file_block_at(idx)) ||
        !move_all(c->list_fd, true, &copy, sizeof copy, HEADER_BYTES + idx * sizeof copy))
        return failed(c, "written", err);
    c->listed[idx] = *hash;
    c->in_doubt[idx] = false;
    return MR_OK;
}

/* The thread of a sealing. The thread reads c->changed and fields of c that never change. The thread writes
 * seal_status, seal_err and, last, sealed. */
static void write_to_disk(void *ctx) {
    mr_file_cache *c = ctx;
    bool written = fdatasync(c->fd) == 0 && fdatasync(c->list_fd) == 0 && write_header(c, c->changed);
    c->seal_status = written ? MR_OK : failed(c, "written", &c->seal_err);
    atomic_store(&c->sealed, true);
}

/* Waits for a sealing under way. Returns the result of the last sealing. */
static mr_status end_sealing(mr_file_cache *c, mr_err *err) {
    mr_thread_join(c->sealer);
    c->sealer = NULL;
    return c->seal_status == MR_OK ? MR_OK : mr_err_set(err, c->seal_status, "%s", c->seal_err.text);
}

mr_status mr_file_cache_seal(mr_file_cache *c, mr_err *err) {
    mr_status status = end_sealing(c, err);
    if (status != MR_OK)
        return status;
    /* Read before the sync: a later write changes the time, and so puts all blocks in doubt. */
    c->changed = changed_at(c->fd);
    if (!move_all(c->list_fd, true, c->in_doubt, (size_t)c->n_blocks, doubts_at(c)))
        return failed(c, "written", err);
    atomic_store(&c->sealed, false);
    return mr_thread_create("seal", 0, write_to_disk, c, &c->sealer, err);
}

mr_status mr_file_cache_sealed(mr_file_cache *c, bool *out_done, mr_err *err) {
    *out_done = !c->sealer || atomic_load(&c->sealed);
    return *out_done ? end_sealing(c, err) : MR_OK;
}
