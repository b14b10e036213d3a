/* worker/lobby/hello.c - collects the hello of this process: from the system, what the CPU computes, and the model
 * file. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/hello.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/kernels.h"
#include "backends/digest/digest.h"
#include "engine/base/cache_dir.h"
#include "engine/base/cores.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/numerics.h"
#include "engine/gguf/gguf_digest.h"
#include "proto/nccl/nccl_carrier.h"
#include "worker/files/file_root.h"

_Static_assert((int)MR_DIGEST_PARTS == (int)MR_MAX_DIGEST_PARTS, "a hello holds the parts of a digest");
_Static_assert((int)MR_GGUF_MAX_PARTS == (int)MR_MAX_FILE_PARTS, "a hello holds the parts of a model");

/* A digest of the control groups of this process. Control groups limit memory beside the memory of the host. */
static uint64_t memory_group(void) {
    char text[4096];
    FILE *f = fopen("/proc/self/cgroup", "r");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    return XXH3_64bits(text, n);
}

/* A missing part is no problem: another rank may have it. */
static mr_status look_at_part(mr_hello *h, const char *path, int32_t idx) {
    Millrace__FilePart *p = &h->parts[idx];
    mr_gguf *g = NULL;
    mr_err ignored;
    mr_status status = mr_gguf_open_part(path, idx, &g, &h->problem);
    if (status != MR_OK)
        return status == MR_E_NOT_FOUND ? MR_OK : status;
    p->bytes = mr_gguf_part_at(g, 0)->bytes;
    p->header_bytes = mr_gguf_part_at(g, 0)->header_bytes;
    mr_gguf_part_digests(g, &p->digest);
    (void)!mr_gguf_get_u32(g, "split.tensors.count", &p->n_tensors, &ignored);
    mr_gguf_close(g);
    return MR_OK;
}

static mr_status look_at_file(mr_hello *h, const char *path) {
    int32_t own, n = mr_part_files_count(path, &own);
    mr_status status = MR_OK;
    bool has_any = false;
    for (int32_t i = 0; i < n && status == MR_OK; i++) {
        millrace__file_part__init(&h->parts[i]);
        h->part_pointers[i] = &h->parts[i];
        status = look_at_part(h, path, i);
        has_any = has_any || h->parts[i].bytes > 0;
    }
    if (status == MR_OK && has_any) {
        h->message.n_parts = (size_t)n;
        h->message.parts = h->part_pointers;
    }
    return status;
}

/* One thread is faster than several, because the programs of a digest are small. */
static mr_status compute_digest(mr_digest *out, mr_err *err) {
    mr_backend *be = NULL;
    mr_status status = mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &be, err);
    if (status == MR_OK)
        status = mr_digest_compute(be, NULL, out, err);
    mr_backend_destroy(be);
    return status;
}

/* What the CPU computes: computed once for all ranks of this process. */
static mr_status get_digest(mr_digest *out, mr_err *err) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static mr_digest known[MR_ISA_COUNT];
    mr_digest *digest = &known[mr_isa_detect()];
    (void)pthread_mutex_lock(&lock);
    mr_status status = digest->n > 0 ? MR_OK : compute_digest(digest, err);
    if (status != MR_OK)
        digest->n = 0;
    *out = *digest;
    (void)pthread_mutex_unlock(&lock);
    return status;
}

static mr_status add_digest(mr_hello *h, mr_err *err) {
    mr_digest d;
    mr_status status = get_digest(&d, err);
    for (int32_t i = 0; i < d.n; i++) {
        h->digest_of[i] = (uint32_t)d.parts[i].op << 8 | (uint32_t)d.parts[i].type;
        h->digest_bits[i] = d.parts[i].bits;
    }
    h->message.n_digest_of = h->message.n_digest_bits = (size_t)d.n;
    h->message.digest_of = h->digest_of;
    h->message.digest_bits = h->digest_bits;
    return status;
}

void mr_hello_fill(mr_hello *h, const char *model_path, int32_t n_threads, const mr_err *problem) {
    mr_cores cores;
    mr_cores_get(&cores);
    *h = (mr_hello){0};
    millrace__hello__init(&h->message);
    if (gethostname(h->host, sizeof h->host - 1) != 0)
        strcpy(h->host, "?");
    h->message.host = h->host;
    h->message.version = (char *)(uintptr_t)MILLRACE_VERSION;
    h->message.numerics = MR_NUMERICS_VERSION;
    h->message.isa = (char *)(uintptr_t)mr_isa_name(mr_isa_detect());
    h->message.cores = (uint32_t)mr_cores_usable(&cores);
    h->message.threads = (uint32_t)n_threads;
    h->message.memory_bytes = mr_mem_available();
    h->message.memory_group = memory_group();
    if (model_path)
        h->message.model_path = (char *)(uintptr_t)model_path;
    mr_status status = add_digest(h, &h->problem);
    if (problem) {
        h->problem = *problem;
        status = problem->status;
    }
    if (status == MR_OK)
        status = look_at_file(h, model_path);
    h->message.status = (uint32_t)status;
    if (status != MR_OK)
        h->message.text = h->problem.text;
}

void mr_hello_add_roots(mr_hello *h, const char *model_path, const char *cache_dir, int32_t n_threads) {
    char *folder = NULL;
    mr_err ignored;
    mr_status status = MR_OK;
    if (h->message.status != MR_OK || h->message.n_parts == 0)
        return;
    (void)!mr_cache_dir_make(cache_dir, &folder, &ignored); /* without a folder the hashes are not kept */
    for (size_t i = 0; i < h->message.n_parts && status == MR_OK; i++) {
        mr_file_hash root;
        if (h->parts[i].bytes == 0)
            continue;
        status = mr_file_root(model_path, (int32_t)i, folder, n_threads, &root, &h->problem);
        if (status == MR_OK)
            memcpy(h->part_roots + i * MR_FILE_HASH_BYTES, root.bytes, MR_FILE_HASH_BYTES);
    }
    mr_free(folder);
    h->message.part_roots =
        (ProtobufCBinaryData){.len = h->message.n_parts * MR_FILE_HASH_BYTES, .data = h->part_roots};
    h->message.status = (uint32_t)status;
    if (status != MR_OK)
        h->message.text = h->problem.text;
}

void mr_hello_add_links(mr_hello *h, const mr_devices *devices, const mr_channel *channel) {
    int32_t holder = devices ? mr_devices_holder(&devices->list) : -1;
    mr_backend *be = holder >= 0 ? devices->list.at[holder] : NULL;
    uint8_t uuid[MR_DEVICE_UUID_BYTES];
    if (!be || !be->ops->link)
        return;
    be->ops->link->uuid(be, uuid);
    memcpy(h->device_uuid, uuid, sizeof uuid);
    h->message.n_device_uuid = MR_DEVICE_UUID_WORDS;
    h->message.device_uuid = h->device_uuid;
    h->message.device_pointers = channel->takes_device_memory;
    mr_err why;
    if (mr_nccl_version(&h->message.nccl_version, &why) != MR_OK)
        mr_log_write(MR_LOG_DEBUG, "lobby", "%s", why.text);
}
