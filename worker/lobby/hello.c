/* worker/lobby/hello.c - collects the hello of this process: from the system, the kernels' self-test and the model
 * file. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/hello.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/self_test.h"
#include "engine/base/cores.h"
#include "engine/base/mem.h"
#include "engine/base/numerics.h"
#include "engine/gguf/part_files.h"

_Static_assert((int)MR_GGUF_MAX_PARTS <= (int)MR_MAX_FILE_PARTS, "a model has more parts than a hello holds");

enum { SAMPLE_BYTES = 64 }; /* bytes from the middle of each tensor */

uint64_t mr_hello_file_digest(const mr_gguf *g) {
    uint64_t digest = 0;
    for (int32_t i = 0; i < mr_gguf_n_parts(g); i++) {
        const mr_gguf_part *p = mr_gguf_part_at(g, i);
        digest = XXH3_64bits_withSeed(mr_gguf_file_data(g) + p->at, p->header_bytes, digest);
    }
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        size_t n = t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES;
        digest = XXH3_64bits_withSeed(t->data + (t->bytes - n) / 2, n, digest);
    }
    return digest;
}

/* A digest of the control groups of this process. Control groups limit memory beside the memory of the host. */
static uint64_t memory_group(void) {
    char text[4096];
    FILE *f = fopen("/proc/self/cgroup", "r");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    return XXH3_64bits(text, n);
}

/* A missing file is no problem: another rank may have the file. */
static mr_status look_at_file(mr_hello *h, const char *path) {
    mr_gguf *g = NULL;
    mr_status status = mr_gguf_open(path, &g, &h->problem);
    if (status != MR_OK)
        return status == MR_E_NOT_FOUND ? MR_OK : status;
    h->message.file_bytes = mr_gguf_file_bytes(g);
    h->message.n_part_bytes = h->message.n_part_header_bytes = (size_t)mr_gguf_n_parts(g);
    h->message.part_bytes = h->part_bytes;
    h->message.part_header_bytes = h->part_header_bytes;
    for (int32_t i = 0; i < mr_gguf_n_parts(g); i++) {
        h->part_bytes[i] = mr_gguf_part_at(g, i)->bytes;
        h->part_header_bytes[i] = mr_gguf_part_at(g, i)->header_bytes;
    }
    h->message.file_digest = mr_hello_file_digest(g);
    mr_gguf_close(g);
    return MR_OK;
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
    mr_status status = MR_OK;
    if (problem) {
        h->problem = *problem;
        status = problem->status;
    }
    if (status == MR_OK)
        status = mr_cpu_self_test(&h->message.self_test, &h->problem);
    if (status == MR_OK)
        status = look_at_file(h, model_path);
    h->message.status = (uint32_t)status;
    if (status != MR_OK)
        h->message.text = h->problem.text;
}
