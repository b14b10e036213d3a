/* worker/lobby/kept_facts.c - keeps the measured times in a file. Its name is a hash of what the times depend on, so a
 * change of the machine or the program finds no file. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/kept_facts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "backends/cpu/kernels.h"
#include "engine/base/cache_dir.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/numerics.h"
#include "proto/facts_message.h"
#include "proto/frame.h"
#include "proto/messages.h"

enum { FILE_BYTES = MR_FRAME_BYTES + 16 * 1024, PATH_BYTES = 4096 };

/* --- The key ----------------------------------------------------------------------------------------------------- */

static uint64_t add(uint64_t h, const void *data, size_t n) {
    return XXH3_64bits_withSeed(data, n, h);
}

static uint64_t add_number(uint64_t h, int64_t v) {
    return add(h, &v, sizeof v);
}

static uint64_t add_text(uint64_t h, const char *text) {
    return add(h, text, strlen(text));
}

/* Adds the lines of /proc/cpuinfo that name the processor; there may be none. */
static uint64_t add_processor(uint64_t h) {
    static const char *const NAMES[] = {"model name", "CPU implementer", "CPU part", "cache size"};
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f) && line[0] != '\n') /* an empty line ends the first processor */
        for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
            if (strncmp(line, NAMES[i], strlen(NAMES[i])) == 0)
                h = add_text(h, line);
    if (f)
        fclose(f);
    return h;
}

uint64_t mr_kept_facts_key(const mr_measure_config *c, int32_t n_threads, int32_t n_together) {
    char host[256] = "";
    (void)!gethostname(host, sizeof host - 1);
    uint64_t h = 0;
    for (int32_t i = 0; i < mr_gguf_n_parts(c->gguf); i++) {
        const mr_gguf_part *p = mr_gguf_part_at(c->gguf, i);
        h = add(h, mr_gguf_file_data(c->gguf) + p->at, p->header_bytes);
    }
    h = add_number(h, (int64_t)mr_gguf_file_bytes(c->gguf));
    h = add_text(h, host);
    h = add_processor(h);
    h = add_text(h, MILLRACE_VERSION);
    h = add_number(h, MR_NUMERICS_VERSION);
    h = add_text(h, mr_isa_name(mr_isa_detect()));
    h = add_number(h, n_threads);
    h = add_number(h, n_together);
    h = add_number(h, c->kv_type);
    h = add_number(h, c->max_rows);
    h = add_number(h, c->map_weights);
    for (int32_t i = 0; c->devices && i < c->devices->list.n; i++) {
        mr_device_info device;
        mr_backend *be = c->devices->list.at[i];
        be->ops->describe(be, &device);
        h = add_text(h, device.name);
        h = add_number(h, c->devices->is_measured);
    }
    return h;
}

/* --- The file ---------------------------------------------------------------------------------------------------- */

/* False: there is no folder, or its name is too long. */
static bool make_path(const char *cache_wish, uint64_t key, char out[PATH_BYTES]) {
    mr_err err;
    char *folder = NULL;
    if (mr_cache_dir_make(cache_wish, &folder, &err) != MR_OK) {
        mr_log_write(MR_LOG_DEBUG, "worker", "measurements are not kept: %s", err.text);
        return false;
    }
    int n = snprintf(out, PATH_BYTES, "%s/times-%016" PRIx64, folder, key);
    mr_free(folder);
    return n > 0 && n < PATH_BYTES;
}

/* Opens the frame and unpacks the message, which lives until the arena is reset. */
static mr_status open_message(const uint8_t *data, size_t bytes, mr_arena *arena, Millrace__Report **out, mr_err *err) {
    const mr_msg_limits none = {0};
    mr_frame frame;
    mr_status status = mr_frame_open(data, bytes, MR_FRAME_REPORT, &frame, err);
    if (status == MR_OK)
        status = mr_msg_unpack_report(data + MR_FRAME_BYTES, frame.payload_bytes, &none, arena, out, err);
    if (status == MR_OK && ((*out)->body_case != MILLRACE__REPORT__BODY_FACTS || (*out)->facts->n_layers == 0))
        status = mr_err_set(err, MR_E_FORMAT, "it holds no measurement");
    return status;
}

bool mr_kept_facts_read(const char *cache_wish, uint64_t key, mr_measured *out) {
    const mr_msg_limits none = {0};
    size_t arena_bytes = mr_msg_arena_bytes(&none);
    char path[PATH_BYTES];
    uint8_t data[FILE_BYTES];
    mr_arena *arena = NULL;
    Millrace__Report *report = NULL;
    mr_err err;
    FILE *f = make_path(cache_wish, key, path) ? fopen(path, "rb") : NULL;
    if (!f)
        return false;
    size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    mr_status status = mr_arena_create(arena_bytes, arena_bytes, &arena, &err);
    if (status == MR_OK)
        status = open_message(data, n, arena, &report, &err);
    if (status == MR_OK)
        mr_facts_message_read(report->facts, out);
    else
        mr_log_write(MR_LOG_DEBUG, "worker", "%s is not used: %s", path, err.text);
    mr_arena_destroy(arena);
    return status == MR_OK;
}

/* Writes a temporary file and renames it, so that no process reads half a file. */
static bool replace_file(const char *path, const uint8_t *data, size_t bytes) {
    char new_path[PATH_BYTES + 8];
    snprintf(new_path, sizeof new_path, "%s.XXXXXX", path);
    int fd = mkstemp(new_path);
    if (fd < 0)
        return false;
    bool ok = write(fd, data, bytes) == (ssize_t)bytes;
    ok = close(fd) == 0 && ok;
    ok = ok && rename(new_path, path) == 0;
    if (!ok)
        (void)unlink(new_path);
    return ok;
}

void mr_kept_facts_write(const char *cache_wish, uint64_t key, const mr_measured *measured) {
    char path[PATH_BYTES];
    uint8_t data[FILE_BYTES];
    mr_facts_message facts;
    mr_frame frame = {0};
    size_t bytes = 0;
    mr_err err;
    mr_facts_message_fill(&facts, measured);
    const Millrace__Report report = mr_msg_report_of(&facts.message.base);
    if (!make_path(cache_wish, key, path))
        return;
    if (mr_msg_pack(&report.base, data + MR_FRAME_BYTES, sizeof data - MR_FRAME_BYTES, &bytes, &err) != MR_OK) {
        mr_log_write(MR_LOG_DEBUG, "worker", "measurements are not kept: %s", err.text);
        return;
    }
    frame.kind = MR_FRAME_REPORT;
    frame.payload_bytes = bytes;
    mr_frame_seal(&frame, data);
    if (!replace_file(path, data, MR_FRAME_BYTES + bytes))
        mr_log_write(MR_LOG_DEBUG, "worker", "%s cannot be written", path);
}

mr_status mr_kept_facts_get(const char *cache_wish, int32_t n_threads, const mr_measure_config *config,
                            const Millrace__Measure *wish, mr_measured *out, bool *out_known, mr_err *err) {
    uint64_t key = mr_kept_facts_key(config, n_threads, (int32_t)wish->n_together);
    double sample_s = 0;
    mr_status status = MR_OK;
    *out_known = false;
    if (!wish->anew && mr_kept_facts_read(cache_wish, key, out)) {
        status = mr_measure_sample(config, &sample_s, err);
        (void)mr_measure_describe_device(config, &out->device); /* its free memory may be another now */
        *out_known = status == MR_OK && mr_kept_facts_hold(out, sample_s);
        if (status == MR_OK && !*out_known)
            mr_log_write(MR_LOG_INFO, "worker",
                         "a layer takes %.3f ms instead of the measured %.3f ms: the kept times are not used",
                         sample_s * 1e3, out->sample_s * 1e3);
    }
    if (!wish->anew || status != MR_OK)
        return status;
    status = mr_measure_stage_times(config, out, err);
    *out_known = status == MR_OK;
    if (status == MR_OK)
        mr_kept_facts_write(cache_wish, key, out);
    return status;
}
